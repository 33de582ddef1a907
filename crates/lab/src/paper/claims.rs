//! The paper's claims, and whether they hold here: each claim with our numbers and the paper's.

use crate::paper::reproduce::{Results, Summary};
use crate::paper::suites::{EvaluatedSystem, QUOTAS, Suite};
use crate::text::percent;
use bigbird::Limit;
use bigbird_chart::short;

/// A claim of the paper.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// The figure it is about.
    pub figure: &'static str,
    /// The claim, in a sentence.
    pub says: &'static str,
    /// The condition under which the claim holds.
    pub test: &'static str,
    /// Our numbers.
    pub ours: String,
    /// The paper's numbers.
    pub paper: &'static str,
    /// True if the claim holds.
    pub holds: bool,
    /// The likely reason, in case the claim does not hold.
    pub otherwise: String,
}

/// The paper's claims about the suites that were run.
pub fn claims(results: Results<'_>) -> Vec<Claim> {
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

struct Look<'a>(Results<'a>);

impl<'a> Look<'a> {
    /// The likely reason why a claim does not hold: `otherwise`, unless honest queriers cannot
    /// measure well on this workload even without an attack and without a global budget.
    fn why(&self, otherwise: &str) -> String {
        let alone = self.0.0.iter().find(|run| {
            let system = run.planned.system;
            run.planned.experiment.attacker() == NONE && system == EvaluatedSystem::CookieMonster
        });
        let Some(alone) = alone.map(|run| &run.summary) else {
            return otherwise.to_owned();
        };
        if alone.median <= 1.5 * alone.noise {
            return otherwise.to_owned();
        }
        format!(
            "Even without an attack and without a global budget, the median error here is {}, and \
             noise alone would give only {}. Querier budgets block {} of reports, because small \
             batches need a large epsilon. Testing this claim needs larger batches or a larger \
             workload.",
            percent(alone.median),
            percent(alone.noise),
            percent(alone.blocked_by(Limit::QuerierBudget))
        )
    }

