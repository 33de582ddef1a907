//! The store in a file keeps the promises of the traits for ledgers and stores.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;

use bigbird::{
    Charge, Check, EpochIndex, Filter, FilterKind, LedgerView as _, MicroEpsilon, NewAdmission,
    Policies as _, Profile, SiteId, Timestamp, UserAction,
};
use bigbird_store::{Problem, SqliteStore, SqliteTransaction, StoreOptions, check};
use bigbird_user_agent::{
    ChangeSet, ConversionOptions, DeviceState, ForgottenEpochs, ImpressionOptions, Localhost,
    RowSet, SharedConversion, Site, Storage as _, Timeline, Transaction as _, View as _, ViewRow,
};
use common::{DAY, Folder, SERVICE, SqliteAgent, by, config, folder, live, open, released};

const E: EpochIndex = EpochIndex(3);

fn store(folder: &Folder) -> SqliteStore {
    open(&folder.file("store"), &config(Profile::BigBird, 100)).into_storage()
}

fn charge(epoch: EpochIndex, filter: Filter, micro: u64) -> Charge {
    Charge {
        epoch,
        filter,
        amount: MicroEpsilon::new(micro),
    }
}

fn charges(charges: &[Charge]) -> ChangeSet {
    let mut changes = ChangeSet::default();
    changes.ledger.charges = charges.to_vec();
    changes
}

fn check_of(epoch: EpochIndex, filter: Filter, micro: u64) -> Check {
    let capacity = config(Profile::BigBird, 100).policy;
    let capacity = capacity.capacities().of(filter.kind());
    Check::new(epoch, filter, capacity, MicroEpsilon::new(micro))
}

fn before(epoch: EpochIndex) -> ForgottenEpochs {
    ForgottenEpochs {
        pruned: epoch,
        unreachable: epoch,
        history: epoch,
        most: u32::MAX,
    }
}

fn consumed(tx: &SqliteTransaction<'_>, epoch: EpochIndex, filter: Filter) -> u64 {
    let mut check = [check_of(epoch, filter, 0)];
    tx.consumed(epoch, &mut check).unwrap();
    check[0].balance.consumed.get()
}

fn filters(tx: &SqliteTransaction<'_>) -> Vec<(EpochIndex, Filter)> {
    let mut filters = Vec::new();
    tx.visit(RowSet::Filters, &mut |row| {
        if let ViewRow::Filter(epoch, filter, _) = row {
            filters.push((epoch, filter));
        }
    })
    .unwrap();
    filters
}

/// A state in which epochs have begun, so that they have rules.
fn begun() -> DeviceState {
    let rules = config(Profile::BigBird, 100).rules();
    DeviceState {
        timeline: Timeline::starting(Timestamp(0), rules),
        ..DeviceState::default()
    }
}

#[test]
fn charges_add_up_and_the_atomic_check_sees_them() {
    let folder = folder();
    let mut store = store(&folder);
    let mut tx = store.begin().unwrap();
    let shop = SiteId(0);
    let name = Site::parse("shop.example", Localhost::Refused).unwrap();
    let (querier, quota) = (
        Filter::QuerierBudget(shop),
        Filter::ConversionSiteQuota(shop),
    );
    // Several charges to one filter add up.
    let paid = [
        charge(E, querier, 300_000),
        charge(E, Filter::GlobalBudget, 300_000),
        charge(E, querier, 600_000),
    ];
    tx.apply(&ChangeSet {
        state: Some(begun()),
        named: vec![(shop, name)],
        ..charges(&paid)
    })
    .unwrap();
    assert_eq!(consumed(&tx, E, querier), 900_000);
    // If one filter cannot pay, none of them pays.
    let mut checks = [
        check_of(E, querier, 100_001),
        check_of(E, Filter::GlobalBudget, 100_000),
        check_of(E, quota, 100_000),
    ];
    let short = bigbird::first_shortfall(&tx, E, &mut checks).unwrap();
    assert_eq!(short, Some(FilterKind::QuerierBudget));
    let short: Vec<u64> = checks.iter().map(|check| check.short_by().get()).collect();
    assert_eq!(short, [1, 0, 0]);
    assert_eq!(
        [
            consumed(&tx, E, Filter::GlobalBudget),
            consumed(&tx, E, quota)
        ],
        [300_000, 0]
    );
    tx.commit().unwrap();
    let tx = store.begin().unwrap();
    assert_eq!(filters(&tx), [(E, querier), (E, Filter::GlobalBudget)]);
    drop(tx);
    store.close().unwrap();
    check(folder.file("store")).unwrap();
}

