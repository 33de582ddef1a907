//! The way in which tables were understood: typed for programs, and in a few lines for people.

use serde::Serialize;

use crate::text::grouped;
use crate::workload::columns::Columns;
use crate::workload::time::{self, TimeForm};

/// The way in which tables were understood.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Understanding {
    /// The number of files.
    pub files: usize,
    /// The number of rows that are events.
    pub rows: u64,
    /// The ways in which files are laid out, each with the number of such files.
    pub layouts: Vec<FileLayout>,
    /// The times.
    pub times: TimesUnderstood,
    /// The kinds of rows.
    pub kinds: KindsUnderstood,
    /// The buckets.
    pub buckets: BucketsUnderstood,
    /// The values of conversions.
    pub values: ValuesUnderstood,
    /// The fields in which names, such as URLs, were replaced by the sites they stand for.
    pub sites_from_urls: Vec<&'static str>,
    /// The number of devices and rows of which the time goes back in a file.
    pub out_of_order: OutOfOrder,
}

/// The format of some files, and what their columns hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileLayout {
    /// The format and the compression.
    pub format: String,
    /// The number of files.
    pub files: usize,
    /// What is held, by default name, and the column that holds it.
    pub columns: Vec<(&'static str, String)>,
    /// True if the rows of these files are neither impressions nor conversions and were left out.
    pub left_out: bool,
}

/// The times, as they were understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TimesUnderstood {
    /// The forms that occur.
    pub forms: Vec<TimeForm>,
    /// True if some times have no zone, and were taken for UTC.
    pub zoneless: bool,
    /// The first and the last minute.
    pub minutes: Option<(u32, u32)>,
    /// Minute 0, in seconds since 1970-01-01T00:00Z. None if times do not say when they were.
    pub origin: Option<i64>,
    /// The length of an epoch in minutes.
    pub epoch_minutes: u32,
}

impl TimesUnderstood {
    /// A minute as a date and a time, if times say when they were.
    pub fn date(&self, minute: u32) -> Option<String> {
        Some(time::date(self.origin? + 60 * i64::from(minute)))
    }

    /// The day on which an epoch begins, if times say when they were.
    pub fn epoch_date(&self, epoch: u16) -> Option<String> {
        let begin = u32::from(epoch).checked_mul(self.epoch_minutes)?;
        let date = self.date(begin)?;
        Some(date.strip_suffix(" 00:00").unwrap_or(&date).to_owned())
    }
}

/// The kinds, as they were understood: words with their numbers of rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KindsUnderstood {
    /// The words for impressions. Empty if there is no column of kinds.
    pub impressions: Vec<(String, u64)>,
    /// The words for conversions. Empty if there is no column of kinds.
    pub conversions: Vec<(String, u64)>,
    /// The words of rows that were left out.
    pub left_out: Vec<(String, u64)>,
    /// True if some file has no column of kinds: its rows with an impression site are impressions.
    pub by_impression_site: bool,
}

/// The buckets, as they were understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BucketsUnderstood {
    /// The number of buckets.
    pub count: u16,
    /// The column. None if there is none.
    pub column: Option<String>,
    /// The values of the column by bucket, if they are not the numbers of buckets.
    pub names: Vec<String>,
}

/// The values, as they were understood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ValuesUnderstood {
    /// The column. None if there is none: then every value is 1.
    pub column: Option<String>,
    /// The unit.
    pub unit: Option<String>,
    /// True if decimals come after a comma.
    pub decimal_comma: bool,
    /// The least and the greatest value, in units.
    pub range: Option<(u32, u32)>,
    /// The number of values that are not multiples of the unit.
    pub rounded: u64,
    /// The number of values that were too small, and count as one unit.
    pub raised: u64,
}

/// The number of devices and rows of which the time goes back in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OutOfOrder {
    /// The number of devices.
    pub devices: u64,
    /// The number of rows that are earlier than the row of their device before them.
    pub rows: u64,
}

/// The most words and names that a line lists.
const LISTED: usize = 8;

