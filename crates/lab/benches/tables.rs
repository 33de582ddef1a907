//! Measures the cost of reading a table: `cargo bench -p bigbird-lab --bench tables [-- MILLIONS]`.
//! Each row is measured in a separate process, so that its memory can be measured separately.
#![allow(missing_docs, clippy::unwrap_used)]
#![allow(clippy::cast_precision_loss, reason = "counts of rows")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::table::{self, TableOptions};
use bigbird_lab::workload::write::write_table;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["write", scale, path] => write(scale.parse().unwrap(), Path::new(path)),
        ["read", name, sorted, path] => read(name, *sorted == "sorted", Path::new(path)),
        _ => {
            let millions = arguments.iter().find_map(|argument| argument.parse().ok());
            compare(millions.unwrap_or(5.0));
        }
    }
}

fn compare(millions: f64) {
    let folder = tempfile::tempdir().unwrap();
    let own = std::env::current_exe().unwrap();
    let run = |arguments: &[&str]| {
        assert!(
            Command::new(&own)
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    };
    // At scale 1 there are 1.4 million devices with 7.3 events each: 10.2 million events.
    let scale = (millions / 10.2).to_string();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    println!(
        "{:<24} {:>12} {:>12} {:>16} {:>12}",
        "", "rows", "file", "rows a second", "peak memory"
    );
    for (format, file) in [
        ("CSV", path("table.csv")),
        ("Parquet", path("table.parquet")),
    ] {
        run(&["write", &scale, &file]);
        run(&["read", format, "any order", &file]);
        run(&["read", &format!("{format}, sorted"), "sorted", &file]);
    }
}

fn write(scale: f64, path: &Path) {
    let population = Population {
        preset: Preset::Published,
        scale,
        seed: 1,
    };
    write_table(&population.generate(), path).unwrap();
}

fn read(name: &str, sorted: bool, path: &Path) {
    let options = TableOptions {
        sorted,
        ..TableOptions::default()
    };
    let begin = Instant::now();
    let paths: [PathBuf; 1] = [path.to_owned()];
    let workload = table::read(&paths, &options, &mut |_| ()).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{name:<24} {:>12} {:>9.0} MB {:>16.0} {:>9.0} MB",
        workload.len(),
        std::fs::metadata(path).unwrap().len() as f64 / 1e6,
        workload.len() as f64 / seconds,
        peak_memory().unwrap_or(f64::NAN),
    );
}

/// The peak memory of this process in MB, as the system reports it.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes / 1000.0)
}
