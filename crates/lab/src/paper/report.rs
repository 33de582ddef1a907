//! The report: one page that explains what Big Bird does, and whether the paper's evaluation could
//! be reproduced.

use std::fmt::Write as _;

use crate::describe::{Description, OF_PAPER, PERCENTILES};
use crate::paper::claims::{Claim, Compared, claims, compared};
use crate::paper::figures::{Figure, figures};
use crate::paper::reproduce::{Results, Summary};
use crate::paper::suites::{EvaluatedSystem, Suite};
use crate::text::{grouped, percent};
use crate::workload::synthetic::Preset;
use bigbird_chart::{PAGE_STYLE, STYLE, escape, short};

/// The contents of a report.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The finished runs.
    pub results: Results<'a>,
    /// The description of the workload.
    pub description: &'a Description,
    /// The preset of the synthetic workload. None if the workload was read from files.
    pub preset: Option<Preset>,
    /// The workload in words.
    pub workload: String,
    /// The number of queriers.
    pub queriers: usize,
    /// Parameters, by name.
    pub parameters: Vec<(String, String)>,
    /// The command that made the report.
    pub command: String,
}

/// The report as an HTML page.
pub fn report(subject: &Subject<'_>) -> String {
    let mut page = String::new();
    let claims = claims(subject.results);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>Big Bird: the paper's evaluation, \
         reproduced</title><style>{PAGE_STYLE}{STYLE}</style></head><body><main>"
    );
    heading(subject, &claims, &mut page);
    claims_table(&claims, &mut page);
    let figures = figures(subject.results);
    let compared = compared(subject.results);
    for (part, title) in [
        (
            "5",
            "Figure 5: impression-site quotas, without attack and under attack",
        ),
        (
            "6",
            "Figure 6: domain caps, and the strength of the attacker",
        ),
    ] {
        let of_part: Vec<&Figure> = figures
            .iter()
            .filter(|figure| figure.name.starts_with(part))
            .collect();
        if of_part.is_empty() {
            continue;
        }
        let _ = write!(page, "<h2>{title}</h2><div class=\"figures\">");
        for one in of_part {
            figure(one, &claims, &mut page);
        }
        page.push_str("</div>");
        comparison(&compared, part, &mut page);
    }
    differences(subject, &mut page);
    consumption(subject.results, &mut page);
    workload(subject, &mut page);
    parameters(subject, &mut page);
    page.push_str("</main></body></html>\n");
    page
}

