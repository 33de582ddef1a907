//! Vectors that others made: those of the Public Suffix List, of the web platform for hosts and
//! IDNA, and of structured fields. They run if they are in `shared/vectors` beside the repository.
//! Otherwise each test prints that it was skipped.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use bigbird_user_agent::{Localhost, Site, parse_save_impression};
use serde_json::{Value, json};
use sfv::{BareItem, Dictionary, InnerList, Item, List, ListEntry, Parameters, Parser};

/// A folder of vectors, if it exists.
fn vectors(folder: &str) -> Option<PathBuf> {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/vectors");
    let path = shared.join(folder);
    if !path.is_dir() {
        println!("skipped: shared/vectors/{folder} does not exist beside the repository");
        return None;
    }
    Some(path)
}

fn site(host: &str) -> Option<String> {
    let site = Site::parse(host, Localhost::Refused).ok()?;
    Some(site.as_str().to_owned())
}

/// Each host has the registrable domain that the list's tests expect, or none.
#[test]
fn the_public_suffix_lists_tests_pass() {
    let Some(folder) = vectors("psl") else { return };
    // Cases have two forms: `checkPublicSuffix('host', 'domain');` and `host domain`.
    let mut cases = Vec::new();
    for line in fs::read_to_string(folder.join("test_psl.txt"))
        .unwrap()
        .lines()
    {
        if let Some(arguments) = line.strip_prefix("checkPublicSuffix(") {
            let arguments = arguments.trim_end_matches(");").replace('\'', "");
            let (host, domain) = arguments.split_once(", ").unwrap();
            cases.push((host.to_owned(), domain.to_owned()));
        }
    }
    for line in fs::read_to_string(folder.join("tests.txt"))
        .unwrap()
        .lines()
    {
        if let Some((host, domain)) = line.split_once(' ').filter(|_| !line.starts_with("//")) {
            cases.push((host.to_owned(), domain.to_owned()));
        }
    }
    assert!(cases.len() >= 150, "{} cases", cases.len());
    for (host, domain) in cases {
        if host == "null" {
            continue;
        }
        // Our sites are in ASCII, and the site of a registrable domain is that domain.
        let expected = (domain != "null").then(|| site(&domain).unwrap());
        assert_eq!(site(&host), expected, "{host}");
    }
}

/// Hosts are mapped to ASCII. The site of a host is the registrable domain of the mapped host, and
/// a host that cannot be mapped does not have a site.
#[test]
fn hosts_are_mapped_as_in_browsers() {
    let Some(folder) = vectors("wpt-url") else {
        return;
    };
    /// A character that Unicode does not assign, but that version 2.4 of the tables we use maps.
    const UNASSIGNED: char = '\u{3e8ac}';
    for (file, least) in [("toascii.json", 80), ("IdnaTestV2.utf8.json", 2_600)] {
        let text = fs::read_to_string(folder.join(file)).unwrap();
        let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
        let cases: Vec<_> = cases.iter().filter(|case| case.is_object()).collect();
        assert!(cases.len() >= least, "{file}: {} cases", cases.len());
        let mut sites = 0;
        for case in cases {
            let input = case["input"].as_str().unwrap();
            if input.contains(UNASSIGNED) {
                continue;
            }
            let expected = case["output"].as_str().and_then(|output| {
                let name = output.strip_suffix('.').unwrap_or(output);
                // We also refuse empty labels and long hosts (docs/draft-notes.md, rows 23 and 24).
                let refused = name.split('.').any(str::is_empty) || output.len() > Site::MAX_LENGTH;
                let domain = psl::domain_str(name).filter(|_| !refused)?;
                Some(format!("{domain}{}", &output[name.len()..]))
            });
            sites += usize::from(expected.is_some());
            assert_eq!(site(input), expected, "{file}: {input:?}");
        }
        // Many names in these files have a single label or an empty one, so they are not sites.
        assert!(sites > 10, "{file}: {sites} sites");
        println!("{file}: {sites} sites");
    }
}

