//! Plays our own vectors, and the W3C's if they are available, on the store in memory and on the
//! JSON store of the example.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use bigbird_conformance::{Tally, VectorCase, read, vectors};
use bigbird_testing::Folder;

#[allow(dead_code, reason = "an example has a main function")]
#[path = "../examples/json_store.rs"]
mod json_store;

fn pass(cases: &[(String, VectorCase)], least: usize) {
    let in_memory = Tally::of(cases, |case| case.run(None)).unwrap();
    let folder = Folder::in_memory();
    let mut number = 0;
    let in_json = Tally::of(cases, |case| {
        number += 1;
        let path = folder.file(&format!("{number}.json"));
        case.run_on(None, || Ok(json_store::JsonStore(path)))
    });
    for tally in [in_memory, in_json.unwrap()] {
        assert!(tally.passed >= least, "{tally}");
        assert_eq!(tally.failed, 0, "{tally}");
    }
}

#[test]
fn our_vectors_pass() {
    pass(&vectors(), 35);
}

/// The W3C's vectors and scenarios recorded with its simulator, if they are in `shared` beside the
/// repository.
#[test]
fn the_w3cs_vectors_pass() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    for folder in ["w3c-e2e", "w3c-scenarios"] {
        let folder = shared.join(folder);
        if !folder.is_dir() {
            println!("skipped: {} does not exist", folder.display());
            continue;
        }
        pass(&read(&folder).unwrap(), 21);
    }
}
