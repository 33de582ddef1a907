//! The CriteoPrivateAd files as they are published, tested with small files of the same form.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{
    ArrayRef, Int64Array, LargeListArray, ListArray, NullArray, RecordBatch, StringArray,
};
use bigbird_lab::workload::criteo::{RawOptions, read_raw};
use bigbird_lab::workload::{EventKind, Workload};
use parquet::arrow::ArrowWriter;
use tempfile::TempDir;

const CORRECTION: &str = "event_per_user_correction.csv";
const DUPLICATE: &str = "part-00000-d0cfd34a-794e-4f02-a177-a96d3f9483cf-c000.gz.parquet";

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn numbers(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn delays(values: Vec<Option<Vec<Option<i64>>>>) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(values))
}

/// Displays of these users, each with one click after 5 minutes.
fn displays(users: &[&str]) -> Vec<(&'static str, ArrayRef)> {
    let count = users.len();
    vec![
        ("id", Arc::new(StringArray::from(vec!["x"; count]))),
        ("user_id", Arc::new(StringArray::from(users.to_vec()))),
        ("campaign_id", numbers(&vec![Some(70); count])),
        ("publisher_id", numbers(&vec![Some(-80); count])),
        (
            "features_ctx_not_constrained_0",
            numbers(&vec![Some(7_687_156); count]),
        ),
        (
            "click_delay_after_display_array",
            delays(vec![Some(vec![Some(5)]); count]),
        ),
        (
            "landed_click_delay_after_display_array",
            delays(vec![Some(vec![]); count]),
        ),
        ("sale_delay_after_display_array", delays(vec![None; count])),
    ]
}

fn read(folder: &Path, options: &RawOptions) -> Result<Workload, String> {
    let mut last = None;
    let workload = read_raw(folder, options, &mut |now| last = Some(now));
    let workload = workload.map_err(|error| error.to_string())?;
    let last = last.unwrap();
    assert_eq!(last.bytes_done, last.bytes_total);
    Ok(workload)
}

fn events(workload: &Workload) -> Vec<String> {
    let mut events = Vec::new();
    for number in 0..workload.parts() {
        let part = workload.part(number).unwrap();
        events.extend(part.events().map(|event| {
            let site = &workload.conversion_site_names[event.conversion_site as usize];
            let kind = match event.kind {
                EventKind::Impression { site, bucket } => {
                    format!(
                        "on {} {bucket}",
                        workload.impression_site_names[site as usize]
                    )
                }
                EventKind::Conversion { value, .. } => format!("worth {value}"),
            };
            format!("{} {} {site} {kind}", event.minute, event.epoch)
        }));
    }
    events
}

fn everything(days: std::ops::RangeInclusive<u8>) -> RawOptions {
    RawOptions {
        days,
        resample: false,
        ..RawOptions::default()
    }
}

#[test]
fn displays_become_events() {
    let folder = TempDir::new().unwrap();
    let mut columns = displays(&["a", "a", "b", "c"]);
    columns[2].1 = numbers(&[Some(70), Some(71), None, Some(70)]);
    columns[3].1 = numbers(&[Some(-80), Some(80), Some(1), None]);
    columns[4].1 = numbers(&[Some(1_158_003_214), None, Some(1), Some(1)]);
    columns[5].1 = delays(vec![Some(vec![Some(3), Some(-4)]), None, None, None]);
    let landed = [Some(vec![Some(2.9), None]), Some(vec![]), None, None];
    columns[6].1 = Arc::new(LargeListArray::from_iter_primitive::<Float64Type, _, _>(
        landed,
    ));
    columns[7].1 = delays(vec![None, Some(vec![Some(3000)]), None, None]);
    write(&folder.path().join("data/day_int=2/b.gz.parquet"), columns);
    let expected = [
        "1440 2 70 on 80 0",
        "1440 2 71 on 80 4",
        "1440 2 70 worth 1",
        "1442 2 70 worth 1",
        "1443 2 70 worth 1",
        "4440 4 71 worth 1",
    ];
    let workload = read(folder.path(), &everything(1..=30)).unwrap();
    assert_eq!(events(&workload), expected);
    assert_eq!(workload.devices(), 1);
    // The folder that contains the folders of days can be given directly.
    let workload = read(&folder.path().join("data"), &everything(1..=30)).unwrap();
    assert_eq!(events(&workload), expected);
}

#[test]
fn days_come_from_folders_or_from_a_column() {
    let folder = TempDir::new().unwrap();
    for day in [2, 3, 10] {
        let path = folder.path().join(format!("day_int={day}/part.parquet"));
        write(&path, displays(&[&format!("user of {day}")]));
        // Only day 3 has a copy with this name. On another day it is an ordinary file.
        let path = folder.path().join(format!("day_int={day}/{DUPLICATE}"));
        write(&path, displays(&[&format!("other of {day}")]));
    }
    let workload = read(folder.path(), &everything(2..=30)).unwrap();
    let days: Vec<String> = events(&workload);
    let days: Vec<&str> = days
        .iter()
        .step_by(2)
        .map(|event| event.split(' ').nth(1).unwrap())
        .collect();
    assert_eq!(days, ["2", "2", "3", "10", "10"]);
    assert_eq!(
        read(folder.path(), &everything(3..=9)).unwrap().devices(),
        1
    );

    let folder = TempDir::new().unwrap();
    let mut columns = displays(&["a", "b", "c"]);
    columns.push(("day_int", numbers(&[Some(1), Some(11), Some(30)])));
    // All lists are null.
    columns[7].1 = Arc::new(NullArray::new(3));
    columns[1].1 = numbers(&[Some(1), Some(2), Some(3)]);
    write(&folder.path().join("all.parquet"), columns);
    let workload = read(folder.path(), &everything(11..=30)).unwrap();
    assert_eq!(workload.devices(), 2);
    assert_eq!(events(&workload)[0], "14400 11 70 on 80 3");
}

