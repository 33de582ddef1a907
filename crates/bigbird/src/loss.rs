//! Privacy losses: pure functions that mirror the paper's cases (appendix, sensitivities of reports
//! per epoch, and per epoch and site).

use std::num::NonZeroU64;

use crate::policy::{Arithmetic, GlobalCharging, Policy, SiteCharging};
use crate::{Epsilon, MicroEpsilon};

/// The noise that the aggregation adds to a sum of reports: Laplace of scale λ = sensitivity / ε.
///
/// A histogram of conversions worth at most V has λ = 2V / ε: moving all value from one bucket to
/// another changes it by 2V.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    epsilon: Epsilon,
    sensitivity: NonZeroU64,
}

impl Noise {
    /// Noise that hides a change of `sensitivity` at a privacy loss of `epsilon`.
    pub const fn new(epsilon: Epsilon, sensitivity: NonZeroU64) -> Self {
        Self {
            epsilon,
            sensitivity,
        }
    }

    /// The loss when a report changes by the whole sensitivity.
    pub const fn epsilon(self) -> Epsilon {
        self.epsilon
    }

    /// The change that costs that loss.
    pub const fn sensitivity(self) -> NonZeroU64 {
        self.sensitivity
    }

    /// The privacy loss of a change by `sensitivity` under this noise: sensitivity / λ, rounded up.
    /// A positive change costs at least 1 µε, however small the epsilon is.
    #[inline]
    pub fn loss(self, sensitivity: u64, arithmetic: Arithmetic) -> MicroEpsilon {
        if sensitivity == 0 {
            return MicroEpsilon::ZERO;
        }
        let micro = match arithmetic {
            Arithmetic::Exact => self.exact(sensitivity),
            Arithmetic::Double => self.double(sensitivity),
        };
        MicroEpsilon::new(micro.max(1))
    }

    fn exact(self, sensitivity: u64) -> u64 {
        let (epsilon, scale) = (self.epsilon.micro().get(), self.sensitivity.get());
        // The common case: the change is exactly the one that the noise is made for.
        if sensitivity == scale {
            return epsilon;
        }
        match epsilon.checked_mul(sensitivity) {
            Some(product) => product.div_ceil(scale),
            None => {
                let product = u128::from(epsilon) * u128::from(sensitivity);
                u64::try_from(product.div_ceil(u128::from(scale))).unwrap_or(u64::MAX)
            }
        }
    }

    /// The draft's steps, in the draft's order (section Privacy Budget Store, deduct privacy and
    /// safety budgets).
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the draft computes in doubles, and a cast from a double saturates"
    )]
    fn double(self, sensitivity: u64) -> u64 {
        let noise_scale = self.sensitivity.get() as f64 / self.epsilon.value();
        let deduction = sensitivity as f64 / noise_scale;
        (deduction * 1_000_000.0).ceil() as u64
    }
}

/// The losses of one epoch by one report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EpochLoss {
    /// The amount that the querier budget pays.
    pub(crate) querier: MicroEpsilon,
    /// The amount that the global budget, the conversion-site quota and the user-action budget pay.
    pub(crate) shared: MicroEpsilon,
}

/// The loss of an epoch with relevant events (the paper's `EpochBudget`).
///
/// `worst_case` is the most that those events can change a report. `individual` is how much they
/// change this report. It is known only if the window has one epoch: over several epochs it would
/// depend on the other epochs.
pub(crate) fn epoch_loss(
    policy: &Policy,
    noise: Noise,
    worst_case: u64,
    individual: Option<u64>,
) -> EpochLoss {
    let worst_case = noise.loss(worst_case, policy.arithmetic());
    let querier = match individual {
        Some(sensitivity) => noise.loss(sensitivity, policy.arithmetic()),
        None => worst_case,
    };
    let shared = match policy.global_charging() {
        GlobalCharging::Individual => querier,
        GlobalCharging::WorstCase => worst_case,
    };
    EpochLoss { querier, shared }
}

