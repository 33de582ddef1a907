//! The one row about the device: the user agent's state, and the digest over the ledger.

use std::num::NonZeroU32;

use bigbird::{Capacities, Capacity, EpochIndex, MicroEpsilon, Timestamp};
use bigbird_user_agent::{Setup, State};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::{Damage, Problem};
use crate::seal::{Digest, Row, Seal, Table};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) state: State,
    /// Epochs before this one were pruned.
    pub(crate) first_epoch: EpochIndex,
    pub(crate) digest: Digest,
    /// How many transactions wrote. Each conversion does, whatever it finds.
    pub(crate) writes: u64,
    /// Whether everything was in the database file when it was closed; else there is a log.
    pub(crate) closed_cleanly: bool,
}

impl Device {
    /// A device that has done nothing yet.
    pub(crate) fn new() -> Self {
        Self {
            state: State::default(),
            first_epoch: EpochIndex(i64::MIN),
            digest: Digest::default(),
            writes: 0,
            closed_cleanly: false,
        }
    }

    pub(crate) fn load(connection: &Connection) -> Result<Self, Problem> {
        let mut statement = connection.prepare_cached(
            "SELECT set_up, epoch_days, querier, global, impression_site, conversion_site,
                    user_action, domain_cap, enabled, epoch_start, last_clear, latest,
                    next_user_action, next_object, first_epoch, digest, ledger_rows, writes,
                    closed_cleanly, checksum
             FROM device WHERE id = 1",
        )?;
        let found = statement
            .query_row([], |row| {
                let capacity = |at| -> rusqlite::Result<Capacity> {
                    Ok(row
                        .get::<_, Option<i64>>(at)?
                        .map_or(Capacity::Unlimited, |micro| {
                            Capacity::Finite(MicroEpsilon::new(micro.cast_unsigned()))
                        }))
                };
                let moment = |at| -> rusqlite::Result<Option<Timestamp>> {
                    Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp))
                };
                let number = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
                let setup = Setup {
                    epoch_days: row.get(1)?,
                    capacities: Capacities {
                        querier: capacity(2)?,
                        global: capacity(3)?,
                        impression_site: capacity(4)?,
                        conversion_site: capacity(5)?,
                        user_action: capacity(6)?,
                    },
                    domain_cap: row.get::<_, Option<u32>>(7)?.and_then(NonZeroU32::new),
                };
                let device = Self {
                    state: State {
                        setup: row.get::<_, bool>(0)?.then_some(setup),
                        enabled: row.get(8)?,
                        epoch_start: moment(9)?,
                        last_clear: moment(10)?,
                        latest: moment(11)?,
                        next_user_action: number(12)?,
                        next_object: number(13)?,
                    },
                    first_epoch: EpochIndex(row.get(14)?),
                    digest: Digest {
                        sum: number(15)?,
                        rows: number(16)?,
                    },
                    writes: number(17)?,
                    closed_cleanly: row.get(18)?,
                };
                Ok((device, row.get(19)?))
            })
            .optional()?;
        let Some((device, checksum)) = found else {
            return Err(Damage::Invariant("the row about the device is missing".to_owned()).into());
        };
        device
            .seal()
            .verify(checksum, || "the row about the device".to_owned())?;
        Ok(device)
    }

    pub(crate) fn save(&self, connection: &Connection) -> Result<(), Problem> {
        let mut statement = connection.prepare_cached(
            "REPLACE INTO device VALUES
             (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        let columns = self.columns();
        let Columns {
            set_up,
            epoch_days,
            capacities:
                [
                    querier,
                    global,
                    impression_site,
                    conversion_site,
                    user_action,
                ],
            domain_cap,
            moments: [epoch_start, last_clear, latest],
        } = columns;
        statement.execute(params![
            set_up,
            epoch_days,
            querier,
            global,
            impression_site,
            conversion_site,
            user_action,
            domain_cap,
            self.state.enabled,
            epoch_start,
            last_clear,
            latest,
            self.state.next_user_action.cast_signed(),
            self.state.next_object.cast_signed(),
            self.first_epoch.0,
            self.digest.sum.cast_signed(),
            self.digest.rows.cast_signed(),
            self.writes.cast_signed(),
            self.closed_cleanly,
            self.seal().checksum,
        ])?;
        Ok(())
    }

    fn columns(&self) -> Columns {
        let setup = self.state.setup;
        let micro = |capacity: fn(&Capacities) -> Capacity| {
            let amount = capacity(&setup?.capacities).amount()?;
            Some(amount.get().cast_signed())
        };
        let moment = |moment: Option<Timestamp>| moment.map(|moment| moment.0);
        Columns {
            set_up: setup.is_some(),
            epoch_days: i64::from(setup.map_or(0, |setup| setup.epoch_days)),
            capacities: [
                micro(|of| of.querier),
                micro(|of| of.global),
                micro(|of| of.impression_site),
                micro(|of| of.conversion_site),
                micro(|of| of.user_action),
            ],
            domain_cap: setup
                .and_then(|setup| setup.domain_cap)
                .map(|cap| i64::from(cap.get())),
            moments: [
                moment(self.state.epoch_start),
                moment(self.state.last_clear),
                moment(self.state.latest),
            ],
        }
    }

    fn seal(&self) -> Seal {
        let columns = self.columns();
        let mut row = Row::of(Table::Device)
            .int(i64::from(columns.set_up))
            .int(columns.epoch_days)
            .optional(columns.domain_cap)
            .int(i64::from(self.state.enabled))
            .int(self.state.next_user_action.cast_signed())
            .int(self.state.next_object.cast_signed())
            .int(self.first_epoch.0)
            .int(self.digest.sum.cast_signed())
            .int(self.digest.rows.cast_signed())
            .int(self.writes.cast_signed())
            .int(i64::from(self.closed_cleanly));
        for value in columns.capacities.into_iter().chain(columns.moments) {
            row = row.optional(value);
        }
        row.seal()
    }
}

/// The parts of the row that are not just numbers.
struct Columns {
    set_up: bool,
    epoch_days: i64,
    capacities: [Option<i64>; 5],
    domain_cap: Option<i64>,
    moments: [Option<i64>; 3],
}
