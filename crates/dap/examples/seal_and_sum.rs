//! From forty devices to one noised histogram, in one process.
//!
//! ```sh
//! cargo run -p bigbird-dap --example seal_and_sum
//! ```

use std::convert::Infallible;
use std::error::Error;

use bigbird::{Profile, Timestamp};
use bigbird_dap::{
    Aggregation, AggregationService, AggregationStore, AggregationTask, AggregatorKeys,
    ConfiguredServices, DapSealer, DapVersion, NoiseSource, TaskSettings, TaskTerms, VdafKind,
};
use bigbird_user_agent::{
    Call, Config, ConversionOptions, ImpressionOptions, SystemRandomness, UserAgent,
};

const SERVICE: &str = "https://agg.example";

fn main() -> Result<(), Box<dyn Error>> {
    // In a deployment each aggregator makes its own keys, and browsers ship a file with the public
    // halves: `ConfiguredServices::parse` reads it.
    let keys = AggregatorKeys::generate(1)?;
    let [leader, helper] = keys.each_ref().map(|keys| keys.hpke.recipient().clone());
    let service = AggregationService::new(
        SERVICE,
        TaskSettings::new(DapVersion::default()),
        ("https://leader.example/", leader),
        ("https://helper.example/", helper),
    )?;
    let mut services = ConfiguredServices::new();
    services.insert(service.clone());

    // Each device saves an ad, measures a purchase, and seals its report.
    let now = Timestamp(1_790_000_000_000);
    let mut reports = Vec::new();
    for device in 0..40 {
        let mut config = Config::new(Profile::BigBird);
        config.aggregation_services = services.protocols();
        let sealer = DapSealer::new(services.clone());
        let mut agent = UserAgent::in_memory(config, SystemRandomness::new()?).sealing(sealer);
        let click = agent.begin_user_action(now)?;
        let seen = Call::new("news.example", now).by(click);
        agent.save_impression(&seen, &ImpressionOptions::new(device % 4))?;
        let click = agent.begin_user_action(now)?;
        let bought = Call::new("shop.example", now).by(click);
        let answer = agent.measure_conversion(&bought, &ConversionOptions::new(SERVICE, 4))?;
        reports.push(answer.report.bytes);
    }

    // The aggregators verify the reports without seeing them, sum them, and add noise.
    let terms = TaskTerms {
        collector: "shop.example",
        budget_source: "shop.example",
        histogram_size: 4,
        max_value: 1,
        vdaf: VdafKind::L1BoundSum,
    };
    let task = AggregationTask::new(&service, &terms)?;
    let times = task.time(1_789_000_000)..=task.time(1_790_000_060);
    let budget = bigbird::MicroEpsilon::from_epsilon(1.0)?;
    let store = AggregationStore::in_memory()?;
    let mut aggregation = Aggregation::new(store, keys, &task, "example", Some(budget), times)?;
    let sent = reports.into_iter().map(Ok::<_, Infallible>);
    let tally = aggregation.add(sent, |report| println!("refused: {}", report.reason))?;
    let result = aggregation.query(budget, NoiseSource::Both, &mut rand::rng())?;
    println!(
        "{} reports, noised sums {:?}, standard deviation {:.1}, {} epsilons left",
        tally.accepted,
        result.buckets,
        result.standard_deviation,
        aggregation.batch().left()
    );
    Ok(())
}
