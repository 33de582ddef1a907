//! Records and counting queries on the engine.

use bigbird::{
    AttributionQuery, Capacity, Device, EpochIndex, Impression, ImpressionStore, MicroEpsilon,
    Policy, Profile, ReportRequest, SiteId, Timestamp, UserAction, Window,
};

/// Amounts of budget in units that are fine enough for every amount of a model to be whole.
pub(crate) fn micro(epsilon: f64) -> u64 {
    let micro = (epsilon * 1e6).round();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "amounts of a model are small and positive"
    )]
    let micro = micro as u64;
    micro
}

/// A policy with querier budgets and, if there is a shared limit, a global budget.
pub(crate) fn policy(querier: u64, global: Option<u64>) -> Policy {
    let base = Profile::CookieMonster.policy();
    let mut capacities = *base.capacities();
    capacities.querier_budget = Capacity::Finite(MicroEpsilon::new(querier));
    capacities.global_budget = match global {
        Some(global) => Capacity::Finite(MicroEpsilon::new(global)),
        None => Capacity::Unlimited,
    };
    let built = base.to_builder().capacities(capacities).build();
    built.unwrap_or(base)
}

/// A record: a device-epoch with one impression, or an empty one.
#[derive(Debug, Clone)]
pub(crate) struct Record(Device<ImpressionStore>);

impl Record {
    pub(crate) fn new(policy: &Policy, present: bool) -> Self {
        let mut device = Device::new(policy.clone());
        if present {
            let impression = Impression::new(SiteId(0), UserAction(1), Timestamp(0), 0);
            let _ = device.save_impression(EpochIndex(0), &impression);
        }
        Self(device)
    }

    /// The answer of the record to a counting query that costs `cost` in µε: 1 if it is present and
    /// can pay, and 0 otherwise.
    pub(crate) fn count(&mut self, querier: u32, cost: u64) -> u32 {
        let querier = SiteId(1 + querier);
        let epoch = EpochIndex(0);
        let request = ReportRequest {
            querier,
            conversion_site: querier,
            user_action: UserAction(2),
            window: Window::between(epoch, epoch),
        };
        // Within one epoch, a request of value 1 of 1 costs half its epsilon.
        #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
        let epsilon = 2.0 * cost as f64 / 1e6;
        let query = AttributionQuery::builder(request, Timestamp(1), 1)
            .epsilon(epsilon)
            .build();
        match query {
            Ok(query) => self.0.report(&query, &mut || 0.5).report.buckets()[0],
            // A query that costs nothing is not asked.
            Err(_) => 0,
        }
    }
}
