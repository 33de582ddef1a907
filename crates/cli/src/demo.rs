//! `bigbird demo`: from ads on many devices to a noised histogram, with everything in between.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::path::{Path, PathBuf};

use bigbird::{Epsilon, FilterKind, MicroEpsilon, Profile};
use bigbird_browser::demo::{ADS, DemoPopulation, SHOP};
use bigbird_chart::ComparisonChart;
use bigbird_dap::messages::{DapReport, Decode as _};
use bigbird_dap::{
    Acceptance, Aggregation, AggregationStore, AggregationTask, AggregatorKeys, ConfiguredServices,
    DapSealer, Helper, Leader, NoiseSource, ReportRefusal, TaskTerms, VdafKind,
};
use maud::{PreEscaped, html};
use serde::Serialize;

use crate::clock::wall_clock;
use crate::output::{
    Document, FormatArgs, ResultCell, ResultColumn, ResultFormat, ResultTable, grouped, signed,
};
use crate::{CommandError, CommandResult, browser, keys, output};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Every device is a user agent of its own: it saves ads, measures purchases, pays from its budgets and
encrypts its reports. A leader and a helper verify, sum and noise them. Some reports are sent twice,
altered or made up, and are refused.

The devices are the same for the same --seed. Encryption and noise are always random. With
--format json, no files are written.")]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DemoArgs {
    /// Number of devices
    #[arg(long, value_name = "N", default_value_t = 600,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    devices: u32,
    /// Epsilon of each report, and of the query
    #[arg(long, value_name = "E", default_value_t = 1.0)]
    epsilon: f64,
    /// Seed of the devices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the page and the picture
    #[arg(long, value_name = "DIR", default_value = "demo")]
    out: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
    #[command(subcommand)]
    command: Option<DemoCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum DemoCommand {
    /// Click through it in a browser: the same as `bigbird browser demo`
    Browser(browser::BrowserDemoArgs),
}

const DAY: i64 = 24 * 60 * 60 * 1000;

pub(crate) fn run(args: &DemoArgs) -> CommandResult {
    if let Some(DemoCommand::Browser(args)) = &args.command {
        return browser::demo(args);
    }
    let epsilon =
        Epsilon::new(args.epsilon).map_err(|error| CommandError::misused(format!("--{error}")))?;
    let querier = Profile::BigBird
        .policy()
        .capacities()
        .of(FilterKind::QuerierBudget);
    if !querier.covers(MicroEpsilon::ZERO, epsilon.micro()) {
        return Err(CommandError::misused(format!(
            "--epsilon must be at most {querier}, the querier budget of a device, got {}; every \
             report would be null",
            args.epsilon
        )));
    }
    let (service, keys) = keys::new_service()?;
    let mut services = ConfiguredServices::new();
    services.insert(service.clone());
    let now = wall_clock();
    let sealer = DapSealer::new(services);
    let population = DemoPopulation::play(args.devices, args.seed, args.epsilon, &sealer, now)?;
    let task = AggregationTask::new(
        &service,
        &TaskTerms {
            collector: SHOP,
            budget_source: SHOP,
            histogram_size: u32::try_from(ADS.len()).unwrap_or(u32::MAX),
            max_value: 1,
            vdaf: VdafKind::L1BoundSum,
        },
    )?;
    let seconds = now.0.div_euclid(1000);
    let times = task.time(seconds - 60 * DAY / 1000)..=task.time(seconds + 60);
    let shares = shares_of_first(&task, &keys, &population, times.clone(), &epsilon);
    let store = AggregationStore::in_memory()?;
    let budget = Some(epsilon.micro());
    let mut aggregation = Aggregation::new(store, keys, &task, "demo", budget, times)?;
    let sent = sent(&population).into_iter().map(Ok::<_, Infallible>);
    let tally = aggregation
        .add(sent, |_| {})
        .map_err(|error| CommandError::because(error.to_string()))?;
    if tally.accepted < 20 {
        return Err(CommandError::because(format!(
            "{} made {} reports, and 20 are needed for a result; use more --devices",
            output::count(args.devices.into(), "device"),
            tally.accepted
        )));
    }
    let result = aggregation.query(epsilon.micro(), NoiseSource::Both, &mut rand::rng())?;
    let refused: BTreeMap<ReportRefusal, u64> = tally.refused;
    let story = DemoStory {
        answer: DemoAnswer {
            truth: population.truth.clone(),
            noised: result.buckets,
            standard_deviation: result.standard_deviation,
            accepted: tally.accepted,
            refused: refused
                .iter()
                .map(|(it, count)| (it.key(), *count))
                .collect(),
        },
        refused,
        population,
        shares,
        epsilon,
    };
    let format = args.format.format();
    if format == ResultFormat::Json {
        return Ok((output::json(&story.answer)?, true));
    }
    let page = args.out.join("demo.html");
    let unwritable = |path: &Path, error: &std::io::Error| {
        CommandError::because(format!("cannot write {}: {error}", path.display()))
    };
    fs::create_dir_all(&args.out).map_err(|error| unwritable(&args.out, &error))?;
    let picture = args.out.join("demo.svg");
    fs::write(&picture, story.chart().to_file()).map_err(|error| unwritable(&picture, &error))?;
    fs::write(&page, story.page()).map_err(|error| unwritable(&page, &error))?;
    let mut document = story.document();
    document.paragraph(format!(
        "The same as a page with a picture: {}",
        page.display()
    ));
    Ok((document.render(format), true))
}

