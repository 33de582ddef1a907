//! The paper's numbers, the claims about them, and the page of the report.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bigbird::Limit;
use bigbird_lab::describe::Description;
use bigbird_lab::evaluation::QuerierOptions;
use bigbird_lab::paper::claims::{Claim, ClaimVerdict, claims, tally};
use bigbird_lab::paper::comparison::compared;
use bigbird_lab::paper::figures::{NAMES, figures};
use bigbird_lab::paper::numbers::{PaperMeasure, paper_numbers};
use bigbird_lab::paper::report::{Provenance, Subject, report};
use bigbird_lab::paper::reproduce::{FinishedRun, Results, Summary};
use bigbird_lab::paper::suites::{EvaluatedSystem, Owned, Planned, Suite, plan};
use bigbird_lab::workload::synthetic::Preset;
use serde_json::Value;

/// Every number of our file is in the one that was taken from the paper, and the other way round.
#[test]
fn the_numbers_are_those_of_the_paper() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/paper-results.json");
    let Ok(text) = std::fs::read_to_string(&path) else {
        println!("skipped: {} is not there", path.display());
        return;
    };
    let theirs: Value = serde_json::from_str(&text).unwrap();
    let ours = paper_numbers();

    let table = theirs["table_workload_percentiles"].as_object().unwrap();
    for row in &ours.workload_table.rows {
        let expected = &table[&format!("p{}", row.percentile)];
        let row = [
            row.conversion_sites,
            row.impression_sites,
            row.fan_out,
            row.global_budget,
            row.impression_site_quota,
        ];
        assert_eq!(&serde_json::to_value(row).unwrap(), expected);
    }
    assert_eq!(
        ours.workload_table.rows.len(),
        table.len() - 1,
        "and a row of names"
    );

    use EvaluatedSystem::{BigBird, CookieMonster, GlobalOnly, NoImpressionSiteQuota};
    use PaperMeasure::{
        BlockedByGlobalBudget, BlockedByImpressionSiteQuota, BlockedByQuerierBudget, Median, P95,
    };
    let number = |of: &Value| match of {
        Value::String(limit) => limit.trim_start_matches('<').parse().unwrap(),
        number => number.as_f64().unwrap(),
    };
    let at = |pointer: &str| number(theirs.pointer(pointer).unwrap());
    let (a, b) = ("/fig5a_no_attack", "/fig5b_no_attack_blocked_percent");
    let (c, d) = (
        "/fig5c_random_attacker",
        "/fig5d_random_attacker_blocked_by_global_percent",
    );
    let (e, f) = ("/fig6a_domain_cap_median", "/fig6b_sybils_median");
    let g = "/fig6c_popularity_median/first_rank_of_the_artifact";
    let baseline = at(&format!("{a}/baselines_median"));
    let mut expected = vec![
        ("5a", CookieMonster, "none", None, Median, baseline),
        ("5a", GlobalOnly, "none", None, Median, baseline),
        ("5a", NoImpressionSiteQuota, "none", None, Median, baseline),
        (
            "5b",
            BigBird,
            "none",
            Some(2.0),
            BlockedByQuerierBudget,
            at(&format!("{b}/querier_budget_blocks_residual")),
        ),
        (
            "5c",
            CookieMonster,
            "random",
            None,
            Median,
            at(&format!("{c}/cookie_monster_median")),
        ),
        (
            "5c",
            GlobalOnly,
            "random",
            None,
            Median,
            at(&format!("{c}/global_only_median")),
        ),
        (
            "5c",
            GlobalOnly,
            "random",
            None,
            P95,
            at(&format!("{c}/global_only_p95")),
        ),
        (
            "5c",
            BigBird,
            "random",
            Some(2.0),
            Median,
            at(&format!("{c}/big_bird_best_median")),
        ),
        (
            "5c",
            BigBird,
            "random",
            Some(2.0),
            P95,
            at(&format!("{c}/big_bird_best_p95")),
        ),
        (
            "6a",
            GlobalOnly,
            "random",
            None,
            Median,
            at(&format!("{e}/global_only/0")),
        ),
        (
            "6a",
            GlobalOnly,
            "omniscient",
            None,
            Median,
            at(&format!("{e}/global_only/1")),
        ),
    ];
    for (figure, attacker, path, measure) in [
        (
            "5a",
            "none",
            format!("{a}/big_bird_median_by_imp_quota"),
            Median,
        ),
        (
            "5b",
            "none",
            format!("{b}/imp_quota_blocks"),
            BlockedByImpressionSiteQuota,
        ),
        (
            "5c",
            "random",
            format!("{c}/big_bird_median_by_imp_quota"),
            Median,
        ),
        ("5d", "random", d.to_owned(), BlockedByGlobalBudget),
        ("6a", "random", format!("{e}/random"), Median),
        ("6a", "omniscient", format!("{e}/omniscient"), Median),
        ("6b", "random", format!("{f}/random"), Median),
        ("6b", "omniscient", format!("{f}/omniscient"), Median),
        ("6c", "random", format!("{g}/random"), Median),
        ("6c", "omniscient", format!("{g}/omniscient"), Median),
    ] {
        for (x, value) in theirs.pointer(&path).unwrap().as_object().unwrap() {
            let x = x.trim_start_matches("up_to_").trim_end_matches("_and_more");
            let x = Some(x.parse().unwrap());
            expected.push((figure, BigBird, attacker, x, measure, number(value)));
        }
    }
    for (figure, system, attacker, x, measure, percent) in &expected {
        let found = ours.result(figure, *system, attacker, *x, *measure);
        let found = found.unwrap_or_else(|| panic!("{figure} {system:?} {attacker} {x:?}"));
        assert_eq!(found.percent, *percent, "{found:?}");
    }
    assert_eq!(ours.results.len(), expected.len());
}

