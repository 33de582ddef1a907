//! The paper's evaluation: every run behind its figures, its claims about them, and a report on
//! whether the claims hold.
//!
//! [`suites`] plans the runs, [`reproduce`] makes them and keeps their results, [`figures`] draws
//! them, [`claims`] and [`comparison`] compare them with the paper's [`numbers`], and
//! [`mod@report`] puts everything on one page.

pub mod claims;
pub mod comparison;
pub mod figures;
pub mod numbers;
pub mod report;
pub mod reproduce;
pub mod suites;