/// The loss of one of `sites` relevant impression sites (the paper's `EpochImpSiteBudget`).
/// `sensitivity` is the most that the events of that site can change a report.
///
/// The losses of all sites sum to at least what the global budget pays, whatever sensitivities the
/// query reports. The resilience theorem depends on this (lemma on allocation consistency).
pub(crate) fn site_loss(
    policy: &Policy,
    noise: Noise,
    epoch: EpochLoss,
    single_epoch: bool,
    sites: usize,
    sensitivity: impl FnOnce() -> u64,
) -> MicroEpsilon {
    let part = epoch.shared.part_of(sites);
    match policy.site_charging() {
        SiteCharging::Uniform => part,
        SiteCharging::Full if single_epoch => epoch.shared,
        SiteCharging::Paper if single_epoch && sites == 1 => epoch.shared,
        SiteCharging::Full | SiteCharging::Paper => {
            noise.loss(sensitivity(), policy.arithmetic()).max(part)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    fn noise(epsilon: f64, max_value: u64) -> Noise {
        let sensitivity = NonZeroU64::new(2 * max_value).unwrap();
        Noise::new(Epsilon::new(epsilon).unwrap(), sensitivity)
    }

    #[test]
    fn exact_losses_are_rounded_up_once() {
        let loss = |epsilon, max, s| noise(epsilon, max).loss(s, Arithmetic::Exact).get();
        assert_eq!(loss(0.2, 150, 150), 100_000, "the paper's example");
        assert_eq!(loss(1.0, 3, 2), 333_334);
        assert_eq!(loss(1e-9, 1, 1), 1);
        assert_eq!(loss(1.0, 1, 0), 0);
        assert_eq!(
            loss(4294.0, u64::from(u32::MAX), 2 * u64::from(u32::MAX)),
            4_294_000_000
        );
        assert_eq!(loss(4294.0, 1, u64::MAX), u64::MAX);
    }

    #[test]
    fn doubles_follow_the_draft_and_still_charge() {
        let loss = |epsilon, max, s| noise(epsilon, max).loss(s, Arithmetic::Double).get();
        assert_eq!(loss(0.2, 150, 150), 100_000);
        // Exact arithmetic gives the same result for the first, and 1 µε less for the second.
        assert_eq!(loss(0.3, 1, 2), 300_000);
        assert_eq!(loss(1.1, 5, 2), 220_001);
        assert_eq!(noise(1.1, 5).loss(2, Arithmetic::Exact).get(), 220_000);
        assert_eq!(loss(1e-310, 1, 2), 1, "notes, row 9");
    }

    /// The table of design section "Losses", row by row.
    #[test]
    fn the_three_cases() {
        let noise = noise(1.0, 10);
        let (value, norm) = (6_u64, 4_u64);
        let big_bird = Profile::BigBird.policy();
        let draft = Profile::W3cDraft.policy();
        let epoch = |policy: &Policy, individual| epoch_loss(policy, noise, 2 * value, individual);
        let site = |policy: &Policy, individual: Option<u64>, sites| {
            let loss = epoch(policy, individual);
            site_loss(policy, noise, loss, individual.is_some(), sites, || {
                2 * value
            })
            .get()
        };
        let micro = MicroEpsilon::new;
        assert_eq!(epoch(&big_bird, Some(norm)).querier, micro(200_000));
        assert_eq!(epoch(&big_bird, Some(norm)).shared, micro(200_000));
        assert_eq!(epoch(&big_bird, None).shared, micro(600_000));
        assert_eq!(epoch(&draft, Some(norm)).querier, micro(200_000));
        assert_eq!(epoch(&draft, Some(norm)).shared, micro(600_000));
        assert_eq!(site(&big_bird, Some(norm), 1), 200_000);
        assert_eq!(site(&big_bird, Some(norm), 2), 200_000);
        // A request that costs its sender nothing takes nothing from any publisher.
        assert_eq!(site(&big_bird, Some(0), 2), 0);
        assert_eq!(site(&big_bird, None, 1), 600_000);
        assert_eq!(site(&draft, Some(norm), 1), 600_000);
        let with = |rule| big_bird.to_builder().site_charging(rule).build().unwrap();
        assert_eq!(site(&with(SiteCharging::Uniform), None, 7), 85_715);
        let paper = with(SiteCharging::Paper);
        assert_eq!(site(&paper, Some(norm), 1), 200_000);
        assert_eq!(site(&paper, Some(norm), 2), 600_000);
        assert_eq!(site(&paper, Some(0), 2), 600_000);
        assert_eq!(site(&paper, None, 1), 600_000);
    }
}