/// No number of the paper is in the code: neither its errors nor its shares nor its counts.
#[test]
fn the_code_has_no_number_of_the_paper() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/paper");
    let results = paper_numbers().results.iter();
    // Numbers such as 0.8 and 1.0 mean many things.
    let telling = results.filter(|result| result.percent >= 5.0);
    let numbers: BTreeSet<String> = telling.map(|it| format!("{:.1}", it.percent)).collect();
    assert!(numbers.contains("48.5") && numbers.len() > 15);
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let code = std::fs::read_to_string(&path).unwrap();
        for number in numbers.iter().filter(|number| *number != "20.0") {
            let found = code.match_indices(number.as_str()).find(|(at, _)| {
                let before = code[..*at].chars().next_back();
                let after = code[at + number.len()..].chars().next();
                let digit = |it: Option<char>| it.is_some_and(|it| it.is_ascii_digit());
                // 5.0 as a quota is a parameter.
                !digit(before) && !digit(after) && number != "5.0" && number != "10.0"
            });
            assert!(found.is_none(), "{}: {number}", path.display());
        }
    }
}

fn owned() -> Owned {
    Owned {
        impression_sites: 10,
        conversion_sites: 10,
    }
}

/// The paper's own results as the results of runs, as far as the paper gives them. What it leaves
/// out is like the nearest number that it gives.
fn as_in_paper(planned: &Planned) -> Summary {
    let attacker = planned.experiment.attacker();
    let x = planned.x.unwrap_or(0.0);
    let median = match (planned.system, attacker, planned.suite) {
        (EvaluatedSystem::CookieMonster, ..) => 0.052,
        (EvaluatedSystem::GlobalOnly, "none", _) => 0.052,
        (EvaluatedSystem::GlobalOnly, ..) => 0.485,
        (EvaluatedSystem::NoImpressionSiteQuota, "none", _) => 0.052,
        (EvaluatedSystem::NoImpressionSiteQuota, ..) => 0.201,
        (_, "none", _) if x < 1.0 => 0.140,
        (_, "none", _) => 0.052,
        (_, "random", Suite::Fig5) if x < 1.0 => 0.140,
        (_, "random", Suite::Fig5) if x <= 2.0 => 0.055,
        (_, "random", Suite::Fig5) if x < 5.0 => 0.125,
        (_, "random", Suite::Fig5) => 0.201,
        (_, "random", _) => 0.054,
        (_, _, Suite::Fig6a) if x < 2.0 => 0.100,
        (_, _, Suite::Fig6b) if x < 10.0 => 0.052,
        (_, _, Suite::Fig6b) => 0.294,
        (_, _, Suite::Fig6c) if x > 1.0 => 0.109,
        _ => 0.286,
    };
    let mut blocked = [0.0; Limit::ALL.len()];
    blocked[Limit::QuerierBudget as usize] = 0.028;
    let attacked = attacker != "none";
    if planned.suite == Suite::Fig5 && planned.x.is_some() {
        let by_site = if x < 1.0 {
            0.162
        } else if x < 2.0 {
            0.008
        } else {
            0.00001
        };
        blocked[Limit::ImpressionSiteQuota as usize] = by_site;
        if attacked {
            let by_global = if x < 3.0 {
                0.005
            } else if x < 4.0 {
                0.11
            } else {
                0.19
            };
            blocked[Limit::GlobalBudget as usize] = by_global;
        }
    }
    let has_global = planned.system != EvaluatedSystem::CookieMonster;
    let popular = planned.suite != Suite::Fig6c || x < 5.0;
    Summary {
        median,
        p5: 0.8 * median,
        p95: 1.8 * median,
        blocked,
        noise: 0.05,
        batches: 500,
        consumed: has_global.then_some((0.3, if attacked { 2.0 } else { 0.0 })),
        touched: (has_global && attacked).then_some(if popular { 0.5 } else { 0.3 }),
        held: attacked.then_some(true),
        reached: [attacked.then_some(1.0), None, Some(0.5), Some(0.01)],
    }
}

