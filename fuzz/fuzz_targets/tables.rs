//! Property: whatever a table holds, reading it gives a workload or an error of one line that names
//! the file. It never panics, and never takes more memory than such a file is worth.
//!
//! A workload that was read can be described, replayed without and with an attacker, and tuned for.
//! Written as a table and read again, it holds the same events.
//!
//! The first byte of the input says what the rest is: `c` the bytes of a text file, also of a
//! compressed one or of JSON, `p` those of a Parquet file, `r` rows of a CSV file that are mostly
//! valid, `l` rows of a log with dates, other names, semicolons and decimals, `j` the same rows as
//! JSON, `d` damage to a valid Parquet file, `f` damage to a folder of prepared Criteo files. The
//! second byte has the options.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arbitrary::{Result, Unstructured};
use bigbird::Profile;
use bigbird_fuzz::{FuzzFolder, damage, one_in};
use bigbird_lab::attack::attackers::Random;
use bigbird_lab::attack::{Attack, Strength};
use bigbird_lab::describe::Description;
use bigbird_lab::diagnosis::WorkloadDiagnosis;
use bigbird_lab::evaluation::Laboratory;
use bigbird_lab::evaluation::QuerierOptions;
use bigbird_lab::tune;
use bigbird_lab::workload::criteo::{PreparedOptions, read_prepared};
use bigbird_lab::workload::table::{
    self, ReducedNames, SiteNames, TableOptions, TimeOrigin, TimeUnit,
};
use bigbird_lab::workload::write::{write_prepared, write_table};
use bigbird_lab::workload::{EventKind, Workload, WorkloadEvent};
use libfuzzer_sys::fuzz_target;

/// The fuzzer aborts at every panic. Those that the reader of Parquet files turns into errors are
/// none of its business, as in the command.
fn quiet_when_guarded() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !table::is_guarded() {
            before(panic);
        }
    }));
}

fuzz_target!(init: quiet_when_guarded(), |bytes: &[u8]| {
    let [what, flags, rest @ ..] = bytes else {
        return;
    };
    let folder = FuzzFolder::new();
    let mut source = Unstructured::new(rest);
    if *what == b'f' {
        let _ = prepared(&mut source, &folder);
        return;
    }
    let (name, table) = match what {
        b'p' => ("table.parquet", Ok(rest.to_vec())),
        b'd' => ("table.pqt", damaged(&mut source, &TABLE)),
        b'r' => ("table.csv", rows(&mut source)),
        b'l' => ("log", log(&mut source, false)),
        b'j' => ("log", log(&mut source, true)),
        _ => ("table.csv", Ok(rest.to_vec())),
    };
    if let Ok(table) = table {
        read(&folder, name, &table, &options(*flags, &folder));
    }
});

/// How tables are read: the first four bits are the choices that lead to other code.
fn options(flags: u8, folder: &FuzzFolder) -> TableOptions {
    let flag = |bit: u8| flags >> bit & 1 == 1;
    TableOptions {
        sorted: flag(0),
        // So few that the rest goes to disk.
        memory_rows: if flag(1) { 2 } else { 4_000_000 },
        epoch_minutes: NonZeroU32::new(if flag(2) { 7 } else { 1440 }).expect("not 0"),
        time_unit: flag(3).then_some(TimeUnit::Seconds),
        time_origin: flag(6).then_some(TimeOrigin::Number(-5)),
        impression_kinds: if flag(4) {
            vec!["view".to_owned()]
        } else {
            Vec::new()
        },
        bucket_column: flag(5).then(|| "bucket".to_owned()),
        value_unit: flag(7).then(|| "0.1".parse().expect("a unit")),
        temporary: Some(folder.path().to_owned()),
        ..TableOptions::default()
    }
}

fn read(folder: &FuzzFolder, name: &str, bytes: &[u8], options: &TableOptions) {
    let path = folder.file(name);
    fs::write(&path, bytes).expect("a disk that works");
    let mut last = None;
    match table::read(std::slice::from_ref(&path), options, &mut |now| {
        last = Some(now);
    }) {
        Err(error) => check_error(&error, &path),
        Ok(workload) => {
            let last = last.expect("progress");
            assert_eq!(last.bytes_done, last.bytes_total);
            assert_eq!(last.rows, workload.len() as u64);
            check_workload(&workload, folder, options);
        }
    }
}

fn check_error(error: &dyn std::error::Error, path: &Path) {
    let told = error.to_string();
    let name = path.to_str().expect("our own name");
    assert!(
        told.starts_with(name) && told.lines().count() == 1,
        "{told}"
    );
}

