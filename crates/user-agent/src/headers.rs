//! The `Save-Impression` and `Measure-Conversion` response headers (the draft's section HTTP API).
//!
//! This module only parses. The values of options are checked when the API is called.

use sfv::{BareItem, Dictionary, Item, ListEntry, Parser};
use thiserror::Error;
use url::Url;

use crate::options::{ConversionOptions, ImpressionOptions};

/// Parses a `Save-Impression` header.
///
/// # Errors
/// If the header is not a dictionary, lacks a required key, or has a wrong value for a key. Unknown
/// keys and parameters are ignored.
pub fn parse_save_impression(header: &[u8]) -> Result<ImpressionOptions, HeaderError> {
    let dictionary = dictionary(header)?;
    let keys = Keys(&dictionary);
    let mut options = ImpressionOptions::new(keys.required("histogram-index", unsigned)?);
    keys.optional("conversion-sites", strings, &mut options.conversion_sites)?;
    keys.optional(
        "conversion-callers",
        strings,
        &mut options.conversion_callers,
    )?;
    keys.optional("match-value", unsigned, &mut options.match_value)?;
    keys.optional("lifetime-days", days, &mut options.lifetime_days)?;
    keys.optional("priority", signed, &mut options.priority)?;
    Ok(options)
}

/// Parses a `Measure-Conversion` header of a response from `base`. Returns the options, and the URL
/// to which the report must be sent.
///
/// # Errors
/// If the header is not a dictionary, lacks a required key, or has a wrong value for a key, or if
/// the URL is not https.
pub fn parse_measure_conversion(
    header: &[u8],
    base: &Url,
) -> Result<(ConversionOptions, Url), HeaderError> {
    let dictionary = dictionary(header)?;
    let keys = Keys(&dictionary);
    let service = keys.required("aggregation-service", string)?;
    let histogram_size = keys.required("histogram-size", positive)?;
    let report_url = keys.required("report-url", string)?;
    let report_url = match base.join(&report_url) {
        // An https URL is potentially trustworthy.
        Ok(url) if url.scheme() == "https" => url,
        _ => {
            return Err(HeaderError::Value {
                key: "report-url",
                expected: "an https URL",
            });
        }
    };
    let mut options = ConversionOptions::new(service, histogram_size);
    keys.optional("epsilon", number, &mut options.epsilon)?;
    let mut lookback_days = 0;
    keys.optional("lookback-days", days, &mut lookback_days)?;
    options.lookback_days = (lookback_days > 0).then_some(lookback_days);
    keys.optional("match-values", list(unsigned), &mut options.match_values)?;
    keys.optional("impression-sites", strings, &mut options.impression_sites)?;
    keys.optional(
        "impression-callers",
        strings,
        &mut options.impression_callers,
    )?;
    keys.optional("credit", list(number), &mut options.credit)?;
    keys.optional("value", positive, &mut options.value)?;
    keys.optional("max-value", positive, &mut options.max_value)?;
    Ok((options, report_url))
}

/// The reason why a header is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The header is not a structured-field dictionary.
    #[error("the header is not a structured-field dictionary: {why}")]
    Syntax {
        /// The message of the parser.
        why: String,
    },
    /// A required key is missing.
    #[error("the header lacks the required key {key}")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A key has a value of the wrong type or range.
    #[error("the value of {key} must be {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// A description of the allowed values.
        expected: &'static str,
    },
}

fn dictionary(header: &[u8]) -> Result<Dictionary, HeaderError> {
    let parsed = Parser::new(header).parse::<Dictionary>();
    parsed.map_err(|error| HeaderError::Syntax {
        why: error.to_string(),
    })
}

/// A description of the values that are allowed for a key.
type Expectation = &'static str;

struct Keys<'d>(&'d Dictionary);

