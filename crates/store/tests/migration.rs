//! A store of an earlier version opens, refunds nothing, and continues.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use bigbird::{Policy, Profile, Timestamp};
use bigbird_store::{Damage, Problem, SqliteStore, StoreOptions, StoreSummary, check};
use bigbird_user_agent::{
    Action, Call, Config, ConversionOptions, SharedConversion, Storage as _, UserAgent, View as _,
};
use common::{DAY, Folder, SERVICE, SequenceRandomness, SqliteAgent, by, consumed, folder};

/// Every version before the present one: a store that was closed, and one whose process was killed.
const OLD: [&str; 10] = [
    "v1",
    "v1-killed",
    "v2",
    "v2-killed",
    "v3",
    "v3-killed",
    "v4",
    "v4-killed",
    "v5",
    "v5-killed",
];

fn fixture(name: &str) -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    fixtures.join(name)
}

/// A copy of a fixture, to work on.
fn copy(folder: &Folder, name: &str) -> PathBuf {
    let path = folder.file(name);
    fs::copy(fixture(&format!("{name}.store")), &path).unwrap();
    let log = fixture(&format!("{name}.store-wal"));
    if log.exists() {
        fs::copy(log, folder.file(&format!("{name}-wal"))).unwrap();
    }
    path
}

fn open(path: &Path) -> SqliteAgent {
    let policy = Policy::builder()
        .querier_budget(1.0)
        .global_budget(3.0)
        .impression_site_quota(1.5)
        .conversion_site_quota(1.2);
    let config = Config {
        policy: policy.build().unwrap(),
        ..Config::new(Profile::BigBird)
            .with_service(SERVICE)
            .for_testing()
    };
    let store = SqliteStore::open(path, &StoreOptions::default()).unwrap();
    UserAgent::new(
        config,
        store,
        SequenceRandomness::default(),
        Timestamp(116 * DAY),
    )
    .unwrap()
}

/// The recorded amount that every filter had consumed.
fn before(name: &str) -> Vec<(i64, String, u64)> {
    let version = name.split('-').next().unwrap();
    let text = fs::read_to_string(fixture(&format!("{version}.budgets"))).unwrap();
    let mut lines: Vec<_> = text
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [epoch, name, micro] = fields[..] else {
                panic!("{line}");
            };
            (
                epoch.parse().unwrap(),
                name.to_owned(),
                micro.parse().unwrap(),
            )
        })
        .collect();
    lines.sort();
    lines
}

fn conversion(epsilon: f64, callers: &[&str]) -> ConversionOptions {
    ConversionOptions {
        epsilon,
        value: 3,
        max_value: 5,
        credit: vec![0.6, 0.4],
        impression_callers: callers.iter().map(|&caller| caller.to_owned()).collect(),
        ..ConversionOptions::new(SERVICE, 5)
    }
}

#[test]
fn nothing_is_refunded() {
    for name in OLD {
        let folder = folder();
        let path = copy(&folder, name);
        let mut agent = open(&path);
        assert_eq!(
            consumed(&agent.filter_balances().unwrap()),
            before(name),
            "{name}"
        );
        // A conversion that could not be paid before still cannot be paid.
        for site in ["shop-1.example", "shop-2.example", "shop-3.example"] {
            let call = by(site, 500, 115 * DAY + 20_000);
            let answer = agent.measure_conversion(&call, &conversion(0.4, &[]));
            assert!(!answer.unwrap().decision.any_passed(), "{name}: {site}");
        }
        assert_eq!(
            consumed(&agent.filter_balances().unwrap()),
            before(name),
            "{name}"
        );
        drop(agent);
        let checked = check(&path).unwrap();
        let objects = if name.starts_with("v1") { 0 } else { 2 };
        assert_eq!(
            (checked.impressions, checked.objects),
            (60, objects),
            "{name}"
        );
        let contents = StoreSummary::read(&path).unwrap();
        assert_eq!(contents.closed.len(), 1, "{name}");
        assert!(contents.state.next_user_action > 1, "{name}");
    }
}

/// An old store that was not closed and has lost its log is refused, and refused again when it is
/// opened again. A migration must not begin a log that would pass for the lost one.
#[test]
fn an_old_store_that_has_lost_its_log_is_refused() {
    for name in OLD.into_iter().filter(|name| name.ends_with("-killed")) {
        for log in [None, Some(&b"not a log"[..])] {
            let folder = folder();
            let path = copy(&folder, name);
            let log_path = folder.file(&format!("{name}-wal"));
            match log {
                None => fs::remove_file(&log_path).unwrap(),
                Some(bytes) => fs::write(&log_path, bytes).unwrap(),
            }
            for _ in 0..2 {
                let opened = SqliteStore::open(&path, &StoreOptions::default());
                let error = opened.expect_err(name);
                assert!(
                    matches!(error.problem(), Problem::Damaged(Damage::Log(_))),
                    "{name}: {error}"
                );
            }
        }
    }
}

/// Takes the share of `more-ads.example`, and returns true if it was paid for.
fn take(agent: &mut SqliteAgent, number: u128, site: &str) -> bool {
    let call = Call {
        intermediary: Some("more-ads.example"),
        ..by(site, 600, 115 * DAY + 30_000)
    };
    let options = conversion(0.1, &["more-ads.example"]);
    let answer = agent.take_share(SharedConversion(number), &call, &options);
    answer.unwrap().decision.any_passed()
}

