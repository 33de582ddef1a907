//! Big Bird in unmodified browsers.
//!
//! A WebExtension gives pages `navigator.attribution`. Budgets, store and encryption stay in a
//! process of their own, which the browser starts and talks to in native-messaging frames:
//! [`NativeHost`]. An [`Installation`] puts both into a browser of the user, and a
//! [`ThrowawayBrowser`] has them in a profile that leaves nothing behind.

pub mod demo;
mod error;
mod extension;
mod frames;
mod host;
mod install;
mod kind;
mod lazy_store;
mod marionette;
mod registration;
mod throwaway;

pub use error::BrowserError;
pub use extension::{
    ExtensionConfig, chromium_id, extension_archive, extension_files, firefox_id, write_extension,
};
pub use frames::{FrameLines, FrameOutput, LONGEST_ANSWER};
pub use host::{NativeHost, StorePlace};
pub use install::{InstallOptions, Installation, InstalledFile, Removal, uninstall};
pub use kind::{BrowserKind, UnknownBrowser, UserFolders};
pub use lazy_store::LazyStore;
pub use registration::{HOST_NAME, HostCommand, host_manifest};
pub use throwaway::{ProxyAddress, ThrowawayBrowser, ThrowawayOptions};
