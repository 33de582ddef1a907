//! Times of tables: what a column of times means, told by looking at its values.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::{Offset, TimeZone};
use serde::Serialize;
use thiserror::Error;

use crate::workload::cells::{Cell, EMPTY, quoted};

/// A unit of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum TimeUnit {
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
    /// Minutes.
    #[default]
    Minutes,
    /// Hours.
    Hours,
    /// Days.
    Days,
}

impl TimeUnit {
    /// Every unit.
    pub const ALL: [Self; 7] = [
        Self::Nanoseconds,
        Self::Microseconds,
        Self::Milliseconds,
        Self::Seconds,
        Self::Minutes,
        Self::Hours,
        Self::Days,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nanoseconds => "nanoseconds",
            Self::Microseconds => "microseconds",
            Self::Milliseconds => "milliseconds",
            Self::Seconds => "seconds",
            Self::Minutes => "minutes",
            Self::Hours => "hours",
            Self::Days => "days",
        }
    }

    const fn short(self) -> &'static str {
        match self {
            Self::Nanoseconds => "ns",
            Self::Microseconds => "us",
            Self::Milliseconds => "ms",
            Self::Seconds => "s",
            Self::Minutes => "min",
            Self::Hours => "h",
            Self::Days => "d",
        }
    }

    const fn nanoseconds(self) -> i128 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => SECOND,
            Self::Minutes => MINUTE,
            Self::Hours => 60 * MINUTE,
            Self::Days => 1440 * MINUTE,
        }
    }
}

const SECOND: i128 = 1_000_000_000;

/// A minute in nanoseconds, the finest unit that a file can have.
const MINUTE: i128 = 60 * SECOND;

impl FromStr for TimeUnit {
    type Err = UnknownTimeUnit;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let mut units = Self::ALL.into_iter();
        let unit = units.find(|unit| unit.name() == name || unit.short() == name);
        unit.ok_or_else(|| UnknownTimeUnit(name.to_owned()))
    }
}

/// The unit of time is unknown.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "unknown unit of time `{0}`; use one of: {names}",
    names = TimeUnit::ALL.map(TimeUnit::name).join(", ")
)]
pub struct UnknownTimeUnit(pub String);

/// The time at which minute 0 lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOrigin {
    /// A number in the unit of the times.
    Number(i64),
    /// A moment, in seconds since 1970-01-01T00:00Z.
    Moment(i64),
}

impl From<i64> for TimeOrigin {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

/// Parses a whole number, or a date or time as in ISO 8601.
impl FromStr for TimeOrigin {
    type Err = NoTimeOrigin;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        let moment = iso(text).ok_or_else(|| NoTimeOrigin(text.to_owned()))?;
        let seconds = i64::try_from(moment.div_euclid(SECOND));
        seconds
            .map(Self::Moment)
            .map_err(|_| NoTimeOrigin(text.to_owned()))
    }
}

/// The text is not the origin of times.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is neither a whole number nor a date, such as 2026-01-31")]
pub struct NoTimeOrigin(pub String);

/// The way in which the times of a file are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", tag = "form", content = "unit")]
pub enum TimeForm {
    /// Numbers that are counted from an origin of their own.
    Counted(TimeUnit),
    /// Numbers that are counted from 1970-01-01T00:00Z.
    Unix(TimeUnit),
    /// Dates and times in text, as in ISO 8601 and RFC 3339. Without a zone they are in UTC.
    Text,
    /// Dates as numbers, such as 20260131.
    DateNumbers,
    /// The timestamps or dates of a Parquet file.
    Timestamps,
}

impl TimeForm {
    /// True if the times say when they were, and not only how long after others.
    pub const fn is_absolute(self) -> bool {
        !matches!(self, Self::Counted(_))
    }

    /// An origin in seconds since 1970-01-01T00:00Z. If it is a number, it is in this unit, or in
    /// the unit of the times, or in minutes.
    pub(crate) fn seconds(self, time_origin: TimeOrigin, unit: Option<TimeUnit>) -> i64 {
        let unit = unit.unwrap_or(self.unit());
        let seconds = origin(Some(time_origin), unit).div_euclid(SECOND);
        i64::try_from(seconds).unwrap_or(i64::MAX)
    }

