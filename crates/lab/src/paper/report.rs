//! The report: one page that explains what Big Bird does, and whether the paper's evaluation could
//! be reproduced. It depends only on its [`Subject`].

use bigbird::{FilterKind, MicroEpsilon, Policy, PolicyError, WorkloadParameters};
use bigbird_chart::{PageTable, short};
use maud::{Markup, PreEscaped, html};

use crate::describe::Description;
use crate::evaluation::{NoiseModel, QuerierOptions};
use crate::paper::claims::{Claim, ClaimVerdict, claims, reasons, tally};
use crate::paper::comparison::{Compared, compared};
use crate::paper::figures::{Figure, figures};
use crate::paper::numbers::{PaperMeasure, PaperNumbers, paper_numbers};
use crate::paper::reproduce::{FinishedRun, Results};
use crate::paper::suites::{EvaluatedSystem, Suite};
use crate::text::{grouped, percent};
use crate::workload::synthetic::Preset;

/// The contents of a report.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The finished runs.
    pub results: Results<'a>,
    /// The description of the workload. With several seeds, that of the first.
    pub description: &'a Description,
    /// The preset of the synthetic workload. None if the workload was read from files.
    pub preset: Option<Preset>,
    /// The workload in words.
    pub workload: String,
    /// The number of queriers.
    pub queriers: usize,
    /// The number of those with as many conversions a day as in the paper's text.
    pub queriers_of_paper: usize,
    /// The options of queriers.
    pub options: QuerierOptions,
    /// Parameters, by name.
    pub parameters: Vec<(String, String)>,
    /// The command that made the report.
    pub command: String,
    /// When, where and with what it was made.
    pub provenance: Provenance,
}

/// When, where and with what a report was made. Whoever makes the report says it: the laboratory
/// has no clock and does not look at its machine.
#[derive(Debug, Clone, Default)]
pub struct Provenance {
    /// The version of the program, with its commit if that is known.
    pub version: String,
    /// The day.
    pub date: String,
    /// The number of cores, the processor and the operating system.
    pub machine: String,
    /// The time that it took, in words.
    pub duration: String,
    /// The number of runs that were made for this report. The others had been made before, or are
    /// shared by figures.
    pub runs_made: usize,
}

/// The report as an HTML page.
pub fn report(subject: &Subject<'_>) -> String {
    let claims = claims(subject.results);
    let figures = figures(subject.results);
    let compared = compared(subject.results);
    let parts = [
        (
            "5",
            "Figure 5: impression-site quotas, without attack and under attack",
        ),
        (
            "6",
            "Figure 6: domain caps, and the strength of the attacker",
        ),
    ];
    let of_part = |part: &str| -> Vec<&Figure> {
        let figures = figures.iter();
        figures
            .filter(|figure| figure.name.starts_with(part))
            .collect()
    };
    let body = html! {
        (heading(subject, &claims))
        (introduction())
        (tiles(subject.results))
        (claims_table(&claims))
        @for (part, title) in parts {
            @let of_part = of_part(part);
            @if !of_part.is_empty() {
                h2 { (title) }
                div class="figures" { @for one in of_part { (figure(one, &claims)) } }
                (comparison(&compared, part))
            }
        }
        (workload(subject))
        (differences(subject))
        (consumption(subject.results))
        (made(subject))
    };
    let title = "Big Bird: the paper's evaluation, reproduced";
    bigbird_chart::page(title, &body).into_string()
}

fn heading(subject: &Subject<'_>, claims: &[Claim]) -> Markup {
    let fails = claims
        .iter()
        .any(|it| matches!(it.verdict, ClaimVerdict::Fails(_)));
    let all = claims.iter().all(|it| it.verdict == ClaimVerdict::Holds);
    let class = match (all, fails) {
        (true, _) => "verdict",
        (_, true) => "verdict failed",
        _ => "verdict open",
    };
    let Provenance { version, date, .. } = &subject.provenance;
    html! {
        p class="soft" { "Big Bird: privacy budgets for the open web" }
        h1 { "The paper's evaluation, reproduced" }
        p class=(class) {
            b { (tally(claims)) } " on " (subject.workload) "."
            @if !all { " Those that do not hold or are not tested are marked and explained below." }
        }
        @if let Some((least, most)) = sizes_under_attack(subject.results) {
            p {
                "The claims are about directions, not sizes. Median errors under attack here are \
                 between " (format!("{least:.1}")) " and " (format!("{most:.1}")) " times those in \
                 the paper: see " a href="#differences" { "what differs, and why" } "."
            }
        }
        p class="soft" {
            "Made with " (version) " on " (date)
            @if subject.results.seeds() > 1 {
                ", with " (subject.results.seeds()) " seeds: numbers are means over seeds, and ± \
                 is half of their 95% interval"
            }
            ". " a href="#made" { "How, and where" } "."
        }
    }
}

