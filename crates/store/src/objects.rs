//! Attribution objects: what several queriers still share of a conversion. They are part of the
//! ledger: whoever could take a share twice would learn more than was paid.

use bigbird::attribution::{Credit, ObjectParts, Support};
use bigbird::{AttributionObject, EpochIndex, SiteId};
use bigbird_attribution::MAX_OBJECTS;
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Damage, Problem};
use crate::seal::{Row, Seal, Table};
use crate::transaction::SqliteTransaction;

fn seal(id: i64, site: SiteId, body: &[u8]) -> Seal {
    Row::of(Table::Object).int(id).site(site).bytes(body).seal()
}

/// Reads an object, having verified it.
fn read(
    id: i64,
    site: SiteId,
    body: &[u8],
    checksum: i64,
) -> Result<(AttributionObject, Seal), Problem> {
    let what = || format!("attribution object {id}");
    let seal = seal(id, site, body).verify(checksum, what)?;
    let object = decode(body).and_then(|parts| AttributionObject::from_parts(parts).ok());
    match object.filter(|object| object.conversion_site() == site) {
        Some(object) => Ok((object, seal)),
        None => Err(Damage::Row(what()).into()),
    }
}

/// Gives every object, having verified each.
pub(crate) fn scan(
    connection: &Connection,
    mut each: impl FnMut(i64, AttributionObject, Seal) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut statement = connection.prepare_cached("SELECT id, site, body, checksum FROM object")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        let body = row.get_ref(2)?.as_blob().map_err(rusqlite::Error::from)?;
        let (object, seal) = read(id, SiteId(row.get(1)?), body, row.get(3)?)?;
        each(id, object, seal)?;
    }
    Ok(())
}

impl SqliteTransaction<'_> {
    fn find_object(&self, id: i64) -> Result<Option<(AttributionObject, Seal)>, Problem> {
        let mut statement = self
            .connection()
            .prepare_cached("SELECT site, body, checksum FROM object WHERE id = ?")?;
        let found: Option<(u32, Vec<u8>, i64)> = statement
            .query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .optional()?;
        found
            .map(|(site, body, checksum)| read(id, SiteId(site), &body, checksum))
            .transpose()
    }

    pub(crate) fn object_of(&self, id: u64) -> Result<Option<AttributionObject>, Problem> {
        let found = self.find_object(id.cast_signed())?;
        Ok(found.map(|(object, _)| object))
    }

    pub(crate) fn write_object(
        &mut self,
        id: u64,
        object: &AttributionObject,
    ) -> Result<(), Problem> {
        self.replace_object(id.cast_signed(), object)?;
        let count: u32 = self
            .connection()
            .query_row("SELECT count(*) FROM object", [], |row| row.get(0))?;
        for _ in MAX_OBJECTS..count as usize {
            // The oldest of the conversion site that has most.
            let oldest = self.connection().query_row(
                "SELECT min(id) FROM object GROUP BY site ORDER BY count(*) DESC, site DESC LIMIT 1",
                [],
                |row| row.get(0),
            )?;
            self.delete_object(oldest)?;
        }
        Ok(())
    }

    fn replace_object(&mut self, id: i64, object: &AttributionObject) -> Result<(), Problem> {
        self.delete_object(id)?;
        let site = object.conversion_site();
        let body = encode(&object.parts());
        let seal = seal(id, site, &body);
        self.connection()
            .prepare_cached("INSERT INTO object VALUES (?, ?, ?, ?)")?
            .execute(params![id, site.0, body, seal.checksum])?;
        self.device.digest.add(seal);
        Ok(())
    }

    fn delete_object(&mut self, id: i64) -> Result<(), Problem> {
        if let Some((_, seal)) = self.find_object(id)? {
            self.connection()
                .execute("DELETE FROM object WHERE id = ?", [id])?;
            self.device.digest.remove(seal);
        }
        Ok(())
    }

    /// Changes every object; `None` removes it.
    pub(crate) fn update_objects(
        &mut self,
        update: impl Fn(AttributionObject) -> Option<AttributionObject>,
    ) -> Result<(), Problem> {
        let mut changed = Vec::new();
        scan(self.connection(), |id, object, _| {
            let before = object.clone();
            match update(object) {
                Some(object) if object == before => {}
                after => changed.push((id, after)),
            }
            Ok(())
        })?;
        for (id, object) in changed {
            self.erased = true;
            match object {
                Some(object) => self.replace_object(id, &object)?,
                None => self.delete_object(id)?,
            }
        }
        Ok(())
    }
}

/// The parts of an object in their order, numbers little-endian, lists after their length.
fn encode(parts: &ObjectParts) -> Vec<u8> {
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
    out.list(&parts.taken, |out, support| {
        out.list(&support.impression_sites, |out, site| out.word(site.0));
        out.list(&support.impression_callers, |out, site| out.word(site.0));
        out.list(&support.match_values, |out, value| out.word(*value));
    });
    out.0
}

fn decode(bytes: &[u8]) -> Option<ObjectParts> {
    let mut from = Decoder(bytes);
    let parts = ObjectParts {
        conversion_site: SiteId(from.word()?),
        callers: from.list(|from| from.word().map(SiteId))?,
        value: from.word()?,
        credit: from.list(|from| from.long().map(f64::from_bits))?,
        epsilon: f64::from_bits(from.long()?),
        sensitivity: from.long()?,
        single_epoch: from.word()? != 0,
        epochs: from.list(Decoder::epoch)?,
        credits: from.list(|from| {
            Some(Credit {
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
            Some(Support {
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
        // Lists that do not fit do not arise: an object has a few dozen of everything.
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
        let parts = ObjectParts {
            conversion_site: SiteId(7),
            callers: vec![SiteId(1), SiteId(2)],
            value: 3,
            credit: vec![0.5, 0.1 + 0.2],
            epsilon: 0.25,
            sensitivity: 20,
            single_epoch: true,
            epochs: vec![EpochIndex(-1), EpochIndex(i64::MAX)],
            credits: vec![Credit {
                epoch: EpochIndex(-1),
                site: SiteId(4),
                caller: SiteId(5),
                match_value: 6,
                histogram_index: 8,
                permitted: u64::MAX,
                value: 3,
            }],
            taken: vec![Support {
                impression_sites: vec![SiteId(4)],
                impression_callers: Vec::new(),
                match_values: vec![1, 2, 3],
            }],
        };
        let bytes = encode(&parts);
        assert_eq!(decode(&bytes), Some(parts));
        // Whatever is cut off or added is noticed.
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length]), None);
        }
        assert_eq!(decode(&[bytes, vec![0]].concat()), None);
    }
}
