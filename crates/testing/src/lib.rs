//! Code that the tests and benchmarks of several crates share. Never published.
#![allow(clippy::unwrap_used, reason = "this is for tests, which may fail here")]

mod allocator;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

pub use allocator::CountingAllocator;
use bigbird::{FilterKind, Profile};
use bigbird_user_agent::{Config, Randomness};

/// The `big-bird` profile with budgets that are finite but never depleted, and one aggregation
/// service. It is meant for benchmarks in which every conversion charges.
///
/// # Panics
/// Never: these capacities are valid.
pub fn endless(service: &str) -> Config {
    let mut config = Config::new(Profile::BigBird)
        .with_service(service)
        .for_testing();
    let mut policy = config.policy.to_builder();
    for kind in FilterKind::ALL {
        if kind != FilterKind::UserActionBudget {
            policy = policy.capacity(kind, 1e9);
        }
    }
    config.policy = policy.build().unwrap();
    config
}

/// A folder that is removed when it is dropped.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new folder below `parent`, such as `env!("CARGO_TARGET_TMPDIR")`.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn below(parent: impl AsRef<Path>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("bigbird-{}-{count}", std::process::id());
        let path = parent.as_ref().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A new folder in memory if the system supports that, otherwise in the temporary folder. It is
    /// meant for tests that are not about the disk.
    ///
    /// # Panics
    /// If the folder cannot be created.
    pub fn in_memory() -> Self {
        let memory = Path::new("/dev/shm");
        match memory.is_dir() {
            true => Self::below(memory),
            false => Self::below(std::env::temp_dir()),
        }
    }

    /// The path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Randomness in which every fraction is a half and handles are consecutive numbers.
#[derive(Debug, Clone, Copy, Default)]
pub struct FixedRandomness;

impl Randomness for FixedRandomness {
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

/// A small pseudorandom generator. The same seed gives the same numbers.
#[derive(Debug, Clone)]
pub struct Dice(pub u64);

impl Dice {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }
}

/// The number of instructions that this program executes when it is run with these arguments,
/// counted by valgrind. It is the same on every run, however busy the machine is. `None` if
/// valgrind is missing.
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

/// The number of instructions of one operation. This program is run twice, with `--count NAME
/// TIMES`, a few times and many times. The difference leaves out everything before the operation.
pub fn instructions_of_one(name: &str, few: u32, many: u32) -> Option<f64> {
    let count = |times: u32| instructions(&["--count", name, &times.to_string()]);
    let (few_count, many_count) = (count(few)?, count(many)?);
    #[expect(clippy::cast_precision_loss, reason = "far below 2⁵³")]
    let difference = many_count.saturating_sub(few_count) as f64;
    Some(difference / f64::from(many - few))
}

/// The operation to run, and how many times, if this program was started to have its instructions
/// counted.
pub fn asked_to_count() -> Option<(String, u32)> {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--count");
    arguments.next()?;
    Some((arguments.next()?, arguments.next()?.parse().ok()?))
}

/// True if a benchmark should count instructions instead of measuring time.
pub fn asked_for_instructions() -> bool {
    std::env::args().any(|argument| argument == "--instructions")
}

/// Prints the number of instructions of each operation. Each is given by its name and by how often
/// it is run, few times and many times.
pub fn print_instructions(names: impl IntoIterator<Item = (String, u32, u32)>) {
    println!("{:<60} {:>14}", "operation", "instructions");
    for (name, few, many) in names {
        match instructions_of_one(&name, few, many) {
            Some(count) => println!("{name:<60} {count:>14.0}"),
            None => println!("{name:<60} {:>14}", "no valgrind"),
        }
    }
}

/// The example of the README, compiled and run. It is here because a published package cannot
/// include a file from outside its folder.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