fn introduction() -> Markup {
    let terms = [
        (
            "Error",
            "how far the sums of a batch of reports are off, relative to the sums. It is the \
             RMSRE, the root of the mean squared relative error over buckets. Figures show the \
             median and the 95th percentile over batches.",
        ),
        (
            "ε (epsilon)",
            "the measure of privacy loss. Every report that reveals something costs ε.",
        ),
        (
            "Querier",
            "a site that measures. Here, queriers are conversion sites.",
        ),
        (
            "Batch",
            "the reports that a querier sums into one result. The parameters at the end of this \
             page give its size.",
        ),
        (
            "Impression-site quota",
            "how much of a device's global budget reports about the ads of one site can use up in \
             one epoch, which is one day in the paper's evaluation. Where this page gives a number \
             for a quota, it means this one, in ε.",
        ),
        (
            "Conversion-site quota",
            "how much of a device's global budget the conversions on one site can consume in one \
             epoch.",
        ),
        (
            "Domain cap",
            "how many distinct sites one user action may involve in an epoch.",
        ),
        ("Sybil", "a domain that an attacker made up."),
        (
            "Cookie Monster",
            "the earlier system, with a budget for each querier and no global budget.",
        ),
        (
            "Blocked",
            "said of a report from which something was withheld, because a budget or a quota could \
             not pay or the domain cap was reached.",
        ),
    ];
    html! {
        p {
            "Browsers are about to measure ads without tracking people. Each device keeps to \
             itself what it saw, and answers sites with encrypted reports that cost " i { "privacy budget" }
            ". A budget for each querier is not enough to protect people, so each device also has a "
            i { "global budget" }
            ". But anyone who can spend the global budget can also drain it: with throw-away \
             domains (Sybils), an attacker can make everyone else's reports worthless. "
            b { "Big Bird" } " gives each site an " i { "impression-site quota" } " and a "
            i { "conversion-site quota" } ", and sets a " i { "domain cap" }
            " on the sites that one user action may involve. The global budget can then be spent \
             only as fast as people really act."
        }
        details {
            summary { "Terms" }
            ul { @for (term, meaning) in terms { li { b { (term) } ": " (meaning) } } }
        }
    }
}

/// The most important results, each with the paper's number.
fn tiles(results: Results<'_>) -> Markup {
    let alone = results.at(Suite::Fig5, EvaluatedSystem::CookieMonster, "none", None);
    let factor = |run: &FinishedRun| {
        let alone = alone?;
        Some(run.summary.median / alone.summary.median)
    };
    let tiles: [(&str, &str, EvaluatedSystem, &str, Option<f64>); 4] = [
        (
            "no attack, no global budget",
            "5a",
            EvaluatedSystem::CookieMonster,
            "none",
            None,
        ),
        (
            "random attacker, global budget only",
            "5c",
            EvaluatedSystem::GlobalOnly,
            "random",
            None,
        ),
        (
            "random attacker, Big Bird",
            "5c",
            EvaluatedSystem::BigBird,
            "random",
            Some(2.0),
        ),
        (
            "omniscient attacker, Big Bird",
            "6a",
            EvaluatedSystem::BigBird,
            "omniscient",
            Some(2.0),
        ),
    ];
    let meaning = |run: &FinishedRun| match (run.planned.system, factor(run)) {
        (EvaluatedSystem::CookieMonster, _) => format!(
            "The median error of honest batches. Noise alone gives {}.",
            percent(run.summary.noise)
        ),
        (EvaluatedSystem::GlobalOnly, Some(factor)) if factor < 2.0 => {
            format!("Private, with {factor:.1} times the error without attack.")
        }
        (EvaluatedSystem::GlobalOnly, _) => {
            "Private, but drained: much of the measurement is lost.".to_owned()
        }
        _ if run.planned.experiment.attacker() == "omniscient" => {
            "A worst case: this attacker knows every quota on every device.".to_owned()
        }
        (_, Some(factor)) if factor > 1.3 => {
            format!("Just as private, with {factor:.1} times the error without attack.")
        }
        _ => "Just as private, and nearly as accurate as without attack.".to_owned(),
    };
    html! {
        div class="tiles" {
            @for (name, figure, system, attacker, x) in tiles {
                @let median = PaperMeasure::Median;
                @let paper = paper_numbers().result(figure, system, attacker, x, median);
                @if let Some(paper) = paper
                    && let Some(run) = results.at(paper.suite(), system, attacker, x) {
                    div class="tile" {
                        span class="soft" { (name) }
                        b { (percent(run.summary.median)) }
                        (meaning(run))
                        span class="soft" { " In the paper: " (percent(paper.fraction())) "." }
                    }
                }
            }
        }
    }
}

