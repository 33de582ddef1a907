//! The paper's claims, and whether they hold here: each claim with our numbers and the paper's.
//!
//! A claim is only judged if the workload tests it. A population without enough batches says
//! nothing about medians, and where an attacker reaches hardly anybody, it says nothing about a
//! defence that nobody is hurt. The conditions are measured on the runs, and stated with the
//! result.

use crate::paper::numbers::{PaperMeasure, paper_numbers};
use crate::paper::reproduce::{FinishedRun, Results, Summary};
use crate::paper::suites::{EvaluatedSystem, QUOTAS, Suite};
use crate::text::percent;
use bigbird::Limit;
use bigbird_chart::short;
use serde::Serialize;

/// A claim of the paper.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Claim {
    /// The figure it is about.
    pub figure: &'static str,
    /// The claim, in a sentence.
    #[serde(rename = "claim")]
    pub says: &'static str,
    /// The condition under which the claim holds.
    pub test: &'static str,
    /// Our numbers.
    #[serde(rename = "here")]
    pub ours: String,
    /// The paper's numbers.
    pub paper: String,
    /// True if the claim holds.
    #[serde(flatten)]
    pub verdict: ClaimVerdict,
    /// With several seeds: the number of seeds with which the claim holds, and that of all seeds.
    /// The verdict itself is about the means over seeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seeds: Option<(usize, usize)>,
}

/// The result of testing a claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "camelCase")]
pub enum ClaimVerdict {
    /// It holds.
    Holds,
    /// It does not hold, for this likely reason.
    Fails(String),
    /// The workload does not test it, because this condition is not met.
    NotTested(String),
}

impl ClaimVerdict {
    /// The verdict in words.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Fails(_) => "does not hold",
            Self::NotTested(_) => "not tested",
        }
    }

    /// The sign of the verdict.
    pub const fn sign(&self) -> &'static str {
        match self {
            Self::Holds => "✓",
            Self::Fails(_) => "✗",
            Self::NotTested(_) => "○",
        }
    }

    /// The reason, if the claim does not hold or is not tested.
    pub fn why(&self) -> Option<&str> {
        match self {
            Self::Holds => None,
            Self::Fails(why) | Self::NotTested(why) => Some(why),
        }
    }
}

/// The paper's claims about the suites that were run.
pub fn claims(results: Results<'_>) -> Vec<Claim> {
    let mut claims = judged(results);
    let seeds = results.seeds();
    if seeds < 2 {
        return claims;
    }
    for claim in &mut claims {
        claim.seeds = Some((0, seeds));
    }
    for seed in 0..seeds {
        let runs = results.0.iter().filter_map(|run| run.with_seed(seed));
        let runs: Vec<FinishedRun> = runs.collect();
        for of_seed in judged(Results(&runs)) {
            let claim = claims.iter_mut().find(|claim| claim.says == of_seed.says);
            if let Some(Some((held, _))) = claim.map(|claim| &mut claim.seeds) {
                *held += usize::from(of_seed.verdict == ClaimVerdict::Holds);
            }
        }
    }
    claims
}

/// The reason to show for each claim: of claims with the same reason, the first shows it, and the
/// others refer to it.
pub fn reasons(claims: &[Claim]) -> Vec<Option<&str>> {
    claims
        .iter()
        .enumerate()
        .map(|(number, claim)| {
            let known = number > 0
                && claims[..number]
                    .iter()
                    .any(|it| it.verdict.why() == claim.verdict.why());
            match claim.verdict.why() {
                Some(_) if known => Some("For the same reason as above."),
                why => why,
            }
        })
        .collect()
}

/// The number of claims that hold, that do not, and that the workload does not test, in words:
/// `12 of 13 claims of the paper hold, 1 is not tested by this workload`.
pub fn tally(claims: &[Claim]) -> String {
    let count = |is: fn(&ClaimVerdict) -> bool| claims.iter().filter(|it| is(&it.verdict)).count();
    let hold = count(|verdict| *verdict == ClaimVerdict::Holds);
    let fail = count(|verdict| matches!(verdict, ClaimVerdict::Fails(_)));
    let open = count(|verdict| matches!(verdict, ClaimVerdict::NotTested(_)));
    let mut text = format!("{hold} of {} claims of the paper hold", claims.len());
    match fail {
        0 => {}
        1 => text.push_str(", 1 does not"),
        more => text.push_str(&format!(", {more} do not")),
    }
    match open {
        0 => {}
        1 => text.push_str(", 1 is not tested by this workload"),
        more => text.push_str(&format!(", {more} are not tested by this workload")),
    }
    text
}

