//! The whole user agent as a manager, on a store in memory or on SQLite, behind its scheduler in
//! virtual time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bigbird::{Decision, EpochIndex, Fate, FilterKind, Profile, SiteId, StoreLimits, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::protocol::{Arrivals, ConversionArrival, Pace, Scheduler, Ticket};
use bigbird_user_agent::{
    Action, Config, ConversionOptions, EpochStart, Explanation, ImpressionOptions,
    ImpressionSelection, MemoryStore, PageAnswer, PageCall, QuerierRole, Randomness, RowSet,
    SealedReport, SharedConversion, Storage, UserAgent, View as _, ViewRow,
};

use super::device::{filter_name, stored_impression};
use super::snapshot::{EpochSnapshot, FilterId, ObjectSnapshot, WorldSnapshot};
use super::world::{StoreFlaw, WorldLife, WorldStore};
use super::{MakeManager, Manager, Observation, SeenReport, StepTime, WorldSetup};
use crate::script::{
    AskTerms, ClearHistory, Create, Measure, Save, Scope, ScriptCall, ScriptSetup, Share,
    SiteNumber, Step, Tape,
};

/// Makes user agents.
#[derive(Debug, Clone, Copy)]
pub struct AgentManager {
    /// The store.
    pub store: AuditedStore,
    /// A flaw of the store, if any.
    pub store_flaw: Option<StoreFlaw>,
    /// A flaw of the host that drives the user agent, if any.
    pub host_flaw: Option<TimingFlaw>,
    /// True to explain every single call before it is made, and to panic if the explanation is not
    /// what happens.
    pub checks_explanations: bool,
}

/// The kind of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuditedStore {
    /// In memory.
    Memory,
    /// SQLite, in a folder in memory if the system has one, so that flushing costs nothing.
    Sqlite,
}

/// A mistake of the program that drives a user agent: time decides what is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimingFlaw {
    /// A call is refused while an earlier one is unfinished.
    QueueByWork,
    /// Of calls that arrive together, the one that is ready first is charged first.
    OrderByWork,
    /// A call that is not ready in time is null and not charged.
    DeadlineUncharged,
}

impl AgentManager {
    /// The real user agent.
    pub const fn real(store: AuditedStore) -> Self {
        Self {
            store,
            store_flaw: None,
            host_flaw: None,
            checks_explanations: false,
        }
    }

    /// A user agent in memory with a flaw of its store.
    pub const fn with_store_flaw(flaw: StoreFlaw) -> Self {
        Self {
            store_flaw: Some(flaw),
            ..Self::real(AuditedStore::Memory)
        }
    }

    /// A user agent in memory with a flaw of its host.
    pub const fn with_host_flaw(flaw: TimingFlaw) -> Self {
        Self {
            host_flaw: Some(flaw),
            ..Self::real(AuditedStore::Memory)
        }
    }
}

impl MakeManager for AgentManager {
    fn make(&self, world: WorldSetup<'_>) -> Box<dyn Manager> {
        match self.store {
            AuditedStore::Memory => Box::new(AgentWorld::new(*self, world, MemoryHome)),
            AuditedStore::Sqlite => Box::new(AgentWorld::new(*self, world, SqliteHome::new())),
        }
    }
}

/// The place of a store: it opens it, and opens it again after the process ended or was killed.
trait Home {
    type Store: Storage;

    fn open(&mut self) -> Self::Store;
    fn reopen(&mut self, store: Self::Store, killed: bool) -> Self::Store;
}

struct MemoryHome;

impl Home for MemoryHome {
    type Store = MemoryStore;

    fn open(&mut self) -> MemoryStore {
        MemoryStore::new()
    }

    fn reopen(&mut self, store: MemoryStore, _: bool) -> MemoryStore {
        store
    }
}

struct SqliteHome {
    /// Removed with its contents when this is dropped.
    folder: tempfile::TempDir,
    file: PathBuf,
    kills: u32,
}

impl SqliteHome {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let below = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        let folder = tempfile::Builder::new()
            .prefix("bigbird-audit-")
            .tempdir_in(below);
        let folder = check(folder, "cannot create a folder for a store");
        let file = folder.path().join("store-0");
        Self {
            folder,
            file,
            kills: 0,
        }
    }
}

