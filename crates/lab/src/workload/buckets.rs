//! Buckets of impressions: numbers as they are, or the most frequent values of a column.

use crate::workload::BUCKETS;
use crate::workload::cells::{Cell, EMPTY, quoted};
use crate::workload::columns::word;
use crate::workload::hash::FastMap;

/// The most buckets.
pub const MAX_BUCKETS: u16 = 1000;

/// The value that an empty cell counts as, if values are taken by frequency.
pub(crate) const NO_VALUE: &str = "(empty)";

/// The bucket that holds all values that are not frequent enough.
pub(crate) const OTHER: &str = "other";

/// The most different values of a column that is divided by frequency.
const MAX_VALUES: usize = 1_000_000;

/// The options for buckets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BucketOptions {
    /// The number of buckets that was given.
    pub(crate) count: Option<u16>,
    /// True if the column was named: then it need not hold numbers of buckets.
    pub(crate) named: bool,
}

impl BucketOptions {
    fn most(self) -> u16 {
        self.count.unwrap_or(BUCKETS)
    }

    fn is_free(self) -> bool {
        self.named || self.count.is_some()
    }
}

/// The rule that gives an impression its bucket.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum BucketRule {
    /// There is one bucket.
    One(u16),
    /// The numbers below this one are buckets.
    Numbers(u16),
    /// Each value has a bucket, or is among the others.
    Values {
        count: u16,
        buckets: FastMap<String, u16>,
        other: Option<u16>,
    },
}

impl BucketRule {
    /// The number of buckets.
    pub(crate) fn count(&self) -> u16 {
        match self {
            Self::One(count) | Self::Numbers(count) | Self::Values { count, .. } => *count,
        }
    }

    /// The names of the buckets, if they are values of a column.
    pub(crate) fn names(&self) -> Vec<String> {
        let Self::Values { buckets, other, .. } = self else {
            return Vec::new();
        };
        let mut names: Vec<(u16, &str)> = buckets
            .iter()
            .map(|(name, bucket)| (*bucket, name.as_str()))
            .collect();
        names.extend(other.map(|other| (other, OTHER)));
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name.to_owned()).collect()
    }

    /// The bucket of an impression. None if the rule does not fit the value: then the whole column
    /// must be looked at.
    pub(crate) fn bucket(
        &self,
        cell: Cell<'_>,
        named: bool,
        buffer: &mut String,
    ) -> Result<Option<u16>, String> {
        match self {
            Self::One(_) => Ok(Some(0)),
            Self::Numbers(_) if cell == Cell::Nothing && !named => Err(EMPTY.to_owned()),
            Self::Numbers(count) => Ok(whole(cell)
                .and_then(|number| u16::try_from(number).ok())
                .filter(|number| number < count)),
            Self::Values { buckets, other, .. } => {
                let name = cell.name(buffer)?.unwrap_or(NO_VALUE);
                Ok(buckets.get(name).copied().or(*other))
            }
        }
    }
}

fn whole(cell: Cell<'_>) -> Option<i128> {
    cell.number().ok().flatten()
}

/// What a column of buckets holds in the rows of impressions.
#[derive(Debug, Clone, Default)]
pub(crate) struct BucketTally {
    rows: u64,
    /// The least and the greatest whole number.
    numbers: Option<(i128, i128)>,
    /// True if some value is not a whole number.
    others: bool,
    /// The first value that is neither text nor a whole number.
    fraction: Option<String>,
    values: FastMap<String, u64>,
    overflows: bool,
}

impl BucketTally {
    pub(crate) fn add(&mut self, cell: Cell<'_>) {
        self.rows += 1;
        match whole(cell) {
            Some(number) => {
                let (least, most) = self.numbers.unwrap_or((number, number));
                self.numbers = Some((least.min(number), most.max(number)));
            }
            None => self.others = true,
        }
        let mut buffer = String::new();
        match cell.name(&mut buffer) {
            Ok(name) => {
                let name = name.unwrap_or(NO_VALUE);
                if let Some(count) = self.values.get_mut(name) {
                    *count += 1;
                } else if self.values.len() < MAX_VALUES {
                    self.values.insert(name.to_owned(), 1);
                } else {
                    self.overflows = true;
                }
            }
            Err(what) => self.fraction = self.fraction.take().or(Some(what)),
        }
    }

    /// True if numbers can be taken as they are, as far as this column was looked at.
    pub(crate) fn are_buckets(&self, options: BucketOptions) -> bool {
        let below = i128::from(options.most());
        let is_bucket = |(least, most): (i128, i128)| least >= 0 && most < below;
        let empty_only = self.numbers.is_none() && self.values.keys().all(|it| it == NO_VALUE);
        match options.is_free() {
            true => !self.others && self.numbers.is_none_or(is_bucket),
            // An empty cell is refused by its row.
            false => empty_only || (self.numbers.is_some_and(is_bucket) && self.only_numbers()),
        }
    }

