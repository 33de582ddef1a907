//! The laboratory's commands.

pub(crate) mod simulate;
mod source;
