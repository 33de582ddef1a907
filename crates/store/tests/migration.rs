//! A store of an earlier version opens with nothing refunded, and goes on.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use bigbird::{Fate, Policy, Profile, Timestamp};
use bigbird_attribution::{
    Action, Call, Config, ConversionOptions, SharedConversion, Storage as _, Transaction as _,
    UserAgent,
};
use bigbird_store::{Contents, SqliteStore, StoreOptions, check};
use common::{Agent, DAY, Folder, SERVICE, Sequence, by, consumed};

/// Every version before this one, closed and killed.
const OLD: [&str; 2] = ["v1", "v1-killed"];

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

fn open(path: &Path) -> Agent {
    let policy = Policy::builder()
        .querier(1.0)
        .global(3.0)
        .impression_site(1.5)
        .conversion_site(1.2);
    let config = Config {
        policy: policy.build().unwrap(),
        ..Config::new(Profile::BigBird).with_service(SERVICE)
    };
    let store = SqliteStore::open(path, &StoreOptions::default()).unwrap();
    UserAgent::new(config, store, Sequence::default()).unwrap()
}

/// What every filter had consumed.
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
        let folder = Folder::new();
        let path = copy(&folder, name);
        let mut agent = open(&path);
        assert_eq!(consumed(&agent.budgets().unwrap()), before(name), "{name}");
        // What could not be paid for still cannot be.
        for site in ["shop-1.example", "shop-2.example", "shop-3.example"] {
            let call = by(site, 500, 115 * DAY + 20_000);
            let answer = agent.measure_conversion(&call, &conversion(0.4, &[]));
            assert!(!answer.unwrap().decision.any_passed(), "{name}: {site}");
        }
        assert_eq!(consumed(&agent.budgets().unwrap()), before(name), "{name}");
        drop(agent);
        let checked = check(&path).unwrap();
        assert_eq!((checked.impressions, checked.objects), (60, 2), "{name}");
        let contents = Contents::read(&path).unwrap();
        assert_eq!(contents.closed.len(), 1, "{name}");
        assert!(contents.state.next_user_action > 1, "{name}");
    }
}

/// What was taken stays taken, what was not can be taken, by the handle it had.
#[test]
fn shared_conversions_go_on() {
    for name in OLD {
        let folder = Folder::new();
        let mut agent = open(&copy(&folder, name));
        let mut take = |number: u128, site: &str, company: &str, ads: &[&str]| {
            let call = Call {
                intermediary: Some(company),
                ..by(site, 600, 115 * DAY + 30_000)
            };
            let shared = SharedConversion(number);
            let answer = agent.take_share(shared, &call, &conversion(0.1, ads));
            let decision = answer.unwrap().decision;
            let passed = decision.epochs().filter(|epoch| epoch.fate == Fate::Passed);
            passed.count()
        };
        let (ads, more) = ("ads.example", "more-ads.example");
        assert_eq!(take(1, "shop-1.example", ads, &[ads]), 0, "{name}: taken");
        assert_eq!(take(1, "shop-1.example", more, &[more]), 3, "{name}");
        assert_eq!(take(2, "shop-2.example", ads, &[ads]), 3, "{name}");
        assert_eq!(take(3, "shop-2.example", more, &[more]), 0, "{name}: none");
        // They count as created in the epoch of the latest charge, and go with it.
        let tx = agent.storage_mut().begin().unwrap();
        let stored = tx.object(SharedConversion(1)).unwrap().unwrap();
        assert_eq!(stored.object.created().0, 2, "{name}");
        drop(tx);
        agent.maintain(Timestamp(150 * DAY)).unwrap();
        let tx = agent.storage_mut().begin().unwrap();
        assert_eq!(tx.objects().unwrap(), [], "{name}");
    }
}

/// An action that began before is not begun again.
#[test]
fn user_actions_are_not_numbered_again() {
    for name in OLD {
        let folder = Folder::new();
        let mut agent = open(&copy(&folder, name));
        let action = agent.begin_user_action(Timestamp(116 * DAY)).unwrap();
        let shown = format!("{action:?}");
        assert!(shown.contains("UserAction(1025)"), "{name}: {shown}");
        assert_ne!(action, Action::numbered(1025).unwrap());
    }
}

/// A damaged store is not migrated to a sound one.
#[test]
fn damage_is_not_migrated_away() {
    let damages = [
        "UPDATE object SET body = substr(body, 1, length(body) - 1)",
        "DELETE FROM object",
        "DELETE FROM filter WHERE epoch = 1",
        "UPDATE filter SET consumed = consumed - 1",
    ];
    for sql in damages {
        let folder = Folder::new();
        let path = copy(&folder, "v1");
        // The library registers the layer of page checksums when it opens its first store.
        drop(SqliteStore::open(copy(&folder, "v1-killed"), &StoreOptions::default()).unwrap());
        common::by_hand(&path).execute_batch(sql).unwrap();
        let opened = SqliteStore::open(&path, &StoreOptions::default());
        assert!(opened.is_err(), "{sql}");
    }
}
