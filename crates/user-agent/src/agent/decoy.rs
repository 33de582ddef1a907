//! A decoy device: work that looks like a conversion and means nothing.
//!
//! The amount of work must not show whether a conversion charged something. So every call that
//! measures makes two passes of the engine: one that finds impressions and charges for them, and
//! one that finds nothing. If the device itself is charged, or would be if the API were enabled,
//! the decoy's pass finds nothing. If the device is not charged, the decoy is charged instead. A
//! call that takes a share attributes nothing on the device, so it makes both passes on the decoy.
//! It also takes a share on the decoy, unless it is charged for a share on the device.

use std::convert::Infallible;
use std::hint::black_box;

use bigbird::{
    AttributionObject, AttributionQuery, Capacity, Decision, EpochIndex, Filter, FilterKind,
    Impression, ImpressionStore, Ledger, Policy, ReportRequest, SiteId, StoreLimits, Timestamp,
    UserAction, Window, Workspace, generate_report,
};

use crate::call::ConversionCall;
use crate::clock::{DAY_MS, period_ms};
use crate::config::Config;
use crate::execution::{LISTED_QUOTAS, conversion_body};
use crate::explanation::Explanation;
use crate::memory::MemoryStore;
use crate::shared::SharedConversion;
use crate::storage::{ChangeSet, Storage as _, StoredObject, Transaction as _};

#[derive(Debug)]
pub(crate) struct Decoy {
    policy: Policy,
    impressions: ImpressionStore,
    ledger: Ledger,
    /// The attribution objects that the device does not keep.
    objects: MemoryStore,
}

/// The work that a call did on the device itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnWork {
    /// A pass of the engine.
    Pass { charged: bool },
    /// No pass of the engine. If the attribution object was found, a share of it was tried.
    Share { charged: bool, found: bool },
}

impl Default for OwnWork {
    fn default() -> Self {
        Self::Pass { charged: false }
    }
}

/// The number of epochs of the decoy, and of impressions in each. Every impression is on a
/// different site. This is as much work as on a device with two or three impressions for the shop
/// in an epoch (the benchmark compares them).
const EPOCHS: i64 = 8;
const IMPRESSIONS: u32 = 3;

/// The conversion site that the decoy's impressions are for.
const SITE: SiteId = SiteId(0);
/// A conversion site that the decoy's impressions are not for.
const OTHER: SiteId = SiteId(1);

impl Decoy {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut impressions = ImpressionStore::new(StoreLimits::default());
        for epoch in 0..EPOCHS {
            for number in 0..IMPRESSIONS {
                let impression = Impression {
                    conversion_sites: &[SITE],
                    ..Impression::new(SiteId(2 + number), UserAction(1), Timestamp(0), number)
                };
                impressions.save(EpochIndex(epoch), &impression);
            }
        }
        // The same filters, with capacities that are never depleted.
        let mut endless = policy.to_builder();
        for kind in FilterKind::ALL {
            if policy.capacities().of(kind) != Capacity::Unlimited {
                endless = endless.capacity(kind, 1e9);
            }
        }
        let policy = endless.build().unwrap_or_else(|_| policy.clone());
        Self {
            ledger: Ledger::new(),
            policy,
            impressions,
            objects: MemoryStore::new(),
        }
    }

    /// Does the work that a call did not do on the device, so that every call takes the same work.
    pub(crate) fn even_out(
        &mut self,
        conversion: &ConversionCall,
        config: &Config,
        own: OwnWork,
        dropped: Option<&ChangeSet>,
    ) {
        if let Some(changes) = dropped {
            self.ledger.apply(&changes.ledger);
            self.ledger.reset();
            for stored in &changes.objects {
                self.keep(stored.object.clone());
                // On the device, a new object would not replace another. The copy makes up for
                // that.
                if let OwnWork::Pass { .. } = own {
                    drop(stored.clone());
                }
            }
        }
        match own {
            OwnWork::Pass { charged } => self.pass(conversion, config, !charged),
            OwnWork::Share { charged, found } => {
                let object = self.share(conversion, config, !charged);
                if !found {
                    // Reading an object from a store makes a copy.
                    self.keep(object.clone());
                }
                self.pass(conversion, config, false);
            }
        }
    }

    /// Makes one pass with the dimensions of a request.
    fn pass(&mut self, conversion: &ConversionCall, config: &Config, charged: bool) {
        let site = if charged { SITE } else { OTHER };
        let query = query(conversion, config, site);
        let mut workspace = Workspace::default();
        let mut draw = || 0.5;
        let Ok(()) = generate_report(
            &self.policy,
            &self.impressions,
            &self.ledger,
            &query,
            &mut draw,
            &mut workspace,
        );
        self.ledger.apply(workspace.changes());
        self.ledger.reset();
        record(conversion, &query, workspace.decision());
    }

    /// Makes one pass that charges and creates an attribution object. With `take`, also takes a
    /// share of the object.
    fn share(
        &mut self,
        conversion: &ConversionCall,
        config: &Config,
        take: bool,
    ) -> AttributionObject {
        let query = query(conversion, config, SITE);
        let mut draw = || 0.5;
        let Ok((mut object, _, changes)) = AttributionObject::create(
            &self.policy,
            &self.impressions,
            &self.ledger,
            &query,
            &mut draw,
        );
        self.ledger.apply(&changes);
        if take {
            let all = EpochIndex(0);
            let Ok((share, changes)) = object.share(&self.policy, &self.ledger, &query, all);
            self.ledger.apply(&changes);
            record(conversion, &query, &share.decision);
        }
        self.ledger.reset();
        object
    }

    /// Stores an attribution object on the decoy, in place of the last one.
    fn keep(&mut self, object: AttributionObject) {
        let mut changes = ChangeSet::default();
        changes.objects.push(StoredObject {
            number: 0,
            shared: SharedConversion(0),
            object,
        });
        let Ok(()) = self
            .objects
            .begin()
            .and_then(|mut transaction| transaction.apply(&changes));
    }
}

/// Writes down a decision as history does, and drops it.
fn record(conversion: &ConversionCall, query: &AttributionQuery, decision: &Decision) {
    let site = |filter: Filter| Ok(filter.site().map(|_| conversion.site().clone()));
    let Ok(explanation) =
        Explanation::of_decision::<Infallible>(query, None, decision, LISTED_QUOTAS, &site);
    black_box(conversion_body(conversion, explanation, 0));
}

/// A query with the dimensions of a request (lookback, terms and histogram size), by a site of the
/// decoy.
fn query(
    ConversionCall { valid, .. }: &ConversionCall,
    config: &Config,
    site: SiteId,
) -> AttributionQuery {
    let lookback_ms = i64::from(valid.lookback_days) * DAY_MS;
    let epochs = (lookback_ms / period_ms(config.epoch_days) + 1).clamp(1, EPOCHS);
    let request = ReportRequest {
        querier: site,
        conversion_site: site,
        user_action: UserAction(2),
        window: Window::between(EpochIndex(0), EpochIndex(epochs - 1)),
    };
    let terms = valid.terms.clone();
    AttributionQuery::new(request, Timestamp(0), terms, valid.histogram_size)
}
