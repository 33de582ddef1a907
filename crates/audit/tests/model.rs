//! The failure modes of per-querier guarantees, executed on the engine, give the losses that were
//! derived by hand (docs/audit.md).
#![allow(missing_docs, clippy::unwrap_used)]

use bigbird_audit::model::{
    HELPERS, adaptive, error_probability, helper_loss, individual, individual_as_printed,
    many_records, shared_limit, siloed_loss,
};

#[track_caller]
fn close(a: f64, b: f64, tolerance: f64) {
    assert!((a - b).abs() <= tolerance, "{a} is not {b}");
}

#[test]
fn adaptive_data_adds_a_fixed_loss_per_helper() {
    let expected = [
        (0.5, 0.108_457_824_440),
        (1.0, 0.367_747_017_663),
        (2.0, 1.049_660_297_963),
    ];
    for (epsilon, each) in expected {
        close(
            helper_loss(error_probability(epsilon), epsilon),
            each,
            1e-12,
        );
        for n in HELPERS {
            let row = adaptive(epsilon, n, 0, 1);
            close(row.exact, epsilon + f64::from(n) * each, 1e-9);
            close(row.exact, row.paper, 1e-9);
            let collusion = f64::from(n + 1) * epsilon;
            assert!(row.collusion <= collusion + 1e-9, "{row:?}");
            close(row.collusion, collusion, 1e-9);
            assert!(row.exact < collusion);
        }
    }
}

#[test]
fn sampling_the_engine_agrees() {
    for epsilon in [0.5, 1.0, 2.0] {
        for n in 1..=4 {
            let row = adaptive(epsilon, n, 100_000, 1);
            let interval = row.interval.expect("the event is likely enough");
            assert!(
                interval.0 <= row.exact && row.exact <= interval.1,
                "{row:?}"
            );
        }
    }
    // Far out, the event is too rare.
    assert_eq!(adaptive(2.0, 64, 100, 1).interval, None);
}

#[test]
fn a_shared_limit_with_plain_filters_leaks() {
    for n in HELPERS {
        let row = shared_limit(1.0, f64::from(n) + 0.9, 0.1, n).unwrap();
        let p = error_probability(row.epsilon1);
        let binomial = |range: &dyn Fn(u32) -> bool| -> f64 {
            let mut choose = 1.0;
            let mut sum = 0.0;
            for k in 0..=n {
                if k > 0 {
                    choose *= f64::from(n - k + 1) / f64::from(k);
                }
                if range(k) {
                    sum += choose * p.powf(f64::from(k)) * (1.0 - p).powf(f64::from(n - k));
                }
            }
            sum
        };
        let (below, above) = (binomial(&|k| 2 * k < n), binomial(&|k| 2 * k > n));
        let (at_most, at_least) = (binomial(&|k| 2 * k <= n), binomial(&|k| 2 * k >= n));
        close(row.refused, 0.9 + (below / above).ln(), 1e-9);
        close(row.answered, 1.0 + (at_most / at_least).ln(), 1e-9);
        assert!(row.exact > row.epsilon, "{row:?}");
        assert!(row.exact <= row.ceiling + 1e-9, "{row:?}");
        assert!(row.exact >= row.bound - 1e-9, "{row:?}");
        let refused_bound = row.bound - 0.1;
        assert!(row.exact >= refused_bound, "{row:?}");
    }
    let exact = |n: u32| shared_limit(1.0, f64::from(n) + 0.9, 0.1, n).unwrap().exact;
    close(exact(2), 2.418_454, 5e-7);
    close(exact(64), 8.938_403, 5e-7);
}

#[test]
fn with_a_fixed_limit_the_loss_falls_again_and_the_printed_bound_is_too_high() {
    let row = |n| shared_limit(1.0, 8.0, 0.1, n).unwrap();
    let exact: Vec<f64> = (8..=64).map(|n| row(n).exact).collect();
    assert!(exact.iter().all(|loss| *loss > 1.0 && *loss <= 8.0));
    assert!(exact[0] > exact[56]);
    for n in 8..=64 {
        let row = row(n);
        assert!(row.exact >= row.bound - 1e-9, "{row:?}");
        assert_eq!(
            row.paper > row.exact,
            n >= 32 || row.paper > row.exact,
            "{row:?}"
        );
    }
    assert!((32..=64).all(|n| row(n).paper > row(n).exact));
    assert!(row(16).paper < row(16).exact);
    // The limit must be above ε + ε₀, and helpers must be able to pay.
    assert_eq!(shared_limit(1.0, 1.1, 0.1, 4), None);
    assert_eq!(shared_limit(1.0, 8.0, 0.1, 4), None);
}

#[test]
fn a_shared_limit_with_individual_filters_leaks_after_correction() {
    let exact = |n: u32| individual(1.0, f64::from(n), n).unwrap().exact;
    close(exact(4), 2.164_222, 5e-7);
    close(exact(64), 24.244_922, 5e-7);
    for n in 2..=64 {
        let row = individual(1.0, f64::from(n), n).unwrap();
        let each = helper_loss(error_probability(row.epsilon1), 1.0);
        close(row.exact, 1.0 + f64::from(n) * each, 1e-9);
        assert!(
            row.exact > 1.0 && row.exact <= row.ceiling + 1e-9,
            "{row:?}"
        );
    }
    // As printed, x₀ runs dry before the querier asks, and no other record is ever short.
    close(individual_as_printed(1.0, 4.0, 4), 0.0, 1e-12);
    assert_eq!(individual(1.0, 1.0, 4), None);
}

#[test]
fn with_a_fixed_limit_the_individual_loss_has_a_limit() {
    let limit = 1.0 + 7.0 * 0.5_f64.tanh();
    let loss = |n| individual(1.0, 8.0, n).unwrap().exact;
    assert!(loss(8) < loss(64) && loss(64) < limit);
    close(loss(64), limit, 0.1);
    // With many records for each helper, the loss tends to the limit itself.
    assert!(many_records(1.0, 8.0, 64) < 8.0);
    close(many_records(1.0, 8.0, 100_000), 8.0, 0.01);
}

#[test]
fn siloed_queriers_lose_what_was_promised() {
    for epsilon in [0.5, 1.0, 2.0] {
        for n in [1, 8, 64] {
            close(siloed_loss(epsilon, n), epsilon, 1e-12);
        }
    }
}
