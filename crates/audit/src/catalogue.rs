//! The managers that an audit knows: the real ones, those that must be caught, and those that only
//! waste.

use bigbird::{FilterKind, Profile};
use bigbird_reference::Flaw;

use crate::manager::{
    AgentManager, AuditedStore, DeviceManager, LiteralManager, MakeManager, StoreFlaw, TimingFlaw,
};
use crate::search::Ingredients;

/// A manager of the catalogue.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// A sentence about it: what it is, or why it leaks or wastes.
    pub about: &'static str,
    /// The number of steps of the shortest script that is known to breach an oracle, without moves
    /// of the clock. 0 if nothing should.
    pub witness: usize,
    /// What its scripts are made of.
    pub ingredients: Ingredients,
    /// The manager.
    pub make: Box<dyn MakeManager + Send>,
}

/// The kind of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The code that we ship: no oracle may be breached.
    Real,
    /// A manager with a mistake that leaks: oracle ii or iii must be breached.
    Broken,
    /// A manager with a mistake that only wastes: neither oracle ii nor iii may be breached.
    Wasteful,
}

impl Kind {
    /// Its name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Broken => "broken",
            Self::Wasteful => "wasteful",
        }
    }
}

/// Every manager, the real ones first.
pub fn catalogue() -> Vec<Entry> {
    let mut entries = real();
    entries.extend(broken_references());
    entries.extend(broken_agents());
    entries.extend(wasteful());
    entries
}

fn real() -> Vec<Entry> {
    let memory = || AgentManager::real(AuditedStore::Memory);
    let sqlite = || AgentManager::real(AuditedStore::Sqlite);
    let entry = |name, about, profile, back, user_agent, make| Entry {
        name,
        kind: Kind::Real,
        about,
        witness: 0,
        ingredients: Ingredients {
            profile,
            clock_steps_back: back,
            user_agent,
        },
        make,
    };
    type Make = Box<dyn MakeManager + Send>;
    let device = || -> Make { Box::new(DeviceManager) };
    let memory = || -> Make { Box::new(memory()) };
    let sqlite = || -> Make { Box::new(sqlite()) };
    let (ours, global, draft) = (Profile::BigBird, Profile::GlobalOnly, Profile::W3cDraft);
    let engine = "The engine without a user agent";
    let in_memory = "The whole user agent, in memory";
    let on_disk = "The whole user agent, on SQLite";
    let engine_back = "The engine, under a clock that also steps back";
    let memory_back = "The user agent in memory, under a clock that also steps back";
    let disk_back = "The user agent on SQLite, under a clock that also steps back";
    vec![
        entry("device", engine, ours, false, false, device()),
        entry("device-clock", engine_back, ours, true, false, device()),
        entry("device-global-only", engine, global, false, false, device()),
        entry("device-w3c-draft", engine, draft, false, false, device()),
        entry("agent", in_memory, ours, false, true, memory()),
        entry("agent-clock", memory_back, ours, true, true, memory()),
        entry(
            "agent-global-only",
            in_memory,
            global,
            false,
            true,
            memory(),
        ),
        entry(
            "agent-global-only-clock",
            memory_back,
            global,
            true,
            true,
            memory(),
        ),
        entry("agent-w3c-draft", in_memory, draft, false, true, memory()),
        entry(
            "agent-w3c-draft-clock",
            memory_back,
            draft,
            true,
            true,
            memory(),
        ),
        entry("sqlite", on_disk, ours, false, true, sqlite()),
        entry("sqlite-clock", disk_back, ours, true, true, sqlite()),
        entry("sqlite-w3c-draft", on_disk, draft, false, true, sqlite()),
    ]
}

/// A literal reference with a flaw.
fn literal(
    name: &'static str,
    kind: Kind,
    flaw: Flaw,
    witness: usize,
    about: &'static str,
) -> Entry {
    Entry {
        name,
        kind,
        about,
        witness,
        ingredients: Ingredients {
            profile: Profile::BigBird,
            // Only the clock can bring a pruned epoch back.
            clock_steps_back: flaw == Flaw::PruningRefunds,
            user_agent: false,
        },
        make: Box::new(LiteralManager { flaw: Some(flaw) }),
    }
}

