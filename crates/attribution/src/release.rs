//! Answers that wait: a report is released at a fixed time after the call.

use bigbird::Timestamp;

/// Something that may be released at a moment and not before.
///
/// How long the work took tells what was stored and spent (the draft's section Side Channel Risks
/// in Implementation). So the caller gets the answer at a time that depends on the call alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held<T> {
    value: T,
    release_at: Timestamp,
}

impl<T> Held<T> {
    pub(crate) fn new(value: T, called: Timestamp, after_ms: i64) -> Self {
        Self {
            value,
            release_at: Timestamp(called.0.saturating_add(after_ms)),
        }
    }

    /// When it may be released.
    pub fn release_at(&self) -> Timestamp {
        self.release_at
    }

    /// What is held, once it is time.
    ///
    /// # Errors
    /// Itself, if it is not time yet.
    pub fn release(self, now: Timestamp) -> Result<T, Self> {
        if now < self.release_at {
            return Err(self);
        }
        Ok(self.value)
    }
}
