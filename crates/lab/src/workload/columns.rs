//! The columns of tables: which column of a file holds what, by its name.

use std::str::FromStr;

use thiserror::Error;

use crate::workload::gather::Field;

/// The columns that are named explicitly. The others are found by their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// By field. An empty name stands for no column.
    given: [Option<String>; 8],
}

impl Columns {
    /// The default names of the columns. A column with such a name is always taken.
    pub const KEYS: [&str; 8] = [
        "device",
        "time",
        "conversion_site",
        "impression_site",
        "bucket",
        "kind",
        "value",
        "order",
    ];

    /// The name that stands for no column.
    pub const NONE: &str = "-";

    /// Sets the name of a column, such as `device=user_id`. `value=-` says that no column holds
    /// values.
    ///
    /// # Errors
    /// If the column is unknown, or the name is missing.
    pub fn set(&mut self, assignment: &str) -> Result<(), ColumnsError> {
        let named = assignment
            .split_once('=')
            .filter(|(_, name)| !name.is_empty());
        let (key, name) = named.ok_or_else(|| ColumnsError::NoName(assignment.to_owned()))?;
        let at = Self::KEYS.iter().position(|known| *known == key);
        let at = at.ok_or_else(|| ColumnsError::Unknown(key.to_owned()))?;
        self.given[at] = Some(match name {
            Self::NONE => String::new(),
            name => name.to_owned(),
        });
        Ok(())
    }

    /// The name that was set for a column, by its default name.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = Self::KEYS.iter().position(|known| *known == key)?;
        self.given[at].as_deref()
    }

    /// The names that were set, of columns that exist.
    pub(crate) fn given(&self) -> impl Iterator<Item = (Field, &str)> {
        let given = Field::ALL.into_iter().zip(&self.given);
        let given = given.filter_map(|(field, name)| Some((field, name.as_deref()?)));
        given.filter(|(_, name)| !name.is_empty())
    }

    pub(crate) fn set_bucket(&mut self, name: &str) {
        self.given[Field::Bucket as usize] = Some(name.to_owned());
    }
}

/// Parses a list with commas, such as `device=user_id,time=ts`.
impl FromStr for Columns {
    type Err = ColumnsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut columns = Self::default();
        for assignment in text.split(',') {
            columns.set(assignment)?;
        }
        Ok(columns)
    }
}

/// The reason why names of columns cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ColumnsError {
    /// The column is unknown.
    #[error("unknown column `{0}`; use one of: {keys}", keys = Columns::KEYS.join(", "))]
    Unknown(String),
    /// The name of the column is missing.
    #[error("`{0}` is not of the form COLUMN=NAME, such as device=user_id")]
    NoName(String),
}

impl Field {
    /// Every field, in the order of [`Columns::KEYS`].
    pub(crate) const ALL: [Self; 8] = [
        Self::Device,
        Self::Time,
        Self::ConversionSite,
        Self::ImpressionSite,
        Self::Bucket,
        Self::Kind,
        Self::Value,
        Self::Order,
    ];

    /// The default name of the column.
    pub(crate) const fn key(self) -> &'static str {
        Columns::KEYS[self as usize]
    }

    /// Other names of the column, in letters and digits alone. A name of the first list that has
    /// one in the file is taken.
    const fn synonyms(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Device => &[&[
                "deviceid",
                "userid",
                "user",
                "uid",
                "did",
                "visitor",
                "visitorid",
                "visitoruid",
                "clientid",
                "cookie",
                "cookieid",
                "browserid",
                "maid",
                "idfa",
                "gaid",
                "advertisingid",
                "anonymousid",
                "customerid",
                "personid",
                "fullvisitorid",
                "userpseudoid",
            ]],
            Self::Time => &[
                &[
                    "timestamp",
                    "ts",
                    "eventtime",
                    "eventtimestamp",
                    "datetime",
                    "eventdatetime",
                    "timeutc",
                    "utctime",
                    "timestamputc",
                    "timems",
                    "timestampms",
                    "tsms",
                    "unixtime",
                    "unixtimestamp",
                    "epochms",
                    "epochseconds",
                    "occurredat",
                    "createdat",
                    "happenedat",
                    "loggedat",
                    "servertime",
                    "clienttime",
                ],
                &["date", "day", "eventdate"],
            ],
            Self::ConversionSite => &[&[
                "conversionsite",
                "conversiondomain",
                "advertiser",
                "advertiserid",
                "advertisersite",
                "advertiserdomain",
                "destination",
                "destinationsite",
                "destinationdomain",
                "webdestination",
                "attributiondestination",
                "merchant",
                "merchantid",
                "merchantsite",
                "shop",
                "shopdomain",
                "brand",
                "brandsite",
            ]],
            Self::ImpressionSite => &[&[
                "impressionsite",
                "impressiondomain",
                "publisher",
                "publisherid",
                "publishersite",
                "publisherdomain",
                "sourcesite",
                "sourcedomain",
                "sourceorigin",
                "shownon",
                "inventorysite",
            ]],
            Self::Kind => &[&[
                "kind",
                "event",
                "eventtype",
                "eventkind",
                "eventname",
                "type",
                "action",
            ]],
            Self::Value => &[&[
                "conversionvalue",
                "revenue",
                "amount",
                "price",
                "purchasevalue",
                "ordervalue",
                "saleamount",
                "salevalue",
                "saleprice",
                "valueusd",
                "valueeur",
                "turnover",
            ]],
            Self::Bucket | Self::Order => &[],
        }
    }

    /// Parts of names that make a column likely enough to be proposed.
    const fn hints(self) -> &'static [&'static str] {
        match self {
            Self::Device => &[
                "device", "user", "visitor", "client", "cookie", "browser", "person", "customer",
                "uid", "who", "id",
            ],
            Self::Time => &["time", "stamp", "date", "when", "day", "ts"],
            Self::ConversionSite => &[
                "convers", "advert", "destin", "merchant", "shop", "brand", "landing", "store",
                "campaign", "site", "domain", "host", "url",
            ],
            Self::ImpressionSite => &[
                "impress",
                "publish",
                "shown",
                "source",
                "refer",
                "inventory",
                "placement",
                "site",
                "domain",
                "host",
                "url",
            ],
            Self::Kind => &["kind", "type", "event", "action"],
            Self::Value => &["value", "revenue", "amount", "price", "total"],
            Self::Bucket | Self::Order => &[],
        }
    }
}

