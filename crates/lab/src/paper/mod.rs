//! The paper's evaluation: every run of its figures, what it claims of them, and a report that says
//! whether that holds.
//!
//! [`suites`] plans the runs, [`reproduce`] makes them and keeps their results, [`figures`] draws them,
//! [`claims`] compares them with the paper, and [`mod@report`] is the page about all of it.

pub mod claims;
pub mod figures;
pub mod report;
pub mod reproduce;
pub mod suites;
