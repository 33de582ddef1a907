//! Domain caps: which sites each user action was admitted to, per epoch.
//!
//! Every click is a user action, so there are many, and the whole ledger is verified when it is
//! opened. So 64 consecutive user actions share a row.

use std::collections::hash_map::Entry;

use bigbird::{Admit, Admitted, EpochIndex, SiteId, UserAction};
use bigbird_user_agent::{Forgotten, Place};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Damage, Problem};
use crate::seal::{Row, Seal, Table};
use crate::transaction::SqliteTransaction;

/// How many user actions share a row.
const ACTIONS: u64 = 64;

/// The bytes of one admission: which of the row's user actions, and which site.
const ENTRY: usize = 5;

/// What the user actions of one row were admitted to in an epoch.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    number: i64,
    pub(crate) epoch: EpochIndex,
    entries: Vec<u8>,
}

impl Block {
    /// The row that a user action belongs to.
    fn number(action: UserAction) -> i64 {
        (action.0 / ACTIONS).cast_signed()
    }

    fn verify(self, checksum: i64) -> Result<(Self, Seal), Problem> {
        let what = || {
            let first = self.number.cast_unsigned().wrapping_mul(ACTIONS);
            let epoch = self.epoch.0;
            format!("the sites of user actions from {first} on in epoch {epoch}")
        };
        let seal = self.seal().verify(checksum, what)?;
        if !self.entries.len().is_multiple_of(ENTRY) {
            return Err(Damage::Row(what()).into());
        }
        Ok((self, seal))
    }

    fn seal(&self) -> Seal {
        Row::of(Table::Admission)
            .int(self.number)
            .int(self.epoch.0)
            .bytes(&self.entries)
            .seal()
    }

    /// Every user action with a site that it was admitted to.
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

/// A row as a transaction knows it.
#[derive(Debug)]
pub(crate) struct Known {
    block: Block,
    /// The seal of the row, if there is one.
    stored: Option<Seal>,
}

/// Gives every row by epoch, having verified each: at most so many of those behind the row of a place.
/// Says whether it stopped there.
pub(crate) fn scan(
    connection: &Connection,
    behind: Option<Place>,
    most: usize,
    mut each: impl FnMut(Block, Seal) -> Result<(), Problem>,
) -> Result<bool, Problem> {
    let [epoch, action, _] = behind.unwrap_or([i64::MIN; 3]);
    // A place has its user action in an order with a sign.
    let number = Block::number(UserAction(action.cast_unsigned() ^ 1 << 63));
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
        let block = Block {
            number: row.get(0)?,
            epoch: EpochIndex(row.get(1)?),
            entries: row.get(2)?,
        };
        let (block, seal) = block.verify(row.get(3)?)?;
        count += block.entries.len() / ENTRY;
        each(block, seal)?;
    }
    Ok(false)
}

impl SqliteTransaction<'_> {
    /// What the user actions around one were admitted to, as this transaction knows it.
    fn with_block<T>(
        &self,
        action: UserAction,
        epoch: EpochIndex,
        look: impl FnOnce(&mut Known) -> T,
    ) -> Result<T, Problem> {
        let number = Block::number(action);
        let mut blocks = self.blocks.borrow_mut();
        let known = match blocks.entry((number, epoch)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(self.read_block(number, epoch)?),
        };
        Ok(look(known))
    }

    fn read_block(&self, number: i64, epoch: EpochIndex) -> Result<Known, Problem> {
        let mut statement = self.connection().prepare_cached(
            "SELECT entries, checksum FROM admission WHERE block = ? AND epoch = ?",
        )?;
        let found: Option<(Vec<u8>, i64)> = statement
            .query_row([number, epoch.0], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        let block = |entries| Block {
            number,
            epoch,
            entries,
        };
        match found {
            Some((entries, checksum)) => {
                let (block, seal) = block(entries).verify(checksum)?;
                Ok(Known {
                    block,
                    stored: Some(seal),
                })
            }
            None => Ok(Known {
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
    ) -> Result<Admitted, Problem> {
        self.with_block(action, epoch, |known| {
            let mut admitted = Admitted {
                already: false,
                sites: 0,
            };
            for (_, other) in known.block.entries().filter(|(other, _)| *other == action) {
                admitted.already |= other == site;
                admitted.sites += 1;
            }
            admitted
        })
    }

    /// Admits a site.
    pub(crate) fn write_admission(&mut self, admit: Admit) -> Result<(), Problem> {
        let Admit {
            user_action,
            epoch,
            site,
        } = admit;
        let (before, written) = self.with_block(user_action, epoch, |known| {
            known.block.push(user_action, site);
            let seal = known.block.seal();
            let Block {
                number, entries, ..
            } = &known.block;
            let written = self
                .connection()
                .prepare_cached(
                    "REPLACE INTO admission (block, epoch, entries, checksum) VALUES (?, ?, ?, ?)",
                )
                .and_then(|mut statement| {
                    statement.execute(params![number, epoch.0, entries, seal.checksum])
                });
            (known.stored.replace(seal), written.map(|_| seal))
        })?;
        let seal = written?;
        if let Some(before) = before {
            self.device.digest.remove(before);
        }
        self.device.digest.add(seal);
        Ok(())
    }

    /// Removes what was admitted in epochs that no request can reach, at most so many rows.
    pub(crate) fn forget_admissions(&mut self, forgotten: Forgotten) -> Result<(), Problem> {
        let Forgotten {
            unreachable, most, ..
        } = forgotten;
        let mut gone = Vec::new();
        scan(self.connection(), None, most as usize, |block, seal| {
            if block.epoch < unreachable {
                gone.push((block.epoch, block.number, seal));
            }
            Ok(())
        })?;
        for (epoch, number, seal) in gone {
            self.connection()
                .prepare_cached("DELETE FROM admission WHERE epoch = ? AND block = ?")?
                .execute([epoch.0, number])?;
            self.device.digest.remove(seal);
            self.deleted = true;
        }
        Ok(())
    }
}
