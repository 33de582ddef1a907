//! The attackers of the paper's evaluation, of its examples and of its limitations, and a slow one.

use super::{
    AttackStage, Attacker, HeardVisits, LISTED, LISTED_NOW, Quotas, SiteVisit, Strength, VISITED,
};

/// The paper's random attacker. Each request lists a random share of the pool as impression sites:
/// 35% by default. It avoids the Sybils that the user visits in this user action and, as long as
/// possible, those that an earlier request of this user action listed.
#[derive(Debug, Clone, Copy)]
pub struct Random {
    /// The share of the pool that each request lists.
    pub share: f64,
}

impl Default for Random {
    fn default() -> Self {
        Self { share: 0.35 }
    }
}

impl Attacker for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn act(&self, stage: &mut AttackStage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a small number"
        )]
        let listed = (f64::from(sybils) * self.share).round().max(1.0) as usize;
        let mut visited = std::mem::take(&mut stage.memory.chosen);
        let mut list = std::mem::take(&mut stage.memory.listed);
        visited.clear();
        stage.memory.marks.fill(0);
        stage.choose(visits as usize, 0, VISITED, &mut visited);
        for &sybil in &visited {
            stage.save(sybil);
            list.clear();
            stage.choose(listed, VISITED | LISTED, LISTED_NOW, &mut list);
            // Too few are left, so Sybils of earlier requests are listed again.
            let missing = listed - list.len();
            if missing > 0 {
                stage.choose(missing, VISITED | LISTED_NOW, LISTED_NOW, &mut list);
            }
            for &other in &list {
                stage.memory.marks[other as usize] = LISTED;
            }
            stage.request(sybil, &list);
        }
        stage.memory.chosen = visited;
        stage.memory.listed = list;
    }
}

/// The paper's omniscient attacker. It knows every quota, and first uses Sybils that have no
/// impression yet. It asks only about Sybils whose impression-site quota still covers a report,
/// about each at most once in a user action.
#[derive(Debug, Clone, Copy, Default)]
pub struct Omniscient;

impl Attacker for Omniscient {
    fn name(&self) -> &'static str {
        "omniscient"
    }

    fn act(&self, stage: &mut AttackStage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        let mut targets = std::mem::take(&mut stage.memory.listed);
        let mut visited = std::mem::take(&mut stage.memory.chosen);
        targets.clear();
        visited.clear();
        let seen = stage.with_impression();
        visited.extend((0..sybils).filter(|sybil| !seen.contains(sybil)));
        visited.extend_from_slice(seen);
        visited.truncate(visits as usize);
        targets.extend_from_slice(seen);
        targets.retain(|sybil| stage.quota_covers_a_report(*sybil));
        let mut next = targets.iter();
        for &sybil in &visited {
            stage.save(sybil);
            if let Some(&target) = next.next() {
                stage.request(sybil, &[target]);
            }
        }
        stage.memory.listed = targets;
        stage.memory.chosen = visited;
    }
}

/// The paper's naive attacker. It leads the user through [`Strength::visits`] Sybils, and each asks
/// about all Sybils at once. Where charges are atomic, one Sybil whose quota is depleted makes the
/// whole request fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct Naive;

impl Attacker for Naive {
    fn name(&self) -> &'static str {
        "naive"
    }

    fn act(&self, stage: &mut AttackStage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        let mut visited = std::mem::take(&mut stage.memory.chosen);
        let mut all = std::mem::take(&mut stage.memory.listed);
        visited.clear();
        all.clear();
        all.extend(0..sybils);
        stage.memory.marks.fill(0);
        stage.choose(visits as usize, 0, VISITED, &mut visited);
        for &sybil in &visited {
            stage.save(sybil);
            stage.request(sybil, &all);
        }
        stage.memory.chosen = visited;
        stage.memory.listed = all;
    }
}

/// The paper's other example (figure "Sybils as intermediaries"). Sybils that are embedded in one
/// site of the attacker save impressions there and request reports there, each with its own querier
/// budget. The domain cap counts only that one site, and the two quotas of that site pay for all
/// Sybils.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intermediaries;

impl Attacker for Intermediaries {
    fn name(&self) -> &'static str {
        "intermediaries"
    }

    fn quotas(&self, _: &Strength) -> Quotas {
        Quotas {
            impression_sites: 1,
            conversion_sites: 1,
        }
    }

    fn act(&self, stage: &mut AttackStage<'_>) {
        let home = stage.home();
        for sybil in 0..stage.strength().sybils {
            stage.save_embedded(sybil, home);
            stage.request_embedded(sybil, home, home);
        }
    }
}

/// An attacker that paces itself. In each user action it uses one Sybil, the next of the pool, and
/// asks about the Sybil of the action before. Neither a domain cap nor a limit on bursts notices
/// anything. Only quotas that last for the whole epoch bound it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slow;

impl Attacker for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn act(&self, stage: &mut AttackStage<'_>) {
        let sybils = stage.strength().sybils.max(1);
        let sybil = stage.earlier_actions() % sybils;
        stage.save(sybil);
        if let Some(earlier) = stage.earlier_actions().checked_sub(1) {
            stage.request(sybil, &[earlier % sybils]);
        }
    }
}

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

    fn act(&self, stage: &mut AttackStage<'_>) {
        let sybils = stage.strength().sybils.max(1);
        match stage.visit() {
            SiteVisit::Impression { .. } => {
                let sybil = stage.earlier_actions() % sybils;
                let page = stage.site_of(sybil);
                stage.save_embedded(sybil, page);
            }
            SiteVisit::Conversion { conversion_site } => {
                let actions = stage.earlier_actions();
                for sybil in 0..actions.min(sybils) {
                    let page = stage.site_of(sybil);
                    stage.request_embedded(sybil, conversion_site, page);
                }
            }
        }
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

    fn act(&self, stage: &mut AttackStage<'_>) {
        let Strength { sybils, visits, .. } = stage.strength();
        if let SiteVisit::Impression { site, .. } = stage.visit() {
            stage.memory.target = Some(site);
            stage.save_embedded(0, site);
        }
        let Some(site) = stage.memory.target else {
            return;
        };
        let first = stage.earlier_actions().wrapping_mul(visits);
        for visit in 0..visits.min(sybils) {
            let sybil = first.wrapping_add(visit) % sybils;
            stage.request_of(sybil, site);
        }
    }
}

/// All attackers.
pub const ALL: [&'static dyn Attacker; 7] = [
    &Random { share: 0.35 },
    &Omniscient,
    &Naive,
    &Intermediaries,
    &Slow,
    &DrainConversionSite,
    &DrainImpressionSite,
];

/// The attacker with this name.
pub fn by_name(name: &str) -> Option<&'static dyn Attacker> {
    ALL.into_iter().find(|attacker| attacker.name() == name)
}