/// What reaches the aggregators: every report, and some that somebody tampered with.
fn sent(population: &DemoPopulation) -> Vec<Vec<u8>> {
    let mut sent = population.reports.clone();
    // Three reports come twice, two are altered, and one is made up.
    sent.extend(population.reports.iter().take(3).cloned());
    for report in population.reports.iter().skip(3).take(2) {
        let mut altered = report.clone();
        // A new id, so that it is not taken for a copy, and a share that was touched.
        altered[0] ^= 1;
        if let Some(last) = altered.last_mut() {
            *last ^= 1;
        }
        sent.push(altered);
    }
    sent.push(b"not a report".to_vec());
    sent
}

/// What the leader and the helper see of the first report that is not null: a number for each
/// bucket.
fn shares_of_first(
    task: &AggregationTask,
    keys: &[AggregatorKeys; 2],
    population: &DemoPopulation,
    times: std::ops::RangeInclusive<u64>,
    epsilon: &Epsilon,
) -> Option<[Vec<String>; 2]> {
    let (place, _) = population.first.as_ref()?;
    let acceptance = Acceptance {
        budget: epsilon.micro(),
        times,
    };
    let [leader, helper] = keys.clone();
    let leader = Leader::new(leader, task.clone(), acceptance.clone()).ok()?;
    let helper = Helper::new(helper, task.clone(), acceptance).ok()?;
    let report = DapReport::get_decoded(&population.reports[*place]).ok()?;
    let id = report.metadata.report_id;
    let (state, share) = leader.begin(report).ok()?;
    let (helpers, answer) = helper.respond(&share).ok()?;
    let leaders = leader.finish(id, state, &answer).ok()?;
    Some([leaders, helpers].map(|share| {
        let bytes = share.to_bytes().unwrap_or_default();
        let numbers = bytes.chunks(16).map(|bucket| {
            let hex: String = bucket
                .iter()
                .take(3)
                .map(|byte| format!("{byte:02x}"))
                .collect();
            hex + "…"
        });
        numbers.collect()
    }))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DemoAnswer {
    #[serde(rename = "true")]
    truth: Vec<u64>,
    noised: Vec<i64>,
    standard_deviation: f64,
    accepted: u64,
    refused: BTreeMap<&'static str, u64>,
}

/// Everything that is told.
struct DemoStory {
    answer: DemoAnswer,
    refused: BTreeMap<ReportRefusal, u64>,
    population: DemoPopulation,
    shares: Option<[Vec<String>; 2]>,
    epsilon: Epsilon,
}

impl DemoStory {
    fn summary(&self) -> String {
        let population = &self.population;
        format!(
            "{} devices saw {} ads. {SHOP} measured {} purchases at ε = {}. {} of the reports are \
             null, because no ad came before, and {} because the budget was spent. From outside, \
             they look like any other.",
            grouped(population.devices.into()),
            grouped(population.ads),
            grouped(population.reports.len() as u64),
            self.epsilon.micro(),
            grouped(population.null - population.unpaid),
            grouped(population.unpaid)
        )
    }

    /// Who saw what, in words.
    fn parties(&self) -> Vec<(&'static str, String)> {
        let reports = self.population.reports.len() as u64;
        let bytes = self.population.reports.first().map_or(0, Vec::len) as u64;
        let first = self.population.first.as_ref();
        let histogram = first
            .map(|(_, buckets)| format!("{buckets:?}"))
            .unwrap_or_default();
        let share = |role: usize| {
            let numbers = self.shares.as_ref().map(|shares| shares[role].join(", "));
            numbers.map(|it| format!("[{it}]")).unwrap_or_default()
        };
        let refused: Vec<String> = self
            .refused
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        vec![
            (
                "one device",
                format!("the ads that its user saw, and the histogram of its report: {histogram}"),
            ),
            (
                SHOP,
                format!(
                    "{} encrypted reports of {} bytes each",
                    grouped(reports),
                    grouped(bytes)
                ),
            ),
            (
                "the leader",
                format!(
                    "the time and the epsilon of each report, and one random number for each \
                     bucket: {}",
                    share(0)
                ),
            ),
            (
                "the helper",
                format!(
                    "the same, with other numbers: {}. Added to the leader's, modulo a prime, \
                     they are the histogram",
                    share(1)
                ),
            ),
            (
                "both together",
                format!(
                    "that {} proofs are right, and these are not counted: {}",
                    grouped(self.answer.accepted),
                    refused.join("; ")
                ),
            ),
            (
                "the collector",
                "the noised histogram, the number of reports, and which were refused".to_owned(),
            ),
        ]
    }

    fn document(&self) -> Document {
        let mut document = Document::new();
        document.paragraph(self.summary());
        let columns = [
            ResultColumn::named("ad"),
            ResultColumn::new("sum of reports", "sumOfReports"),
            ResultColumn::new("noised sum", "noisedSum"),
        ];
        let mut sums = ResultTable::new(columns.to_vec());
        let answer = &self.answer;
        for ((ad, truth), noised) in ADS.iter().zip(&answer.truth).zip(&answer.noised) {
            sums.row(vec![
                ResultCell::text(*ad),
                ResultCell::Count(*truth),
                ResultCell::Signed(*noised),
            ]);
        }
        document.table(sums.clone()).data(sums).paragraph(format!(
            "The noise has a standard deviation of {:.1} in each bucket: both aggregators add \
                 their own.",
            answer.standard_deviation
        ));
        let columns = ["party", "what it saw"].map(ResultColumn::named);
        let mut parties = ResultTable::new(columns.to_vec());
        for (party, saw) in self.parties() {
            parties.row(vec![ResultCell::text(party), ResultCell::text(saw)]);
        }
        document.table(parties);
        document
    }

    fn chart(&self) -> ComparisonChart {
        #[expect(clippy::cast_precision_loss, reason = "for display")]
        let pairs = ADS
            .iter()
            .zip(&self.answer.truth)
            .zip(&self.answer.noised)
            .map(|((ad, truth), noised)| ((*ad).to_owned(), *truth as f64, *noised as f64))
            .collect();
        ComparisonChart {
            title: "Purchases by the ad that came before".to_owned(),
            y_label: "purchases".to_owned(),
            legend: [
                "sum of reports".to_owned(),
                "noised: what the shop learns".to_owned(),
                "± 2 standard deviations".to_owned(),
            ],
            pairs,
            error: 2.0 * self.answer.standard_deviation,
        }
    }

    fn page(&self) -> String {
        let title = "From ads on devices to a noised histogram";
        let body = html! {
            h1 { (title) }
            p { (self.summary()) }
            div class="figures" {
                figure style="max-width:600px" {
                    (PreEscaped(self.chart().to_inline()))
                    figcaption {
                        "The shop learns the orange bars alone. The sum itself lies "
                        "within a whisker about 95 times out of 100. The noise hides "
                        "what any one report contributed."
                    }
                }
            }
            h2 { "What each party saw" }
            div class="scroll" {
                table class="cards" {
                    tr { th { "party" } th { "saw" } }
                    @for (party, saw) in self.parties() {
                        tr { td { b { (party) } } td { (saw) } }
                    }
                }
            }
            h2 { "In numbers" }
            div class="scroll" {
                table {
                    tr { th { "ad" } th class="n" { "sum of reports" }
                         th class="n" { "noised sum" } }
                    @for ((ad, truth), noised)
                        in ADS.iter().zip(&self.answer.truth).zip(&self.answer.noised) {
                        tr { td { (ad) } td class="n" { (grouped(*truth)) }
                             td class="n" { (signed(*noised)) } }
                    }
                }
            }
            p class="soft" {
                (format!(
                    "The noise has a standard deviation of {:.1} in each bucket. Each \
                     aggregator adds its own, so that the result is private even if \
                     one of them is dishonest.",
                    self.answer.standard_deviation
                ))
            }
        };
        bigbird_chart::page(title, &body).into_string()
    }
}