/// Shared conversions of version 1 are forgotten, because it is not known when they were created.
/// Their shares are null and free, what was paid for them stays paid, and new ones can be created.
#[test]
fn shared_conversions_of_the_first_version_end() {
    for name in ["v1", "v1-killed"] {
        let folder = folder();
        let path = copy(&folder, name);
        let mut agent = open(&path);
        assert!(!take(&mut agent, 1, "shop-1.example"), "{name}");
        assert!(!take(&mut agent, 2, "shop-2.example"), "{name}");
        assert_eq!(
            consumed(&agent.filter_balances().unwrap()),
            before(name),
            "{name}"
        );

        let call = by("shop-0.example", 601, 115 * DAY + 31_000);
        let created =
            agent.create_shared_conversion(&call, &conversion(0.1, &[]), &["more-ads.example"]);
        assert!(created.unwrap().decision.any_passed(), "{name}");
        let tx = agent.storage_mut().begin().unwrap();
        let numbers: Vec<u64> = tx.objects().unwrap().iter().map(|it| it.0).collect();
        assert_eq!(numbers, [3], "{name}: the numbering continues");
        drop(tx);
        assert!(take(&mut agent, 3, "shop-0.example"), "{name}");
        drop(agent);
        check(&path).unwrap();
    }
}

/// Since version 2, shared conversions continue: a share that was not taken can be taken, once.
#[test]
fn shared_conversions_of_the_second_version_go_on() {
    for name in &OLD[2..] {
        let folder = folder();
        let path = copy(&folder, name);
        let mut agent = open(&path);
        for (number, site) in [(1, "shop-1.example"), (2, "shop-2.example")] {
            assert!(take(&mut agent, number, site), "{name}");
            assert!(!take(&mut agent, number, site), "{name}");
        }
        drop(agent);
        check(&path).unwrap();
    }
}

/// An epoch of an older store keeps the rules that it began with, whatever rules the store is
/// opened with. New rules begin with the next epoch.
#[test]
fn an_older_store_keeps_its_rules() {
    for name in OLD {
        let folder = folder();
        let path = copy(&folder, name);
        let rich = Config {
            policy: Policy::builder()
                .querier_budget(100.0)
                .global_budget(100.0)
                .build()
                .unwrap(),
            epoch_days: 1,
            ..Config::new(Profile::BigBird).with_service(SERVICE)
        };
        let store = SqliteStore::open(&path, &StoreOptions::default()).unwrap();
        let now = Timestamp(115 * DAY + 20_000);
        let mut agent =
            UserAgent::new(rich.clone(), store, SequenceRandomness::default(), now).unwrap();
        for site in ["shop-1.example", "shop-2.example", "shop-3.example"] {
            let call = by(site, 500, now.0);
            let answer = agent.measure_conversion(&call, &conversion(0.4, &[]));
            assert!(!answer.unwrap().decision.any_passed(), "{name}: {site}");
        }
        assert_eq!(
            consumed(&agent.filter_balances().unwrap()),
            before(name),
            "{name}"
        );
        let eras = agent.eras().unwrap();
        let days: Vec<u32> = eras.iter().map(|era| era.rules.epoch_days).collect();
        assert_eq!(days, [7, 1], "{name}");
        assert!(eras[1].begins > now, "{name}");
        drop(agent);
        check(&path).unwrap();
    }
}

/// A store of an earlier version has no history. What happens from then on is recorded, and is
/// there when the store is opened again.
#[test]
fn history_begins_with_the_migration_and_outlives_a_restart() {
    for name in OLD {
        let folder = folder();
        let path = copy(&folder, name);
        let mut agent = open(&path);
        assert_eq!(agent.history(None, None, 9).unwrap().0, [], "{name}");
        let call = by("shop-1.example", 500, 115 * DAY + 20_000);
        let _ = agent
            .measure_conversion(&call, &conversion(0.4, &[]))
            .unwrap();
        let recorded = agent.history(None, None, 9).unwrap();
        assert_eq!(recorded.0.len(), 1, "{name}");
        drop(agent);
        assert_eq!(check(&path).unwrap().history, 1, "{name}");
        let mut agent = open(&path);
        assert_eq!(agent.history(None, None, 9).unwrap(), recorded, "{name}");
        agent
            .clear_browsing_history(&[], true, Timestamp(116 * DAY))
            .unwrap();
        drop(agent);
        assert_eq!(check(&path).unwrap().history, 0, "{name}");
        // The body of the entry is in no file any more.
        for file in [path.clone(), folder.file(&format!("{name}-wal"))] {
            let bytes = fs::read(file).unwrap_or_default();
            let word = b"reportBytes";
            assert!(!bytes.windows(word.len()).any(|it| it == word), "{name}");
        }
    }
}

/// The ids of user actions that began before are not used again.
#[test]
fn user_actions_are_not_numbered_again() {
    for name in OLD {
        let folder = folder();
        let mut agent = open(&copy(&folder, name));
        let action = agent.begin_user_action(Timestamp(116 * DAY)).unwrap();
        let shown = format!("{action:?}");
        assert!(shown.contains("UserAction(1025)"), "{name}: {shown}");
        assert_ne!(action, Action::numbered(1025).unwrap());
    }
}

/// A migration does not turn a damaged store into an intact one.
#[test]
fn damage_is_not_migrated_away() {
    let damages = [
        "UPDATE object SET body = substr(body, 1, length(body) - 1)",
        "DELETE FROM object",
        "DELETE FROM filter WHERE epoch = 1",
        "UPDATE filter SET consumed = consumed - 1",
    ];
    for sql in damages {
        let folder = folder();
        let path = copy(&folder, "v1");
        // The library registers the layer of page checksums when it opens its first store.
        drop(SqliteStore::open(copy(&folder, "v1-killed"), &StoreOptions::default()).unwrap());
        common::by_hand(&path).execute_batch(sql).unwrap();
        let opened = SqliteStore::open(&path, &StoreOptions::default());
        assert!(opened.is_err(), "{sql}");
    }
}
