//! The device row: the user agent's state, and the ledger digest.

use std::num::NonZeroU32;

use bigbird::{Capacities, Capacity, EpochIndex, MicroEpsilon, Policy, Profile, Timestamp};
use bigbird_user_agent::{DeviceState, Rules, Timeline};
use rusqlite::{Connection, OptionalExtension, params};

use crate::checksum::{LedgerDigest, RowGuard, RowHasher, TableTag};
use crate::error::{Damage, Problem};

/// The only row of the table `device`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceRow {
    pub(crate) state: DeviceState,
    pub(crate) digest: LedgerDigest,
    /// The number of transactions that wrote. Every conversion writes, whatever it finds. The
    /// number never decreases, so that a log older than the file can be detected.
    pub(crate) writes: u64,
    /// True if everything is in the database file since it was closed. Otherwise there is a log.
    pub(crate) closed_cleanly: bool,
}

impl DeviceRow {
    /// The row of a new device.
    pub(crate) fn new() -> Self {
        Self {
            state: DeviceState::default(),
            digest: LedgerDigest::default(),
            writes: 0,
            closed_cleanly: false,
        }
    }

    pub(crate) fn load(connection: &Connection) -> Result<Self, Problem> {
        let mut statement = connection.prepare_cached(
            "SELECT timeline, enabled, first_epoch, last_clear, latest, latest_use,
                    next_user_action, next_object, digest, ledger_rows, writes,
                    closed_cleanly, checksum
             FROM device WHERE id = 1",
        )?;
        let found = statement
            .query_row([], |row| {
                let moment = |at| -> rusqlite::Result<Option<Timestamp>> {
                    Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp))
                };
                let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
                let device = Self {
                    state: DeviceState {
                        timeline: Timeline::default(),
                        enabled: row.get(1)?,
                        first_epoch: EpochIndex(row.get(2)?),
                        last_clear: moment(3)?,
                        latest: moment(4)?,
                        latest_use: moment(5)?,
                        next_user_action: number(6)?,
                        next_object: number(7)?,
                    },
                    digest: LedgerDigest {
                        sum: number(8)?,
                        rows: number(9)?,
                    },
                    writes: number(10)?,
                    closed_cleanly: row.get(11)?,
                };
                Ok((device, row.get::<_, String>(0)?, row.get(12)?))
            })
            .optional()?;
        let Some((mut device, timeline, checksum)) = found else {
            return Err(Damage::Invariant("the row for the device is missing".to_owned()).into());
        };
        let what = || "the device".to_owned();
        device.guard(&timeline).verify(checksum, what)?;
        device.state.timeline =
            serde_json::from_str(&timeline).map_err(|_| Problem::from(Damage::Row(what())))?;
        Ok(device)
    }

    /// Loads the row from a store of any version of the schema.
    pub(crate) fn load_any(connection: &Connection) -> Result<Self, Problem> {
        Self::load(connection).or_else(|problem| match OldDeviceRow::load(connection) {
            Ok(Some(old)) => old.device(),
            _ => Err(problem),
        })
    }

    pub(crate) fn save(&self, connection: &Connection) -> Result<(), Problem> {
        let Self { state, digest, .. } = self;
        let timeline = serde_json::to_string(&state.timeline)
            .map_err(|error| Problem::io("writing the rules of epochs")(error.into()))?;
        let moment = |moment: Option<Timestamp>| moment.map(|moment| moment.0);
        let mut statement = connection.prepare_cached(
            "REPLACE INTO device VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        statement.execute(params![
            timeline,
            state.enabled,
            state.first_epoch.0,
            moment(state.last_clear),
            moment(state.latest),
            moment(state.latest_use),
            state.next_user_action.cast_signed(),
            state.next_object.cast_signed(),
            digest.sum.cast_signed(),
            digest.rows.cast_signed(),
            self.writes.cast_signed(),
            self.closed_cleanly,
            self.guard(&timeline).checksum,
        ])?;
        Ok(())
    }

    fn guard(&self, timeline: &str) -> RowGuard {
        let Self { state, digest, .. } = self;
        let moments = [state.last_clear, state.latest, state.latest_use];
        let row = RowHasher::of(TableTag::Device)
            .int(i64::from(state.enabled))
            .int(state.first_epoch.0)
            .int(state.next_user_action.cast_signed())
            .int(state.next_object.cast_signed())
            .int(digest.sum.cast_signed())
            .int(digest.rows.cast_signed())
            .int(self.writes.cast_signed())
            .int(i64::from(self.closed_cleanly));
        let row = moments
            .into_iter()
            .fold(row, |row, moment| row.optional(moment.map(|it| it.0)));
        row.bytes(timeline.as_bytes()).guard()
    }
}

