//! What the tests and benchmarks of several crates share. Never published.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "for tests, which may fail here")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use bigbird_user_agent::Randomness;

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