impl Home for SqliteHome {
    type Store = SqliteStore;

    fn open(&mut self) -> SqliteStore {
        let opened = SqliteStore::open_or_create(&self.file, &StoreOptions::default());
        check(opened, "cannot create a store")
    }

    fn reopen(&mut self, store: SqliteStore, killed: bool) -> SqliteStore {
        if killed {
            // Closing a store tidies up, so the next process gets copies of the file and its log
            // as they are now.
            self.kills += 1;
            let next = self.folder.path().join(format!("store-{}", self.kills));
            for end in ["", "-wal"] {
                let with_end = |path: &Path| PathBuf::from(format!("{}{end}", path.display()));
                let (from, to) = (with_end(&self.file), with_end(&next));
                if from.exists() {
                    check(std::fs::copy(from, to), "cannot copy a store");
                }
            }
            self.file = next;
            drop(store);
        } else {
            check(store.close(), "cannot close a store");
        }
        let opened = SqliteStore::open(&self.file, &StoreOptions::default());
        check(opened, "cannot open a store again")
    }
}

/// The value. An audit cannot go on without its own disk, so an error ends it.
fn check<T, E: std::fmt::Display>(result: Result<T, E>, doing: &str) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{doing}: {error}"),
    }
}

/// The draws of a step.
#[derive(Debug)]
struct TapeRandomness {
    tape: Tape,
    step: usize,
    draw: u32,
}

impl Randomness for TapeRandomness {
    fn epoch_start(&mut self) -> f64 {
        0.0
    }

    fn credit(&mut self) -> f64 {
        let drawn = self.tape.draw(self.step, self.draw);
        self.draw += 1;
        drawn
    }

    fn handle(&mut self, number: u64) -> u128 {
        number.into()
    }
}

/// The aggregation service of every call.
const SERVICE: &str = "https://aggregation.example";
/// The moment on the wall clock at which epoch 0 begins.
const START: i64 = 20_000 * crate::script::DAY;
/// The virtual time between the arrival of a conversion and its answer.
const DELAY: Duration = Duration::from_secs(1);
/// User actions with smaller numbers are numbered by the application, and the others by the user
/// agent.
const NUMBERED: u16 = 4;

struct AgentWorld<H: Home> {
    home: H,
    /// `None` only while the process is restarted.
    agent: Option<UserAgent<WorldStore<H::Store>, TapeRandomness>>,
    setup: ScriptSetup,
    host_flaw: Option<TimingFlaw>,
    checks_explanations: bool,
    scheduler: Scheduler<Work, (usize, SealedAnswer)>,
    actions: BTreeMap<u16, Action>,
    /// The shared conversions, by the number of their creation.
    objects: Vec<(Create, SharedConversion)>,
}

/// A call that was taken, and its place among those that arrived together.
#[derive(Debug)]
struct Work {
    place: usize,
    call: PageCall,
}

/// A call that was taken, with its ticket if it waits for an answer.
type Taken = (Option<Ticket>, Work);

/// A call that arrived: its terms, the shared conversion it creates, and what its page sees of it.
struct Arrived {
    terms: Option<AskTerms>,
    object: Option<usize>,
    seen: Option<Observation>,
}

impl Arrived {
    fn done(seen: Observation) -> Self {
        Self {
            terms: None,
            object: None,
            seen: Some(seen),
        }
    }

    fn waiting(terms: Option<AskTerms>, object: Option<usize>) -> Self {
        Self {
            terms,
            object,
            seen: None,
        }
    }
}

/// The answer to a conversion, as the page gets it.
#[derive(Debug, Clone)]
enum SealedAnswer {
    Report(SealedReport),
    Handle(SharedConversion),
}

fn host(site: SiteNumber) -> String {
    format!("s{site}.example")
}

fn hosts(sites: &[SiteNumber]) -> Vec<String> {
    sites.iter().copied().map(host).collect()
}

fn site_number(site: &bigbird_user_agent::Site) -> SiteNumber {
    let name = site.to_string();
    let digits = name
        .strip_prefix('s')
        .and_then(|rest| rest.split('.').next());
    digits
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(SiteNumber::MAX)
}

fn moment(now: i64) -> Timestamp {
    Timestamp(START + now)
}