/// The device row of versions 1 and 2 of the schema. The values are in the order in which they are
/// hashed.
pub(crate) struct OldDeviceRow([Option<i64>; 19]);

const DOMAIN_CAP: usize = 2;
const DIGEST: usize = 7;
const CAPACITIES: usize = 11;

impl OldDeviceRow {
    pub(crate) fn load(connection: &Connection) -> Result<Option<Self>, Problem> {
        let columns = "set_up, epoch_days, domain_cap, enabled, next_user_action, next_object, \
            first_epoch, digest, ledger_rows, writes, closed_cleanly, querier, global, \
            impression_site, conversion_site, user_action, epoch_start, last_clear, latest";
        let sql = format!("SELECT {columns}, checksum FROM device WHERE id = 1");
        let found = connection
            .query_row(&sql, [], |row| {
                let mut values = [None; 19];
                for (at, value) in values.iter_mut().enumerate() {
                    *value = row.get(at)?;
                }
                Ok((Self(values), row.get(values.len())?))
            })
            .optional()?;
        let Some((device, checksum)) = found else {
            return Ok(None);
        };
        let what = || "the device".to_owned();
        device.guard().verify(checksum, what)?;
        Ok(Some(device))
    }

    fn guard(&self) -> RowGuard {
        let values = self.0.into_iter().enumerate();
        let row = values.fold(
            RowHasher::of(TableTag::Device),
            |row, (at, value)| match at {
                DOMAIN_CAP | CAPACITIES.. => row.optional(value),
                _ => row.int(value.unwrap_or_default()),
            },
        );
        row.guard()
    }

    pub(crate) fn digest(&self) -> LedgerDigest {
        let number = |at: usize| self.0[at].unwrap_or_default().cast_unsigned();
        LedgerDigest {
            sum: number(DIGEST),
            rows: number(DIGEST + 1),
        }
    }

    pub(crate) fn set_digest(
        &mut self,
        connection: &Connection,
        digest: LedgerDigest,
    ) -> Result<(), Problem> {
        let (sum, rows) = (digest.sum.cast_signed(), digest.rows.cast_signed());
        (self.0[DIGEST], self.0[DIGEST + 1]) = (Some(sum), Some(rows));
        connection.execute(
            "UPDATE device SET digest = ?, ledger_rows = ?, checksum = ?",
            [sum, rows, self.guard().checksum],
        )?;
        Ok(())
    }

    /// Converts the row to its present form.
    pub(crate) fn device(&self) -> Result<DeviceRow, Problem> {
        let [epoch_start, last_clear, latest] = [16, 17, 18].map(|at| self.0[at].map(Timestamp));
        let number = |at: usize| self.0[at].unwrap_or_default().cast_unsigned();
        let set_up = number(0) != 0;
        let state = DeviceState {
            enabled: number(3) != 0,
            timeline: match epoch_start {
                Some(start) if set_up => Timeline::starting(start, self.rules()?),
                _ => Timeline::default(),
            },
            first_epoch: match epoch_start {
                // The store was reset, and nothing has used it since.
                Some(_) if !set_up => EpochIndex(1),
                _ => EpochIndex(number(6).cast_signed()),
            },
            last_clear,
            latest,
            latest_use: latest.max(last_clear).max(epoch_start),
            next_user_action: number(4),
            next_object: number(5),
        };
        Ok(DeviceRow {
            state,
            digest: self.digest(),
            writes: number(9),
            closed_cleanly: number(10) != 0,
        })
    }