    fn baseline(&self, system: EvaluatedSystem, attacker: &'a str) -> Option<&'a Summary> {
        self.0.at(Suite::Fig5, system, attacker, None)
    }

    fn quota(&self, attacker: &'a str, quota: f64) -> Option<&'a Summary> {
        self.0
            .at(Suite::Fig5, EvaluatedSystem::BigBird, attacker, Some(quota))
    }

    fn global_budget_alone(&self) -> Option<Claim> {
        let without = self.baseline(EvaluatedSystem::CookieMonster, NONE)?.median;
        let with = self.baseline(EvaluatedSystem::GlobalOnly, NONE)?.median;
        Some(Claim {
            figure: "5a",
            says: "Without an attack, a global budget costs honest queriers nothing.",
            test: "the median error with a global budget is within 2% of the one without",
            ours: format!("{} with, {} without", percent(with), percent(without)),
            paper: "5.2% for both",
            holds: within(with, without, 0.02),
            otherwise: self.why(
                "Devices here spend more than the global budget in an epoch: it is too small for \
                 this workload.",
            ),
        })
    }

    fn quotas_of_two(&self) -> Option<Claim> {
        let without = self.baseline(EvaluatedSystem::CookieMonster, NONE)?.median;
        let large: Vec<f64> = QUOTAS
            .into_iter()
            .filter(|quota| *quota >= 2.0)
            .map(|quota| self.quota(NONE, quota).map(|summary| summary.median))
            .collect::<Option<_>>()?;
        let worst = large.iter().copied().fold(0.0, f64::max);
        Some(Claim {
            figure: "5a",
            says: "Without an attack, impression-site quotas of 2 or more cost nothing either.",
            test: "every median error from impression-site quota 2 on is within 2% of the one without quotas",
            ours: format!("at most {}", percent(worst)),
            paper: "5.2%",
            holds: large.iter().all(|median| within(*median, without, 0.02)),
            otherwise: self.why(
                "Impression sites here serve more conversion sites than an impression-site quota of 2 pays for.",
            ),
        })
    }

    fn too_small(&self) -> Option<Claim> {
        let without = self.baseline(EvaluatedSystem::CookieMonster, NONE)?.median;
        let small = self.quota(NONE, 0.5)?.median;
        Some(Claim {
            figure: "5a",
            says: "An impression-site quota that is too small blocks honest reports.",
            test: "the median error at impression-site quota 0.5 is at least twice the one without quotas",
            ours: format!("{} ({}×)", percent(small), short(small / without)),
            paper: "14.0% (2.7×)",
            holds: small >= 2.0 * without,
            otherwise: self
                .why("Reports here cost so little that an impression-site quota of 0.5 is enough."),
        })
    }

    fn causes_without_attack(&self) -> Option<Claim> {
        let share = |quota| {
            let summary = self.quota(NONE, quota)?;
            Some(summary.blocked_by(Limit::ImpressionSiteQuota))
        };
        let (small, one, two) = (share(0.5)?, share(1.0)?, share(2.0)?);
        Some(Claim {
            figure: "5b",
            says: "An impression-site quota that is large enough blocks almost nothing.",
            test: "impression-site quota 1 blocks fewer reports than impression-site quota 0.5, and impression-site quota 2 blocks less than 0.1% \
                   of reports",
            ours: format!(
                "{} at impression-site quota 0.5, {} at 1, {} at 2",
                percent(small),
                percent(one),
                percent(two)
            ),
            paper: "16.2% at impression-site quota 0.5, 0.8% at 1, under 0.002% at 2",
            holds: one < small && two < 0.001,
            otherwise: self.why(
                "Impression sites here serve more conversion sites than an impression-site quota of 2 pays for.",
            ),
        })
    }

    fn global_only_is_drained(&self) -> Option<Claim> {
        let safe = self
            .baseline(EvaluatedSystem::CookieMonster, RANDOM)?
            .median;
        let drained = self.baseline(EvaluatedSystem::GlobalOnly, RANDOM)?;
        Some(Claim {
            figure: "5c",
            says: "Sybils drain a global budget that has no quotas.",
            test: "under the random attacker, the median error is at least 5 times the one without \
                   a global budget",
            ours: format!(
                "{} ({}×), 95th percentile {}",
                percent(drained.median),
                short(drained.median / safe),
                percent(drained.p95)
            ),
            paper: "48.5% (9.3×), 95th percentile 87.6%",
            holds: drained.median >= 5.0 * safe,
            otherwise: self
                .why("Too few devices here visit the attacker's sites to harm the median querier."),
        })
    }

    fn quotas_protect(&self) -> Option<Claim> {
        let safe = self
            .baseline(EvaluatedSystem::CookieMonster, RANDOM)?
            .median;
        let (one, two) = (self.quota(RANDOM, 1.0)?, self.quota(RANDOM, 2.0)?);
        let worst = one.median.max(two.median);
        Some(Claim {
            figure: "5c",
            says: "Big Bird's quotas keep the random attacker from draining the global budget.",
            test: "at impression-site quotas 1 and 2, the median error is at most 1.3 times the \
                   one without a global budget",
            ours: format!(
                "{} at impression-site quota 1, {} at 2",
                percent(one.median),
                percent(two.median)
            ),
            paper: "5.5% at best",
            holds: worst <= 1.3 * safe,
            otherwise: self.why(
                "Either an impression-site quota of 1 is too small for honest use here, or an impression-site quota of 2 is too \
                 large for an attacker that reaches this many devices.",
            ),
        })
    }

    fn too_large(&self) -> Option<Claim> {
        let at = |quota| self.quota(RANDOM, quota).map(|summary| summary.median);
        let (two, three, five) = (at(2.0)?, at(3.0)?, at(5.0)?);
        Some(Claim {
            figure: "5c",
            says: "Impression-site quotas that are too large let the attacker through.",
            test: "the median error rises from impression-site quota 2 to 3, and from 3 to 5",
            ours: format!(
                "{} at impression-site quota 2, {} at 3, {} at 5",
                percent(two),
                percent(three),
                percent(five)
            ),
            paper: "5.5% at impression-site quota 2, 12.5% at 3, 20.1% at 5",
            holds: two < three && three < five,
            otherwise: self.why(
                "Devices here have too few user actions for the attacker to use larger quotas.",
            ),
        })
    }

    fn global_blocks(&self) -> Option<Claim> {
        let large: Vec<&Summary> = QUOTAS
            .into_iter()
            .filter(|quota| *quota >= 3.0)
            .map(|quota| self.quota(RANDOM, quota))
            .collect::<Option<_>>()?;
        let first = |summary: &Summary| {
            let global = summary.blocked_by(Limit::GlobalBudget);
            Limit::ALL
                .into_iter()
                .filter(|cause| *cause != Limit::GlobalBudget)
                .all(|cause| summary.blocked_by(cause) < global)
        };
        let share = |summary: &Summary| percent(summary.blocked_by(Limit::GlobalBudget));
        Some(Claim {
            figure: "5d",
            says: "If these quotas are too large, reports are blocked mainly by the drained global budget.",
            test: "from impression-site quota 3 on, the global budget blocks more reports than any other limit",
            ours: format!(
                "{} at impression-site quota 3, {} at 4",
                share(large.first()?),
                share(large.get(1)?)
            ),
            paper: "11% at impression-site quota 3, 19% at 4",
            holds: large.into_iter().all(first),
            otherwise: self
                .why("Another limit blocks more reports here than the drained global budget."),
        })
    }

    fn cap(&self, attacker: &'a str, cap: u32) -> Option<f64> {
        let x = Some(f64::from(cap));
        let summary = self
            .0
            .at(Suite::Fig6a, EvaluatedSystem::BigBird, attacker, x)?;
        Some(summary.median)
    }

    fn omniscient_is_worse(&self) -> Option<Claim> {
        let (random, omniscient) = (self.cap(RANDOM, 2)?, self.cap(OMNISCIENT, 2)?);
        Some(Claim {
            figure: "6a",
            says: "An attacker that knows every quota does far more harm than a random one.",
            test: "at a domain cap of 2, the median error under the omniscient attacker is at \
                   least twice the one under the random attacker",
            ours: format!("{} against {}", percent(omniscient), percent(random)),
            paper: "28.6% against 5.4%",
            holds: omniscient >= 2.0 * random,
            otherwise: self
                .why("Devices here have too few user actions for this knowledge to help."),
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
        Some(Claim {
            figure: "6a",
            says: "A domain cap of 1 contains even the omniscient attacker.",
            test: "at domain cap 1, the median error is at most twice the one without a global budget, \
                   and lower than at domain cap 2",
            ours: format!("{} at domain cap 1, {} at 2", percent(one), percent(two)),
            paper: "10.0% at domain cap 1, 28.6% at 2",
            holds: one <= 2.0 * baseline.median && one < two,
            otherwise: self.why(
                "Devices here visit the attacker's sites so often that one site per visit is \
                 enough.",
            ),
        })
    }

    fn saturates(&self) -> Option<Claim> {
        let at = |sybils: f64| {
            let run = self.0.at(
                Suite::Fig6b,
                EvaluatedSystem::BigBird,
                OMNISCIENT,
                Some(sybils),
            )?;
            Some(run.median)
        };
        let (five, ten, some, all) = (at(5.0)?, at(10.0)?, at(25.0)?, at(100.0)?);
        Some(Claim {
            figure: "6b",
            says: "More Sybils eventually stop helping: the harm saturates.",
            test: "under the omniscient attacker, the median error with 100 Sybils is at most 5% \
                   above the one with 25",
            ours: format!(
                "{} with 5 Sybils, {} with 10, {} with 25, {} with 100",
                percent(five),
                percent(ten),
                percent(some),
                percent(all)
            ),
            paper: "29.4% with 10 to 100 Sybils",
            holds: all <= 1.05 * some,
            otherwise: self
                .why("Devices here have so many user actions that each Sybil still helps."),
        })
    }

    fn popularity(&self) -> Option<Claim> {
        let at = |rank: f64| {
            let run = self.0.at(
                Suite::Fig6c,
                EvaluatedSystem::BigBird,
                OMNISCIENT,
                Some(rank),
            )?;
            Some(run.median)
        };
        let (first, fifth, late) = (at(1.0)?, at(5.0)?, at(41.0)?);
        Some(Claim {
            figure: "6c",
            says: "An attacker does the most harm from popular sites.",
            test: "under the omniscient attacker, the median error at first rank 5 and at 41 is \
                   lower than at 1",
            ours: format!(
                "{} at first rank 1, {} at 5, {} at 41",
                percent(first),
                percent(fifth),
                percent(late)
            ),
            paper: "29.0% at first rank 1, 10.9% at 5 (labelled ranks 41–50)",
            holds: fifth < first && late < first,
            otherwise: self.why("Sites of all ranks are about equally busy here."),
        })
    }

    fn bounds(&self) -> Option<Claim> {
        let attacked: Vec<&Summary> = self.0.0.iter().map(|run| &run.summary).collect();
        let checked = attacked.iter().filter(|run| run.held.is_some()).count();
        if checked == 0 {
            return None;
        }
        let broken = attacked
            .iter()
            .filter(|run| run.held == Some(false))
            .count();
        Some(Claim {
            figure: "theorem",
            says: "The resilience theorem bounds what any attacker can take.",
            test: "no device and no batch of any run exceeds bounds (i), (ii) or (iii)",
            ours: format!("{broken} of {checked} attacked runs exceed a bound"),
            paper: "proved",
            holds: broken == 0,
            otherwise: self.why("This is a bug, here or in the proof. Please report it."),
        })
    }
}

fn within(value: f64, of: f64, share: f64) -> bool {
    (value / of - 1.0).abs() < share
}

/// A number of the paper, next to ours.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The figure.
    pub figure: &'static str,
    /// A description of the number.
    pub what: &'static str,
    /// Our number, as a fraction.
    pub ours: f64,
    /// The paper's number, as a fraction.
    pub paper: f64,
    /// True if the paper gives only an upper limit.
    pub below: bool,
}

/// Every number that the paper gives for the suites that were run, next to ours.
pub fn compared(results: Results<'_>) -> Vec<Compared> {
    use EvaluatedSystem::{BigBird, CookieMonster, GlobalOnly};
    use Limit::{GlobalBudget, ImpressionSiteQuota, QuerierBudget};
    type Measure = fn(&Summary) -> f64;
    let median: Measure = |run| run.median;
    let p95: Measure = |run| run.p95;
    let by_site: Measure = |run| run.blocked_by(ImpressionSiteQuota);
    let by_global: Measure = |run| run.blocked_by(GlobalBudget);
    let by_querier: Measure = |run| run.blocked_by(QuerierBudget);
    let (five, six_a, six_b, six_c) = (Suite::Fig5, Suite::Fig6a, Suite::Fig6b, Suite::Fig6c);
    #[rustfmt::skip]
    let rows = [
        ("5a", "no attack, no global budget", five, CookieMonster, NONE, None, median, 5.2, false),
        ("5a", "no attack, global budget only", five, GlobalOnly, NONE, None, median, 5.2, false),
        ("5a", "no attack, impression-site quota 0.5", five, BigBird, NONE, Some(0.5), median, 14.0, false),
        ("5a", "no attack, impression-site quota 2", five, BigBird, NONE, Some(2.0), median, 5.2, false),
        ("5b", "blocked by an impression-site quota of 0.5", five, BigBird, NONE, Some(0.5), by_site, 16.2, false),
        ("5b", "blocked by an impression-site quota of 1", five, BigBird, NONE, Some(1.0), by_site, 0.8, false),
        ("5b", "blocked by an impression-site quota of 2", five, BigBird, NONE, Some(2.0), by_site, 0.002, true),
        ("5b", "blocked by querier budgets, impression-site quota 2", five, BigBird, NONE, Some(2.0), by_querier, 2.8, false),
        ("5c", "random, no global budget", five, CookieMonster, RANDOM, None, median, 5.2, false),
        ("5c", "random, global budget only", five, GlobalOnly, RANDOM, None, median, 48.5, false),
        ("5c", "the same, 95th percentile", five, GlobalOnly, RANDOM, None, p95, 87.6, false),
        ("5c", "random, impression-site quota 2", five, BigBird, RANDOM, Some(2.0), median, 5.5, false),
        ("5c", "the same, 95th percentile", five, BigBird, RANDOM, Some(2.0), p95, 14.8, false),
        ("5c", "random, impression-site quota 3", five, BigBird, RANDOM, Some(3.0), median, 12.5, false),
        ("5c", "random, impression-site quota 5", five, BigBird, RANDOM, Some(5.0), median, 20.1, false),
        ("5d", "blocked by the global budget, impression-site quota 2", five, BigBird, RANDOM, Some(2.0), by_global, 1.0, true),
        ("5d", "blocked by the global budget, impression-site quota 3", five, BigBird, RANDOM, Some(3.0), by_global, 11.0, false),
        ("5d", "blocked by the global budget, impression-site quota 4", five, BigBird, RANDOM, Some(4.0), by_global, 19.0, false),
        ("6a", "random, domain cap 2", six_a, BigBird, RANDOM, Some(2.0), median, 5.4, false),
        ("6a", "omniscient, domain cap 1", six_a, BigBird, OMNISCIENT, Some(1.0), median, 10.0, false),
        ("6a", "omniscient, domain cap 2", six_a, BigBird, OMNISCIENT, Some(2.0), median, 28.6, false),
        ("6a", "random, global budget only", six_a, GlobalOnly, RANDOM, None, median, 48.3, false),
        ("6a", "omniscient, global budget only", six_a, GlobalOnly, OMNISCIENT, None, median, 48.4, false),
        ("6b", "random, 5 Sybils", six_b, BigBird, RANDOM, Some(5.0), median, 5.2, false),
        ("6b", "random, 100 Sybils", six_b, BigBird, RANDOM, Some(100.0), median, 6.4, false),
        ("6b", "omniscient, 10 Sybils", six_b, BigBird, OMNISCIENT, Some(10.0), median, 29.4, false),
        ("6b", "omniscient, 100 Sybils", six_b, BigBird, OMNISCIENT, Some(100.0), median, 29.4, false),
        ("6c", "random, first rank 1", six_c, BigBird, RANDOM, Some(1.0), median, 5.4, false),
        ("6c", "random, first rank 5", six_c, BigBird, RANDOM, Some(5.0), median, 5.2, false),
        ("6c", "omniscient, first rank 1", six_c, BigBird, OMNISCIENT, Some(1.0), median, 29.0, false),
        ("6c", "omniscient, first rank 5", six_c, BigBird, OMNISCIENT, Some(5.0), median, 10.9, false),
    ];
    rows.into_iter()
        .filter_map(
            |(figure, what, suite, system, attacker, x, measure, paper, below)| {
                let ours = measure(results.at(suite, system, attacker, x)?);
                let paper = paper / 100.0;
                Some(Compared {
                    figure,
                    what,
                    ours,
                    paper,
                    below,
                })
            },
        )
        .collect()
}