fn list<T>(all: &[T], each: impl Fn(&T) -> String) -> String {
    let listed: Vec<String> = all.iter().take(LISTED).map(each).collect();
    match all.len().saturating_sub(LISTED) {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}

fn words(words: &[(String, u64)]) -> String {
    list(words, |(word, count)| {
        format!("{word} ({})", grouped(*count))
    })
}

impl Understanding {
    /// The lines for people, without line ends: files and columns, times, and kinds, buckets and
    /// values.
    pub fn lines(&self) -> [String; 3] {
        [self.about_files(), self.about_times(), self.about_events()]
    }

    fn about_files(&self) -> String {
        let layout = |layout: &FileLayout| {
            let files = match layout.files {
                1 => layout.format.clone(),
                files => format!("{files} × {}", layout.format),
            };
            let column = |(key, name): &(&str, String)| match *key == name {
                true => name.clone(),
                false => format!("{key}={name}"),
            };
            match layout.left_out {
                true => format!("{files}: neither impressions nor conversions, left out"),
                false => format!("{files}: {}", list(&layout.columns, column)),
            }
        };
        let layouts = self.layouts.iter().map(layout).collect::<Vec<_>>();
        let sites = match self.sites_from_urls.as_slice() {
            [] => String::new(),
            fields => format!("; sites of names in {}", fields.join(" and ")),
        };
        format!(
            "read {} rows of {}{sites}",
            grouped(self.rows),
            layouts.join("; ")
        )
    }

    fn about_times(&self) -> String {
        let times = &self.times;
        let forms = times.forms.iter().map(TimeForm::to_string);
        let forms = forms.collect::<Vec<_>>().join(" and ");
        let zone = if times.zoneless {
            ", without a zone: taken for UTC"
        } else {
            ""
        };
        let range = match times.minutes {
            None => String::new(),
            Some((first, last)) => match (times.date(first), times.date(last)) {
                (Some(first), Some(last)) => format!(", from {first} to {last} UTC"),
                _ => format!(
                    ", from minute {} to {}",
                    grouped(first.into()),
                    grouped(last.into())
                ),
            },
        };
        let length = match (times.epoch_minutes % 1440, times.epoch_minutes / 1440) {
            (0, 1) => "1 day".to_owned(),
            (0, days) => format!("{days} days"),
            _ => format!("{} minutes", times.epoch_minutes),
        };
        let origin = match times.date(0) {
            Some(origin) => {
                let origin = origin.strip_suffix(" 00:00").unwrap_or(&origin);
                format!("from {origin} UTC on")
            }
            None => "from time 0 or --time-origin on".to_owned(),
        };
        format!("times: {forms}{zone}{range}; epochs of {length}, counted {origin}")
    }

    fn about_events(&self) -> String {
        let kinds = &self.kinds;
        let mut text = String::new();
        if !kinds.impressions.is_empty() || !kinds.conversions.is_empty() {
            let words = |words: &[(String, u64)]| match words {
                [] => "none".to_owned(),
                some => self::words(some),
            };
            text = format!(
                "impressions: {}; conversions: {}; ",
                words(&kinds.impressions),
                words(&kinds.conversions)
            );
        }
        if kinds.by_impression_site {
            text += "rows with an impression site are impressions; ";
        }
        if !kinds.left_out.is_empty() {
            text += &format!("left out: {}; ", words(&kinds.left_out));
        }
        let buckets = &self.buckets;
        text += &match (&buckets.column, buckets.names.as_slice()) {
            (None, _) => "one bucket".to_owned(),
            (Some(column), []) => {
                format!("buckets: 0 to {} of `{column}`", buckets.count - 1)
            }
            (Some(column), names) => format!(
                "buckets: {} of `{column}` by frequency, {}",
                buckets.count,
                list(names, Clone::clone)
            ),
        };
        let values = &self.values;
        text += &match (&values.column, values.range) {
            (None, _) => "; every value is 1".to_owned(),
            (Some(column), range) => {
                let range = range.map_or(String::new(), |(least, most)| {
                    format!(" {} to {}", grouped(least.into()), grouped(most.into()))
                });
                let unit = match (&values.unit, values.decimal_comma) {
                    (Some(unit), true) => format!(" in units of {unit}, with a decimal comma"),
                    (Some(unit), false) => format!(" in units of {unit}"),
                    (None, _) => String::new(),
                };
                let raised = match values.raised {
                    0 => String::new(),
                    raised => format!(" ({} raised to 1)", grouped(raised)),
                };
                format!("; values:{range}{unit} of `{column}`{raised}")
            }
        };
        text
    }
}

/// The columns of a layout by default name.
pub(crate) fn named_columns(
    names: &[String],
    places: &[Vec<usize>; 8],
) -> Vec<(&'static str, String)> {
    let held = Columns::KEYS.into_iter().zip(places);
    let held = held.filter(|(_, places)| !places.is_empty());
    held.map(|(key, places)| {
        let of = places.iter().map(|place| names[*place].as_str());
        (key, of.collect::<Vec<_>>().join("/"))
    })
    .collect()
}
