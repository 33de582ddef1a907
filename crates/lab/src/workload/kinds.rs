//! Kinds of rows: the words for impressions and for conversions.

use std::collections::HashMap;
use std::fmt::Write as _;

use crate::workload::cells::{Cell, EMPTY, quoted};
use crate::workload::columns::word;

/// The words that always stand for impressions. A view may be one of an ad or of a product, and a
/// click one on an ad or in a shop, so neither is here or among conversions.
const IMPRESSIONS: [&str; 8] = [
    "impression",
    "i",
    "imp",
    "impressions",
    "ad_impression",
    "adimpression",
    "ad impression",
    "ad_view",
];

/// The words that always stand for conversions.
const CONVERSIONS: [&str; 9] = [
    "conversion",
    "c",
    "conv",
    "conversions",
    "purchase",
    "sale",
    "signup",
    "sign_up",
    "install",
];

/// What a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowRole {
    Impression,
    Conversion,
    /// Neither. Such a row is left out.
    Other,
}

/// The words for kinds, and how many rows had each.
#[derive(Debug, Clone)]
pub(crate) struct KindWords {
    words: Vec<(String, RowRole, u64)>,
    /// True if rows of other kinds are left out.
    leaves_out: bool,
    /// The number of rows that were left out, by kind.
    left_out: HashMap<String, u64>,
    buffer: String,
}

impl KindWords {
    /// The given words, or the usual ones if none are given for a kind. If words are given for both
    /// kinds, rows of other kinds are left out.
    pub(crate) fn new(impressions: &[String], conversions: &[String]) -> Result<Self, String> {
        let folded = |given: &[String]| -> Vec<String> {
            given
                .iter()
                .map(|word| word.trim().to_lowercase())
                .collect()
        };
        let (mut impression, mut conversion) = (folded(impressions), folded(conversions));
        if let Some(both) = impression.iter().find(|word| conversion.contains(word)) {
            return Err(format!(
                "{} cannot be the kind of both impressions and conversions",
                quoted(both)
            ));
        }
        let usual = |words: &[&str], others: &[String]| -> Vec<String> {
            let words = words.iter().map(|word| (*word).to_owned());
            words.filter(|word| !others.contains(word)).collect()
        };
        let leaves_out = !impression.is_empty() && !conversion.is_empty();
        if impression.is_empty() {
            impression = usual(&IMPRESSIONS, &conversion);
        }
        if conversion.is_empty() {
            conversion = usual(&CONVERSIONS, &impression);
        }
        let of = |words: Vec<String>, kind| words.into_iter().map(move |word| (word, kind, 0));
        Ok(Self {
            words: of(impression, RowRole::Impression)
                .chain(of(conversion, RowRole::Conversion))
                .collect(),
            leaves_out,
            left_out: HashMap::new(),
            buffer: String::new(),
        })
    }

    /// Puts the words that were seen first, so that they are found quickly.
    pub(crate) fn order(&mut self, seen: &KindTally) {
        let count = |word: &str| seen.counts.get(word).copied().unwrap_or(0);
        self.words
            .sort_by_key(|(word, _, _)| std::cmp::Reverse(count(word)));
    }

    /// The kind of a row. None if the word is unknown.
    pub(crate) fn kind(&mut self, cell: Cell<'_>) -> Result<Option<RowRole>, String> {
        let word = cell
            .name(&mut self.buffer)?
            .ok_or_else(|| EMPTY.to_owned())?;
        let mut words = self.words.iter_mut();
        let known = |it: &&mut (String, RowRole, u64)| same(&it.0, word);
        if let Some((_, kind, count)) = words.find(known) {
            *count += 1;
            return Ok(Some(*kind));
        }
        if !self.leaves_out {
            return Ok(None);
        }
        let room = self.left_out.len() < MAX_WORDS;
        if let Some(count) = self.left_out.get_mut(word) {
            *count += 1;
        } else {
            let word = if room { word } else { "…" };
            *self.left_out.entry(word.to_owned()).or_default() += 1;
        }
        Ok(Some(RowRole::Other))
    }

    /// The kind of a word, without counting it.
    pub(crate) fn known(&self, word: &str) -> Option<RowRole> {
        let mut words = self.words.iter();
        let found = words.find(|(known, _, _)| same(known, word));
        match found {
            Some((_, kind, _)) => Some(*kind),
            None => self.leaves_out.then_some(RowRole::Other),
        }
    }

    /// The words of a kind that occurred, with the number of rows, most frequent first.
    pub(crate) fn counted(&self, kind: RowRole) -> Vec<(String, u64)> {
        let of_kind = |(word, of, count): &(String, RowRole, u64)| {
            (*of == kind && *count > 0).then(|| (word.clone(), *count))
        };
        let mut counted: Vec<_> = match kind {
            RowRole::Other => self.left_out.clone().into_iter().collect(),
            _ => self.words.iter().filter_map(of_kind).collect(),
        };
        counted.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        counted
    }

    /// The message if a table has unknown words: what they are, and the flags that would do.
    pub(crate) fn refuse(&self, seen: &KindTally) -> Option<String> {
        let kinds = || seen.sorted().into_iter();
        let unknown: Vec<_> = kinds()
            .filter(|(word, _)| self.known(word).is_none())
            .collect();
        if unknown.is_empty() {
            return None;
        }
        let list = |words: &[(String, u64)]| {
            let mut text = String::new();
            for (at, (word, count)) in words.iter().take(SHOWN).enumerate() {
                let comma = if at > 0 { ", " } else { "" };
                let word = quoted(word);
                let word = word.trim_matches('"');
                let _ = write!(text, "{comma}{word} ({count})");
            }
            if words.len() > SHOWN {
                let _ = write!(text, " and {} more", words.len() - SHOWN);
            }
            text
        };
        let all: Vec<_> = kinds().collect();
        let flags = self.flags(&all);
        Some(format!(
            "the kinds of rows are {}; say which of them are impressions and which are \
             conversions, for example {flags}, or --columns kind=NAME for another column",
            list(&all)
        ))
    }

