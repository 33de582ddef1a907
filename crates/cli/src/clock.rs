//! The clock of this machine.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bigbird::Timestamp;

/// The current time, in milliseconds since 1970.
pub(crate) fn wall_clock() -> Timestamp {
    let since = |elapsed: Duration| i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
    Timestamp(match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(elapsed) => since(elapsed),
        Err(before) => -since(before.duration()),
    })
}