    const fn unit(self) -> TimeUnit {
        match self {
            Self::Counted(unit) | Self::Unix(unit) => unit,
            Self::Text | Self::DateNumbers | Self::Timestamps => TimeUnit::Minutes,
        }
    }
}

impl fmt::Display for TimeForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted(unit) => write!(f, "{}", unit.name()),
            Self::Unix(unit) => write!(f, "Unix {}", unit.name()),
            Self::Text => f.write_str("ISO 8601"),
            Self::DateNumbers => f.write_str("dates as numbers"),
            Self::Timestamps => f.write_str("Parquet timestamps"),
        }
    }
}

/// Counts of the forms that values of a column can have.
#[derive(Debug, Clone, Default)]
pub(crate) struct TimeTally {
    total: u64,
    /// By unit: Unix times in seconds, milliseconds, microseconds and nanoseconds.
    unix: [u64; 4],
    text: u64,
    date_numbers: u64,
    zoneless: u64,
    /// A value that is none of these.
    pub(crate) odd: Option<String>,
}

const UNIX: [TimeUnit; 4] = [
    TimeUnit::Seconds,
    TimeUnit::Milliseconds,
    TimeUnit::Microseconds,
    TimeUnit::Nanoseconds,
];

/// The smallest Unix times that are taken for such: 2001 in seconds, 1973 in the finer units. Each
/// bound is that of the next coarser unit in the year 5138, so a number can have one unit only.
const FROM: [i128; 5] = [
    1_000_000_000,
    100_000_000_000,
    100_000_000_000_000,
    100_000_000_000_000_000,
    i128::MAX,
];

fn unix_unit(number: i128) -> Option<usize> {
    let begins = FROM.iter().filter(|from| number >= **from).count();
    begins.checked_sub(1).filter(|at| *at < UNIX.len())
}

impl TimeTally {
    /// Counts a value. `dated` is true if the column's name says that it holds dates.
    pub(crate) fn add(&mut self, cell: Cell<'_>, dated: bool) {
        let number = match cell {
            Cell::Nothing => return,
            Cell::Number(number) => Some(number),
            #[expect(clippy::cast_possible_truncation, reason = "only its size matters")]
            Cell::Fraction(number) => Some(number as i128),
            Cell::Text(text) => decimal(text).map(|(number, _)| i128::from(number)),
        };
        self.total += 1;
        match (number, cell) {
            (Some(number), _) if dated && date_number(number).is_some() => self.date_numbers += 1,
            (Some(number), _) => {
                if let Some(unit) = unix_unit(number) {
                    self.unix[unit] += 1;
                }
            }
            (None, Cell::Text(text)) => match iso(text) {
                Some(_) => {
                    self.text += 1;
                    self.zoneless += u64::from(!has_zone(text));
                }
                None => self.odd = self.odd.take().or_else(|| Some(quoted(text))),
            },
            (None, _) => {}
        }
    }

    /// The form of nine values out of ten. Without such a form, numbers are minutes.
    pub(crate) fn form(&self) -> TimeForm {
        let most = |count: u64| count > 0 && count * 10 >= self.total * 9;
        if let Some(at) = self.unix.iter().position(|count| most(*count)) {
            return TimeForm::Unix(UNIX[at]);
        }
        if most(self.date_numbers) {
            return TimeForm::DateNumbers;
        }
        match most(self.text) {
            true => TimeForm::Text,
            false => TimeForm::Counted(TimeUnit::Minutes),
        }
    }

    /// True if times are written without a zone.
    pub(crate) fn zoneless(&self) -> bool {
        self.zoneless > 0
    }
}

/// Turns cells into minutes and epochs.
#[derive(Debug, Clone)]
pub(crate) struct Clock {
    form: TimeForm,
    /// The unit of numbers, in nanoseconds.
    tick: i128,
    /// The time that is minute 0, in nanoseconds.
    origin: i128,
    time_origin: Option<TimeOrigin>,
    epoch_minutes: u32,
    /// The text that was parsed last, and its nanoseconds. The next one is often the same.
    last: (String, i128),
}

