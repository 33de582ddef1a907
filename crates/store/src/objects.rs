//! Attribution objects: conversions of which several queriers take shares. They are part of the
//! ledger: a querier that could take a share twice would learn more than was paid.

use bigbird::attribution::{AttributionObjectData, CreditedImpression, ShareScope};
use bigbird::{AttributionObject, EpochIndex, SiteId};
use bigbird_user_agent::{SharedConversion, StoredObject};
use rusqlite::{Connection, Row as SqlRow, params};

use crate::checksum::{RowGuard, RowHasher, TableTag};
use crate::device::OldDeviceRow;
use crate::error::{Damage, Problem};
use crate::transaction::SqliteTransaction;

/// The row of an object.
struct ObjectRow {
    id: i64,
    handle: [u8; 16],
    site: SiteId,
    created: EpochIndex,
    body: Vec<u8>,
}

impl ObjectRow {
    fn new(stored: &StoredObject) -> Self {
        let parts = stored.object.parts();
        Self {
            id: stored.number.cast_signed(),
            handle: stored.shared.0.to_be_bytes(),
            site: parts.conversion_site,
            created: parts.created,
            body: encode(&parts),
        }
    }

    fn guard(&self) -> RowGuard {
        RowHasher::of(TableTag::Object)
            .int(self.id)
            .site(self.site)
            .int(self.created.0)
            .bytes(&self.handle)
            .bytes(&self.body)
            .guard()
    }

    /// Reads and verifies a row whose columns are in the order of [`COLUMNS`].
    fn read(row: &SqlRow<'_>) -> Result<(StoredObject, RowGuard), Problem> {
        let id = row.get(0)?;
        let what = || format!("attribution object {id}");
        let damaged = || Problem::from(Damage::Row(what()));
        let handle: Vec<u8> = row.get(1)?;
        let read = Self {
            id,
            handle: handle.try_into().map_err(|_| damaged())?,
            site: SiteId(row.get(2)?),
            created: EpochIndex(row.get(3)?),
            body: row.get(4)?,
        };
        let guard = read.guard().verify(row.get(5)?, what)?;
        let parts = decode(&read.body, read.created).filter(|it| it.conversion_site == read.site);
        let object = parts.and_then(|parts| AttributionObject::try_from(parts).ok());
        let stored = StoredObject {
            number: id.cast_unsigned(),
            shared: SharedConversion(u128::from_be_bytes(read.handle)),
            object: object.ok_or_else(damaged)?,
        };
        Ok((stored, guard))
    }

    fn insert(&self, connection: &Connection) -> Result<RowGuard, Problem> {
        let guard = self.guard();
        connection
            .prepare_cached("INSERT INTO object VALUES (?, ?, ?, ?, ?, ?)")?
            .execute(params![
                self.id,
                self.handle,
                self.site.0,
                self.created.0,
                self.body,
                guard.checksum
            ])?;
        Ok(guard)
    }
}

/// The columns of an object, in the order that [`ObjectRow::read`] expects.
const COLUMNS: &str = "id, handle, site, created, body, checksum";

/// Verifies every object and passes it to `each`.
pub(crate) fn scan(
    connection: &Connection,
    mut each: impl FnMut(StoredObject, RowGuard) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let sql = format!("SELECT {COLUMNS} FROM object");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (stored, guard) = ObjectRow::read(row)?;
        each(stored, guard)?;
    }
    Ok(())
}

impl SqliteTransaction<'_> {
    fn find_object(
        &self,
        column: &str,
        value: impl rusqlite::ToSql,
    ) -> Result<Option<(StoredObject, RowGuard)>, Problem> {
        let sql = format!("SELECT {COLUMNS} FROM object WHERE {column} = ?");
        let mut statement = self.connection().prepare_cached(&sql)?;
        let mut rows = statement.query([value])?;
        rows.next()?.map(ObjectRow::read).transpose()
    }

    pub(crate) fn object_of(
        &self,
        shared: SharedConversion,
    ) -> Result<Option<StoredObject>, Problem> {
        let found = self.find_object("handle", shared.0.to_be_bytes())?;
        Ok(found.map(|(stored, _)| stored))
    }

    pub(crate) fn listed_objects(&self) -> Result<Vec<(u64, SiteId)>, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT id, site FROM object INDEXED BY object_by_site")?;
        let listed = statement.query_map([], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), SiteId(row.get(1)?)))
        })?;
        Ok(listed.collect::<Result<_, _>>()?)
    }

    pub(crate) fn write_object(&mut self, stored: &StoredObject) -> Result<(), Problem> {
        self.delete_object(stored.number)?;
        if let Some((same, _)) = self.find_object("handle", stored.shared.0.to_be_bytes())? {
            self.delete_object(same.number)?;
        }
        let guard = ObjectRow::new(stored).insert(self.connection())?;
        self.device.digest.add(guard);
        Ok(())
    }

    pub(crate) fn delete_object(&mut self, number: u64) -> Result<(), Problem> {
        let id = number.cast_signed();
        if let Some((_, guard)) = self.find_object("id", id)? {
            self.connection()
                .prepare_cached("DELETE FROM object WHERE id = ?")?
                .execute([id])?;
            self.device.digest.remove(guard);
            self.deleted = true;
        }
        Ok(())
    }

    pub(crate) fn prune_objects(&mut self, first: EpochIndex) -> Result<(), Problem> {
        let mut pruned = Vec::new();
        scan(self.connection(), |stored, _| {
            if stored.object.created() < first {
                pruned.push(stored.number);
            }
            Ok(())
        })?;
        pruned
            .into_iter()
            .try_for_each(|number| self.delete_object(number))
    }
}