/// The least and the largest ratio between a median error under attack and the paper's.
fn sizes_under_attack(results: Results<'_>) -> Option<(f64, f64)> {
    let ratios: Vec<f64> = compared(results)
        .iter()
        .filter(|row| row.paper.is_under_attack() && row.paper.measure == PaperMeasure::Median)
        .map(|row| row.ours / row.paper.fraction())
        .collect();
    let least = ratios.iter().copied().min_by(f64::total_cmp)?;
    let most = ratios.iter().copied().max_by(f64::total_cmp)?;
    Some((least, most))
}

fn claims_table(claims: &[Claim]) -> Markup {
    let mut table = PageTable::new(&["", "-claim", "here", "in the paper"]);
    for (claim, why) in claims.iter().zip(reasons(claims)) {
        table.row(vec![
            mark(&claim.verdict),
            html! {
                (claim.says) " "
                span class="soft" {
                    "("
                    @if claim.figure == "theorem" { "theorem" }
                    @else { a href={ "#fig" (claim.figure) } { "figure " (claim.figure) } }
                    ": " (claim.test) ")"
                }
                @if let Some((held, seeds)) = claim.seeds {
                    " Holds with " (held) " of " (seeds) " seeds."
                }
                @if let Some(why) = why { br; b { "Why: " } (why) }
            },
            html! { (claim.ours) },
            html! { (claim.paper) },
        ]);
    }
    html! {
        h2 { "The paper's claims, and whether they hold here" }
        (table.to_markup())
    }
}

/// The mark of a verdict.
fn mark(verdict: &ClaimVerdict) -> Markup {
    let class = match verdict {
        ClaimVerdict::Holds => "good",
        ClaimVerdict::Fails(_) => "bad",
        ClaimVerdict::NotTested(_) => "open",
    };
    html! { span class=(class) { (verdict.sign()) " " (verdict.name()) } }
}

/// A figure with the claims about it.
fn figure(figure: &Figure, claims: &[Claim]) -> Markup {
    let name = figure.name;
    let own: Vec<&Claim> = claims.iter().filter(|claim| claim.figure == name).collect();
    html! {
        figure id={ "fig" (name) } {
            (PreEscaped(figure.chart.to_inline()))
            figcaption {
                b { (name) } " " (figure.caption) " "
                a href={ "fig" (name) ".csv" } { "Numbers (CSV)" }
                @if !own.is_empty() {
                    ul { @for claim in own { li {
                        (mark(&claim.verdict)) " " (claim.says) " "
                        span class="soft" { "Here: " (claim.ours) ". Paper: " (claim.paper) "." }
                    } } }
                }
            }
        }
    }
}

