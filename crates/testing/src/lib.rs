//! What the tests and benchmarks of several crates share. Never published.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "for tests, which may fail here")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use bigbird::{FilterKind, Profile};
use bigbird_user_agent::{Config, Randomness};

/// The `big-bird` profile with budgets that are finite and never run dry, and one aggregation service:
/// for benchmarks, in which every conversion charges.
///
/// # Panics
/// Never: these capacities are a policy.
pub fn endless(service: &str) -> Config {
    let mut config = Config::new(Profile::BigBird)
        .with_service(service)
        .for_testing();
    let mut policy = config.policy.to_builder();
    for kind in FilterKind::ALL {
        if kind != FilterKind::UserAction {
            policy = policy.capacity(kind, 1e9);
        }
    }
    config.policy = policy.build().unwrap();
    config
}

/// A folder that goes away with the test.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Below a folder such as `env!("CARGO_TARGET_TMPDIR")`.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn below(parent: impl AsRef<Path>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bigbird-{}-{count}", std::process::id());
        let path = parent.as_ref().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// In memory, where the system has a place for that: for tests that are not about the disk.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        match memory.is_dir() {
            true => Self::below(memory),
            false => Self::below(std::env::temp_dir()),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Randomness of which every fraction is a half, and handles are numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Half;

impl Randomness for Half {
    fn epoch_start(&mut self) -> f64 {
        0.5
    }

    fn credit(&mut self) -> f64 {
        0.5
    }

    fn handle(&mut self, number: u64) -> u128 {
        number.into()
    }
}

/// A small source of numbers that are the same each time.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below a bound.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// How many instructions this program executes when it is run with these arguments, counted by
/// valgrind: the same on every run, however busy the machine is. Nothing if valgrind is missing.
pub fn instructions(arguments: &[&str]) -> Option<u64> {
    let program = std::env::current_exe().ok()?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(arguments)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().find(|line| line.contains("Collected :"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// How many instructions one of many things takes: this program is run with `--count NAME TIMES`, few
/// times and many, and what comes before them cancels out.
pub fn instructions_of_one(name: &str, few: u32, many: u32) -> Option<f64> {
    let count = |times: u32| instructions(&["--count", name, &times.to_string()]);
    let (few_count, many_count) = (count(few)?, count(many)?);
    #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    let difference = many_count.saturating_sub(few_count) as f64;
    Some(difference / f64::from(many - few))
}

/// What this program is to do, and how many times, if it is run to have its instructions counted.
pub fn asked_to_count() -> Option<(String, u32)> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--count");
    arguments.next()?;
    Some((arguments.next()?, arguments.next()?.parse().ok()?))
}

/// Whether a benchmark is to count instructions instead of measuring time.
pub fn asked_for_instructions() -> bool {
    std::env::args().any(|argument| argument == "--instructions")
}

/// Prints the instructions of some things by name, each few and many times.
pub fn print_instructions(names: impl IntoIterator<Item = (String, u32, u32)>) {
    println!("{:<60} {:>14}", "one of", "instructions");
    for (name, few, many) in names {
        match instructions_of_one(&name, few, many) {
            Some(count) => println!("{name:<60} {count:>14.0}"),
            None => println!("{name:<60} {:>14}", "no valgrind"),
        }
    }
}
