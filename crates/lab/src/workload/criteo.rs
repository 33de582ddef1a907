//! The Criteo files of the paper's evaluation, in two forms: as its artifact prepares them
//! ([`read_prepared`]), and as they are published ([`read_raw`]).

mod prepared;
mod raw;

use std::path::Path;

pub use prepared::{PreparedOptions, read_prepared};
pub use raw::{RawOptions, read_raw};

/// The names of the prepared files.
pub(crate) const IMPRESSIONS: &str = "20last_impressions.pqt";
pub(crate) const CONVERSIONS: &str = "20last_conversions.pqt";

/// The values of `features_ctx_not_constrained_0` for buckets 0 to 3. All other values are bucket
/// 4.
const FEATURES: [i64; 4] = [1_158_003_214, 1_668_101_868, 3_880_384_520, 7_687_156];

fn bucket(feature: i128) -> u16 {
    let known = (0..).zip(FEATURES);
    let mut known = known.filter(|(_, value)| i128::from(*value) == feature);
    known.next().map_or(4, |(bucket, _)| bucket)
}

/// A value of the feature that gives this bucket.
pub(crate) fn feature(bucket: u16) -> i64 {
    FEATURES.get(usize::from(bucket)).copied().unwrap_or(1)
}

/// True if a folder has prepared files.
pub fn is_prepared(folder: &Path) -> bool {
    folder.join(IMPRESSIONS).is_file() || folder.join(CONVERSIONS).is_file()
}

/// True if a folder has the files as they are published: a folder for each day.
pub fn is_raw(folder: &Path) -> bool {
    [folder.to_owned(), folder.join("data")]
        .iter()
        .any(|folder| (1..=30).any(|day| folder.join(format!("day_int={day}")).is_dir()))
}
