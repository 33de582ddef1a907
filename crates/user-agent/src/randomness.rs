//! The random numbers of a user agent.

/// The source of a user agent's random numbers. Fractions are in [0, 1).
pub trait Randomness {
    /// The part of the last epoch that had passed when the first call came, as a fraction of an
    /// epoch. It is drawn when epochs begin. An explanation before that draws one too, and does not
    /// keep it.
    fn epoch_start(&mut self) -> f64;

    /// A fraction by which credit is rounded.
    fn credit(&mut self) -> f64;

    /// The handle of a shared conversion: 128 random bits that pages cannot predict.
    ///
    /// The `number` of the shared conversion is never given twice. It is there for sources that
    /// are meant to be repeatable, in tests; others ignore it.
    fn handle(&mut self, number: u64) -> u128;
}

#[cfg(feature = "system-randomness")]
pub use system::{RandomnessError, SystemRandomness};

#[cfg(feature = "system-randomness")]
mod system {
    use std::hash::{BuildHasher as _, RandomState};
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use thiserror::Error;

    use super::Randomness;

    /// Random numbers from the operating system (feature `system-randomness`).
    ///
    /// ```
    /// use bigbird_user_agent::{Randomness as _, SystemRandomness};
    ///
    /// let mut randomness = SystemRandomness::new()?;
    /// assert!((0.0..1.0).contains(&randomness.credit()));
    /// assert_ne!(randomness.handle(1), randomness.handle(1));
    /// # Ok::<(), bigbird_user_agent::RandomnessError>(())
    /// ```
    #[derive(Debug, Clone, Copy)]
    pub struct SystemRandomness {
        _works: (),
    }

    /// The operating system does not give random numbers.
    #[derive(Debug, Clone, PartialEq, Eq, Error)]
    #[error("the operating system does not give random numbers: {0}")]
    pub struct RandomnessError(String);

    impl SystemRandomness {
        /// Random numbers from the operating system.
        ///
        /// # Errors
        /// If the system does not give any. A system that gave one number gives others: this is
        /// the only time it is asked whether it can.
        pub fn new() -> Result<Self, RandomnessError> {
            match getrandom::u64() {
                Ok(_) => Ok(Self { _works: () }),
                Err(error) => Err(RandomnessError(error.to_string())),
            }
        }

        /// A handle of a shared conversion, for [`ServeOptions`](crate::protocol::ServeOptions).
        pub fn handle_bits() -> u128 {
            u128::from(bits()) << 64 | u128::from(bits())
        }

        /// A number in [0, 1) with all 53 bits of a double.
        fn fraction() -> f64 {
            #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
            let number = (bits() >> 11) as f64;
            number / (1_u64 << 53) as f64
        }
    }

    /// 64 random bits. Should the system fail after all, they come from a keyed hash of a counter
    /// instead, with a key that is secret to this process: pages cannot predict them either.
    fn bits() -> u64 {
        static KEY: OnceLock<RandomState> = OnceLock::new();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        getrandom::u64().unwrap_or_else(|_| {
            let next = NEXT.fetch_add(1, Ordering::Relaxed);
            KEY.get_or_init(RandomState::new).hash_one(next)
        })
    }

    impl Randomness for SystemRandomness {
        fn epoch_start(&mut self) -> f64 {
            Self::fraction()
        }

        fn credit(&mut self) -> f64 {
            Self::fraction()
        }

        fn handle(&mut self, _: u64) -> u128 {
            Self::handle_bits()
        }
    }
}
