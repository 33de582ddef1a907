//! A temporary folder.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, fs, io, process, thread};

/// A folder that is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new() -> io::Result<Self> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = env::temp_dir().join(format!("bigbird-{}-{count}", process::id()));
        // Fails if the folder exists: another process may have put it there.
        fs::create_dir(&path)?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Removes the folder, although processes that are ending may still write into it.
    pub(crate) fn remove(self) -> io::Result<()> {
        const ATTEMPTS: u32 = 50;
        for _ in 1..ATTEMPTS {
            match fs::remove_dir_all(&self.0) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    thread::sleep(Duration::from_millis(100));
                }
                _ => return Ok(()),
            }
        }
        fs::remove_dir_all(&self.0)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