fn comparison(compared: &[Compared], part: &str) -> Markup {
    let mut table = PageTable::new(&["figure", "-measurement", "#here", "#paper", "#difference"]);
    for row in compared
        .iter()
        .filter(|row| row.paper.figure.starts_with(part))
    {
        let paper = row.paper.fraction();
        let ours = match row.interval {
            Some(interval) => format!(
                "{} (95% interval {} to {})",
                percent(row.ours),
                percent(interval.low.max(0.0)),
                percent(interval.high)
            ),
            None => percent(row.ours),
        };
        let (of_paper, difference) = if row.paper.at_most {
            let word = if row.ours < paper { "under" } else { "over" };
            (format!("under {}", percent(paper)), word.to_owned())
        } else {
            let points = 100.0 * (row.ours - paper);
            let sign = if points < 0.0 { "−" } else { "+" };
            let factor = row.ours / paper;
            let difference = format!("{sign}{:.1} points ({factor:.2}×)", points.abs());
            (percent(paper), difference)
        };
        table.row(vec![
            html! { (row.paper.figure) },
            html! {
                (row.paper.describe())
                @if let Some(note) = &row.paper.note { span class="soft" { " (" (note) ")" } }
            },
            html! { (ours) },
            html! { (of_paper) },
            html! { (difference) },
        ]);
    }
    html! {
        details {
            summary { "Every number that the paper gives for figure " (part) ", next to ours" }
            p class="soft" { "Numbers are median errors, unless a row says otherwise." }
            (table.to_markup())
        }
    }
}

fn differences(subject: &Subject<'_>) -> Markup {
    let paper = paper_numbers();
    let options = &subject.options;
    let (from, to) = paper.last_ranks_of_label;
    html! {
        h2 id="differences" { "What differs from the paper, and why" }
        ul {
            li { b { "The data. " } (data(subject.preset)) }
            @if subject.preset.is_some() {
                li { b { "95th percentiles. " } (percentiles(subject.results, paper)) }
            }
            li {
                b { "Queriers. " }
                "The paper's text says that queriers have at least "
                (paper.dataset.querier_conversions_a_day) " conversions a day ("
                (grouped(paper.dataset.queriers)) " sites). The artifact that made its figures \
                 takes sites with at least " (QuerierOptions::default().min_conversions_a_day)
                ". Here, it was " (options.min_conversions_a_day) ": "
                (grouped(subject.queriers as u64)) " sites, of which "
                (grouped(subject.queriers_of_paper as u64)) " have "
                (paper.dataset.querier_conversions_a_day)
                " a day. The sites between have too few conversions for a full batch, so their \
                 errors do not count. But attackers hear of visits that concern them."
            }
            li {
                b { "Batches. " }
                "The paper's text says that a batch has at most "
                (grouped(paper.dataset.most_reports_in_a_batch))
                " reports. Its artifact has no such limit, and neither have we. A batch has at \
                 least " (grouped(QuerierOptions::default().min_batch as u64)) " reports there, and "
                (grouped(options.min_batch as u64)) " here."
            }
            li {
                b { "Popularity (6c). " }
                "The paper labels its last point as ranks " (from) "–" (to) ", but its artifact \
                 sweeps the first rank of ten sites from 1 to 5. Both sweeps are shown. "
                @if subject.preset.is_some() {
                    "Neither preset reproduces how the harm falls with the rank."
                }
            }
            li {
                b { "Noise. " }
                "The paper's figures add noise of scale 1/ε, but its accounting assumes 2/ε. Here, \
                 it was "
                (match options.noise { NoiseModel::Paper => "1/ε", NoiseModel::Consistent => "2/ε" })
                "."
            }
        }
    }
}

/// What the data means for the results.
fn data(preset: Option<Preset>) -> Markup {
    match preset {
        Some(Preset::Published) => html! {
            "The paper's data (CriteoPrivateAd) is not part of this program. The population here \
             is synthetic, and is fitted only to published numbers that do " i { "not" } " involve \
             an attack. All results under attack are therefore predictions, and they are reported \
             unchanged: attacks do somewhat less harm here than in the paper. Attacks depend on \
             four things that the published numbers leave open: whether devices stay on big sites, \
             whether clicks are concentrated there, how large the largest conversion sites are, \
             and how many buckets are small. The preset " code { "attack-fitted" } " shows that \
             other answers to these questions give the paper's numbers."
        },
        Some(Preset::AttackFitted) => html! {
            "The population here is synthetic and was " b { "also fitted to the paper's results \
             under attack" } ". Its agreement with them is therefore not evidence. For evidence, \
             use the preset " code { "published" } "."
        },
        None => html! {
            "The workload was read from files. Unless these are the paper's own files, the paper's \
             numbers are only a rough guide."
        },
    }
}

