//! The report of an audit as one HTML page.

use bigbird_chart::{Chart, Series, Stroke};
use maud::{Markup, PreEscaped, html};

use crate::catalogue::catalogue;
use crate::denial::DenialResult;
use crate::run::{AuditReport, COMPARED_SCRIPTS, SearchRow, TacticsRow, largest_loss_text};
use crate::story::story;

/// A figure of the page, also written to a file.
#[derive(Debug, Clone)]
pub struct AuditFigure {
    /// The name of its file, without the ending.
    pub name: &'static str,
    /// The chart.
    pub chart: Chart,
    /// What to see in it.
    pub caption: &'static str,
}

/// The figures of a report. There are none if only some managers were searched.
pub fn figures(report: &AuditReport) -> Vec<AuditFigure> {
    if report.adaptive.is_empty() {
        return Vec::new();
    }
    vec![adaptive(report), plain(report), individual(report)]
}

fn chart(title: &str, series: Vec<Series>) -> Chart {
    Chart {
        title: title.to_owned(),
        x_label: "helpers (n)".to_owned(),
        y_label: "privacy loss (ε)".to_owned(),
        ticks: Chart::numbers([1.0, 8.0, 16.0, 24.0, 32.0, 40.0, 48.0, 56.0, 64.0]),
        series,
        ..Chart::default()
    }
}

fn line(name: &str, colour: u8, stroke: Stroke, points: Vec<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        colour,
        stroke,
        points,
    }
}

fn adaptive(report: &AuditReport) -> AuditFigure {
    let rows = || report.adaptive.iter().filter(|row| row.epsilon == 1.0);
    let series = vec![
        line(
            "exact",
            0,
            Stroke::Solid,
            rows().map(|row| (row.n.into(), row.exact)).collect(),
        ),
        line(
            "as bad as collusion",
            1,
            Stroke::Dashed,
            rows().map(|row| (row.n.into(), row.collusion)).collect(),
        ),
        line("promised", 2, Stroke::Flat, vec![(1.0, 1.0)]),
    ];
    AuditFigure {
        name: "adaptive",
        chart: chart("Adaptive data, ε = 1", series),
        caption: "Each querier has a budget of ε = 1, and no limit is shared. If the data depends \
                  on what all queriers heard, one querier's loss grows with the number of helpers.",
    }
}

fn plain(report: &AuditReport) -> AuditFigure {
    let rows = |fixed: bool| {
        let rows = report.shared_limit.iter();
        rows.filter(move |row| (row.global_epsilon == 8.0) == fixed)
    };
    let series = vec![
        line(
            "exact, ε_g = n + 0.9",
            0,
            Stroke::Solid,
            rows(false).map(|row| (row.n.into(), row.exact)).collect(),
        ),
        line(
            "exact, ε_g = 8",
            1,
            Stroke::Solid,
            rows(true).map(|row| (row.n.into(), row.exact)).collect(),
        ),
        line(
            "the paper's bound",
            3,
            Stroke::Dashed,
            rows(true).map(|row| (row.n.into(), row.paper)).collect(),
        ),
        line("promised", 2, Stroke::Flat, vec![(1.0, 1.0)]),
    ];
    AuditFigure {
        name: "shared-limit",
        chart: chart("Shared limit, plain filters, ε = 1", series),
        caption: "Querier n + 1 learns from whether its second request is refused. With a limit \
                  that grows with n the loss grows. At a fixed limit of 8 it falls again, and the \
                  paper's bound is above the true loss from n = 32 on.",
    }
}

