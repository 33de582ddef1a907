//! Our own vectors, and the W3C's where they are at hand.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use bigbird_conformance::{Tally, read, vectors};

#[test]
fn our_vectors_pass() {
    let tally = Tally::of(&vectors(), |case| case.run(None)).unwrap();
    assert!(tally.passed >= 35, "{tally}");
    assert_eq!(tally.failed, 0, "{tally}");
}

/// The W3C's, and scenarios recorded with its simulator, where they are at hand beside the repository.
#[test]
fn the_w3cs_vectors_pass() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared");
    for folder in ["w3c-e2e", "w3c-scenarios"] {
        let folder = shared.join(folder);
        if !folder.is_dir() {
            println!("skipped: no {}", folder.display());
            continue;
        }
        let tally = Tally::of(&read(&folder).unwrap(), |case| case.run(None)).unwrap();
        assert!(tally.passed > 20, "{tally}");
        assert_eq!(tally.failed, 0, "{tally}");
    }
}