/// The reason why 95th percentiles are smaller on a synthetic population than in the paper.
fn percentiles(results: Results<'_>, paper: &PaperNumbers) -> Markup {
    let system = EvaluatedSystem::GlobalOnly;
    let drained = results.at(Suite::Fig5, system, "random", None);
    let said = |measure| paper.result("5c", system, "random", None, measure);
    let example = drained
        .zip(said(PaperMeasure::Median))
        .zip(said(PaperMeasure::P95));
    html! {
        "The queriers of the synthetic population are too much alike. Their customers visit the \
         same sites and act alike, so an attack hits all queriers about equally, and the \
         unluckiest are not far from the median. "
        @if let Some(((drained, median), p95)) = example {
            "If the random attacker meets a global budget without quotas, the errors of nine in \
             ten batches are between " (percent(drained.summary.p5)) " and "
            (percent(drained.summary.p95)) " here. In the paper, the median is "
            (percent(median.fraction())) ", and one batch in twenty is above "
            (percent(p95.fraction())) ". "
        }
        "The size of the population is not the reason: 95th percentiles are as small at "
        code { "--scale 1" } "."
    }
}

/// The amounts that were consumed, and the shares of the bounds that attacks reached.
fn consumption(results: Results<'_>) -> Markup {
    let rows: Vec<&FinishedRun> = results
        .0
        .iter()
        .filter(|run| run.summary.consumed.is_some() && run.summary.held.is_some())
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
    html! {
        h2 { "What attackers took, and the most they could take" }
        p {
            "The resilience theorem bounds what an attacker can take from one global budget: by \
             the quotas it uses (i), and by its user actions (ii). It also bounds the effect on a \
             sum of reports (iii). Every run checks every device and every batch. The table shows \
             the largest share of each bound that was reached. At 100%, an attacker took as much \
             as the theorem allows: the bound is met, not exceeded. A dash means that the policy \
             lacks the limits that the bound needs. Without quotas and a domain cap, only the \
             bound on sums (iii) remains."
        }
        details {
            summary { "All attacked runs" }
            p class="soft" {
                "The columns with ε show how much was consumed from a global budget: the mean over \
                 the global budgets that paid anything."
            }
            div class="scroll" { table class="dense attacked" {
                thead { tr {
                    th { "suite" } th { "system" } th { "attacker" }
                    th class="n" { "quota, cap," br; "Sybils or rank" }
                    th class="n" { "honest" br; "reports, ε" }
                    th class="n" { "attacker," br; "ε" }
                    th class="n" { "(i) by" br; "quotas" }
                    th class="n" { "(ii) by user" br; "actions" }
                    th class="n" { "(iii) budgets" br; "drained" }
                    th class="n" { "(iii) change" br; "of a sum" }
                    th {}
                } }
                tbody { @for run in rows {
                    @let (honest, attacker) = run.summary.consumed.unwrap_or_default();
                    tr {
                        td { (run.planned.suite.name()) }
                        td { (run.planned.system.name()) }
                        td { (run.planned.experiment.attacker()) }
                        td { (run.planned.x.map(short).unwrap_or_default()) }
                        td { (format!("{honest:.2}")) }
                        td { (format!("{attacker:.2}")) }
                        @for reached in run.summary.reached { td { (share(reached)) } }
                        td {
                            @if run.summary.held == Some(false) {
                                span class="bad" { "✗ exceeded" }
                            } @else { "✓" }
                        }
                    }
                } }
            } }
        }
    }
}

/// The capacities that follow from workload parameters at a querier budget of 1: the global budget
/// and the impression-site quota, in ε.
fn capacities([conversion, impression, fan_out]: [u32; 3]) -> Result<[f64; 2], PolicyError> {
    let parameters =
        WorkloadParameters::new(conversion.max(1), impression.max(1), fan_out.max(1), 0.0)?;
    let policy = Policy::for_workload(1.0, &parameters, 1)?;
    let of = |kind| {
        let capacity = policy.capacities().of(kind).amount();
        capacity.map_or(f64::INFINITY, MicroEpsilon::to_epsilon)
    };
    Ok([
        of(FilterKind::GlobalBudget),
        of(FilterKind::ImpressionSiteQuota),
    ])
}