fn runs(of: impl Fn(&Planned) -> Vec<Summary>) -> Vec<FinishedRun> {
    let planned = plan(&Suite::ALL, owned()).unwrap();
    let finished = planned.into_iter().map(|planned| {
        let of_seeds = of(&planned);
        FinishedRun::new(planned, of_seeds).unwrap()
    });
    finished.collect()
}

fn by_name(claims: &[Claim]) -> BTreeMap<&str, &Claim> {
    claims.iter().map(|claim| (claim.says, claim)).collect()
}

#[test]
fn the_papers_own_results_meet_all_of_its_claims() {
    let runs = runs(|planned| vec![as_in_paper(planned)]);
    let claims = claims(Results(&runs));
    assert_eq!(claims.len(), 13);
    for claim in &claims {
        assert_eq!(claim.verdict, ClaimVerdict::Holds, "{claim:?}");
        assert_eq!(claim.seeds, None);
    }
    assert_eq!(tally(&claims), "13 of 13 claims of the paper hold");
    let drained = by_name(&claims)["Sybils drain a global budget that has no quotas."];
    assert_eq!(drained.paper, "48.5% (9.3×), 95th percentile 87.6%");
    assert!(drained.ours.starts_with("48.5% (9.3×)"), "{}", drained.ours);
}

/// Each claim has results with which it does not hold.
#[test]
fn every_claim_can_fail() {
    let holding = claims(Results(&runs(|planned| vec![as_in_paper(planned)])));
    let mut failed: BTreeSet<&str> = BTreeSet::new();
    // What goes wrong, for all runs that it can go wrong with.
    let wrong: [fn(&Planned, &mut Summary); 9] = [
        |planned, run| {
            // The global budget alone costs something.
            if planned.system == EvaluatedSystem::GlobalOnly {
                run.median = run.median.max(0.06);
            }
        },
        |planned, run| {
            // Large quotas cost something without an attack.
            if planned.experiment.attacker() == "none" && planned.x > Some(4.0) {
                run.median = 0.06;
            }
        },
        |planned, run| {
            if planned.x == Some(0.5) {
                run.median = 0.06;
            }
        },
        |_, run| run.blocked[Limit::ImpressionSiteQuota as usize] = 0.2,
        |planned, run| {
            // Only some harm where nothing stops the attacker.
            if planned.system == EvaluatedSystem::GlobalOnly && run.median > 0.1 {
                run.median = 0.1;
            }
        },
        |planned, run| {
            if planned.experiment.attacker() == "random" && planned.x.is_some() {
                run.median = 0.3;
            }
        },
        |planned, run| {
            let omniscient = planned.experiment.attacker() == "omniscient";
            if omniscient && planned.suite == Suite::Fig6a && planned.x.is_some() {
                run.median = 0.48;
            }
        },
        |planned, run| {
            // Sybils always help, and popularity does not matter.
            if planned.suite == Suite::Fig6b {
                run.median = 0.05 + planned.x.unwrap() / 200.0;
            } else if planned.suite == Suite::Fig6c {
                run.median = 0.286;
            }
        },
        |_, run| run.held = run.held.map(|_| false),
    ];
    for wrong in wrong {
        let runs = runs(|planned| {
            let mut summary = as_in_paper(planned);
            wrong(planned, &mut summary);
            vec![summary]
        });
        let claims = claims(Results(&runs));
        let fails = claims
            .iter()
            .filter(|it| matches!(it.verdict, ClaimVerdict::Fails(_)));
        let before = failed.len();
        failed.extend(fails.map(|claim| claim.says));
        assert!(
            failed.len() > before || claims.len() < holding.len(),
            "{claims:#?}"
        );
    }
    let never: Vec<&str> = holding
        .iter()
        .map(|claim| claim.says)
        .filter(|says| !failed.contains(says))
        .collect();
    assert!(never.is_empty(), "{never:?}");
}

