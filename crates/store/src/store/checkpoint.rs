//! Checkpoints (moving the write-ahead log into the file), erasing deleted content, and closing.

use std::time::{Duration, Instant};

use super::SqliteStore;
use super::connection::keep_log;
use crate::device::DeviceRow;
use crate::error::{Problem, StoreError};

/// The most free pages that are returned to the system at a time, so that nobody has to wait. The
/// rest is reused, or returned the next time.
const MOST_PAGES: u32 = 1000;

impl SqliteStore {
    /// Moves the write-ahead log into the database file. Call it at a quiet moment. Otherwise a
    /// conversion has to do this work now and then.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn checkpoint(&mut self) -> Result<(), StoreError> {
        match self.checkpoint_as("PASSIVE") {
            Ok(_) => Ok(()),
            Err(problem) => Err(StoreError::new(&self.path, problem)),
        }
    }

    /// Makes a checkpoint. Returns true if the whole log is in the database file now.
    pub(super) fn checkpoint_as(&self, mode: &str) -> Result<bool, Problem> {
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        let result = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        let (busy, in_log, moved): (i64, i64, i64) = self.connection.query_row(&sql, [], result)?;
        Ok(busy == 0 && in_log == moved)
    }

    /// Moves the whole log into the database file, waiting for other processes. If a transaction
    /// was interrupted, it also waits for all readers of the log, so that the next transaction
    /// starts the log over.
    pub(super) fn checkpoint_completely(&self) -> Result<(), Problem> {
        let since = Instant::now();
        let mode = match self.interrupted.get() {
            true => "RESTART",
            false => "FULL",
        };
        while !self
            .checkpoint_as(mode)
            .map_err(|problem| self.waited(problem))?
        {
            if since.elapsed() > self.wait {
                return Err(self.busy());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Erases deleted content from the files, as far as other processes allow it. Otherwise their
    /// next checkpoint erases it.
    pub(crate) fn erase(&mut self) {
        if self.vacuum().is_err() {
            self.interrupted.set(true);
        }
        // With this limit, the first transaction after the log starts over truncates the log behind
        // itself. The log must never be empty, because an empty log counts as lost.
        let limit = |bytes: i64| {
            let sql = format!("PRAGMA journal_size_limit = {bytes}");
            self.connection.query_row(&sql, [], |_| Ok(()))
        };
        if limit(0).is_ok() {
            let _ = self.checkpoint_as("RESTART");
            // This transaction changes nothing, so it does not increase `writes`.
            let _ = self.lock().and_then(|device| self.write_back(&device));
            let _ = limit(-1);
        }
    }

    /// Returns free pages to the system. Their content was overwritten when it was deleted.
    pub(super) fn vacuum(&self) -> Result<(), Problem> {
        let sql = format!("PRAGMA incremental_vacuum({MOST_PAGES})");
        let mut statement = self.connection.prepare(&sql)?;
        let mut rows = statement.query([])?;
        // Each step returns one page.
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Closes the store. If no other process has it open, everything is in the database file
    /// afterwards.
    ///
    /// # Errors
    /// If the file cannot be written. Nothing is lost then, because the write-ahead log stays.
    pub fn close(mut self) -> Result<(), StoreError> {
        let shut = self.shut();
        self.in_use = false;
        shut.map_err(|problem| StoreError::new(&self.path, problem))
    }

    /// If this is the last connection, records in the file that there is no log, and lets SQLite
    /// remove the log. Both happen under one exclusive lock. Otherwise another process could write
    /// to the log in between, and the record would be wrong.
    pub(super) fn shut(&mut self) -> Result<(), Problem> {
        self.connection.busy_timeout(Duration::ZERO)?;
        let exclusive = "PRAGMA locking_mode = EXCLUSIVE";
        self.connection.query_row(exclusive, [], |_| Ok(()))?;
        let device = match self.lock() {
            Ok(device) => device,
            // Another process has the store open, or the file was replaced.
            Err(Problem::Busy { .. } | Problem::Replaced) => return Ok(()),
            Err(problem) => return Err(problem),
        };
        if self.in_use {
            self.write_back(&DeviceRow {
                closed_cleanly: true,
                writes: device.writes.wrapping_add(1),
                ..device
            })?;
        } else {
            self.release_lock();
            if !device.closed_cleanly {
                // A process that only read leaves everything as it was.
                return Ok(());
            }
        }
        keep_log(&self.connection, false)
    }

    /// Writes the device row, and commits the transaction.
    pub(super) fn write_back(&self, device: &DeviceRow) -> Result<(), Problem> {
        let written = device.save(&self.connection).and_then(|()| {
            self.connection.execute_batch("COMMIT")?;
            Ok(())
        });
        if written.is_err() {
            self.release_lock();
        }
        written
    }
}
