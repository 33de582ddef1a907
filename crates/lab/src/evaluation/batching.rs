//! Batches: which reports a querier sums, and their sums.
//!
//! A querier sums its reports in the order of time. Conversions of one minute have the order of
//! their rows in the source. So the batch of a report follows from the place of its conversion in
//! time, once the places at which batches end are known ([`BatchPlan`]). These places are found
//! before anything is replayed, and then every part of a workload adds its reports to the right
//! sums ([`BatchTotals`]). Sums are whole numbers, so the order of parts does not matter.

use std::sync::{Mutex, PoisonError};

use bigbird::Limit;

use super::querier::Querier;
use crate::threads;
use crate::workload::{EventKind, Part, WorkloadEvent};

/// The place of an event in time: its minute, and then its row in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeKey(u64);

impl TimeKey {
    /// The place of an event.
    pub fn of(event: &WorkloadEvent) -> Self {
        Self::new(event.minute, event.row)
    }

    fn new(minute: u32, row: u32) -> Self {
        Self(u64::from(minute) << 32 | u64::from(row))
    }
}

/// The number of each conversion site among queriers, if it is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuerierNumbers(Vec<u32>);

impl QuerierNumbers {
    const NONE: u32 = u32::MAX;

    /// The numbers of these queriers among `sites` conversion sites.
    pub fn new(queriers: &[Querier], sites: usize) -> Self {
        let mut numbers = vec![Self::NONE; sites];
        for (number, querier) in (0..).zip(queriers) {
            numbers[querier.site as usize] = number;
        }
        Self(numbers)
    }

    /// The number of a conversion site among queriers.
    #[inline]
    pub fn get(&self, site: u32) -> Option<usize> {
        let number = self.0[site as usize];
        (number != Self::NONE).then_some(number as usize)
    }

    /// The number of conversion sites.
    pub fn sites(&self) -> usize {
        self.0.len()
    }
}

/// The places of the conversions of queriers in time, collected part by part.
#[derive(Debug, Clone)]
pub struct BatchKeys {
    keys: Vec<Vec<TimeKey>>,
}

impl BatchKeys {
    /// No conversions yet.
    pub fn new(queriers: &[Querier]) -> Self {
        Self {
            keys: vec![Vec::new(); queriers.len()],
        }
    }

    /// Adds the conversions of a part.
    pub fn add(&mut self, part: &Part, numbers: &QuerierNumbers) {
        for at in 0..part.len() {
            if EventKind::is_conversion(part.kinds[at])
                && let Some(querier) = numbers.get(part.conversion_sites[at])
            {
                let key = TimeKey::new(part.minutes[at], part.rows[at]);
                self.keys[querier].push(key);
            }
        }
    }

    /// Adds the conversions of other parts.
    pub fn merge(&mut self, other: Self) {
        for (keys, more) in self.keys.iter_mut().zip(other.keys) {
            match keys.is_empty() {
                true => *keys = more,
                false => keys.extend(more),
            }
        }
    }
}

/// The places in time at which the batches of each querier end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchPlan {
    /// For each querier, the last place of each of its batches.
    ends: Vec<Vec<TimeKey>>,
    /// The number of the first batch of each querier, and the number of batches.
    first: Vec<u32>,
}

impl BatchPlan {
    /// Divides the conversions of each querier into batches of its size. An incomplete last batch
    /// is left out.
    ///
    /// Conversions at the same place in time, which only a source with an ambiguous order has, are
    /// not separated: the batch that has the first of them has all of them.
    pub fn new(queriers: &[Querier], keys: BatchKeys) -> Self {
        Self::on_threads(queriers, keys, 1)
    }

    /// The same, on several threads.
    pub(super) fn on_threads(queriers: &[Querier], keys: BatchKeys, threads: usize) -> Self {
        let keys: Vec<Mutex<Vec<TimeKey>>> = keys.keys.into_iter().map(Mutex::new).collect();
        let ends: Vec<Vec<TimeKey>> = threads::map(keys.len(), threads, |number| {
            let mut keys = keys[number].lock().unwrap_or_else(PoisonError::into_inner);
            ends(&mut keys, queriers[number].batch.max(1))
        });
        let mut first = vec![0];
        for of_querier in &ends {
            let before = first.last().copied().unwrap_or(0);
            first.push(before + u32::try_from(of_querier.len()).unwrap_or(u32::MAX));
        }
        Self { ends, first }
    }

