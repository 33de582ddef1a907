//! The gate of the user agent for a browser extension: everything that needs no store.
//!
//! An extension asks the native host about every call of a page. When the host is missing, a page
//! must not notice: it gets the same errors, and null reports of the same size at the same moment.
//! This crate makes those answers, from the code that the host runs. It also parses response
//! headers and keeps the rules of activation, which need no host at all.
//!
//! [`BrowserGate::answer`] takes one JSON request and returns one JSON answer. The README describes
//! the requests, and how JavaScript calls the WebAssembly module.
//!
//! ```
//! use bigbird::Timestamp;
//! use bigbird_wasm::BrowserGate;
//!
//! let mut gate = BrowserGate::default();
//! let request = r#"{"event": "site", "host": "www.shop.example"}"#;
//! assert_eq!(gate.answer(request, Timestamp(0)), r#"{"ok":true,"site":"shop.example"}"#);
//! ```

#[cfg(target_arch = "wasm32")]
mod abi;
mod activation;
mod gate;
mod headers;

pub use gate::BrowserGate;
