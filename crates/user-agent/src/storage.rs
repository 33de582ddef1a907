//! The border between the user agent and its store: rows below, rules above.
//!
//! A call reads the rows of a [`View`] and gives an answer and a [`ChangeSet`], which is data. Every
//! rule is above this border: what the domain cap admits, which filters can pay, what is evicted,
//! which names are unused. A store reads rows and writes them down, all of one change set or none.

use bigbird::attribution::{Edit, SiteSize};
use bigbird::{
    AttributionObject, AttributionQuery, Changes, EpochIndex, EventStore, Filter, Impression,
    LedgerView, MicroEpsilon, Policies, Policy, SiteId, Timestamp, UserAction,
};
use serde::{Deserialize, Serialize};

use crate::clock::Timeline;
use crate::shared::SharedConversion;
use crate::site::Site;

/// Where a user agent keeps impressions, budgets and its own state: in memory
/// ([`Memory`](crate::Memory)), on disk, or wherever you like: the example `json_store` is one.
///
/// What an implementation guarantees, because the privacy of the whole rests on it:
///
/// * **Atomic.** A transaction that is committed happened as a whole; one that is dropped, or whose
///   process died, did not happen at all.
/// * **Isolated.** What a transaction reads does not change until it ends, other than by its own
///   changes, also when two processes have the store open.
/// * **Durable before release.** When [`commit`](Transaction::commit) returns, the changes survive
///   a crash and a power cut. The user agent releases a report only then.
/// * **Fail closed.** What cannot be read is an error, never an empty store: a lost ledger would
///   refund every budget.
pub trait Storage {
    /// Why it could not be read or written.
    type Error: std::error::Error + 'static;

    /// A transaction.
    type Transaction<'t>: Transaction<Self::Error>
    where
        Self: 't;

    /// Begins a transaction, waiting for others to end.
    ///
    /// # Errors
    /// If the store cannot be opened or locked.
    fn begin(&mut self) -> Result<Self::Transaction<'_>, Self::Error>;
}

/// One transaction: what calls see, and what they change.
pub trait Transaction<E>: View<E> {
    /// Writes a change set down, in the order of its fields. A later view of this transaction sees
    /// it.
    ///
    /// # Errors
    /// If it cannot be written. Nothing of the transaction happens then.
    fn apply(&mut self, changes: &ChangeSet) -> Result<(), E>;

    /// Makes the changes durable, with a write also if there are none: whether a call changed
    /// something must not show. Dropping the transaction instead forgets them.
    ///
    /// # Errors
    /// If they cannot be made durable.
    fn commit(self) -> Result<(), E>;
}

/// What a call may see of the device: rows. The ledger's and the matching impressions are those that
/// the engine reads.
pub trait View<E>: LedgerView<Error = E> + EventStore<AttributionQuery, Error = E> {
    /// The user agent's own state.
    ///
    /// # Errors
    /// If it cannot be read; so for all that follow.
    fn state(&self) -> Result<State, E>;