fn judged(results: Results<'_>) -> Vec<Claim> {
    let look = Look(results);
    let found = [
        look.global_budget_alone(),
        look.quotas_of_two(),
        look.too_small(),
        look.causes_without_attack(),
        look.global_only_is_drained(),
        look.quotas_protect(),
        look.too_large(),
        look.global_blocks(),
        look.omniscient_is_worse(),
        look.held_at_one(),
        look.saturates(),
        look.popularity(),
        look.bounds(),
    ];
    found.into_iter().flatten().collect()
}

const NONE: &str = "none";
const RANDOM: &str = "random";
const OMNISCIENT: &str = "omniscient";

/// The least number of batches whose median and 95th percentile mean something.
const LEAST_BATCHES: usize = 8;
/// The largest error without attack and without a global budget, relative to that of noise alone.
/// Where honest queriers cannot measure, an attack cannot make it worse.
const MOST_ERROR_ALONE: f64 = 1.5;
/// The least share of global budgets that an attacker must touch.
const LEAST_REACH: f64 = 0.1;
/// The least error, relative to that without a global budget, that an attacker must cause if
/// nothing stops it.
const LEAST_HARM: f64 = 1.5;
/// The least share of reports that a quota must block to be called too small.
const LEAST_BLOCKED: f64 = 0.01;

const MEDIAN: fn(&Summary) -> f64 = |run| run.median;
const P95: fn(&Summary) -> f64 = |run| run.p95;
const BY_SITE: fn(&Summary) -> f64 = |run| run.blocked_by(Limit::ImpressionSiteQuota);
const BY_GLOBAL: fn(&Summary) -> f64 = |run| run.blocked_by(Limit::GlobalBudget);

/// A number of a run. With several seeds, it is a mean, and half of its 95% interval follows.
pub(crate) fn shown(run: &FinishedRun, measure: fn(&Summary) -> f64) -> String {
    let number = percent(measure(&run.summary));
    match run.interval(measure) {
        Some(interval) => {
            let half = 100.0 * (interval.high - interval.low) / 2.0;
            let digits = if half < 0.05 { 3 } else { 1 };
            format!("{number} ± {half:.digits$}")
        }
        None => number,
    }
}

fn ratio(number: f64, of: f64) -> String {
    format!("{}×", short((10.0 * number / of).round() / 10.0))
}

struct Look<'a>(Results<'a>);

impl<'a> Look<'a> {
    /// The verdict on a claim that holds or not. What is not tested is not judged.
    fn verdict(
        &self,
        holds: bool,
        untested: impl IntoIterator<Item = Option<String>>,
        otherwise: &str,
    ) -> ClaimVerdict {
        let reasons = [self.too_few_batches(), self.cannot_measure()];
        if let Some(why) = reasons.into_iter().chain(untested).flatten().next() {
            return ClaimVerdict::NotTested(why);
        }
        match holds {
            true => ClaimVerdict::Holds,
            false => ClaimVerdict::Fails(otherwise.to_owned()),
        }
    }

    fn too_few_batches(&self) -> Option<String> {
        let batches = self.0.0.iter().map(|run| run.summary.batches).min()?;
        (batches < LEAST_BATCHES).then(|| {
            format!(
                "There are too few batches ({batches}); medians need at least {LEAST_BATCHES}. A \
                 larger workload or smaller batches would do."
            )
        })
    }

    /// The reason why honest queriers cannot measure well on this workload, even without an attack
    /// and without a global budget.
    fn cannot_measure(&self) -> Option<String> {
        let alone = self
            .0
            .0
            .iter()
            .find(|run| run.planned.system == EvaluatedSystem::CookieMonster)?;
        let alone = &alone.summary;
        if alone.median <= MOST_ERROR_ALONE * alone.noise {
            return None;
        }
        Some(format!(
            "Even without an attack and without a global budget, the median error here is {}, more \
             than {MOST_ERROR_ALONE} times that of noise alone ({}). Querier budgets block {} of \
             reports, because small batches need a large epsilon. Testing this claim needs larger \
             batches or a larger workload.",
            percent(alone.median),
            percent(alone.noise),
            percent(alone.blocked_by(Limit::QuerierBudget))
        ))
    }

