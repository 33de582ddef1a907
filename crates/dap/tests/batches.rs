//! What the aggregators' store promises: a report counts once, and what was spent stays spent.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::convert::Infallible;
use std::fs;

use bigbird_dap::{
    AddError, Aggregation, AggregationError, AggregationStore, AggregationStoreError,
    AggregationTask, AggregatorKeys, BatchQueryError, NoiseSource, ReportRefusal,
};
use bigbird_testing::Folder;
use common::{TaskSetup, add, micro, terms};

fn folder() -> Folder {
    Folder::below(env!("CARGO_TARGET_TMPDIR"))
}

/// Another batch of the task, if the store is fit for use.
fn try_aggregation(
    setup: &TaskSetup,
    store: AggregationStore,
) -> Result<Aggregation, AggregationError> {
    let now = setup.task.time(common::NOW);
    let (keys, budget) = (setup.keys.clone(), Some(micro(1.0)));
    Aggregation::new(
        store,
        keys,
        &setup.task,
        "other",
        budget,
        now - 10..=now + 10,
    )
}

fn query(aggregation: &mut Aggregation, epsilon: f64) -> Result<Vec<i64>, BatchQueryError> {
    let result = aggregation.query(micro(epsilon), NoiseSource::Both, &mut rand::rng());
    result.map(|result| result.buckets)
}

#[test]
fn a_report_counts_once_across_batches_and_restarts() {
    let setup = TaskSetup::new(&terms(2, 1));
    let folder = folder();
    let path = folder.file("aggregator.store");
    let open = || AggregationStore::open(&path).unwrap();
    let reports: Vec<_> = (0..25).map(|_| setup.report(&[0, 1], 1.0)).collect();
    let mut monday = setup.aggregation(open(), "monday", 1.0);
    assert_eq!(add(&mut monday, &reports[..20]).accepted, 20);
    drop(monday);
    // The same reports again, after a restart: in the same batch, and in another one.
    for batch in ["monday", "tuesday"] {
        let mut again = setup.aggregation(open(), batch, 1.0);
        let tally = add(&mut again, &reports[..20]);
        assert_eq!(tally.accepted, 0, "{batch}");
        assert_eq!(tally.refused[&ReportRefusal::Replayed], 20);
    }
    let mut monday = setup.aggregation(open(), "monday", 1.0);
    assert_eq!(monday.batch().reports, 20);
    let tally = add(&mut monday, &reports);
    assert_eq!((tally.accepted, monday.batch().reports), (5, 25));
    assert!(query(&mut monday, 1.0).is_ok());
}

#[test]
fn a_budget_is_spent_in_parts_and_never_refunded() {
    let setup = TaskSetup::new(&terms(2, 1));
    let folder = folder();
    let path = folder.file("aggregator.store");
    let open = || AggregationStore::open(&path).unwrap();
    let reports: Vec<_> = (0..20).map(|_| setup.report(&[0, 1], 1.0)).collect();
    let mut batch = setup.aggregation(open(), "batch", 1.0);
    assert_eq!(add(&mut batch, &reports).accepted, 20);
    for (epsilon, left) in [(0.4, 0.6), (0.000_001, 0.599_999), (0.5, 0.099_999)] {
        // Each time in a new process.
        let mut batch = setup.aggregation(open(), "batch", 1.0);
        query(&mut batch, epsilon).unwrap();
        assert_eq!(batch.batch().left(), micro(left));
    }
    let mut batch = setup.aggregation(open(), "batch", 1.0);
    let refused = query(&mut batch, 0.1).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the batch `batch` cannot pay ε = 0.1: 0.099999 of 1 is left"
    );
    // The refusal cost nothing, and what is left can be spent.
    query(&mut batch, 0.099_999).unwrap();
    assert_eq!(batch.batch().left(), micro(0.0));
    assert!(query(&mut batch, 0.000_001).is_err());
    // No report can join a batch that was queried: its first results would not include it.
    let late = [Ok::<_, Infallible>(setup.report(&[0, 1], 1.0))];
    let refused = batch.add(late, |_| {}).unwrap_err();
    assert!(matches!(
        refused,
        AddError::Store(AggregationStoreError::Collected(_))
    ));
}