/// Migrates to version 2 of the schema: objects have a handle and the epoch of their creation.
///
/// Existing objects are forgotten. The epoch of their creation is not known, and any guess would
/// reveal what was paid for them. What was paid stays paid.
pub(crate) fn migrate_to_2(connection: &Connection) -> Result<(), Problem> {
    let mut statement = connection.prepare("SELECT id, site, body, checksum FROM object")?;
    let old: Vec<(i64, u32, Vec<u8>, i64)> = statement
        .query_map([], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<Result<_, _>>()?;
    drop(statement);
    if let Some(mut device) = OldDeviceRow::load(connection)? {
        let mut digest = device.digest();
        for (id, site, body, checksum) in old {
            let row = RowHasher::of(TableTag::Object)
                .int(id)
                .site(SiteId(site))
                .bytes(&body);
            let what = || format!("attribution object {id}");
            digest.remove(row.guard().verify(checksum, what)?);
        }
        device.set_digest(connection, digest)?;
    }
    connection.execute_batch(
        "DROP TABLE object;
         CREATE TABLE object (
             id INTEGER PRIMARY KEY,
             handle BLOB NOT NULL UNIQUE,
             site INTEGER NOT NULL,
             created INTEGER NOT NULL,
             body BLOB NOT NULL,
             checksum INTEGER NOT NULL
         ) STRICT;
         CREATE INDEX object_by_site ON object (site, id);",
    )?;
    Ok(())
}

/// The body of an object: its fields in order, except the epoch of its creation, which has its own
/// column. Numbers are little-endian, and each list follows its length.
fn encode(parts: &AttributionObjectData) -> Vec<u8> {
    let mut out = Encoder(Vec::new());
    out.word(parts.conversion_site.0);
    out.list(&parts.callers, |out, site| out.word(site.0));
    out.word(parts.value);
    out.list(&parts.credit, |out, share| out.long(share.to_bits()));
    out.long(parts.epsilon.to_bits());
    out.long(parts.sensitivity);
    out.word(u32::from(parts.single_epoch));
    out.list(&parts.epochs, |out, epoch| {
        out.long(epoch.0.cast_unsigned());
    });
    out.list(&parts.credits, |out, credit| {
        out.long(credit.epoch.0.cast_unsigned());
        out.word(credit.site.0);
        out.word(credit.caller.0);
        out.word(credit.match_value);
        out.word(credit.histogram_index);
        out.long(credit.permitted);
        out.word(credit.value);
    });
    out.list(&parts.taken, |out, scope| {
        out.list(&scope.impression_sites, |out, site| out.word(site.0));
        out.list(&scope.impression_callers, |out, site| out.word(site.0));
        out.list(&scope.match_values, |out, value| out.word(*value));
    });
    out.0
}

fn decode(bytes: &[u8], created: EpochIndex) -> Option<AttributionObjectData> {
    let mut from = Decoder(bytes);
    let parts = AttributionObjectData {
        conversion_site: SiteId(from.word()?),
        created,
        callers: from.list(|from| from.word().map(SiteId))?,
        value: from.word()?,
        credit: from.list(|from| from.long().map(f64::from_bits))?,
        epsilon: f64::from_bits(from.long()?),
        sensitivity: from.long()?,
        single_epoch: from.word()? != 0,
        epochs: from.list(Decoder::epoch)?,
        credits: from.list(|from| {
            Some(CreditedImpression {
                epoch: from.epoch()?,
                site: SiteId(from.word()?),
                caller: SiteId(from.word()?),
                match_value: from.word()?,
                histogram_index: from.word()?,
                permitted: from.long()?,
                value: from.word()?,
            })
        })?,
        taken: from.list(|from| {
            Some(ShareScope {
                impression_sites: from.list(|from| from.word().map(SiteId))?,
                impression_callers: from.list(|from| from.word().map(SiteId))?,
                match_values: from.list(Decoder::word)?,
            })
        })?,
    };
    from.0.is_empty().then_some(parts)
}

struct Encoder(Vec<u8>);

impl Encoder {
    fn word(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn long(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        // The length always fits: an object has a few dozen items of each kind.
        self.word(u32::try_from(items.len()).unwrap_or(u32::MAX));
        items.iter().for_each(|item| each(self, item));
    }
}

struct Decoder<'b>(&'b [u8]);

impl Decoder<'_> {
    fn word(&mut self) -> Option<u32> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_le_bytes(*word))
    }

    fn long(&mut self) -> Option<u64> {
        let (long, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*long))
    }

    fn epoch(&mut self) -> Option<EpochIndex> {
        Some(EpochIndex(self.long()?.cast_signed()))
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.word()?).map(|_| item(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_comes_back_as_it_was() {
        let parts = AttributionObjectData {
            conversion_site: SiteId(7),
            created: EpochIndex(3),
            callers: vec![SiteId(1), SiteId(2)],
            value: 3,
            credit: vec![0.5, 0.1 + 0.2],
            epsilon: 0.25,
            sensitivity: 20,
            single_epoch: true,
            epochs: vec![EpochIndex(-1), EpochIndex(i64::MAX)],
            credits: vec![CreditedImpression {
                epoch: EpochIndex(-1),
                site: SiteId(4),
                caller: SiteId(5),
                match_value: 6,
                histogram_index: 8,
                permitted: u64::MAX,
                value: 3,
            }],
            taken: vec![ShareScope {
                impression_sites: vec![SiteId(4)],
                impression_callers: Vec::new(),
                match_values: vec![1, 2, 3],
            }],
        };
        let bytes = encode(&parts);
        let decode = |bytes: &[u8]| decode(bytes, EpochIndex(3));
        assert_eq!(decode(&bytes), Some(parts));
        // Bytes that are missing or added are detected.
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None);
        }
        assert_eq!(decode(&[bytes, vec![0]].concat()), None);
    }
}