    /// Visits every row of some kind, impressions of an epoch in the order of saving.
    fn visit(&self, rows: Rows, visit: &mut dyn FnMut(Row<'_>)) -> Result<(), E>;

    /// Visits the next rows of some kind, in the order of their [`Place`]s, from behind a place on, and
    /// says whether there are more: for work that is done in slices. A store that visits all of
    /// them in a moment may give more than `most`.
    fn visit_some(
        &self,
        rows: Rows,
        behind: Option<Place>,
        most: usize,
        visit: &mut dyn FnMut(Row<'_>),
    ) -> Result<bool, E> {
        let _ = most;
        self.visit(rows, &mut |row| {
            if Some(row.place()) > behind {
                visit(row);
            }
        })?;
        Ok(false)
    }

    /// A number that is one more after each transaction that was committed, by whatever process: so
    /// work in slices notices that somebody else has changed something in between.
    fn revision(&self) -> Result<u64, E>;

    /// The number of a site, if it has one.
    fn site_id(&self, site: &Site) -> Result<Option<SiteId>, E>;

    /// The site of a number. This and what follows look at every row of a kind, unless a store knows
    /// better.
    fn site(&self, id: SiteId) -> Result<Option<Site>, E> {
        self.first(Rows::Names, |row| match row {
            Row::Name(other, site) if other == id => Some(site.clone()),
            _ => None,
        })
    }

    /// The largest number that a site has.
    fn last_site(&self) -> Result<Option<SiteId>, E> {
        let mut last = None;
        self.visit(Rows::Names, &mut |row| {
            if let Row::Name(id, _) = row {
                last = last.max(Some(id));
            }
        })?;
        Ok(last)
    }

    /// The last epoch in which no conversion of a site is to be measured, if the user cleared its
    /// data.
    fn closed_until(&self, site: SiteId) -> Result<Option<EpochIndex>, E> {
        self.first(Rows::Closings, |row| match row {
            Row::Closing(other, until) if other == site => Some(until),
            _ => None,
        })
    }

    /// The attribution object of a handle.
    fn object(&self, shared: SharedConversion) -> Result<Option<StoredObject>, E> {
        self.first(Rows::Objects, |row| match row {
            Row::Object(stored) if stored.shared == shared => Some(stored.clone()),
            _ => None,
        })
    }

    /// The number and the conversion site of every attribution object.
    fn objects(&self) -> Result<Vec<(u64, SiteId)>, E> {
        let mut objects = Vec::new();
        self.visit(Rows::Objects, &mut |row| {
            if let Row::Object(it) = row {
                objects.push((it.number, it.object.conversion_site()));
            }
        })?;
        Ok(objects)
    }

    /// The first row of a kind of which something can be said.
    fn first<A>(
        &self,
        rows: Rows,
        mut say: impl FnMut(Row<'_>) -> Option<A>,
    ) -> Result<Option<A>, E> {
        let mut said = None;
        self.visit(rows, &mut |row| {
            if said.is_none() {
                said = say(row);
            }
        })?;
        Ok(said)
    }

    /// How many [units](Impression::units) the impressions of an epoch have.
    fn units(&self, epoch: EpochIndex) -> Result<u32, E>;

    /// The largest site of an epoch.
    fn largest_site(&self, epoch: EpochIndex) -> Result<Option<SiteSize>, E>;

    /// Whether any row is left that this would remove.
    fn has_rows_before(&self, forgotten: Forgotten) -> Result<bool, E> {
        let (mut found, pruned) = (false, forgotten.pruned);
        let Forgotten { unreachable, .. } = forgotten;
        for rows in [
            Rows::Filters,
            Rows::Admissions,
            Rows::Closings,
            Rows::Objects,
        ] {
            self.visit(rows, &mut |row| {
                found |= match row {
                    Row::Filter(epoch, ..) => epoch < pruned,
                    Row::Object(stored) => stored.object.created() < pruned,
                    Row::Closing(_, until) => until < pruned,
                    Row::Admission(_, epoch, _) => epoch < unreachable,
                    Row::Name(..) | Row::Impression(..) => false,
                };
            })?;
        }
        self.visit(Rows::Impressions(Selection::All), &mut |row| {
            if let Row::Impression(epoch, ..) = row {
                found |= epoch < unreachable;
            }
        })?;
        Ok(found)
    }
}

/// The place of a row among those of its kind.
pub type Place = [i64; 3];

/// Epochs of which rows go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Forgotten {
    /// Every row of an epoch before this one goes: filters, admissions, impressions, sites closed
    /// until one of them, objects created in one of them. They pay nothing any more.
    pub pruned: EpochIndex,
    /// No request can reach an epoch before this one, as time has gone on; but it was not closed,
    /// so that a clock which is wrong does not end the API. Its admissions and its impressions go. What
    /// it paid stays, and so do sites closed until then.
    pub unreachable: EpochIndex,
    /// How many rows of each kind go at most, objects excepted; a store that removes all of them in a
    /// moment may remove more.
    pub most: u32,
}

/// Kinds of rows to visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The names of sites.
    Names,
    /// Filters that were charged.
    Filters,
    /// Sites that were admitted under a user action.
    Admissions,
    /// Sites that the user closed.
    Closings,
    /// Attribution objects.
    Objects,
    /// Impressions. A store may give more than those that are asked for.
    Impressions(Selection),
}

/// Impressions to visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// All of them.
    All,
    /// Those on a site, in an epoch or later.
    On(SiteId, EpochIndex),
    /// Those that a site saved, and those that list it as one that may measure them.
    Naming(SiteId),
    /// Those of an epoch and all later ones.
    From(EpochIndex),
}

/// A row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Row<'r> {
    /// The name of a site.
    Name(SiteId, &'r Site),
    /// What a filter has consumed.
    Filter(EpochIndex, Filter, MicroEpsilon),
    /// A site that was admitted under a user action.
    Admission(UserAction, EpochIndex, SiteId),
    /// A site that the user closed, up to and including an epoch.
    Closing(SiteId, EpochIndex),
    /// An attribution object.
    Object(&'r StoredObject),
    /// An impression, by its place in the order of saving.
    Impression(EpochIndex, u32, Impression<'r>),
}

impl Row<'_> {
    /// Its place among the rows of its kind.
    pub fn place(&self) -> Place {
        match *self {
            Self::Name(site, _) | Self::Closing(site, _) => [i64::from(site.0), 0, 0],
            Self::Filter(epoch, filter, _) => {
                let (kind, id) = filter.key();
                [epoch.0, i64::from(kind), id.cast_signed()]
            }
            // Those that the application numbers have the highest bit, and come last all the same.
            Self::Admission(action, epoch, site) => {
                let action = (action.0 ^ 1 << 63).cast_signed();
                [epoch.0, action, i64::from(site.0)]
            }
            Self::Object(stored) => [stored.number.cast_signed(), 0, 0],
            Self::Impression(epoch, order, _) => [epoch.0, i64::from(order), 0],
        }
    }

    /// Gives each site that it names by its number: those must keep them.
    pub fn each_site(&self, each: &mut dyn FnMut(SiteId)) {
        match self {
            Self::Name(..) => {}
            Self::Filter(_, filter, _) => filter.site().into_iter().for_each(each),
            Self::Admission(_, _, site) | Self::Closing(site, _) => each(*site),
            Self::Object(stored) => stored.object.sites().for_each(each),
            Self::Impression(_, _, impression) => {
                each(impression.site);
                each(impression.caller());
                let lists = [impression.conversion_sites, impression.conversion_callers];
                lists.into_iter().flatten().copied().for_each(each);
            }
        }
    }
}

/// What one call changes: rows, and nothing that could be refused. A store applies it in the order of
/// the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChangeSet {
    /// The state as it will be, if it changes.
    pub state: Option<State>,
    /// Sites that get a number.
    pub named: Vec<(SiteId, Site)>,
    /// What filters pay and actions are admitted to.
    pub ledger: Changes,
    /// Impressions to save, each at the end of its epoch.
    pub saved: Vec<SavedImpression>,
    /// Impressions that go, or that fewer may measure. Places are those of the view.
    pub edited: Vec<Edit>,
    /// Sites that are closed, up to and including an epoch, in place of what was there.
    pub closed: Vec<(SiteId, EpochIndex)>,
    /// Attribution objects to keep, each in place of one with its number or its handle.
    pub objects: Vec<StoredObject>,
    /// Attribution objects to forget, by number.
    pub dropped_objects: Vec<u64>,
    /// Epochs of which rows go.
    pub forgotten: Option<Forgotten>,
    /// Sites that lose their number.
    pub unnamed: Vec<SiteId>,
    /// Whether what goes is to be erased for good, so that nobody finds it on the disk: it was
    /// cleared, or cleaned up, and not just displaced.
    pub erase: bool,
}

impl ChangeSet {
    /// Gives each site that something it writes names by its number.
    pub(crate) fn each_site(&self, each: &mut dyn FnMut(SiteId)) {
        self.named.iter().for_each(|(id, _)| each(*id));
        let charged = self.ledger.charges.iter();
        charged
            .filter_map(|it| it.filter.site())
            .for_each(&mut *each);
        self.ledger.admissions.iter().for_each(|it| each(it.site));
        for saved in &self.saved {
            Row::Impression(saved.epoch, 0, saved.impression()).each_site(each);
        }
        for audience in self.edited.iter().filter_map(|edit| edit.audience.as_ref()) {
            let lists = [&audience.conversion_sites, &audience.conversion_callers];
            lists.into_iter().flatten().copied().for_each(&mut *each);
        }
        self.closed.iter().for_each(|(site, _)| each(*site));
        for stored in &self.objects {
            Row::Object(stored).each_site(each);
        }
    }
}

/// An impression to save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the fields are those of an impression")]
pub struct SavedImpression {
    /// The epoch it is saved in.
    pub epoch: EpochIndex,
    pub site: SiteId,
    pub intermediary: Option<SiteId>,
    pub user_action: UserAction,
    pub timestamp: Timestamp,
    pub expires: Timestamp,
    pub match_value: u32,
    pub histogram_index: u32,
    pub priority: i32,
    pub audience: bigbird::attribution::Audience,
}

impl SavedImpression {
    /// The impression.
    pub fn impression(&self) -> Impression<'_> {
        Impression {
            intermediary: self.intermediary,
            expires: self.expires,
            match_value: self.match_value,
            priority: self.priority,
            conversion_sites: &self.audience.conversion_sites,
            conversion_callers: &self.audience.conversion_callers,
            ..Impression::new(
                self.site,
                self.user_action,
                self.timestamp,
                self.histogram_index,
            )
        }
    }
}