fn heading(subject: &Subject<'_>, claims: &[Claim], page: &mut String) {
    let holding = claims.iter().filter(|claim| claim.holds).count();
    let all = holding == claims.len();
    let _ = write!(
        page,
        "<p class=\"soft\">Big Bird: privacy budgets for the open web</p><h1>The paper's \
         evaluation, reproduced</h1><p class=\"verdict{}\"><b>{holding} of {} claims of the paper \
         hold</b> on {}.{}</p>",
        if all { "" } else { " failed" },
        claims.len(),
        escape(&subject.workload),
        if all {
            ""
        } else {
            " Those that do not are marked and explained below."
        }
    );
    if let Some((least, most)) = sizes_under_attack(subject.results) {
        let _ = write!(
            page,
            "<p>The claims are about directions, not sizes. Median errors under attack here are \
             between {least:.1} and {most:.1} times those in the paper: see <a \
             href=\"#differences\">what differs, and why</a>.</p>"
        );
    }
    page.push_str(
        "<p>Browsers are about to measure ads without tracking people. Each device keeps to itself \
         what it saw, and answers sites with encrypted reports that cost <i>privacy budget</i>. A \
         budget for each querier is not enough to protect people, so each device also has a \
         <i>global budget</i>. But anyone who can spend the global budget can also drain it: with \
         throw-away domains (Sybils), an attacker can make everyone else's reports worthless. \
         <b>Big Bird</b> gives each site an <i>impression-site quota</i> and a <i>conversion-site \
         quota</i>, and sets a <i>domain cap</i> on the sites that one user action may involve. \
         The global budget can then be spent only as fast as people really act.</p>",
    );
    page.push_str(
        "<details><summary>Terms</summary><ul>\
         <li><b>Error</b>: how far the sums of a batch of reports are off, relative to the sums. \
         It is the RMSRE, the root of the mean squared relative error over buckets. Figures show \
         the median and the 95th percentile over batches.</li>\
         <li><b>ε</b> (epsilon): the measure of privacy loss. Every report that reveals something \
         costs ε.</li>\
         <li><b>Querier</b>: a site that measures. Here, queriers are conversion sites.</li>\
         <li><b>Batch</b>: the reports that a querier sums into one result. The parameters at the \
         end of this page give its size.</li>\
         <li><b>Impression-site quota</b>: how much of a device's global budget reports about the \
         ads of one site can use up in one epoch, which is one day in the paper's evaluation. \
         Where this page gives a number for a <b>quota</b>, it means this one, in ε.</li>\
         <li><b>Conversion-site quota</b>: how much of a device's global budget the conversions on \
         one site can consume in one epoch.</li>\
         <li><b>Domain cap</b>, or <b>cap</b>: how many distinct sites one user action may involve \
         in an epoch.</li>\
         <li><b>Sybil</b>: a domain that an attacker made up.</li>\
         <li><b>Cookie Monster</b>: the earlier system, with a budget for each querier and no \
         global budget.</li>\
         <li><b>Blocked</b>: said of a report from which something was withheld, because a budget \
         or a quota could not pay or the domain cap was reached.</li></ul></details>",
    );
    let at = |system, attacker, x| subject.results.at(Suite::Fig5, system, attacker, x);
    let alone = at(EvaluatedSystem::CookieMonster, "none", None);
    let drained = at(EvaluatedSystem::GlobalOnly, "random", None);
    let protected = at(EvaluatedSystem::BigBird, "random", Some(2.0));
    let factor = |run: Option<&Summary>| Some(run?.median / alone?.median);
    let tiles: [(&str, Option<&Summary>, &str, String); 4] = [
        (
            "no attack, no global budget",
            alone,
            "5.2%",
            format!(
                "The median error of honest batches. Noise alone gives {}.",
                alone.map_or_else(String::new, |run| percent(run.noise))
            ),
        ),
        (
            "random attacker, global budget only",
            drained,
            "48.5%",
            match factor(drained) {
                Some(factor) if factor < 2.0 => {
                    format!("Private, with {factor:.1} times the error without attack.")
                }
                _ => "Private, but drained: much of the measurement is lost.".to_owned(),
            },
        ),
        (
            "random attacker, Big Bird",
            protected,
            "5.5%",
            match factor(protected) {
                Some(factor) if factor > 1.3 => {
                    format!("Just as private, with {factor:.1} times the error without attack.")
                }
                _ => "Just as private, and nearly as accurate as without attack.".to_owned(),
            },
        ),
        (
            "omniscient attacker, Big Bird",
            subject.results.at(
                Suite::Fig6a,
                EvaluatedSystem::BigBird,
                "omniscient",
                Some(2.0),
            ),
            "28.6%",
            "A worst case: this attacker knows every quota on every device.".to_owned(),
        ),
    ];
    page.push_str("<div class=\"tiles\">");
    for (name, run, paper, says) in tiles {
        if let Some(run) = run {
            let _ = write!(
                page,
                "<div class=\"tile\"><span class=\"soft\">{name}</span><b>{}</b>{says} <span \
                 class=\"soft\">In the paper: {paper}.</span></div>",
                percent(run.median)
            );
        }
    }
    page.push_str("</div>");
}

/// The least and the largest ratio between an error under attack and the paper's.
fn sizes_under_attack(results: Results<'_>) -> Option<(f64, f64)> {
    let ratios: Vec<f64> = compared(results)
        .iter()
        .filter(|row| row.what.starts_with("random") || row.what.starts_with("omniscient"))
        .map(|row| row.ours / row.paper)
        .collect();
    let least = ratios.iter().copied().min_by(f64::total_cmp)?;
    let most = ratios.iter().copied().max_by(f64::total_cmp)?;
    Some((least, most))
}

fn claims_table(claims: &[Claim], page: &mut String) {
    page.push_str(
        "<h2>The paper's claims, and whether they hold here</h2><div class=\"scroll\"><table \
         class=\"cards\"><tr><th></th><th>claim</th><th>here</th><th>in the paper</th></tr>",
    );
    for claim in claims {
        let why = match claim.holds {
            true => String::new(),
            false => format!("<br><b>Why:</b> {}", escape(&claim.otherwise)),
        };
        let figure = match claim.figure {
            "theorem" => "theorem".to_owned(),
            figure => format!("<a href=\"#fig{figure}\">figure {figure}</a>"),
        };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{} <span class=\"soft\">({figure}: {})</span>{why}</td><td><span \
             class=\"label\">here: </span>{}</td><td><span class=\"label\">paper: \
             </span>{}</td></tr>",
            mark(claim.holds),
            escape(claim.says),
            escape(claim.test),
            escape(&claim.ours),
            escape(claim.paper),
        );
    }
    page.push_str("</table></div>");
}

/// The mark of a claim that holds or fails.
fn mark(holds: bool) -> &'static str {
    match holds {
        true => "<span class=\"good\">✓ holds</span>",
        false => "<span class=\"bad\">✗ fails</span>",
    }
}

