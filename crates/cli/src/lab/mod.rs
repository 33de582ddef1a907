//! The laboratory's commands.

pub(crate) mod plan;
pub(crate) mod reproduce;
pub(crate) mod simulate;
mod source;
pub(crate) mod tune;
pub(crate) mod workload;
