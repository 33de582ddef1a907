//! The durable store of a user agent: one SQLite file that fails closed.
//!
//! A store that forgot what was spent would refund it. So one rule holds everywhere here: **what
//! was charged stays charged**, through crashes, power cuts, full disks, damaged files and two
//! processes at once. A store that cannot be read is an error, and then no report is released.
//!
//! | layer | module | guards against |
//! |---|---|---|
//! | one transaction for calls that arrive together | `transaction`, SQLite | crashes, power cuts |
//! | page checksums | `vfs` | flipped bits, pages in the wrong place |
//! | row guards, ledger digest | `checksum`, [`check`] | missing, old or altered rows |
//! | inspection of the log before SQLite reads it | `log` | transactions that SQLite would skip |
//! | a mark in the file while a process uses it | `store` | a log that was lost |
//!
//! A transaction is flushed before its report is released.
//!
//! `docs/store.md` describes the format, and what each layer can and cannot detect. Start with
//! [`SqliteStore`].
//!
//! ```
//! use bigbird::{Profile, Timestamp};
//! use bigbird_user_agent::{Call, Config, ImpressionOptions, Randomness, UserAgent};
//! use bigbird_store::{SqliteStore, StoreOptions};
//!
//! # struct FixedRandomness;
//! # impl Randomness for FixedRandomness {
//! #     fn epoch_start(&mut self) -> f64 { 0.5 }
//! #     fn credit(&mut self) -> f64 { 0.5 }
//! #     fn handle(&mut self, number: u64) -> u128 { number.into() }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("bigbird-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder)?;
//! # let path = folder.join("profile.store");
//! let store = SqliteStore::open_or_create(&path, &StoreOptions::default())?;
//! let config = Config::new(Profile::BigBird);
//! let mut agent = UserAgent::new(config, store, FixedRandomness, Timestamp(1_000))?;
//! let click = agent.begin_user_action(Timestamp(1_000))?;
//! let seen = Call::new("news.example", Timestamp(1_000)).by(click);
//! agent.save_impression(&seen, &ImpressionOptions::new(2))?;
//! agent.into_storage().close()?;
//!
//! assert_eq!(bigbird_store::check(&path)?.impressions, 1);
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```

mod admissions;
mod checksum;
mod device;
mod error;
mod filters;
mod history;
mod impressions;
mod log;
mod objects;
mod reset;
mod schema;
mod sites;
mod store;
mod summary;
mod temporary;
mod transaction;
mod verify;
mod vfs;

pub use error::{Damage, Problem, StoreError};
pub use reset::{Reset, backup, reset};
pub use store::{SqliteStore, StoreOptions};
pub use summary::{EpochSummary, StoreSummary};
pub use transaction::SqliteTransaction;
pub use verify::{CheckReport, check};