impl Clock {
    /// `tick` is the unit of a Parquet column of timestamps.
    pub(crate) fn new(
        form: TimeForm,
        tick: Option<i128>,
        time_origin: Option<TimeOrigin>,
        epoch_minutes: u32,
    ) -> Self {
        let unit = form.unit();
        Self {
            form,
            tick: tick.unwrap_or(unit.nanoseconds()),
            origin: origin(time_origin, unit),
            time_origin,
            epoch_minutes,
            last: (String::new(), 0),
        }
    }

    /// The unit of numbers changes with each Parquet file that has timestamps.
    pub(crate) fn set_tick(&mut self, tick: i128) {
        self.tick = tick;
    }

    /// An origin in a unit of its own, for columns whose values have none.
    pub(crate) fn set_origin_unit(&mut self, unit: TimeUnit) {
        self.origin = origin(self.time_origin, unit);
    }

    /// The minute and the epoch of a time.
    pub(crate) fn time(&mut self, cell: Cell<'_>) -> Result<(u32, u16), String> {
        let at = self.nanoseconds(cell)? - self.origin;
        if at < 0 {
            return Err(self.before(cell));
        }
        let minute = at / MINUTE;
        let minutes = u32::try_from(minute).map_err(|_| {
            let last = u32::MAX;
            let time = shown(cell);
            format!(
                "{time} is minute {minute}, and the last possible one is {last}; set --time-unit \
                 or --time-origin"
            )
        })?;
        let epoch = minutes / self.epoch_minutes;
        let epoch = u16::try_from(epoch).map_err(|_| {
            let last = u16::MAX;
            let time = shown(cell);
            format!(
                "{time} is in epoch {epoch}, and the last possible one is {last}; set --time-unit \
                 or --time-origin"
            )
        })?;
        Ok((minutes, epoch))
    }

    fn before(&self, cell: Cell<'_>) -> String {
        let time = shown(cell);
        match (self.time_origin, self.form) {
            (Some(TimeOrigin::Number(origin)), _) => {
                format!("{time} is before --time-origin {origin}")
            }
            (Some(TimeOrigin::Moment(moment)), _) => {
                let origin = date(moment);
                format!("{time} is before --time-origin {origin}")
            }
            (None, TimeForm::Counted(_)) => {
                format!("{time} is negative; set --time-origin to the earliest time")
            }
            (None, _) => {
                format!("{time} is before 1970-01-01; set --time-origin to the earliest time")
            }
        }
    }

    fn nanoseconds(&mut self, cell: Cell<'_>) -> Result<i128, String> {
        match (self.form, cell) {
            (_, Cell::Nothing) => Err(EMPTY.to_owned()),
            (TimeForm::Text, Cell::Text(text)) => {
                if text != self.last.0 {
                    let found = iso(text).ok_or_else(|| {
                        format!(
                            "{} is not a date or time as in ISO 8601, such as \
                             2026-01-31T23:59:00Z",
                            quoted(text)
                        )
                    })?;
                    self.last.1 = found;
                    text.clone_into(&mut self.last.0);
                }
                Ok(self.last.1)
            }
            (TimeForm::Unix(_), Cell::Text(text)) => {
                let (whole, fraction) = decimal(text).ok_or_else(|| match cell.number().err() {
                    Some(what) => what,
                    None => format!("{} is not a number", quoted(text)),
                })?;
                // Nine decimals are enough for the finest unit there is.
                Ok(i128::from(whole) * self.tick + self.tick * i128::from(fraction) / SECOND)
            }
            #[expect(clippy::cast_possible_truncation, reason = "a time of some year")]
            #[expect(clippy::cast_precision_loss, reason = "the tick is at most a minute")]
            (TimeForm::Unix(_), Cell::Fraction(number)) if number.abs() < 1e19 => {
                Ok((number * self.tick as f64) as i128)
            }
            (TimeForm::DateNumbers, cell) => {
                let number = cell.number()?.ok_or_else(|| EMPTY.to_owned())?;
                date_number(number)
                    .ok_or_else(|| format!("{number} is not a date, such as 20260131"))
            }
            (_, cell) => {
                let number = cell.number().map_err(|what| match cell {
                    Cell::Text(text)
                        if text.contains(['-', '/', ':']) && !text.starts_with('-') =>
                    {
                        format!("{what}, and not a time as in ISO 8601, such as 2026-01-31T23:59Z")
                    }
                    _ => what,
                })?;
                Ok(number.ok_or_else(|| EMPTY.to_owned())? * self.tick)
            }
        }
    }
}

