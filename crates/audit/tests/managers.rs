//! Managers under audit agree with each other, and the search tells them apart from broken ones.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use bigbird::{FilterKind, Profile};
use bigbird_audit::catalogue::{Kind, catalogue};
use bigbird_audit::manager::{
    AgentManager, AuditedStore, DeviceManager, EpochSnapshot, LiteralManager, MakeManager,
    Observation, StoreFlaw,
};
use bigbird_audit::meter::{Breach, audit, play};
use bigbird_audit::run::{AuditPlan, Budget, run};
use bigbird_audit::script::{Script, ScriptCall, Step, Tape};
use bigbird_audit::search::{Ingredients, Search, Tactics, leak, random_scripts};

fn ingredients(user_agent: bool, clock_steps_back: bool) -> Ingredients {
    Ingredients {
        profile: Profile::BigBird,
        clock_steps_back,
        user_agent,
    }
}

fn data(folder: &str) -> Vec<(String, Script)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|it| it.unwrap().path())
        .collect();
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let script: Script = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        script.check().unwrap();
        (name, script)
    };
    files.into_iter().map(read).collect()
}

/// The engine and the literal algorithm give the same answers and grant the same, for requests,
/// shared conversions, shares and clears. So the broken references differ from the real thing in
/// their flaw alone.
#[test]
fn the_device_agrees_with_the_literal_algorithm() {
    let scripts = random_scripts(ingredients(false, true), 1500, 4);
    for script in &scripts {
        let tape = || Tape::new(script.tape);
        let device = play(&DeviceManager, script, tape(), None);
        let literal = play(&LiteralManager::default(), script, tape(), None);
        assert_eq!(device.saved, literal.saved);
        for (number, (one, other)) in device.records.iter().zip(&literal.records).enumerate() {
            assert_eq!(one.seen, other.seen, "step {number} of {script:#?}");
            assert_eq!(one.granted, other.granted, "step {number} of {script:#?}");
        }
    }
}

/// A store on disk gives the same answers as one in memory, through restarts and kills.
#[test]
fn a_store_on_disk_agrees_with_one_in_memory() {
    for script in random_scripts(ingredients(true, true), 25, 6) {
        let tape = || Tape::new(script.tape);
        let stores = [AuditedStore::Memory, AuditedStore::Sqlite];
        let [memory, disk] = stores.map(|it| play(&AgentManager::real(it), &script, tape(), None));
        for (number, (one, other)) in memory.records.iter().zip(&disk.records).enumerate() {
            assert_eq!(one.seen, other.seen, "step {number} of {script:#?}");
            assert_eq!(one.snapshot, other.snapshot, "step {number} of {script:#?}");
        }
    }
}

/// An explanation just before a call says what the call will do.
#[test]
fn explanations_predict_what_happens() {
    let manager = AgentManager {
        checks_explanations: true,
        ..AgentManager::real(AuditedStore::Memory)
    };
    for script in random_scripts(ingredients(true, true), 800, 8) {
        play(&manager, &script, Tape::new(script.tape), None);
    }
}

/// A short search finds no breach of any oracle on the real managers. `bigbird audit` searches for
/// longer.
#[test]
fn the_real_managers_hold() {
    for entry in catalogue().iter().filter(|entry| entry.kind == Kind::Real) {
        let scripts = if entry.name.starts_with("sqlite") {
            15
        } else {
            400
        };
        let manager = &*entry.make;
        let mut search = Search::new(entry.name, manager, entry.ingredients, Tactics::ALL, 2);
        search.run(scripts);
        assert!(
            search.finding.is_none(),
            "{}: {:#?}",
            entry.name,
            search.finding
        );
        assert_eq!(search.unseparated, None, "{}", entry.name);
    }
}

/// Random scripts fill every kind of filter, and reach the limits on impressions and on shared
/// conversions, clearing, pruning and refusals. Otherwise the search would test little.
#[test]
fn scripts_reach_every_limit() {
    let manager = AgentManager::real(AuditedStore::Memory);
    let mut reached: BTreeMap<String, u32> = BTreeMap::new();
    for script in random_scripts(ingredients(true, true), 2000, 12) {
        let played = play(&manager, &script, Tape::new(script.tape), None);
        let mut of_script = BTreeSet::new();
        for (step, record) in script.steps.iter().zip(&played.records) {
            for (filter, consumed) in record.snapshot.epochs.values().flat_map(|it| &it.consumed) {
                if script.setup.capacity(filter.kind) == Some(*consumed) {
                    of_script.insert(format!("{} used up", filter.kind));
                }
            }
            let number = |name: &str| {
                let mut shared = record.snapshot.shared.iter();
                shared
                    .find(|(other, _)| *other == name)
                    .map_or(0, |(_, number)| *number)
            };
            if number("the first epoch that is open") > i64::MIN {
                of_script.insert("epochs closed".to_owned());
            }
            if record.snapshot.objects.len() == script.setup.max_objects {
                of_script.insert("shared conversions full".to_owned());
            }
            let units = |it: &EpochSnapshot| it.stored.len();
            let most = record
                .snapshot
                .epochs
                .values()
                .map(units)
                .max()
                .unwrap_or(0);
            if most >= script.setup.units_per_epoch.get() as usize {
                of_script.insert("impressions full".to_owned());
            }
            if let (Step::Call(ScriptCall::Measure(_)), [Observation::Report(report)]) =
                (step, record.seen.as_slice())
            {
                let null = report.buckets.iter().all(|it| *it == 0);
                let kind = if null { "null report" } else { "report" };
                of_script.insert(kind.to_owned());
            }
        }
        for what in of_script {
            *reached.entry(what).or_default() += 1;
        }
    }
    let kinds = FilterKind::ALL.map(|kind| format!("{kind} used up"));
    let others = [
        "epochs closed",
        "shared conversions full",
        "impressions full",
        "null report",
        "report",
    ];
    for what in kinds.into_iter().chain(others.map(str::to_owned)) {
        assert!(reached.get(&what) > Some(&20), "{what}: {reached:#?}");
    }
}