    /// The reason why an attack cannot matter: it reaches too few devices.
    fn too_little_reach(&self, attacked: &FinishedRun) -> Option<String> {
        let touched = attacked.summary.touched.unwrap_or(0.0);
        (touched < LEAST_REACH).then(|| {
            format!(
                "The attacker touches only {} of the global budgets that pay for anything; harming \
                 the median querier takes at least {}.",
                percent(touched),
                percent(LEAST_REACH)
            )
        })
    }

    /// The reason why there is nothing to defend against: the attack does little harm even if
    /// nothing stops it.
    fn too_little_harm(&self, unprotected: &FinishedRun, safe: f64) -> Option<String> {
        let median = unprotected.summary.median;
        (median < LEAST_HARM * safe).then(|| {
            format!(
                "There is no harm to prevent: even where nothing stops this attacker, the median \
                 error is {}, less than {LEAST_HARM} times the {} without harm.",
                percent(median),
                percent(safe)
            )
        })
    }

    /// The reason why a quota of 0.5 is not too small here.
    fn small_is_enough(&self) -> Option<String> {
        let blocked = BY_SITE(&self.quota(NONE, 0.5)?.summary);
        (blocked < LEAST_BLOCKED).then(|| {
            format!(
                "Reports cost so little here that an impression-site quota of 0.5 is not too \
                 small: it blocks {} of them, less than {}.",
                percent(blocked),
                percent(LEAST_BLOCKED)
            )
        })
    }

