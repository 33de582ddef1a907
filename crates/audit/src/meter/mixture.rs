//! The marginal meter: the loss of a view from which something is hidden.
//!
//! What is hidden (others' answers, the draws by which credit was rounded) is integrated out. The
//! view of a world is then a mixture of products of Laplace densities. Along one coordinate,
//! between two neighbouring breakpoints, each density is a·e^(y/λ) + b·e^(−y/λ), so the ratio of
//! two is a Möbius function of e^(2y/λ) and therefore monotone. So the supremum of the ratio over
//! all views is attained where every coordinate is a breakpoint, or beyond the outermost ones.

/// One possible outcome of what is hidden, in one world.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The natural logarithm of its probability.
    pub log_weight: f64,
    /// The part of the view that has no noise. Views with different symbols are different events.
    pub symbol: Vec<u64>,
    /// The means of the noised part of the view.
    pub means: Vec<f64>,
}

/// The largest log-likelihood ratio, in natural units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogRatio {
    /// The ratio: |ln p₁/p₀| at the view where it is largest.
    pub value: f64,
    /// False if there were too many views to look at, so that the value is only a lower bound.
    pub exact: bool,
}

/// The number of views beyond which only a lower bound is computed.
const MOST_VIEWS: usize = 300_000;

/// The largest |ln p₁/p₀| over all views. `scales` has the scale of the Laplace noise of each
/// coordinate.
pub fn largest_log_ratio(one: &[Outcome], zero: &[Outcome], scales: &[f64]) -> LogRatio {
    let mut largest = LogRatio {
        value: 0.0,
        exact: true,
    };
    let mut symbols: Vec<&[u64]> = one
        .iter()
        .chain(zero)
        .map(|it| it.symbol.as_slice())
        .collect();
    symbols.sort_unstable();
    symbols.dedup();
    for symbol in symbols {
        let with = |world: &[Outcome]| -> Vec<Outcome> {
            let possible = |it: &&Outcome| it.log_weight > f64::NEG_INFINITY;
            let same = world.iter().filter(|it| it.symbol == symbol);
            same.filter(possible).cloned().collect()
        };
        let (one, zero) = (with(one), with(zero));
        if one.is_empty() != zero.is_empty() {
            return LogRatio {
                value: f64::INFINITY,
                exact: true,
            };
        }
        let found = Views::new(&one, &zero, scales).largest();
        largest.value = largest.value.max(found.value);
        largest.exact &= found.exact;
    }
    largest
}

/// A coordinate of a view.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Coordinate {
    /// Below every mean.
    Low,
    At(f64),
    /// Above every mean.
    High,
}

struct Views<'w> {
    one: &'w [Outcome],
    zero: &'w [Outcome],
    scales: &'w [f64],
    /// The places to look at, for each coordinate whose mean is not always the same.
    places: Vec<(usize, Vec<Coordinate>)>,
}

impl<'w> Views<'w> {
    fn new(one: &'w [Outcome], zero: &'w [Outcome], scales: &'w [f64]) -> Self {
        let mut places = Vec::new();
        for at in 0..scales.len() {
            let means = one.iter().chain(zero).map(|it| it.means[at]);
            let mut means: Vec<f64> = means.collect();
            means.sort_unstable_by(f64::total_cmp);
            means.dedup();
            if means.len() > 1 {
                let inside = means.into_iter().map(Coordinate::At);
                let all = [Coordinate::Low].into_iter().chain(inside);
                places.push((at, all.chain([Coordinate::High]).collect()));
            }
        }
        Self {
            one,
            zero,
            scales,
            places,
        }
    }

    fn largest(&self) -> LogRatio {
        let sizes = self.places.iter().map(|(_, places)| places.len());
        let views = sizes.fold(1_usize, usize::saturating_mul);
        let mut view: Vec<usize> = vec![0; self.places.len()];
        if views > MOST_VIEWS {
            return LogRatio {
                value: self.ascend(view),
                exact: false,
            };
        }
        let mut largest = 0.0_f64;
        loop {
            largest = largest.max(self.log_ratio(&view).abs());
            // The next view, as an odometer.
            let mut at = 0;
            while at < view.len() {
                view[at] += 1;
                if view[at] < self.places[at].1.len() {
                    break;
                }
                view[at] = 0;
                at += 1;
            }
            if at == view.len() {
                return LogRatio {
                    value: largest,
                    exact: true,
                };
            }
        }
    }

