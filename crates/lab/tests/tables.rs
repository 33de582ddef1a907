//! Tables: what was written can be read back, in memory and on disk. An error in a table is one
//! line that names the file, the column and the row.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BooleanArray, Date32Array, DictionaryArray, Float64Array, Int64Array,
    LargeStringArray, RecordBatch, StringArray, StringViewArray, TimestampMillisecondArray,
    UInt8Array,
};
use bigbird::Profile;
use bigbird_lab::attack::attackers::Random;
use bigbird_lab::attack::{Attack, Strength};
use bigbird_lab::evaluation::Laboratory;
use bigbird_lab::evaluation::QuerierOptions;
use bigbird_lab::evaluation::metrics::Batch;
use bigbird_lab::workload::criteo::{PreparedOptions, read_prepared};
use bigbird_lab::workload::synthetic::{Population, Preset};
use bigbird_lab::workload::table::{self, Columns, TableOptions, TimeOrigin, TimeUnit};
use bigbird_lab::workload::write::{write_prepared, write_table};
use bigbird_lab::workload::{EventKind, Part, Workload, WorkloadEvent};
use parquet::arrow::ArrowWriter;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};
use tempfile::TempDir;

fn read(path: &Path, options: &TableOptions) -> Result<Workload, String> {
    let mut last = None;
    let read = table::read(&[path.to_owned()], options, &mut |now| last = Some(now));
    let workload = read.map_err(|error| error.to_string())?;
    let last = last.unwrap();
    assert_eq!(last.bytes_done, last.bytes_total);
    assert_eq!(last.rows, workload.len() as u64);
    Ok(workload)
}

fn population() -> Workload {
    let population = Population {
        preset: Preset::Published,
        scale: 0.002,
        seed: 3,
    };
    population.generate()
}

/// The events of each device as text, with names instead of numbers, sorted. They must not depend
/// on how a workload is stored.
fn happenings(workload: &Workload) -> Vec<Vec<String>> {
    let mut devices = Vec::new();
    for number in 0..workload.parts() {
        let part = workload.part(number).unwrap();
        for device in 0..part.devices() {
            let events = part.range(device).map(|at| {
                let event = part.event(at);
                let site = &workload.conversion_site_names[event.conversion_site as usize];
                let kind = match event.kind {
                    EventKind::Impression { site, bucket } => {
                        let site = &workload.impression_site_names[site as usize];
                        format!("{site} {bucket}")
                    }
                    EventKind::Conversion { value, came_from } => {
                        let site = came_from.map(|site| site as usize);
                        let site = site.map(|site| &workload.impression_site_names[site]);
                        match site {
                            Some(site) => format!("{value} from {site}"),
                            None => format!("{value}"),
                        }
                    }
                };
                format!("{} {} {site} {kind}", event.minute, event.epoch)
            });
            devices.push(events.collect());
        }
    }
    devices.sort();
    devices
}

/// The batches of a run without attack, by the name of the querier.
fn outcome(workload: &Workload) -> Vec<(String, Vec<Batch>)> {
    outcome_under(workload, None)
}

fn outcome_under(workload: &Workload, attack: Option<Attack<'_>>) -> Vec<(String, Vec<Batch>)> {
    let options = QuerierOptions {
        min_conversions_a_day: 5,
        min_batch: 100,
        ..QuerierOptions::default()
    };
    let laboratory = Laboratory::new(workload, options, 2).unwrap();
    let outcome = laboratory.run(&Profile::BigBird.policy(), attack).unwrap();
    let mut of_site: std::collections::BTreeMap<String, Vec<Batch>> = Default::default();
    for batch in &outcome.batches {
        let name = &workload.conversion_site_names[batch.conversion_site as usize];
        let batches = of_site.entry(name.clone()).or_default();
        batches.push(Batch {
            conversion_site: 0,
            ..batch.clone()
        });
    }
    assert!(of_site.len() > 3);
    of_site.into_iter().collect()
}

