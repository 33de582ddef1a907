//! `bigbird simulate --explain`: one row for each report of a log, and a summary by site.

use std::path::Path;

use bigbird::{Epsilon, Limit};
use bigbird_lab::attack::Attack;
use bigbird_lab::evaluation::explanation::{
    LogSummary, RowFormat, RowWriter, SiteSummary, explain,
};
use bigbird_lab::evaluation::{Experiment, Laboratory, QuerierOptions};
use serde_json::json;

use super::source::WorkloadSource;
use crate::output::{Document, ResultCell, ResultColumn, ResultFormat, ResultTable, grouped};
use crate::{CommandError, CommandResult, output};

/// Explains every report of a log under one policy, with at most one attacker.
pub(crate) fn run(
    source: &WorkloadSource,
    experiments: &[Experiment],
    epsilon: Option<f64>,
    to: &Path,
    form: ResultFormat,
) -> CommandResult {
    let threads = source.threads();
    let ([experiment], [seed], [threads]) =
        (experiments, source.seed.as_slice(), threads.as_slice())
    else {
        let count = experiments.len() * source.seed.len() * threads.len();
        return Err(CommandError::misused(format!(
            "--explain explains one run, got {count}; give each flag one value"
        )));
    };
    let Some(format) = RowFormat::of(to) else {
        return Err(CommandError::misused(format!(
            "--explain writes .csv, .jsonl or .parquet, got `{}`",
            to.display()
        )));
    };
    if let Some(epsilon) = epsilon {
        let valid = Epsilon::new(epsilon);
        valid.map_err(|error| CommandError::misused(format!("--epsilon: {error}")))?;
    }
    let workload = source.workload(*seed)?;
    let options = QuerierOptions {
        epsilon,
        ..source.options()
    };
    // Batches do not matter here, so a log that is too small for one can be explained too.
    let lookback = source.lookback_epochs();
    let laboratory = Laboratory::with_lookback(&workload, options, lookback, *threads)?;
    if laboratory.queriers().is_empty() {
        return Err(CommandError::because(format!(
            "no conversion site has {} conversions a day; use a smaller \
             --min-conversions-per-day, such as 1",
            options.min_conversions_a_day
        )));
    }
    let attack = experiment.attack.map(|(attacker, strength)| Attack {
        attacker,
        strength,
        seed: *seed,
    });
    let writer = RowWriter::create(to, format)
        .map_err(|error| CommandError::unreadable(error.to_string()))?;
    let summary = explain(&laboratory, &experiment.policy, attack, Some(writer))?;
    let text = match form {
        ResultFormat::Json => output::json(&json!({
            "file": to.display().to_string(),
            "profile": experiment.profile.to_string(),
            "attacker": experiment.attacker(),
            "sites": summary.sites,
        }))?,
        form => tell(&summary, to).render(form),
    };
    Ok((text, true))
}

/// The most sites that the summary shows.
const SHOWN: usize = 20;

/// The most sites for which it says what would help.
const ADVISED: usize = 5;

/// The summary in words.
fn tell(summary: &LogSummary, to: &Path) -> Document {
    let sites = &summary.sites;
    let sum = |of: fn(&SiteSummary) -> u64| sites.iter().map(of).sum::<u64>();
    let mut document = Document::new();
    document.paragraph(format!(
        "{} of {}. {} says why each is what it is.",
        output::count(sum(|it| it.reports), "report"),
        output::count(sites.len() as u64, "site"),
        to.display()
    ));
    document.paragraph(format!(
        "For {} of them, no ad matched. Of the other {}, {} are complete. Limits made {} null, and \
         put the value of {} into another bucket.",
        grouped(sum(|it| it.nothing_matched)),
        grouped(sum(|it| it.reports - it.nothing_matched)),
        grouped(sum(|it| it.complete)),
        grouped(sum(|it| it.lost)),
        grouped(sum(|it| it.moved)),
    ));
    document.table(outcomes(&sites[..sites.len().min(SHOWN)]));
    if sites.len() > SHOWN {
        let more = output::count((sites.len() - SHOWN) as u64, "more site");
        document.paragraph(format!(
            "And {more}, which lost less: --format csv shows all."
        ));
    }
    document.lines(
        "\
         no ad       null, because no ad on the device matched\n\
         complete    as it would be without limits\n\
         null        null because of a limit\n\
         moved       a limit hid the ad that caused it, so an older ad got the credit\n\
         value lost  the share of the value of matched conversions that is null or moved\n\
         for 95%     the largest epsilon with which limits would have withheld nothing from 95%\n\
         \x20           of the reports to which an ad matched, had the site asked for it all along",
    );
    let causes: Vec<Limit> = (Limit::ALL.into_iter())
        .filter(|limit| sites.iter().any(|site| site.blocked.of(*limit) > 0))
        .collect();
    if !causes.is_empty() {
        document.paragraph(
            "Reports from which a limit withheld something, by the first limit that did. What it \
             withheld may have made no difference.",
        );
        let mut columns = vec![ResultColumn::named("site")];
        columns.extend(
            causes
                .iter()
                .map(|it| ResultColumn::new(it.name(), it.key())),
        );
        let mut table = ResultTable::new(columns);
        for site in sites.iter().take(SHOWN) {
            let counts = causes
                .iter()
                .map(|it| ResultCell::Count(site.blocked.of(*it)));
            table.row(
                std::iter::once(ResultCell::text(&site.site))
                    .chain(counts)
                    .collect(),
            );
        }
        document.table(table);
    }
    for site in sites.iter().take(ADVISED).filter(|it| it.value_lost > 0) {
        document.paragraph(advice(site));
    }
    document.data(outcomes(sites));
    document
}

