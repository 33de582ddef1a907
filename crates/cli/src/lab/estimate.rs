//! Estimates of how long runs take, before any of them begins.

use bigbird_lab::evaluation::Experiment;
use bigbird_lab::workload::Workload;

/// The seconds of one core that a run without an attack takes for each event. Measured by
/// `cargo bench -p bigbird-lab --bench replay`.
const PLAIN: f64 = 0.2e-6;

/// The same under an attack, which a domain cap restrains.
const ATTACKED: f64 = 0.7e-6;

/// The same under an attack without a domain cap: it visits many more sites.
const UNRESTRAINED: f64 = 3.5e-6;

/// The seconds of one core that some experiments take on a workload. An attack is compared with the
/// run without it, which is made once for each policy.
pub(crate) fn runs<'a>(
    workload: &Workload,
    experiments: impl IntoIterator<Item = &'a Experiment>,
) -> f64 {
    let mut plain = Vec::new();
    let mut of_event = 0.0;
    for experiment in experiments {
        if !plain.contains(&&experiment.policy) {
            plain.push(&experiment.policy);
            of_event += PLAIN;
        }
        of_event += match (experiment.attack.is_some(), experiment.domain_cap()) {
            (false, _) => 0.0,
            (true, Some(_)) => ATTACKED,
            (true, None) => UNRESTRAINED,
        };
    }
    of_event * workload.len() as f64
}