    /// Flags under which these words are known. Words that sound like views of ads are proposed as
    /// impressions, and all others as conversions. If none sounds so, the most frequent one is
    /// proposed: there are more impressions than conversions.
    fn flags(&self, words: &[(String, u64)]) -> String {
        let mut impressions = Vec::new();
        let mut conversions = Vec::new();
        for (word, _) in words.iter().take(SHOWN) {
            match self.known(word) {
                Some(RowRole::Impression) => impressions.push(word.as_str()),
                Some(RowRole::Conversion) => conversions.push(word.as_str()),
                Some(RowRole::Other) => {}
                None => {
                    let sounds = ["imp", "view", "show", "display", "serve", "exposure"];
                    match sounds.iter().any(|sound| word.contains(sound)) {
                        true => impressions.push(word),
                        false => conversions.push(word),
                    }
                }
            }
        }
        if impressions.is_empty() && conversions.len() > 1 {
            impressions.push(conversions.remove(0));
        }
        let flag = |name: &str, words: &[&str]| match words {
            [] => String::new(),
            words => format!("--{name}-kind {}", word(&words.join(","))),
        };
        let flags = [
            flag("impression", &impressions),
            flag("conversion", &conversions),
        ];
        flags.join(" ").trim().to_owned()
    }
}

fn same(known: &str, word: &str) -> bool {
    known.eq_ignore_ascii_case(word) || (!word.is_ascii() && known == word.trim().to_lowercase())
}

/// The most words that a message lists.
const SHOWN: usize = 8;

/// The most words that are counted. A column with more does not hold kinds.
const MAX_WORDS: usize = 1000;

/// Counts of the words in a column.
#[derive(Debug, Clone, Default)]
pub(crate) struct KindTally {
    /// In lower case.
    counts: HashMap<String, u64>,
}

impl KindTally {
    pub(crate) fn add(&mut self, cell: Cell<'_>) {
        let mut buffer = String::new();
        let Ok(Some(word)) = cell.name(&mut buffer) else {
            return;
        };
        let word = word.trim().to_lowercase();
        if let Some(count) = self.counts.get_mut(&word) {
            *count += 1;
        } else if self.counts.len() < MAX_WORDS {
            self.counts.insert(word, 1);
        }
    }

    /// Words with their counts, most frequent first, equal ones by name.
    fn sorted(&self) -> Vec<(String, u64)> {
        let mut words: Vec<_> = self.counts.clone().into_iter().collect();
        words.sort_by(|one, other| (other.1, &one.0).cmp(&(one.1, &other.0)));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(words: &str) -> Vec<String> {
        words.split_terminator(',').map(str::to_owned).collect()
    }

    fn tally(words: &[(&str, u64)]) -> KindTally {
        let mut tally = KindTally::default();
        for (word, count) in words {
            for _ in 0..*count {
                tally.add(Cell::Text(word));
            }
        }
        tally
    }

    #[test]
    fn words_are_known_or_proposed() {
        let usual = KindWords::new(&[], &[]).unwrap();
        assert_eq!(
            usual.refuse(&tally(&[("Impression", 3), ("PURCHASE", 1)])),
            None
        );
        let seen = tally(&[("view", 3), ("purchase", 2), ("click", 2), ("signup", 1)]);
        let refused = usual.refuse(&seen).unwrap();
        assert_eq!(
            refused,
            "the kinds of rows are view (3), click (2), purchase (2), signup (1); say which of \
             them are impressions and which are conversions, for example --impression-kind view \
             --conversion-kind click,purchase,signup, or --columns kind=NAME for another column"
        );
        let mut named = KindWords::new(&given("view"), &given("click,purchase,signup")).unwrap();
        assert_eq!(named.refuse(&seen), None);
        assert_eq!(
            named.kind(Cell::Text("View")),
            Ok(Some(RowRole::Impression))
        );
        assert_eq!(named.kind(Cell::Text("scroll")), Ok(Some(RowRole::Other)));
        assert_eq!(named.counted(RowRole::Other), [("scroll".to_owned(), 1)]);
        // With one flag, the usual words hold for the other kind.
        let mut one = KindWords::new(&given("view"), &[]).unwrap();
        assert_eq!(
            one.kind(Cell::Text("purchase")),
            Ok(Some(RowRole::Conversion))
        );
        assert_eq!(one.kind(Cell::Text("click")), Ok(None));
        assert_eq!(one.kind(Cell::Nothing), Err(EMPTY.to_owned()));
        // A usual word can be given another meaning.
        let mut other = KindWords::new(&[], &given("imp")).unwrap();
        assert_eq!(other.kind(Cell::Text("imp")), Ok(Some(RowRole::Conversion)));
        assert!(KindWords::new(&given("a"), &given("A")).is_err());
        let numbers = usual.refuse(&tally(&[("0", 9), ("1", 2)])).unwrap();
        assert!(
            numbers.contains("for example --impression-kind 0 --conversion-kind 1,"),
            "{numbers}"
        );
    }
}
