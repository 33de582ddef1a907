//! Measures the cost of a run, in CPU-seconds if the system reports them:
//! `cargo bench -p bigbird-lab --bench replay`. The rows take turns, and the median is printed.
//! With `-- --instructions`, it counts the instructions of a run over fewer actions instead.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "counts of events")]

use std::time::Instant;

use bigbird::{Policy, Profile};
use bigbird_lab::attack::attackers::{Omniscient, Random};
use bigbird_lab::attack::{Attack, Attacker, Strength};
use bigbird_lab::evaluation::{Laboratory, QuerierOptions};
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_testing::{asked_for_instructions, asked_to_count, print_instructions};

const RANDOM: Random = Random { share: 0.35 };

fn main() {
    let begin = Instant::now();
    let counting = asked_to_count();
    let population = Population {
        preset: Preset::Published,
        scale: if counting.is_some() { 0.05 } else { 0.1 },
        seed: 1,
    };
    let workload = population.generate();
    let millions = workload.len() as f64 / 1e6;
    println!(
        "{:<52} {:>8.2} s",
        format!("generating {millions:.2} million actions"),
        begin.elapsed().as_secs_f64()
    );
    let no_quotas = Profile::GlobalOnly.policy();
    let rows: [(&str, Policy, Option<&dyn Attacker>, &str); 4] = [
        (
            "no attack",
            Profile::BigBird.policy(),
            None,
            "(at most 0.3 s)",
        ),
        (
            "random attacker, cap 2",
            Profile::BigBird.policy(),
            Some(&RANDOM),
            "(at most 1.0 s)",
        ),
        (
            "omniscient attacker, cap 2",
            Profile::BigBird.policy(),
            Some(&Omniscient),
            "",
        ),
        (
            "random attacker, no cap",
            no_quotas,
            Some(&RANDOM),
            "(at most 4 s)",
        ),
    ];
    if asked_for_instructions() {
        let names = rows.iter().map(|row| (row.0.to_owned(), 1, 2));
        println!("over {} actions", workload.len() / 2);
        return print_instructions(names);
    }
    let mut times = rows.each_ref().map(|_| Vec::new());
    for _ in 0..counting.as_ref().map_or(3, |(_, times)| *times) {
        for ((name, policy, attacker, _), times) in rows.iter().zip(&mut times) {
            if counting
                .as_ref()
                .is_some_and(|(counted, _)| counted != name)
            {
                continue;
            }
            let cap = policy.domain_cap().map(std::num::NonZeroU32::get);
            let strength = Strength {
                conversion_sites: 1,
                ..Strength::of_paper(cap)
            };
            // A laboratory keeps the run without attack, so its time is not measured here.
            let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 1).unwrap();
            if attacker.is_some() {
                laboratory.run(policy, None).unwrap();
            }
            let attack = attacker.map(|attacker| Attack {
                attacker,
                strength,
                seed: 1,
            });
            let begin = now();
            let outcome = laboratory.run(policy, attack).unwrap();
            assert!(!outcome.batches.is_empty());
            times.push((now() - begin) / millions);
        }
    }
    if counting.is_some() {
        return;
    }
    println!("\n{:<52} {:>10}", "one run over a million actions", "CPU");
    for ((name, _, _, limit), mut times) in rows.into_iter().zip(times) {
        times.sort_by(f64::total_cmp);
        println!("{name:<52} {:>8.2} s  {limit}", times[1]);
    }
    if let Some(peak) = peak_memory() {
        println!(
            "\n{:<52} {peak:>8.0} MB (at most 150 MB)",
            "peak memory of this process"
        );
    }
    grow();
}

/// Prints the time per million actions for workloads of several sizes. All times should be similar.
fn grow() {
    println!("\n{:<52} {:>10}", "random attacker, cap 2, by size", "CPU");
    for (scale, conversion_sites) in [(0.1, 1), (0.2, 2), (0.4, 4)] {
        let population = Population {
            preset: Preset::Published,
            scale,
            seed: 1,
        };
        let workload = population.generate();
        let laboratory = Laboratory::new(&workload, QuerierOptions::default(), 1).unwrap();
        let policy = Profile::BigBird.policy();
        laboratory.run(&policy, None).unwrap();
        let attack = Attack {
            attacker: &RANDOM,
            strength: Strength {
                conversion_sites,
                ..Strength::of_paper(Some(2))
            },
            seed: 1,
        };
        let begin = now();
        laboratory.run(&policy, Some(attack)).unwrap();
        let millions = workload.len() as f64 / 1e6;
        println!(
            "{:<52} {:>8.2} s",
            format!("per million, of {millions:.1} million actions"),
            (now() - begin) / millions
        );
    }
}

/// The CPU-seconds of this process, or elapsed seconds if the system does not report CPU time.
fn now() -> f64 {
    static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    let used = || -> Option<f64> {
        let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        let ticks =
            |field: usize| -> Option<f64> { fields.split_whitespace().nth(field)?.parse().ok() };
        Some((ticks(11)? + ticks(12)?) / 100.0)
    };
    used().unwrap_or_else(|| BEGIN.elapsed().as_secs_f64())
}

/// The peak memory of this process in MB, as the system reports it.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1000.0)
}