#[test]
fn a_small_batch_has_no_result_and_loses_nothing() {
    let setup = TaskSetup::new(&terms(2, 1));
    let mut batch = setup.in_memory(1.0);
    let reports: Vec<_> = (0..20).map(|_| setup.report(&[0, 1], 1.0)).collect();
    add(&mut batch, &reports[..19]);
    assert_eq!(
        query(&mut batch, 1.0).unwrap_err().to_string(),
        "the batch `batch` has 19 reports; a query needs at least 20"
    );
    assert_eq!(batch.batch().left(), micro(1.0));
    add(&mut batch, &reports[19..]);
    assert!(query(&mut batch, 1.0).is_ok());
}

#[test]
fn a_batch_keeps_its_budget() {
    let setup = TaskSetup::new(&terms(2, 1));
    let folder = folder();
    let path = folder.file("aggregator.store");
    setup.aggregation(AggregationStore::open(&path).unwrap(), "batch", 0.5);
    let mut store = AggregationStore::open(&path).unwrap();
    let batch = store.batch(&setup.task, "batch", Some(micro(8.0)));
    assert_eq!(batch.unwrap().budget, micro(0.5));
    let refused = store.batch(&setup.task, "other", None);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "there is no batch `other` of this task; it has batch"
    );
    let refused = store.batch(&setup.task, "other", Some(micro(4295.0)));
    assert_eq!(
        refused.unwrap_err().to_string(),
        "the budget of a batch must be in (0, 4294.967295], got 4295"
    );
}