    fn baseline(&self, system: EvaluatedSystem, attacker: &'a str) -> Option<&'a FinishedRun> {
        self.0.at(Suite::Fig5, system, attacker, None)
    }

    fn quota(&self, attacker: &'a str, quota: f64) -> Option<&'a FinishedRun> {
        self.0
            .at(Suite::Fig5, EvaluatedSystem::BigBird, attacker, Some(quota))
    }

    fn global_budget_alone(&self) -> Option<Claim> {
        let without = self.baseline(EvaluatedSystem::CookieMonster, NONE)?;
        let with = self.baseline(EvaluatedSystem::GlobalOnly, NONE)?;
        let paper = Said("5a");
        Some(Claim {
            figure: "5a",
            says: "Without an attack, a global budget costs honest queriers nothing.",
            test: "the median error with a global budget is within 2% of the one without",
            ours: format!(
                "{} with, {} without",
                shown(with, MEDIAN),
                shown(without, MEDIAN)
            ),
            paper: format!(
                "{} with, {} without",
                paper.baseline(EvaluatedSystem::GlobalOnly, NONE)?,
                paper.baseline(EvaluatedSystem::CookieMonster, NONE)?
            ),
            verdict: self.verdict(
                within(with, without, 0.02),
                [],
                "Devices here spend more than the global budget in an epoch: it is too small for \
                 this workload.",
            ),
            seeds: None,
        })
    }

    fn quotas_of_two(&self) -> Option<Claim> {
        let without = self.baseline(EvaluatedSystem::CookieMonster, NONE)?;
        let large: Vec<&FinishedRun> = QUOTAS
            .into_iter()
            .filter(|quota| *quota >= 2.0)
            .map(|quota| self.quota(NONE, quota))
            .collect::<Option<_>>()?;
        let worst = large
            .iter()
            .max_by(|one, other| one.summary.median.total_cmp(&other.summary.median))?;
        Some(Claim {
            figure: "5a",
            says: "Without an attack, impression-site quotas of 2 or more cost nothing either.",
            test: "every median error from impression-site quota 2 on is within 2% of the one without quotas",
            ours: format!("at most {}", shown(worst, MEDIAN)),
            paper: Said("5a").big_bird(NONE, 2.0, PaperMeasure::Median)?,
            verdict: self.verdict(
                large.iter().all(|run| within(run, without, 0.02)),
                [],
                "Impression sites here serve more conversion sites than an impression-site quota \
                 of 2 pays for.",
            ),
            seeds: None,
        })
    }

    fn too_small(&self) -> Option<Claim> {
        let without = self.baseline(EvaluatedSystem::CookieMonster, NONE)?;
        let small = self.quota(NONE, 0.5)?;
        let paper = Said("5a");
        Some(Claim {
            figure: "5a",
            says: "An impression-site quota that is too small blocks honest reports.",
            test: "the median error at impression-site quota 0.5 is at least twice the one without quotas",
            ours: format!(
                "{} ({})",
                shown(small, MEDIAN),
                ratio(small.summary.median, without.summary.median)
            ),
            paper: format!(
                "{} ({})",
                paper.big_bird(NONE, 0.5, PaperMeasure::Median)?,
                ratio(
                    paper.number(
                        EvaluatedSystem::BigBird,
                        NONE,
                        Some(0.5),
                        PaperMeasure::Median
                    )?,
                    paper.number(
                        EvaluatedSystem::CookieMonster,
                        NONE,
                        None,
                        PaperMeasure::Median
                    )?
                )
            ),
            verdict: self.verdict(
                small.summary.median >= 2.0 * without.summary.median,
                [self.small_is_enough()],
                "The reports that an impression-site quota of 0.5 blocks here matter little to the \
                 median querier.",
            ),
            seeds: None,
        })
    }

    fn causes_without_attack(&self) -> Option<Claim> {
        let (small, one, two) = (
            self.quota(NONE, 0.5)?,
            self.quota(NONE, 1.0)?,
            self.quota(NONE, 2.0)?,
        );
        let by_site =
            |quota| Said("5b").big_bird(NONE, quota, PaperMeasure::BlockedByImpressionSiteQuota);
        Some(Claim {
            figure: "5b",
            says: "An impression-site quota that is large enough blocks almost nothing.",
            test: "impression-site quota 1 blocks fewer reports than impression-site quota 0.5, and impression-site quota 2 blocks less than 0.1% \
                   of reports",
            ours: format!(
                "{} at impression-site quota 0.5, {} at 1, {} at 2",
                shown(small, BY_SITE),
                shown(one, BY_SITE),
                shown(two, BY_SITE)
            ),
            paper: format!(
                "{} at impression-site quota 0.5, {} at 1, {} at 2",
                by_site(0.5)?,
                by_site(1.0)?,
                by_site(2.0)?
            ),
            verdict: self.verdict(
                BY_SITE(&one.summary) < BY_SITE(&small.summary) && BY_SITE(&two.summary) < 0.001,
                [self.small_is_enough()],
                "Impression sites here serve more conversion sites than an impression-site quota \
                 of 2 pays for.",
            ),
            seeds: None,
        })
    }

    fn global_only_is_drained(&self) -> Option<Claim> {
        let safe = self.baseline(EvaluatedSystem::CookieMonster, RANDOM)?;
        let drained = self.baseline(EvaluatedSystem::GlobalOnly, RANDOM)?;
        let paper = Said("5c");
        let number = |system, measure| paper.number(system, RANDOM, None, measure);
        Some(Claim {
            figure: "5c",
            says: "Sybils drain a global budget that has no quotas.",
            test: "under the random attacker, the median error is at least 5 times the one without \
                   a global budget",
            ours: format!(
                "{} ({}), 95th percentile {}",
                shown(drained, MEDIAN),
                ratio(drained.summary.median, safe.summary.median),
                shown(drained, P95)
            ),
            paper: format!(
                "{} ({}), 95th percentile {}",
                paper.baseline(EvaluatedSystem::GlobalOnly, RANDOM)?,
                ratio(
                    number(EvaluatedSystem::GlobalOnly, PaperMeasure::Median)?,
                    number(EvaluatedSystem::CookieMonster, PaperMeasure::Median)?
                ),
                percent(number(EvaluatedSystem::GlobalOnly, PaperMeasure::P95)?)
            ),
            verdict: self.verdict(
                drained.summary.median >= 5.0 * safe.summary.median,
                [self.too_little_reach(drained)],
                "The attacker reaches devices, but not those that the median querier depends on.",
            ),
            seeds: None,
        })
    }

    /// The reasons why the claims of figure 5 about quotas under attack are not tested.
    fn no_test_of_quotas(&self) -> Option<[Option<String>; 2]> {
        let safe = self.baseline(EvaluatedSystem::CookieMonster, RANDOM)?;
        let drained = self.baseline(EvaluatedSystem::GlobalOnly, RANDOM)?;
        Some([
            self.too_little_reach(drained),
            self.too_little_harm(drained, safe.summary.median),
        ])
    }

    fn quotas_protect(&self) -> Option<Claim> {
        let safe = self.baseline(EvaluatedSystem::CookieMonster, RANDOM)?;
        let (one, two) = (self.quota(RANDOM, 1.0)?, self.quota(RANDOM, 2.0)?);
        let worst = one.summary.median.max(two.summary.median);
        Some(Claim {
            figure: "5c",
            says: "Big Bird's quotas keep the random attacker from draining the global budget.",
            test: "at impression-site quotas 1 and 2, the median error is at most 1.3 times the \
                   one without a global budget",
            ours: format!(
                "{} at impression-site quota 1, {} at 2",
                shown(one, MEDIAN),
                shown(two, MEDIAN)
            ),
            paper: format!(
                "{} at best",
                Said("5c").big_bird(RANDOM, 2.0, PaperMeasure::Median)?
            ),
            verdict: self.verdict(
                worst <= 1.3 * safe.summary.median,
                self.no_test_of_quotas()?,
                "Either an impression-site quota of 1 is too small for honest use here, or an \
                 impression-site quota of 2 is too large for an attacker that reaches this many \
                 devices.",
            ),
            seeds: None,
        })
    }

    fn too_large(&self) -> Option<Claim> {
        let at = |quota| self.quota(RANDOM, quota);
        let (two, three, five) = (at(2.0)?, at(3.0)?, at(5.0)?);
        let said = |quota| Said("5c").big_bird(RANDOM, quota, PaperMeasure::Median);
        let errors = [two, three, five].map(|run| run.summary.median);
        Some(Claim {
            figure: "5c",
            says: "Impression-site quotas that are too large let the attacker through.",
            test: "the median error rises from impression-site quota 2 to 3, and from 3 to 5",
            ours: format!(
                "{} at impression-site quota 2, {} at 3, {} at 5",
                shown(two, MEDIAN),
                shown(three, MEDIAN),
                shown(five, MEDIAN)
            ),
            paper: format!(
                "{} at impression-site quota 2, {} at 3, {} at 5",
                said(2.0)?,
                said(3.0)?,
                said(5.0)?
            ),
            verdict: self.verdict(
                errors.is_sorted_by(|one, next| one < next),
                self.no_test_of_quotas()?,
                "Devices here have too few user actions for the attacker to use larger quotas.",
            ),
            seeds: None,
        })
    }

    fn global_blocks(&self) -> Option<Claim> {
        let large: Vec<&FinishedRun> = QUOTAS
            .into_iter()
            .filter(|quota| *quota >= 3.0)
            .map(|quota| self.quota(RANDOM, quota))
            .collect::<Option<_>>()?;
        let first = |run: &FinishedRun| {
            let global = BY_GLOBAL(&run.summary);
            Limit::ALL
                .into_iter()
                .filter(|cause| *cause != Limit::GlobalBudget)
                .all(|cause| run.summary.blocked_by(cause) < global)
        };
        let said = |quota| Said("5d").big_bird(RANDOM, quota, PaperMeasure::BlockedByGlobalBudget);
        Some(Claim {
            figure: "5d",
            says: "If these quotas are too large, reports are blocked mainly by the drained global budget.",
            test: "from impression-site quota 3 on, the global budget blocks more reports than any other limit",
            ours: format!(
                "{} at impression-site quota 3, {} at 4",
                shown(large.first()?, BY_GLOBAL),
                shown(large.get(1)?, BY_GLOBAL)
            ),
            paper: format!(
                "{} at impression-site quota 3, {} at 4",
                said(3.0)?,
                said(4.0)?
            ),
            verdict: self.verdict(
                large.into_iter().all(first),
                self.no_test_of_quotas()?,
                "Another limit blocks more reports here than the drained global budget.",
            ),
            seeds: None,
        })
    }

    fn cap(&self, attacker: &'a str, cap: u32) -> Option<&'a FinishedRun> {
        let x = Some(f64::from(cap));
        self.0
            .at(Suite::Fig6a, EvaluatedSystem::BigBird, attacker, x)
    }

    /// The reasons why the claims of figure 6a are not tested.
    fn no_test_of_caps(&self) -> Option<[Option<String>; 2]> {
        let at = |system| self.0.at(Suite::Fig6a, system, OMNISCIENT, None);
        let safe = at(EvaluatedSystem::CookieMonster)?;
        let drained = at(EvaluatedSystem::GlobalOnly)?;
        Some([
            self.too_little_reach(drained),
            self.too_little_harm(drained, safe.summary.median),
        ])
    }

    fn omniscient_is_worse(&self) -> Option<Claim> {
        let (random, omniscient) = (self.cap(RANDOM, 2)?, self.cap(OMNISCIENT, 2)?);
        let said = |attacker| Said("6a").big_bird(attacker, 2.0, PaperMeasure::Median);
        Some(Claim {
            figure: "6a",
            says: "An attacker that knows every quota does far more harm than a random one.",
            test: "at a domain cap of 2, the median error under the omniscient attacker is at \
                   least twice the one under the random attacker",
            ours: format!(
                "{} against {}",
                shown(omniscient, MEDIAN),
                shown(random, MEDIAN)
            ),
            paper: format!("{} against {}", said(OMNISCIENT)?, said(RANDOM)?),
            verdict: self.verdict(
                omniscient.summary.median >= 2.0 * random.summary.median,
                self.no_test_of_caps()?,
                "Devices here have too few user actions for this knowledge to help.",
            ),
            seeds: None,
        })
    }

    fn held_at_one(&self) -> Option<Claim> {
        let baseline = self.0.at(
            Suite::Fig6a,
            EvaluatedSystem::CookieMonster,
            OMNISCIENT,
            None,
        )?;
        let (one, two) = (self.cap(OMNISCIENT, 1)?, self.cap(OMNISCIENT, 2)?);
        let said = |cap| Said("6a").big_bird(OMNISCIENT, cap, PaperMeasure::Median);
        let (at_one, at_two) = (one.summary.median, two.summary.median);
        Some(Claim {
            figure: "6a",
            says: "A domain cap of 1 contains even the omniscient attacker.",
            test: "at domain cap 1, the median error is at most twice the one without a global budget, \
                   and lower than at domain cap 2",
            ours: format!(
                "{} at domain cap 1, {} at 2",
                shown(one, MEDIAN),
                shown(two, MEDIAN)
            ),
            paper: format!("{} at domain cap 1, {} at 2", said(1.0)?, said(2.0)?),
            verdict: self.verdict(
                at_one <= 2.0 * baseline.summary.median && at_one < at_two,
                self.no_test_of_caps()?,
                "Devices here visit the attacker's sites so often that one site per visit is \
                 enough.",
            ),
            seeds: None,
        })
    }

    fn saturates(&self) -> Option<Claim> {
        let at = |sybils: f64| {
            self.0.at(
                Suite::Fig6b,
                EvaluatedSystem::BigBird,
                OMNISCIENT,
                Some(sybils),
            )
        };
        let (five, ten, some, all) = (at(5.0)?, at(10.0)?, at(25.0)?, at(100.0)?);
        Some(Claim {
            figure: "6b",
            says: "More Sybils eventually stop helping: the harm saturates.",
            test: "under the omniscient attacker, the median error with 100 Sybils is at most 5% \
                   above the one with 25",
            ours: format!(
                "{} with 5 Sybils, {} with 10, {} with 25, {} with 100",
                shown(five, MEDIAN),
                shown(ten, MEDIAN),
                shown(some, MEDIAN),
                shown(all, MEDIAN)
            ),
            paper: {
                let said = |sybils| Said("6b").big_bird(OMNISCIENT, sybils, PaperMeasure::Median);
                format!("{} with 10 Sybils, {} with 100", said(10.0)?, said(100.0)?)
            },
            verdict: self.verdict(
                all.summary.median <= 1.05 * some.summary.median,
                [
                    self.too_little_reach(all),
                    self.too_little_harm(all, all.summary.noise),
                ],
                "Devices here have so many user actions that each Sybil still helps.",
            ),
            seeds: None,
        })
    }

    fn popularity(&self) -> Option<Claim> {
        let at = |rank: f64| {
            self.0.at(
                Suite::Fig6c,
                EvaluatedSystem::BigBird,
                OMNISCIENT,
                Some(rank),
            )
        };
        let (first, fifth, late) = (at(1.0)?, at(5.0)?, at(41.0)?);
        let touched = |run: &FinishedRun| run.summary.touched.unwrap_or(0.0);
        let alike = (touched(late) > 0.9 * touched(first)).then(|| {
            format!(
                "Sites of all ranks are about equally busy here: from first rank 41, the attacker \
                 touches {} of global budgets, and from first rank 1 {}.",
                percent(touched(late)),
                percent(touched(first))
            )
        });
        let (from, to) = paper_numbers().last_ranks_of_label;
        Some(Claim {
            figure: "6c",
            says: "An attacker does the most harm from popular sites.",
            test: "under the omniscient attacker, the median error at first rank 5 and at 41 is \
                   lower than at 1",
            ours: format!(
                "{} at first rank 1, {} at 5, {} at 41",
                shown(first, MEDIAN),
                shown(fifth, MEDIAN),
                shown(late, MEDIAN)
            ),
            paper: {
                let said = |rank| Said("6c").big_bird(OMNISCIENT, rank, PaperMeasure::Median);
                format!(
                    "{} at first rank 1, {} at 5 (labelled ranks {from}–{to})",
                    said(1.0)?,
                    said(5.0)?
                )
            },
            verdict: self.verdict(
                fifth.summary.median < first.summary.median
                    && late.summary.median < first.summary.median,
                [
                    self.too_little_reach(first),
                    self.too_little_harm(first, first.summary.noise),
                    alike,
                ],
                "Visits to less popular sites still suffice here to drain global budgets.",
            ),
            seeds: None,
        })
    }

    fn bounds(&self) -> Option<Claim> {
        let runs = self.0.0.iter().map(|run| &run.summary);
        let checked: Vec<bool> = runs.filter_map(|run| run.held).collect();
        if checked.is_empty() {
            return None;
        }
        let broken = checked.iter().filter(|held| !**held).count();
        Some(Claim {
            figure: "theorem",
            says: "The resilience theorem bounds what any attacker can take.",
            test: "no device and no batch of any run exceeds bounds (i), (ii) or (iii)",
            ours: format!("{broken} of {} attacked runs exceed a bound", checked.len()),
            paper: "proved".to_owned(),
            // A theorem is about every workload, so every workload tests it.
            verdict: match broken {
                0 => ClaimVerdict::Holds,
                _ => ClaimVerdict::Fails(
                    "This is a bug, here or in the proof. Please report it.".to_owned(),
                ),
            },
            seeds: None,
        })
    }
}

fn within(run: &FinishedRun, of: &FinishedRun, share: f64) -> bool {
    (run.summary.median / of.summary.median - 1.0).abs() < share
}

/// The paper's numbers of a figure.
struct Said(&'static str);

impl Said {
    fn number(
        &self,
        system: EvaluatedSystem,
        attacker: &str,
        x: Option<f64>,
        measure: PaperMeasure,
    ) -> Option<f64> {
        let result = paper_numbers().result(self.0, system, attacker, x, measure)?;
        Some(result.fraction())
    }

    /// A number of Big Bird, in words.
    fn big_bird(&self, attacker: &str, x: f64, measure: PaperMeasure) -> Option<String> {
        let system = EvaluatedSystem::BigBird;
        let result = paper_numbers().result(self.0, system, attacker, Some(x), measure)?;
        let under = if result.at_most { "under " } else { "" };
        Some(format!("{under}{}", percent(result.fraction())))
    }

    /// The median error of a system without the parameter of the figure.
    fn baseline(&self, system: EvaluatedSystem, attacker: &str) -> Option<String> {
        let number = self.number(system, attacker, None, PaperMeasure::Median)?;
        Some(percent(number))
    }
}
