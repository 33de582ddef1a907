//! Budget managers under audit: one interface for all of them.

mod agent;
mod device;
mod literal;
mod snapshot;
mod world;

use std::collections::BTreeMap;

pub use agent::{AgentManager, AuditedStore, TimingFlaw};
pub use device::DeviceManager;
pub use literal::LiteralManager;
pub use snapshot::{
    EpochSnapshot, FilterId, ObjectSnapshot, SnapshotDifference, StoredImpression, WorldSnapshot,
};
pub use world::StoreFlaw;

use crate::script::{Script, Step, Tape};

/// A budget manager under audit, in one of two worlds.
pub trait Manager {
    /// Makes a step happen, and returns everything that callers can observe of it.
    fn perform(&mut self, at: StepTime, step: &Step) -> Vec<Observation>;

    /// A snapshot of everything that is stored.
    fn snapshot(&mut self) -> WorldSnapshot;

    /// The amount in µε that the global budget of each epoch has ever granted. Pruning and clearing
    /// take nothing back.
    fn granted(&self) -> &BTreeMap<i64, u64>;

    /// The epochs in which something was saved, in the order of their first save.
    fn saved(&self) -> &[i64];
}

/// The number and the time of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepTime {
    /// The number of the step in its script, from 0.
    pub number: usize,
    /// The number of steps before it that draw. The tape goes by this, so that a script keeps its
    /// draws when other steps are left out.
    pub drawing: usize,
    /// The moment on the device's clock, in milliseconds since the beginning of epoch 0.
    pub now: i64,
}

/// The world that a manager is in.
#[derive(Debug, Clone)]
pub struct WorldSetup<'s> {
    /// The script.
    pub script: &'s Script,
    /// The draws.
    pub tape: Tape,
    /// The epoch in which saves leave nothing, in world 0.
    pub without: Option<i64>,
}

/// A kind of manager. It makes a new one for every script and world.
pub trait MakeManager: Sync {
    /// A new manager.
    fn make(&self, world: WorldSetup<'_>) -> Box<dyn Manager>;
}

/// Something that a caller observes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observation {
    /// An impression was taken. The page learns nothing more.
    Saved,
    /// A report, before noise is added.
    Report(SeenReport),
    /// The handle of a shared conversion, and the moment at which it may be released.
    Handle(u128, u64),
    /// An error, as the page gets it.
    Error(String),
}

/// A report, before noise is added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenReport {
    /// The histogram.
    pub buckets: Vec<u32>,
    /// The epsilon that goes on the wire, in µε. The noise follows it.
    pub epsilon: u64,
    /// The largest value. The scale of the noise is 2 · largest value / epsilon.
    pub max_value: u32,
    /// The length of the sealed report in bytes.
    pub length: usize,
    /// The moment at which it may be released.
    pub released: u64,
}
