//! Dividing a value into whole numbers, fairly.

/// Divides `value` into whole parts proportional to `credit`. Rounding is random, so that every
/// part has the right mean and all parts sum to `value` (the draft's section Last-N-Touch
/// Attribution, fairly allocate credit).
///
/// Rounding proceeds along the list in pairs: of two parts that are not whole, one is rounded and
/// the other absorbs the difference. `draw` returns random numbers in [0, 1], one for each pair.
/// Shares of credit must be positive and have a finite sum.
pub fn allocate_credit(credit: &[f64], value: u32, mut draw: impl FnMut() -> f64) -> Vec<u32> {
    let sum: f64 = credit.iter().sum();
    let value = f64::from(value);
    let mut parts: Vec<f64> = credit
        .iter()
        .map(|&share| match value * share {
            product if product.is_finite() => product / sum,
            // The draft's order of steps overflows here, but the result need not.
            _ => value * (share / sum),
        })
        .collect();
    // The only part so far that may not be whole.
    let mut open = 0;
    for mut other in 1..parts.len() {
        let fraction = |part: f64| part - part.floor();
        let (of_open, of_other) = (fraction(parts[open]), fraction(parts[other]));
        if of_open == 0.0 && of_other == 0.0 {
            continue;
        }
        // The change that makes each of them whole. Both are rounded up, or both down.
        let (to_open, to_other) = if of_open + of_other > 1.0 {
            (1.0 - of_open, 1.0 - of_other)
        } else {
            (-of_open, -of_other)
        };
        let round_open = to_other / (to_open + to_other);
        let change = if draw() < round_open {
            std::mem::swap(&mut open, &mut other);
            to_open
        } else {
            to_other
        };
        parts[other] += change;
        parts[open] -= change;
    }
    // Adding doubles may have left a small fraction.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part lies between 0 and value, and the cast saturates"
    )]
    parts.into_iter().map(|part| part.round() as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn whole_parts_need_no_draw() {
        let parts = allocate_credit(&[0.5, 0.25, 0.25], 8, || unreachable!());
        assert_eq!(parts, [4, 2, 2]);
        let all = allocate_credit(&[0.3], 7, || unreachable!());
        assert_eq!(all, [7]);
    }

    #[test]
    fn huge_shares_do_not_overflow() {
        let parts = allocate_credit(&[1e307, 1e307], 1000, || unreachable!());
        assert_eq!(parts, [500, 500]);
    }

    #[test]
    fn a_draw_decides_which_part_is_rounded_up() {
        let parts = |draw| allocate_credit(&[1.0, 1.0], 3, move || draw);
        assert_eq!(parts(0.4), [1, 2]);
        assert_eq!(parts(0.6), [2, 1]);
    }

    #[test]
    fn the_mean_is_proportional() {
        let (mut sums, rounds) = ([0_u32; 3], 10_000_u32);
        for round in 0..rounds {
            // Two draws from a low-discrepancy sequence.
            let mut draws = [0.618_033_988_7, 0.754_877_666_2]
                .map(|step: f64| (f64::from(round) * step).fract())
                .into_iter();
            let parts = allocate_credit(&[0.5, 0.3, 0.2], 1, || draws.next().unwrap());
            for (sum, part) in sums.iter_mut().zip(parts) {
                *sum += part;
            }
        }
        for (sum, share) in sums.into_iter().zip([0.5, 0.3, 0.2]) {
            let mean = f64::from(sum) / f64::from(rounds);
            assert!((mean - share).abs() < 0.01, "{mean} is not {share}");
        }
    }

    proptest! {
        #[test]
        fn parts_sum_to_the_value_and_are_off_by_less_than_one(
            credit in prop::collection::vec(1e-3..1e3_f64, 1..12),
            value in 1..=u32::MAX,
            draws in prop::collection::vec(0.0..1.0_f64, 12),
        ) {
            let mut draws = draws.into_iter();
            let parts = allocate_credit(&credit, value, || draws.next().unwrap());
            let total: u64 = parts.iter().map(|&part| u64::from(part)).sum();
            prop_assert_eq!(total, u64::from(value));
            let sum: f64 = credit.iter().sum();
            for (part, share) in parts.into_iter().zip(credit) {
                prop_assert!((f64::from(part) - f64::from(value) * share / sum).abs() < 1.001);
            }
        }
    }
}