/// Options that read in memory and on disk, without and with `sorted`.
fn ways() -> [TableOptions; 4] {
    let options = |memory_rows, sorted| TableOptions {
        memory_rows,
        sorted,
        ..TableOptions::default()
    };
    [
        options(4_000_000, false),
        options(1000, false),
        options(4_000_000, true),
        options(1000, true),
    ]
}

#[test]
fn what_is_written_is_read_again() {
    let folder = TempDir::new().unwrap();
    let workload = population();
    let (expected, outcome_before) = (happenings(&workload), outcome(&workload));
    for name in ["table.csv", "table.parquet"] {
        let path = folder.path().join(name);
        write_table(&workload, &path).unwrap();
        let attack = Attack {
            attacker: &Random { share: 0.35 },
            strength: Strength::of_paper(Some(2)),
            seed: 1,
        };
        let mut attacked = Vec::new();
        for options in ways() {
            let again = read(&path, &options).unwrap();
            // An attacker does the same, wherever and in whichever order devices are stored.
            attacked.push(outcome_under(&again, Some(attack)));
            assert_eq!(attacked.first(), attacked.last(), "{name} {options:?}");
            assert_eq!(again.devices(), workload.devices());
            assert!(happenings(&again) == expected, "{name} {options:?}");
            assert_eq!(outcome(&again), outcome_before, "{name} {options:?}");
        }
    }
}

/// Prepared files have their own order of conversions of one minute.
#[test]
fn prepared_files_are_read_again_and_become_tables() {
    let folder = TempDir::new().unwrap();
    let workload = population();
    write_prepared(&workload, folder.path()).unwrap();
    let prepared = read_prepared(folder.path(), &PreparedOptions::default()).unwrap();
    assert!(happenings(&prepared) == happenings(&workload));
    assert_eq!(outcome(&prepared), outcome(&workload));

    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/criteo-sample");
    let original = read_prepared(&sample, &PreparedOptions::default()).unwrap_or(prepared);
    let expected = outcome(&original);
    write_prepared(&original, folder.path()).unwrap();
    assert_eq!(
        outcome(&read_prepared(folder.path(), &PreparedOptions::default()).unwrap()),
        expected
    );
    for name in ["table.csv", "table.pqt"] {
        let path = folder.path().join(name);
        write_table(&original, &path).unwrap();
        for options in ways() {
            assert_eq!(outcome(&read(&path, &options).unwrap()), expected, "{name}");
        }
    }
}

#[cfg(unix)] // On other systems they have a name while they are open.
#[test]
fn temporary_files_have_no_name() {
    let folder = TempDir::new().unwrap();
    let temporary = TempDir::new().unwrap();
    let path = folder.path().join("table.csv");
    write_table(&population(), &path).unwrap();
    let options = TableOptions {
        memory_rows: 1000,
        temporary: Some(temporary.path().to_owned()),
        ..TableOptions::default()
    };
    let named = || std::fs::read_dir(temporary.path()).unwrap().count();
    let mut named_while_reading = 0;
    let paths = [path.clone()];
    let workload = table::read(&paths, &options, &mut |_| named_while_reading += named());
    let workload = workload.unwrap();
    assert!(workload.parts() > 1);
    assert_eq!((named_while_reading, named()), (0, 0));
    // The folder only says which disk to use: the files outlive it.
    temporary.close().unwrap();
    assert_eq!(outcome(&workload), outcome(&population()));

    std::fs::write(&path, format!("{HEADER}\nd,1,c,,,c,1\nd,1,c,,,c,0\n")).unwrap();
    let nowhere = TableOptions {
        memory_rows: 0,
        temporary: Some(folder.path().join("nowhere")),
        ..options
    };
    let error = read(&path, &nowhere).unwrap_err();
    assert!(
        error.contains("nowhere: cannot create a temporary file in this folder: "),
        "{error}"
    );
}

