//! The commands of the laboratory.

mod advice;
mod estimate;
pub(crate) mod plan;
pub(crate) mod reproduce;
pub(crate) mod simulate;
mod source;
mod sweep;
pub(crate) mod tune;
pub(crate) mod workload;
