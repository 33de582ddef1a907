//! Values of conversions: whole numbers, or decimal numbers as multiples of a unit.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::workload::EventKind;
use crate::workload::cells::{Cell, quoted};

/// The unit of values, such as 0.01: a value of 12.34 is 1234 units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueUnit(Decimal);

impl FromStr for ValueUnit {
    type Err = NoValueUnit;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unit = Decimal::parse(text, DecimalMark::Point).filter(|unit| unit.mantissa > 0);
        unit.map(Self).ok_or_else(|| NoValueUnit(text.to_owned()))
    }
}

impl fmt::Display for ValueUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The text is not a unit of values.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not a positive number, such as 0.01")]
pub struct NoValueUnit(pub String);

/// The character before decimals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DecimalMark {
    Point,
    /// A comma, and points between thousands.
    Comma,
}

/// An exact decimal number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decimal {
    mantissa: i128,
    /// The number of decimals.
    scale: u32,
}

/// The most digits of a number, so that products of two fit into 128 bits.
const DIGITS: usize = 18;

impl Decimal {
    fn parse(text: &str, mark: DecimalMark) -> Option<Self> {
        let text = text.trim();
        let (negative, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (decimal, thousands) = match mark {
            DecimalMark::Point => ('.', ','),
            DecimalMark::Comma => (',', '.'),
        };
        let (whole, decimals) = digits.split_once(decimal).unwrap_or((digits, ""));
        let is_digits = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit());
        let mut groups = whole.split(thousands);
        let first = groups.next()?;
        let grouped = whole.contains(thousands);
        let rest_fit = groups.all(|group| group.len() == 3 && is_digits(group));
        let first_fits = is_digits(first) && (!grouped || (1..=3).contains(&first.len()));
        if !rest_fit || !first_fits || !is_digits(decimals) {
            return None;
        }
        let decimals = decimals.trim_end_matches('0');
        let whole: String = whole.chars().filter(|digit| *digit != thousands).collect();
        if whole.is_empty() && decimals.is_empty() || whole.len() + decimals.len() > DIGITS {
            return None;
        }
        let mantissa: i128 = format!("{whole}{decimals}").parse().ok()?;
        Some(Self {
            mantissa: if negative { -mantissa } else { mantissa },
            scale: u32::try_from(decimals.len()).ok()?,
        })
    }

    /// The multiples of a unit in this number, rounded to the nearest, halves away from zero. The
    /// second value is true if nothing was rounded.
    fn divided_by(self, unit: Self) -> (i128, bool) {
        let above = self.mantissa * 10_i128.pow(unit.scale);
        let below = unit.mantissa * 10_i128.pow(self.scale);
        let (whole, rest) = (above / below, above % below);
        let away = if 2 * rest.abs() >= below {
            above.signum()
        } else {
            0
        };
        (whole + away, rest == 0)
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let power = 10_i128.pow(self.scale);
        let sign = if self.mantissa < 0 { "-" } else { "" };
        write!(f, "{sign}{}", (self.mantissa / power).abs())?;
        match self.scale {
            0 => Ok(()),
            scale => {
                let rest = (self.mantissa % power).abs();
                write!(f, ".{rest:0width$}", width = scale as usize)
            }
        }
    }
}

const ONE: Decimal = Decimal {
    mantissa: 1,
    scale: 0,
};

/// A number in a cell. None if the cell is empty.
fn number(cell: Cell<'_>, mark: DecimalMark) -> Result<Option<Decimal>, String> {
    let wrong = |text: &str| format!("{text} is not a number with at most {DIGITS} digits");
    match cell {
        Cell::Nothing => Ok(None),
        Cell::Number(number) => match number.unsigned_abs() < 10_u128.pow(18) {
            true => Ok(Some(Decimal {
                mantissa: number,
                scale: 0,
            })),
            false => Err(wrong(&number.to_string())),
        },
        Cell::Text(text) => Decimal::parse(text, mark)
            .map(Some)
            .ok_or_else(|| wrong(&quoted(text))),
        // The shortest decimal that is this number: what was meant.
        Cell::Fraction(number) => {
            let text = format!("{number}");
            let text = match text.split_once('.') {
                Some((whole, decimals)) => {
                    let room = DIGITS.saturating_sub(whole.len().max(1));
                    format!("{whole}.{}", &decimals[..decimals.len().min(room)])
                }
                None => text,
            };
            Decimal::parse(&text, DecimalMark::Point)
                .map(Some)
                .ok_or_else(|| wrong(&text))
        }
    }
}

