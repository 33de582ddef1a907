//! Attackers that drain a quota of one honest site that lets them in.

use bigbird::SiteId;

use crate::attack::{AttackStage, Attacker, HeardVisits, Quotas, SiteVisit, Strategy, Strength};

/// Drains the conversion-site quota of one honest site that embeds it (the paper's limitations).
/// Whenever the site's ads are shown, it saves impressions on a Sybil's page. When the site
/// converts, several embedded Sybils request reports about those impressions. Sites that have
/// nothing to do with the attacked site are not harmed.
#[derive(Debug, Clone, Copy, Default)]
pub struct DrainConversionSite;

impl Attacker for DrainConversionSite {
    fn name(&self) -> &'static str {
        "drain-conversion-site"
    }

    fn audience(&self) -> HeardVisits {
        HeardVisits::OneConversionSite
    }

    fn quotas(&self, strength: &Strength) -> Quotas {
        Quotas {
            impression_sites: strength.sybils,
            conversion_sites: 1,
        }
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(|stage: &mut AttackStage<'_>| {
            let sybils = stage.strength().sybils;
            match stage.visit() {
                SiteVisit::Impression { .. } => {
                    let sybil = stage.earlier_actions() % sybils;
                    stage.save_embedded(sybil, stage.site_of(sybil));
                }
                SiteVisit::Conversion { conversion_site } => {
                    let actions = stage.earlier_actions();
                    for sybil in 0..actions.min(sybils) {
                        let page = stage.site_of(sybil);
                        stage.request_embedded(sybil, conversion_site, page);
                    }
                }
            }
        })
    }
}

/// Drains the impression-site quota of one honest site that shows its ads (the paper's
/// limitations). It saves impressions there, and then [`Strength::visits`] Sybils ask about them in
/// each user action.
#[derive(Debug, Clone, Copy, Default)]
pub struct DrainImpressionSite;

impl Attacker for DrainImpressionSite {
    fn name(&self) -> &'static str {
        "drain-impression-site"
    }

    fn audience(&self) -> HeardVisits {
        HeardVisits::OneImpressionSite
    }

    fn quotas(&self, strength: &Strength) -> Quotas {
        Quotas {
            impression_sites: 1,
            conversion_sites: strength.sybils,
        }
    }

    fn strategy(&self, _: &Strength) -> Box<dyn Strategy + '_> {
        Box::new(Target::default())
    }
}

/// The site that it attacks, once the user has been there.
#[derive(Debug, Default)]
struct Target(Option<SiteId>);

impl Strategy for Target {
    fn begin_device(&mut self) {
        self.0 = None;
    }

    fn act(&mut self, stage: &mut AttackStage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        if let SiteVisit::Impression { site, .. } = stage.visit() {
            self.0 = Some(site);
            stage.save_embedded(0, site);
        }
        let Some(site) = self.0 else {
            return;
        };
        let first = stage.earlier_actions().wrapping_mul(visits);
        for visit in 0..visits.min(sybils) {
            let sybil = first.wrapping_add(visit) % sybils;
            stage.request(sybil, &[site]);
        }
    }
}
