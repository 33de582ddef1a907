//! Big Bird in unmodified browsers.
//!
//! A WebExtension gives pages `navigator.attribution`. Budgets, store and encryption stay in a
//! process of their own, which the browser starts and talks to in native-messaging frames:
//! [`NativeHost`]. The `bigbird` command has the rest of it on the command line.

mod frames;
mod host;
mod lazy_store;

pub use frames::{FrameLines, FrameOutput, LONGEST_ANSWER};
pub use host::{NativeHost, StorePlace};
pub use lazy_store::LazyStore;
