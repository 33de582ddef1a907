//! An auditor for privacy budget managers.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod denial;
pub mod manager;
pub mod meter;
pub mod model;
pub mod page;
pub mod run;
pub mod script;
pub mod search;
pub mod story;
