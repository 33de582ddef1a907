//! Free denial: making others' reports null without paying for it (the resilience theorem, §4.4).
//!
//! An attacker with one conversion site and some user actions makes requests about the impressions
//! of honest publishers. Afterwards an honest site asks. The attack is free if it took more from an
//! honest publisher's quota than the attacker's own conversion-site quota paid: then a quota of the
//! attacker's does not bound what it can take.

use bigbird::{
    AttributionQuery, Device, EpochIndex, Filter, Impression, ImpressionStore, ReportRequest,
    SiteCharging, SiteId, Timestamp, UserAction, Window,
};
use serde::Serialize;

use crate::script::{AskTerms, Credit, ScriptSetup};
use crate::search::SearchDice;

/// The result of a search for free denial.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DenialResult {
    /// The rule by which impression sites pay.
    pub site_charging: SiteCharging,
    /// The number of attacks that were tried.
    pub attacks: u64,
    /// The attack that took the most beyond what it paid, if any did.
    pub free: Option<Denial>,
}

/// An attack.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Denial {
    /// The buckets of the honest publishers' impressions.
    pub publishers: Vec<u32>,
    /// The attacker's requests.
    pub requests: Vec<AttackRequest>,
    /// What the attack consumed of the global budget, in µε.
    pub from_global: u64,
    /// What the attack consumed of the attacker's conversion-site quota, in µε.
    pub from_own_quota: u64,
    /// What the attack consumed of the honest publisher's quota that lost most, in µε.
    pub from_publisher: u64,
    /// True if an honest request that would have been answered is null afterwards.
    pub honest_report_null: bool,
}

/// A request of the attacker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AttackRequest {
    /// The user action.
    pub action: u16,
    /// The terms.
    #[serde(flatten)]
    pub terms: AskTerms,
    /// The number of epochs of the window.
    pub epochs: u8,
}

const ATTACKER: SiteId = SiteId(10);
const HONEST: SiteId = SiteId(11);
const NOW: Timestamp = Timestamp(100);
const CURRENT: EpochIndex = EpochIndex(3);

/// Searches for an attack that takes more than it pays.
pub fn search_denial(site_charging: SiteCharging, attacks: u64, seed: u64) -> DenialResult {
    let mut dice = SearchDice::new(seed, "denial");
    let mut best: Option<Denial> = None;
    let setup = setup(site_charging);
    for _ in 0..attacks {
        let (publishers, mut requests) = match &best {
            // Add to the best attack, or try another.
            Some(best) if dice.chance(50) => (best.publishers.clone(), best.requests.clone()),
            _ => {
                let count = 1 + dice.below(3);
                (bucket_list(&mut dice, count), Vec::new())
            }
        };
        for _ in 0..1 + dice.below(3) {
            requests.push(request(&mut dice, &setup));
        }
        let Some(denial) = attack(&setup, publishers, requests) else {
            continue;
        };
        let rank = |it: &Denial| {
            let beyond = it.from_publisher - it.from_own_quota;
            (
                it.honest_report_null,
                beyond,
                std::cmp::Reverse(it.requests.len()),
            )
        };
        if best.as_ref().is_none_or(|best| rank(&denial) > rank(best)) {
            best = Some(denial);
        }
    }
    DenialResult {
        site_charging,
        attacks,
        free: best.map(|it| shrink(&setup, it)),
    }
}

/// The paper's default capacities.
fn setup(site_charging: SiteCharging) -> ScriptSetup {
    ScriptSetup {
        querier_budget: Some(1_000_000),
        global_budget: Some(8_000_000),
        impression_site_quota: Some(2_000_000),
        conversion_site_quota: Some(1_000_000),
        site_charging,
        ..ScriptSetup::default()
    }
}

fn bucket_list(dice: &mut SearchDice, count: usize) -> Vec<u32> {
    (0..count).map(|_| dice.pick(&[0, 1, 2, 9])).collect()
}

fn request(dice: &mut SearchDice, setup: &ScriptSetup) -> AttackRequest {
    let quota = setup.impression_site_quota.unwrap_or(1_000_000);
    let (value, max_value) = dice.pick(&[(1, 1), (1, 2), (3, 3)]);
    AttackRequest {
        action: u16::try_from(100 + dice.below(4)).unwrap_or(100),
        terms: AskTerms {
            epsilon: dice.pick(&[quota, 2 * quota, quota / 2, 1]),
            value,
            max_value,
            credit: dice.pick(&[Credit::Last, Credit::Even, Credit::Rising]),
            buckets: dice.pick(&[1, 2, 3]),
        },
        epochs: dice.pick(&[1, 1, 2, 3]),
    }
}

/// Carries out an attack. `None` if it took no more than it paid.
fn attack(
    setup: &ScriptSetup,
    publishers: Vec<u32>,
    requests: Vec<AttackRequest>,
) -> Option<Denial> {
    let mut device = Device::<ImpressionStore>::new(setup.policy());
    for (site, bucket) in (0..).zip(&publishers) {
        let action = UserAction(u64::from(site));
        let seen = Impression::new(SiteId(site), action, Timestamp(1), *bucket);
        let _ = device.save_impression(CURRENT, &seen);
    }
    // The honest site asks for as much as its own quota allows.
    let honest = AskTerms {
        epsilon: setup.conversion_site_quota?,
        value: 1,
        max_value: 1,
        credit: Credit::Last,
        buckets: 10,
    };
    let honest = query(HONEST, UserAction(1000), honest, 2)?;
    let answered = device.clone().report(&honest, &mut || 0.5).report.total() > 0;
    for AttackRequest {
        action,
        terms,
        epochs,
    } in &requests
    {
        let query = query(ATTACKER, UserAction((*action).into()), *terms, *epochs)?;
        let _ = device.report(&query, &mut || 0.5);
    }
    let consumed = |filter| device.balance(CURRENT, filter).consumed.get();
    let of_publisher = |site| consumed(Filter::ImpressionSiteQuota(SiteId(site)));
    let from_publisher = (0..)
        .zip(&publishers)
        .map(|(site, _)| of_publisher(site))
        .max()?;
    let from_own_quota = consumed(Filter::ConversionSiteQuota(ATTACKER));
    let from_global = consumed(Filter::GlobalBudget);
    let null = device.report(&honest, &mut || 0.5).report.total() == 0;
    (from_publisher > from_own_quota).then_some(Denial {
        publishers,
        requests,
        from_global,
        from_own_quota,
        from_publisher,
        honest_report_null: answered && null,
    })
}

fn query(
    site: SiteId,
    user_action: UserAction,
    terms: AskTerms,
    epochs: u8,
) -> Option<AttributionQuery> {
    let earliest = EpochIndex(CURRENT.0 + 1 - i64::from(epochs));
    let request = ReportRequest {
        querier: site,
        conversion_site: site,
        user_action,
        window: Window::between(earliest, CURRENT),
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    let epsilon = terms.epsilon as f64 / 1e6;
    AttributionQuery::builder(request, NOW, terms.buckets)
        .credit(terms.credit.shares().to_vec())
        .value(terms.value, terms.max_value)
        .epsilon(epsilon)
        .build()
        .ok()
}

/// Leaves out every request that the attack does not need.
fn shrink(setup: &ScriptSetup, mut denial: Denial) -> Denial {
    let mut at = denial.requests.len();
    while at > 0 {
        at -= 1;
        let mut fewer = denial.requests.clone();
        fewer.remove(at);
        let same = attack(setup, denial.publishers.clone(), fewer);
        if let Some(same) = same.filter(|it| it.honest_report_null == denial.honest_report_null) {
            denial = same;
        }
    }
    denial
}
