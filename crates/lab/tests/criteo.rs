//! Prepared Criteo files. An error is one line that names the file, the column and the row.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use bigbird_lab::workload::criteo::{PreparedOptions, read_prepared};
use parquet::arrow::ArrowWriter;

/// A folder that is removed at the end of the test.
struct CriteoFolder(PathBuf);

impl CriteoFolder {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("criteo-{name}"));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, columns: Vec<(&str, ArrayRef)>) {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let file = File::create(self.0.join(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    fn error(&self) -> String {
        let error = read_prepared(&self.0, &PreparedOptions::default())
            .unwrap_err()
            .to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    }
}

impl Drop for CriteoFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const IMPRESSIONS: &str = "20last_impressions.pqt";
const CONVERSIONS: &str = "20last_conversions.pqt";

fn numbers(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn impressions() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("timestamp_min", numbers(&[1440, 1440])),
        ("user_id", numbers(&[7, 8])),
        ("day_int", numbers(&[1, 1])),
        ("campaign_id", numbers(&[70, 71])),
        ("publisher_id", numbers(&[80, 80])),
        ("features_ctx_not_constrained_0", numbers(&[7_687_156, 5])),
        ("impression_id", numbers(&[100, 101])),
    ]
}

fn conversions() -> Vec<(&'static str, ArrayRef)> {
    vec![
        ("timestamp_min", numbers(&[1450])),
        ("user_id", numbers(&[8])),
        ("day_int", numbers(&[1])),
        ("campaign_id", numbers(&[71])),
        ("attributed_impression_id", numbers(&[101])),
    ]
}

#[test]
fn prepared_files_become_a_workload() {
    let folder = CriteoFolder::new("good");
    folder.write(IMPRESSIONS, impressions());
    folder.write(CONVERSIONS, conversions());
    let workload = read_prepared(&folder.0, &PreparedOptions::default()).unwrap();
    assert_eq!((workload.devices(), workload.len()), (2, 3));
    assert_eq!(workload.conversion_site_names, ["70", "71"]);
    assert_eq!(workload.impression_site_names, ["80"]);
}

#[test]
fn what_is_wrong_is_named() {
    let folder = CriteoFolder::new("bad");
    folder.write(CONVERSIONS, conversions());
    let mut columns = impressions();
    columns.remove(4);
    folder.write(IMPRESSIONS, columns);
    let error = folder.error();
    assert!(
        error.contains(
            "20last_impressions.pqt: there is no column `publisher_id`; the columns are: \
             timestamp_min, user_id"
        ),
        "{error}"
    );

    let mut columns = impressions();
    columns[1].1 = Arc::new(StringArray::from(vec!["a", "b"]));
    folder.write(IMPRESSIONS, columns);
    let error = folder.error();
    assert!(
        error.ends_with("column `user_id` has type Utf8, but must hold whole numbers"),
        "{error}"
    );

    let mut columns = impressions();
    columns[0].1 = numbers(&[1440, -3]);
    folder.write(IMPRESSIONS, columns);
    let error = folder.error();
    assert!(
        error.ends_with("column `timestamp_min`, row 2: -3 is out of range"),
        "{error}"
    );

    let mut columns = impressions();
    columns[3].1 = Arc::new(Int64Array::from(vec![Some(1), None]));
    folder.write(IMPRESSIONS, columns);
    let error = folder.error();
    assert!(
        error.ends_with("column `campaign_id`, row 2: the cell is empty"),
        "{error}"
    );
}