fn origin(origin: Option<TimeOrigin>, unit: TimeUnit) -> i128 {
    match origin {
        None => 0,
        Some(TimeOrigin::Number(number)) => i128::from(number) * unit.nanoseconds(),
        Some(TimeOrigin::Moment(moment)) => i128::from(moment) * SECOND,
    }
}

fn shown(cell: Cell<'_>) -> String {
    match cell {
        Cell::Nothing => String::new(),
        Cell::Number(number) => number.to_string(),
        Cell::Fraction(number) => number.to_string(),
        Cell::Text(text) => match text.parse::<i64>() {
            Ok(number) => number.to_string(),
            Err(_) => quoted(text).trim_matches('"').to_owned(),
        },
    }
}

/// A number with or without decimals: the whole part, and nine decimals. None if it is negative and
/// has decimals.
fn decimal(text: &str) -> Option<(i64, u32)> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let number: i64 = whole.parse().ok()?;
    if !decimals.bytes().all(|digit| digit.is_ascii_digit()) || (text.ends_with('.')) {
        return None;
    }
    let digits = decimals.get(..decimals.len().min(9))?;
    let fraction: u32 = format!("{digits:0<9}").parse().ok()?;
    (fraction == 0 || number >= 0).then_some((number, fraction))
}

static PARSER: DateTimeParser = DateTimeParser::new();

/// The nanoseconds since 1970-01-01T00:00Z of a date or time as in ISO 8601 and RFC 3339, also with
/// a blank instead of T, and with `UTC` instead of Z. Without a zone it is in UTC.
fn iso(text: &str) -> Option<i128> {
    // What jiff takes for a date may also be a number.
    if text.get(4..5).is_none_or(|after_year| after_year != "-") {
        return None;
    }
    if let Some(time) = text.strip_suffix(" UTC") {
        return iso_local(time);
    }
    if text.len() > 10
        && let Ok(moment) = PARSER.parse_timestamp(text)
    {
        return Some(moment.as_nanosecond());
    }
    match has_zone(text) {
        true => None,
        false => iso_local(text),
    }
}

fn iso_local(text: &str) -> Option<i128> {
    let local: DateTime = PARSER.parse_datetime(text).ok()?;
    let moment: Timestamp = Offset::UTC.to_timestamp(local).ok()?;
    Some(moment.as_nanosecond())
}

fn has_zone(text: &str) -> bool {
    let time = text.get(10..).unwrap_or("");
    time.ends_with(['Z', 'z', ']']) || time.ends_with(" UTC") || time.contains(['+', '-'])
}

/// The nanoseconds since 1970-01-01T00:00Z of a date such as 20260131.
fn date_number(number: i128) -> Option<i128> {
    let number = i32::try_from(number).ok()?;
    if !(19_700_101..=99_991_231).contains(&number) {
        return None;
    }
    let part = |value: i32| i8::try_from(value).ok();
    let year = i16::try_from(number / 10_000).ok()?;
    let (month, day) = (part(number / 100 % 100)?, part(number % 100)?);
    let date = jiff::civil::Date::new(year, month, day).ok()?;
    let moment = Offset::UTC.to_timestamp(date.at(0, 0, 0, 0)).ok()?;
    Some(moment.as_nanosecond())
}

