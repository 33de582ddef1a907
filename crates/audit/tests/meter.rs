//! The meter is the largest log-ratio over transcripts, and no estimate contradicts it.
#![allow(missing_docs, clippy::unwrap_used)]

use bigbird::Profile;
use bigbird_audit::manager::{DeviceManager, LiteralManager, Observation};
use bigbird_audit::meter::{Loss, Play, compare, mixture_loss, play};
use bigbird_audit::model::log_ratio_interval;
use bigbird_audit::script::{Script, Step, Tape};
use bigbird_audit::search::{Ingredients, random_scripts};
use bigbird_reference::Flaw;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

const INGREDIENTS: Ingredients = Ingredients {
    profile: Profile::BigBird,
    clock_steps_back: false,
    user_agent: false,
};

/// The worlds of a script: x, world 0 and world 1.
fn worlds(script: &Script) -> Option<(i64, Play, Play)> {
    let one = play(&DeviceManager, script, Tape::new(script.tape), None);
    let at = script.x.checked_rem(one.saved.len())?;
    let x = one.saved[at];
    let zero = play(&DeviceManager, script, Tape::new(script.tape), Some(x));
    Some((x, zero, one))
}

/// The mean and the scale of every noised value of a play, in natural units.
fn values(play: &Play) -> Vec<(f64, f64)> {
    let mut values = Vec::new();
    for seen in play.records.iter().flat_map(|record| &record.seen) {
        if let Observation::Report(report) = seen {
            let scale = 2.0 * f64::from(report.max_value) / (report.epsilon as f64 / 1e6);
            values.extend(report.buckets.iter().map(|it| (f64::from(*it), scale)));
        }
    }
    values
}

/// For up to three requests, the meter is the largest log-ratio over a grid of transcripts that
/// reaches beyond both means.
#[test]
fn it_is_the_largest_ratio_over_transcripts() {
    let mut compared = 0;
    for script in random_scripts(INGREDIENTS, 3000, 7) {
        let Some((x, zero, one)) = worlds(&script) else {
            continue;
        };
        let (zeros, ones) = (values(&zero), values(&one));
        let verdict = compare(&script, x, &zero, &one);
        // Coordinates are independent given the script, so that the largest sum is the sum of the
        // largest terms; a joint grid checks that for the first few.
        let differing: Vec<usize> = (0..zeros.len())
            .filter(|&at| zeros[at] != ones[at])
            .collect();
        let reports = one.records.iter().flat_map(|record| &record.seen);
        let reports = reports.filter(|seen| matches!(seen, Observation::Report(_)));
        if differing.is_empty() || differing.len() > 3 || reports.count() > 3 {
            continue;
        }
        let grid: Vec<f64> = (-12..=20).map(|y| f64::from(y) / 2.0).collect();
        let mut largest = f64::NEG_INFINITY;
        let mut smallest = f64::INFINITY;
        let mut place = vec![0; differing.len()];
        'transcripts: loop {
            let ratio: f64 = place
                .iter()
                .zip(&differing)
                .map(|(&y, &at)| {
                    let (y, (zero, scale), (one, _)) = (grid[y], zeros[at], ones[at]);
                    ((y - zero).abs() - (y - one).abs()) / scale
                })
                .sum();
            largest = largest.max(ratio);
            smallest = smallest.min(ratio);
            for digit in &mut place {
                *digit += 1;
                if *digit < grid.len() {
                    continue 'transcripts;
                }
                *digit = 0;
            }
            break;
        }
        let loss = verdict.loss().micro() / 1e6;
        assert!(
            (largest - loss).abs() < 1e-9 * loss.max(1e-6),
            "{largest} is not {loss}"
        );
        assert!(
            (smallest + loss).abs() < 1e-9 * loss.max(1e-6),
            "{smallest} is not -{loss}"
        );
        compared += 1;
    }
    assert!(compared > 100, "only {compared} scripts were compared");
}

