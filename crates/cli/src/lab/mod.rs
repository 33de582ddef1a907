//! The commands of the laboratory.

mod advice;
mod estimate;
mod explain_log;
pub(crate) mod plan;
pub(crate) mod reproduce;
pub(crate) mod simulate;
mod source;
mod sweep;
pub(crate) mod tune;
pub(crate) mod workload;
