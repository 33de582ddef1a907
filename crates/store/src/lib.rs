//! The durable store of a user agent: one SQLite file that fails closed.
//!
//! Losing what was spent would give it back, so everything here serves one rule: **what was charged
//! stays charged**, through crashes, power cuts, full disks, damaged files and two processes at
//! once. What cannot be read is an error, and nothing is released.
//!
//! | layer | guards against | in |
//! |---|---|---|
//! | one transaction a conversion, flushed before its report is released | crashes, power cuts | `transaction`, SQLite |
//! | a checksum in every page of the file | flipped bits, pages in the wrong place | `vfs` |
//! | a checksum in every row, a digest over all rows of the ledger | rows that are missing, stale or altered | `seal`, [`check`] |
//! | a look at the write-ahead log before SQLite reads it | transactions that SQLite would pass over | `log` |
//! | a mark in the file while somebody has it open | a log that was lost | `store` |
//!
//! `docs/store.md` tells what each can and cannot detect. Start with [`SqliteStore`].
//!
//! ```
//! use bigbird::{Profile, Timestamp};
//! use bigbird_user_agent::{Call, Config, ImpressionOptions, Randomness, UserAgent};
//! use bigbird_store::{SqliteStore, StoreOptions};
//!
//! # struct Half;
//! # impl Randomness for Half {
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
//! let mut agent = UserAgent::new(config, store, Half, Timestamp(1_000))?;
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
mod contents;
mod device;
mod error;
mod filters;
mod impressions;
mod log;
mod objects;
mod reset;
mod schema;
mod seal;
mod sites;
mod store;
mod temporary;
mod transaction;
mod verify;
mod vfs;

pub use contents::{Contents, EpochContents};
pub use error::{Damage, Problem, StoreError};
pub use reset::{Reset, backup, reset};
pub use store::{SqliteStore, StoreOptions};
pub use transaction::SqliteTransaction;
pub use verify::{Checked, check};
