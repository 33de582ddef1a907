//! A decoy device: work that looks like a conversion and means nothing.
//!
//! Whether a conversion charged something must not show in how much work it was. So every call
//! that measures makes two passes of the engine, one that finds impressions and charges for them
//! and one that finds nothing. If the device itself is charged, or would be if the API were not
//! disabled, the decoy's pass finds nothing; if the device has nothing, the decoy is charged
//! instead. A call that takes a share attributes nothing on the device, so it makes both passes
//! here, and takes a share of the decoy's unless it is charged for one of the device's.

use bigbird::{
    AttributionObject, AttributionQuery, Capacity, EpochIndex, FilterKind, Impression,
    ImpressionStore, Ledger, Policy, Request, SiteId, StoreLimits, Timestamp, UserAction, Window,
    Workspace, generate_report,
};

use crate::call::ConversionCall;
use crate::clock::{DAY_MS, period_ms};
use crate::config::Config;
use crate::memory::Memory;
use crate::shared::SharedConversion;
use crate::storage::{ChangeSet, Storage as _, StoredObject, Transaction as _};

#[derive(Debug)]
pub(crate) struct Decoy {
    policy: Policy,
    impressions: ImpressionStore,
    ledger: Ledger,
    /// Of attribution objects that the device does not keep.
    objects: Memory,
}

/// What a call did on the device itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnWork {
    /// A pass of the engine.
    Pass { charged: bool },
    /// Perhaps a share of an attribution object; it makes no pass of the engine.
    Share { charged: bool, found: bool },
}

impl Default for OwnWork {
    fn default() -> Self {
        Self::Pass { charged: false }
    }
}

/// How many epochs the decoy has, and how many impressions in each, every one on a site of its
/// own: as much work as a device whose shop has two or three in an epoch (the benchmark compares).
const EPOCHS: i64 = 8;
const IMPRESSIONS: u32 = 3;

/// The conversion site that the decoy's impressions are for.
const SITE: SiteId = SiteId(0);
/// A conversion site that they are not for.
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
        // The same filters, none of which ever runs dry.
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
            objects: Memory::new(),
        }
    }

    /// Does what a call did not do on the device, so that every call is the same work.
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
                // It would be one more, and not in the place of another.
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
                    // To read one is to make a copy.
                    self.keep(object.clone());
                }
                self.pass(conversion, config, false);
            }
        }
    }

    /// One pass with the measure of a request.
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
    }

    /// One pass that charges and makes an attribution object, and perhaps takes a share of it.
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
            let Ok((_, changes)) = object.share(&self.policy, &self.ledger, &query, all);
            self.ledger.apply(&changes);
        }
        self.ledger.reset();
        object
    }

    /// Keeps an attribution object that is not the device's, in place of the last one.
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

/// A query with the measure of a request, by a site of the decoy's.
fn query(
    ConversionCall { valid, .. }: &ConversionCall,
    config: &Config,
    site: SiteId,
) -> AttributionQuery {
    let lookback_ms = i64::from(valid.lookback_days) * DAY_MS;
    let epochs = (lookback_ms / period_ms(config.epoch_days) + 1).clamp(1, EPOCHS);
    let request = Request {
        querier: site,
        conversion_site: site,
        user_action: UserAction(2),
        window: Window::between(EpochIndex(0), EpochIndex(epochs - 1)),
    };
    let terms = valid.terms.clone();
    AttributionQuery::new(request, Timestamp(0), terms, valid.histogram_size)
}