/// The columns of a file: for each field the indices of the columns that hold it. Several columns
/// hold one field only in files whose rows have columns of their own, such as JSON.
pub(crate) type Places = [Vec<usize>; 8];

/// Finds the columns among the names in a file. Fields in `preset` are held by several columns,
/// unless one was named.
///
/// # Errors
/// The reason, in words, if it cannot be told which column holds what. A column that was named and
/// is missing is an error if every file needs it. Other files may have it.
pub(crate) fn places(
    names: &[String],
    columns: &Columns,
    preset: &[(Field, Vec<usize>)],
) -> Result<Places, String> {
    let mut places: Places = Default::default();
    let mut taken = vec![false; names.len()];
    let mut open = Vec::new();
    for (at, field) in Field::ALL.into_iter().enumerate() {
        let given = columns.given[at].as_deref();
        let name = given.unwrap_or(field.key());
        if name.is_empty() {
            continue;
        }
        if let Some((_, several)) = preset
            .iter()
            .find(|(of, _)| *of == field && given.is_none())
        {
            several.iter().for_each(|number| taken[*number] = true);
            places[at].clone_from(several);
            continue;
        }
        let mut named = (0..names.len()).filter(|number| names[*number] == name);
        match (named.next(), named.count()) {
            (Some(number), 0) => {
                places[at].push(number);
                taken[number] = true;
            }
            (Some(_), more) => return Err(several(name, more + 1)),
            (None, _) if given.is_some() && at < NEEDED => {
                return Err(missing(name, &names.join(", ")));
            }
            (None, _) if given.is_some() => {}
            (None, _) => open.push((at, field)),
        }
    }
    let plain: Vec<String> = names.iter().map(|name| plain(name)).collect();
    let mut unclear = Vec::new();
    for (at, field) in open {
        let candidates = field.synonyms().iter().find_map(|synonyms| {
            let named =
                |number: &usize| !taken[*number] && synonyms.contains(&plain[*number].as_str());
            let found: Vec<usize> = (0..names.len()).filter(named).collect();
            (!found.is_empty()).then_some(found)
        });
        match candidates.as_deref() {
            Some([only]) => {
                places[at].push(*only);
                taken[*only] = true;
            }
            Some(several) => unclear.push((field, several.to_vec())),
            None if at < NEEDED => unclear.push((field, Vec::new())),
            None => {}
        }
    }
    match unclear.is_empty() {
        true => Ok(places),
        false => Err(propose(names, &plain, &mut taken, &unclear)),
    }
}

/// The number of columns that every file has: the device, the time and the conversion site.
const NEEDED: usize = 3;

/// The message for columns that cannot be told apart or found.
fn propose(
    names: &[String],
    plain: &[String],
    taken: &mut [bool],
    unclear: &[(Field, Vec<usize>)],
) -> String {
    let mut flags = Vec::new();
    let mut reasons = Vec::new();
    for (field, candidates) in unclear {
        let guess = match candidates.first() {
            Some(first) => Some(*first),
            None => guess(*field, plain, taken),
        };
        if let Some(guess) = guess {
            taken[guess] = true;
        }
        let name = guess.map_or("NAME", |guess| names[guess].as_str());
        flags.push(format!("{}={name}", field.key()));
        reasons.push(match candidates.len() {
            0 => format!("no column is named {}", field.key()),
            _ => {
                let of = candidates.iter().map(|at| names[*at].as_str());
                let of = of.collect::<Vec<_>>().join(" or ");
                format!("{} could be {of}", field.key())
            }
        });
    }
    format!(
        "{}; give --columns {}; the columns are: {}",
        reasons.join(", "),
        word(&flags.join(",")),
        shortened(&names.join(", "))
    )
}

