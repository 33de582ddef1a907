//! The report: one page that says what Big Bird does, and whether the paper's evaluation could be
//! reproduced.

use std::fmt::Write as _;

use crate::chart::STYLE;
use crate::describe::{Description, OF_PAPER, PERCENTILES};
use crate::paper::claims::{Claim, Compared, claims, compared};
use crate::paper::figures::{Figure, figures};
use crate::paper::reproduce::{Results, Summary};
use crate::paper::suites::{Suite, System};
use crate::text::{escape, grouped, percent, short};
use crate::workload::synthetic::Preset;

/// What a report is about.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The finished runs.
    pub results: Results<'a>,
    /// What the workload contains.
    pub description: &'a Description,
    /// Where the workload comes from: a preset, or files.
    pub preset: Option<Preset>,
    /// The workload in words.
    pub workload: String,
    /// How many queriers there are.
    pub queriers: usize,
    /// Parameters, by name.
    pub parameters: Vec<(String, String)>,
    /// The command that made it.
    pub command: String,
}

const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d8dee4;--ground:#fff;\
--panel:#f6f8fa;--good:#1a7f37;--bad:#cf222e;--accent:#0072b2}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;\
--ground:#0d1117;--panel:#161b22;--good:#3fb950;--bad:#f85149;--accent:#58a6ff}}\
*{box-sizing:border-box}a{color:var(--accent)}body{margin:0;background:var(--ground);color:var(--ink);\
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:1180px;margin:0 auto;padding:24px 20px 64px}h1{font-size:1.9rem;line-height:1.2;\
margin:.2em 0}h2{margin:2em 0 .4em;font-size:1.35rem}h3{margin:0 0 .2em;font-size:1.05rem}\
p{max-width:74ch}.soft{color:var(--soft)}.tiles{display:grid;gap:12px;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,250px),1fr));margin:20px 0}\
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 16px}\
.tile b{display:block;font-size:1.8rem;line-height:1.25}.figures{display:grid;gap:20px;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr))}figure{margin:0;\
border:1px solid var(--line);border-radius:8px;padding:12px;min-width:0}\
figure svg{width:100%;height:auto;display:block}figcaption{color:var(--soft);font-size:.92rem;\
margin-top:6px}.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem;\
margin:.6em 0}th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);\
vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;\
white-space:nowrap}.good{color:var(--good);font-weight:600;white-space:nowrap}\
.bad{color:var(--bad);font-weight:600;white-space:nowrap}\
pre{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px;\
overflow-x:auto}details{margin:.4em 0}summary{cursor:pointer}\
.verdict{border-left:4px solid var(--good);padding:2px 0 2px 14px;font-size:1.1rem}\
.verdict.failed{border-color:var(--bad)}figcaption ul{list-style:none;margin:.4em 0 0;padding:0}\
figcaption li{margin:.2em 0;color:var(--ink)}.label{display:none}\
@media(max-width:560px){figure{overflow-x:auto}figure svg{min-width:480px}}\
@media(max-width:640px){.cards tr:first-child{display:none}.cards tr,.cards td{display:block}\
.cards tr{border-bottom:1px solid var(--line);padding:8px 0}.cards td{border:0;padding:1px 0}\
.label{display:inline;color:var(--soft)}}";

