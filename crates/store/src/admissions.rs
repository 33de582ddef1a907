//! Admissions: the sites that each user action involved, per epoch. They count against the domain
//! cap.
//!
//! 64 consecutive user actions share a row: every click is a user action, and opening a store
//! verifies all rows of the ledger.

use std::collections::hash_map::Entry;

use bigbird::{AdmissionState, EpochIndex, NewAdmission, SiteId, UserAction};
use bigbird_user_agent::{ForgottenEpochs, RowPlace};
use rusqlite::{Connection, OptionalExtension, params};

use crate::checksum::{RowGuard, RowHasher, TableTag};
use crate::error::{Damage, Problem};
use crate::transaction::SqliteTransaction;

/// The number of user actions that share a row.
const ACTIONS: u64 = 64;

/// The bytes of one admission: one for the user action within the row, four for the site's number.
const ENTRY: usize = 5;

/// A row: the admissions of 64 consecutive user actions in an epoch.
#[derive(Debug, Clone)]
pub(crate) struct AdmissionBlock {
    number: i64,
    pub(crate) epoch: EpochIndex,
    entries: Vec<u8>,
}

impl AdmissionBlock {
    /// The number of the row that a user action belongs to.
    fn number(action: UserAction) -> i64 {
        (action.0 / ACTIONS).cast_signed()
    }

    fn verify(self, checksum: i64) -> Result<(Self, RowGuard), Problem> {
        let what = || {
            let first = self.number.cast_unsigned().wrapping_mul(ACTIONS);
            let epoch = self.epoch.0;
            format!("the {ACTIONS} user actions from {first} on in epoch {epoch}")
        };
        let guard = self.guard().verify(checksum, what)?;
        if !self.entries.len().is_multiple_of(ENTRY) {
            return Err(Damage::Row(what()).into());
        }
        Ok((self, guard))
    }

    fn guard(&self) -> RowGuard {
        RowHasher::of(TableTag::Admission)
            .int(self.number)
            .int(self.epoch.0)
            .bytes(&self.entries)
            .guard()
    }

    /// Every admission, as a user action and a site.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (UserAction, SiteId)> {
        let first = self.number.cast_unsigned().wrapping_mul(ACTIONS);
        let (entries, _) = self.entries.as_chunks::<ENTRY>();
        entries.iter().map(move |&[action, a, b, c, d]| {
            let action = UserAction(first.wrapping_add(u64::from(action)));
            (action, SiteId(u32::from_le_bytes([a, b, c, d])))
        })
    }

    fn push(&mut self, action: UserAction, site: SiteId) {
        self.entries.push((action.0 % ACTIONS) as u8);
        self.entries.extend_from_slice(&site.0.to_le_bytes());
    }
}

/// A row with the changes of a transaction.
#[derive(Debug)]
pub(crate) struct LoadedBlock {
    block: AdmissionBlock,
    /// The guard of the row as it is in the file, if it is there.
    stored: Option<RowGuard>,
}

/// Verifies rows and passes each to `each`, in the order of epochs: those behind the row of the
/// place `behind`. Stops at the end of a row, after `most` admissions. Returns true if more rows
/// are left.
pub(crate) fn scan(
    connection: &Connection,
    behind: Option<RowPlace>,
    most: usize,
    mut each: impl FnMut(AdmissionBlock, RowGuard) -> Result<(), Problem>,
) -> Result<bool, Problem> {
    let [epoch, action, _] = behind.unwrap_or([i64::MIN; 3]);
    // A place holds its user action with the highest bit flipped, so that signed comparison gives
    // the unsigned order.
    let number = AdmissionBlock::number(UserAction(action.cast_unsigned() ^ 1 << 63));
    let number = behind.map_or(i64::MIN, |_| number);
    let mut statement = connection.prepare_cached(
        "SELECT block, epoch, entries, checksum FROM admission
         WHERE (epoch, block) > (?, ?) ORDER BY epoch, block",
    )?;
    let mut rows = statement.query([epoch, number])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        if count >= most {
            return Ok(true);
        }
        let block = AdmissionBlock {
            number: row.get(0)?,
            epoch: EpochIndex(row.get(1)?),
            entries: row.get(2)?,
        };
        let (block, guard) = block.verify(row.get(3)?)?;
        count += block.entries.len() / ENTRY;
        each(block, guard)?;
    }
    Ok(false)
}

