//! Checksums of rows, and the digest over all rows of the ledger.
//!
//! A missing row would mean full capacity, so a checksum in each row is not enough: the digest is a
//! sum with one term for each row, kept in the same transaction. A row that is changed by one
//! transaction changes two terms, however many rows there are.
//!
//! Both guard against damage, and against changes by a program that does not know them. They are no
//! defence against somebody who may write the file and means to: no secret is in them.

use bigbird::SiteId;
use twox_hash::XxHash3_128;

use crate::error::{Damage, Problem};

/// Which table a row is of: rows of two tables never have the same checksum.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum Table {
    Device = 1,
    Site,
    Filter,
    Admission,
    Closed,
    Object,
    Impression,
}

/// The content of a row, in the order in which it is hashed.
pub(crate) struct Row(Vec<u8>);

impl Row {
    pub(crate) fn of(table: Table) -> Self {
        let mut bytes = Vec::with_capacity(112);
        bytes.push(table as u8);
        Self(bytes)
    }

    pub(crate) fn int(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(crate) fn optional(self, value: Option<i64>) -> Self {
        match value {
            Some(value) => self.int(1).int(value),
            None => self.int(0),
        }
    }

    pub(crate) fn site(self, site: SiteId) -> Self {
        self.int(i64::from(site.0))
    }

    /// Bytes of any length. Each row has them last, so that no two rows are hashed alike.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn seal(&self) -> Seal {
        let hash = XxHash3_128::oneshot(&self.0);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of it")]
        let (term, checksum) = ((hash >> 64) as u64, hash as u64);
        Seal {
            checksum: checksum.cast_signed(),
            term,
        }
    }
}

/// What guards one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Kept in the row.
    pub(crate) checksum: i64,
    /// Its part of the digest, which is nowhere in the row.
    term: u64,
}

impl Seal {
    /// Compares with the checksum that the row had.
    pub(crate) fn verify(
        self,
        stored: i64,
        what: impl FnOnce() -> String,
    ) -> Result<Self, Problem> {
        if self.checksum == stored {
            return Ok(self);
        }
        Err(Damage::Row(what()).into())
    }
}

/// The digest over all rows of the ledger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) sum: u64,
    pub(crate) rows: u64,
}

impl Digest {
    pub(crate) fn add(&mut self, row: Seal) {
        self.sum = self.sum.wrapping_add(row.term);
        self.rows = self.rows.wrapping_add(1);
    }

    pub(crate) fn remove(&mut self, row: Seal) {
        self.sum = self.sum.wrapping_sub(row.term);
        self.rows = self.rows.wrapping_sub(1);
    }
}