#[test]
fn a_transaction_that_is_dropped_never_happened() {
    let folder = folder();
    let mut store = store(&folder);
    let mut tx = store.begin().unwrap();
    let gone = Site::from_stored("gone.example");
    tx.apply(&ChangeSet {
        named: vec![(SiteId(0), gone.clone())],
        ..charges(&[charge(E, Filter::GlobalBudget, 7)])
    })
    .unwrap();
    assert_eq!(consumed(&tx, E, Filter::GlobalBudget), 7);
    drop(tx);
    let tx = store.begin().unwrap();
    assert_eq!(consumed(&tx, E, Filter::GlobalBudget), 0);
    assert_eq!(tx.site_id(&gone).unwrap(), None);
}

#[test]
fn what_was_pruned_pays_nothing_and_admits_nobody() {
    let folder = folder();
    let mut store = store(&folder);
    let mut tx = store.begin().unwrap();
    let site = SiteId(0);
    let admit = NewAdmission {
        user_action: UserAction(5),
        epoch: E,
        site,
    };
    let mut changes = ChangeSet {
        state: Some(begun()),
        named: vec![(site, Site::from_stored("shop.example"))],
        closed: vec![(site, E)],
        ..charges(&[charge(E, Filter::GlobalBudget, 1)])
    };
    changes.ledger.admissions = vec![admit];
    tx.apply(&changes).unwrap();
    let admitted = tx.admitted(UserAction(5), E, site).unwrap();
    assert!(admitted.admitted && admitted.sites == 1);
    let first_epoch = EpochIndex(4);
    tx.apply(&ChangeSet {
        state: Some(DeviceState {
            first_epoch,
            ..begun()
        }),
        forgotten: Some(before(first_epoch)),
        ..ChangeSet::default()
    })
    .unwrap();
    tx.commit().unwrap();
    let tx = store.begin().unwrap();
    let state = tx.state().unwrap();
    assert_eq!(state.first_epoch, first_epoch);
    // An epoch without rules pays nothing and admits no site.
    assert!(state.policy(E).is_none() && state.policy(first_epoch).is_some());
    assert_eq!(tx.admitted(UserAction(5), E, site).unwrap().sites, 0);
    assert_eq!(tx.closed_until(site).unwrap(), None);
    assert_eq!(filters(&tx), []);
    drop(tx);
    store.close().unwrap();
    check(folder.file("store")).unwrap();
}

#[test]
fn a_site_stays_closed_until_the_later_epoch() {
    let folder = folder();
    let path = folder.file("store");
    let mut agent = open(&path, &config(Profile::BigBird, 100));
    let closed = ["shop.example".to_owned()];
    let mut longest = None;
    for day in [21, 49, 35] {
        let now = Timestamp(day * DAY);
        agent.clear_browsing_history(&closed, false, now).unwrap();
        let tx = agent.storage_mut().begin().unwrap();
        let site = tx.site_id(&Site::from_stored("shop.example")).unwrap();
        let until = tx.closed_until(site.unwrap()).unwrap();
        longest = longest.max(tx.state().unwrap().timeline.epoch(now));
        assert_eq!(until, longest);
    }
    agent.into_storage().close().unwrap();
    check(&path).unwrap();
}

/// The number of objects is limited. An object ends with the epoch of its creation, whatever was
/// paid for it.
#[test]
fn objects_are_limited_and_end_with_the_epoch_of_their_creation() {
    let folder = folder();
    let path = folder.file("store");
    let mut config = config(Profile::BigBird, 1000);
    config.max_shared_conversions = 5;
    let mut agent = open(&path, &config);
    live(&mut agent);
    let object = |agent: &mut SqliteAgent, number: u128| {
        let tx = agent.storage_mut().begin().unwrap();
        tx.object(SharedConversion(number)).unwrap()
    };
    assert!(object(&mut agent, 1).is_some());
    assert_eq!(object(&mut agent, 2), None);
    let conversion = ConversionOptions {
        epsilon: 0.01,
        ..ConversionOptions::new(SERVICE, 5)
    };
    for number in 2..20 {
        let call = by("shop-1.example", 400 + number, 112 * DAY);
        let created = agent.create_shared_conversion(&call, &conversion, &["ads.example"]);
        let _ = created.unwrap();
    }
    let kept = |agent: &mut SqliteAgent| {
        let kept = (1..20).filter(|number| object(agent, *number).is_some());
        kept.collect::<Vec<_>>()
    };
    assert_eq!(kept(&mut agent), [15, 16, 17, 18, 19]);
    assert_eq!(check(&path).unwrap().objects, 5);
    let last = object(&mut agent, 19).unwrap();
    let created = last.object.created();
    let prune = |agent: &mut SqliteAgent, epoch: EpochIndex| {
        let mut tx = agent.storage_mut().begin().unwrap();
        let state = DeviceState {
            first_epoch: epoch,
            ..tx.state().unwrap()
        };
        tx.apply(&ChangeSet {
            state: Some(state),
            forgotten: Some(before(epoch)),
            ..ChangeSet::default()
        })
        .unwrap();
        tx.commit().unwrap();
    };
    prune(&mut agent, created);
    assert_eq!(kept(&mut agent).len(), 5);
    prune(&mut agent, EpochIndex(created.0 + 1));
    assert_eq!(check(&path).unwrap().objects, 0);
    // A share that is taken later is as if nothing had been attributed.
    let call = bigbird_user_agent::Call {
        intermediary: Some("ads.example"),
        ..by("shop-1.example", 201, 112 * DAY)
    };
    let options = ConversionOptions::new(SERVICE, 5);
    let answer = agent
        .take_share(SharedConversion(1), &call, &options)
        .unwrap();
    assert_eq!(released(answer), [0; 5]);
}

