//! Row guards (the checksum of a row), and the ledger digest over all rows of the ledger.
//!
//! A missing row means full capacity, so a checksum in each row is not enough. The digest is a sum
//! with one term for each row, and it is updated in the same transaction as the rows. Changing a
//! row removes one term and adds another, however many rows there are.
//!
//! Both detect damage, and changes by a program that does not know them. They do not stop an
//! attacker who can write the file, because they contain no secret.

use bigbird::SiteId;
use twox_hash::XxHash3_128;

use crate::error::{Damage, Problem};

/// The table of a row. It is hashed too, so that equal rows of two tables have different checksums.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
pub(crate) enum TableTag {
    Device = 1,
    Site,
    Filter,
    Admission,
    Closed,
    Object,
    Impression,
    History,
}

/// The content of a row, in the order in which it is hashed.
pub(crate) struct RowHasher(Vec<u8>);

impl RowHasher {
    pub(crate) fn of(table: TableTag) -> Self {
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

    /// Adds bytes of any length. Each row has them last, so that two different rows never give the
    /// same input.
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn guard(&self) -> RowGuard {
        let hash = XxHash3_128::oneshot(&self.0);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the two halves of the hash"
        )]
        let (term, checksum) = ((hash >> 64) as u64, hash as u64);
        RowGuard {
            checksum: checksum.cast_signed(),
            term,
        }
    }
}

/// The guard of one row: the two halves of its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowGuard {
    /// The half that is stored in the row.
    pub(crate) checksum: i64,
    /// The half that is added to the ledger digest. It is not stored in the row.
    term: u64,
}

impl RowGuard {
    /// Compares the guard with the checksum that is stored in the row.
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

/// The digest over all rows of the ledger: the sum of their terms, and their number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LedgerDigest {
    pub(crate) sum: u64,
    pub(crate) rows: u64,
}

impl LedgerDigest {
    pub(crate) fn add(&mut self, row: RowGuard) {
        self.sum = self.sum.wrapping_add(row.term);
        self.rows = self.rows.wrapping_add(1);
    }

    pub(crate) fn remove(&mut self, row: RowGuard) {
        self.sum = self.sum.wrapping_sub(row.term);
        self.rows = self.rows.wrapping_sub(1);
    }
}