/// Each structured field has the expected value, or is refused.
#[test]
fn structured_fields_are_parsed_as_the_working_group_does() {
    let Some(folder) = vectors("sfv") else { return };
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let cases: Vec<Value> = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        for case in cases {
            let lines: Vec<&str> = case["raw"]
                .as_array()
                .unwrap()
                .iter()
                .map(|line| line.as_str().unwrap())
                .collect();
            let raw = lines.join(", ");
            let parser = Parser::new(&raw);
            let parsed = match case["header_type"].as_str().unwrap() {
                "item" => parser.parse::<Item>().ok().map(|item| of_item(&item)),
                "list" => parser.parse::<List>().ok().map(|list| of_list(&list)),
                "dictionary" => parser
                    .parse::<Dictionary>()
                    .ok()
                    .map(|it| of_dictionary(&it)),
                other => panic!("{other}"),
            };
            count += 1;
            let name = format!("{}: {}", path.display(), case["name"]);
            match (&parsed, case["must_fail"] == true, case["can_fail"] == true) {
                (None, true, _) | (None, _, true) => {}
                (Some(got), false, _) => assert!(same(got, &case["expected"]), "{name}: {got}"),
                _ => panic!("{name}: {parsed:?}"),
            }
            // Our headers are dictionaries. Text that is not a dictionary is refused, whatever it
            // contains. A dictionary with one more key is still a dictionary.
            if case["header_type"] == "dictionary"
                && parsed.is_some() == (case["must_fail"] != true)
            {
                let separator = if raw.trim().is_empty() { "" } else { "," };
                let header = format!("{raw}{separator}histogram-index=7");
                let options = parse_save_impression(header.as_bytes());
                let index = options.ok().map(|options| options.histogram_index);
                assert_eq!(index, parsed.map(|_| 7), "{name}");
            }
        }
    }
    assert!(count > 1_400, "{count} cases");
}

fn of_bare(item: &BareItem) -> Value {
    let typed = |name: &str, value: Value| json!({"__type": name, "value": value});
    match item {
        BareItem::Boolean(value) => json!(value),
        BareItem::Integer(value) => json!(i64::from(*value)),
        BareItem::Decimal(value) => json!(f64::from(*value)),
        BareItem::String(value) => json!(value.as_str()),
        BareItem::Token(value) => typed("token", json!(value.as_str())),
        BareItem::ByteSequence(bytes) => typed("binary", json!(base32(bytes))),
        BareItem::Date(date) => typed("date", json!(i64::from(date.unix_seconds()))),
        BareItem::DisplayString(text) => typed("displaystring", json!(text)),
    }
}

fn of_parameters(parameters: &Parameters) -> Value {
    let pairs = parameters.iter();
    pairs
        .map(|(key, value)| json!([key.as_str(), of_bare(value)]))
        .collect()
}

fn of_item(item: &Item) -> Value {
    json!([of_bare(&item.bare_item), of_parameters(&item.params)])
}

fn of_inner(list: &InnerList) -> Value {
    let items: Vec<Value> = list.items.iter().map(of_item).collect();
    json!([items, of_parameters(&list.params)])
}

fn of_entry(entry: &ListEntry) -> Value {
    match entry {
        ListEntry::Item(item) => of_item(item),
        ListEntry::InnerList(list) => of_inner(list),
    }
}

fn of_list(list: &List) -> Value {
    list.iter().map(of_entry).collect()
}

fn of_dictionary(dictionary: &Dictionary) -> Value {
    let entries = dictionary.iter();
    entries
        .map(|(key, entry)| json!([key.as_str(), of_entry(entry)]))
        .collect()
}

/// Bytes in base32, as the vectors write them.
fn base32(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut text = String::new();
    for chunk in bytes.chunks(5) {
        let mut block = [0; 8];
        block[3..3 + chunk.len()].copy_from_slice(chunk);
        let block = u64::from_be_bytes(block);
        let digits = (chunk.len() * 8).div_ceil(5);
        for digit in 0..8 {
            let bits = usize::try_from(block >> (35 - 5 * digit) & 31).unwrap();
            text.push(if digit < digits {
                char::from(DIGITS[bits])
            } else {
                '='
            });
        }
    }
    text
}

/// Compares JSON values. 1 and 1.0 are equal.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        _ => a == b,
    }
}