/// Writes 40 users with one display, 30 with two, 20 with three, one with eleven, and two with
/// four. The correction file has no share for four.
fn crowd(folder: &Path) {
    let mut users = Vec::new();
    for (displays, count) in [(1, 40), (2, 30), (3, 20), (11, 1), (4, 2)] {
        for number in 0..count {
            users.extend(std::iter::repeat_n(
                format!("{displays}-{number}"),
                displays,
            ));
        }
    }
    let users: Vec<&str> = users.iter().map(String::as_str).collect();
    let (first, second) = users.split_at(50);
    write(&folder.join("data/day_int=11/a.parquet"), displays(first));
    write(&folder.join("data/day_int=11/b.parquet"), displays(second));
}

fn by_displays(workload: &Workload) -> BTreeMap<usize, usize> {
    let mut users = BTreeMap::new();
    for number in 0..workload.parts() {
        let part = workload.part(number).unwrap();
        for device in 0..part.devices() {
            *users.entry(part.range(device).len() / 2).or_insert(0) += 1;
        }
    }
    users
}

#[test]
fn users_are_resampled() {
    let folder = TempDir::new().unwrap();
    crowd(folder.path());
    // The 40 users with one display would fit a population of 80 users, the 30 with two one of 100,
    // and the 20 with three one of 200. The smallest decides: 80.
    let correction =
        "cnt_displays;nb_users_original;other\n1;50;x\n2;30.0;x\n3;10;x\n11;5;x\n5;5;\n";
    std::fs::write(folder.path().join(CORRECTION), correction).unwrap();
    let options = RawOptions::default();
    let workload = read(folder.path(), &options).unwrap();
    assert_eq!(
        by_displays(&workload),
        BTreeMap::from([(1, 40), (2, 24), (3, 8)])
    );
    let again = read(folder.path(), &options).unwrap();
    assert_eq!(events(&workload), events(&again));
    // The correction file is also found in the folder above.
    let again = read(&folder.path().join("data"), &options).unwrap();
    assert_eq!(events(&workload), events(&again));
    let all = read(folder.path(), &everything(11..=30)).unwrap();
    assert_eq!(all.devices(), 93);
}

#[test]
fn what_is_wrong_is_named() {
    let folder = TempDir::new().unwrap();
    let error = |folder: &TempDir, options: &RawOptions| {
        let error = read(folder.path(), options).unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
        error.replace(&format!("{}/", folder.path().display()), "")
    };
    let options = RawOptions::default();
    assert!(
        error(&folder, &options).ends_with(": the folder has no Parquet files for days 11 to 30")
    );
    let path = folder.path().join("day_int=11/a.parquet");
    write(&path, displays(&["a"]));
    assert!(error(&folder, &options).starts_with("event_per_user_correction.csv: No such file"));
    for (text, expected) in [
        ("cnt_displays\n", "there is no column `nb_users_original`"),
        (
            "cnt_displays;nb_users_original\n1;50\n2;many\n",
            "column `nb_users_original`, row 2: \"many\" is not a percentage from 0 to 100",
        ),
        (
            "cnt_displays;nb_users_original\n1;101\n",
            "column `nb_users_original`, row 1: \"101\" is not a percentage from 0 to 100",
        ),
        (
            "cnt_displays;nb_users_original\none;10\n",
            "column `cnt_displays`, row 1: \"one\" is not a whole number",
        ),
        (
            "cnt_displays;nb_users_original\n7;10\n",
            "the file gives no share for the number of displays of any user",
        ),
    ] {
        std::fs::write(folder.path().join(CORRECTION), text).unwrap();
        assert_eq!(
            error(&folder, &options),
            format!("{CORRECTION}: {expected}")
        );
    }
    let all = everything(1..=30);
    let cells: [(usize, ArrayRef, &str); 4] = [
        (
            1,
            numbers(&[None]),
            "the folder has no displays on days 1 to 30",
        ),
        (
            5,
            numbers(&[Some(3)]),
            "column `click_delay_after_display_array` has type Int64, but must hold lists of numbers",
        ),
        (
            5,
            delays(vec![Some(vec![Some(1 << 40)])]),
            "column `click_delay_after_display_array`, row 1: a delay of 1099511627776 minutes is \
             too long",
        ),
        (
            1,
            Arc::new(arrow_array::Float64Array::from(vec![1.5])),
            "column `user_id` has type Float64, but must hold text or whole numbers",
        ),
    ];
    for (column, array, expected) in cells {
        let mut columns = displays(&["a"]);
        columns[column].1 = array;
        write(&path, columns);
        let error = error(&folder, &all);
        assert!(error.ends_with(&format!(": {expected}")), "{error}");
    }
    let mut columns = displays(&["a"]);
    columns.remove(3);
    write(&path, columns);
    let missing = error(&folder, &all);
    let expected =
        "day_int=11/a.parquet: there is no column `publisher_id`; the columns are: id, user_id, ";
    assert!(missing.starts_with(expected), "{missing}");
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("a.parquet");
    write(&path, displays(&["a"]));
    let missing = error(&folder, &all);
    assert!(
        missing.starts_with("a.parquet: there is no column `day_int`"),
        "{missing}"
    );
    let mut columns = displays(&["a"]);
    columns.push(("day_int", numbers(&[Some(31)])));
    write(&path, columns);
    assert_eq!(
        error(&folder, &all),
        "a.parquet: column `day_int`, row 1: day 31 is out of range; use 1 to 30"
    );
}