/// Turns cells into values.
#[derive(Debug, Clone)]
pub(crate) struct Amounts {
    unit: Option<ValueUnit>,
    pub(crate) mark: DecimalMark,
    /// The number of values that were not multiples of the unit.
    pub(crate) rounded: u64,
    /// The number of values below half a unit, which count as one unit.
    pub(crate) raised: u64,
    pub(crate) least_and_most: Option<(u32, u32)>,
}

impl Amounts {
    pub(crate) fn new(unit: Option<ValueUnit>, mark: DecimalMark) -> Self {
        Self {
            unit,
            mark,
            rounded: 0,
            raised: 0,
            least_and_most: None,
        }
    }

    /// The value in a cell: 1 if it is empty. None if it has decimals but no unit was given: then
    /// the whole column must be looked at.
    pub(crate) fn value(&mut self, cell: Cell<'_>) -> Result<Option<u32>, String> {
        // Most values are whole numbers.
        let whole = match (cell, self.unit) {
            (Cell::Nothing, _) => return Ok(Some(self.seen(1))),
            (Cell::Number(number), None) => Some(number),
            (Cell::Text(text), None) => text.parse::<i64>().ok().map(i128::from),
            _ => None,
        };
        let number = match (whole, self.unit) {
            (Some(whole), _) => (whole, true),
            (None, unit) => {
                let Some(number) = number(cell, self.mark)? else {
                    return Ok(Some(self.seen(1)));
                };
                number.divided_by(unit.map_or(ONE, |unit| unit.0))
            }
        };
        let (mut units, exact) = number;
        if !exact {
            if self.unit.is_none() {
                return Ok(None);
            }
            self.rounded += 1;
        }
        if units == 0 && self.unit.is_some() {
            self.raised += 1;
            units = 1;
        }
        let value = u32::try_from(units).ok();
        let value = value.filter(|value| (1..=EventKind::MAX_VALUE).contains(value));
        match value {
            Some(value) => Ok(Some(self.seen(value))),
            None => Err(self.out_of_range(units)),
        }
    }

    fn seen(&mut self, value: u32) -> u32 {
        let (least, most) = self.least_and_most.unwrap_or((value, value));
        self.least_and_most = Some((least.min(value), most.max(value)));
        value
    }

    fn out_of_range(&self, units: i128) -> String {
        let last = EventKind::MAX_VALUE;
        let of_unit = match self.unit {
            Some(unit) => format!(" times the unit {unit}"),
            None => String::new(),
        };
        let hint = match (units, self.unit) {
            (0, None) => "; give --value-unit 1 to count it as 1",
            (..0, _) => "",
            (_, None) => "; give a larger --value-unit",
            (_, Some(_)) => "; give a larger one",
        };
        format!("value {units}{of_unit} is out of range; use 1 to {last}{hint}")
    }
}

/// What a column of values holds in the rows of conversions.
#[derive(Debug, Clone, Default)]
pub(crate) struct AmountTally {
    /// The number of values with a comma, and without a point after it.
    commas: u64,
    points: u64,
    /// The finest decimal number.
    finest: Option<(u32, String)>,
}

impl AmountTally {
    /// `mark` is None until it is known.
    pub(crate) fn add(&mut self, cell: Cell<'_>, mark: Option<DecimalMark>) {
        if let Cell::Text(text) = cell {
            match (text.rfind(','), text.rfind('.')) {
                (Some(comma), point) if point.is_none_or(|point| point < comma) => self.commas += 1,
                (_, Some(_)) => self.points += 1,
                _ => {}
            }
        }
        if let Some(mark) = mark
            && let Ok(Some(number)) = number(cell, mark)
            && number.scale > 0
            && self
                .finest
                .as_ref()
                .is_none_or(|(scale, _)| *scale < number.scale)
        {
            self.finest = Some((number.scale, number.to_string()));
        }
    }

