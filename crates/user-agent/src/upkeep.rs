//! Upkeep: removing what no request can reach any more, in slices that are each far shorter than the
//! delay after which conversions are answered.
//!
//! A round first closes the epochs that nobody can reach, then removes rows of theirs, then looks
//! through everything that is left: for expired impressions, and for the names of sites that are in
//! use. At its end the other names go. Calls come in between, so every name that one of them writes
//! counts as used; and if another process wrote, the look begins anew.

use bigbird::attribution::Edit;
use bigbird::{SiteId, Timestamp};
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use crate::clock::{DAY_MS, next};
use crate::config::{Config, Randomness};
use crate::storage::{ChangeSet, Forgotten, Place, Row, Rows, Selection, Transaction, View};
use crate::work::Work;

/// How many rows of a kind a slice looks at, or removes.
pub(crate) const SLICE: u32 = 1000;

/// So often a look begins anew because another process wrote. After that, names stay until the next
/// round.
const MOST_LOOKS: u32 = 3;

/// So many names are given before a round is due for them, and at least as many as were in use
/// after the last one.
const MANY_NAMES: usize = 10_000;

/// Where a round of upkeep is.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    stage: Stage,
    /// The names that are in use, as far as was looked.
    used: HashSet<SiteId, FxBuildHasher>,
    /// The revision of the store after our last transaction, from the look on.
    revision: u64,
    /// The last name that was given before the look began.
    last_name: Option<SiteId>,
    /// When the last round ended.
    finished: Option<Timestamp>,
    /// How many names were given since, and how many were in use then.
    named: usize,
    in_use: usize,
    /// Whether a round is wanted at once.
    wanted: bool,
    /// How often the look had to begin anew.
    disturbed: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    /// Nothing was begun.
    #[default]
    Rest,
    /// Removing rows of epochs that nobody can reach.
    Rows,
    /// Looking through rows of a kind, behind a place.
    Look(usize, Option<Place>),
    /// Removing unused names, behind a place.
    Names(Option<Place>),
}

/// The rows that name sites, in the order in which they are looked through.
const NAMING: [Rows; 5] = [
    Rows::Filters,
    Rows::Admissions,
    Rows::Closings,
    Rows::Objects,
    Rows::Impressions(Selection::All),
];

impl Upkeep {
    /// Lets a round begin with the next slice.
    pub(crate) fn start_over(&mut self) {
        self.stage = Stage::Rest;
        self.wanted = true;
    }

    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let a_day_ago = |finished: Timestamp| finished.0.abs_diff(now.0) >= DAY_MS.unsigned_abs();
        self.wanted
            || self.stage != Stage::Rest
            || self.finished.is_none_or(a_day_ago)
            || self.named > MANY_NAMES.max(self.in_use)
    }

    /// Notes what a call writes: its names are in use.
    pub(crate) fn note(&mut self, changes: &ChangeSet) {
        self.named += changes.named.len();
        if let Stage::Look(..) | Stage::Names(_) = self.stage {
            changes.each_site(&mut |site| self.used.extend([site]));
        }
    }

    /// Commits a transaction.
    pub(crate) fn commit<E>(&mut self, transaction: impl Transaction<E>) -> Result<(), E> {
        let committed = transaction.commit();
        match &committed {
            Ok(()) => self.revision = self.revision.wrapping_add(1),
            // The revision may be either: one more by somebody else would go unnoticed.
            Err(_) if self.stage != Stage::Rest => self.start_over(),
            Err(_) => {}
        }
        committed
    }

    /// Does a slice, and says whether there is more to do.
    pub(crate) fn slice<T: Transaction<E>, E, R: Randomness>(
        &mut self,
        mut transaction: T,
        config: &Config,
        randomness: &mut R,
        now: Timestamp,
    ) -> Result<bool, E> {
        let looking = matches!(self.stage, Stage::Look(..) | Stage::Names(_));
        if looking && transaction.revision()? != self.revision {
            self.disturbed += 1;
            if self.disturbed >= MOST_LOOKS {
                self.finish(now);
                return Ok(false);
            }
            self.stage = Stage::Rest;
        }
        let mut work = Work::new(&transaction, config, randomness)?;
        let reachable = work.starting_epoch(now);
        if self.stage == Stage::Rest {
            self.wanted = false;
            self.stage = Stage::Rows;
            if let Some(latest) = work.state.latest {
                let measured = next(work.epoch(latest));
                work.close_before(reachable.min(measured));
            }
        }
        let forgotten = Forgotten {
            pruned: work.state.first_epoch,
            unreachable: work.state.first_epoch.max(reachable),
            most: SLICE,
        };
        let mut changes = work.into_changes();
        let done = self.advance(&transaction, forgotten, now, &mut changes)?;
        if changes == ChangeSet::default() {
            return Ok(!done);
        }
        transaction.apply(&changes)?;
        self.commit(transaction)?;
        Ok(!done)
    }

    /// Ends a round.
    fn finish(&mut self, now: Timestamp) {
        *self = Self {
            finished: Some(now),
            in_use: self.used.len(),
            ..Self::default()
        };
    }

    /// What the next slice changes; says whether the round has ended.
    fn advance<E>(
        &mut self,
        view: &impl View<E>,
        forgotten: Forgotten,
        now: Timestamp,
        changes: &mut ChangeSet,
    ) -> Result<bool, E> {
        match self.stage {
            Stage::Rest => {}
            Stage::Rows if view.has_rows_before(forgotten)? => {
                changes.forgotten = Some(forgotten);
            }
            Stage::Rows => {
                self.stage = Stage::Look(0, None);
                self.used.clear();
                self.revision = view.revision()?;
                self.last_name = view.last_site()?;
            }
            Stage::Look(kind, behind) => {
                let mut last = behind;
                let used = &mut self.used;
                let more = view.visit_some(NAMING[kind], behind, SLICE as usize, &mut |row| {
                    last = Some(row.place());
                    match row {
                        // It can match at the very moment of its expiry (notes on the draft, row 12).
                        Row::Impression(epoch, order, impression) if impression.expires < now => {
                            changes.edited.push(Edit {
                                epoch,
                                order,
                                audience: None,
                            });
                        }
                        _ => row.each_site(&mut |site| used.extend([site])),
                    }
                })?;
                self.stage = match more {
                    true => Stage::Look(kind, last),
                    false if kind + 1 < NAMING.len() => Stage::Look(kind + 1, None),
                    false => Stage::Names(None),
                };
            }
            Stage::Names(behind) => {
                let mut last = behind;
                let (used, last_name) = (&self.used, self.last_name);
                let more = view.visit_some(Rows::Names, behind, SLICE as usize, &mut |row| {
                    last = Some(row.place());
                    if let Row::Name(id, _) = row
                        && Some(id) <= last_name
                        && !used.contains(&id)
                    {
                        changes.unnamed.push(id);
                    }
                })?;
                self.stage = Stage::Names(last);
                if !more {
                    changes.erase = true;
                    self.finish(now);
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