#[test]
fn devices_without_events_survive_on_disk() {
    let event = |minute| WorkloadEvent {
        minute,
        epoch: 0,
        conversion_site: 0,
        kind: EventKind::Conversion {
            value: 3,
            came_from: None,
        },
        row: minute,
    };
    let mut part = Part::default();
    for events in [
        &mut [][..],
        &mut [event(2), event(1)],
        &mut [],
        &mut [event(3)],
        &mut [],
    ] {
        part.push_device(events);
    }
    let mut workload = Workload::default();
    workload.push_part_on_disk(part.clone(), None).unwrap();
    workload.push_part_on_disk(Part::default(), None).unwrap();
    assert_eq!((workload.devices(), workload.len()), (5, 3));
    assert_eq!(*workload.part(0).unwrap(), part);
    assert_eq!(*workload.part(1).unwrap(), Part::default());
}

#[test]
fn a_folder_is_one_table() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let whole = population();
    write_table(&whole, &path("whole.csv")).unwrap();
    let text = std::fs::read_to_string(path("whole.csv")).unwrap();
    std::fs::remove_file(path("whole.csv")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let (first, second) = lines[1..].split_at(lines.len() / 2);
    std::fs::write(path("B.CSV"), [&[lines[0]], second].concat().join("\r\n")).unwrap();
    std::fs::write(path("A.csv"), [&[lines[0]], first].concat().join("\n")).unwrap();
    std::fs::write(path("README.md"), "Not a table.").unwrap();
    for options in ways() {
        let again = read(folder.path(), &options).unwrap();
        assert!(happenings(&again) == happenings(&whole));
        assert_eq!(outcome(&again), outcome(&whole));
    }
    let mut told = 0;
    let paths = [path("A.csv"), path("B.CSV")];
    table::read(&paths, &TableOptions::default(), &mut |_| told += 1).unwrap();
    assert!((2..20).contains(&told), "{told}");
}

const HEADER: &str = "device,time,conversion_site,impression_site,bucket,kind,value";

/// A file in a folder that is removed at the end of the test.
struct Table {
    _folder: TempDir,
    path: PathBuf,
}

impl Table {
    fn csv(text: impl AsRef<[u8]>) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.csv");
        std::fs::write(&path, text).unwrap();
        Self {
            _folder: folder,
            path,
        }
    }

    fn parquet(columns: Vec<(&str, ArrayRef)>) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("t.parquet");
        let columns = columns.into_iter().map(|(name, array)| (name, array, true));
        let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
        let file = File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        Self {
            _folder: folder,
            path,
        }
    }

    fn read(&self, options: &TableOptions) -> Vec<Vec<String>> {
        happenings(&read(&self.path, options).unwrap())
    }

    /// The error message, without the folder.
    fn error(&self, options: &TableOptions) -> String {
        let error = read(&self.path, options).unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
        let folder = self.path.parent().unwrap().to_str().unwrap();
        error.replace(&format!("{folder}/"), "")
    }
}

fn rows(rows: &[&str]) -> Table {
    Table::csv(format!("{HEADER}\n{}\n", rows.join("\n")))
}