impl ScriptSetup {
    fn config(&self, others: bool) -> Config {
        let mut config = Config::new(Profile::BigBird)
            .with_service(SERVICE)
            .for_testing();
        config.policy = if others {
            self.other_policy()
        } else {
            self.policy()
        };
        config.epoch_days = self.epoch_days + u32::from(others);
        config.epoch_start = EpochStart::At(Timestamp(START));
        config.limits.max_lookback_days = self.max_lookback_days;
        config.store_limits = StoreLimits {
            units_per_epoch: self.units_per_epoch,
        };
        config.read_limits.relevant = self.relevant_per_epoch;
        config.max_shared_conversions = self.max_objects;
        config.max_shares = self.max_shares;
        config.names_before_upkeep = self.names_before_upkeep;
        config.pace = self.pace();
        config
    }

    fn pace(&self) -> Pace {
        let unlimited = Arrivals {
            of_site: u32::MAX,
            of_all: u32::MAX,
        };
        Pace {
            delay: DELAY,
            conversions: Arrivals {
                of_site: self.conversions_at_once,
                of_all: self.conversions_at_once.saturating_mul(2),
            },
            sealing_of_site: u32::MAX,
            impressions: unlimited,
        }
    }
}

impl<H: Home> AgentWorld<H> {
    fn new(kind: AgentManager, world: WorldSetup<'_>, mut home: H) -> Self {
        let setup = world.script.setup.clone();
        let life = WorldLife::new(world.without, kind.store_flaw, setup.max_lookback_days);
        let storage = WorldStore {
            inner: home.open(),
            life,
        };
        let randomness = TapeRandomness {
            tape: world.tape,
            step: 0,
            draw: 0,
        };
        let agent = UserAgent::new(setup.config(false), storage, randomness, moment(0));
        Self {
            home,
            agent: Some(check(agent, "cannot start a user agent")),
            scheduler: Scheduler::new(setup.pace()),
            setup,
            host_flaw: kind.host_flaw,
            checks_explanations: kind.checks_explanations,
            actions: BTreeMap::new(),
            objects: Vec::new(),
        }
    }

    fn agent(&mut self) -> &mut UserAgent<WorldStore<H::Store>, TapeRandomness> {
        match &mut self.agent {
            Some(agent) => agent,
            None => unreachable!("the process runs"),
        }
    }

    fn restart(&mut self, now: i64, killed: bool, rules: Option<bool>) {
        let Some(mut agent) = self.agent.take() else {
            return;
        };
        let config = match rules {
            Some(others) => self.setup.config(others),
            None => agent.config().clone(),
        };
        let tape = agent.randomness_mut().tape.clone();
        let WorldStore { inner, mut life } = agent.into_storage();
        if killed {
            life.crash();
        }
        let inner = self.home.reopen(inner, killed);
        let mut storage = WorldStore { inner, life };
        if rules.is_some() {
            check(storage.change_rules(), "cannot read the store");
        }
        let randomness = TapeRandomness {
            tape,
            step: 0,
            draw: 0,
        };
        let agent = UserAgent::new(config, storage, randomness, moment(now));
        self.agent = Some(check(agent, "cannot restart a user agent"));
        // Calls do not survive the process that took them.
        self.scheduler = Scheduler::new(self.setup.pace());
    }

    /// A user action. The application numbers some of them, and the user agent the others. Of the
    /// latter, some continue as new actions when their epoch has ended.
    fn action(&mut self, number: u16, now: i64) -> Action {
        if number < NUMBERED {
            return check(Action::numbered(number.into()), "a small number");
        }
        let begun = self.actions.get(&number).copied();
        let agent = self.agent();
        let action = match begun {
            None => agent.begin_user_action(moment(now)),
            Some(begun) if number.is_multiple_of(2) => {
                agent.continue_user_action(begun, moment(now))
            }
            Some(begun) => Ok(begun),
        };
        let action = check(action, "cannot number a user action");
        self.actions.insert(number, action);
        action
    }

