//! Upkeep: removing what no request can reach any more, in slices that are each far shorter than
//! the delay after which conversions are answered.
//!
//! A round first closes the epochs that nobody can reach, and removes their rows. Then it scans all
//! other rows for expired impressions and for the names of sites that are in use. At its end, it
//! removes the names that are not in use. Calls come in between, so every name that a call writes
//! counts as used. If another process wrote, the scan begins again.
//!
//! A round that is due only because many names were given removes names and nothing more. How many
//! are given and in use depends on what is stored. If such a round closed epochs or removed
//! impressions, one epoch's data would decide when another is closed, which shows once a wrong
//! clock is set right.

use bigbird::attribution::ImpressionEdit;
use bigbird::{SiteId, Timestamp};
use hashbrown::HashSet;
use rustc_hash::FxBuildHasher;

use super::UserAgent;
use crate::clock::{DAY_MS, next};
use crate::config::Config;
use crate::execution::Execution;
use crate::randomness::Randomness;
use crate::storage::{
    ChangeSet, ForgottenEpochs, ImpressionSelection, RowPlace, RowSet, Storage, Transaction, View,
    ViewRow,
};

/// The number of rows of a kind that a slice scans or removes.
pub(crate) const SLICE: u32 = 1000;

/// The number of interrupted scans after which a round ends. A write of another process interrupts
/// a scan. Unused names then stay until the next round.
const MOST_LOOKS: u32 = 3;

/// The progress of a round of upkeep.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    stage: UpkeepStage,
    /// The names in use that the scan has found so far.
    used: HashSet<SiteId, FxBuildHasher>,
    /// The revision of the store after our last transaction. Set when the scan begins.
    revision: u64,
    /// The last name that was given before the scan began.
    last_name: Option<SiteId>,
    /// True if the round removes names only.
    names_only: bool,
    /// The time when the last complete round began. The time when it ended depends on how much it
    /// had to do.
    began: Option<Timestamp>,
    /// The number of names that were given since then.
    named: usize,
    /// The number of names that were in use then.
    in_use: usize,
    /// True if a round is wanted at once.
    wanted: bool,
    /// The number of scans that were interrupted.
    disturbed: u32,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum UpkeepStage {
    /// No round has begun.
    #[default]
    Rest,
    /// Removing rows of epochs that nobody can reach.
    Rows,
    /// Scanning the rows of a kind, after a place.
    Look(usize, Option<RowPlace>),
    /// Removing unused names, after a place.
    Names(Option<RowPlace>),
}

/// The rows that name sites, in the order in which they are scanned.
const NAMING: [RowSet; 5] = [
    RowSet::Filters,
    RowSet::Admissions,
    RowSet::Closings,
    RowSet::Objects,
    RowSet::Impressions(ImpressionSelection::All),
];

impl<S: Storage, R: Randomness> UserAgent<S, R> {
    /// Removes everything that no request can reach any more. A browser calls
    /// [`upkeep`](Self::upkeep) instead, which does so in slices.
    ///
    /// # Errors
    /// If the store failed.
    pub fn maintain(&mut self, now: Timestamp) -> Result<(), S::Error> {
        self.start_upkeep();
        while self.upkeep(now)? {}
        Ok(())
    }

    /// Makes [`upkeep`](Self::upkeep) due.
    pub fn start_upkeep(&mut self) {
        self.upkeep.start_over();
    }

    /// True if [`upkeep`](Self::upkeep) has something to do: once a day, after history was cleared,
    /// and when many names were given.
    pub fn is_upkeep_due(&self, now: Timestamp) -> bool {
        self.upkeep.is_due(now, self.config())
    }

    /// Removes a slice of what no request can reach any more, and returns true if there is more to
    /// do. It removes rows of epochs before the longest lookback, whether or not anything was ever
    /// charged in them. It also removes expired impressions, and the names of sites that no row
    /// mentions. Call it while it is [due](Self::is_upkeep_due) and nobody waits. No page can tell
    /// whether it was called.
    ///
    /// Upkeep does not close an epoch after the latest one in which a conversion was measured. So a
    /// clock that is wrong while nothing is measured does not stop the API for good.
    ///
    /// # Errors
    /// If the store failed. Then the next call begins a new round.
    pub fn upkeep(&mut self, now: Timestamp) -> Result<bool, S::Error> {
        self.adopt_rules(now)?;
        let transaction = self.storage.begin()?;
        let config = self.gate.config();
        let randomness = &mut self.randomness;
        let done = self.upkeep.slice(transaction, config, randomness, now);
        if done.is_err() {
            self.upkeep.retry();
        }
        done
    }
}

impl Upkeep {
    /// Makes the next slice begin a new round.
    pub(crate) fn start_over(&mut self) {
        self.stage = UpkeepStage::Rest;
        self.wanted = true;
    }

    /// Makes the next slice begin the round again after a failure. A round for names stays one.
    fn retry(&mut self) {
        if self.names_only {
            self.stage = UpkeepStage::Rest;
        } else {
            self.start_over();
        }
    }

    pub(crate) fn is_due(&self, now: Timestamp, config: &Config) -> bool {
        self.stage != UpkeepStage::Rest
            || self.is_complete_round_due(now)
            || self.are_names_due(config)
    }

    /// True if a complete round is due. This follows from calls and the clock alone.
    fn is_complete_round_due(&self, now: Timestamp) -> bool {
        let a_day_ago = |began: Timestamp| began.0.abs_diff(now.0) >= DAY_MS.unsigned_abs();
        self.wanted || self.began.is_none_or(a_day_ago)
    }