    /// The rules of the device. The old row did not say how losses are charged, so the rules are
    /// those of the profile that has these limits.
    fn rules(&self) -> Result<Rules, Problem> {
        let capacity = |at: usize| {
            let micro = self.0[CAPACITIES + at];
            let amount = micro.map(|micro| MicroEpsilon::new(micro.cast_unsigned()));
            Capacity::from(amount)
        };
        let capacities = Capacities {
            querier_budget: capacity(0),
            global_budget: capacity(1),
            impression_site_quota: capacity(2),
            conversion_site_quota: capacity(3),
            user_action_budget: capacity(4),
        };
        let number = |at: usize| self.0[at].and_then(|value| u32::try_from(value).ok());
        let cap = number(DOMAIN_CAP).and_then(NonZeroU32::new);
        let unlimited = |capacity| capacity == Capacity::Unlimited;
        let draft = cap.is_none()
            && unlimited(capacities.conversion_site_quota)
            && !unlimited(capacities.impression_site_quota);
        let profile = match draft {
            true => Profile::W3cDraft,
            false => Profile::BigBird,
        };
        let policy = profile.policy().to_builder().capacities(capacities);
        let policy = match cap {
            Some(cap) => policy.domain_cap(cap.get()),
            None => policy.no_domain_cap(),
        };
        let wrong = |_| Problem::from(Damage::Row("the rules of the device".to_owned()));
        let policy: Policy = policy.build().map_err(wrong)?;
        Ok(Rules {
            epoch_days: number(1).unwrap_or(7),
            policy,
        })
    }
}

/// Migrates to version 3 of the schema: every epoch has its own rules.
pub(crate) fn migrate_to_3(connection: &Connection) -> Result<(), Problem> {
    let old = OldDeviceRow::load(connection)?;
    connection.execute_batch(
        "DROP TABLE device;
         -- One row: the user agent's own state, and the digest over the ledger.
         CREATE TABLE device (
             id INTEGER PRIMARY KEY CHECK (id = 1),
             timeline TEXT NOT NULL,
             enabled INTEGER NOT NULL,
             first_epoch INTEGER NOT NULL,
             last_clear INTEGER,
             latest INTEGER,
             latest_use INTEGER,
             next_user_action INTEGER NOT NULL,
             next_object INTEGER NOT NULL,
             digest INTEGER NOT NULL,
             ledger_rows INTEGER NOT NULL,
             writes INTEGER NOT NULL,
             closed_cleanly INTEGER NOT NULL,
             checksum INTEGER NOT NULL
         ) STRICT;",
    )?;
    let Some(old) = old else {
        return Ok(());
    };
    let mut device = old.device()?;
    // The time of the latest call is not known, but its admissions are. No epoch after the last one
    // with an admission was used.
    let last: Option<i64> =
        connection.query_row("SELECT max(epoch) FROM admission", [], |row| row.get(0))?;
    let used = last.and_then(|last| device.state.timeline.beginning(EpochIndex(last)));
    device.state.latest_use = device.state.latest_use.max(used);
    device.save(connection)
}

/// Migrates to version 5 of the schema: the stored rules of epochs have the fields
/// `ownActionEvents`, `closedSites` and `allowedQueriers`, which replace the flag
/// `matchesOwnAction`.
pub(crate) fn migrate_to_5(connection: &Connection) -> Result<(), Problem> {
    let rows: i64 = connection.query_row("SELECT count(*) FROM device", [], |row| row.get(0))?;
    if rows == 0 {
        return Ok(());
    }
    // Reading accepts both forms, and writing produces the new one.
    DeviceRow::load(connection)?.save(connection)
}
