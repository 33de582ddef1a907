//! Helpers that the tests of the store share.
#![allow(dead_code, reason = "not every test uses every helper")]

use std::path::Path;

use bigbird::{Capacities, Capacity, MicroEpsilon, Profile, StoreLimits, Timestamp};
use bigbird_store::{SqliteStore, StoreOptions};
pub(crate) use bigbird_testing::Folder;
use bigbird_user_agent::{
    Action, Call, Config, ConversionAnswer, ConversionOptions, FilterBalance, ImpressionOptions,
    Randomness, Storage, UserAgent,
};
use rusqlite::{Connection, OpenFlags};

pub(crate) const SERVICE: &str = "https://agg.example";
pub(crate) const DAY: i64 = 86_400_000;

/// A folder that is deleted at the end of the test.
pub(crate) fn folder() -> Folder {
    Folder::below(env!("CARGO_TARGET_TMPDIR"))
}

/// A sequence of numbers that is the same in every run.
#[derive(Debug, Clone, Default)]
pub(crate) struct SequenceRandomness(u64);

impl Randomness for SequenceRandomness {
    fn epoch_start(&mut self) -> f64 {
        0.5
    }

    fn credit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        #[expect(clippy::cast_precision_loss, reason = "32 bits fit")]
        let number = (self.0 >> 32) as f64;
        number / (1_u64 << 32) as f64
    }

    fn handle(&mut self, number: u64) -> u128 {
        number.into()
    }
}

pub(crate) type SqliteAgent = UserAgent<SqliteStore, SequenceRandomness>;

/// A configuration with capacities that a few conversions use up.
pub(crate) fn config(profile: Profile, impressions_per_epoch: u32) -> Config {
    let finite = |micro| Capacity::Finite(MicroEpsilon::new(micro));
    let own = profile.policy();
    let given = |capacity, micro| match capacity {
        Capacity::Unlimited => capacity,
        Capacity::Finite(_) => finite(micro),
    };
    let capacities = Capacities {
        querier_budget: finite(1_000_000),
        global_budget: given(own.capacities().global_budget, 3_000_000),
        impression_site_quota: given(own.capacities().impression_site_quota, 1_500_000),
        conversion_site_quota: given(own.capacities().conversion_site_quota, 1_200_000),
        user_action_budget: Capacity::Unlimited,
    };
    Config {
        policy: own.to_builder().capacities(capacities).build().unwrap(),
        store_limits: StoreLimits {
            units_per_epoch: impressions_per_epoch.try_into().unwrap(),
        },
        ..Config::new(profile).with_service(SERVICE).for_testing()
    }
}

pub(crate) fn open(path: &Path, config: &Config) -> SqliteAgent {
    let store = SqliteStore::open_or_create(path, &StoreOptions::default()).unwrap();
    // A time before all calls, because new rules begin only after the calls that were made before.
    let now = Timestamp(i64::MIN);
    UserAgent::new(config.clone(), store, SequenceRandomness::default(), now).unwrap()
}

/// A call of a user action.
pub(crate) fn by(site: &str, action: u64, at: i64) -> Call<'_> {
    Call::new(site, Timestamp(at)).by(Action::numbered(action).unwrap())
}

/// Makes a few impressions and conversions, so that the store has rows of every kind. The last
/// conversions find their budgets spent.
pub(crate) fn live(agent: &mut SqliteAgent) {
    for number in 0..40_u32 {
        let at = 100 * DAY + i64::from(number) * DAY / 4;
        let site = format!("news-{}.example", number % 5);
        let options = ImpressionOptions {
            conversion_sites: match number % 3 {
                0 => Vec::new(),
                _ => vec![format!("shop-{}.example", number % 4)],
            },
            match_value: number % 7,
            ..ImpressionOptions::new(number % 5)
        };
        let call = by(&site, u64::from(number), at);
        agent.save_impression(&call, &options).unwrap();
    }
    let shared = by("shop-1.example", 200, 110 * DAY - 1);
    let conversion = ConversionOptions {
        epsilon: 0.1,
        ..ConversionOptions::new(SERVICE, 5)
    };
    let participants = ["ads.example", "more-ads.example"];
    let _ = agent
        .create_shared_conversion(&shared, &conversion, &participants)
        .unwrap();
    for number in 0..8_u32 {
        let at = 110 * DAY + i64::from(number) * 1000;
        let site = format!("shop-{}.example", number % 4);
        measure(agent, &by(&site, 100 + u64::from(number), at), 0.4).unwrap();
    }
    let closed = ["shop-3.example".to_owned()];
    let now = Timestamp(112 * DAY);
    agent.clear_browsing_history(&closed, false, now).unwrap();
}

/// Measures a conversion, and returns its histogram.
pub(crate) fn measure<S: Storage, R: Randomness>(
    agent: &mut UserAgent<S, R>,
    call: &Call<'_>,
    epsilon: f64,
) -> Result<Vec<u32>, bigbird_user_agent::AgentError<S::Error>> {
    let options = ConversionOptions {
        epsilon,
        value: 3,
        max_value: 5,
        credit: vec![0.6, 0.4],
        ..ConversionOptions::new(SERVICE, 5)
    };
    let answer = agent.measure_conversion(call, &options)?;
    Ok(released(answer))
}

/// The amount that each filter has consumed, by epoch and name.
pub(crate) fn consumed(budgets: &[FilterBalance]) -> Vec<(i64, String, u64)> {
    let mut consumed: Vec<_> = budgets
        .iter()
        .map(|budget| {
            (
                budget.epoch,
                budget.to_string(),
                budget.balance.consumed.get(),
            )
        })
        .collect();
    consumed.sort();
    consumed
}

/// A connection through the layer of page checksums, which the store has registered: the view of a
/// program that knows the page checksums but not the row guards.
pub(crate) fn by_hand(path: &Path) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    Connection::open_with_flags_and_vfs(path, flags, c"bigbird").unwrap()
}

/// The histogram in an answer.
pub(crate) fn released(answer: ConversionAnswer) -> Vec<u32> {
    let histogram = answer.report.histogram;
    histogram.unwrap().buckets().to_vec()
}
