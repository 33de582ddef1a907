//! The free denial, which the paper's literal site charging allows.

use bigbird::{EpochIndex, SiteId};

use crate::attack::{
    AttackStage, Attacker, HeardVisits, Quotas, SiteVisit, Strategy, Strength, SybilImpression,
    SybilRequest,
};

/// Empties the impression-site quotas of every honest site that shows an advertiser's ads, and pays
/// nothing for it, if sites are charged by the paper's literal rule.
///
/// It is a script in those ads. Wherever they are shown, it saves an impression of its own on the
/// honest site. Then, on a page of its own, it asks for reports over the current epoch alone about
/// that site and one of its own, and all credit falls outside the histogram. The report says
/// nothing, so the epoch pays nothing. But by the paper's rule each of several impression sites
/// pays the worst case: the honest site's quota is spent, and reports of every advertiser on that
/// site are refused. The attacker needs no budget, and one conversion site.
///
/// Where sites pay what the epoch pays (the default), it takes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct FreeDenial;

impl Attacker for FreeDenial {
    fn name(&self) -> &'static str {
        "free-denial"
    }

    fn audience(&self) -> HeardVisits {
        HeardVisits::OneConversionSite
    }

    /// Every honest site can be among those that show the ads.
    fn quotas(&self, strength: &Strength) -> Quotas {
        Quotas {
            impression_sites: u32::MAX,
            conversion_sites: strength.sybils,
        }
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(AdScript {
            epoch: EpochIndex(i64::MIN),
            sites: Vec::new(),
            own: Vec::new(),
            next: 0,
        })
    }
}

/// What it did in the current epoch.
#[derive(Debug)]
struct AdScript {
    epoch: EpochIndex,
    /// The honest sites that have an impression of it.
    sites: Vec<SiteId>,
    /// The Sybils that have an impression.
    own: Vec<u32>,
    /// Counts requests, so that they take turns in naming Sybils.
    next: usize,
}

/// A bucket that its reports do not have.
const OUTSIDE: u32 = 1;

impl Strategy for AdScript {
    fn begin_device(&mut self) {
        self.sites.clear();
        self.own.clear();
        self.next = 0;
    }

    fn act(&mut self, stage: &mut AttackStage<'_>) {
        if self.epoch != stage.epoch() {
            self.epoch = stage.epoch();
            self.sites.clear();
            self.own.clear();
        }
        let (sites, own) = (self.sites.len(), self.own.len());
        let sybil = stage.earlier_actions() % stage.strength().sybils;
        if let SiteVisit::Impression { site, .. } = stage.visit() {
            stage.save_impression(&SybilImpression {
                bucket: OUTSIDE,
                ..SybilImpression::embedded(sybil, site)
            });
            if !self.sites.contains(&site) {
                self.sites.push(site);
            }
        }
        stage.save_impression(&SybilImpression {
            bucket: OUTSIDE,
            ..SybilImpression::on(stage.site_of(sybil))
        });
        if !self.own.contains(&sybil) {
            self.own.push(sybil);
        }
        // A user action cannot ask about its own impressions.
        for &site in &self.sites[..sites] {
            let Some(&other) = self.own[..own].get(self.next % own.max(1)) else {
                return;
            };
            self.next += 1;
            stage.request_report(&SybilRequest {
                impression_sites: &[site, stage.site_of(other)],
                lookback_epochs: 0,
                ..stage.asking(sybil)
            });
        }
    }
}
