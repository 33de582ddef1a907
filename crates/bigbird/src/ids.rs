//! Sites, epochs, user actions and moments, as small numbers.
//!
//! The core has no strings. The application gives every site a number and keeps the table. Each
//! kind of number has its own type, so that mixing them up does not compile.

use thiserror::Error;

/// A site (registrable domain), by the number that the application gave it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SiteId(pub u32);

/// The index of an epoch: a fixed period of one device's time. It may be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct EpochIndex(pub i64);

/// The id of a user action: an intentional act of the user, such as a click. Everything it causes
/// carries its id (the paper's `uaCtx`).
///
/// The proofs need three guarantees from the code that assigns ids: ids increase, an id is never
/// used again (not even after a restart), and an action ends at the epoch change at the latest, so
/// that all impressions of one action are in one epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct UserAction(pub u64);

/// A moment of the device's clock, in the application's unit. The core only compares moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timestamp(pub i64);

/// The epochs that a request looks back over.
///
/// A report over one epoch is charged differently from a report over several. So whether a window
/// has one epoch is decided from the request and the clock alone: it has one if
/// `epoch(now − lookback) = epoch(now)`. This never depends on what is stored, pruned or cleared.
/// Otherwise the cost of one epoch would reveal something about another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    earliest: EpochIndex,
    current: EpochIndex,
    readable_from: EpochIndex,
}

impl Window {
    /// The largest number of epochs in a window. Every request does work for each of its epochs.
    pub const MAX_EPOCHS: u64 = 4096;

    /// The window from the epoch of `now − lookback` to the epoch of `now`, both included.
    ///
    /// # Errors
    /// If the window is reversed, or longer than [`Window::MAX_EPOCHS`].
    pub fn new(earliest: EpochIndex, current: EpochIndex) -> Result<Self, WindowError> {
        if earliest > current {
            return Err(WindowError::Reversed { earliest, current });
        }
        let epochs = current.0.abs_diff(earliest.0).saturating_add(1);
        if epochs > Self::MAX_EPOCHS {
            return Err(WindowError::TooLong { epochs });
        }
        Ok(Self {
            earliest,
            current,
            readable_from: earliest,
        })
    }

    /// The window from the epoch of `now − lookback` to the epoch of `now`. A window longer than
    /// [`Window::MAX_EPOCHS`] reads only its newest epochs. A reversed window reads only the
    /// current epoch.
    pub fn between(earliest: EpochIndex, current: EpochIndex) -> Self {
        let longest = i64::try_from(Self::MAX_EPOCHS).unwrap_or(i64::MAX);
        let first = EpochIndex(current.0.saturating_sub(longest - 1));
        Self {
            earliest: earliest.min(current),
            current,
            readable_from: earliest.min(current).max(first),
        }
    }

    /// The window of one epoch.
    pub const fn single(epoch: EpochIndex) -> Self {
        Self {
            earliest: epoch,
            current: epoch,
            readable_from: epoch,
        }
    }

    /// The same window, except that epochs before `epoch` are not read, because the user has
    /// cleared the browsing history since then (the draft's starting epoch for attribution). A
    /// window of several epochs does not become a single-epoch window by this.
    #[must_use]
    pub fn readable_from(mut self, epoch: EpochIndex) -> Self {
        self.readable_from = self.readable_from.max(epoch);
        self
    }

    /// True if the window has one epoch.
    pub fn is_single(self) -> bool {
        self.earliest == self.current
    }

    /// The current epoch.
    pub fn current(self) -> EpochIndex {
        self.current
    }

    /// The first epoch that is read, or `None` if every epoch of the window is read.
    pub fn first_readable(self) -> Option<EpochIndex> {
        (self.readable_from > self.earliest).then_some(self.readable_from)
    }

    /// The epochs that are read, oldest first.
    pub fn epochs(self) -> impl Iterator<Item = EpochIndex> {
        (self.readable_from.0..=self.current.0).map(EpochIndex)
    }
}

/// The reason why two epochs do not bound a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// The first epoch comes after the last.
    #[error("a window must not end before it begins, got epochs {} to {}", earliest.0, current.0)]
    Reversed {
        /// The epoch of `now − lookback`.
        earliest: EpochIndex,
        /// The current epoch.
        current: EpochIndex,
    },
    /// The window has more epochs than one request may read.
    #[error("a window must have at most {max} epochs, got {epochs}", max = Window::MAX_EPOCHS)]
    TooLong {
        /// The number of epochs it would have.
        epochs: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_checked() {
        let window = |from, to| Window::new(EpochIndex(from), EpochIndex(to));
        assert_eq!(
            window(3, 2).unwrap_err().to_string(),
            "a window must not end before it begins, got epochs 3 to 2"
        );
        assert_eq!(
            window(i64::MIN, i64::MAX).unwrap_err().to_string(),
            "a window must have at most 4096 epochs, got 18446744073709551615"
        );
        assert_eq!(window(-1, 1).unwrap().epochs().count(), 3);
        assert!(window(2, 2).unwrap().is_single());
    }

    #[test]
    fn clearing_hides_epochs_but_does_not_make_a_window_single() {
        let window = Window::new(EpochIndex(1), EpochIndex(3)).unwrap();
        let cleared = window.readable_from(EpochIndex(3));
        assert_eq!(cleared.epochs().collect::<Vec<_>>(), [EpochIndex(3)]);
        assert!(!cleared.is_single());
        assert_eq!(window.readable_from(EpochIndex(9)).epochs().count(), 0);
        assert_eq!(window.readable_from(EpochIndex(-9)).epochs().count(), 3);
    }
}