#[test]
fn what_columns_mean() {
    let table = Table::csv(
        "\u{feff}x,Value,bucket,impression_site,conversion_site,time,who\r\n\
         ,,4,\"news, \"\"daily\"\"\",shop,1441,é\r\n\
         \r\n\
         ,7,,,shop,1442,é\r\n\
         ,,,,7,0,é",
    );
    let options = TableOptions {
        columns: "device=who,value=Value".parse().unwrap(),
        ..TableOptions::default()
    };
    let expected = ["0 0 7 1", "1441 1 shop news, \"daily\" 4", "1442 1 shop 7"];
    assert_eq!(table.read(&options), [expected]);

    let table = rows(&[
        "d,0,s,,,C,2.0",
        "d,0,s,p,0,I,",
        "d,0,s,q,,Conversion,",
        "d,0,s,p,1,IMPRESSION,0",
    ]);
    let expected = ["0 0 s p 0", "0 0 s p 1", "0 0 s 2", "0 0 s 1 from q"];
    assert_eq!(table.read(&TableOptions::default()), [expected]);

    let times = |unit, origin: Option<i64>, time: &str| {
        let options = TableOptions {
            time_unit: Some(unit),
            time_origin: origin.map(TimeOrigin::Number),
            epoch_minutes: 60.try_into().unwrap(),
            ..TableOptions::default()
        };
        rows(&[&format!("d,{time},s,,,c,1")])
            .read(&options)
            .concat()
            .concat()
    };
    assert_eq!(times(TimeUnit::Minutes, None, "119"), "119 1 s 1");
    assert_eq!(times(TimeUnit::Seconds, None, "7199"), "119 1 s 1");
    assert_eq!(times(TimeUnit::Milliseconds, None, "7199999"), "119 1 s 1");
    assert_eq!(times(TimeUnit::Hours, None, "2"), "120 2 s 1");
    assert_eq!(times(TimeUnit::Days, None, "1"), "1440 24 s 1");
    assert_eq!(
        times(TimeUnit::Seconds, Some(1_700_000_000), "1700000061"),
        "1 0 s 1"
    );
    assert_eq!(times(TimeUnit::Minutes, Some(-5), "-3"), "2 0 s 1");
}

fn text(values: &[&str]) -> ArrayRef {
    let values = values
        .iter()
        .map(|value| (!value.is_empty()).then_some(*value));
    Arc::new(values.collect::<StringArray>())
}

fn numbers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// Two impressions and a conversion.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("device", text(&["1", "1", "2"])),
        ("time", numbers(&[Some(1440), Some(1441), Some(2880)])),
        ("conversion_site", text(&["7", "8", "7"])),
        ("impression_site", text(&["5", "5", ""])),
        ("bucket", numbers(&[Some(0), Some(4), None])),
        ("kind", text(&["impression", "i", "c"])),
        ("value", numbers(&[None, None, Some(2)])),
    ]
}

#[test]
fn columns_of_parquet_have_many_types() {
    let options = TableOptions::default();
    let expected = Table::parquet(columns()).read(&options);
    assert_eq!(
        expected,
        [vec!["1440 1 7 5 0", "1441 1 8 5 4"], vec!["2880 2 7 2"]]
    );
    let days = Date32Array::from(vec![1, 1, 2]);
    let instants = TimestampMillisecondArray::from(vec![86_400_000, 86_460_000, 172_800_000]);
    let sites: DictionaryArray<Int8Type> = ["7", "8", "7"].into_iter().collect();
    let others: [(usize, ArrayRef); 9] = [
        (0, numbers(&[Some(1), Some(1), Some(2)])),
        (0, Arc::new(LargeStringArray::from(vec!["1", "1", "2"]))),
        (0, Arc::new(StringViewArray::from(vec!["1", "1", "2"]))),
        (1, Arc::new(instants.clone())),
        (1, Arc::new(instants.clone().with_timezone("UTC"))),
        (2, Arc::new(sites)),
        (3, numbers(&[Some(5), Some(5), None])),
        (4, Arc::new(UInt8Array::from(vec![Some(0), Some(4), None]))),
        (
            4,
            Arc::new(Float64Array::from(vec![Some(0.0), Some(4.0), None])),
        ),
    ];
    for (column, array) in others {
        let mut columns = columns();
        columns[column].1 = array;
        assert_eq!(Table::parquet(columns).read(&options), expected);
    }
    let mut by_day = columns();
    by_day[1].1 = Arc::new(days);
    let found = Table::parquet(by_day).read(&options);
    assert_eq!(
        found,
        [vec!["1440 1 7 5 0", "1440 1 8 5 4"], vec!["2880 2 7 2"]]
    );
    let mut without_kind = columns();
    without_kind.remove(5);
    assert_eq!(Table::parquet(without_kind).read(&options), expected);
    // The unit applies to the origin. Timestamps have their own unit.
    let mut later = columns();
    later[1].1 = Arc::new(instants);
    let origin = TableOptions {
        time_unit: Some(TimeUnit::Days),
        time_origin: Some(1.into()),
        ..options
    };
    let found = Table::parquet(later).read(&origin);
    assert_eq!(found, [vec!["0 0 7 5 0", "1 0 8 5 4"], vec!["1440 1 7 2"]]);
}

