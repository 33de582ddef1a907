//! No host makes the parser panic, and a site is the site of itself.
#![no_main]

use bigbird_user_agent::{Localhost, Site};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|host: &str| {
    for localhost in [Localhost::Refused, Localhost::Allowed] {
        if let Ok(site) = Site::parse(host, localhost) {
            assert_eq!(Site::parse(site.as_str(), localhost), Ok(site.clone()));
            assert!(site.as_str().is_ascii());
        }
    }
});
