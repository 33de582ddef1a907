//! What takes the place of stores in a build without them.

use std::convert::Infallible;
use std::path::Path;

use bigbird_conformance::ExplainableScenario;

use super::EventAccount;
use crate::{CommandError, CommandResult};

/// A copy of a store, which this build cannot make.
pub(super) struct NoStoreCopy(Infallible);

pub(super) use self::NoStoreCopy as StoreCopy;

impl NoStoreCopy {
    pub(super) fn of(_: &Path) -> Result<Self, CommandError> {
        Err(left_out())
    }

    pub(super) fn now(&self) -> i64 {
        match self.0 {}
    }

    pub(super) fn buckets(&self) -> Result<u32, CommandError> {
        match self.0 {}
    }

    pub(super) fn play(self, _: &ExplainableScenario) -> Result<Vec<EventAccount>, CommandError> {
        match self.0 {}
    }
}

pub(super) fn recorded(_: &Path, _: bool) -> CommandResult {
    Err(left_out())
}

fn left_out() -> CommandError {
    CommandError::misused("this build has no `--store`: it was built without the feature `agent`")
}