/// What a workload does not test is neither confirmed nor refuted.
#[test]
fn what_a_workload_does_not_test_is_not_judged() {
    let judged = |change: fn(&mut Summary)| {
        let runs = runs(|planned| {
            let mut summary = as_in_paper(planned);
            change(&mut summary);
            vec![summary]
        });
        claims(Results(&runs))
    };
    let untested = |claims: &[Claim]| {
        let open = |claim: &&Claim| matches!(claim.verdict, ClaimVerdict::NotTested(_));
        claims.iter().filter(open).count()
    };
    // Medians of a few batches say nothing; the theorem holds for every workload.
    let few = judged(|run| run.batches = 3);
    assert_eq!(untested(&few), 12);
    assert_eq!(
        tally(&few),
        "1 of 13 claims of the paper hold, 12 are not tested by this workload"
    );
    // Honest queriers measure nothing even alone.
    assert_eq!(untested(&judged(|run| run.noise = 0.01)), 12);
    // The attacker reaches hardly anybody: claims about attacks say nothing. The four without an
    // attack and the theorem are tested.
    let alone = judged(|run| run.touched = run.touched.map(|_| 0.01));
    assert_eq!(untested(&alone), 8);
    assert!(tally(&alone).starts_with("5 of 13"));
    let one = &by_name(&alone)["Sybils drain a global budget that has no quotas."].verdict;
    assert!(
        one.why()
            .unwrap()
            .contains("only 1.0% of the global budgets"),
        "{one:?}"
    );
    // A quota of 0.5 is enough for everybody, so nothing is too small.
    let cheap = judged(|run| run.blocked[Limit::ImpressionSiteQuota as usize] = 0.0);
    assert_eq!(untested(&cheap), 2);
}

/// With several seeds, claims are about means, and each says with how many seeds it holds.
#[test]
fn seeds_give_means_and_intervals() {
    let runs = runs(|planned| {
        let seeds = [0.98, 1.0, 1.02].map(|factor| {
            let mut summary = as_in_paper(planned);
            summary.median *= factor;
            summary.p95 *= factor;
            summary
        });
        seeds.to_vec()
    });
    let results = Results(&runs);
    assert_eq!(results.seeds(), 3);
    let claims = claims(results);
    assert!(claims.iter().all(|claim| claim.seeds == Some((3, 3))));
    let drained = by_name(&claims)["Sybils drain a global budget that has no quotas."];
    // Student's interval of 47.53, 48.5 and 49.47.
    assert!(
        drained.ours.starts_with("48.5% ± 2.4 (9.3×)"),
        "{}",
        drained.ours
    );
    let rows = compared(results);
    assert_eq!(rows.len(), paper_numbers().results.len());
    assert!(
        rows.iter()
            .all(|row| row.interval.is_some_and(|it| it.seeds == 3))
    );
    for figure in figures(results) {
        assert_eq!(
            figure.chart.stacked,
            figure.chart.whiskers.is_empty(),
            "{}",
            figure.name
        );
        assert!(figure.csv.lines().next().unwrap().contains("median:low"));
    }
}