    fn only_numbers(&self) -> bool {
        let number = |value: &String| value == NO_VALUE || whole(Cell::Text(value)).is_some();
        self.fraction.is_none() && (!self.others || self.values.keys().all(number))
    }

    /// The rule for a column that was looked at as a whole.
    pub(crate) fn rule(&self, options: BucketOptions, column: &str) -> Result<BucketRule, String> {
        if self.are_buckets(options) {
            return Ok(BucketRule::Numbers(options.most()));
        }
        if let Some(what) = &self.fraction {
            return Err(what.clone());
        }
        if !options.is_free()
            && self.only_numbers()
            && let Some((least, most)) = self.numbers
        {
            let as_they_are = match least >= 0 && most < i128::from(MAX_BUCKETS) {
                true => format!("--buckets {} to take them as they are, or ", most + 1),
                false => String::new(),
            };
            return Err(format!(
                "the buckets are {least} to {most}, and must be 0 to {}; give {as_they_are}\
                 --bucket-column {} to keep the most frequent ones",
                BUCKETS - 1,
                word(column)
            ));
        }
        if self.overflows {
            return Err(format!(
                "there are more than {MAX_VALUES} different values, such as {}; give a column \
                 with few values as --bucket-column",
                self.values
                    .keys()
                    .min()
                    .map_or(String::new(), |it| quoted(it))
            ));
        }
        Ok(self.by_frequency(options))
    }

    /// The most frequent values have a bucket each. If there are more than buckets, the last bucket
    /// has all the others. Of two that are equally frequent, the first by name goes first.
    fn by_frequency(&self, options: BucketOptions) -> BucketRule {
        let mut values: Vec<(&String, &u64)> = self.values.iter().collect();
        values.sort_by(|one, other| (other.1, one.0).cmp(&(one.1, other.0)));
        let most = usize::from(options.most());
        let all = values.len() <= most;
        let own = if all { values.len() } else { most - 1 };
        let buckets: FastMap<String, u16> = values[..own]
            .iter()
            .map(|(value, _)| (*value).clone())
            .zip(0..)
            .collect();
        let found = u16::try_from(own).unwrap_or(MAX_BUCKETS);
        BucketRule::Values {
            count: options
                .count
                .unwrap_or(if all { found.max(1) } else { options.most() }),
            buckets,
            other: (!all).then_some(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(values: &[&str], count: Option<u16>, named: bool) -> Result<BucketRule, String> {
        let mut tally = BucketTally::default();
        for value in values {
            tally.add(Cell::of_text(value));
        }
        tally.rule(BucketOptions { count, named }, "bucket")
    }

    #[test]
    fn numbers_stay_and_names_go_by_frequency() {
        assert_eq!(rule(&["0", "4"], None, false), Ok(BucketRule::Numbers(5)));
        assert_eq!(rule(&["9"], Some(10), false), Ok(BucketRule::Numbers(10)));
        assert_eq!(
            rule(&["0", "9"], None, false),
            Err(
                "the buckets are 0 to 9, and must be 0 to 4; give --buckets 10 to take them as \
                 they are, or --bucket-column bucket to keep the most frequent ones"
                    .to_owned()
            )
        );
        let names = |values: &[&str], count| rule(values, count, true).unwrap();
        let few = names(&["fr", "de", "de"], None);
        assert_eq!(
            (few.count(), few.names().join(" ")),
            (2, "de fr".to_owned())
        );
        // Ties go by name, and what is left goes to the last bucket.
        let many = names(&["c", "b", "a", "d", "d", ""], Some(3));
        assert_eq!(
            (many.count(), many.names().join(" ")),
            (3, "d (empty) other".to_owned())
        );
        let mut buffer = String::new();
        assert_eq!(many.bucket(Cell::Text("d"), true, &mut buffer), Ok(Some(0)));
        assert_eq!(many.bucket(Cell::Nothing, true, &mut buffer), Ok(Some(1)));
        assert_eq!(
            many.bucket(Cell::Text("new"), true, &mut buffer),
            Ok(Some(2))
        );
        let one = names(&["c", "b"], Some(1));
        assert_eq!(
            (one.count(), one.names().join(" ")),
            (1, "other".to_owned())
        );
        // Numbers that are not buckets are names if the column was named.
        assert_eq!(names(&["12", "77", "12"], None).names(), ["12", "77"]);
    }
}