/// What a search once found in the real code stays mended.
#[test]
fn what_was_found_in_the_real_code_holds() {
    for (name, script) in data("found") {
        for store in [AuditedStore::Memory, AuditedStore::Sqlite] {
            let verdict = audit(&AgentManager::real(store), &script);
            assert_eq!(verdict.violation, None, "{name}");
            assert_eq!(verdict.separation, None, "{name}");
        }
    }
}

/// Every broken manager is caught by its shortest known script, and the sound ones hold on all of
/// them.
#[test]
fn known_scripts_catch_broken_managers_and_spare_sound_ones() {
    let scripts = data("witnesses");
    let entries = catalogue();
    for entry in entries.iter().filter(|entry| entry.kind == Kind::Broken) {
        let name = entry.name;
        let script = scripts.iter().find(|(of, _)| of == name);
        let (_, script) = script.unwrap_or_else(|| panic!("there is no script for {name}"));
        assert!(leak(&*entry.make, script).is_some(), "{name} is not caught");
        let most = 2 * entry.witness;
        assert!(
            script.steps.len() <= most,
            "{name}: {} steps",
            script.steps.len()
        );
        for at in 0..script.steps.len() {
            let mut shorter = script.clone();
            shorter.steps.remove(at);
            let caught = leak(&*entry.make, &shorter);
            assert_eq!(caught, None, "{name}: step {} is not needed", at + 1);
        }
    }
    let sound: [&dyn MakeManager; 3] = [
        &LiteralManager::default(),
        &DeviceManager,
        &AgentManager::real(AuditedStore::Memory),
    ];
    for (name, script) in &scripts {
        for manager in sound {
            let verdict = audit(manager, script);
            assert_eq!(verdict.violation, None, "{name}");
            assert_eq!(verdict.separation, None, "{name}");
        }
        for entry in entries.iter().filter(|entry| entry.kind == Kind::Wasteful) {
            assert_eq!(leak(&*entry.make, script), None, "{} by {name}", entry.name);
        }
    }
}

/// The search catches mistakes of every family within a few scripts.
#[test]
fn the_search_catches_broken_managers() {
    for entry in catalogue() {
        let quick = [
            "released-unpaid",
            "global-charged-once",
            "rounded-down",
            "winner-pays",
            "single-by-stored",
            "visible-null",
            "freed-by-global",
        ];
        if !quick.contains(&entry.name) {
            continue;
        }
        let manager = &*entry.make;
        let mut search = Search::new(entry.name, manager, entry.ingredients, Tactics::ALL, 1);
        search.run(3000);
        let finding = search
            .finding
            .unwrap_or_else(|| panic!("{} is missed", entry.name));
        assert!(
            finding.script.steps.len() <= 2 * entry.witness,
            "{}",
            entry.name
        );
        assert!(finding.violation >= Breach::Accounting);
    }
}

/// This mistake couples epochs, and the search sees it, if not yet how to make a loss of it.
#[test]
fn oracle_one_notices_what_is_not_yet_a_leak() {
    let manager = AgentManager::with_store_flaw(StoreFlaw::PrunedByPayment);
    let of = ingredients(true, true);
    let mut search = Search::new("oracle one", &manager, of, Tactics::ALL, 1);
    // A breach of another oracle ends the search too.
    while search.unseparated.is_none() && search.finding.is_none() && search.scripts < 40_000 {
        search.run(500);
    }
    assert!(search.unseparated.is_some());
}

/// The same seed and number of scripts give the same result, on any number of threads.
#[test]
fn results_do_not_depend_on_threads() {
    let plan = |threads| AuditPlan {
        seed: 3,
        threads,
        budget: Budget::Scripts(1000),
        managers: ["device", "agent", "winner-pays", "not-atomic"]
            .map(str::to_owned)
            .to_vec(),
        compare_tactics: false,
    };
    let [one, three] = [1, 3].map(|threads| run(&plan(threads), &|_, _| {}).unwrap());
    let json = |report| serde_json::to_string(&report).unwrap();
    assert_eq!(json(one), json(three));
}

#[test]
fn an_unknown_manager_is_an_error() {
    let plan = AuditPlan {
        seed: 1,
        threads: 1,
        budget: Budget::Scripts(1),
        managers: vec!["nobody".to_owned()],
        compare_tactics: false,
    };
    let error = run(&plan, &|_, _| {}).unwrap_err().to_string();
    assert!(
        error.starts_with("unknown manager `nobody`; use one of: device, "),
        "{error}"
    );
}