/// Cleared history is in none of the files afterwards, and the files become small again.
#[test]
fn what_is_forgotten_is_gone_from_the_disk() {
    let folder = folder();
    let path = folder.file("store");
    let mut agent = open(&path, &config(Profile::BigBird, 100_000));
    let options = ImpressionOptions {
        conversion_sites: vec!["a-secret-shop.example".to_owned()],
        ..ImpressionOptions::new(1)
    };
    let sites: Vec<String> = (0..20_000)
        .map(|n| format!("a-secret-{}.example", n % 700))
        .collect();
    let calls = (0..)
        .zip(&sites)
        .map(|(n, site)| (by(site, n, 100 * DAY), &options));
    for answer in agent.save_impressions(calls).unwrap() {
        answer.unwrap();
    }
    let size = |name: &str| fs::metadata(folder.file(name)).map_or(0, |it| it.len());
    let files = ["store", "store-wal"];
    let secret = |name: &str| {
        let content = fs::read(folder.file(name)).unwrap_or_default();
        content.windows(8).any(|window| window == b"a-secret")
    };
    assert!(files.iter().any(|name| secret(name)));
    let full: u64 = files.iter().map(|name| size(name)).sum();
    agent
        .clear_browsing_history(&[], true, Timestamp(101 * DAY))
        .unwrap();
    assert!(!files.iter().any(|name| secret(name)));
    let left: u64 = files.iter().map(|name| size(name)).sum();
    assert!(
        left < 200_000 && full > 2_000_000,
        "{full} bytes, then {left}"
    );
    drop(agent);
    check(&path).unwrap();
}

/// Of two processes, the second waits. If it gives up, the error says how long it waited.
#[test]
fn a_locked_store_is_waited_for() {
    let folder = folder();
    let path = folder.file("store");
    let mut first = store(&folder);
    let impatient = StoreOptions {
        wait: std::time::Duration::from_millis(50),
        ..StoreOptions::default()
    };
    let mut second = SqliteStore::open(&path, &impatient).unwrap();
    let tx = first.begin().unwrap();
    let error = second.begin().unwrap_err();
    assert!(
        matches!(error.problem(), Problem::Busy { waited_ms: 50 }),
        "{error}"
    );
    drop(tx);
    second.begin().unwrap();
}

/// Several processes that create a store at the same time create it once.
#[test]
fn a_store_is_created_once() {
    let folder = folder();
    let path = folder.file("store");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut agent = open(&path, &config(Profile::BigBird, 100));
                let _ = agent.begin_user_action(Timestamp(DAY)).unwrap();
            });
        }
    });
    let mut agent = open(&path, &config(Profile::BigBird, 100));
    let tx = agent.storage_mut().begin().unwrap();
    // Each process reserved numbers of its own for user actions.
    assert_eq!(tx.state().unwrap().next_user_action, 1 + 8 * 1024);
    drop(tx);
    drop(agent);
    let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

/// A store reveals what the user has seen, so only its owner may read it. Reading it leaves no
/// trace.
#[cfg(unix)]
#[test]
fn a_store_is_its_owners_and_looking_leaves_no_trace() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = folder();
    let path = folder.file("store");
    let agent = open(&path, &config(Profile::BigBird, 100));
    for entry in fs::read_dir(path.parent().unwrap()).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{entry:?}");
    }
    drop(agent);
    let before = fs::read(&path).unwrap();
    check(&path).unwrap();
    bigbird_store::StoreSummary::read(&path).unwrap();
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    assert_eq!(fs::read(&path).unwrap(), before);
}

