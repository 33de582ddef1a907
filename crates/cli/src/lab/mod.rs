//! The laboratory's commands.

pub(crate) mod reproduce;
pub(crate) mod simulate;
mod source;
