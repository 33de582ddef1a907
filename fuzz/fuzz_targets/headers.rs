//! No header makes the parsers panic, and what they give is what the draft allows.
#![no_main]

use bigbird_user_agent::{parse_measure_conversion, parse_save_impression};
use libfuzzer_sys::fuzz_target;
use url::Url;

fuzz_target!(|header: &[u8]| {
    if let Ok(options) = parse_save_impression(header) {
        assert!(options.lifetime_days > 0);
    }
    let base = Url::parse("https://base.example/a/b?c#d").expect("a constant");
    if let Ok((options, url)) = parse_measure_conversion(header, &base) {
        assert_eq!(url.scheme(), "https");
        assert!(options.histogram_size > 0 && options.value > 0 && options.max_value > 0);
        assert_ne!(options.lookback_days, Some(0));
        assert!(options.epsilon.is_finite());
    }
});
