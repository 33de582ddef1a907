//! Logs as they are: each of these files is read with at most two options, or refused with one line
//! that names the options that would do, and then read with those.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Decimal128Array, Int64Array, RecordBatch, StringArray,
    TimestampMicrosecondArray,
};
use bigbird_lab::diagnosis::{SymptomKind, WorkloadDiagnosis};
use bigbird_lab::evaluation::QuerierOptions;
use bigbird_lab::workload::table::{
    self, Input, ReducedNames, TableOptions, TimeForm, TimeUnit, host,
};
use bigbird_lab::workload::understanding::Understanding;
use bigbird_lab::workload::{EventKind, Workload};
use parquet::arrow::ArrowWriter;
use tempfile::TempDir;

/// Files in a folder that is removed at the end of the test.
struct Logs {
    folder: TempDir,
}

impl Logs {
    fn new() -> Self {
        Self {
            folder: TempDir::new().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        self
    }

    fn read(&self, name: &str, flags: &str) -> (Workload, Understanding) {
        read(&self.path(name), flags).unwrap()
    }

    fn events(&self, name: &str, flags: &str) -> Vec<String> {
        events(&self.read(name, flags).0)
    }

    /// The error message, without the folder.
    fn error(&self, name: &str, flags: &str) -> String {
        let error = read(&self.path(name), flags).unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
        error.replace(&format!("{}/", self.folder.path().display()), "")
    }
}

/// Reads with flags as those of the command.
fn read(path: &Path, flags: &str) -> Result<(Workload, Understanding), String> {
    let inputs = vec![Input::path(path)];
    let read = table::read_inputs(inputs, &options(flags), &mut |_| ());
    read.map_err(|error| error.to_string())
}

fn options(flags: &str) -> TableOptions {
    let mut options = TableOptions::default();
    let words: Vec<&str> = flags.split_whitespace().collect();
    assert!(words.len() <= 4, "more than two flags");
    for flag in words.chunks(2) {
        let list = || flag[1].split(',').map(str::to_owned).collect();
        match flag[0] {
            "--columns" => options.columns = flag[1].parse().unwrap(),
            "--impression-kind" => options.impression_kinds = list(),
            "--conversion-kind" => options.conversion_kinds = list(),
            "--bucket-column" => options.bucket_column = Some(flag[1].to_owned()),
            "--buckets" => options.buckets = Some(flag[1].parse().unwrap()),
            "--value-unit" => options.value_unit = Some(flag[1].parse().unwrap()),
            "--time-unit" => options.time_unit = Some(flag[1].parse().unwrap()),
            "--time-origin" => options.time_origin = Some(flag[1].parse().unwrap()),
            "--memory-rows" => options.memory_rows = flag[1].parse().unwrap(),
            "--sites" => options.sites.which = ReducedNames::All,
            flag => panic!("{flag}"),
        }
    }
    options
}

/// The flags that an error proposes: those after `give` or `for example`, up to a semicolon or a
/// comma that ends the proposal.
fn proposed(error: &str) -> String {
    let begin = error.find("--").unwrap_or_else(|| panic!("{error}"));
    let mut flags = Vec::new();
    for word in error[begin..].split(' ') {
        let ends = word.ends_with([';', ',']);
        let word = word.trim_end_matches([';', ',']);
        if flags.len() % 2 == 0 && !word.starts_with("--") {
            break;
        }
        flags.push(word);
        if ends {
            break;
        }
    }
    flags.join(" ")
}

/// Every event as text, sorted.
fn events(workload: &Workload) -> Vec<String> {
    let mut all = Vec::new();
    for number in 0..workload.parts() {
        let part = workload.part(number).unwrap();
        for device in 0..part.devices() {
            for at in part.range(device) {
                let event = part.event(at);
                let of = &workload.conversion_site_names[event.conversion_site as usize];
                let shown = |site: u32| &workload.impression_site_names[site as usize];
                let what = match event.kind {
                    EventKind::Impression { site, bucket } => format!("{} {bucket}", shown(site)),
                    EventKind::Conversion { value, .. } => format!("= {value}"),
                };
                all.push(format!("{} {} {of} {what}", event.minute, event.epoch));
            }
        }
    }
    all.sort();
    all
}

/// 2026-01-03T23:41:00Z in minutes and days.
const FIRST: &str = "29458061 20456";

/// An hour later.
const SECOND: &str = "29458121 20457";

fn expected(bucket: u16, value: u32) -> Vec<String> {
    vec![
        format!("{FIRST} shop.example news.example {bucket}"),
        format!("{SECOND} shop.example = {value}"),
    ]
}

#[test]
fn iso_times_and_names() {
    let logs = Logs::new().with(
        "logs.csv",
        "user_id,event_time,advertiser,publisher,country,event,revenue\n\
         u1,2026-01-04T00:41:00+01:00,shop.example,news.example,de,view,\n\
         u1,2026-01-04T00:41:00Z,shop.example,,de,purchase,12.34\n\
         u1,2026-01-04T00:43:00Z,shop.example,,de,scroll,\n",
    );
    let refused = logs.error("logs.csv", "");
    assert_eq!(
        refused,
        "logs.csv: column `event`: the kinds of rows are purchase (1), scroll (1), view (1); say \
         which of them are impressions and which are conversions, for example --impression-kind \
         view --conversion-kind purchase,scroll, or --columns kind=NAME for another column"
    );
    let (followed, _) = logs.read("logs.csv", &proposed(&refused));
    assert_eq!(followed.len(), 3);
    let flags = "--impression-kind view --conversion-kind purchase,signup";
    let (workload, understanding) = logs.read("logs.csv", flags);
    assert_eq!(events(&workload), expected(0, 1234));
    assert_eq!(workload.buckets, 1);
    assert_eq!(
        understanding.lines(),
        [
            "read 2 rows of CSV: device=user_id, time=event_time, conversion_site=advertiser, \
             impression_site=publisher, kind=event, value=revenue",
            "times: ISO 8601, from 2026-01-03 23:41 to 2026-01-04 00:41 UTC; epochs of 1 day, \
             counted from 1970-01-01 UTC on",
            "impressions: view (1); conversions: purchase (1); left out: scroll (1); one bucket; \
             values: 1,234 to 1,234 in units of 0.01 of `revenue`",
        ]
    );
    assert_eq!(
        understanding.times.epoch_date(20_456).unwrap(),
        "2026-01-03"
    );
}

#[test]
fn semicolons_with_a_decimal_comma() {
    let logs = Logs::new().with(
        "logs.txt",
        "uid;ts;destination;source_site;type;amount\r\n\
         a;2026-01-03 23:41:00;shop.example;news.example;impression;\r\n\
         a;2026-01-04 00:41:00;shop.example;;conversion;\"1.012,5\"\r\n",
    );
    assert_eq!(logs.events("logs.txt", ""), expected(0, 10_125));
    let (workload, understanding) = logs.read("logs.txt", "--value-unit 0.01");
    assert_eq!(events(&workload), expected(0, 101_250));
    assert!(understanding.values.decimal_comma && understanding.times.zoneless);
    assert_eq!(logs.events("logs.txt", "--value-unit 100"), expected(0, 10));
    assert_eq!(logs.events("logs.txt", "--value-unit 9999"), expected(0, 1));
}

#[test]
fn values_that_were_computed() {
    let logs = Logs::new().with(
        "logs.csv",
        "device,time,conversion_site,impression_site,value\n\
         a,1,s,,12.3456789\n\
         a,1,s,,0\n",
    );
    let refused = logs.error("logs.csv", "");
    assert_eq!(
        refused,
        "logs.csv: column `value`: values have many decimals, such as 12.3456789; give \
         --value-unit 0.01 to count them in units of 0.01, rounded to the nearest"
    );
    let (workload, understanding) = logs.read("logs.csv", &proposed(&refused));
    assert_eq!(events(&workload), ["1 0 s = 1", "1 0 s = 1235"]);
    assert_eq!(
        (understanding.values.rounded, understanding.values.raised),
        (1, 1)
    );
}

fn gzip(text: &str) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(text.as_bytes()).unwrap();
    writer.finish().unwrap()
}