/// A figure with the claims about it.
fn figure(figure: &Figure, claims: &[Claim], page: &mut String) {
    let name = figure.name;
    let _ = write!(
        page,
        "<figure id=\"fig{name}\">{}<figcaption><b>{name}</b> {} <a \
         href=\"fig{name}.csv\">numbers (CSV)</a>",
        figure.chart.to_inline(),
        figure.caption,
    );
    let own: Vec<&Claim> = claims.iter().filter(|claim| claim.figure == name).collect();
    if !own.is_empty() {
        page.push_str("<ul>");
        for claim in own {
            let _ = write!(
                page,
                "<li>{} {} <span class=\"soft\">Here: {}. Paper: {}.</span></li>",
                mark(claim.holds),
                escape(claim.says),
                escape(&claim.ours),
                escape(claim.paper),
            );
        }
        page.push_str("</ul>");
    }
    page.push_str("</figcaption></figure>");
}

fn comparison(compared: &[Compared], part: &str, page: &mut String) {
    page.push_str(
        "<details><summary>Every number of the paper, next to ours</summary><p \
         class=\"soft\">Numbers are median errors, unless a row says otherwise. Rows name the \
         attacker, the impression-site quota in ε (“quota”) and the domain cap (“cap”).</p><div \
         class=\"scroll\"><table><tr><th>figure</th><th>measurement</th><th \
         class=\"n\">here</th><th class=\"n\">paper</th><th class=\"n\">difference</th></tr>",
    );
    for row in compared.iter().filter(|row| row.figure.starts_with(part)) {
        let (paper, difference) = if row.below {
            let paper = format!("under {}", percent(row.paper));
            let word = if row.ours < row.paper {
                "under"
            } else {
                "over"
            };
            (paper, word.to_owned())
        } else {
            let points = 100.0 * (row.ours - row.paper);
            let sign = if points < 0.0 { "−" } else { "+" };
            let factor = row.ours / row.paper;
            let difference = format!("{sign}{:.1} points ({factor:.2}×)", points.abs());
            (percent(row.paper), difference)
        };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{paper}</td><td \
             class=\"n\">{difference}</td></tr>",
            row.figure,
            row.what,
            percent(row.ours)
        );
    }
    page.push_str("</table></div></details>");
}

fn differences(subject: &Subject<'_>, page: &mut String) {
    page.push_str("<h2 id=\"differences\">What differs from the paper, and why</h2><ul>");
    match subject.preset {
        Some(Preset::Published) => page.push_str(
            "<li><b>The data.</b> The paper's data (CriteoPrivateAd) is not part of this program. \
             The population here is synthetic, and is fitted only to published numbers that do \
             <i>not</i> involve an attack. All results under attack are therefore predictions, and \
             they are reported unchanged: attacks do somewhat less harm here than in the paper. \
             Attacks depend on four things that the published numbers leave open: whether devices \
             stay on big sites, whether clicks are concentrated there, how large the largest \
             conversion sites are, and how many buckets are small. The preset \
             <code>attack-fitted</code> shows that other answers to these questions give the \
             paper's numbers.</li>",
        ),
        Some(Preset::AttackFitted) => page.push_str(
            "<li><b>The data.</b> The population here is synthetic and was <b>also fitted to the \
             paper's results under attack</b>. Its agreement with them is therefore not evidence. \
             For evidence, use the preset <code>published</code>.</li>",
        ),
        None => page.push_str(
            "<li><b>The data.</b> The workload was read from files. Unless these are the paper's \
             own files, the paper's numbers are only a rough guide.</li>",
        ),
    }
    page.push_str(
        "<li><b>95th percentiles.</b> A smaller population has fewer batches, and none of its \
         queriers is as unlucky as the paper's worst. So errors vary less here.</li>\
         <li><b>Popularity (6c).</b> The paper labels its last point as ranks 41–50, but its \
         artifact sweeps the first rank of ten sites from 1 to 5. Both sweeps are shown. Neither \
         preset reproduces how the harm falls with the rank.</li>\
         <li><b>Noise.</b> The paper's figures add noise of scale 1/ε, but its accounting assumes \
         2/ε. The parameters below say which one was used here.</li></ul>",
    );
}

