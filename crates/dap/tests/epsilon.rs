//! What is charged on a device is what the noise follows: from the epsilon that a page passes, over
//! the ledger and the wire, to λ.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird::{FilterKind, MicroEpsilon, Profile, Timestamp};
use bigbird_dap::messages::{DapReport, Decode as _};
use bigbird_dap::{ConfiguredServices, DapSealer, DapVersion, LaplaceNoise, TaskSettings};
use bigbird_testing::FixedRandomness;
use bigbird_user_agent::{Call, Config, ConversionOptions, ImpressionOptions, UserAgent};
use common::{SERVICE, service};

/// The time of a conversion, and of the impression a day before, in ms.
const NOW: i64 = 1_790_000_000_000;

/// What a device was charged for one conversion, and what its report carries, both in µε.
fn charged_and_carried(profile: Profile, epsilon: f64, value: u32, max_value: u32) -> [u64; 2] {
    let (service, _) = service(TaskSettings::new(DapVersion::default()));
    let mut services = ConfiguredServices::new();
    services.insert(service);
    let mut config = Config::new(profile);
    config.aggregation_services = services.protocols();
    // Budgets that can pay for anything.
    let mut policy = config.policy.to_builder();
    for kind in FilterKind::ALL {
        if config.policy.capacities().of(kind).amount().is_some() {
            policy = policy.capacity(kind, 1e6);
        }
    }
    config.policy = policy.build().unwrap();
    let mut agent = UserAgent::in_memory(config, FixedRandomness).sealing(DapSealer::new(services));
    let at = Timestamp(NOW - 10 * 86_400_000);
    let action = agent.begin_user_action(at).unwrap();
    let seen = Call::new("news.example", at).by(action);
    agent
        .save_impression(&seen, &ImpressionOptions::new(1))
        .unwrap();
    let action = agent.begin_user_action(Timestamp(NOW)).unwrap();
    let bought = Call::new("shop.example", Timestamp(NOW)).by(action);
    let options = ConversionOptions {
        epsilon,
        value,
        max_value,
        ..ConversionOptions::new(SERVICE, 3)
    };
    let answer = agent.measure_conversion(&bought, &options).unwrap();
    let report = DapReport::get_decoded(&answer.report.bytes).unwrap();
    assert!(answer.report.histogram.is_none(), "it stays on the device");
    let extensions = report.metadata.public_extensions.as_slice();
    let [budget] = extensions else {
        panic!("{extensions:?}");
    };
    let carried = u32::from_be_bytes(budget.data.as_slice().try_into().unwrap());
    let Ok(balances) = agent.filter_balances();
    let querier = balances
        .iter()
        .find(|it| it.filter.kind() == FilterKind::QuerierBudget);
    let charged = querier.unwrap().balance.consumed.get();
    [charged, carried.into()]
}

/// The loss of a report that moves `value` from one bucket to another, 2·value/λ, as a ratio in µε:
/// what must have been charged, at least.
fn follows_from_noise(max_value: u32, carried: u64, value: u32) -> (u128, u128) {
    let noise = LaplaceNoise::new(max_value.into(), MicroEpsilon::new(carried)).unwrap();
    let (numerator, denominator) = noise.scale();
    (2 * u128::from(value) * 1_000_000 * denominator, numerator)
}

/// `big-bird` charges from the epsilon that the report carries, rounded up: never less than the
/// noise allows somebody to learn, and never a whole µε more.
#[test]
fn big_bird_charges_what_the_noise_follows() {
    for epsilon in [1.0, 0.1, 0.07, 1e-6, 1.1e-6, 1e-9, 0.333_333_333_3, 4294.0] {
        for (value, max_value) in [(1, 1), (1, 3), (7, 10), (10, 10), (1, u32::MAX)] {
            let [charged, carried] =
                charged_and_carried(Profile::BigBird, epsilon, value, max_value);
            let (numerator, denominator) = follows_from_noise(max_value, carried, value);
            assert_eq!(u128::from(charged), numerator.div_ceil(denominator));
        }
    }
    // What a person writes is what is carried: 4.03 is 4,030,000 µε, although 4.03 · 1e6 is more in
    // doubles.
    assert_eq!(
        charged_and_carried(Profile::BigBird, 4.03, 1, 1),
        [4_030_000, 4_030_000]
    );
}

/// `w3c-draft` deducts from the page's double, as the draft does, and the wire carries the rounded
/// epsilon: up to 1 µε a report is not charged (notes on the draft). It is never more than that.
#[test]
fn the_draft_charges_up_to_a_microepsilon_less() {
    let mut less = 0;
    for epsilon in [1.0, 0.1, 0.07, 1e-6, 1.1e-6, 1.5e-6, 1e-9, 0.333_333_333_3] {
        for (value, max_value) in [(1, 1), (1, 3), (7, 10), (10, 10)] {
            let [charged, carried] =
                charged_and_carried(Profile::W3cDraft, epsilon, value, max_value);
            let (numerator, denominator) = follows_from_noise(max_value, carried, value);
            let must = u64::try_from(numerator.div_ceil(denominator)).unwrap();
            assert!(charged + 1 >= must, "{epsilon} {value}/{max_value}");
            less += u32::from(charged < must);
        }
    }
    assert!(less > 0, "the note on the draft's rounding is out of date");
}