/// Keys are checked before anything is written.
#[test]
fn wrong_keys_leave_nothing_behind() {
    let setup = TaskSetup::new(&terms(2, 1));
    let other = TaskSetup::new(&terms(2, 1));
    let folder = folder();
    let path = folder.file("aggregator.store");
    let attempt = |keys: [AggregatorKeys; 2]| {
        let store = AggregationStore::open(&path).unwrap();
        let budget = Some(micro(0.5));
        Aggregation::new(store, keys, &setup.task, "batch", budget, 0..=u64::MAX)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    let [leader, helper] = setup.keys.clone();
    let [other_leader, other_helper] = other.keys;
    assert_eq!(
        attempt([leader.clone(), other_helper]),
        "these keys are not the keys of the helper of https://agg.example"
    );
    let mut helper_of_another = helper.clone();
    helper_of_another.verify_key = other_leader.verify_key;
    assert_eq!(
        attempt([leader.clone(), helper_of_another]),
        "the leader and the helper have different verify keys"
    );
    assert_eq!(
        attempt([helper, leader]),
        "these keys are not the keys of the leader of https://agg.example"
    );
    let mut store = AggregationStore::open(&path).unwrap();
    assert!(store.batch(&setup.task, "batch", None).is_err());
}

/// Tasks do not share ids: who replays a report in another task cannot decrypt it anyway.
#[test]
fn two_processes_do_not_count_a_report_twice() {
    let setup = TaskSetup::new(&terms(2, 1));
    let folder = folder();
    let path = folder.file("aggregator.store");
    let reports: Vec<_> = (0..60).map(|_| setup.report(&[0, 1], 1.0)).collect();
    let accepted: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let (setup, path, reports) = (&setup, &path, &reports);
                scope.spawn(move || {
                    let store = AggregationStore::open(path).unwrap();
                    let name = if number % 2 == 0 { "even" } else { "odd" };
                    let mut batch = setup.aggregation(store, name, 1.0);
                    add(&mut batch, reports).accepted
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .sum()
    });
    assert_eq!(accepted, 60);
    let mut store = AggregationStore::open(&path).unwrap();
    let mut count = |name| store.batch(&setup.task, name, None).unwrap().reports;
    assert_eq!(count("even") + count("odd"), 60);
}

/// Rows that were altered behind its back make the store unusable, and whatever single bit of the
/// file is flipped, no budget comes back and no report counts twice.
#[test]
fn a_damaged_store_is_not_used() {
    let setup = TaskSetup::new(&terms(2, 1));
    let folder = folder();
    let path = folder.file("aggregator.store");
    let reports: Vec<_> = (0..20).map(|_| setup.report(&[0, 1], 1.0)).collect();
    {
        let store = AggregationStore::open(&path).unwrap();
        let mut batch = setup.aggregation(store, "batch", 1.0);
        add(&mut batch, &reports);
        query(&mut batch, 0.75).unwrap();
        // Another task in the same file.
        let mut other = TaskSetup::new(&terms(2, 1));
        other.keys = setup.keys.clone();
        let service = setup.task.service();
        other.task = AggregationTask::new(service, &terms(3, 1)).unwrap();
        let store = AggregationStore::open(&path).unwrap();
        let mut batch = other.aggregation(store, "batch", 1.0);
        add(&mut batch, &[other.report(&[0, 1, 0], 1.0)]);
    }
    let intact = fs::read(&path).unwrap();
    let statements = [
        "DELETE FROM task WHERE number = 1",
        "UPDATE batch SET spent = 0",
        "UPDATE batch SET budget = 8000000",
        "UPDATE batch SET reports = reports + 1",
        "UPDATE batch SET name = 'other'",
        "UPDATE batch SET queries = 0",
        "DELETE FROM report WHERE id = (SELECT min(id) FROM report WHERE task = 1)",
        "UPDATE task SET reports = 0",
        "UPDATE task SET digest = zeroblob(16)",
        "DELETE FROM batch",
    ];
    for statement in statements {
        fs::write(&path, &intact).unwrap();
        let connection = rusqlite::Connection::open(&path).unwrap();
        assert!(connection.execute(statement, []).unwrap() > 0);
        drop(connection);
        let used = AggregationStore::open(&path)
            .and_then(|mut store| store.batch(&setup.task, "batch", Some(micro(1.0))));
        assert!(
            matches!(used, Err(AggregationStoreError::Damaged(_))),
            "{statement}: {used:?}"
        );
    }
    // Any damage: every third byte, in whatever page.
    for at in (0..intact.len()).step_by(3) {
        let mut damaged = intact.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(&path, &damaged).unwrap();
        let _ = fs::remove_file(folder.file("aggregator.store-journal"));
        let Ok(mut store) = AggregationStore::open(&path) else {
            continue;
        };
        let Ok(state) = store.batch(&setup.task, "batch", Some(micro(1.0))) else {
            continue;
        };
        assert_eq!(state.left(), micro(0.25), "byte {at}");
        assert_eq!(state.reports, 20, "byte {at}");
        // A batch that was queried takes no reports, so they are tried in another one.
        let Ok(mut other) = try_aggregation(&setup, store) else {
            continue;
        };
        let again = other.add(reports.iter().cloned().map(Ok::<_, Infallible>), |_| {});
        if let Ok(tally) = again {
            assert_eq!(tally.accepted, 0, "byte {at}");
        }
    }
    fs::write(&path, b"").unwrap();
    assert!(matches!(
        AggregationStore::open(&path),
        Err(AggregationStoreError::Empty)
    ));
    fs::write(&path, b"something else entirely").unwrap();
    assert!(AggregationStore::open(&path).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"something else entirely");
}

/// A life of an aggregator that is started again before each step: it counts the same reports in
/// two batches, and queries as often as it can. Returns how many reports counted too often, and how
/// much more than the budget was spent, in µε.
fn excess(mut open: impl FnMut() -> AggregationStore) -> [u64; 2] {
    let setup = TaskSetup::new(&terms(2, 1));
    let reports: Vec<_> = (0..20).map(|_| setup.report(&[0, 1], 1.0)).collect();
    let (mut counted, mut spent) = (0, 0);
    for round in 0..4 {
        let name = ["one", "other"][round % 2];
        let mut batch = setup.aggregation(open(), name, 1.0);
        let sent = reports.iter().cloned().map(Ok::<_, Infallible>);
        counted += batch.add(sent, |_| {}).map_or(0, |tally| tally.accepted);
        if query(&mut batch, 0.75).is_ok() {
            spent += micro(0.75).get();
        }
    }
    let budget = micro(1.0).get();
    [counted - 20, spent.saturating_sub(budget)]
}

#[test]
fn an_aggregator_that_is_started_again_exceeds_nothing() {
    let folder = folder();
    let path = folder.file("aggregator.store");
    assert_eq!(excess(|| AggregationStore::open(&path).unwrap()), [0, 0]);
}

/// The deliberate mistake: a store that forgets when the process ends. It counts again and spends
/// again, and the test above would notice.
#[test]
fn a_store_that_forgets_is_noticed() {
    let [counted, spent] = excess(|| AggregationStore::in_memory().unwrap());
    assert_eq!(counted, 60);
    assert_eq!(spent, micro(2.0).get());
}