fn check_workload(workload: &Workload, folder: &FuzzFolder, options: &TableOptions) {
    let description = Description::new(workload, 1).expect("a disk that works");
    assert_eq!(description.devices, workload.devices() as u64);
    let events = description.impressions + description.conversions;
    assert_eq!(events, workload.len() as u64);
    let diagnosis = WorkloadDiagnosis::new(workload, None, &QuerierOptions::default(), 1);
    let diagnosis = diagnosis.expect("a disk that works");
    for finding in &diagnosis.findings {
        assert!(finding.count <= finding.of);
        let _ = finding.text();
    }
    let _ = diagnosis.measurable.sentences();
    let _ = tune::conservative(&description, 95.0, 0.25);
    // What it says of epsilons that are too large is an answer too.
    let _ = tune::exact(workload, 1, 1).map(|exact| exact.parameters(95.0, 0.25));
    let queriers = QuerierOptions {
        min_conversions_a_day: 1,
        batch_days: 1,
        min_batch: 1,
        ..QuerierOptions::default()
    };
    if let Ok(laboratory) = Laboratory::new(workload, queriers, 1) {
        let attack = Attack {
            attacker: &Random { share: 0.35 },
            strength: Strength::of_paper(Some(2)),
            seed: 1,
        };
        for attack in [None, Some(attack)] {
            let outcome = laboratory.run(&Profile::BigBird.policy(), attack);
            let outcome = outcome.expect("a disk that works");
            let _ = (outcome.error(50.0), outcome.blocked());
        }
    }

    let again = folder.file("again.csv");
    write_table(workload, &again).expect("a disk that works");
    let options = TableOptions {
        epoch_minutes: options.epoch_minutes,
        time_unit: Some(TimeUnit::Minutes),
        buckets: Some(workload.buckets),
        sites: SiteNames {
            which: ReducedNames::None,
            ..SiteNames::default()
        },
        temporary: options.temporary.clone(),
        ..TableOptions::default()
    };
    let again = table::read(&[again], &options, &mut |_| {});
    let again = again.expect("what we wrote");
    assert_eq!(again.devices(), workload.devices());
    assert_eq!(happenings(&again), happenings(workload));
}

/// Every event with the names of its sites. Devices have other names and another order when they
/// are read again.
fn happenings(workload: &Workload) -> Vec<String> {
    let mut all = Vec::new();
    for number in 0..workload.parts() {
        let part = workload.part(number).expect("a disk that works");
        all.extend(part.events().map(|event| happening(workload, &event)));
    }
    all.sort();
    all
}

fn happening(workload: &Workload, event: &WorkloadEvent) -> String {
    let of = &workload.conversion_site_names[event.conversion_site as usize];
    let shown = |site: u32| &workload.impression_site_names[site as usize];
    let kind = match event.kind {
        EventKind::Impression { site, bucket } => format!("{:?} {bucket}", shown(site)),
        EventKind::Conversion { value, came_from } => format!("{value} {:?}", came_from.map(shown)),
    };
    format!("{} {} {of:?} {kind}", event.minute, event.epoch)
}

/// A CSV file of rows that are mostly valid.
fn rows(source: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut text = "device,time,conversion_site,impression_site,bucket,kind,value".to_owned();
    let with_order = one_in(source, 4)?;
    if with_order {
        text.push_str(",order");
    }
    let mut minute = 0;
    while !source.is_empty() && text.len() < 1 << 16 {
        text.push('\n');
        minute += i64::from(source.int_in_range(0..=240_u8)?);
        let mut cells = vec![
            format!("d{}", source.int_in_range(0..=5)?),
            minute.to_string(),
            format!("shop-{}", source.int_in_range(0..=2)?),
        ];
        cells.extend(match source.int_in_range(0..=4)? {
            0..=1 => [
                format!("news-{}", source.int_in_range(0..=3)?),
                source.int_in_range(0..=4)?.to_string(),
                "i".to_owned(),
                String::new(),
            ],
            number => [
                match number {
                    2 => format!("news-{}", source.int_in_range(0..=3)?),
                    _ => String::new(),
                },
                String::new(),
                "conversion".to_owned(),
                source.int_in_range(1..=9)?.to_string(),
            ],
        });
        if with_order {
            cells.push(source.int_in_range(0..=9)?.to_string());
        }
        if one_in(source, 16)? {
            let cell = source.choose_index(cells.len())?;
            let unusual = [
                "",
                "-1",
                "4294967295",
                "2147483647",
                "1e3",
                "\"a, \"\"b\"\"\"",
                "\"",
                "é",
            ];
            cells[cell] = match source.arbitrary()? {
                true => (*source.choose(&unusual)?).to_owned(),
                false => source.arbitrary::<&str>()?.to_owned(),
            };
        }
        text.push_str(&cells.join(","));
    }
    Ok(text.into_bytes())
}

