//! The noise of results is discrete Laplace of the scale that devices were charged for.
//!
//! Seeds are fixed, so these tests always pass or always fail. With another seed, each would fail
//! with a probability below 1e-7, so all of them together below 1e-6, although everything is right.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use bigbird::MicroEpsilon;
use bigbird_dap::{AggregateSum, Collector, LaplaceNoise, NoiseSource};
use common::{TaskSetup, add, micro, terms};
use rand::SeedableRng as _;
use rand::rngs::StdRng;

/// The probability that a discrete Laplace variable of scale λ is at most `x`.
fn distribution(x: f64, scale: f64) -> f64 {
    let q = (-1.0 / scale).exp();
    match x < 0.0 {
        true => q.powf(-x) / (1.0 + q),
        false => 1.0 - q.powf(x + 1.0) / (1.0 + q),
    }
}

/// Checks samples against discrete Laplace: the whole distribution, mean, variance and tail.
///
/// * Distribution: by the Dvoretzky–Kiefer–Wolfowitz inequality with Massart's constant, the
///   largest deviation exceeds √(ln(2/p)/2n) with a probability of at most p = 2e-8.
/// * Mean and variance: six standard errors, of which a normal variable exceeds with 2e-9. The
///   fourth moment of a Laplace variable is six times its squared variance, so the variance of n
///   samples has the standard error σ²·√(5/n).
/// * Tail: the number of samples beyond the point that one in a thousand exceeds is binomial, and
///   six standard deviations are enough for n/1000 ≥ 100.
fn check(samples: &[i64], scale: f64) {
    #[expect(clippy::cast_precision_loss)]
    let n = samples.len() as f64;
    assert!(n >= 100_000.0);
    let q = (-1.0 / scale).exp();
    let variance = 2.0 * q / ((1.0 - q) * (1.0 - q));
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let largest = ((2.0_f64 / 2e-8).ln() / (2.0 * n)).sqrt();
    let mut at = 0;
    while at < sorted.len() {
        let value = sorted[at];
        let end = sorted.partition_point(|other| *other <= value);
        #[expect(clippy::cast_precision_loss)]
        let (below, up_to, x) = (at as f64 / n, end as f64 / n, value as f64);
        assert!((up_to - distribution(x, scale)).abs() < largest, "{value}");
        assert!(
            (below - distribution(x - 1.0, scale)).abs() < largest,
            "{value}"
        );
        at = end;
    }
    #[expect(clippy::cast_precision_loss)]
    let as_doubles = || samples.iter().map(|sample| *sample as f64);
    let mean = as_doubles().sum::<f64>() / n;
    assert!(mean.abs() < 6.0 * (variance / n).sqrt(), "mean {mean}");
    let measured = as_doubles().map(|sample| sample * sample).sum::<f64>() / n;
    // The fourth moment of the discrete variable is larger where λ is small.
    let fourth =
        2.0 * q * (1.0 + 11.0 * q + 11.0 * q * q + q * q * q) / ((1.0 + q) * (1.0 - q).powi(4));
    let error = ((fourth - variance * variance) / n).sqrt();
    assert!(
        (measured - variance).abs() < 6.0 * error,
        "variance {measured} instead of {variance}"
    );
    let mut tail = 0.0;
    while 2.0 * (1.0 - distribution(tail, scale)) > 1e-3 {
        tail += 1.0;
    }
    let beyond = 2.0 * (1.0 - distribution(tail, scale));
    #[expect(clippy::cast_precision_loss)]
    let count = as_doubles().filter(|sample| sample.abs() > tail).count() as f64;
    let expected = n * beyond;
    // At small scales hardly any sample lies there.
    assert!(
        (count - expected).abs() < 6.0 * expected.max(1.0).sqrt() + 1.0,
        "{count} instead of {expected} beyond {tail}"
    );
}

/// The noised result of zero sums: what a collector gets, bucket by bucket.
fn results(noise: &LaplaceNoise, source: NoiseSource, seed: u64) -> Vec<i64> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut shares = [AggregateSum::zero(100_000), AggregateSum::zero(100_000)];
    for (share, role) in shares.iter_mut().zip(bigbird_dap::Role::ALL) {
        if source.includes(role) {
            noise.add_to(share, &mut rng).unwrap();
        }
    }
    let [leader, helper] = &shares;
    Collector.combine(leader, helper, 0, noise, source).buckets
}

