//! A synthetic population of any size that behaves like the paper's data.
//!
//! Its parameters are fitted to what is published about the data. The preset [`Preset::Published`]
//! uses only published numbers that do not involve an attack, so its results under attack are
//! predictions. The preset [`Preset::AttackFitted`] was also fitted to the paper's results under
//! attack.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use crate::threads;
use crate::workload::{BUCKETS, DAY, DEVICES_OF_PART, EventKind, Part, Workload, WorkloadEvent};

/// A set of parameters for a population.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preset {
    /// Fitted only to published numbers that do not involve an attack.
    #[default]
    Published,
    /// Also fitted to the paper's results under attack.
    AttackFitted,
}

/// A synthetic population.
#[derive(Debug, Clone, Copy)]
pub struct Population {
    /// Its parameters.
    pub preset: Preset,
    /// Its size: 1 is the paper's 1.4 million devices.
    pub scale: f64,
    /// The seed of all random choices.
    pub seed: u64,
}

/// The first of the twenty days of the paper's data.
const FIRST_DAY: u32 = 11;
const DAYS: u32 = 20;

/// The first of the devices' streams of random numbers. Campaigns have the streams below.
const DEVICES: u64 = 1 << 32;

struct Parameters {
    site_anew: f64,
    same_tier: f64,
    campaign_anew: f64,
    click: f64,
    click_factor_at_busiest: f64,
    more_clicks: f64,
    spread: f64,
    disloyal: f64,
    dirichlet: [f64; BUCKETS as usize],
}

impl Preset {
    fn parameters(self) -> Parameters {
        let scaled = |sum: f64, shares: [f64; BUCKETS as usize]| shares.map(|share| sum * share);
        match self {
            Self::Published => Parameters {
                site_anew: 0.225,
                same_tier: 0.0,
                campaign_anew: 0.6,
                click: 0.38,
                click_factor_at_busiest: 1.0,
                more_clicks: 0.67,
                spread: 0.5,
                disloyal: 0.85,
                dirichlet: scaled(5.0, [0.45, 0.25, 0.15, 0.08, 0.07]),
            },
            Self::AttackFitted => Parameters {
                site_anew: 0.245,
                same_tier: 0.8,
                campaign_anew: 0.57,
                click: 0.38 / 1.344,
                click_factor_at_busiest: 1.8,
                more_clicks: 0.71,
                spread: 0.45,
                disloyal: 0.75,
                dirichlet: scaled(15.0, [0.58, 0.18, 0.10, 0.08, 0.06]),
            },
        }
    }
}

/// The number of the busiest impression sites, which form their own tier.
const BUSIEST: u32 = 10;

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of devices"
)]
impl Population {
    /// The number of devices.
    pub fn devices(&self) -> u64 {
        (1_400_000.0 * self.scale).round().max(1.0) as u64
    }

    /// Generates the workload.
    pub fn generate(&self) -> Workload {
        self.generate_on(1)
    }

    /// Generates the workload on several threads. It does not depend on their number.
    pub fn generate_on(&self, threads: usize) -> Workload {
        let world = SyntheticSites::new(self);
        let devices = self.devices();
        let parts = devices.div_ceil(DEVICES_OF_PART as u64) as usize;
        let parts = threads::map(parts, threads, |number| {
            let first = (number * DEVICES_OF_PART) as u64;
            let last = devices.min(first + DEVICES_OF_PART as u64);
            self.part(&world, first..last)
        });
        let mut workload = Workload::default();
        let mut rows = 0;
        for mut part in parts {
            for row in &mut part.rows {
                *row += rows;
            }
            rows += part.len() as u32;
            workload.push_part(part);
        }
        let names = |count: usize| (1..=count).map(|number| number.to_string()).collect();
        workload.impression_site_names = names(world.impression_sites.len());
        workload.conversion_site_names = names(world.campaigns.len());
        workload
    }

    /// Some devices, with their rows numbered from 0 on.
    fn part(&self, world: &SyntheticSites, devices: std::ops::Range<u64>) -> Part {
        let mut part = Part::default();
        let mut events = Vec::new();
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        for device in devices {
            rng.set_stream(DEVICES + device);
            rng.set_word_pos(0);
            events.clear();
            world.live(&mut SeededDice(&mut rng), &mut events);
            for (row, event) in (part.len() as u32..).zip(&mut events) {
                event.row = row;
            }
            part.push_device(&mut events);
        }
        part.shrink();
        part
    }
}