#[test]
fn what_is_wrong_with_a_row_is_named() {
    let good = "d,0,s,p,1,impression,";
    let origin = TableOptions {
        time_origin: Some(10.into()),
        ..TableOptions::default()
    };
    for (row, expected) in [
        (",0,s,,,c,1", "column `device`, row 2: the cell is empty"),
        ("d,,s,,,c,1", "column `time`, row 2: the cell is empty"),
        (
            "d,0,,,,c,1",
            "column `conversion_site`, row 2: the cell is empty",
        ),
        (
            "d,0,s,,1,i,",
            "column `impression_site`, row 2: the cell is empty",
        ),
        ("d,0,s,p,,i,", "column `bucket`, row 2: the cell is empty"),
        ("d,0,s,p,1,,", "column `kind`, row 2: the cell is empty"),
        (
            "d,-3,s,,,c,1",
            "column `time`, row 2: -3 is negative; set --time-origin to the earliest time",
        ),
        (
            "d,1.5,s,,,c,1",
            "column `time`, row 2: \"1.5\" is not a whole number",
        ),
        (
            "d,99999999999999999999,s,,,c,1",
            "column `time`, row 2: \"99999999999999999999\" does not fit into 64 bits",
        ),
        (
            "d,94371840,s,,,c,1",
            "column `time`, row 2: 94371840 is in epoch 65536, and the last possible one is 65535; \
             set --time-unit or --time-origin",
        ),
        (
            "d,1700000000000,s,,,c,1",
            "column `time`, row 2: 1700000000000 is minute 1700000000000, and the last possible \
             one is 4294967295; set --time-unit or --time-origin",
        ),
        (
            "d,0,s,p,1,click,",
            "column `kind`: the kinds of rows are click (1), impression (1); say which of them are \
             impressions and which are conversions, for example --impression-kind impression \
             --conversion-kind click, or --columns kind=NAME for another column",
        ),
        (
            "d,0,s,p,5,i,",
            "column `bucket`: the buckets are 1 to 5, and must be 0 to 4; give --buckets 6 to take \
             them as they are, or --bucket-column bucket to keep the most frequent ones",
        ),
        (
            "d,0,s,p,-1,i,",
            "column `bucket`: the buckets are -1 to 1, and must be 0 to 4; give --bucket-column \
             bucket to keep the most frequent ones",
        ),
        (
            "d,0,s,,,c,0",
            "column `value`, row 2: value 0 is out of range; use 1 to 2147483647; give --value-unit \
             1 to count it as 1",
        ),
        (
            "d,0,s,,,c,2147483648",
            "column `value`, row 2: value 2147483648 is out of range; use 1 to 2147483647; give a \
             larger --value-unit",
        ),
        (
            "d,0,s,,2,c,1",
            "column `bucket`, row 2: the bucket of a conversion must be empty; name the column \
             with --bucket-column to ignore it",
        ),
        ("d,0,s", "row 2: found 3 fields; the header has 7"),
        (
            "d,0,s,,,c,1,",
            "row 2: found more than 7 fields; the header has 7",
        ),
        ("d,0,s,,,c,\"1", "row 2: a quote is not closed"),
        ("d,0,s,,,c,\"", "row 2: a quote is not closed"),
    ] {
        let table = rows(&[good, row]);
        for options in ways() {
            assert_eq!(table.error(&options), format!("t.csv: {expected}"), "{row}");
        }
    }
    assert_eq!(
        rows(&["d,9,s,,,c,1"]).error(&origin),
        "t.csv: column `time`, row 1: 9 is before --time-origin 10"
    );
    let long = format!("{},0,s,,,c,1", "d".repeat(70_000));
    assert_eq!(
        rows(&[&long])
            .error(&TableOptions::default())
            .replace("70000", "N"),
        "t.csv: column `device`, row 1: the name has N bytes; at most 65535 are allowed"
    );
    let endless = format!("\"{}", "d,0,s,,,c,1\n".repeat(200_000));
    assert_eq!(
        rows(&[good, &endless]).error(&TableOptions::default()),
        "t.csv: row 2: the row is longer than 1048576 bytes; check for a quote that is not closed"
    );
    let with_order = Table::csv(format!("{HEADER},order\nd,0,s,,,c,1,-1\n"));
    assert_eq!(
        with_order.error(&TableOptions::default()),
        "t.csv: column `order`, row 1: -1 is out of range; use 0 to 4294967295"
    );
}

