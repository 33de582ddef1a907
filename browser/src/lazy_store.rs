//! A store that is opened when it is needed, and again after it failed.

use std::fmt;
use std::time::{Duration, Instant};

use bigbird_store::{Problem, SqliteStore, SqliteTransaction, StoreError};
use bigbird_user_agent::Storage;

/// The pause after a failure. Until then, the same failure is the answer, so that calls which wait
/// behind each other do not each wait for the lock.
const PAUSE: Duration = Duration::from_secs(1);

/// A store that is opened by the first transaction.
///
/// If that fails, the transaction fails, and a later one tries again, at most once a second. The
/// same happens when a store that was open fails: the file may have been reset or repaired.
pub struct LazyStore {
    open: Box<dyn FnMut() -> Result<SqliteStore, StoreError> + Send>,
    store: Option<SqliteStore>,
    last: Option<LastFailure>,
}

/// The last failure, until the store works again.
#[derive(Debug)]
struct LastFailure {
    error: StoreError,
    at: Instant,
}

impl LastFailure {
    fn new(error: &StoreError) -> Self {
        Self {
            error: error.clone(),
            at: Instant::now(),
        }
    }
}

impl fmt::Debug for LazyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyStore")
            .field("store", &self.store)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl LazyStore {
    /// A store that is opened with `open`.
    pub fn new(open: impl FnMut() -> Result<SqliteStore, StoreError> + Send + 'static) -> Self {
        Self {
            open: Box::new(open),
            store: None,
            last: None,
        }
    }

    /// Closes the store if it is open. Then all data is in the file alone.
    ///
    /// # Errors
    /// If the file cannot be written. Nothing is lost then: the log stays beside the file.
    pub fn close(self) -> Result<(), StoreError> {
        self.store.map_or(Ok(()), SqliteStore::close)
    }
}

impl Storage for LazyStore {
    type Error = StoreError;
    type Transaction<'t> = SqliteTransaction<'t>;

    fn begin(&mut self) -> Result<SqliteTransaction<'_>, StoreError> {
        let Self { open, store, last } = self;
        let store = opened(open, store, last)?;
        store
            .begin()
            .inspect_err(|error| *last = Some(LastFailure::new(error)))
    }
}

/// The store, opened if it is not open, unless it failed within the last second.
fn opened<'s>(
    open: &mut dyn FnMut() -> Result<SqliteStore, StoreError>,
    store: &'s mut Option<SqliteStore>,
    last: &mut Option<LastFailure>,
) -> Result<&'s mut SqliteStore, StoreError> {
    if let Some(failed) = last {
        if failed.at.elapsed() < PAUSE {
            return Err(failed.error.clone());
        }
        // One that was only locked is still the same.
        if !matches!(failed.error.problem(), Problem::Busy { .. }) {
            *store = None;
        }
        *last = None;
    }
    let opened = match store.take() {
        Some(store) => store,
        None => open().inspect_err(|error| *last = Some(LastFailure::new(error)))?,
    };
    Ok(store.insert(opened))
}