/// The page.
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
            "Figure 5: impression-site quotas, without and under attack",
        ),
        ("6", "Figure 6: domain caps, and how strong the attacker is"),
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
        "<p class=\"soft\">Big Bird: privacy budgets for the open web</p><h1>The paper's evaluation, \
         reproduced</h1><p class=\"verdict{}\"><b>{holding} of {} claims of the paper hold</b> on {}.\
         {}</p>",
        if all { "" } else { " failed" },
        claims.len(),
        escape(&subject.workload),
        if all {
            ""
        } else {
            " What does not is marked and explained below."
        }
    );
    if let Some((least, most)) = sizes_under_attack(subject.results) {
        let _ = write!(
            page,
            "<p>The paper's claims are about directions. The sizes of errors under attack are {least:.1} \
             to {most:.1} times the paper's: <a href=\"#differences\">what differs, and why</a>.</p>"
        );
    }
    page.push_str(
        "<p>Browsers are about to measure ads without following people: each device keeps what it saw \
         to itself, and gives away encrypted reports that cost <i>privacy budget</i>. A budget for \
         each querier is not enough to protect people, so there is a <i>global</i> one for the whole \
         device. But whoever can spend it can empty it: with throw-away domains (Sybils), an attacker \
         makes everyone else's reports worthless. <b>Big Bird</b> puts <i>quotas</i> on impression \
         sites and conversion sites, and a <i>cap</i> on the domains of one user action, so that the \
         global budget can be spent only as fast as people really do things.</p>",
    );
    page.push_str(
        "<details><summary>Words</summary><p><b>Error</b>: how far the sums of a batch of reports are off, \
         relative to the sums (RMSRE, the root of the mean squared relative error over buckets); over \
         batches, the median and the 95th percentile. <b>ε</b> (epsilon): the measure of privacy loss; \
         every report costs some. <b>Querier</b>: who measures, here a conversion site. <b>Batch</b>: the \
         reports that a querier sums, ten days of them. <b>Quota</b>: how much of a device's global budget \
         one site can help spend in a day. <b>Cap</b>: how many sites one user action can involve. \
         <b>Cookie Monster</b>: the earlier system, with a budget for each querier and no global one. \
         <b>Blocked</b>: a report of which something was withheld because a budget or quota could not \
         pay.</p></details>",
    );
    let at = |system, attacker, x| subject.results.at(Suite::Fig5, system, attacker, x);
    let alone = at(System::CookieMonster, "none", None);
    let drained = at(System::GlobalOnly, "random", None);
    let protected = at(System::BigBird, "random", Some(2.0));
    let factor = |run: Option<&Summary>| Some(run?.median / alone?.median);
    let tiles: [(&str, Option<&Summary>, &str, String); 4] = [
        (
            "nobody attacks",
            alone,
            "5.2%",
            format!(
                "The error of the median honest measurement. Noise alone gives {}.",
                alone.map_or_else(String::new, |run| percent(run.noise))
            ),
        ),
        (
            "attacked, global budget only",
            drained,
            "48.5%",
            match factor(drained) {
                Some(factor) if factor < 2.0 => {
                    format!("Private, and {factor:.1} times the error.")
                }
                _ => "Private, but drained: much of what is measured is lost.".to_owned(),
            },
        ),
        (
            "attacked, Big Bird",
            protected,
            "5.5%",
            match factor(protected) {
                Some(factor) if factor > 1.3 => {
                    format!("As private, at {factor:.1} times the error.")
                }
                _ => "As private, and nearly as good as without an attack.".to_owned(),
            },
        ),
        (
            "an all-knowing attacker, Big Bird",
            subject
                .results
                .at(Suite::Fig6a, System::BigBird, "omniscient", Some(2.0)),
            "28.6%",
            "A worst case: it sees every quota on every device.".to_owned(),
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

/// How large errors under attack are, as multiples of the paper's: the least and the most.
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
        "<h2>What the paper claims, and whether it holds here</h2><div class=\"scroll\"><table \
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

/// Whether a claim holds.
fn mark(holds: bool) -> &'static str {
    match holds {
        true => "<span class=\"good\">✓ holds</span>",
        false => "<span class=\"bad\">✗ fails</span>",
    }
}

/// A figure with what it claims.
fn figure(figure: &Figure, claims: &[Claim], page: &mut String) {
    let name = figure.name;
    let _ = write!(
        page,
        "<figure id=\"fig{name}\">{}<figcaption><b>{name}</b> {} <a \
         href=\"fig{name}.csv\">numbers</a>",
        figure.chart.to_inline(),
        figure.caption,
    );
    let own: Vec<&Claim> = claims.iter().filter(|claim| claim.figure == name).collect();
    if !own.is_empty() {
        page.push_str("<ul>");
        for claim in own {
            let _ = write!(
                page,
                "<li>{} {} <span class=\"soft\">Here {}; paper {}.</span></li>",
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
        "<details><summary>Every number of the paper beside ours</summary><div \
         class=\"scroll\"><table><tr><th>figure</th><th>what</th><th class=\"n\">here</th><th \
         class=\"n\">paper</th><th class=\"n\">difference</th></tr>",
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
            "<li><b>The data.</b> The paper's data (CriteoPrivateAd) is not part of this program. The \
             population here is synthetic, and fitted only to what is published <i>without</i> attack. \
             Everything under attack is a prediction, and reported as it comes: attacks do somewhat \
             less harm here than in the paper. What the published numbers leave open, and attacks \
             depend on, is whether devices stay on big sites, whether clicks concentrate there, how \
             large the largest conversion sites are, and how many buckets are small. The preset \
             <code>attack-fitted</code> shows that other answers to these questions give the paper's \
             numbers.</li>",
        ),
        Some(Preset::AttackFitted) => page.push_str(
            "<li><b>The data.</b> The population here is synthetic and was <b>fitted to the paper's \
             results under attack as well</b>. That it agrees with them is no evidence: use the preset \
             <code>published</code> for that.</li>",
        ),
        None => page.push_str(
            "<li><b>The data.</b> These are other files than the paper's. Its numbers are for \
             orientation.</li>",
        ),
    }
    page.push_str(
        "<li><b>95th percentiles.</b> There are fewer batches in a smaller population, and none of its \
         queriers are as unlucky as the paper's worst: errors spread less here.</li>\
         <li><b>Popularity (6c).</b> The paper labels its last point ranks 41–50; its artifact sweeps \
         the first rank of a window of ten sites from 1 to 5. Both sweeps are shown. Neither preset \
         reproduces how harm falls with rank.</li>\
         <li><b>Noise.</b> The paper's figures add noise of scale 1/ε where its accounting assumes \
         2/ε. The parameters below say which was used.</li></ul>",
    );
}

/// What was spent, and how near attacks came to the bounds.
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
        "<h2>What attackers took, and what they could take at most</h2><p>The resilience theorem \
         bounds what an attacker takes from one global budget by the quotas it uses (i) and by its \
         user actions (ii), and what that does to a sum of reports (iii). Every run checks every \
         device and every batch; 100% is as much as the theorem allows: the bound is met, not exceeded. \
         Without quotas and cap there are no such bounds, but for (iii) on sums.</p><details><summary>All attacked runs</summary><div \
         class=\"scroll\"><table><tr><th>suite</th><th>system</th><th>attacker</th><th \
         class=\"n\">quota, cap, Sybils or rank</th><th class=\"n\">honest ε</th><th class=\"n\">attacker ε</th><th \
         class=\"n\">(i) by quotas</th><th class=\"n\">(ii) by user actions</th><th \
         class=\"n\">(iii) budgets drained</th><th class=\"n\">(iii) change of a sum</th><th></th></tr>",
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
             class=\"n\">{quotas}</td><td class=\"n\">{actions}</td><td class=\"n\">{drained}</td><td \
             class=\"n\">{query}</td><td>{mark}</td></tr>",
            run.planned.suite.name(),
            run.planned.system.name(),
            run.planned.experiment.attacker(),
            run.planned.x.map(short).unwrap_or_default(),
        );
    }
    page.push_str(
        "</table></div><p class=\"soft\">ε: the mean of what was taken from the global budgets that \
         something was taken from.</p></details>",
    );
}

fn workload(subject: &Subject<'_>, page: &mut String) {
    let description = subject.description;
    let _ = write!(
        page,
        "<h2>The workload</h2><p>{} devices with {} impressions and {} conversions; {} impression \
         sites, {} conversion sites, of which {} measure.</p>",
        grouped(description.devices),
        grouped(description.impressions),
        grouped(description.conversions),
        grouped(description.impression_sites as u64),
        grouped(description.conversion_sites as u64),
        grouped(subject.queriers as u64),
    );
    page.push_str(
        "<p>Sites that a device meets in a day, at percentiles over devices: conversion sites (N), \
         impression sites (M), and conversion sites for each impression site (n). The paper's N and n \
         are even at every percentile; they look doubled, probably because they count a site once for \
         clicks and once for landed clicks. So twice our unique counts stand beside them.</p><div \
         class=\"scroll\"><table><tr><th>percentile</th><th class=\"n\">N</th><th class=\"n\">2N</th>\
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
    page.push_str("<h2>How this was made</h2><div class=\"scroll\"><table>");
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
         href=\"results.json\">results.json</a>, the numbers of each figure in fig*.csv, the figures in \
         fig*.svg.</p>",
        escape(&subject.command)
    );
}