#[test]
fn text_must_be_utf_8() {
    let options = TableOptions::default();
    let mut bytes = format!("{HEADER}\nd,0,s,,,c,1\nd,0,").into_bytes();
    bytes.extend(b"\xff,,,c,1\n");
    assert_eq!(
        Table::csv(&bytes).error(&options),
        "t.csv: column `conversion_site`, row 2: the text is not valid UTF-8"
    );
    // Two fields that together are the bytes of one character.
    let mut bytes = b"device,conversion_site,time,impression_site,bucket\n".to_vec();
    bytes.extend(b"\xc3,\xa9,0,,\n");
    assert_eq!(
        Table::csv(&bytes).error(&options),
        "t.csv: column `device`, row 1: the text is not valid UTF-8"
    );
}

#[test]
fn sorted_tables_must_be_sorted() {
    for memory_rows in [0, 2, 100] {
        let options = TableOptions {
            sorted: true,
            memory_rows,
            ..TableOptions::default()
        };
        let apart = rows(&["a,0,s,,,c,1", "b,0,s,,,c,1", "a,1,s,,,c,1"]);
        assert_eq!(
            apart.error(&options),
            "t.csv: column `device`, row 3: the rows of this device are not together, as --sorted \
             requires"
        );
        let back = rows(&["a,0,s,,,c,1", "b,5,s,,,c,1", "b,4,s,,,c,1"]);
        assert_eq!(
            back.error(&options),
            "t.csv: column `time`, row 3: minute 4 follows minute 5 of the same device; --sorted \
             requires rows in order of time"
        );
    }
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    let options = TableOptions::default();
    for (text, expected) in [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("device,\"time", "header: a quote is not closed"),
        (HEADER, "the file has no rows"),
        (
            "device,time\n1,2\n",
            "no column is named conversion_site; give --columns conversion_site=NAME; the columns \
             are: device, time",
        ),
        (
            "device,time,conversion_site,impression_site,bucket,time\n",
            "2 columns are named `time`; expected one",
        ),
    ] {
        let error = Table::csv(text).error(&options);
        assert_eq!(error, format!("t.csv: {expected}"), "{text}");
    }
    let mut renamed = options.clone();
    renamed.columns.set("time=when").unwrap();
    assert_eq!(
        rows(&["d,0,s,,,c,1"]).error(&renamed),
        "t.csv: there is no column `when`; the columns are: device, time, conversion_site, \
         impression_site, bucket, kind, value"
    );

    let empty = columns()
        .into_iter()
        .map(|(name, array)| (name, array.slice(0, 0)));
    assert_eq!(
        Table::parquet(empty.collect()).error(&options),
        "t.parquet: the file has no rows"
    );
    let mut missing = columns();
    missing.remove(3);
    assert_eq!(
        Table::parquet(missing).error(&options),
        "t.parquet: no column is named impression_site; give --columns impression_site=NAME; the \
         columns are: device, time, conversion_site, bucket, kind, value"
    );
    let types: [(usize, ArrayRef, &str); 2] = [
        (
            0,
            Arc::new(Float64Array::from(vec![1.0; 3])),
            "column `device` has type Float64, but must hold text or whole numbers",
        ),
        (
            1,
            Arc::new(BooleanArray::from(vec![true; 3])),
            "column `time` has type Boolean, but must hold numbers, times or text",
        ),
    ];
    for (column, array, expected) in types {
        let mut columns = columns();
        columns[column].1 = array;
        let error = Table::parquet(columns).error(&options);
        assert_eq!(error, format!("t.parquet: {expected}"));
    }
    let cells: [(usize, ArrayRef, &str); 5] = [
        (
            0,
            text(&["1", "", "3"]),
            "column `device`, row 2: the cell is empty",
        ),
        (
            1,
            numbers(&[Some(0), Some(0), None]),
            "column `time`, row 3: the cell is empty",
        ),
        (
            1,
            numbers(&[Some(0), Some(-1), None]),
            "column `time`, row 2: -1 is negative; set --time-origin to the earliest time",
        ),
        (
            4,
            Arc::new(Float64Array::from(vec![0.0, 0.5, 0.0])),
            "column `bucket`: 0.5 is neither text nor a whole number",
        ),
        (
            6,
            numbers(&[None, None, Some(0)]),
            "column `value`, row 3: value 0 is out of range; use 1 to 2147483647; give --value-unit \
             1 to count it as 1",
        ),
    ];
    for (column, array, expected) in cells {
        let mut columns = columns();
        columns[column].1 = array;
        let error = Table::parquet(columns).error(&options);
        assert_eq!(error, format!("t.parquet: {expected}"));
    }

    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let error = |name: &str| {
        let error = read(&path(name), &options).unwrap_err();
        error.replace(&format!("{}/", folder.path().display()), "")
    };
    std::fs::write(path("a.parquet"), "device,time").unwrap();
    assert!(error("a.parquet").starts_with("a.parquet: not a Parquet file: "));
    std::fs::write(path("a.txt"), HEADER).unwrap();
    assert_eq!(error("a.txt"), "a.txt: the file has no rows");
    std::fs::write(path("a.xlsx"), b"PK\x03\x04").unwrap();
    assert_eq!(
        error("a.xlsx"),
        "a.xlsx: a zip archive or an Excel workbook; extract the table, or export it as CSV"
    );
    assert!(error("b.csv").starts_with("b.csv: No such file"));
    std::fs::create_dir(path("c.csv")).unwrap();
    assert_eq!(
        error("c.csv"),
        "c.csv: the folder has no .csv, .tsv, .json, .jsonl, .ndjson, .parquet or .pqt file, with or \
         without .gz or .zst"
    );
    assert_eq!(
        table::read(&[], &options, &mut |_| ())
            .unwrap_err()
            .to_string(),
        "tables: no file was given"
    );
    let written = write_table(&Workload::default(), &path("t.json")).unwrap_err();
    assert!(
        written
            .to_string()
            .ends_with("t.json: unknown file type .json; use .csv, .parquet or .pqt")
    );
}