    /// Parses a call. `None` if it cannot be made, because its shared conversion does not exist.
    fn parse(&mut self, now: i64, call: &ScriptCall) -> Option<Result<PageCall, String>> {
        let parsed = match call {
            ScriptCall::Save(save) => self.parse_save(now, save),
            ScriptCall::Measure(measure) => {
                let options = conversion_options(measure);
                self.with_call(now, measure, |agent, call| {
                    agent.gate().conversion(call, &options)
                })
            }
            ScriptCall::Create(create) => {
                let options = conversion_options(&create.measure);
                let names = hosts(&create.participants);
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                self.with_call(now, &create.measure, |agent, call| {
                    agent.gate().shared_conversion(call, &options, &names, None)
                })
            }
            ScriptCall::Share(share) => return self.parse_share(now, share),
        };
        Some(parsed)
    }

    fn parse_share(&mut self, now: i64, share: &Share) -> Option<Result<PageCall, String>> {
        let (create, handle) = self.objects.get(share.object)?;
        let (measure, handle) = (share.measure(create), *handle);
        let options = conversion_options(&measure);
        Some(self.with_call(now, &measure, |agent, call| {
            agent.gate().share(handle, call, &options)
        }))
    }

    fn parse_save(&mut self, now: i64, save: &Save) -> Result<PageCall, String> {
        let action = self.action(save.action, now);
        let (site, intermediary) = (host(save.site), save.intermediary.map(host));
        let call = bigbird_user_agent::Call {
            intermediary: intermediary.as_deref(),
            ..bigbird_user_agent::Call::new(&site, moment(now)).by(action)
        };
        let options = ImpressionOptions {
            conversion_sites: hosts(&save.conversion_sites),
            conversion_callers: hosts(&save.conversion_callers),
            match_value: save.match_value,
            priority: save.priority,
            lifetime_days: save.lifetime_days.into(),
            ..ImpressionOptions::new(save.bucket)
        };
        let parsed = self.agent().gate().impression(&call, &options);
        parsed
            .map(PageCall::Save)
            .map_err(|error| error.to_string())
    }

    fn with_call(
        &mut self,
        now: i64,
        measure: &Measure,
        parse: impl FnOnce(
            &UserAgent<WorldStore<H::Store>, TapeRandomness>,
            &bigbird_user_agent::Call<'_>,
        )
            -> Result<bigbird_user_agent::ConversionCall, bigbird_user_agent::ApiError>,
    ) -> Result<PageCall, String> {
        let action = self.action(measure.action, now);
        let (site, intermediary) = (host(measure.site), measure.intermediary.map(host));
        let pays = measure.intermediary.is_some_and(|it| it != measure.site)
            && self.setup.profile != Profile::W3cDraft;
        let call = bigbird_user_agent::Call {
            intermediary: intermediary.as_deref(),
            querier: match pays {
                true => QuerierRole::Intermediary,
                false => QuerierRole::ConversionSite,
            },
            ..bigbird_user_agent::Call::new(&site, moment(now)).by(action)
        };
        let parsed = parse(self.agent(), &call);
        parsed
            .map(PageCall::Measure)
            .map_err(|error| error.to_string())
    }