/// The columns of the conversion site in the JSON of the Attribution Reporting simulation library:
/// sources name where their ad leads, on the web or in an app, and triggers where they are.
pub(crate) fn simulation_library(names: &[String]) -> Vec<(Field, Vec<usize>)> {
    let has = |name: &str| names.iter().position(|it| it == name);
    let source = has("web_destination").or(has("destination").and(has("source_event_id")));
    if source.or(has("attribution_destination")).is_none() {
        return Vec::new();
    }
    let known = ["web_destination", "destination", "attribution_destination"];
    vec![(
        Field::ConversionSite,
        known.into_iter().filter_map(has).collect(),
    )]
}

/// Text as one word of a command line, with quotes if it needs them.
pub(crate) fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "_-.,=/:@%+".contains(letter);
    match text.chars().all(is_plain) && !text.is_empty() {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// The message if no file has a column of impression sites.
pub(crate) fn propose_impression_site(names: &[String], places: &Places) -> String {
    let plain: Vec<String> = names.iter().map(|name| self::plain(name)).collect();
    let mut taken = vec![false; names.len()];
    for place in places.iter().flatten() {
        taken[*place] = true;
    }
    propose(
        names,
        &plain,
        &mut taken,
        &[(Field::ImpressionSite, Vec::new())],
    )
}

/// The column that is most likely to hold a field, by its name.
fn guess(field: Field, plain: &[String], taken: &[bool]) -> Option<usize> {
    field.hints().iter().find_map(|hint| {
        let hinted = |number: &usize| !taken[*number] && plain[*number].contains(hint);
        (0..plain.len()).find(hinted)
    })
}

/// A name in lower case, without anything but letters and digits.
fn plain(name: &str) -> String {
    let letters = name.chars().filter(|letter| letter.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// True if a name says that a column holds dates.
pub(crate) fn is_dated(name: &str) -> bool {
    let name = plain(name);
    name.contains("date") || name.contains("day")
}

/// The message for a column name that occurs more than once.
pub(crate) fn several(name: &str, count: usize) -> String {
    format!("{count} columns are named `{name}`; expected one")
}

/// The message for a missing column. It lists the columns that were found, up to 200 characters.
pub(crate) fn missing(name: &str, found: &str) -> String {
    let found = shortened(found);
    format!("there is no column `{name}`; the columns are: {found}")
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str], columns: &str) -> Result<Vec<String>, String> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let columns = match columns {
            "" => Columns::default(),
            columns => columns.parse().unwrap(),
        };
        let places = places(&names, &columns, &[])?;
        let named = Field::ALL.into_iter().zip(&places);
        let named = named.filter(|(_, places)| !places.is_empty());
        Ok(named
            .map(|(field, places)| format!("{}={}", field.key(), names[places[0]]))
            .collect())
    }

    #[test]
    fn columns_are_found_by_their_names() {
        assert_eq!(
            found(
                &[
                    "User ID",
                    "event_time",
                    "Advertiser",
                    "publisher",
                    "event",
                    "Revenue",
                    "x"
                ],
                ""
            ),
            Ok([
                "device=User ID",
                "time=event_time",
                "conversion_site=Advertiser",
                "impression_site=publisher",
                "kind=event",
                "value=Revenue",
            ]
            .map(str::to_owned)
            .to_vec())
        );
        // A time is finer than a date.
        let names = ["uid", "date", "ts", "destination"];
        let expected = ["device=uid", "time=ts", "conversion_site=destination"];
        assert_eq!(found(&names, ""), Ok(expected.map(str::to_owned).to_vec()));
        // What is named explicitly wins, and is taken.
        let names = ["uid", "device", "type", "time", "conversion_site"];
        let expected = ["device=uid", "time=time", "conversion_site=conversion_site"];
        assert_eq!(
            found(&names, "device=uid,kind=-"),
            Ok(expected.map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn unclear_columns_are_proposed() {
        assert_eq!(
            found(&["device_id", "user_id", "ts", "advertiser"], ""),
            Err(
                "device could be device_id or user_id; give --columns device=device_id; the \
                 columns are: device_id, user_id, ts, advertiser"
                    .to_owned()
            )
        );
        let names = ["the visitor", "when", "landing page", "a"];
        let refused = found(&names, "").unwrap_err();
        assert_eq!(
            refused,
            "no column is named device, no column is named time, no column is named \
             conversion_site; give --columns 'device=the visitor,time=when,conversion_site=landing \
             page'; the columns are: the visitor, when, landing page, a"
        );
        assert!(
            found(
                &names,
                "device=the visitor,time=when,conversion_site=landing page"
            )
            .is_ok()
        );
        assert_eq!(
            found(&["q", "w"], "").unwrap_err(),
            "no column is named device, no column is named time, no column is named \
             conversion_site; give --columns device=NAME,time=NAME,conversion_site=NAME; the \
             columns are: q, w"
        );
    }
}