    /// The number of the batch of a report of a querier, among the batches of all queriers.
    #[inline]
    pub fn batch(&self, querier: usize, at: TimeKey) -> Option<usize> {
        let ends = &self.ends[querier];
        let number = match ends.as_slice() {
            // Most queriers have few batches.
            [only] => usize::from(at > *only),
            ends => ends.partition_point(|end| *end < at),
        };
        (number < ends.len()).then(|| self.first[querier] as usize + number)
    }

    /// The number of batches.
    pub fn len(&self) -> usize {
        self.first.last().copied().unwrap_or(0) as usize
    }

    /// True if no querier has a batch.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The querier of each batch.
    pub fn queriers(&self) -> impl Iterator<Item = usize> {
        let counts = self.ends.iter().map(Vec::len).enumerate();
        counts.flat_map(|(querier, count)| std::iter::repeat_n(querier, count))
    }
}

/// The last place of each batch of `size` conversions. Only these places need to be found, so the
/// rest is not sorted.
fn ends(mut keys: &mut [TimeKey], size: usize) -> Vec<TimeKey> {
    let mut ends = Vec::new();
    while keys.len() >= size {
        let (_, end, rest) = keys.select_nth_unstable(size - 1);
        let end = *end;
        ends.push(end);
        // Conversions at the same place belong to this batch too.
        let mut later = 0;
        for at in 0..rest.len() {
            if rest[at] == end {
                rest.swap(at, later);
                later += 1;
            }
        }
        keys = &mut rest[later..];
    }
    ends
}

/// The sums of the reports of every batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchTotals {
    buckets: usize,
    /// For each batch, the sum of each bucket.
    sums: Vec<u64>,
    counts: Vec<BatchCounts>,
}

/// Counts of the reports of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchCounts {
    /// The number of reports.
    pub reports: u64,
    /// The sum of the values of their conversions, whatever was attributed.
    pub worth: u64,
    /// The number of reports from which a limit withheld something, by first cause.
    pub blocked: [u64; Limit::ALL.len()],
}

impl BatchTotals {
    /// No reports yet.
    pub fn new(plan: &BatchPlan, buckets: u16) -> Self {
        let buckets = usize::from(buckets);
        Self {
            buckets,
            sums: vec![0; plan.len() * buckets],
            counts: vec![BatchCounts::default(); plan.len()],
        }
    }

    /// Adds a report to a batch.
    #[inline]
    pub fn add(&mut self, batch: usize, value: u32, bucket: Option<u16>, blocked: Option<Limit>) {
        let counts = &mut self.counts[batch];
        counts.reports += 1;
        counts.worth += u64::from(value);
        if let Some(cause) = blocked {
            counts.blocked[cause as usize] += 1;
        }
        if let Some(bucket) = bucket {
            self.sums[batch * self.buckets + usize::from(bucket)] += u64::from(value);
        }
    }

    /// Adds the sums of other parts.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.sums.iter_mut().zip(&other.sums) {
            *sum += more;
        }
        for (counts, more) in self.counts.iter_mut().zip(&other.counts) {
            counts.reports += more.reports;
            counts.worth += more.worth;
            for (sum, more) in counts.blocked.iter_mut().zip(more.blocked) {
                *sum += more;
            }
        }
    }

    /// The sum of each bucket of a batch.
    pub fn sums(&self, batch: usize) -> &[u64] {
        &self.sums[batch * self.buckets..(batch + 1) * self.buckets]
    }

    /// The counts of a batch.
    pub fn counts(&self, batch: usize) -> &BatchCounts {
        &self.counts[batch]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(minutes: &[u32]) -> Vec<TimeKey> {
        minutes
            .iter()
            .map(|minute| TimeKey::new(*minute, 0))
            .collect()
    }

    #[test]
    fn batches_end_where_a_sorted_list_would_be_cut() {
        let mut some = keys(&[9, 1, 8, 2, 7, 3, 6]);
        assert_eq!(ends(&mut some, 3), keys(&[3, 8]));
        assert_eq!(ends(&mut keys(&[5, 4]), 3), []);
        assert_eq!(ends(&mut keys(&[5, 4]), 1), keys(&[4, 5]));
    }

    #[test]
    fn conversions_at_one_place_stay_together() {
        assert_eq!(ends(&mut keys(&[1, 2, 2, 2, 3, 4]), 2), keys(&[2, 4]));
        assert_eq!(ends(&mut keys(&[2, 2, 2]), 2), keys(&[2]));
    }
}
