//! The largest epsilon that would have fitted, for a request that was not answered in full.

use super::query::AttributionQuery;
use crate::{Epsilon, MicroEpsilon};

impl AttributionQuery {
    /// The largest epsilon below the query's own, in µε, for which `fits` is true. None if there is
    /// none.
    ///
    /// `fits` decides the same query with another epsilon, without charging for it. A dropped epoch
    /// fits if it passes ([`Decision::dropped_pass_in`](crate::Decision::dropped_pass_in)). Losses
    /// grow with epsilon, so a binary search finds the value, and every smaller epsilon fits too.
    ///
    /// # Errors
    /// If `fits` fails.
    pub fn largest_epsilon<E>(
        &self,
        mut fits: impl FnMut(&Self) -> Result<bool, E>,
    ) -> Result<Option<MicroEpsilon>, E> {
        let (mut largest, mut too_large) = (0, self.epsilon().micro().get());
        while too_large - largest > 1 {
            let middle = MicroEpsilon::new(largest + (too_large - largest) / 2);
            let Ok(epsilon) = Epsilon::new(middle.to_epsilon()) else {
                break;
            };
            if fits(&self.with_epsilon(epsilon))? {
                largest = middle.get();
            } else {
                too_large = middle.get();
            }
        }
        Ok((largest > 0).then_some(MicroEpsilon::new(largest)))
    }
}