impl Keys<'_> {
    fn required<T>(
        &self,
        key: &'static str,
        read: impl Fn(&ListEntry) -> Result<T, Expectation>,
    ) -> Result<T, HeaderError> {
        match self.0.get(key) {
            Some(entry) => read(entry).map_err(|expected| HeaderError::Value { key, expected }),
            None => Err(HeaderError::Missing { key }),
        }
    }

    fn optional<T>(
        &self,
        key: &'static str,
        read: impl Fn(&ListEntry) -> Result<T, Expectation>,
        option: &mut T,
    ) -> Result<(), HeaderError> {
        match self.required(key, read) {
            Ok(value) => *option = value,
            Err(HeaderError::Missing { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

fn item(entry: &ListEntry) -> Option<&BareItem> {
    match entry {
        ListEntry::Item(Item { bare_item, .. }) => Some(bare_item),
        ListEntry::InnerList(_) => None,
    }
}

/// Reads an integer. `1.0` is a decimal, not an integer (notes on the draft, row 10).
fn integer(entry: &ListEntry) -> Option<i64> {
    item(entry)?.as_integer().map(i64::from)
}

fn unsigned(entry: &ListEntry) -> Result<u32, Expectation> {
    let value = integer(entry).and_then(|value| u32::try_from(value).ok());
    value.ok_or("an integer in [0, 4294967295]")
}

fn positive(entry: &ListEntry) -> Result<u32, Expectation> {
    let value = unsigned(entry).ok().filter(|value| *value > 0);
    value.ok_or("an integer in [1, 4294967295]")
}

fn signed(entry: &ListEntry) -> Result<i32, Expectation> {
    let value = integer(entry).and_then(|value| i32::try_from(value).ok());
    value.ok_or("an integer in [-2147483648, 2147483647]")
}

/// Reads any positive integer. Numbers of more than 32 bits are clamped later (notes on the draft,
/// row 11).
fn days(entry: &ListEntry) -> Result<u64, Expectation> {
    let value = integer(entry).and_then(|value| u64::try_from(value).ok());
    value.filter(|value| *value > 0).ok_or("a positive integer")
}

fn number(entry: &ListEntry) -> Result<f64, Expectation> {
    let value = item(entry).and_then(|item| match item {
        #[expect(clippy::cast_precision_loss, reason = "at most 15 digits")]
        BareItem::Integer(value) => Some(i64::from(*value) as f64),
        BareItem::Decimal(value) => Some(f64::from(*value)),
        _ => None,
    });
    value.ok_or("a number")
}

fn string(entry: &ListEntry) -> Result<String, Expectation> {
    let value = item(entry).and_then(BareItem::as_string);
    value.map(|text| text.as_str().to_owned()).ok_or("a string")
}

fn strings(entry: &ListEntry) -> Result<Vec<String>, Expectation> {
    list(string)(entry)
}

fn list<T>(
    read: fn(&ListEntry) -> Result<T, Expectation>,
) -> impl Fn(&ListEntry) -> Result<Vec<T>, Expectation> {
    move |entry| match entry {
        ListEntry::InnerList(list) => {
            let items = list.items.iter();
            items
                .map(|item| read(&ListEntry::Item(item.clone())))
                .collect()
        }
        ListEntry::Item(_) => Err("an inner list"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drafts_examples_parse() {
        let header = b"histogram-index=3, match-value=2, \
            conversion-sites=(\"advertiser.example\"), lifetime-days=7";
        let expected = ImpressionOptions {
            match_value: 2,
            conversion_sites: vec!["advertiser.example".to_owned()],
            lifetime_days: 7,
            ..ImpressionOptions::new(3)
        };
        assert_eq!(parse_save_impression(header), Ok(expected));

        let header = br#"aggregation-service="https://aggregator.example/tee", histogram-size=20,
            epsilon=1.0, lookback-days=14, impression-sites=("publisher.example" "other.example"),
            impression-callers=("ad-tech.example"), match-values=(2), credit=(0.25 0.25 0.5),
            value=3, max-value=7, report-url="/foo""#
            .map(|byte| if byte == b'\n' { b' ' } else { byte });
        let base = Url::parse("https://shop.example/a/b").unwrap();
        let (options, url) = parse_measure_conversion(&header, &base).unwrap();
        assert_eq!(url.as_str(), "https://shop.example/foo");
        assert_eq!(options.credit, [0.25, 0.25, 0.5]);
        assert_eq!(options.lookback_days, Some(14));
        assert_eq!((options.value, options.max_value), (3, 7));
    }

    /// Notes on the draft, rows 10 and 11.
    #[test]
    fn integers_are_integers_and_long_lifetimes_are_kept() {
        let error = parse_save_impression(b"histogram-index=1.0").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the value of histogram-index must be an integer in [0, 4294967295]"
        );
        let long = parse_save_impression(b"histogram-index=1, lifetime-days=999999999999999");
        assert_eq!(long.unwrap().lifetime_days, 999_999_999_999_999);
    }

    #[test]
    fn errors_name_the_key() {
        let base = Url::parse("http://shop.example/").unwrap();
        let message = |header: &str| {
            let parsed = parse_measure_conversion(header.as_bytes(), &base);
            parsed.unwrap_err().to_string()
        };
        assert_eq!(
            message("aggregation-service=\"a\", histogram-size=1"),
            "the header lacks the required key report-url"
        );
        assert_eq!(
            message("aggregation-service=\"a\", histogram-size=1, report-url=\"/x\""),
            "the value of report-url must be an https URL"
        );
        assert!(message("=").starts_with("the header is not a structured-field dictionary: "));
    }
}
