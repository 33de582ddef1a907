//! Response headers: `Save-Impression` and `Measure-Conversion` (the draft's section HTTP API), and
//! what concerns the API of `Permissions-Policy` and `Clear-Site-Data`.
//!
//! This module only parses. The values of options are checked when the API is called.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use sfv::{BareItem, Dictionary, Item, ListEntry, Parser};
use thiserror::Error;
use url::Url;

use crate::options::{ConversionOptions, ImpressionOptions};

/// The headers that call the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiHeader {
    /// `Save-Impression`.
    SaveImpression,
    /// `Measure-Conversion`.
    MeasureConversion,
}

impl ApiHeader {
    /// Both headers.
    pub const ALL: [Self; 2] = [Self::SaveImpression, Self::MeasureConversion];

    /// The name of the header.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SaveImpression => "Save-Impression",
            Self::MeasureConversion => "Measure-Conversion",
        }
    }

    /// The header with this name, in capital or small letters.
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|header| header.name().eq_ignore_ascii_case(name))
    }

    /// The keys that the header can have. Others are ignored.
    pub const fn keys(self) -> &'static [&'static str] {
        match self {
            Self::SaveImpression => &[
                "histogram-index",
                "match-value",
                "conversion-sites",
                "conversion-callers",
                "lifetime-days",
                "priority",
            ],
            Self::MeasureConversion => &[
                "aggregation-service",
                "histogram-size",
                "report-url",
                "epsilon",
                "lookback-days",
                "match-values",
                "impression-sites",
                "impression-callers",
                "credit",
                "value",
                "max-value",
            ],
        }
    }
}

/// A key of a header, with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderKey {
    /// The key.
    pub key: String,
    /// The place of the key in the header, in bytes.
    pub at: usize,
}

/// The keys of a header that is a structured-field dictionary, in order. If a key is there several
/// times, the last one counts.
pub fn header_keys(header: &[u8]) -> Vec<HeaderKey> {
    let mut keys = Vec::new();
    let (mut in_string, mut escaped, mut begins) = (false, false, true);
    for (at, byte) in header.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b',' if !in_string => begins = true,
            byte if begins && !byte.is_ascii_whitespace() => {
                let rest = &header[at..];
                let ends = |byte: &u8| matches!(byte, b'=' | b';' | b',' | b' ' | b'\t');
                let key = rest.split(ends).next().unwrap_or_default();
                keys.push(HeaderKey {
                    key: String::from_utf8_lossy(key).into_owned(),
                    at,
                });
                begins = false;
            }
            _ => {}
        }
    }
    keys
}

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

/// The declarations of a `Permissions-Policy` header about the two features of the API. A feature
/// that it does not name has the default allowlist, which is [`Allowlist::All`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDeclarations {
    /// The origins that may save impressions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_impression: Option<Allowlist>,
    /// The origins that may measure conversions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measure_conversion: Option<Allowlist>,
}

/// The origins that may use a feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Allowlist {
    /// Every origin.
    All,
    /// Some origins, or none.
    Listed {
        /// True if the origin of the response is one of them.
        own: bool,
        /// The others, as the URL standard serialises origins. The host of an origin can begin with
        /// `*.`, which stands for every subdomain.
        origins: Vec<String>,
    },
}

/// As the protocol has it: `{"all": true}` or `{"self": true, "origins": [...]}`.
impl Serialize for Allowlist {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_map(None)?;
        match self {
            Self::All => fields.serialize_entry("all", &true)?,
            Self::Listed { own, origins } => {
                fields.serialize_entry("self", own)?;
                fields.serialize_entry("origins", origins)?;
            }
        }
        fields.end()
    }
}

/// Parses a `Permissions-Policy` header (the Permissions Policy standard's "construct policy from
/// dictionary and origin"). Other features, and values that the standard does not know, are
/// ignored.
///
/// # Errors
/// If the header is not a dictionary. Then the response declares nothing.
pub fn parse_permissions_policy(header: &[u8]) -> Result<PolicyDeclarations, HeaderError> {
    let dictionary = dictionary(header)?;
    let declared = |feature: &str| dictionary.get(feature).map(allowlist);
    Ok(PolicyDeclarations {
        save_impression: declared("save-impression"),
        measure_conversion: declared("measure-conversion"),
    })
}