    /// Lets calls arrive at the same moment, carries them out, and releases their answers.
    fn arrive(&mut self, at: StepTime, calls: &[ScriptCall]) -> Vec<Observation> {
        // Steps are far apart in virtual time, and nothing is left of the one before.
        let arrival = DELAY * 3 * u32::try_from(at.number).unwrap_or(u32::MAX);
        let mut arrived = Vec::new();
        for call in calls {
            let place = arrived.len();
            let parsed = match self.parse(at.now, call) {
                None => continue,
                Some(Err(error)) => {
                    arrived.push(Arrived::done(Observation::Error(error)));
                    continue;
                }
                Some(Ok(parsed)) => parsed,
            };
            let work = |call| Work { place, call };
            match &parsed {
                PageCall::Save(impression) => {
                    let (site, units) = (impression.site().clone(), impression.units());
                    self.scheduler
                        .impression(arrival, &site, units, work(parsed));
                    arrived.push(Arrived::done(Observation::Saved));
                }
                PageCall::Measure(conversion) => {
                    let (site, envelope) = (conversion.site().clone(), conversion.envelope());
                    let sealing = conversion.sealing_units();
                    let (waiting, null) = match call {
                        ScriptCall::Create(create) => {
                            // One that is not taken gets a handle that leads nowhere.
                            let object = self.objects.len();
                            let nowhere = SharedConversion(u128::MAX - object as u128);
                            self.objects.push((create.clone(), nowhere));
                            let terms = create.measure.terms;
                            let waiting = Arrived::waiting(Some(terms), Some(object));
                            (waiting, SealedAnswer::Handle(nowhere))
                        }
                        _ => {
                            let report = self.agent().gate().null_report(&envelope);
                            let terms = self.terms(call);
                            (Arrived::waiting(terms, None), SealedAnswer::Report(report))
                        }
                    };
                    arrived.push(waiting);
                    let work = work(parsed);
                    let null = (place, null);
                    let arrival = self
                        .scheduler
                        .conversion(arrival, &site, sealing, work, null);
                    if arrival == ConversionArrival::Rejected {
                        let error = "QuotaExceededError".to_owned();
                        arrived[place] = Arrived::done(Observation::Error(error));
                    }
                }
            }
        }
        self.work();
        let due = arrival + DELAY;
        let released = u64::try_from(due.as_millis()).unwrap_or(u64::MAX);
        while let Some((place, answer)) = self.scheduler.release(due) {
            let Arrived {
                terms,
                object,
                seen,
            } = &mut arrived[place];
            *seen = Some(match answer {
                SealedAnswer::Handle(handle) => {
                    if let Some(object) = *object {
                        self.objects[object].1 = handle;
                    }
                    Observation::Handle(handle.0, released)
                }
                SealedAnswer::Report(report) => {
                    let histogram = report.histogram;
                    Observation::Report(SeenReport {
                        buckets: histogram.map_or_else(Vec::new, |it| it.buckets().to_vec()),
                        epsilon: terms.map_or(0, |terms| terms.epsilon),
                        max_value: terms.map_or(1, |terms| terms.max_value),
                        length: report.bytes.len(),
                        released,
                    })
                }
            });
        }
        arrived
            .into_iter()
            .filter_map(|arrived| arrived.seen)
            .collect()
    }

    /// The terms of a call that measures.
    fn terms(&self, call: &ScriptCall) -> Option<AskTerms> {
        match call {
            ScriptCall::Save(_) => None,
            ScriptCall::Measure(measure) => Some(measure.terms),
            ScriptCall::Create(create) => Some(create.measure.terms),
            ScriptCall::Share(share) => Some(self.objects.get(share.object)?.0.measure.terms),
        }
    }

    /// Carries out the calls that wait.
    fn work(&mut self) {
        let mut waiting = Vec::new();
        while let Some(next) = self.scheduler.begin() {
            waiting.push(next);
        }
        if self.host_flaw.is_some() {
            waiting = self.flawed_order(waiting);
        }
        let calls: Vec<PageCall> = waiting.iter().map(|(_, work)| work.call.clone()).collect();
        if calls.is_empty() {
            return;
        }
        let explained = match calls.as_slice() {
            [PageCall::Measure(conversion)] if self.checks_explanations => {
                let explained = self.agent().explain_call(conversion);
                self.agent().randomness_mut().draw = 0;
                Some(check(explained, "the store failed"))
            }
            _ => None,
        };
        let answers = check(self.agent().perform(&calls), "the store failed");
        let mut explained = explained;
        for ((ticket, work), answer) in waiting.into_iter().zip(answers) {
            let (decision, answer) = match answer {
                PageAnswer::Saved => continue,
                PageAnswer::Report(report, decision) => {
                    let sealed = self.agent().gate().seal(report);
                    (decision, SealedAnswer::Report(sealed))
                }
                PageAnswer::Shared(answer) => {
                    (answer.decision, SealedAnswer::Handle(answer.shared))
                }
            };
            if let Some(explained) = explained.take() {
                assert_explained(&explained, &decision, &answer);
            }
            if let Some(ticket) = ticket {
                self.scheduler.finish(ticket, (work.place, answer));
            }
        }
    }