#[test]
fn compressed_text_of_any_name() {
    let text = "cookie\tunixtime\tdestination\tpublisher\tsegment\n\
                a\t1767483660\tshop.example\tnews.example\tgold\n\
                a\t1767487260\tshop.example\t\t\n";
    let logs = Logs::new()
        .with("logs.tsv.gz", gzip(text))
        .with("logs.dat", zstd::encode_all(text.as_bytes(), 1).unwrap())
        .with("two.gz", [gzip(&text[..60]), gzip(&text[60..])].concat())
        .with("cut.gz", &gzip(&text.repeat(1000))[..200]);
    for name in ["logs.tsv.gz", "logs.dat", "two.gz"] {
        assert_eq!(logs.events(name, ""), expected(0, 1), "{name}");
        let (workload, understanding) = logs.read(name, "--bucket-column segment");
        assert_eq!(events(&workload), expected(0, 1), "{name}");
        assert_eq!(workload.buckets, 1);
        assert_eq!(understanding.buckets.names, ["gold"]);
        let forms = &understanding.times.forms;
        assert_eq!(*forms, [TimeForm::Unix(TimeUnit::Seconds)]);
    }
    let cut = logs.error("cut.gz", "");
    assert!(
        cut.starts_with("cut.gz: the file cannot be decompressed: "),
        "{cut}"
    );

    // A stream is read once, and looked at before it is read.
    let mut stream = &gzip(text)[..];
    let input = Input::stream("standard input", &mut stream, None).unwrap();
    let read = table::read_inputs(vec![input], &TableOptions::default(), &mut |_| ());
    assert_eq!(events(&read.unwrap().0), expected(0, 1));
}

