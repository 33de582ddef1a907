//! The same impressions and requests on the real device, so that the two can be compared.

use bigbird::attribution::QueryError;
use bigbird::{
    AttributionQuery, Device, EpochIndex, Fate, Impression, ImpressionStore, ReportRequest,
    SaveResult, SiteId, Timestamp, UserAction, Window, Workspace,
};

use crate::{Ad, Ask, EpochAnswer, ReferenceAnswer};

impl Ad {
    /// Saves the impression on a device.
    pub fn save_on(&self, device: &mut Device<ImpressionStore>, epoch: i64) -> SaveResult {
        let impression = Impression {
            site: SiteId(self.site),
            intermediary: self.intermediary.map(SiteId),
            user_action: UserAction(self.action),
            timestamp: Timestamp(self.timestamp),
            expires: Timestamp(self.expires),
            match_value: self.match_value,
            histogram_index: self.index,
            priority: self.priority,
            conversion_sites: &ids(&self.conversion_sites),
            conversion_callers: &ids(&self.conversion_callers),
        };
        device.save_impression(EpochIndex(epoch), &impression)
    }
}

impl Ask {
    /// The query for a device that corresponds to this request.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn query(&self) -> Result<AttributionQuery, QueryError> {
        let request = ReportRequest {
            querier: SiteId(self.querier),
            conversion_site: SiteId(self.conversion_site),
            user_action: UserAction(self.action),
            window: Window::between(EpochIndex(self.earliest), EpochIndex(self.current))
                .readable_from(EpochIndex(self.readable_from)),
        };
        #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
        let epsilon = self.epsilon_micro as f64 / 1e6;
        let mut query = AttributionQuery::builder(request, Timestamp(self.now), self.size)
            .not_before(Timestamp(self.not_before))
            .callers(ids(&self.callers))
            .impression_sites(ids(&self.impression_sites))
            .impression_callers(ids(&self.impression_callers))
            .match_values(self.match_values.clone())
            .credit(self.credit.clone())
            .value(self.value, self.max_value)
            .epsilon(epsilon)
            .build()?;
        query.set_read_limits(self.read_limits);
        Ok(query)
    }

    /// Asks a device, with the draws of this request, and gives its answer in the form of the
    /// reference's.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn ask_device(
        &self,
        device: &mut Device<ImpressionStore>,
        workspace: &mut Workspace<AttributionQuery>,
    ) -> Result<ReferenceAnswer, QueryError> {
        let mut draws = self.draws.iter().copied().cycle();
        let mut draw = || draws.next().unwrap_or(0.5);
        device.report_in(&self.query()?, &mut draw, workspace);
        let epochs = workspace.decision().epochs().map(|epoch| EpochAnswer {
            epoch: epoch.epoch.0,
            matched: epoch.matched,
            passed: epoch.fate == Fate::Passed,
            charges: epoch
                .checks
                .iter()
                .map(|check| (check.filter, check.asked.get()))
                .collect(),
        });
        Ok(ReferenceAnswer {
            histogram: workspace.report().buckets().to_vec(),
            epochs: epochs.collect(),
        })
    }
}

fn ids(sites: &[u32]) -> Vec<SiteId> {
    sites.iter().map(|&site| SiteId(site)).collect()
}