    /// True if more names were given since the last round than the configuration says, and more
    /// than were in use at its end.
    fn are_names_due(&self, config: &Config) -> bool {
        self.named > config.names_before_upkeep.max(self.in_use)
    }

    /// Notes the changes of a call: the names that it writes are in use.
    pub(crate) fn note(&mut self, changes: &ChangeSet) {
        self.named += changes.named.len();
        if let UpkeepStage::Look(..) | UpkeepStage::Names(_) = self.stage {
            changes.each_site(&mut |site| self.used.extend([site]));
        }
    }

    /// Commits a transaction.
    pub(crate) fn commit<E>(&mut self, transaction: impl Transaction<E>) -> Result<(), E> {
        let committed = transaction.commit();
        match &committed {
            Ok(()) => self.revision = self.revision.wrapping_add(1),
            // The commit may have happened or not. With an unknown revision, a write of another
            // process would go unnoticed.
            Err(_) if self.stage != UpkeepStage::Rest => self.retry(),
            Err(_) => {}
        }
        committed
    }

    /// Does a slice. Returns true if there is more to do.
    pub(crate) fn slice<T: Transaction<E>, E, R: Randomness>(
        &mut self,
        mut transaction: T,
        config: &Config,
        randomness: &mut R,
        now: Timestamp,
    ) -> Result<bool, E> {
        let looking = matches!(self.stage, UpkeepStage::Look(..) | UpkeepStage::Names(_));
        if looking && transaction.revision()? != self.revision {
            self.disturbed += 1;
            if self.disturbed >= MOST_LOOKS {
                self.finish();
                return Ok(false);
            }
            self.stage = UpkeepStage::Rest;
        }
        if self.names_only && self.is_complete_round_due(now) {
            self.stage = UpkeepStage::Rest;
        }
        let mut execution = Execution::new(&transaction, config, randomness)?;
        let reachable = execution.starting_epoch(now);
        if self.stage == UpkeepStage::Rest {
            if self.disturbed == 0 || self.is_complete_round_due(now) {
                self.names_only = self.are_names_due(config) && !self.is_complete_round_due(now);
            }
            self.stage = UpkeepStage::Rows;
            if self.names_only {
                self.begin_look(&transaction)?;
            } else {
                self.wanted = false;
                self.began = Some(now);
                if let Some(latest) = execution.state.latest {
                    let measured = next(execution.epoch(latest));
                    execution.close_before(reachable.min(measured));
                }
            }
        }
        let forgotten = ForgottenEpochs {
            pruned: execution.state.first_epoch,
            unreachable: execution.state.first_epoch.max(reachable),
            history: execution.epoch(execution.oldest(now)),
            most: SLICE,
        };
        let mut changes = execution.into_changes();
        let done = self.advance(&transaction, forgotten, now, &mut changes)?;
        if changes == ChangeSet::default() {
            return Ok(!done);
        }
        transaction.apply(&changes)?;
        self.commit(transaction)?;
        Ok(!done)
    }

    /// Ends a round.
    fn finish(&mut self) {
        *self = Self {
            began: self.began,
            in_use: self.used.len(),
            ..Self::default()
        };
    }

    /// Begins the scan for names in use.
    fn begin_look<E>(&mut self, view: &impl View<E>) -> Result<(), E> {
        self.stage = UpkeepStage::Look(0, None);
        self.used.clear();
        self.revision = view.revision()?;
        self.last_name = view.last_site()?;
        Ok(())
    }

    /// Collects the changes of the next slice. Returns true if the round has ended.
    fn advance<E>(
        &mut self,
        view: &impl View<E>,
        forgotten: ForgottenEpochs,
        now: Timestamp,
        changes: &mut ChangeSet,
    ) -> Result<bool, E> {
        match self.stage {
            UpkeepStage::Rest => {}
            UpkeepStage::Rows if view.has_rows_before(forgotten)? => {
                changes.forgotten = Some(forgotten);
            }
            UpkeepStage::Rows => self.begin_look(view)?,
            UpkeepStage::Look(kind, behind) => {
                let mut last = behind;
                let (used, names_only) = (&mut self.used, self.names_only);
                let more = view.visit_some(NAMING[kind], behind, SLICE as usize, &mut |row| {
                    last = Some(row.place());
                    match row {
                        // An impression can still match at the very moment of its expiry (notes on
                        // the draft, row 12).
                        ViewRow::Impression(epoch, order, impression)
                            if impression.expires < now && !names_only =>
                        {
                            changes.edited.push(ImpressionEdit {
                                epoch,
                                order,
                                audience: None,
                            });
                        }
                        _ => row.each_site(&mut |site| used.extend([site])),
                    }
                })?;
                self.stage = match more {
                    true => UpkeepStage::Look(kind, last),
                    false if kind + 1 < NAMING.len() => UpkeepStage::Look(kind + 1, None),
                    false => UpkeepStage::Names(None),
                };
            }
            UpkeepStage::Names(behind) => {
                let mut last = behind;
                let (used, last_name) = (&self.used, self.last_name);
                let more = view.visit_some(RowSet::Names, behind, SLICE as usize, &mut |row| {
                    last = Some(row.place());
                    if let ViewRow::Name(id, _) = row
                        && Some(id) <= last_name
                        && !used.contains(&id)
                    {
                        changes.unnamed.push(id);
                    }
                })?;
                self.stage = UpkeepStage::Names(last);
                if !more {
                    changes.erase = true;
                    self.finish();
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}
