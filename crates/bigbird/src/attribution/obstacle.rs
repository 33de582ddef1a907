//! Obstacles: why an impression does not match a query, for people who expected it to.

use super::impression::Impression;
use super::query::{AttributionQuery, named};
use crate::EpochIndex;
use crate::query::Query as _;

/// The reason why an impression does not match a query. If several apply, the first in this order
/// is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// The query does not read the epoch of the impression.
    OutsideWindow,
    /// The impression was saved after the moment of the query.
    SavedLater,
    /// The impression was saved before the lookback began.
    BeforeLookback,
    /// The impression had expired.
    Expired,
    /// The impression allows other conversion sites only.
    ConversionSite,
    /// The impression allows other callers only.
    Caller,
    /// The query asks for impressions of other sites.
    ImpressionSite,
    /// The query asks for impressions that others saved.
    ImpressionCaller,
    /// The query asks for other match values.
    MatchValue,
    /// The user action of the query saved the impression.
    OwnAction,
}

impl AttributionQuery {
    /// The reason why an impression of an epoch does not match. None if it does, so far as its
    /// epoch can be paid for. [`Obstacle::OwnAction`] counts only where the policy excludes such
    /// impressions.
    pub fn obstacle(&self, epoch: EpochIndex, impression: Impression<'_>) -> Option<Obstacle> {
        if !self.request.window.epochs().any(|read| read == epoch) {
            return Some(Obstacle::OutsideWindow);
        }
        // This rule decides. The rest only names the reason.
        if self.relevant(impression).is_some() {
            let own = impression.user_action == self.request.user_action;
            return own.then_some(Obstacle::OwnAction);
        }
        let sites = impression.conversion_sites;
        let reasons = [
            (impression.timestamp > self.now(), Obstacle::SavedLater),
            (
                impression.timestamp < self.not_before(),
                Obstacle::BeforeLookback,
            ),
            (impression.expires < self.now(), Obstacle::Expired),
            (
                !sites.is_empty() && !sites.contains(&self.request.conversion_site),
                Obstacle::ConversionSite,
            ),
            (
                !named(&self.impression_sites, impression.site),
                Obstacle::ImpressionSite,
            ),
            (
                !named(&self.impression_callers, impression.caller()),
                Obstacle::ImpressionCaller,
            ),
            (
                !named(&self.match_values, impression.match_value),
                Obstacle::MatchValue,
            ),
        ];
        let found = reasons.into_iter().find(|(applies, _)| *applies);
        Some(found.map_or(Obstacle::Caller, |(_, reason)| reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReportRequest, SiteId, Timestamp, UserAction, Window};

    /// Each obstacle, on an impression that matches but for it.
    #[test]
    fn every_obstacle_is_named() {
        let shop = SiteId(1);
        let request = ReportRequest {
            querier: shop,
            conversion_site: shop,
            user_action: UserAction(9),
            window: Window::single(EpochIndex(3)),
        };
        let mut query = AttributionQuery::builder(request, Timestamp(100), 5)
            .build()
            .unwrap();
        query.set_not_before(Timestamp(50));
        query.set_impression_sites([SiteId(2)]);
        query.set_impression_callers(vec![SiteId(4)]);
        query.set_match_values(vec![6]);
        let good = Impression {
            intermediary: Some(SiteId(4)),
            match_value: 6,
            conversion_sites: &[SiteId(1)],
            conversion_callers: &[SiteId(1)],
            ..Impression::new(SiteId(2), UserAction(1), Timestamp(60), 0)
        };
        let obstacle = |impression| query.obstacle(EpochIndex(3), impression);
        assert_eq!(obstacle(good), None);
        let outside = query.obstacle(EpochIndex(2), good);
        assert_eq!(outside, Some(Obstacle::OutsideWindow));
        let other = &[SiteId(7)];
        for (impression, expected) in [
            (
                Impression {
                    timestamp: Timestamp(101),
                    ..good
                },
                Obstacle::SavedLater,
            ),
            (
                Impression {
                    timestamp: Timestamp(49),
                    ..good
                },
                Obstacle::BeforeLookback,
            ),
            (
                Impression {
                    expires: Timestamp(99),
                    ..good
                },
                Obstacle::Expired,
            ),
            (
                Impression {
                    conversion_sites: other,
                    ..good
                },
                Obstacle::ConversionSite,
            ),
            (
                Impression {
                    conversion_callers: other,
                    ..good
                },
                Obstacle::Caller,
            ),
            (
                Impression {
                    site: SiteId(7),
                    ..good
                },
                Obstacle::ImpressionSite,
            ),
            (
                Impression {
                    intermediary: None,
                    ..good
                },
                Obstacle::ImpressionCaller,
            ),
            (
                Impression {
                    match_value: 7,
                    ..good
                },
                Obstacle::MatchValue,
            ),
            (
                Impression {
                    user_action: UserAction(9),
                    ..good
                },
                Obstacle::OwnAction,
            ),
        ] {
            assert_eq!(obstacle(impression), Some(expected));
        }
    }
}
