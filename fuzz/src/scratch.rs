//! A folder for the files of one input.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// A folder in memory where the system has a place for that, else in its temporary folder. It is
/// removed when this is dropped. After a crash it stays, for whoever looks into the crash, until
/// the next run of any target.
#[derive(Debug)]
pub struct FuzzFolder(PathBuf);

const PREFIX: &str = "bigbird-fuzz-";

impl FuzzFolder {
    /// An empty folder.
    ///
    /// # Panics
    /// If it cannot be created.
    #[expect(clippy::new_without_default, reason = "it creates a folder")]
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        static CLEANED: Once = Once::new();
        let memory = Path::new("/dev/shm");
        let parent = match memory.is_dir() {
            true => memory.to_owned(),
            false => std::env::temp_dir(),
        };
        CLEANED.call_once(|| remove_leftovers(&parent));
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{number}", process::id()));
        fs::create_dir(&path).expect("a folder for files");
        Self(path)
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for FuzzFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes the folders of processes that have ended, where the system can tell.
fn remove_leftovers(parent: &Path) {
    let processes = Path::new("/proc");
    if !processes.join("self").exists() {
        return;
    }
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if let Some((id, _)) = rest.and_then(|rest| rest.split_once('-'))
            && !processes.join(id).exists()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