/// Parses a `Clear-Site-Data` header. Returns true if it asks to clear impressions: by their name,
/// or because it asks to clear everything.
///
/// # Errors
/// If the header is not a list of quoted strings. Then nothing is cleared.
pub fn parse_clear_site_data(header: &[u8]) -> Result<bool, HeaderError> {
    let types = quoted_strings(header).ok_or(HeaderError::NotQuoted)?;
    Ok(types
        .iter()
        .any(|name| matches!(name.as_slice(), b"impressions" | b"*")))
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
        /// The place of the error in the header, in bytes, if it is at one.
        at: Option<usize>,
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
    /// The header is not a list of quoted strings.
    #[error("the header is not a list of quoted strings, such as \"impressions\"")]
    NotQuoted,
}

/// The allowlist of a feature. A value that is not a list counts as a list with one element, as in
/// browsers.
fn allowlist(value: &ListEntry) -> Allowlist {
    let elements = match value {
        ListEntry::Item(item) => std::slice::from_ref(item),
        ListEntry::InnerList(list) => list.items.as_slice(),
    };
    let (mut own, mut origins) = (false, Vec::new());
    for element in elements {
        match &element.bare_item {
            BareItem::Token(token) if token.as_str() == "*" => return Allowlist::All,
            BareItem::Token(token) if token.as_str() == "self" => own = true,
            BareItem::String(text) => origins.extend(origin(text.as_str())),
            _ => {}
        }
    }
    Allowlist::Listed { own, origins }
}

/// The origin of a URL, if it has one.
fn origin(url: &str) -> Option<String> {
    let origin = Url::parse(url).ok()?.origin();
    origin.is_tuple().then(|| origin.ascii_serialization())
}

/// The strings of a list of quoted strings (HTTP Semantics, sections 5.6.1 and 5.6.4). An element
/// of a list may be empty.
fn quoted_strings(header: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut strings = Vec::new();
    let mut rest = header.trim_ascii();
    while let Some((first, after)) = rest.split_first() {
        if *first == b',' {
            rest = after.trim_ascii_start();
            continue;
        }
        let (text, after) = quoted_string(rest)?;
        strings.push(text);
        rest = after.trim_ascii_start();
        if !rest.is_empty() && !rest.starts_with(b",") {
            return None;
        }
    }
    Some(strings)
}

/// The quoted string with which the text begins, and what follows it.
fn quoted_string(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut bytes = text.strip_prefix(b"\"")?.iter();
    let mut string = Vec::new();
    loop {
        match *bytes.next()? {
            b'"' => return Some((string, bytes.as_slice())),
            b'\\' => string.push(*bytes.next()?),
            other => string.push(other),
        }
    }
}