    /// The decimal mark in a file whose fields are not divided by commas.
    pub(crate) fn mark(&self) -> DecimalMark {
        match self.commas > self.points {
            true => DecimalMark::Comma,
            false => DecimalMark::Point,
        }
    }

    /// The number of decimals of the finest value, and this value. None if values are whole.
    pub(crate) fn decimals(&self) -> Option<(u32, &str)> {
        let (scale, example) = self.finest.as_ref()?;
        Some((*scale, example))
    }
}

/// The most decimals that values may have without a unit being given: those of prices. More come
/// from a computation.
pub(crate) const MOST_DECIMALS: u32 = 2;

impl ValueUnit {
    /// The unit that makes numbers with so many decimals whole.
    pub(crate) fn of_decimals(scale: u32) -> Self {
        Self(Decimal { mantissa: 1, scale })
    }

    /// The message for values with too many decimals.
    pub(crate) fn propose(example: &str) -> String {
        let unit = Self::of_decimals(MOST_DECIMALS);
        format!(
            "values have many decimals, such as {example}; give --value-unit {unit} to count them \
             in units of {unit}, rounded to the nearest"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amounts(unit: Option<&str>, mark: DecimalMark) -> Amounts {
        Amounts::new(unit.map(|unit| unit.parse().unwrap()), mark)
    }

    #[test]
    fn decimals_become_units() {
        let mut cents = amounts(Some("0.01"), DecimalMark::Point);
        for (text, expected) in [
            ("12.34", 1234),
            ("12", 1200),
            ("0.005", 1),
            ("0.001", 1),
            ("0", 1),
            ("12.345", 1235),
            ("12.3449", 1234),
            ("1,234.50", 123_450),
            (".5", 50),
            ("7.", 700),
        ] {
            assert_eq!(cents.value(Cell::Text(text)), Ok(Some(expected)), "{text}");
        }
        assert_eq!((cents.rounded, cents.raised), (4, 2));
        assert_eq!(cents.value(Cell::Fraction(19.99)), Ok(Some(1999)));
        assert_eq!(cents.value(Cell::Fraction(0.1 + 0.2)), Ok(Some(30)));
        assert_eq!(cents.value(Cell::Nothing), Ok(Some(1)));
        let mut german = amounts(Some("0.01"), DecimalMark::Comma);
        for (text, expected) in [("12,34", 1234), ("1.234,5", 123_450), ("1.234", 123_400)] {
            assert_eq!(german.value(Cell::Text(text)), Ok(Some(expected)), "{text}");
        }
        let mut coarse = amounts(Some("5"), DecimalMark::Point);
        assert_eq!(coarse.value(Cell::Text("12.5")), Ok(Some(3)));
        for text in ["1,23", "12,34", "1.2.3", "€ 3", "--3", "-", ".", "1e3"] {
            assert!(cents.value(Cell::Text(text)).is_err(), "{text}");
        }
        for text in ["0", "-1", "a", ""] {
            assert!(text.parse::<ValueUnit>().is_err(), "{text}");
        }
        assert_eq!("0.010".parse::<ValueUnit>().unwrap().to_string(), "0.01");
    }

    #[test]
    fn without_a_unit_values_are_whole() {
        let mut whole = amounts(None, DecimalMark::Point);
        assert_eq!(whole.value(Cell::Text("2.0")), Ok(Some(2)));
        assert_eq!(whole.value(Cell::Text("2.5")), Ok(None));
        assert_eq!(
            whole.value(Cell::Text("-3")),
            Err("value -3 is out of range; use 1 to 2147483647".to_owned())
        );
        assert!(whole.value(Cell::Number(0)).is_err());
        let mut tally = AmountTally::default();
        for text in ["1", "2,5", "3,25"] {
            tally.add(Cell::Text(text), None);
        }
        assert_eq!(tally.mark(), DecimalMark::Comma);
        tally.add(Cell::Text("3,25"), Some(DecimalMark::Comma));
        assert_eq!(tally.decimals(), Some((2, "3.25")));
        assert_eq!(ValueUnit::of_decimals(2).to_string(), "0.01");
    }
}
