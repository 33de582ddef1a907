//! Compares the laboratory with the results of the paper's artifact on a small workload, if they
//! are available. Without attack, both agree on every batch. Under attack, they agree on the
//! median.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use bigbird::{FilterKind, Policy, Profile};
use bigbird_lab::attack::{Attack, Strength, attackers};
use bigbird_lab::evaluation::metrics::Batch;
use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
use bigbird_lab::workload::criteo::{PreparedOptions, read_prepared};
use serde_json::Value;

fn policy(run: &Value) -> Policy {
    let profile: Profile = run["profile"].as_str().unwrap().parse().unwrap();
    if profile != Profile::BigBird {
        return profile.policy();
    }
    let cap = u32::try_from(run["cap"].as_u64().unwrap()).unwrap();
    let policy = profile.policy().to_builder().domain_cap(cap);
    match run["impressionSite"].as_f64() {
        Some(quota) => policy.impression_site_quota(quota),
        None => policy.unlimited(FilterKind::ImpressionSiteQuota),
    }
    .build()
    .unwrap()
}

/// A batch in the artifact's results.
fn of_artifact(batch: &Value) -> (f64, u64, Vec<u64>, Vec<u64>, f64, Vec<u64>) {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts"
    )]
    let counts = |name: &str| {
        let counts = batch[name].as_array().unwrap().iter();
        counts.map(|count| count.as_f64().unwrap() as u64).collect()
    };
    let causes = [
        "domainCap",
        "querier",
        "global",
        "impressionSite",
        "conversionSite",
    ];
    (
        batch["epsilon"].as_f64().unwrap(),
        batch["size"].as_u64().unwrap(),
        counts("full"),
        counts("kept"),
        batch["rmsre"].as_f64().unwrap(),
        causes
            .map(|cause| batch["blocked"][cause].as_u64().unwrap())
            .to_vec(),
    )
}

fn ours(batch: &Batch) -> (f64, u64, Vec<u64>, Vec<u64>, f64, Vec<u64>) {
    (
        batch.epsilon,
        batch.size,
        batch.full.clone(),
        batch.kept.clone(),
        batch.rmsre,
        batch.blocked.to_vec(),
    )
}

#[test]
fn the_laboratory_agrees_with_the_papers_artifact() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/criteo-sample");
    let Ok(results) = std::fs::read_to_string(folder.join("artifact-results.json")) else {
        eprintln!("skipped: no {}", folder.display());
        return;
    };
    let results: Value = serde_json::from_str(&results).unwrap();
    let workload = read_prepared(&folder, &PreparedOptions::default()).unwrap();
    let options = QuerierOptions {
        min_conversions_a_day: 50,
        ..QuerierOptions::default()
    };
    let laboratory = Laboratory::new(&workload, options, 2).unwrap();
    for run in results["runs"].as_array().unwrap() {
        let policy = policy(run);
        let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
        let attacker = attackers::by_name(run["attacker"].as_str().unwrap());
        let attack = attacker.map(|attacker| Attack {
            attacker,
            strength: Strength::of_paper(cap),
            seed: 1,
        });
        let outcome = laboratory.run(&policy, attack).unwrap();
        let (median, expected) = (
            outcome.error(50.0).unwrap(),
            run["median"].as_f64().unwrap(),
        );
        let apart = (median / expected - 1.0).abs();
        if let Some(resilience) = &outcome.resilience {
            assert!(resilience.hold(), "{resilience:?}: {policy:?} {attack:?}");
            assert!(
                apart < 0.05,
                "{median}, not {expected}: {policy:?} {attack:?}"
            );
            continue;
        }
        assert!(apart < 1e-12, "{median}, not {expected}: {policy:?}");
        let mut of_site: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for batch in run["batches"].as_array().unwrap() {
            let site = batch["conversionSite"].as_u64().unwrap();
            of_site.entry(site).or_default().push(of_artifact(batch));
        }
        for (site, theirs) in of_site {
            let own = outcome.batches.iter().filter(|batch| {
                let name = &workload.conversion_site_names[batch.conversion_site as usize];
                *name == site.to_string()
            });
            let own: Vec<_> = own.map(ours).collect();
            assert_eq!(own.len(), theirs.len(), "batches of {site}");
            for (own, theirs) in own.iter().zip(&theirs) {
                assert!((own.0 - theirs.0).abs() < 1e-12 && (own.4 - theirs.4).abs() < 1e-12);
                assert_eq!(
                    (own.1, &own.2, &own.3, &own.5),
                    (theirs.1, &theirs.2, &theirs.3, &theirs.5)
                );
            }
        }
    }
}