/// An attribution object as it is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredObject {
    /// The number under which it was created: the larger, the younger.
    pub number: u64,
    /// The handle by which a site names it.
    pub shared: SharedConversion,
    /// The object.
    pub object: AttributionObject,
}

/// What a user agent knows of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Whether the user lets the API work.
    pub enabled: bool,
    /// When epochs begin, and the rules of each. Empty until the first valid call while the API is
    /// enabled.
    pub timeline: Timeline,
    /// Epochs before this one were pruned. They pay nothing ever again. If epochs have not begun, and
    /// this is 1, the store started over when history was last cleared: epoch 0 begins then.
    pub first_epoch: EpochIndex,
    /// When browsing history was last cleared.
    pub last_clear: Option<Timestamp>,
    /// The latest moment of a conversion, of a shared conversion that was created, or of a share that
    /// was taken, whatever it found: a clock that steps back must not bring budgets back. Were it
    /// the moment of the latest charge, what one epoch holds would decide which others are closed.
    pub latest: Option<Timestamp>,
    /// The latest moment of any valid call while the API was enabled: no epoch after it holds
    /// anything, so that new rules can begin there.
    pub latest_use: Option<Timestamp>,
    /// The next id of a user action; ids are never used again.
    pub next_user_action: u64,
    /// The next number of an attribution object.
    pub next_object: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            enabled: true,
            timeline: Timeline::default(),
            first_epoch: EpochIndex(i64::MIN),
            last_clear: None,
            latest: None,
            latest_use: None,
            next_user_action: 1,
            next_object: 1,
        }
    }
}

/// Every epoch keeps the rules it began with, until it is pruned.
impl Policies for State {
    fn policy(&self, epoch: EpochIndex) -> Option<&Policy> {
        let rules = self.timeline.rules(epoch)?;
        (epoch >= self.first_epoch).then_some(&rules.policy)
    }
}