/// The sites of a population.
struct SyntheticSites {
    parameters: Parameters,
    per_device: Chances,
    impression_sites: Chances,
    /// The impression sites without the busiest, and only the busiest.
    tiers: [Chances; 2],
    conversion_sites: Chances,
    campaigns: Vec<Campaign>,
}

/// The properties of a conversion site's ads.
struct Campaign {
    more_clicks: f64,
    buckets: Chances,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts of devices, sites and minutes"
)]
impl SyntheticSites {
    fn new(population: &Population) -> Self {
        let parameters = population.preset.parameters();
        let head = [0.19, 0.09, 0.06, 0.02, 0.02, 0.01, 0.01, 0.01];
        let last = (220_000.0 * population.scale).round().max(20.0) as u32;
        let tail: Vec<f64> = (9..=last)
            .map(|rank| f64::from(rank).powf(-1.065))
            .collect();
        let sum: f64 = tail.iter().sum();
        let weights: Vec<f64> = head
            .into_iter()
            .chain(tail.into_iter().map(|weight| 0.59 * weight / sum))
            .collect();
        let busiest = BUSIEST as usize;
        let sites = (10_000.0 * population.scale).round().max(5.0);
        let campaign_weights: Vec<f64> = (1..=sites as u64)
            .map(|number| match population.preset {
                Preset::Published => {
                    let below = 1.0 - (number as f64 - 0.5) / sites;
                    (1.9 * normal_quantile(below)).exp()
                }
                Preset::AttackFitted => {
                    let rank = (number as f64 - 0.5) / population.scale + 0.5;
                    rank.powf(-0.7) * (-rank / 1000.0).exp()
                }
            })
            .collect();
        let mut rng = ChaCha8Rng::seed_from_u64(population.seed);
        let campaigns = (0..campaign_weights.len())
            .map(|number| {
                rng.set_stream(number as u64);
                rng.set_word_pos(0);
                let mut dice = SeededDice(&mut rng);
                let spread = parameters.spread;
                let more = (spread * dice.normal() - spread * spread / 2.0).exp();
                let shares = parameters.dirichlet.map(|shape| dice.gamma(shape));
                Campaign {
                    more_clicks: (parameters.more_clicks * more).min(8.0),
                    buckets: Chances::new(&shares),
                }
            })
            .collect();
        Self {
            per_device: Chances::new(
                &(1..=10)
                    .map(|k| f64::from(k).powf(-1.06))
                    .collect::<Vec<_>>(),
            ),
            tiers: [
                Chances::new(&weights[busiest..]),
                Chances::new(&weights[..busiest]),
            ],
            impression_sites: Chances::new(&weights),
            conversion_sites: Chances::new(&campaign_weights),
            campaigns,
            parameters,
        }
    }

    /// Generates the events of one device. All of its impressions are on the same day.
    fn live(&self, dice: &mut SeededDice<'_>, events: &mut Vec<WorkloadEvent>) {
        let parameters = &self.parameters;
        let day = FIRST_DAY + dice.below(DAYS);
        let morning = day * DAY;
        let impressions = self.per_device.draw(dice) + 1;
        let loyal = dice.chance(0.4);
        let mut sites = [0; 10];
        let mut campaigns = [0; 10];
        for number in 0..impressions {
            let at = number as usize;
            sites[at] = if number == 0 {
                self.impression_sites.draw(dice)
            } else if dice.chance(parameters.site_anew) {
                self.another_site(sites[0], dice)
            } else {
                sites[dice.below(number) as usize]
            };
            campaigns[at] = if number == 0 || !loyal && dice.chance(parameters.campaign_anew) {
                self.conversion_sites.draw(dice)
            } else {
                campaigns[dice.below(number) as usize]
            };
        }
        for (&site, &conversion_site) in sites.iter().zip(&campaigns).take(impressions as usize) {
            let campaign = &self.campaigns[conversion_site as usize];
            let conversion = EventKind::Conversion {
                value: 1,
                came_from: Some(site),
            };
            let event = |minute: u32, kind| WorkloadEvent {
                minute,
                epoch: u16::try_from(minute / DAY).unwrap_or(u16::MAX),
                conversion_site,
                kind,
                row: 0,
            };
            let bucket = campaign.buckets.draw(dice) as u16;
            events.push(event(morning, EventKind::Impression { site, bucket }));
            let factor = match site < BUSIEST {
                true => parameters.click_factor_at_busiest,
                false => 1.0,
            };
            if !dice.chance(parameters.click * factor) {
                continue;
            }
            let mean = campaign.more_clicks * if loyal { 1.0 } else { parameters.disloyal };
            let clicks = 1 + dice.geometric(mean).min(40);
            let landed = (0..clicks).filter(|_| dice.chance(0.97)).count() as u32;
            for _ in 0..clicks + landed {
                let minute = morning + dice.exponential(30.0);
                events.push(event(minute, conversion));
            }
            if dice.chance(0.02) {
                let minute = morning + dice.exponential(500.0);
                events.push(event(minute, conversion));
            }
        }
    }