#[test]
fn figures_show_the_papers_numbers_in_the_colour_of_their_series() {
    let runs = runs(|planned| vec![as_in_paper(planned)]);
    let figures = figures(Results(&runs));
    let names: Vec<&str> = figures.iter().map(|figure| figure.name).collect();
    assert_eq!(names, NAMES);
    for figure in &figures {
        // Every number that the paper gives for a figure is in it.
        let of_paper = paper_numbers().of_figure(figure.name).count();
        assert_eq!(figure.chart.marks.len(), of_paper, "{}", figure.name);
    }
    // A number of a baseline is not at a value of the parameter, but outside the frame.
    let svg = figures[2].chart.to_inline();
    assert!(svg.contains("in the paper: 87.6%"), "{svg}");
    let svg = figures[0].chart.to_inline();
    assert!(
        svg.contains(
            "<title>Cookie Monster, global budget only, no impression-site quotas: the same"
        ),
        "{svg}"
    );
}

fn page(runs: &[FinishedRun], preset: Option<Preset>) -> String {
    let description = Description::default();
    report(&Subject {
        results: Results(runs),
        description: &description,
        preset,
        workload: "a <small> & quiet workload".to_owned(),
        queriers: 106,
        queriers_of_paper: 56,
        options: QuerierOptions::default(),
        parameters: vec![("seed".to_owned(), "1".to_owned())],
        command: "bigbird reproduce".to_owned(),
        provenance: Provenance {
            version: "bigbird 1.2.3 (abcdef0)".to_owned(),
            date: "2026-11-18 20:00 UTC".to_owned(),
            machine: "2 cores, a processor, a system".to_owned(),
            duration: "30 s".to_owned(),
            runs_made: 68,
        },
    })
}

/// The tags of a page are balanced, identifiers are unique, and every anchor exists.
fn check_page(page: &str) {
    const VOID: [&str; 4] = ["meta", "br", "link", "img"];
    let mut open: Vec<&str> = Vec::new();
    let (mut ids, mut anchors) = (BTreeSet::new(), BTreeSet::new());
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        // `<` in an attribute would be escaped, and so would `>`.
        let end = rest.find('>').unwrap();
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{}", &rest[..rest.len().min(80)]);
            continue;
        }
        let name = tag.split([' ', '/']).next().unwrap();
        for (attribute, into) in [(" id=\"", &mut ids), (" href=\"#", &mut anchors)] {
            if let Some((_, value)) = tag.split_once(attribute) {
                let value = value.split('"').next().unwrap();
                let new = into.insert(value.to_owned());
                assert!(
                    new || attribute.contains("href"),
                    "the id {value} is there twice"
                );
            }
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
        // Style sheets have `>`.
        if name == "style" {
            rest = &rest[rest.find("</style>").unwrap()..];
        }
    }
    assert!(open.is_empty(), "{open:?}");
    let missing: Vec<_> = anchors.difference(&ids).collect();
    assert!(missing.is_empty() && !anchors.is_empty(), "{missing:?}");
}

#[test]
fn the_page_is_well_formed_and_depends_on_its_subject_alone() {
    let good = runs(|planned| vec![as_in_paper(planned)]);
    let text = page(&good, Some(Preset::Published));
    check_page(&text);
    assert_eq!(text, page(&good, Some(Preset::Published)));
    for part in [
        "13 of 13 claims of the paper hold",
        "a &lt;small&gt; &amp; quiet workload",
        "Table 3",
        "bigbird 1.2.3 (abcdef0)",
        "2026-11-18 20:00 UTC",
        "2 cores, a processor, a system",
        "30 s, in which 68 of 76 runs were made",
        "too much alike",
        "at least 100 conversions a day (526 sites)",
        "takes sites with at least 50",
    ] {
        assert!(text.contains(part), "{part}");
    }
    // Only some suites, several seeds, files instead of a population, and what is not tested.
    let some: Vec<FinishedRun> = runs(|planned| vec![as_in_paper(planned); 2])
        .into_iter()
        .filter(|run| run.planned.suite == Suite::Fig6b)
        .collect();
    let text = page(&some, None);
    check_page(&text);
    assert!(!text.contains("too much alike") && text.contains("read from files"));
    let few = runs(|planned| {
        let mut summary = as_in_paper(planned);
        summary.batches = 1;
        vec![summary]
    });
    let text = page(&few, Some(Preset::AttackFitted));
    check_page(&text);
    assert!(text.contains("12 are not tested by this workload"));
    // The same reason is given once.
    assert_eq!(text.matches("There are too few batches (1)").count(), 1);
    assert!(text.contains("not tested") && text.contains("For the same reason as above."));
}