    /// The calls that a flawed host carries out, in its order.
    fn flawed_order(&mut self, calls: Vec<Taken>) -> Vec<Taken> {
        let mut timed: Vec<(usize, Taken)> = Vec::new();
        for call in calls {
            timed.push((self.rows(&call.1.call), call));
        }
        self.agent().randomness_mut().draw = 0;
        let mut rows = 0;
        match self.host_flaw {
            Some(TimingFlaw::OrderByWork) => timed.sort_by_key(|(rows, _)| *rows),
            // A call that is refused takes no time, and one that is late does.
            Some(TimingFlaw::QueueByWork) => timed.retain(|(own, _)| {
                let taken = rows == 0;
                rows += if taken { *own } else { 0 };
                taken
            }),
            Some(TimingFlaw::DeadlineUncharged) => timed.retain(|(own, _)| {
                rows += own;
                rows == *own
            }),
            None => {}
        }
        timed.into_iter().map(|(_, call)| call).collect()
    }

    /// The number of impressions that a call reads, which is the time it takes.
    fn rows(&mut self, call: &PageCall) -> usize {
        let PageCall::Measure(conversion) = call else {
            return 0;
        };
        let explained = self.agent().explain_call(conversion);
        let explained = check(explained, "the store failed");
        explained.epochs.iter().map(|epoch| epoch.matched).sum()
    }
}

/// Panics if an answer is not what was explained.
fn assert_explained(explained: &Explanation, decision: &Decision, answer: &SealedAnswer) {
    let report = match answer {
        SealedAnswer::Report(report) => report.histogram.as_ref(),
        SealedAnswer::Handle(_) => None,
    };
    let fates: BTreeMap<i64, Fate> = decision
        .epochs()
        .map(|epoch| (epoch.epoch.0, epoch.fate))
        .collect();
    let said = explained.epochs.iter();
    let said: BTreeMap<i64, Fate> = said.map(|epoch| (epoch.epoch, epoch.fate)).collect();
    assert_eq!(said, fates, "the explanation of fates is wrong");
    assert_eq!(
        explained.report.as_ref(),
        report,
        "the explained report is wrong"
    );
}

fn conversion_options(measure: &Measure) -> ConversionOptions {
    let Scope {
        impression_sites,
        impression_callers,
        match_values,
    } = &measure.scope;
    let terms = &measure.terms;
    #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    let epsilon = terms.epsilon as f64 / 1e6;
    ConversionOptions {
        epsilon,
        lookback_days: Some(measure.lookback_days.into()),
        impression_sites: hosts(impression_sites),
        impression_callers: hosts(impression_callers),
        match_values: match_values.clone(),
        value: terms.value,
        max_value: terms.max_value,
        credit: terms.credit.shares().to_vec(),
        ..ConversionOptions::new(SERVICE, terms.buckets)
    }
}

impl<H: Home> Manager for AgentWorld<H> {
    fn perform(&mut self, at: StepTime, step: &Step) -> Vec<Observation> {
        let randomness = self.agent().randomness_mut();
        (randomness.step, randomness.draw) = (at.drawing, 0);
        let now = moment(at.now);
        self.agent().storage_mut().life.now = now;
        match step {
            Step::Call(call) => return self.arrive(at, std::slice::from_ref(call)),
            Step::Together(calls) => return self.arrive(at, calls),
            Step::Clock(_) => {}
            Step::ClearSite(site) => {
                let cleared = self.agent().clear_impressions_for_site(&host(*site));
                check(cleared, "the store failed");
            }
            Step::ClearHistory(ClearHistory {
                sites,
                forget_visits,
            }) => {
                let sites = hosts(sites);
                let agent = self.agent();
                let cleared = agent.clear_browsing_history(&sites, *forget_visits, now);
                if let Err(error) = cleared {
                    return vec![Observation::Error(error.to_string())];
                }
            }
            Step::Enable(enabled) => check(self.agent().set_enabled(*enabled), "the store failed"),
            Step::Maintain => check(self.agent().maintain(now), "the store failed"),
            Step::Idle => {
                while self.agent().is_upkeep_due(now) {
                    check(self.agent().upkeep(now), "the store failed");
                }
            }
            Step::Restart => self.restart(at.now, false, None),
            Step::Crash => self.restart(at.now, true, None),
            Step::ChangeRules { others } => self.restart(at.now, false, Some(*others)),
        }
        Vec::new()
    }

    fn snapshot(&mut self) -> WorldSnapshot {
        let store = self.agent().storage_mut();
        snapshot(&mut store.inner)
    }

    fn granted(&self) -> &BTreeMap<i64, u64> {
        match &self.agent {
            Some(agent) => &agent.storage().life.history.granted,
            None => unreachable!("the process runs"),
        }
    }