#[test]
fn columns_are_renamed() {
    let mut columns = Columns::default();
    columns.set("device=user_id").unwrap();
    columns.set("time=a=b").unwrap();
    assert_eq!(
        (columns.get("device"), columns.get("time")),
        (Some("user_id"), Some("a=b"))
    );
    for (assignment, expected) in [
        (
            "user=user_id",
            "unknown column `user`; use one of: device, time, conversion_site, impression_site, \
             bucket, kind, value, order",
        ),
        (
            "device",
            "`device` is not of the form COLUMN=NAME, such as device=user_id",
        ),
        (
            "device=",
            "`device=` is not of the form COLUMN=NAME, such as device=user_id",
        ),
        (
            "",
            "`` is not of the form COLUMN=NAME, such as device=user_id",
        ),
    ] {
        assert_eq!(columns.set(assignment).unwrap_err().to_string(), expected);
    }
    assert!("device=a,time".parse::<Columns>().is_err());
    assert_eq!("days".parse(), Ok(TimeUnit::Days));
    assert_eq!(
        "weeks".parse::<TimeUnit>().unwrap_err().to_string(),
        "unknown unit of time `weeks`; use one of: nanoseconds, microseconds, milliseconds, seconds, \
         minutes, hours, days"
    );
}

/// Names that need quotes, and values above 1.
#[test]
fn odd_names_are_written_and_read_again() {
    let folder = TempDir::new().unwrap();
    let mut workload = Workload::default();
    workload.conversion_site_names = ["a,b", "\"q\"", " c\r\n", "é"].map(str::to_owned).to_vec();
    workload.impression_site_names = vec!["x\ny".to_owned()];
    let mut events: Vec<WorkloadEvent> = (0..4)
        .map(|number| WorkloadEvent {
            minute: 10 - number,
            epoch: 0,
            conversion_site: number,
            kind: match number {
                0 => EventKind::Impression { site: 0, bucket: 3 },
                value => EventKind::Conversion {
                    value,
                    came_from: None,
                },
            },
            row: number,
        })
        .collect();
    workload.push_device(&mut events);
    for name in ["t.csv", "t.pqt"] {
        let path = folder.path().join(name);
        write_table(&workload, &path).unwrap();
        let again = read(&path, &TableOptions::default()).unwrap();
        assert_eq!(happenings(&again), happenings(&workload));
    }
    let error = write_prepared(&workload, folder.path())
        .unwrap_err()
        .to_string();
    assert!(
        error.ends_with(
            "20last_conversions.pqt: prepared files cannot express a conversion of value 3; the \
             value must be 1"
        ),
        "{error}"
    );
}