impl SqliteTransaction<'_> {
    /// Passes the row of a user action to `look`, with the changes of this transaction.
    fn with_block<T>(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        look: impl FnOnce(&mut LoadedBlock) -> T,
    ) -> Result<T, Problem> {
        let number = AdmissionBlock::number(action);
        let mut blocks = self.blocks.borrow_mut();
        let known = match blocks.entry((number, epoch)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(self.read_block(number, epoch)?),
        };
        Ok(look(known))
    }

    fn read_block(&self, number: i64, epoch: EpochIndex) -> Result<LoadedBlock, Problem> {
        let mut statement = self.connection().prepare_cached(
            "SELECT entries, checksum FROM admission WHERE block = ? AND epoch = ?",
        )?;
        let found: Option<(Vec<u8>, i64)> = statement
            .query_row([number, epoch.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let block = |entries| AdmissionBlock {
            number,
            epoch,
            entries,
        };
        match found {
            Some((entries, checksum)) => {
                let (block, guard) = block(entries).verify(checksum)?;
                Ok(LoadedBlock {
                    block,
                    stored: Some(guard),
                })
            }
            None => Ok(LoadedBlock {
                block: block(Vec::new()),
                stored: None,
            }),
        }
    }

    pub(crate) fn admitted_to(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        site: SiteId,
    ) -> Result<AdmissionState, Problem> {
        self.with_block(action, epoch, |known| {
            let mut admitted = AdmissionState {
                admitted: false,
                sites: 0,
            };
            for (_, other) in known.block.entries().filter(|(other, _)| *other == action) {
                admitted.admitted |= other == site;
                admitted.sites += 1;
            }
            admitted
        })
    }

    /// Writes an admission.
    pub(crate) fn write_admission(&mut self, admit: NewAdmission) -> Result<(), Problem> {
        let NewAdmission {
            user_action,
            epoch,
            site,
        } = admit;
        let (before, written) = self.with_block(user_action, epoch, |known| {
            known.block.push(user_action, site);
            let guard = known.block.guard();
            let AdmissionBlock {
                number, entries, ..
            } = &known.block;
            let written = self
                .connection()
                .prepare_cached(
                    "REPLACE INTO admission (block, epoch, entries, checksum) VALUES (?, ?, ?, ?)",
                )
                .and_then(|mut statement| {
                    statement.execute(params![number, epoch.0, entries, guard.checksum])
                });
            (known.stored.replace(guard), written.map(|_| guard))
        })?;
        let guard = written?;
        if let Some(before) = before {
            self.device.digest.remove(before);
        }
        self.device.digest.add(guard);
        Ok(())
    }

    /// Removes admissions of epochs that no request can reach, a slice at a time.
    pub(crate) fn forget_admissions(&mut self, forgotten: ForgottenEpochs) -> Result<(), Problem> {
        let ForgottenEpochs {
            unreachable, most, ..
        } = forgotten;
        let mut gone = Vec::new();
        scan(self.connection(), None, most as usize, |block, guard| {
            if block.epoch < unreachable {
                gone.push((block.epoch, block.number, guard));
            }
            Ok(())
        })?;
        for (epoch, number, guard) in gone {
            self.connection()
                .prepare_cached("DELETE FROM admission WHERE epoch = ? AND block = ?")?
                .execute([epoch.0, number])?;
            self.device.digest.remove(guard);
            self.deleted = true;
        }
        Ok(())
    }
}