/// Rows that are longer than a page are read back as they were written.
#[test]
fn long_rows_come_back() {
    let folder = folder();
    let path = folder.file("store");
    let mut config = config(Profile::BigBird, 1000);
    let policy = config.policy.to_builder().domain_cap(200);
    config.policy = policy
        .querier_budget(1000.0)
        .global_budget(1000.0)
        .build()
        .unwrap();
    let mut agent = open(&path, &config);
    let at = 100 * DAY;
    // One user action on two hundred sites, whose impressions everyone may measure.
    let sites: Vec<String> = (0..200).map(|n| format!("news-{n}.example")).collect();
    let options = ImpressionOptions::new(1);
    let calls = sites.iter().map(|site| (by(site, 1, at), &options));
    assert!(
        agent
            .save_impressions(calls)
            .unwrap()
            .iter()
            .all(Result::is_ok)
    );
    // A shared conversion of which 60 participants each take the share of their own site.
    let conversion = ConversionOptions {
        epsilon: 0.01,
        ..ConversionOptions::new(SERVICE, 5)
    };
    let sharers: Vec<&str> = sites.iter().take(60).map(String::as_str).collect();
    let call = by("shop.example", 2, at + 1);
    let created = agent.create_shared_conversion(&call, &conversion, &sharers);
    let shared = created.unwrap().shared;
    for sharer in &sharers {
        let call = bigbird_user_agent::Call {
            intermediary: Some(sharer),
            ..call
        };
        let options = ConversionOptions {
            impression_sites: vec![(*sharer).to_owned()],
            match_values: (0..10).collect(),
            ..conversion.clone()
        };
        let _ = agent.take_share(shared, &call, &options).unwrap();
    }
    drop(agent);
    assert_eq!(check(&path).unwrap().objects, 1);
    let mut agent = open(&path, &config);
    let tx = agent.storage_mut().begin().unwrap();
    let stored = tx.object(shared).unwrap().unwrap();
    assert_eq!(stored.object.parts().taken.len(), 60);
    drop(tx);
    let call = by("shop.example", 1, at + 2);
    let answer = agent.measure_conversion(&call, &conversion).unwrap();
    // The action involves two hundred sites already, the domain cap.
    assert!(answer.decision.first_cause().is_some());
}

/// Some threads write and close, one writes and erases, and one checks, all at the same time. The
/// store passes every check, and in the end everything is in the file.
#[test]
fn many_at_once_never_make_a_store_look_damaged() {
    let folder = folder();
    let path = folder.file("store");
    let config = config(Profile::BigBird, 1000);
    drop(open(&path, &config));
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let (path, config) = (&path, &config);
            scope.spawn(move || {
                for round in 0..40 {
                    let mut agent = open(path, config);
                    for number in 0..5 {
                        let action = 10_000 * worker + 100 * round + number;
                        let at = 100 * DAY + i64::try_from(action).unwrap();
                        let site = format!("news-{}.example", action % 7);
                        let options = ImpressionOptions::new(1);
                        agent
                            .save_impression(&by(&site, action, at), &options)
                            .unwrap();
                        if worker == 0 {
                            agent.clear_impressions_for_site(&site).unwrap();
                        }
                    }
                    agent.into_storage().close().unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..60 {
                check(&path).unwrap();
            }
        });
    });
    drop(open(&path, &config));
    check(&path).unwrap();
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}

/// The mark that there is a log reaches the file even if a reader delays it at first.
#[test]
fn a_log_is_missed_whoever_was_in_the_way() {
    let folder = folder();
    let path = folder.file("store");
    let config = config(Profile::BigBird, 1000);
    drop(open(&path, &config));
    // A reader holds on to the store as it was.
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let reader = rusqlite::Connection::open_with_flags_and_vfs(&path, flags, c"bigbird").unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM device").unwrap();
    let done = std::thread::spawn({
        let (path, config) = (path.clone(), config.clone());
        move || {
            let mut agent = open(&path, &config);
            let options = ImpressionOptions::new(1);
            agent
                .save_impression(&by("news.example", 1, 100 * DAY), &options)
                .unwrap();
            // The state that a kill would leave: nothing is closed.
            let copy = path.with_file_name("copy");
            fs::copy(&path, &copy).unwrap();
            copy
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    reader.execute_batch("COMMIT").unwrap();
    let copy = done.join().unwrap();
    let error = check(&copy).unwrap_err();
    assert!(error.to_string().ends_with("log is missing"), "{error}");
}
