//! The test vectors, run on a store in a file.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::path::Path;

use bigbird_conformance::{RunError, Tally, VectorCase, read, vectors};
use bigbird_store::{SqliteStore, StoreOptions};
use common::Folder;

fn run(cases: &[(String, VectorCase)]) -> Tally {
    // The vectors do not test the disk.
    let folder = Folder::in_memory();
    let mut number = 0;
    let tally = Tally::of(cases, |case| {
        number += 1;
        case.run_on(None, || {
            let path = folder.file(&format!("store-{number}"));
            let store = SqliteStore::open_or_create(path, &StoreOptions::default());
            store.map_err(|error| RunError::caused_by(&error))
        })
    });
    tally.unwrap()
}

#[test]
fn our_vectors_pass() {
    let tally = run(&vectors());
    assert!(tally.passed >= 35, "{tally}");
    assert_eq!(tally.failed, 0, "{tally}");
}

#[test]
fn the_w3cs_vectors_pass() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    for folder in ["w3c-e2e", "w3c-scenarios"] {
        let folder = shared.join(folder);
        if !folder.is_dir() {
            println!("skipped: no {}", folder.display());
            continue;
        }
        let tally = run(&read(&folder).unwrap());
        assert_eq!(tally.failed, 0, "{tally}");
    }
}