fn dictionary(header: &[u8]) -> Result<Dictionary, HeaderError> {
    let parsed = Parser::new(header).parse::<Dictionary>();
    parsed.map_err(|error| HeaderError::Syntax {
        why: error.to_string(),
        at: error.index(),
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

    /// Every key is one that the parser reads, and the parser reads no other: a wrong value of it
    /// is an error.
    #[test]
    fn the_keys_are_those_that_are_read() {
        let base = Url::parse("https://shop.example/").unwrap();
        let error = |header, text: &str| match header {
            ApiHeader::SaveImpression => parse_save_impression(text.as_bytes()).err(),
            ApiHeader::MeasureConversion => parse_measure_conversion(text.as_bytes(), &base).err(),
        };
        for header in ApiHeader::ALL {
            let complete = match header {
                ApiHeader::SaveImpression => "histogram-index=1",
                ApiHeader::MeasureConversion => {
                    "aggregation-service=\"a\", histogram-size=1, report-url=\"/\""
                }
            };
            assert_eq!(
                ApiHeader::from_name(&header.name().to_lowercase()),
                Some(header)
            );
            let every = header.keys().iter().chain(&["other-key"]);
            for key in every {
                let wrong = error(header, &format!("{complete}, {key}=?0"));
                match wrong {
                    Some(HeaderError::Value { key: named, .. }) => assert_eq!(named, *key),
                    other => assert_eq!((other, *key), (None, "other-key")),
                }
            }
        }
    }

    #[test]
    fn keys_have_places() {
        let header = b"a=\"x, \\\"y=1\", bc;p=1,\td=(\"z\" \",\"), a=2";
        let keys: Vec<_> = header_keys(header)
            .into_iter()
            .map(|it| (it.key, it.at))
            .collect();
        let expected = [("a", 0), ("bc", 14), ("d", 22), ("a", 35)];
        assert_eq!(keys, expected.map(|(key, at)| (key.to_owned(), at)));
        assert_eq!(header_keys(b""), []);
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

    fn policy(header: &str) -> String {
        match parse_permissions_policy(header.as_bytes()) {
            Ok(policy) => serde_json::to_string(&policy).unwrap(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_permissions_policy_lists_origins() {
        for (header, expected) in [
            ("", "{}"),
            ("geolocation=()", "{}"),
            ("save-impression=*", r#"{"saveImpression":{"all":true}}"#),
            (
                "save-impression=self",
                r#"{"saveImpression":{"self":true,"origins":[]}}"#,
            ),
            (
                "save-impression=()",
                r#"{"saveImpression":{"self":false,"origins":[]}}"#,
            ),
            (
                "save-impression=(\"https://A.example:443/path\" self \"https://*.b.example\")",
                r#"{"saveImpression":{"self":true,"origins":["https://a.example","https://*.b.example"]}}"#,
            ),
            (
                "measure-conversion=\"https://a.example:8443\"",
                r#"{"measureConversion":{"self":false,"origins":["https://a.example:8443"]}}"#,
            ),
            // The last value of a feature counts, and parameters do not.
            (
                "save-impression=(), measure-conversion=(self *);report-to=x, save-impression=*",
                r#"{"saveImpression":{"all":true},"measureConversion":{"all":true}}"#,
            ),
            // Values that the standard does not know are ignored, so nothing is allowed.
            (
                "save-impression=(src 1 ?1 \"no url\" \"data:,x\"), measure-conversion",
                r#"{"saveImpression":{"self":false,"origins":[]},"measureConversion":{"self":false,"origins":[]}}"#,
            ),
        ] {
            assert_eq!(policy(header), expected, "{header}");
        }
    }

    #[test]
    fn a_malformed_permissions_policy_is_ignored_as_a_whole() {
        for header in [
            "save-impression=(), measure-conversion=(",
            "save-impression 'none'",
            "Save-Impression=()",
            "save-impression=(),",
        ] {
            let message = policy(header);
            let begin = "the header is not a structured-field dictionary: ";
            assert!(message.starts_with(begin), "{header}: {message}");
        }
    }

    #[test]
    fn clear_site_data_is_a_list_of_quoted_strings() {
        for (header, expected) in [
            ("\"impressions\"", true),
            ("\"cache\", \"impressions\"", true),
            ("\"cache\",\"cookies\" ,, \"impressions\",", true),
            ("\"*\"", true),
            ("\"im\\pressions\"", true),
            ("\"cache\"", false),
            ("\"Impressions\"", false),
            ("\"cache, \\\"impressions\"", false),
            ("", false),
        ] {
            let parsed = parse_clear_site_data(header.as_bytes());
            assert_eq!(parsed, Ok(expected), "{header}");
        }
        for header in [
            "impressions",
            "*",
            "\"cache\", impressions",
            "\"impressions",
            "\"impressions\\",
            "\"cache\" \"impressions\"",
        ] {
            let parsed = parse_clear_site_data(header.as_bytes());
            assert_eq!(parsed, Err(HeaderError::NotQuoted), "{header}");
        }
    }
}