/// The forms in which the library's own examples are: sources and triggers in files of their own,
/// by day, one object after the other, with times as numbers or as text.
fn simulation_library() -> Logs {
    Logs::new()
        .with(
            "data/2026/01/03/attribution_source.json",
            r#"{"user_id": "U1", "source_event_id": "1", "source_type": "EVENT",
                "publisher": "https://www.news.example/s1",
                "web_destination": "https://shop.example/d1", "timestamp": "1767483660000",
                "filter_data": {"product": ["7", "8"]}, "aggregation_keys": {"a": "0x1"}}
               {"user_id": "U2", "source_event_id": 2, "source_type": "NAVIGATION",
                "publisher": "https://www.news.example/s2",
                "destination": "android-app://com.example.app", "timestamp": 1767483660000}"#,
        )
        .with(
            "data/2026/01/04/trigger.json",
            r#"{"user_id": "U1", "attribution_destination": "https://www.shop.example/d1",
                "destination_type": "WEB", "timestamp": 1767487260000, "registrant": "x",
                "event_trigger_data": [{"trigger_data": 1, "priority": 100}],
                "aggregatable_values": {"campaignCounts": 32768, "geoValue": "1664"}}"#,
        )
        .with(
            "data/2026/01/04/extension.json",
            r#"{"user_id": "U1", "uri": "android-app://a", "timestamp": "1767487260000",
                "action": "install"}"#,
        )
}

#[test]
fn json_of_the_simulation_library() {
    let logs = simulation_library();
    let app = format!("{FIRST} com.example.app www.news.example 0");
    let app = app.replace("com.example.app", "android-app://com.example.app");
    let (workload, understanding) = logs.read("data", "");
    assert_eq!(
        events(&workload),
        [
            app.clone(),
            format!("{FIRST} shop.example www.news.example 0"),
            format!("{SECOND} www.shop.example = 1"),
        ]
    );
    assert_eq!(workload.devices(), 2);
    let lines = understanding.lines();
    assert!(
        lines[0].contains("JSON of the Attribution Reporting simulation library")
            && lines[0].contains("left out")
            && lines[0].ends_with("; sites of names in conversion_site and impression_site"),
        "{}",
        lines[0]
    );
    // With a list of public suffixes, both names are one site. A path leads to what is inside.
    let mut options = options("--columns value=aggregatable_values.geoValue");
    options.sites.reduce = |name| {
        let host = host(name)?;
        Some(host.strip_prefix("www.").unwrap_or(&host).to_owned())
    };
    options.bucket_column = Some("filter_data.product".to_owned());
    let inputs = vec![Input::path(logs.path("data"))];
    let (workload, understanding) = table::read_inputs(inputs, &options, &mut |_| ()).unwrap();
    assert_eq!(understanding.buckets.names, ["(empty)", "7"]);
    assert_eq!(
        events(&workload)[1..],
        [
            format!("{FIRST} shop.example news.example 1"),
            format!("{SECOND} shop.example = 1664"),
        ]
    );
}