    fn another_site(&self, first: u32, dice: &mut SeededDice<'_>) -> u32 {
        if self.parameters.same_tier == 0.0 || !dice.chance(self.parameters.same_tier) {
            return self.impression_sites.draw(dice);
        }
        match first < BUSIEST {
            true => self.tiers[1].draw(dice),
            false => BUSIEST + self.tiers[0].draw(dice),
        }
    }
}

/// A distribution over the numbers from 0 on, drawn from in constant time (Walker's alias method).
struct Chances {
    /// For each number, the probability to keep it, and the number to take otherwise.
    columns: Vec<(f64, u32)>,
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "fewer than four billion numbers"
)]
impl Chances {
    fn new(weights: &[f64]) -> Self {
        let sum: f64 = weights.iter().sum();
        let count = weights.len();
        let mut columns: Vec<(f64, u32)> = weights
            .iter()
            .enumerate()
            .map(|(at, weight)| (weight / sum * count as f64, at as u32))
            .collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|at| columns[*at].0 < 1.0);
        while let (Some(&few), Some(&many)) = (small.last(), large.last()) {
            small.pop();
            columns[few].1 = many as u32;
            columns[many].0 -= 1.0 - columns[few].0;
            if columns[many].0 < 1.0 {
                large.pop();
                small.push(many);
            }
        }
        for left in small.into_iter().chain(large) {
            columns[left].0 = 1.0;
        }
        Self { columns }
    }

    fn len(&self) -> usize {
        self.columns.len()
    }

    fn draw(&self, dice: &mut SeededDice<'_>) -> u32 {
        let column = dice.below(self.columns.len() as u32);
        let (own, other) = self.columns[column as usize];
        if dice.uniform() < own { column } else { other }
    }
}

/// Random numbers of several distributions. They are implemented here, so that a seed always gives
/// the same population.
struct SeededDice<'a>(&'a mut ChaCha8Rng);

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "random bits, and small counts"
)]
impl SeededDice<'_> {
    /// A number in [0, 1).
    fn uniform(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.0.next_u32()) * u64::from(bound)) >> 32) as u32
    }

    fn normal(&mut self) -> f64 {
        normal_quantile(self.uniform().max(f64::MIN_POSITIVE))
    }

    /// A number with an exponential distribution, rounded down.
    fn exponential(&mut self, mean: f64) -> u32 {
        (-mean * (1.0 - self.uniform()).ln()) as u32
    }

    /// A number from 0 on, with a geometric distribution.
    fn geometric(&mut self, mean: f64) -> u32 {
        let fails = mean / (1.0 + mean);
        ((1.0 - self.uniform()).ln() / fails.ln()) as u32
    }

    /// A number with a gamma distribution of scale 1 (Marsaglia and Tsang).
    fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = (1.0 - self.uniform()).powf(1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - self.uniform();
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }
}

/// The quantile Φ⁻¹ of the normal distribution, to nine digits, by Acklam's rational approximation.
fn normal_quantile(p: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 5] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 4] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
    ];
    const LOW: f64 = 0.024_25;
    let polynomial = |coefficients: &[f64], x: f64| {
        coefficients
            .iter()
            .fold(0.0, |sum, coefficient| sum * x + coefficient)
    };
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(&C, q) / (polynomial(&D, q) * q + 1.0)
    };
    if p < LOW {
        tail(p)
    } else if p > 1.0 - LOW {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        let r = q * q;
        polynomial(&A, r) * q / (polynomial(&B, r) * r + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        for (p, expected) in [(0.5, 0.0), (0.975, 1.959_963_985), (0.001, -3.090_232_306)] {
            assert!((normal_quantile(p) - expected).abs() < 1e-8, "{p}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_population() {
        let population = Population {
            preset: Preset::Published,
            scale: 0.001,
            seed: 7,
        };
        let (one, two) = (population.generate(), population.generate_on(3));
        assert_eq!(one.devices(), 1400);
        let parts = |workload: &Workload| -> Vec<_> {
            let part = |number| workload.part(number).map(Cow::into_owned).ok();
            (0..workload.parts()).map(part).collect()
        };
        assert_eq!(parts(&one), parts(&two));
        let other = Population {
            seed: 8,
            ..population
        }
        .generate();
        assert_ne!(parts(&one), parts(&other));
    }
}