/// Nothing that is likely, and that was sampled from the engine's answers with noise, has a
/// log-ratio above the meter.
#[test]
fn no_sampled_event_contradicts_it() {
    const SAMPLES: u32 = 20_000;
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let mut noise = |scale: f64| {
        let uniform = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64 - 0.5;
        (-(1.0 - 2.0 * uniform.abs()).max(1e-300).ln() * scale).copysign(uniform)
    };
    let mut tried = 0;
    for script in random_scripts(INGREDIENTS, 600, 11) {
        let Some((x, zero, one)) = worlds(&script) else {
            continue;
        };
        let loss = compare(&script, x, &zero, &one).loss();
        let (zeros, ones) = (values(&zero), values(&one));
        if loss == Loss::ZERO || loss.exceeds(4_000_000) || tried >= 12 {
            continue;
        }
        tried += 1;
        // Events: every value is on world 1's side of the middle, or every value is on world 0's.
        let mut counts = [[0_u32; 2]; 2];
        for (world, means) in [&zeros, &ones].into_iter().enumerate() {
            for _ in 0..SAMPLES {
                let mut sides = [true; 2];
                for (at, (mean, scale)) in means.iter().enumerate() {
                    let middle = f64::midpoint(zeros[at].0, ones[at].0);
                    let towards_one = (ones[at].0 - zeros[at].0).signum();
                    if zeros[at].0 == ones[at].0 {
                        continue;
                    }
                    let side = (mean + noise(*scale) - middle) * towards_one;
                    sides[0] &= side <= 0.0;
                    sides[1] &= side >= 0.0;
                }
                for (event, holds) in sides.into_iter().enumerate() {
                    counts[event][world] += u32::from(holds);
                }
            }
        }
        for [zero, one] in counts {
            for (a, b) in [(one, zero), (zero, one)] {
                if let Some(interval) = log_ratio_interval(a, b, SAMPLES) {
                    let loss = loss.micro() / 1e6;
                    assert!(interval.0 <= loss + 1e-9, "{interval:?} is above {loss}");
                }
            }
        }
    }
    assert!(tried >= 10, "only {tried} scripts were sampled");
}

#[test]
fn it_does_not_change_when_the_worlds_are_swapped() {
    for script in random_scripts(INGREDIENTS, 500, 3) {
        if let Some((x, zero, one)) = worlds(&script) {
            let there = compare(&script, x, &zero, &one);
            let back = compare(&script, x, &one, &zero);
            assert_eq!(there.losses, back.losses);
        }
    }
}

/// Without draws there is one tape, and the mixture is the joint loss.
#[test]
fn without_draws_the_mixture_is_the_joint_loss() {
    let mut compared = 0;
    for mut script in random_scripts(INGREDIENTS, 400, 9) {
        for call in script.steps.iter_mut().flat_map(Step::calls_mut) {
            use bigbird_audit::script::{Credit, ScriptCall};
            match call {
                ScriptCall::Measure(measure) => measure.terms.credit = Credit::Last,
                ScriptCall::Create(create) => create.measure.terms.credit = Credit::Last,
                _ => {}
            }
        }
        let Some((x, zero, one)) = worlds(&script) else {
            continue;
        };
        let loss = compare(&script, x, &zero, &one).loss().micro();
        let mixture = mixture_loss(&DeviceManager, &script).unwrap();
        assert_eq!(mixture.tapes, 1);
        if mixture.exact {
            assert!((mixture.micro - loss).abs() <= 1e-6 * loss.max(1.0));
            compared += 1;
        }
    }
    assert!(compared > 100, "only {compared} scripts were compared");
}

/// The draft's double draw: charged with one draw, released with another. The loss is
/// ln(¾ + ¼·e^(v/λ)), and nothing is paid.
#[test]
fn the_double_draw_leaks_what_was_derived() {
    let script: Script = serde_json::from_str(
        r#"{
            "setup": {"globalBudget": 1000000, "querierBudget": 1000000},
            "steps": [
                {"clock": 3600000},
                {"save": {"site": 0, "action": 1, "bucket": 0}},
                {"save": {"site": 0, "action": 2, "bucket": 5}},
                {"clock": 90000000},
                {"measure": {"site": 3, "action": 3, "epsilon": 6000000, "credit": "even",
                             "lookbackDays": 1, "buckets": 1}}
            ]
        }"#,
    )
    .unwrap();
    let flawed = LiteralManager {
        flaw: Some(Flaw::DrawnAgain),
    };
    let mixture = mixture_loss(&flawed, &script).unwrap();
    // λ = 2·1/6, so v/λ = 3.
    let expected = (0.75 + 0.25 * 3.0_f64.exp()).ln() * 1e6;
    assert!((mixture.micro - expected).abs() < 1e-3, "{mixture:?}");
    assert_eq!((mixture.granted, mixture.exact), (0, true));
    let sound = mixture_loss(&LiteralManager::default(), &script).unwrap();
    assert_eq!((sound.micro, sound.granted), (0.0, 0));
}