#[test]
fn the_noise_is_discrete_laplace_at_every_epsilon() {
    for (seed, (max_value, epsilon, scale)) in (0..).zip([
        (1, 1.0, 2.0),
        (1, 0.1, 20.0),
        (1, 4.0, 0.5),
        (100, 0.25, 800.0),
        (7, 0.3, 46.666_666_666_666_664),
    ]) {
        let noise = LaplaceNoise::new(max_value, micro(epsilon)).unwrap();
        for source in [NoiseSource::Leader, NoiseSource::Helper] {
            check(&results(&noise, source, seed), scale);
        }
        // A wrong scale is caught: half of it, which forgets that a report can move its value from
        // one bucket to another, and a tenth more.
        for wrong in [0.5, 1.1] {
            let samples = results(&noise, NoiseSource::Leader, seed);
            let caught = std::panic::catch_unwind(|| check(&samples, scale * wrong));
            assert!(
                caught.is_err(),
                "scale {scale} passes as {wrong} times as much"
            );
        }
    }
}

#[test]
fn two_noises_have_twice_the_variance() {
    let noise = LaplaceNoise::new(3, micro(0.5)).unwrap();
    let samples = results(&noise, NoiseSource::Both, 99);
    #[expect(clippy::cast_precision_loss)]
    let squares = samples.iter().map(|it| (*it as f64).powi(2)).sum::<f64>();
    #[expect(clippy::cast_precision_loss)]
    let measured = squares / samples.len() as f64;
    let expected = 2.0 * noise.variance();
    assert!((measured / expected - 1.0).abs() < 6.0 * (2.5_f64 / 100_000.0).sqrt());
    let deviation = noise.standard_deviation(NoiseSource::Both);
    assert!((deviation - expected.sqrt()).abs() < 1e-9);
    assert!((noise.standard_deviation(NoiseSource::Leader) - noise.variance().sqrt()).abs() < 1e-9);
}

/// The scale is exact, also where doubles would round it.
#[test]
fn the_scale_is_a_ratio_of_integers() {
    let noise = |max_value, micro| LaplaceNoise::new(max_value, MicroEpsilon::new(micro)).unwrap();
    assert_eq!(noise(1, 1_000_000).scale(), (2_000_000, 1_000_000));
    assert_eq!(
        noise(u32::MAX.into(), 1).scale(),
        (2 * u128::from(u32::MAX) * 1_000_000, 1)
    );
    // There is no result without noise.
    assert!(LaplaceNoise::new(1, MicroEpsilon::ZERO).is_err());
    assert!(LaplaceNoise::new(0, micro(1.0)).is_err());
    // The largest noise is far below what a field element holds, and can be centred.
    let mut rng = StdRng::seed_from_u64(4);
    let mut share = AggregateSum::zero(50);
    let largest = noise(u32::MAX.into(), 1);
    largest.add_to(&mut share, &mut rng).unwrap();
    let zero = AggregateSum::zero(50);
    let source = NoiseSource::Leader;
    let samples = Collector
        .combine(&share, &zero, 0, &largest, source)
        .buckets;
    let largest = samples
        .iter()
        .map(|sample| sample.unsigned_abs())
        .max()
        .unwrap();
    assert!(largest > 1 << 50 && largest < 1 << 62);
}

/// Noise that makes a sum negative comes out negative.
#[test]
fn results_can_be_negative() {
    let setup = TaskSetup::new(&terms(400, 1));
    let mut batch = setup.in_memory(0.01);
    let nulls: Vec<_> = (0..20).map(|_| setup.report(&[0; 400], 0.01)).collect();
    add(&mut batch, &nulls);
    let mut rng = StdRng::seed_from_u64(8);
    let result = batch
        .query(micro(0.01), NoiseSource::Both, &mut rng)
        .unwrap();
    let below = result.buckets.iter().filter(|bucket| **bucket < 0).count();
    // Half of 400, within six standard deviations.
    assert!((140..=260).contains(&below), "{below}");
    assert!(result.buckets.iter().all(|bucket| bucket.abs() < 20_000));
    assert!((result.standard_deviation - 400.0).abs() < 1.0);
}