#[test]
fn other_json() {
    let objects = [
        r#"{"uid": 7, "ts": 1767483660.5, "kind": "imp", "shop": "shop.example", "publisher": "news.example"}"#,
        r#"{"uid": 7, "ts": 1767487260, "kind": "sale", "shop": "shop.example", "price": 5}"#,
    ];
    let logs = Logs::new()
        .with("lines.jsonl", objects.join("\n"))
        .with("array.json", format!(" [{}]", objects.join(",")))
        .with("bom.json", format!("\u{feff}{}", objects.concat()))
        .with("bad.json", "[{\"uid\": 7}, 5]")
        .with("cut.json", "{\"uid\": 7")
        .with("none.json", "[]");
    for name in ["lines.jsonl", "array.json", "bom.json"] {
        assert_eq!(logs.events(name, ""), expected(0, 5), "{name}");
    }
    assert!(
        logs.error("bad.json", "")
            .contains("a row is not an object")
    );
    assert!(
        logs.error("cut.json", "")
            .contains("not JSON as expected: ")
    );
    assert_eq!(
        logs.error("none.json", ""),
        "none.json: the file has no rows"
    );
}

#[test]
fn a_parquet_export_with_other_kinds() {
    let logs = Logs::new();
    let path = logs.path("export.parquet");
    let text = |values: [Option<&str>; 3]| Arc::new(StringArray::from(values.to_vec())) as ArrayRef;
    let times = [
        1_767_483_660_000_000,
        1_767_487_260_000_000,
        1_767_487_260_000_000,
    ];
    let prices = Decimal128Array::from(vec![None, Some(1234), None]);
    let columns: [(&str, ArrayRef); 7] = [
        ("visitor_id", Arc::new(Int64Array::from(vec![1, 1, 1]))),
        (
            "occurred_at",
            Arc::new(TimestampMicrosecondArray::from(times.to_vec())),
        ),
        ("advertiser_domain", text([Some("shop.example"); 3])),
        ("publisher_domain", text([Some("news.example"), None, None])),
        (
            "event_name",
            text([Some("ad served"), Some("checkout"), Some("checkout")]),
        ),
        (
            "price",
            Arc::new(prices.with_precision_and_scale(9, 2).unwrap()),
        ),
        (
            "mobile",
            Arc::new(BooleanArray::from(vec![true, false, true])),
        ),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    let refused = logs.error("export.parquet", "");
    assert_eq!(
        refused,
        "export.parquet: column `event_name`: the kinds of rows are checkout (2), ad served (1); \
         say which of them are impressions and which are conversions, for example \
         --impression-kind 'ad served' --conversion-kind checkout, or --columns kind=NAME for \
         another column"
    );
    // One flag is enough: rows that are not told apart by words are by their impression site.
    let (workload, _) = logs.read("export.parquet", "--columns kind=-");
    assert_eq!(
        events(&workload),
        [
            format!("{FIRST} shop.example news.example 0"),
            format!("{SECOND} shop.example = 1"),
            format!("{SECOND} shop.example = 1234"),
        ]
    );
    let (workload, understanding) =
        logs.read("export.parquet", "--columns kind=- --bucket-column mobile");
    assert_eq!(
        (workload.buckets, understanding.buckets.names),
        (1, vec!["true".to_owned()])
    );
}

#[test]
fn unclear_columns_are_proposed_and_the_proposal_works() {
    let logs = Logs::new()
        .with(
            "logs.csv",
            "device_id,user_id,when,store,site\n\
             a,b,1767483660,shop.example,news.example\n\
             a,b,1767487260,shop.example,\n",
        )
        .with(
            "iso.csv",
            "device,time,conversion_site,impression_site\na,31/01/2026,s,\n",
        )
        .with(
            "minutes.csv",
            "device,time,conversion_site,impression_site\na,5,s,\n",
        );
    let refused = logs.error("logs.csv", "");
    assert_eq!(
        refused,
        "logs.csv: device could be device_id or user_id, no column is named time, no column is \
         named conversion_site; give --columns device=device_id,time=when,conversion_site=store; \
         the columns are: device_id, user_id, when, store, site"
    );
    let flags = proposed(&refused);
    let refused = logs.error("logs.csv", &flags);
    assert_eq!(
        refused,
        "logs.csv: no column is named impression_site; give --columns impression_site=site; the \
         columns are: device_id, user_id, when, store, site"
    );
    let more = proposed(&refused).replace("--columns ", "");
    assert_eq!(
        logs.events("logs.csv", &format!("{flags},{more}")),
        expected(0, 1)
    );
    assert_eq!(
        logs.error("iso.csv", ""),
        "iso.csv: column `time`, row 1: \"31/01/2026\" is not a whole number, and not a time as in \
         ISO 8601, such as 2026-01-31T23:59Z"
    );
    // Times with and without an origin do not fit together.
    let inputs = ["minutes.csv", "logs.csv"].map(|name| Input::path(logs.path(name)));
    let flags = "--columns device=device_id";
    let mixed = table::read_inputs(inputs.into(), &options(flags), &mut |_| ());
    assert!(mixed.is_err());
}

#[test]
fn buckets_of_any_column() {
    let rows = |values: &[&str]| {
        let mut text = "device,time,conversion_site,impression_site,bucket,size\n".to_owned();
        for (at, value) in values.iter().enumerate() {
            text += &format!("d,{at},s,p,{value},{at}\n");
        }
        text
    };
    let many: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    // What is unlike the first rows comes late.
    let late: Vec<&str> = [&["1"][..]; 1500]
        .concat()
        .into_iter()
        .chain(["x", "y", "y"])
        .collect();
    let logs = Logs::new()
        .with("few.csv", rows(&["0", "4"]))
        .with("nine.csv", rows(&["0", "9"]))
        .with("many.csv", rows(&many))
        .with("late.csv", rows(&late))
        .with(
            "names.csv",
            rows(&["de", "fr", "fr", "it", "es", "nl", "pl"]),
        );
    let buckets = |name: &str, flags: &str| {
        let (workload, understanding) = logs.read(name, flags);
        (workload.buckets, understanding.buckets.names.join(" "))
    };
    assert_eq!(buckets("few.csv", ""), (5, String::new()));
    assert_eq!(buckets("few.csv", "--buckets 7"), (7, String::new()));
    assert_eq!(buckets("few.csv", "--columns bucket=-"), (1, String::new()));
    let refused = logs.error("nine.csv", "");
    assert_eq!(
        refused,
        "nine.csv: column `bucket`: the buckets are 0 to 9, and must be 0 to 4; give --buckets 10 \
         to take them as they are, or --bucket-column bucket to keep the most frequent ones"
    );
    assert_eq!(
        buckets("nine.csv", &proposed(&refused)),
        (10, String::new())
    );
    assert_eq!(
        buckets("nine.csv", "--bucket-column bucket"),
        (2, "0 9".to_owned())
    );
    assert_eq!(buckets("many.csv", "--buckets 1000").0, 1000);
    assert_eq!(
        buckets("names.csv", ""),
        (5, "fr de es it other".to_owned())
    );
    assert_eq!(
        buckets("names.csv", "--buckets 3"),
        (3, "fr de other".to_owned())
    );
    assert_eq!(buckets("late.csv", ""), (3, "1 y x".to_owned()));
    // The same on disk: nothing depends on where rows are kept.
    assert_eq!(
        logs.events("late.csv", "--memory-rows 10"),
        logs.events("late.csv", "")
    );
    let missing = logs.error("few.csv", "--bucket-column color");
    assert!(missing.starts_with("few.csv: there is no column `color`; the columns are: device,"));
}

/// Nothing depends on the order of files and rows.
#[test]
fn the_order_does_not_matter() {
    let rows = [
        "a,2026-01-03T23:41:00Z,s,p,x",
        "a,2026-02-03T23:41:00Z,s,p,y",
        "b,2025-12-03T23:41:00Z,s,p,y",
        "b,2026-01-04,s,,",
    ];
    let header = "device,time,conversion_site,impression_site,bucket\n";
    let file = |rows: &[&str]| format!("{header}{}\n", rows.join("\n"));
    let back: Vec<&str> = rows.iter().rev().copied().collect();
    let logs = Logs::new()
        .with("one.csv", file(&rows))
        .with("back.csv", file(&back))
        .with("two/1.csv", file(&rows[2..]))
        .with("two/2.csv", file(&rows[..2]));
    let expected = logs.events("one.csv", "");
    assert_eq!(logs.events("back.csv", ""), expected);
    assert_eq!(logs.events("two", ""), expected);
    let (_, understanding) = logs.read("back.csv", "");
    assert_eq!(understanding.out_of_order.devices, 2);
    assert_eq!(logs.read("one.csv", "").1.out_of_order.devices, 0);
    let sorted = TableOptions {
        sorted: true,
        ..TableOptions::default()
    };
    let read = |name: &str| {
        let inputs = vec![Input::path(logs.path(name))];
        table::read_inputs(inputs, &sorted, &mut |_| ()).map(|(workload, _)| workload)
    };
    assert_eq!(events(&read("one.csv").unwrap()), expected);
    let refused = read("back.csv").unwrap_err().to_string();
    assert!(
        refused.contains("--sorted requires rows in order of time"),
        "{refused}"
    );
}

#[test]
fn explicit_units_and_origins_win() {
    let logs = Logs::new().with(
        "logs.csv",
        "device,time,conversion_site,impression_site\na,1767483660,s,\n",
    );
    assert_eq!(logs.events("logs.csv", ""), [format!("{FIRST} s = 1")]);
    let origin = "--time-origin 2026-01-03";
    assert_eq!(logs.events("logs.csv", origin), ["1421 0 s = 1"]);
    let origin = "--time-origin 1767483600";
    assert_eq!(logs.events("logs.csv", origin), ["1 0 s = 1"]);
    let unit = "--time-unit milliseconds";
    assert_eq!(logs.events("logs.csv", unit), ["29458 20 s = 1"]);
    assert_eq!(
        logs.error("logs.csv", "--time-unit minutes"),
        "logs.csv: column `time`, row 1: 1767483660 is in epoch 1227419, and the last possible one \
         is 65535; set --time-unit or --time-origin"
    );
}

#[test]
fn the_doctor_says_what_is_odd() {
    let logs = Logs::new().with(
        "logs.csv",
        "device,time,conversion_site,impression_site\n\
         a,0,shop.example,news.example\n\
         a,20000,shop.example,\n\
         a,30,WWW.shop.example.,news.example\n\
         b,0,https://shop.example:443,\n\
         c,0,silent.example,www.news.example\n\
         c,1,silent.example,news.example\n",
    );
    let (workload, understanding) = logs.read("logs.csv", "");
    let options = QuerierOptions::default();
    let examined = WorkloadDiagnosis::new(&workload, Some(&understanding), &options, 1).unwrap();
    let found = |kind| {
        let finding = examined.findings.iter().find(|it| it.kind == kind);
        finding.map(|finding| (finding.count, finding.of))
    };
    assert_eq!(found(SymptomKind::NeverConverts), Some((3, 4)));
    assert_eq!(found(SymptomKind::NoEarlierImpression), Some((1, 2)));
    assert_eq!(found(SymptomKind::OutOfReach), Some((1, 2)));
    assert_eq!(found(SymptomKind::SingleEvent), Some((1, 3)));
    assert_eq!(found(SymptomKind::TimeGoesBack), Some((1, 3)));
    assert_eq!(found(SymptomKind::NoConversions), None);
    let several: Vec<_> = examined
        .findings
        .iter()
        .filter(|it| it.kind == SymptomKind::SeveralNames)
        .map(|it| it.examples.join(", "))
        .collect();
    assert_eq!(
        several,
        [
            "WWW.shop.example. and shop.example",
            "news.example and www.news.example"
        ]
    );
    let measurable = &examined.measurable;
    assert_eq!((measurable.queriers, measurable.with_a_batch), (0, 0));
    // The flags that it proposes are enough.
    assert_eq!(
        measurable.flags.as_deref(),
        Some("--min-conversions-per-day 1 --batch-days 2 --min-batch 2")
    );
    let smaller = QuerierOptions {
        min_conversions_a_day: 1,
        batch_days: 2,
        min_batch: 2,
        ..options
    };
    let examined = WorkloadDiagnosis::new(&workload, None, &smaller, 1).unwrap();
    assert_eq!(examined.measurable.with_a_batch, 1);
    assert_eq!(examined.measurable.flags, None);
}
