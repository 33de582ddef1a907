//! Answers that wait: a report is released at a fixed time after the call.

use bigbird::Timestamp;

/// Something that may be released at a moment and not before.
///
/// How long the work took tells what was stored and spent (the draft's section Side Channel Risks
/// in Implementation). So the caller gets the answer at a time that depends on the call alone; or,
/// if the work took longer than that, a whole number of such times later.
///
/// All moments are of the clock that the call was made with. Where that clock may step, give the
/// moment of the call plus what a monotonic clock has measured since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<T> {
    value: T,
    called: Timestamp,
    after_ms: i64,
}

impl<T> Held<T> {
    pub(crate) fn new(value: T, called: Timestamp, after_ms: i64) -> Self {
        Self {
            value,
            called,
            after_ms: after_ms.max(1),
        }
    }

    /// When it may be released, the answer having been ready at `ready`.
    pub fn release_at(&self, ready: Timestamp) -> Timestamp {
        let took = ready.0.saturating_sub(self.called.0).max(1);
        let times = took.div_euclid(self.after_ms) + i64::from(took % self.after_ms != 0);
        let after = times.saturating_mul(self.after_ms);
        Timestamp(self.called.0.saturating_add(after))
    }

    /// What is held, the answer having been ready at `ready`, once it is time.
    ///
    /// # Errors
    /// Itself, if it is not time yet.
    pub fn release(self, ready: Timestamp, now: Timestamp) -> Result<T, Self> {
        if now < self.release_at(ready) {
            return Err(self);
        }
        Ok(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_waits_for_its_time_or_the_next() {
        let held = Held::new("report", Timestamp(1_000), 100);
        for (ready, release) in [(900, 1_100), (1_000, 1_100), (1_100, 1_100), (1_101, 1_200)] {
            assert_eq!(held.release_at(Timestamp(ready)), Timestamp(release));
        }
        let called = Timestamp(1_000);
        let held = held.release(called, Timestamp(1_099)).unwrap_err();
        let late = Timestamp(1_101);
        let held = held.release(late, Timestamp(1_199)).unwrap_err();
        assert_eq!(held.release(late, Timestamp(1_200)), Ok("report"));
    }
}