/// The amounts that were consumed, and the shares of the bounds that attacks reached.
fn consumption(results: Results<'_>, page: &mut String) {
    let rows: Vec<_> = results
        .0
        .iter()
        .filter(|run| run.summary.consumed.is_some() && run.summary.held.is_some())
        .collect();
    if rows.is_empty() {
        return;
    }
    page.push_str(
        "<h2>What attackers took, and the most they could take</h2><p>The resilience theorem \
         bounds what an attacker can take from one global budget: by the quotas it uses (i), and \
         by its user actions (ii). It also bounds the effect on a sum of reports (iii). Every run \
         checks every device and every batch. The table shows the largest share of each bound that \
         was reached. At 100%, an attacker took as much as the theorem allows: the bound is met, \
         not exceeded. A dash means that the policy lacks the limits that the bound needs. Without \
         quotas and a domain cap, only the bound on sums (iii) remains.</p><details><summary>All \
         attacked runs</summary><div \
         class=\"scroll\"><table><tr><th>suite</th><th>system</th><th>attacker</th><th \
         class=\"n\">quota, cap,<br>Sybils or rank</th><th class=\"n\">honest<br>reports, ε</th><th \
         class=\"n\">attacker,<br>ε</th><th class=\"n\">(i) by<br>quotas</th><th class=\"n\">(ii) by \
         user<br>actions</th><th class=\"n\">(iii) budgets<br>drained</th><th class=\"n\">(iii) \
         change<br>of a sum</th><th></th></tr>",
    );
    for run in rows {
        let (honest, attacker) = run.summary.consumed.unwrap_or_default();
        let share = |share: Option<f64>| share.map_or("–".to_owned(), percent);
        let [quotas, actions, drained, query] = run.summary.reached.map(share);
        let mark = match run.summary.held {
            Some(false) => "<span class=\"bad\">✗ exceeded</span>",
            _ => "<span class=\"good\">✓</span>",
        };
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td><td \
             class=\"n\">{honest:.2}</td><td class=\"n\">{attacker:.2}</td><td \
             class=\"n\">{quotas}</td><td class=\"n\">{actions}</td><td \
             class=\"n\">{drained}</td><td class=\"n\">{query}</td><td>{mark}</td></tr>",
            run.planned.suite.name(),
            run.planned.system.name(),
            run.planned.experiment.attacker(),
            run.planned.x.map(short).unwrap_or_default(),
        );
    }
    page.push_str(
        "</table></div><p class=\"soft\">The columns with ε show how much was consumed from a \
         global budget: the mean over the global budgets that paid anything.</p></details>",
    );
}

fn workload(subject: &Subject<'_>, page: &mut String) {
    let description = subject.description;
    let _ = write!(
        page,
        "<h2>The workload</h2><p>{} devices with {} impressions and {} conversions, on {} \
         impression sites and {} conversion sites. Of the conversion sites, {} are queriers.</p>",
        grouped(description.devices),
        grouped(description.impressions),
        grouped(description.conversions),
        grouped(description.impression_sites as u64),
        grouped(description.conversion_sites as u64),
        grouped(subject.queriers as u64),
    );
    page.push_str(
        "<p>The number of sites that a device involves in an epoch, at percentiles: conversion \
         sites (N), impression sites (M), and conversion sites for each impression site (n). The \
         paper's N and n are even at every percentile. They look doubled, probably because the \
         paper counts a site once for clicks and once for landed clicks. The table therefore shows \
         twice our counts of unique sites (2N and 2n) next to the paper's.</p><div \
         class=\"scroll\"><table><tr><th>percentile</th><th class=\"n\">N</th><th \
         class=\"n\">2N</th>\
         <th class=\"n\">paper</th><th class=\"n\">M</th><th class=\"n\">paper</th><th \
         class=\"n\">n</th><th class=\"n\">2n</th><th class=\"n\">paper</th></tr>",
    );
    for (percentile, paper) in PERCENTILES.into_iter().zip(OF_PAPER) {
        let [conversion, impression, fan_out] = description.at(percentile);
        let _ = write!(
            page,
            "<tr><td>{percentile}</td><td class=\"n\">{conversion}</td><td class=\"n\">{}</td><td \
             class=\"n\">{}</td><td class=\"n\">{impression}</td><td class=\"n\">{}</td><td \
             class=\"n\">{fan_out}</td><td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            2 * conversion,
            paper[0],
            paper[1],
            2 * fan_out,
            paper[2],
        );
    }
    page.push_str("</table></div>");
}

fn parameters(subject: &Subject<'_>, page: &mut String) {
    page.push_str("<h2>How this report was made</h2><div class=\"scroll\"><table>");
    for (name, value) in &subject.parameters {
        let _ = write!(
            page,
            "<tr><td>{}</td><td>{}</td></tr>",
            escape(name),
            escape(value)
        );
    }
    let _ = write!(
        page,
        "</table></div><pre>{}</pre><p class=\"soft\">All runs with all their batches are in <a \
         href=\"results.json\">results.json</a>. The numbers of each figure are in fig*.csv, and \
         the figures are in fig*.svg.</p>",
        escape(&subject.command)
    );
}