/// Random bytes give a workload or an error of one line, and never a panic.
#[test]
fn bytes_that_make_no_sense() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let alphabet = b",,,,\"\n\r01259.-dsic\xc3\xa9\xff";
    for number in 0..3000 {
        let mut bytes = match number % 3 {
            0 => Vec::new(),
            _ => format!("{HEADER}\nd,0,s,p,1,i,\n").into_bytes(),
        };
        for _ in 0..rng.next_u32() % 100 {
            bytes.push(match number % 2 {
                0 => alphabet[rng.next_u32() as usize % alphabet.len()],
                _ => rng.next_u32().to_le_bytes()[0],
            });
        }
        let table = Table::csv(&bytes);
        if read(&table.path, &TableOptions::default()).is_err() {
            table.error(&TableOptions::default());
        }
    }
}

#[test]
fn damaged_parquet_files() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("t.parquet");
    let population = Population {
        preset: Preset::Published,
        scale: 0.0002,
        seed: 5,
    };
    write_table(&population.generate(), &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let mut errors = 0;
    for number in 0..3000 {
        let mut bytes = whole.clone();
        let length = u32::try_from(bytes.len()).unwrap();
        match number % 4 {
            0 => bytes.truncate((rng.next_u32() % length) as usize),
            // The metadata, where damage matters most, is at the end.
            1 => {
                let at = bytes.len() - 1 - (rng.next_u32() % length.min(3000)) as usize;
                bytes[at] ^= 1 << (rng.next_u32() % 8);
            }
            _ => {
                for _ in 0..=rng.next_u32() % 4 {
                    let at = (rng.next_u32() % length) as usize;
                    bytes[at] ^= 1 << (rng.next_u32() % 8);
                }
            }
        }
        std::fs::write(&path, bytes).unwrap();
        let read = table::read(
            std::slice::from_ref(&path),
            &TableOptions::default(),
            &mut |_| (),
        );
        if let Err(error) = read {
            errors += 1;
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
        }
    }
    assert!(errors > 1000, "{errors}");
}