fn broken_references() -> Vec<Entry> {
    let broken = |name, flaw, witness, about| literal(name, Kind::Broken, flaw, witness, about);
    vec![
        broken(
            "action-budget-over-epochs",
            Flaw::ActionBudgetOverEpochs,
            4,
            "The loss of X uses up the user action's budget, which then empties the report of Y",
        ),
        broken(
            "released-unpaid",
            Flaw::ReleasedUnpaid,
            3,
            "The refusal of one filter is ignored: the second report is free",
        ),
        broken(
            "global-charged-once",
            Flaw::GlobalChargedOnce,
            3,
            "Later charges compare with an undefined number: only the first one counts",
        ),
        broken(
            "cap-empties-the-report",
            Flaw::CapEmptiesReport,
            3,
            "A save in X fills the domain cap there, and the refusal empties Y too",
        ),
        broken(
            "rounded-down",
            Flaw::RoundedDown,
            4,
            "Losses are rounded down: half a µε costs nothing",
        ),
        broken(
            "winner-pays",
            Flaw::WinnerPays,
            4,
            "Only epochs that get credit pay, so the balance of Y shows X",
        ),
        broken(
            "single-by-stored",
            Flaw::SingleByStored,
            4,
            "One epoch with data counts as a window of one, so Y pays by what X holds",
        ),
        broken(
            "double-draw",
            Flaw::DrawnAgain,
            3,
            "One draw to charge, another to release: charged 0, released v",
        ),
        broken(
            "refund-on-clear",
            Flaw::ClearingRefunds,
            5,
            "Clearing forgets what was spent: X pays twice its capacity",
        ),
        broken(
            "pruning-refunds",
            Flaw::PruningRefunds,
            5,
            "A pruned epoch is new again: X pays twice its capacity",
        ),
        broken(
            "limit-over-epochs",
            Flaw::SharedLimit,
            3,
            "One limit for the impressions of all epochs: a save in X evicts from Y",
        ),
        broken(
            "attributes-again",
            Flaw::AttributesAgain,
            7,
            "Each share divides the value again, so more value moves than was paid for",
        ),
        broken(
            "object-charged-in-range",
            Flaw::ObjectChargedInRange,
            3,
            "The creator of a shared conversion pays for its own histogram, and shares are larger",
        ),
        broken(
            "pays-for-own-credit",
            Flaw::PaysForOwnCredit,
            5,
            "A share pays only where it got credit, so the querier budget of Y shows X",
        ),
        broken(
            "drop-site-everywhere",
            Flaw::DropSiteEverywhere,
            4,
            "A site that is depleted in X loses its impressions in Y",
        ),
        broken(
            "visible-null",
            Flaw::EmptyNull,
            2,
            "A null report looks different from others",
        ),
        broken(
            "bound-over-window",
            Flaw::ReadLimitOverWindow,
            4,
            "The bound on what is read is shared by the epochs of a window: X pushes Y out",
        ),
    ]
}

fn broken_agents() -> Vec<Entry> {
    let entry = |name, manager: AgentManager, back, witness, about| Entry {
        name,
        kind: Kind::Broken,
        about,
        witness,
        ingredients: Ingredients {
            profile: Profile::BigBird,
            clock_steps_back: back,
            user_agent: true,
        },
        make: Box::new(manager),
    };
    let store = |name, flaw, back, witness, about| {
        let manager = AgentManager::with_store_flaw(flaw);
        entry(name, manager, back, witness, about)
    };
    let host = |name, flaw, witness, about| {
        let manager = AgentManager::with_host_flaw(flaw);
        entry(name, manager, false, witness, about)
    };
    vec![
        store(
            "share-refused-whole",
            StoreFlaw::ShareRefusedWhole,
            false,
            5,
            "A share is null and free when one paid epoch is out of reach, so Y pays by what X holds",
        ),
        store(
            "objects-by-what-was-paid",
            StoreFlaw::ObjectsByPayment,
            false,
            7,
            "A shared conversion that nothing was paid for is forgotten first: X displaces Y",
        ),
        store(
            "latest-charge",
            StoreFlaw::LatestByCharge,
            true,
            6,
            "Upkeep closes epochs by when something was charged: the charge of X closes Y",
        ),
        store(
            "freed-by-global",
            StoreFlaw::FreedBy(FilterKind::GlobalBudget),
            false,
            5,
            "If the global budget of X refuses, Y is not charged either",
        ),
        store(
            "freed-by-conversion-site",
            StoreFlaw::FreedBy(FilterKind::ConversionSiteQuota),
            false,
            5,
            "If the conversion-site quota of X refuses, Y is not charged either",
        ),
        store(
            "late-commit",
            StoreFlaw::LateCommit,
            false,
            3,
            "A charge is written with the next request: two requests see the same balance",
        ),
        store(
            "charged-after-release",
            StoreFlaw::ChargedAfterRelease,
            false,
            4,
            "A charge is written after the release: a crash in between loses it",
        ),
        store(
            "rules-to-and-fro",
            StoreFlaw::RulesRenew,
            false,
            5,
            "A change of rules renews epochs: X pays twice its capacity",
        ),
        host(
            "queue-by-work",
            TimingFlaw::QueueByWork,
            4,
            "A call is refused while others are unfinished, so the work of X decides about Y",
        ),
        host(
            "order-by-work",
            TimingFlaw::OrderByWork,
            4,
            "Who is ready first is charged first, so the work of X decides about Y",
        ),
        host(
            "deadline-uncharged",
            TimingFlaw::DeadlineUncharged,
            4,
            "Late answers are null and not charged, so the work of X decides about Y",
        ),
    ]
}

fn wasteful() -> Vec<Entry> {
    let wasteful = |name, flaw, about| literal(name, Kind::Wasteful, flaw, 0, about);
    vec![
        wasteful(
            "not-atomic",
            Flaw::HalfPaid,
            "An epoch that is refused charges some of its filters",
        ),
        wasteful(
            "charges-what-it-empties",
            Flaw::ChargesWhatItEmpties,
            "The paper's listing of the user-action budget charges the epoch that it empties",
        ),
        wasteful(
            "admission-taken-back",
            Flaw::AdmissionTakenBack,
            "The admission of a conversion site is taken back if its epoch is dropped",
        ),
        wasteful(
            "always-worst-case",
            Flaw::AlwaysWorstCase,
            "Every window is charged as if it had several epochs",
        ),
        wasteful(
            "dropped-by-coin",
            Flaw::DroppedByCoin,
            "A coin that does not look at data empties reports that were paid for",
        ),
    ]
}
