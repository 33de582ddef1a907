//! Simulated people, each with a device of its own: ads that they see, things that they buy.

use bigbird::{Profile, Timestamp};
use bigbird_dap::DapSealer;
use bigbird_user_agent::{
    Call, Config, ConversionAnswer, ConversionOptions, ImpressionOptions, SystemRandomness,
    UserAgent,
};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use crate::error::BrowserError;

/// The shop that measures.
pub const SHOP: &str = "shop.example";

/// The ads of the shop. Each has a bucket.
pub const ADS: [&str; 5] = ["video", "banner", "search", "social", "newsletter"];

const PLACES: [&str; 4] = ["news.example", "tv.example", "blog.example", "mail.example"];
const DAY: i64 = 24 * 60 * 60 * 1000;
const HOUR: i64 = DAY / 24;

/// What the devices did.
#[derive(Debug, Clone)]
pub struct DemoPopulation {
    /// The number of devices.
    pub devices: u32,
    /// The number of ads that they saw.
    pub ads: u64,
    /// The report of each conversion, in the order in which they were made.
    pub reports: Vec<Vec<u8>>,
    /// The number of reports that are null: no ad before, or no budget left.
    pub null: u64,
    /// The number of those for which no budget was left.
    pub unpaid: u64,
    /// The sums of all reports, which only the devices know.
    pub truth: Vec<u64>,
    /// The histogram of the first report that is not null, and its place.
    pub first: Option<(usize, Vec<u32>)>,
}

impl DemoPopulation {
    /// Lets every device see ads for two weeks, and then buy something, or not.
    ///
    /// # Errors
    /// If the operating system gives no random numbers, or the epsilon is invalid.
    pub fn play(
        devices: u32,
        seed: u64,
        epsilon: f64,
        sealer: &DapSealer,
        now: Timestamp,
    ) -> Result<Self, BrowserError> {
        let mut population = Self {
            devices,
            ads: 0,
            reports: Vec::new(),
            null: 0,
            unpaid: 0,
            truth: vec![0; ADS.len()],
            first: None,
        };
        let mut dice = StdRng::seed_from_u64(seed);
        for _ in 0..devices {
            let played = population.device(epsilon, sealer, now, &mut dice);
            played.map_err(|error| BrowserError::Demo {
                operation: "simulate a device",
                message: error.to_string(),
            })?;
        }
        Ok(population)
    }

    fn device(
        &mut self,
        epsilon: f64,
        sealer: &DapSealer,
        now: Timestamp,
        dice: &mut StdRng,
    ) -> Result<(), Box<dyn std::error::Error>> {
        let mut config = Config::new(Profile::BigBird).for_testing();
        config.aggregation_services = sealer.services().protocols();
        let randomness = SystemRandomness::new()?;
        let mut device = UserAgent::in_memory(config, randomness).sealing(sealer.clone());
        for _ in 0..dice.random_range(0..4) {
            // Some ads are shown more often than others.
            let ad = dice.random_range(0..5_u32).min(dice.random_range(0..5));
            let at = Timestamp(now.0 - dice.random_range(2 * HOUR..14 * DAY));
            let action = device.begin_user_action(at)?;
            let place = PLACES[dice.random_range(0..PLACES.len())];
            let seen = Call::new(place, at).by(action);
            device.save_impression(&seen, &ImpressionOptions::new(ad))?;
            self.ads += 1;
        }
        // Two in three buy something, and one in ten of these a second time, when the budget of
        // this week is spent.
        let purchases = match dice.random_range(0..30) {
            0..10 => 0,
            10..12 => 2,
            _ => 1,
        };
        for number in 0..purchases {
            let at = Timestamp(now.0 - HOUR + number * HOUR / 4);
            let action = device.begin_user_action(at)?;
            let bought = Call::new(SHOP, at).by(action);
            let size = u32::try_from(ADS.len()).unwrap_or(u32::MAX);
            let options = ConversionOptions {
                epsilon,
                ..ConversionOptions::new("https://agg.example", size)
            };
            let ConversionAnswer { report, decision } =
                device.measure_conversion(&bought, &options)?;
            // A page would get the bytes and nothing more.
            let histogram = report.histogram.unwrap_or_default();
            for (sum, bucket) in self.truth.iter_mut().zip(histogram.buckets()) {
                *sum += u64::from(*bucket);
            }
            if histogram.is_null() {
                self.null += 1;
                self.unpaid += u64::from(decision.first_cause().is_some());
            } else if self.first.is_none() {
                self.first = Some((self.reports.len(), histogram.buckets().to_vec()));
            }
            self.reports.push(report.bytes);
        }
        Ok(())
    }
}