    fn saved(&self) -> &[i64] {
        match &self.agent {
            Some(agent) => &agent.storage().life.history.saved,
            None => unreachable!("the process runs"),
        }
    }
}

/// A snapshot of a store, with the numbers of scripts instead of those of the store.
fn snapshot<S: Storage>(storage: &mut S) -> WorldSnapshot {
    let mut snapshot = WorldSnapshot::default();
    let transaction = check(storage.begin(), "the store failed");
    let each = |rows, visit: &mut dyn FnMut(ViewRow<'_>)| {
        check(transaction.visit(rows, visit), "the store failed");
    };
    let mut names: BTreeMap<SiteId, SiteNumber> = BTreeMap::new();
    each(RowSet::Names, &mut |row| {
        if let ViewRow::Name(id, site) = row {
            names.insert(id, site_number(site));
        }
    });
    let number = |site: SiteId| names.get(&site).copied().unwrap_or(SiteNumber::MAX);
    let mut closings = Vec::new();
    each(RowSet::Closings, &mut |row| {
        if let ViewRow::Closing(site, until) = row {
            closings.push((number(site), until.0));
        }
    });
    closings.sort_unstable();
    for (site, until) in closings {
        snapshot
            .shared
            .push(("the site that is closed", site.into()));
        snapshot
            .shared
            .push(("the epoch until which it is closed", until));
    }
    each(RowSet::Filters, &mut |row| {
        if let ViewRow::Filter(epoch, filter, consumed) = row {
            let site = filter.site().map(|site| u64::from(number(site)));
            let name = filter_name(filter);
            let of = site.unwrap_or(name.of);
            let epoch = snapshot.epochs.entry(epoch.0).or_default();
            epoch
                .consumed
                .insert(FilterId { of, ..name }, consumed.get());
        }
    });
    each(RowSet::Admissions, &mut |row| {
        if let ViewRow::Admission(action, epoch, site) = row {
            let epoch = snapshot.epochs.entry(epoch.0).or_default();
            epoch.admitted.insert((action.0, number(site)));
        }
    });
    each(RowSet::Impressions(ImpressionSelection::All), &mut |row| {
        if let ViewRow::Impression(epoch, _, impression) = row {
            let mut stored = stored_impression(&impression, &number);
            stored.timestamp -= START;
            stored.expires -= START;
            let epoch = snapshot.epochs.entry(epoch.0).or_default();
            epoch.stored.push(stored);
        }
    });
    each(RowSet::Objects, &mut |row| {
        if let ViewRow::Object(stored) = row {
            for epoch in stored.object.epochs() {
                let epoch = snapshot.epochs.entry(epoch.0).or_default();
                epoch.objects.insert(stored.number);
            }
            let object = ObjectSnapshot {
                site: number(stored.object.conversion_site()),
                created: stored.object.created().0,
                taken: stored.object.parts().taken.len(),
            };
            snapshot.objects.insert(stored.number, object);
        }
    });
    let state = check(transaction.state(), "the store failed");
    let at = |moment: Option<Timestamp>| moment.map_or(i64::MIN, |it| it.0 - START);
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    snapshot.shared.extend([
        ("enabled", state.enabled.into()),
        ("the first epoch that is open", state.first_epoch.0),
        ("the last clearing", at(state.last_clear)),
        ("the latest conversion", at(state.latest)),
        ("the latest use", at(state.latest_use)),
        ("the next user action", whole(state.next_user_action)),
        ("the next shared conversion", whole(state.next_object)),
    ]);
    for era in state.timeline.eras() {
        let EpochIndex(first) = era.first;
        let quota = era.rules.policy.capacities();
        let quota = quota.of(FilterKind::ConversionSiteQuota).amount();
        snapshot.shared.extend([
            ("the first epoch of an era", first),
            ("the beginning of an era", era.begins.0 - START),
            (
                "the days of an epoch of an era",
                era.rules.epoch_days.into(),
            ),
            (
                "the conversion-site quota of an era",
                quota.map_or(i64::MAX, |quota| whole(quota.get())),
            ),
        ]);
    }
    snapshot
        .epochs
        .retain(|_, epoch| *epoch != EpochSnapshot::default());
    snapshot
}