    /// Improves one coordinate after the other until none can be improved.
    fn ascend(&self, mut view: Vec<usize>) -> f64 {
        let mut best = self.log_ratio(&view).abs();
        loop {
            let before = best;
            for at in 0..view.len() {
                for place in 0..self.places[at].1.len() {
                    let old = std::mem::replace(&mut view[at], place);
                    let value = self.log_ratio(&view).abs();
                    if value > best {
                        best = value;
                    } else {
                        view[at] = old;
                    }
                }
            }
            if best <= before {
                return best;
            }
        }
    }

    fn log_ratio(&self, view: &[usize]) -> f64 {
        self.log_density(self.one, view) - self.log_density(self.zero, view)
    }

    /// The logarithm of the density at a view, up to a constant that both worlds share.
    fn log_density(&self, world: &[Outcome], view: &[usize]) -> f64 {
        let terms = world.iter().map(|outcome| {
            let coordinates = self.places.iter().zip(view);
            let exponents = coordinates.map(|((at, places), &place)| {
                let (mean, scale) = (outcome.means[*at], self.scales[*at]);
                match places[place] {
                    Coordinate::Low => -mean / scale,
                    Coordinate::At(y) => -(y - mean).abs() / scale,
                    Coordinate::High => mean / scale,
                }
            });
            outcome.log_weight + exponents.sum::<f64>()
        });
        log_sum(terms)
    }
}

/// ln Σ eˣ, without overflow.
pub(crate) fn log_sum(terms: impl Iterator<Item = f64>) -> f64 {
    let terms: Vec<f64> = terms.collect();
    let largest = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    let sum: f64 = terms.iter().map(|term| (term - largest).exp()).sum();
    largest + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(weight: f64, means: &[f64]) -> Outcome {
        Outcome {
            log_weight: weight.ln(),
            symbol: Vec::new(),
            means: means.to_vec(),
        }
    }

    #[test]
    fn one_outcome_gives_the_distance_over_the_scale() {
        let (one, zero) = ([outcome(1.0, &[3.0, 1.0])], [outcome(1.0, &[1.0, 2.0])]);
        let ratio = largest_log_ratio(&one, &zero, &[2.0, 4.0]);
        assert!((ratio.value - 1.25).abs() < 1e-12 && ratio.exact);
    }

    #[test]
    fn a_symbol_of_one_world_is_infinite() {
        let (mut one, zero) = ([outcome(1.0, &[])], [outcome(1.0, &[])]);
        one[0].symbol = vec![1];
        assert_eq!(largest_log_ratio(&one, &zero, &[]).value, f64::INFINITY);
    }

    /// No view of a fine grid that reaches beyond all means has a larger ratio.
    #[test]
    fn the_supremum_is_at_breakpoints() {
        let one = [outcome(0.3, &[0.0, 2.0]), outcome(0.7, &[3.0, 1.0])];
        let zero = [outcome(0.6, &[1.0, 0.0]), outcome(0.4, &[0.0, 1.0])];
        let scales = [0.8, 1.7];
        let ratio = largest_log_ratio(&one, &zero, &scales).value;
        let density = |world: &[Outcome], y: [f64; 2]| -> f64 {
            let terms = world.iter().map(|it| {
                let far = |at: usize| (y[at] - it.means[at]).abs() / scales[at];
                it.log_weight - far(0) - far(1)
            });
            log_sum(terms)
        };
        let mut largest = 0.0_f64;
        for a in -160..240 {
            for b in -160..240 {
                let y = [f64::from(a) / 20.0, f64::from(b) / 20.0];
                largest = largest.max((density(&one, y) - density(&zero, y)).abs());
            }
        }
        assert!(
            largest <= ratio + 1e-12 && largest > ratio - 0.01,
            "{largest} and {ratio}"
        );
    }
}