/// A moment as a date and a time in UTC. `moment` is in seconds since 1970-01-01T00:00Z.
pub(crate) fn date(moment: i64) -> String {
    match Timestamp::from_second(moment) {
        Ok(moment) => {
            let time = moment.to_zoned(TimeZone::UTC);
            format!("{} {:02}:{:02}", time.date(), time.hour(), time.minute())
        }
        Err(_) => format!("second {moment}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(values: &[&str]) -> TimeForm {
        let mut tally = TimeTally::default();
        for value in values {
            tally.add(Cell::of_text(value), false);
        }
        tally.form()
    }

    #[test]
    fn forms_are_told_by_looking() {
        assert_eq!(form(&["0", "1441"]), TimeForm::Counted(TimeUnit::Minutes));
        assert_eq!(form(&["1700000000"]), TimeForm::Unix(TimeUnit::Seconds));
        assert_eq!(form(&["1700000000.25"]), TimeForm::Unix(TimeUnit::Seconds));
        assert_eq!(
            form(&["1642218050000"]),
            TimeForm::Unix(TimeUnit::Milliseconds)
        );
        assert_eq!(
            form(&["1642218050000000"]),
            TimeForm::Unix(TimeUnit::Microseconds)
        );
        assert_eq!(
            form(&["1642218050000000000"]),
            TimeForm::Unix(TimeUnit::Nanoseconds)
        );
        assert_eq!(form(&["2026-01-31"]), TimeForm::Text);
        // One zero among many does not change the form; one of two does.
        let mut many = vec!["1700000000"; 20];
        many.push("0");
        assert_eq!(form(&many), TimeForm::Unix(TimeUnit::Seconds));
        assert_eq!(
            form(&["0", "1700000000"]),
            TimeForm::Counted(TimeUnit::Minutes)
        );
        let mut dated = TimeTally::default();
        dated.add(Cell::Number(20_260_131), true);
        assert_eq!(dated.form(), TimeForm::DateNumbers);
    }

    #[test]
    fn one_moment_has_many_spellings() {
        let expected = (29_458_061, 20_456);
        for (form, text) in [
            (TimeForm::Text, "2026-01-03T23:41:00Z"),
            (TimeForm::Text, "2026-01-03t23:41:59.999z"),
            (TimeForm::Text, "2026-01-03 23:41"),
            (TimeForm::Text, "2026-01-03 23:41:07"),
            (TimeForm::Text, "2026-01-03 23:41:07 UTC"),
            (TimeForm::Text, "2026-01-03 23:41:07.123456 UTC"),
            (TimeForm::Text, "2026-01-04T00:41:00+01:00"),
            (TimeForm::Text, "2026-01-04 00:41:00+01"),
            (TimeForm::Text, "2026-01-04T00:41:00+0100"),
            (TimeForm::Unix(TimeUnit::Seconds), "1767483660"),
            (TimeForm::Unix(TimeUnit::Seconds), "1767483719.999"),
            (TimeForm::Unix(TimeUnit::Milliseconds), "1767483660000"),
            (TimeForm::Unix(TimeUnit::Microseconds), "1767483660000000"),
            (TimeForm::Unix(TimeUnit::Nanoseconds), "1767483660000000000"),
        ] {
            let mut clock = Clock::new(form, None, None, 1440);
            assert_eq!(clock.time(Cell::Text(text)), Ok(expected), "{text}");
        }
        let mut clock = Clock::new(TimeForm::Text, None, None, 1440);
        assert_eq!(
            clock.time(Cell::Text("2026-01-03")),
            Ok((expected.0 - 1421, expected.1))
        );
        let origin = "2026-01-03".parse().ok();
        let mut clock = Clock::new(TimeForm::Text, None, origin, 1440);
        assert_eq!(clock.time(Cell::Text("2026-01-03T23:41Z")), Ok((1421, 0)));
        assert_eq!(
            clock.time(Cell::Text("2026-01-02T23:41Z")),
            Err("2026-01-02T23:41Z is before --time-origin 2026-01-03 00:00".to_owned())
        );
        for text in [
            "31/01/2026",
            "2026-13-01",
            "2026-01-31T25:00",
            "tomorrow",
            "2026-01-04T00:41:00 CET",
        ] {
            assert!(clock.time(Cell::Text(text)).is_err(), "{text}");
        }
        assert_eq!(date(1_767_483_660), "2026-01-03 23:41");
    }
}