/// What became of the reports of each site.
fn outcomes(sites: &[SiteSummary]) -> ResultTable {
    let columns = [
        ("site", "conversionSite"),
        ("reports", "reports"),
        ("no ad", "nothingMatched"),
        ("complete", "complete"),
        ("null", "lost"),
        ("moved", "moved"),
        ("value lost", "valueLost"),
        ("epsilon", "epsilon"),
        ("for 95%", "epsilonFor95Percent"),
    ];
    let columns = columns.map(|(title, key)| ResultColumn::new(title, key));
    let mut table = ResultTable::new(columns.to_vec());
    for site in sites {
        #[expect(clippy::cast_precision_loss, reason = "a share of values")]
        let lost = site.value_lost as f64 / site.value.max(1) as f64;
        table.row(vec![
            ResultCell::text(&site.site),
            ResultCell::Count(site.reports),
            ResultCell::Count(site.nothing_matched),
            ResultCell::Count(site.complete),
            ResultCell::Count(site.lost),
            ResultCell::Count(site.moved),
            ResultCell::Share(lost),
            ResultCell::Epsilon(site.epsilon),
            ResultCell::or_missing(site.epsilon_for_95_percent, ResultCell::Epsilon),
        ]);
    }
    table
}

/// What a site lost, to which limit, and what would help.
fn advice(site: &SiteSummary) -> String {
    let worst = Limit::ALL.into_iter().max_by_key(|limit| {
        // Of limits with equal counts, the first is named.
        (site.blocked.of(*limit), std::cmp::Reverse(*limit))
    });
    let (to, why) = match worst {
        Some(limit @ Limit::DomainCap) => (
            format!(", mostly to the {limit}"),
            " It limits the sites that one user action involves, so no epsilon helps.",
        ),
        Some(limit @ (Limit::QuerierBudget | Limit::ConversionSiteQuota)) => (
            format!(", mostly to its {limit}"),
            " Its own reports use this up: ask for less epsilon, or measure fewer conversions of \
             one device.",
        ),
        Some(limit @ Limit::ImpressionSiteQuota) => (
            format!(", mostly to the {limit}"),
            " All reports about ads on one site use this up: ask for less epsilon, or show ads on \
             more sites.",
        ),
        Some(limit @ Limit::GlobalBudget) => (
            format!(", mostly to the {limit}"),
            " The reports of all sites use this up, so less epsilon helps only in part.",
        ),
        _ => (String::new(), ""),
    };
    let is_number = site.site.bytes().all(|byte| byte.is_ascii_digit());
    let mut text = format!(
        "{}{} lost {} of its value{to}.{why}",
        if is_number { "Site " } else { "" },
        site.site,
        share(site.value_lost, site.value)
    );
    match site.epsilon_for_95_percent {
        Some(epsilon) if epsilon < site.epsilon => {
            text += &format!(
                " It asks for an epsilon of {}. With {} or less, 95% of its reports would get \
                 through.",
                short(site.epsilon),
                short(epsilon)
            );
        }
        Some(_) => text += " 95% of its reports get through all the same.",
        None => {}
    }
    text
}

/// A share as a percentage.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    #[expect(
        clippy::cast_precision_loss,
        reason = "a share is shown with one digit"
    )]
    let percent = 100.0 * part as f64 / whole as f64;
    format!("{percent:.1}%")
}

/// An epsilon with at most three significant digits, rounded down.
fn short(epsilon: f64) -> String {
    let digits = if epsilon >= 1.0 { 2 } else { 3 };
    let unit = 10_f64.powi(digits);
    let rounded = (epsilon * unit + 1e-6).floor() / unit;
    match rounded > 0.0 {
        true => format!("{rounded}"),
        false => format!("{epsilon}"),
    }
}