fn individual(report: &AuditReport) -> AuditFigure {
    let rows = |fixed: bool| {
        let rows = report.shared_limit_individual.iter();
        rows.filter(move |row| (row.global_epsilon == 8.0) == fixed)
    };
    let growing = || rows(false).chain(rows(true).filter(|row| row.n == 8));
    let mut points: Vec<(f64, f64)> = growing().map(|row| (row.n.into(), row.exact)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.dedup();
    let series = vec![
        line("exact, ε_g = n", 0, Stroke::Solid, points),
        line(
            "exact, ε_g = 8",
            1,
            Stroke::Solid,
            rows(true).map(|row| (row.n.into(), row.exact)).collect(),
        ),
        line("promised", 2, Stroke::Flat, vec![(1.0, 1.0)]),
    ];
    AuditFigure {
        name: "shared-limit-individual",
        chart: chart("Shared limit, individual filters, ε = 1", series),
        caption: "Records that cannot pay are dropped silently, and querier n + 1 counts how many \
                  are left. At a fixed limit of 8 the loss tends to ε + (ε_g − ε)·tanh(ε/2) = 4.23.",
    }
}

/// The page.
pub fn page(report: &AuditReport, command: &str) -> String {
    let figures = figures(report);
    let body = html! {
        (heading(report))
        (search_table(report))
        @if !figures.is_empty() {
            h2 { "Per-querier guarantees fail" }
            p {
                "Each querier was promised a loss of at most its own budget ε. The numbers \
                 are exact: the filters of the engine are asked for every case of what the \
                 helpers heard, and the cases are weighted. Nobody's loss exceeds the \
                 global budget, so \"grows with n\" needs a global budget that grows with n."
            }
            div class="figures" {
                @for figure in &figures {
                    figure {
                        (PreEscaped(figure.chart.to_inline()))
                        figcaption { (figure.caption) }
                    }
                }
            }
            (failure_table(report))
            (slips())
        }
        @if !report.denial.is_empty() { (denial(&report.denial)) }
        @if !report.tactics.is_empty() { (tactics(&report.tactics)) }
        (stories(report))
        (limits())
        h2 { "How this page was made" }
        pre { (command) }
    };
    bigbird_chart::page("Big Bird: what leaks, what holds", &body).into_string()
}

fn heading(report: &AuditReport) -> Markup {
    let of = |kind: &'static str| report.search.iter().filter(move |row| row.kind == kind);
    let fine = |kind| of(kind).filter(|row| row.as_expected()).count();
    let scripts: u64 = of("real").map(|row| row.strategies).sum();
    let good = report.search.iter().all(SearchRow::as_expected);
    html! {
        h1 { "What leaks, what holds" }
        p {
            "An audit plays scripts in two worlds that differ in what one epoch of one device \
             holds, and measures exactly how much all answers together reveal about it."
        }
        p class={ "verdict" @if !good { " failed" } } {
            @if good { "Everything is as it should be." }
            @else { "Something is not as it should be: see the table." }
        }
        div class="tiles" {
            div class="tile" {
                b { (fine("real")) " of " (of("real").count()) }
                "real managers hold, in " (grouped(scripts)) " scripts"
            }
            div class="tile" {
                b { (fine("broken")) " of " (of("broken").count()) }
                "broken managers are caught"
            }
            div class="tile" {
                b { (fine("wasteful")) " of " (of("wasteful").count()) }
                "wasteful managers are not reported"
            }
        }
    }
}

fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    let groups = groups.into_iter().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

fn search_table(report: &AuditReport) -> Markup {
    html! {
        h2 { "The search" }
        p {
            "Three oracles are asked after every step: " b { "separation" } " (nothing outside epoch \
             X differs), " b { "accounting" } " (the loss is at most what X's global budget has \
             granted) and the " b { "theorem" } " (the loss is at most its capacity). Only the last \
             two are leaks. The largest loss shows how close a script came to the capacity."
        }
        div class="scroll" { table {
            tr {
                th { "manager" } th { "kind" } th { "result" } th { "separated" }
                th class="n" { "scripts" } th class="n" { "largest loss" } th class="n" { "steps" }
                th { "what it is" }
            }
            @for row in &report.search { tr {
                td style="white-space:nowrap" { (row.manager) }
                td { (row.kind) }
                td class=(if row.as_expected() { "good" } else { "bad" }) { (result(row)) }
                td { (if row.separated { "yes" } else { "no" }) }
                td class="n" { (grouped(row.strategies)) }
                td class="n" { (largest_loss_text(row)) }
                td class="n" {
                    @if let Some(script) = &row.script { (script.steps.len()) }
                }
                td style="min-width:18rem" { (row.about) }
            } }
        } }
        p class="soft" {
            "The draft deducts with the ε of the page and puts ε rounded up to whole µε on the wire, \
             which the noise follows. So managers under w3c-draft are held to what they deducted \
             plus 1 µε a report."
        }
    }
}

fn result(row: &SearchRow) -> String {
    match (row.violation, row.kind) {
        (Some(violation), _) => format!("leaks ({violation})"),
        (None, "broken") => "not caught".to_owned(),
        (None, _) => "holds".to_owned(),
    }
}

fn failure_table(report: &AuditReport) -> Markup {
    let shown = [1, 2, 4, 8, 16, 32, 64];
    html! {
        details {
            summary { "The numbers, and estimates from sampling the engine" }
            div class="scroll" { table {
                tr {
                    th { "adaptive data" } th class="n" { "n" } th class="n" { "exact" }
                    th class="n" { "ε + n·ε′" } th class="n" { "collusion" }
                    th class="n" { "sampled" }
                }
                @for row in report.adaptive.iter().filter(|row| shown.contains(&row.n)) { tr {
                    td { "ε = " (row.epsilon) }
                    td class="n" { (row.n) }
                    td class="n" { (format!("{:.6}", row.exact)) }
                    td class="n" { (format!("{:.6}", row.paper)) }
                    td class="n" { (format!("{:.6}", row.collusion)) }
                    td class="n" {
                        @if let Some(interval) = row.interval {
                            (format!("{:.2} to {:.2}", interval.0, interval.1))
                        } @else { "too rare" }
                    }
                } }
            } }
            div class="scroll" { table {
                tr {
                    th { "shared limit, plain" } th class="n" { "n" } th class="n" { "exact" }
                    th class="n" { "refused" } th class="n" { "answered" }
                    th class="n" { "derived bound" } th class="n" { "paper" }
                    th class="n" { "ceiling" }
                }
                @for row in report.shared_limit.iter().filter(|row| shown.contains(&row.n)) { tr {
                    td { "ε_g = " (row.global_epsilon) }
                    td class="n" { (row.n) }
                    @for number in [row.exact, row.refused, row.answered, row.bound, row.paper,
                        row.ceiling] {
                        td class="n" { (format!("{number:.4}")) }
                    }
                } }
            } }
            div class="scroll" { table {
                tr {
                    th { "shared limit, individual" } th class="n" { "n" } th class="n" { "ε₁" }
                    th class="n" { "exact" } th class="n" { "paper" } th class="n" { "ceiling" }
                }
                @for row in report.shared_limit_individual.iter()
                    .filter(|row| shown.contains(&row.n)) { tr {
                    td { "ε_g = " (row.global_epsilon) }
                    td class="n" { (row.n) }
                    @for number in [row.epsilon1, row.exact, row.paper, row.ceiling] {
                        td class="n" { (format!("{number:.4}")) }
                    }
                } }
            } }
        }
    }
}

/// Where the paper's proofs slip, with our derivation.
fn slips() -> Markup {
    let slips = [
        (
            "The factor e^(−ε₀) is lost in the shared-limit bound.",
            "The refused event has e^(ε−ε₀), so it alone gives ε − ε₀ + …, not ε + …. The other \
             event repairs it: if both requests are answered, with values below 0, the loss is \
             ε + ln P[B ≤ n/2]/P[B ≥ n/2].",
        ),
        (
            "p is computed with ε where the helpers use ε₁.",
            "Helpers ask with ε₁ = (ε_g − ε − ε₀)/n, so p = e^(−ε₁/2)/2, and the bound holds for \
             n ≥ 4·ln 2/(1 − e^(−ε₁/2))².",
        ),
        (
            "Any shared limit below (n+1)·ε is said to leak.",
            "No ε_g ≤ ε leaks more than ε, because nobody's loss exceeds ε_g. The construction \
             needs ε_g > ε + ε₀.",
        ),
        (
            "The construction with individual filters never runs out.",
            "As printed it leaks nothing for n ≥ 2 and ε_g ≥ 2ε: x₀ cannot pay for n + 1 requests \
             of ε, and no other record is ever short. Corrected: helpers ask about x₀ with \
             ε₁ = min(ε, (ε_g − ε)/n), the others spend ε_g − ε of each x_k whatever they heard, \
             and helper k spends a little more if it heard at most ½. The loss is ε + n·ε′(p(ε₁)).",
        ),
        (
            "Two conditions are inverted.",
            "The listing with individual filters, and the simplified model, drop records when the \
             filters accept. They must drop them when the filters refuse.",
        ),
        (
            "Each share of a conversion is attributed again.",
            "The lemma on cross-report optimisation assumes one attribution, but GetReport makes \
             one for each querier. With budgets in different epochs, n queriers move (n+1)·v while \
             2v is charged: the manager attributes-again.",
        ),
    ];
    html! {
        h2 { "Where the paper's proofs slip" }
        dl {
            @for (what, derivation) in slips {
                dt { b { (what) } }
                dd { (derivation) }
            }
        }
    }
}

fn denial(results: &[DenialResult]) -> Markup {
    html! {
        h2 { "Free denial" }
        p {
            "An attacker with one conversion site makes requests about honest publishers' \
             impressions. It is free if it takes more from a publisher's quota than its own quota \
             pays."
        }
        div class="scroll" { table {
            tr {
                th { "site charging" } th class="n" { "attacks tried" } th { "result" }
                th class="n" { "requests" } th class="n" { "from a publisher" }
                th class="n" { "from its own quota" } th class="n" { "from the global budget" }
            }
            @for result in results { tr {
                td { (result.site_charging) }
                td class="n" { (grouped(result.attacks)) }
                @match &result.free {
                    None => {
                        td class="good" { "nothing is free" }
                        td {} td {} td {} td {}
                    }
                    Some(denial) => {
                        td class="bad" {
                            "free"
                            @if denial.honest_report_null { ", and an honest report is null" }
                        }
                        td class="n" { (denial.requests.len()) }
                        td class="n" { (grouped(denial.from_publisher)) " µε" }
                        td class="n" { (grouped(denial.from_own_quota)) " µε" }
                        td class="n" { (grouped(denial.from_global)) " µε" }
                    }
                }
            } }
        } }
        p class="soft" {
            "The rule paper is the paper's: in a window of one epoch with several publishers, each \
             pays the worst case, however little the report reveals. It is not our default."
        }
    }
}

fn tactics(rows: &[TacticsRow]) -> Markup {
    let told = |after: Option<u64>| match after {
        Some(after) => grouped(after),
        None => "missed".to_owned(),
    };
    let missed =
        |of: fn(&TacticsRow) -> Option<u64>| rows.iter().filter(|row| of(row).is_none()).count();
    html! {
        h2 { "What the tactics are worth" }
        p {
            "The scripts after which each broken manager is caught. It counts as missed after twice \
             what all tactics needed, and not before " (COMPARED_SCRIPTS)
            " scripts. Without the exploit, "
            (missed(|row| row.without_exploit)) " are missed; without boundary values, "
            (missed(|row| row.without_boundary_values)) "; with both, "
            (missed(|row| row.all)) "."
        }
        div class="scroll" { table {
            tr {
                th { "manager" } th class="n" { "all tactics" } th class="n" { "without exploit" }
                th class="n" { "without boundary values" }
            }
            @for row in rows { tr {
                td { (row.manager) }
                @for after in [row.all, row.without_exploit, row.without_boundary_values] {
                    td class={ "n" @if after.is_none() { " bad" } } { (told(after)) }
                }
            } }
        } }
    }
}

fn stories(report: &AuditReport) -> Markup {
    let entries = catalogue();
    let entry = |name: &str| entries.iter().find(|entry| entry.name == name);
    html! {
        h2 { "The shortest scripts" }
        @for row in &report.search {
            @if let (Some(finding), Some(entry)) = (&row.finding, entry(row.manager)) {
                details {
                    summary { (row.manager) ": " (row.about) }
                    pre { (story(&*entry.make, &finding.script)) }
                    @if let Some(mixture) = finding.mixture {
                        p class="soft" {
                            "Queriers do not know the draws. Over all "
                            (mixture.tapes) " tapes the loss is " (format!("{:.3}", mixture.micro))
                            " µε, and x pays at most " (mixture.granted) " µε."
                        }
                    }
                    @match finding.repetitions {
                        Some(0) | None => {}
                        Some(times) => {
                            p class="soft" {
                                "After " (times) " repetitions of the last step by other sites, the \
                                 loss passes the capacity."
                            }
                        }
                    }
                }
            }
        }
    }
}

fn limits() -> Markup {
    let limits = [
        "A search is not a proof. It shows what it found, and how hard it looked.",
        "Time is seen only as the moment at which an answer may be released.",
        "Conversions, user actions and clearing are public here: both worlds have the same.",
        "Each report is aggregated once, with the noise it was charged for. Replay, mixed epsilons \
         in a batch and the noise itself are for the aggregation to check.",
        "The process crashes only where a script says so.",
        "There is one device. That is enough, because devices share nothing.",
        "Removal of an epoch's impressions is claimed, replacement is not.",
    ];
    html! {
        h2 { "What this does not show" }
        ul { @for limit in limits { li { (limit) } } }
    }
}