/// A number of the paper, after ours.
fn beside(paper: u32) -> Markup {
    html! { span class="soft" { " (" (paper) ")" } }
}

fn workload(subject: &Subject<'_>) -> Markup {
    let description = subject.description;
    let table = &paper_numbers().workload_table;
    let quantities = [
        ("N", "conversion sites"),
        ("M", "impression sites"),
        ("n", "conversion sites for each impression site"),
    ];
    let first_of_several = match subject.results.seeds() {
        0 | 1 => "",
        _ => " with the first seed",
    };
    html! {
        h2 id="table3" { (table.name) ": what devices do, and the capacities that follow" }
        p {
            "The workload" (first_of_several) " has "
            (grouped(description.devices)) " devices with " (grouped(description.impressions))
            " impressions and " (grouped(description.conversions)) " conversions, on "
            (grouped(description.impression_sites as u64)) " impression sites and "
            (grouped(description.conversion_sites as u64)) " conversion sites. Of the conversion \
             sites, " (grouped(subject.queriers as u64)) " are queriers."
        }
        p {
            "This is the paper's " (table.name) " (“" (table.title) "”): the number of sites that \
             a device involves in an epoch, at percentiles ("
            @for (number, (letter, meaning)) in quantities.into_iter().enumerate() {
                @if number > 0 { ", " } (letter) ": " (meaning)
            }
            "), and the capacities that the paper's closed form gives for them, with a querier \
             budget of 1: a global budget of max(N, n · M) and an impression-site quota of n."
        }
        div class="scroll" { table class="dense" {
            thead { tr {
                th {} th class="n" { "N" } th class="n" { "M" } th class="n" { "n" }
                th class="n" { "global" br; "budget, ε" }
                th class="n" { "imp.-site" br; "quota, ε" }
            } }
            tbody { @for row in &table.rows {
                @let [conversion, impression, fan_out] = description.at(row.percentile);
                @let here = [2 * conversion, impression, 2 * fan_out];
                @let sites = [row.conversion_sites, row.impression_sites, row.fan_out];
                @let of_paper = [row.global_budget, row.impression_site_quota];
                tr {
                    td { "p" (row.percentile) }
                    @for (here, paper) in here.into_iter().zip(sites) {
                        td class="n" { (here) (beside(paper)) }
                    }
                    @if let Ok(capacities) = capacities(here) {
                        @for (here, paper) in capacities.into_iter().zip(of_paper) {
                            td class="n" { (short(here)) (beside(paper)) }
                        }
                    }
                }
            } }
        } }
        p class="soft" {
            "In each cell, the number here is before the paper's, which is in brackets. Our N and \
             n are shown doubled, because the paper's look doubled: they are even at \
             every percentile, probably because it counts a site once for clicks and once for \
             landed clicks. Counted once, N, n and both capacities are half as large. "
            code { "bigbird tune" } " counts each site once."
        }
    }
}

fn made(subject: &Subject<'_>) -> Markup {
    let provenance = &subject.provenance;
    let runs = subject.results.0.len() * subject.results.seeds();
    let made = match provenance.runs_made {
        made if made == runs => String::new(),
        made => format!(
            ", in which {made} of {runs} runs were made; the others had been made before, or are \
             shared by figures"
        ),
    };
    let rows = [
        ("version", provenance.version.clone()),
        ("date", provenance.date.clone()),
        ("machine", provenance.machine.clone()),
        ("duration", format!("{}{made}", provenance.duration)),
    ];
    let parameters = subject.parameters.iter();
    let parameters = parameters.map(|(name, value)| (name.as_str(), value.clone()));
    html! {
        h2 id="made" { "How this report was made" }
        table {
            @for (name, value) in rows.into_iter().chain(parameters) {
                tr { td { (name) } td { (value) } }
            }
        }
        pre { (subject.command) }
        p class="soft" {
            "All runs are in " a href="results.json" { "results.json" } ". The numbers of each \
             figure are in fig*.csv, and the figures are in fig*.svg."
        }
    }
}
