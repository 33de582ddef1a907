//! No line makes the reader panic, nor does playing what it reads.
#![no_main]

use bigbird_conformance::VectorCase;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|line: &str| {
    if let Ok(case) = VectorCase::parse(line) {
        let _ = case.name();
        let _ = case.run(None);
    }
});