/// Rows of a log: in text with semicolons, or as JSON.
fn log(source: &mut Unstructured<'_>, json: bool) -> Result<Vec<u8>> {
    const NAMES: [&str; 7] = [
        "uid",
        "ts",
        "advertiser",
        "publisher",
        "bucket",
        "event",
        "price",
    ];
    let mut rows = Vec::new();
    let mut minute = 0;
    while !source.is_empty() && rows.len() < 1000 {
        minute += i64::from(source.int_in_range(0..=240_u8)?);
        let time = match source.int_in_range(0..=9)? {
            0 => (1_767_483_660 + 60 * minute).to_string(),
            1 => source.arbitrary::<&str>()?.to_owned(),
            _ => format!(
                "2026-01-{:02} {:02}:{:02}",
                1 + minute / 1440 % 28,
                minute / 60 % 24,
                minute % 60
            ),
        };
        let is_impression = source.arbitrary()?;
        let mut cells = [
            format!("d{}", source.int_in_range(0..=5)?),
            time,
            (*source.choose(&["https://www.shop.example/x", "shop.example", "7"])?).to_owned(),
            if is_impression {
                "news.example".to_owned()
            } else {
                String::new()
            },
            (*source.choose(&["", "0", "4", "de", "fr"])?).to_owned(),
            (*source.choose(match is_impression {
                true => &["view", "impression", "imp"],
                false => &["purchase", "conversion", "click"],
            })?)
            .to_owned(),
            (*source.choose(&["", "1", "2,5", "1.234,5", "0", "-1", "12,345678"])?).to_owned(),
        ];
        if one_in(source, 16)? {
            let cell = source.choose_index(cells.len())?;
            cells[cell] = source.arbitrary::<&str>()?.to_owned();
        }
        rows.push(cells);
    }
    let quoted = |text: &String| format!("{text:?}");
    let lines = rows.iter().map(|cells| match json {
        true => {
            let fields = NAMES.iter().zip(cells).filter(|(_, cell)| !cell.is_empty());
            let fields = fields.map(|(name, cell)| format!("\"{name}\":{}", quoted(cell)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        false => cells.join(";"),
    });
    let header = (!json).then(|| NAMES.join(";"));
    let text: Vec<String> = header.into_iter().chain(lines).collect();
    Ok(text.join("\n").into_bytes())
}

/// Valid Parquet files: a table, and a folder of prepared files.
static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = FuzzFolder::new();
    let path = folder.file("table.parquet");
    write_table(&sample(), &path).expect("a disk that works");
    fs::read(path).expect("a disk that works")
});

static PREPARED: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(|| {
    let folder = FuzzFolder::new();
    write_prepared(&sample(), folder.path()).expect("a disk that works");
    let files = fs::read_dir(folder.path()).expect("a disk that works");
    let mut files: Vec<(String, Vec<u8>)> = files
        .map(|file| {
            let path = file.expect("a disk that works").path();
            let name = path.file_name().expect("a file").to_string_lossy();
            (
                name.into_owned(),
                fs::read(&path).expect("a disk that works"),
            )
        })
        .collect();
    files.sort();
    files
});

fn sample() -> Workload {
    let mut workload = Workload::default();
    workload.conversion_site_names = vec!["1".to_owned(), "2".to_owned()];
    workload.impression_site_names = vec!["3".to_owned(), "4".to_owned()];
    for device in 0..6 {
        let mut events: Vec<WorkloadEvent> = (0..5)
            .map(|number| WorkloadEvent {
                minute: 400 * number + device,
                epoch: u16::try_from((400 * number + device) / 1440).expect("a few days"),
                conversion_site: device % 2,
                kind: match number % 2 {
                    0 => EventKind::Impression {
                        site: number / 2 % 2,
                        bucket: u16::try_from(number).expect("below 5"),
                    },
                    _ => EventKind::Conversion {
                        value: 1,
                        came_from: Some(0),
                    },
                },
                row: 5 * device + number,
            })
            .collect();
        workload.push_device(&mut events);
    }
    workload
}

fn damaged(source: &mut Unstructured<'_>, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    damage(source, &mut bytes, 64)?;
    Ok(bytes)
}

fn prepared(source: &mut Unstructured<'_>, folder: &FuzzFolder) -> Result<()> {
    for (name, bytes) in &*PREPARED {
        let bytes = match source.arbitrary()? {
            true => damaged(source, bytes)?,
            false => bytes.clone(),
        };
        fs::write(folder.file(name), bytes).expect("a disk that works");
    }
    match read_prepared(folder.path(), &PreparedOptions::default()) {
        Err(error) => check_error(&error, folder.path()),
        Ok(workload) => {
            let description = Description::new(&workload, 1).expect("a disk that works");
            assert_eq!(description.devices, workload.devices() as u64);
        }
    }
    Ok(())
}

/// Counts what is allocated: a file of some kilobytes must not take hundreds of megabytes. It ends
/// the process, because the reader takes a panic of the library that it uses for damage.
struct Bounded;

const MOST_BYTES: usize = 512 << 20;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Bounded = Bounded;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Bounded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let before = ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        if before.saturating_add(layout.size()) > MOST_BYTES {
            ALLOCATED.store(0, Ordering::Relaxed);
            eprintln!("allocating {} bytes besides {before}", layout.size());
            std::process::abort();
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}
