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

/// A point in time as a date and a time of day, in UTC.
pub(crate) fn date(moment: Timestamp) -> String {
    let seconds = moment.0.div_euclid(1000);
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Converts days to a date of the Gregorian calendar, which is extended to all times. Here years
    // begin in March, so that the leap day comes last. 400 years have 146,097 days.
    let from_march = days + 719_468;
    let (era, day) = (
        from_march.div_euclid(146_097),
        from_march.rem_euclid(146_097),
    );
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3600, second % 3600 / 60);
    format!("{year:04}-{month:02}-{day_of_month:02} {hour:02}:{minute:02} UTC")
}
