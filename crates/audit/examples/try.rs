use bigbird_audit::catalogue::{Kind, catalogue};
use bigbird_audit::search::{Search, Tactics};
use std::time::Instant;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: u64 = args[1].parse().unwrap();
    let seed: u64 = args[2].parse().unwrap();
    let filter = args.get(3).map(String::as_str).unwrap_or("");
    let tactics = match args.get(4).map(String::as_str) {
        Some("noexploit") => Tactics {
            exploit: false,
            ..Tactics::ALL
        },
        Some("noboundary") => Tactics {
            boundary_values: false,
            ..Tactics::ALL
        },
        _ => Tactics::ALL,
    };
    for e in catalogue() {
        let k = match e.kind {
            Kind::Real => "real",
            Kind::Broken => "broken",
            Kind::Wasteful => "wasteful",
        };
        if !filter.is_empty() && filter != k && filter != e.name {
            continue;
        }
        let t = Instant::now();
        let mut s = Search::new(e.name, &*e.make, e.ingredients, tactics, seed);
        s.run(n);
        let dt = t.elapsed().as_secs_f64();
        let f = s.finding.as_ref();
        println!(
            "{:28} {:8} scripts {:6} {:7.0}/s sep {} loss {:?} {}",
            e.name,
            k,
            s.scripts,
            s.scripts as f64 / dt,
            s.unseparated.is_none(),
            s.largest_loss.map(|(l, c)| l.micro() / c as f64),
            f.map(|f| format!(
                "FOUND {} steps {} (witness {}) after {} rep {:?}",
                f.violation.name(),
                f.script.steps.len(),
                e.witness,
                f.after,
                f.repetitions
            ))
            .unwrap_or_default()
        );
        if filter == e.name {
            if let Some(f) = f {
                println!(
                    "{}\n{:#?}",
                    serde_json::to_string_pretty(&f.script).unwrap(),
                    f.verdict
                );
            } else if let Some(u) = s.unseparated {
                println!("{}", serde_json::to_string_pretty(&u).unwrap());
            }
        }
    }
}
