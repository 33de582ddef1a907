//! The commands of the laboratory.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{bigbird, folder, parsed, refused};
use serde_json::Value;

#[test]
fn simulate_sweeps_what_is_given_as_lists() {
    let common = "simulate --scale 0.01 --min-conversions-per-day 20";
    let runs = parsed(&format!(
        "{common} --profile big-bird,cookie-monster --impression-site-quota 1,none \
         --attacker none,random --json"
    ));
    let runs = runs["runs"].as_array().unwrap();
    let told = |run: &Value| {
        let of = |key: &str| run[key].to_string();
        [
            of("profile"),
            of("attacker"),
            of("impressionSiteQuota"),
            of("domainCap"),
            of("sybils"),
        ]
        .join(" ")
    };
    assert_eq!(
        runs.iter().map(told).collect::<Vec<_>>(),
        [
            r#""big-bird" "none" 1.0 2 null"#,
            r#""big-bird" "random" 1.0 2 25"#,
            r#""big-bird" "none" null 2 null"#,
            r#""big-bird" "random" null 2 25"#,
            r#""cookie-monster" "none" null null null"#,
            r#""cookie-monster" "random" null null 25"#,
        ]
    );
    for run in runs {
        let batches = run["batches"].as_array().unwrap();
        assert!(!batches.is_empty() && run["median"].as_f64().unwrap() > 0.0);
        let sum = |of: &Value| {
            of.as_object()
                .unwrap()
                .values()
                .filter_map(Value::as_u64)
                .sum::<u64>()
        };
        let blocked: u64 = batches.iter().map(|batch| sum(&batch["blocked"])).sum();
        assert_eq!(sum(&run["blocked"]), blocked);
    }
    // With the same seed, the result does not depend on the number of threads.
    let one = bigbird(&format!("{common} --attacker random --threads 1 --json"));
    let three = bigbird(&format!("{common} --attacker random --threads 3 --json"));
    assert_eq!(one.stdout, three.stdout);
}

/// A limit that is not given is the one of the profile of that run.
#[test]
fn simulate_takes_the_limits_of_the_profile() {
    let common = "simulate --scale 0.01 --min-conversions-per-day 20 --json";
    let runs = parsed(&format!(
        "{common} --profile big-bird,w3c-draft,global-only --querier-budget 0.5 \
         --site-charging full,paper"
    ));
    let told = |run: &Value| {
        let limits = [
            "querierBudget",
            "globalBudget",
            "impressionSiteQuota",
            "conversionSiteQuota",
            "domainCap",
        ];
        let limits = limits.map(|limit| run[limit].to_string()).join(" ");
        format!("{} {} {limits}", run["profile"], run["siteCharging"])
    };
    assert_eq!(
        runs["runs"]
            .as_array()
            .unwrap()
            .iter()
            .map(told)
            .collect::<Vec<_>>(),
        [
            r#""big-bird" "full" 0.5 8.0 2.0 1.0 2"#,
            r#""big-bird" "paper" 0.5 8.0 2.0 1.0 2"#,
            r#""w3c-draft" "full" 0.5 8.0 4.0 null null"#,
            r#""w3c-draft" "paper" 0.5 8.0 4.0 null null"#,
            r#""global-only" "full" 0.5 8.0 null null null"#,
            r#""global-only" "paper" 0.5 8.0 null null null"#,
        ]
    );
}

#[test]
fn simulate_refuses_what_makes_no_sense() {
    let (status, message) = refused("simulate --scale 0");
    assert_eq!(
        (status, message.as_str()),
        (2, "bigbird: --scale must be in (0, 10], got 0\n")
    );
    let (status, message) = refused("simulate --scale 0.001 --domain-cap 1.5");
    assert_eq!(status, 2);
    assert_eq!(
        message,
        "bigbird: --domain-cap must be a whole number of sites, got 1.5\n"
    );
    let (status, message) = refused("simulate --scale 0.001");
    assert_eq!(status, 2);
    assert!(
        message.contains("no querier has enough conversions for one batch: the busiest has "),
        "{message}"
    );
    let (status, message) = refused("simulate --scale 0.001 --min-conversions-per-day 100000");
    assert_eq!(status, 2);
    assert!(
        message.contains("no conversion site has 100000 conversions a day"),
        "{message}"
    );
    let (status, message) = refused("simulate --criteo-prepared /no/such/place");
    assert_eq!(status, 2);
    assert!(
        message.contains("20last_impressions.pqt: No such file"),
        "{message}"
    );
    let notes = folder();
    std::fs::write(notes.file("20last_impressions.pqt"), "not Parquet").unwrap();
    let (status, message) = refused(&format!(
        "simulate --criteo-prepared {}",
        notes.file("").display()
    ));
    assert_eq!(status, 2);
    assert!(
        message.contains("20last_impressions.pqt: not a Parquet file"),
        "{message}"
    );
}

/// A small population that has queriers.
const SMALL: &str = "--scale 0.005 --min-conversions-per-day 10 --min-batch 300";

#[test]
fn simulate_writes_tables_and_figures() {
    let folder = folder();
    let (csv, figure) = (folder.file("s.csv"), folder.file("s.svg"));
    let output = bigbird(&format!(
        "simulate {SMALL} --attacker none,slow --impression-site-quota 1,2,none --seed 1,2 \
         --csv {} --figure {}",
        csv.display(),
        figure.display()
    ));
    assert!(output.status.success(), "{output:?}");
    let csv = std::fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 3 * 2);
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == columns));
    let figure = std::fs::read_to_string(figure).unwrap();
    assert!(figure.starts_with("<svg") && figure.contains("slow, seed 2, median"));
}

/// Several seeds give intervals, and every number says what it comes from.
#[test]
fn simulate_explains_its_numbers() {
    let folder = folder();
    let [csv, parquet] = ["b.csv", "b.parquet"].map(|name| folder.file(name));
    let common = format!("simulate {SMALL} --attacker none,random --seed 1,2,3,3");
    let found = parsed(&format!("{common} --json --batches {}", csv.display()));
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 2 * 3, "a seed that is given twice counts once");
    let mut batches = 0;
    for run in runs {
        batches += run["batches"].as_array().unwrap().len();
        let shares =
            ["noiseShare", "blockingShare"].map(|it| run["diagnosis"][it].as_f64().unwrap());
        assert!((shares[0] + shares[1] - 1.0).abs() < 1e-12, "{run}");
        assert!(run["queriers"]["withBatch"].as_u64().unwrap() > 0);
    }
    let groups = found["overSeeds"].as_array().unwrap();
    assert_eq!(groups.len(), 2);
    for group in groups {
        assert_eq!(group["seeds"], serde_json::json!([1, 2, 3]));
        let [low, mean, high] =
            ["low", "mean", "high"].map(|it| group["median"][it].as_f64().unwrap());
        assert!(low < mean && mean < high, "{group}");
    }
    let rows = std::fs::read_to_string(&csv).unwrap();
    assert_eq!(rows.lines().count(), 1 + batches);

    let text = bigbird(&format!("{common} --batches {}", parquet.display()));
    assert!(std::fs::read(&parquet).unwrap().starts_with(b"PAR1"));
    let text = String::from_utf8(text.stdout).unwrap();
    for part in [
        "±",
        "From noise, from blocking: ",
        "95% intervals",
        "What would help: ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // The form of a file is known before anything is run.
    let (status, message) = refused(&format!("{common} --batches b.xls"));
    assert_eq!(
        (status, message.as_str()),
        (
            2,
            "bigbird: b.xls: the name must end in .csv, .parquet or .pqt\n"
        )
    );
}

/// Each form has the same numbers.
#[test]
fn results_have_four_forms() {
    let plan = "plan --scale 0.005 --conversions-per-day 600";
    let of = |format: &str| {
        let output = bigbird(&format!("{plan} --format {format}"));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let [text, markdown, csv, json] = ["text", "markdown", "csv", "json"].map(of);
    let json: Value = serde_json::from_str(&json).unwrap();
    let grid = json["grid"].as_array().unwrap();
    let of_csv: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(
        of_csv[0],
        [
            "batch", "days", "epsilon", "noise", "blocked", "blocking", "error", "answer"
        ]
    );
    assert_eq!(of_csv.len(), 1 + grid.len());
    for (row, expected) in of_csv[1..].iter().zip(grid) {
        assert_eq!(row[6].parse::<f64>().ok(), expected["error"].as_f64());
    }
    let rows = |text: &str| text.lines().filter(|line| line.contains('%')).count();
    assert!(markdown.contains("| ---: |") && rows(&markdown) >= grid.len());
    assert!(text.contains("─── ".trim()) && rows(&text) >= grid.len());

    let (status, message) = refused(&format!("{plan} --json --format csv"));
    assert!(
        status == 2 && message.contains("cannot be used with"),
        "{message}"
    );
}

#[test]
fn logs_give_what_they_were_written_from() {
    let folder = folder();
    let medians = |source: &str| {
        let runs = parsed(&format!(
            "simulate {source} --impression-site-quota 0.5,2 --json"
        ));
        let runs = runs["runs"].as_array().unwrap().clone();
        runs.iter()
            .map(|run| run["median"].to_string())
            .collect::<Vec<_>>()
    };
    let expected = medians(SMALL);
    for name in ["logs.csv", "logs.parquet", "prepared"] {
        let path = folder.file(name);
        let path = path.display();
        let written = bigbird(&format!("workload write {SMALL} --to {path}"));
        assert!(written.status.success(), "{written:?}");
        let logs = format!("{path} --min-conversions-per-day 10 --min-batch 300");
        assert_eq!(medians(&logs), expected, "{name}");
    }
    let described = parsed(&format!(
        "workload describe {} --json",
        folder.file("logs.csv").display()
    ));
    assert_eq!(described["devices"], 7000);
    let bad = folder.file("bad.csv");
    std::fs::write(
        &bad,
        "device,time,conversion_site,impression_site,bucket,kind\na,-1,x,y,0,i\n",
    )
    .unwrap();
    let (status, message) = refused(&format!("tune {}", bad.display()));
    assert_eq!(status, 2);
    assert!(
        message.ends_with(
            "bad.csv: column `time`, row 1: -1 is negative; set --time-origin to the earliest time\n"
        ),
        "{message}"
    );
}

/// The files in a folder, with their content.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_file())
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .collect()
}

#[test]
fn reproduce_goes_on_where_it_stopped() {
    let folder = folder();
    let output = folder.file("out");
    let command = format!(
        "reproduce {SMALL} --suite fig6b --output {}",
        output.display()
    );
    let finished = bigbird(&command);
    assert!(finished.status.success(), "{finished:?}");
    let (first, runs) = (files(&output), files(&output.join("runs")));
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        ["fig6b.csv", "fig6b.svg", "report.html", "results.json"]
    );
    assert_eq!(runs.len(), 12);
    let report = String::from_utf8(first["report.html"].clone()).unwrap();
    assert!(report.contains("claims of the paper hold") && report.contains("<svg"));
    assert!(
        !report.contains("src=") && !report.contains("@import"),
        "the report refers to other files"
    );
    let results: Value = serde_json::from_slice(&first["results.json"]).unwrap();
    assert_eq!(results["runs"].as_array().unwrap().len(), 12);

    // No run is repeated: a result that was changed by hand stays.
    let (name, run) = runs.first_key_value().unwrap();
    let changed = String::from_utf8(run.clone())
        .unwrap()
        .replace("\"median\":", "\"median\":1");
    std::fs::write(output.join("runs").join(name), &changed).unwrap();
    bigbird(&command);
    assert_ne!(files(&output)["results.json"], first["results.json"]);
    // Runs that are missing or damaged are repeated, with the same result.
    std::fs::write(output.join("runs").join(name), &changed[..100]).unwrap();
    std::fs::remove_file(output.join("runs").join(runs.keys().nth(5).unwrap())).unwrap();
    bigbird(&command);
    // Only the report says when it was made, and how long that took.
    let without_report = |mut files: BTreeMap<String, Vec<u8>>| {
        files.remove("report.html");
        files
    };
    assert_eq!(without_report(files(&output)), without_report(first));
    assert_eq!(files(&output.join("runs")), runs);
    // Another seed makes new runs. Another number of threads does not.
    bigbird(&format!("{command} --seed 2"));
    assert_eq!(files(&output.join("runs")).len(), 24);
    bigbird(&format!("{command} --threads 1"));
    assert_eq!(files(&output.join("runs")).len(), 24);
    bigbird(&format!("{command} --fresh"));
    assert_eq!(files(&output.join("runs")), runs);
}

#[test]
fn reproduce_gives_means_over_seeds() {
    let folder = folder();
    let output = folder.file("out");
    let command = format!(
        "reproduce {SMALL} --suite fig6b --output {}",
        output.display()
    );
    let finished = bigbird(&format!("{command} --seed 1,2,3 --without-batches"));
    assert!(finished.status.success(), "{finished:?}");
    let text = String::from_utf8(finished.stdout).unwrap();
    assert!(
        text.contains("means over 3 seeds") && text.contains(" ± "),
        "{text}"
    );
    assert!(text.contains("36 runs in"), "{text}");
    assert_eq!(files(&output.join("runs")).len(), 36);
    let written = files(&output);
    let results: Value = serde_json::from_slice(&written["results.json"]).unwrap();
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 36);
    assert!(
        runs.iter()
            .all(|run| run["batches"] == serde_json::json!([]))
    );
    let seeds: Vec<u64> = runs
        .iter()
        .step_by(12)
        .map(|run| run["seed"].as_u64().unwrap())
        .collect();
    assert_eq!(seeds, [1, 2, 3]);
    // The numbers of figures are means.
    let csv = String::from_utf8(written["fig6b.csv"].clone()).unwrap();
    let shown: f64 = csv
        .lines()
        .nth(1)
        .unwrap()
        .split(',')
        .nth(3)
        .unwrap()
        .parse()
        .unwrap();
    let same = |run: &&Value| run["attacker"] == "omniscient" && run["sybils"] == 5;
    let medians = runs
        .iter()
        .filter(same)
        .map(|run| run["median"].as_f64().unwrap());
    let medians: Vec<f64> = medians.collect();
    assert!(
        (shown - medians.iter().sum::<f64>() / 3.0).abs() < 1e-12,
        "{shown} {medians:?}"
    );

    let (status, message) = refused(&format!("{command} --seed 1,2,1"));
    assert_eq!(status, 2);
    assert_eq!(
        message,
        "bigbird: --seed 1 is given twice; intervals need different seeds\n"
    );
}

#[test]
fn tune_tells_capacities_and_what_to_expect() {
    let tuned = parsed(&format!(
        "tune {SMALL} --percentile 50,90 --attacker random --json"
    ));
    let choices = tuned["choices"].as_array().unwrap();
    let told = |choice: &Value| {
        [
            "percentile",
            "conversionSites",
            "impressionSites",
            "fanOut",
            "globalBudget",
            "impressionSiteQuota",
        ]
        .map(|key| choice[key].to_string())
        .join(" ")
    };
    assert_eq!(
        choices.iter().map(told).collect::<Vec<_>>(),
        [
            "50.0 1 1 1 1.0 1.0",
            "null 1 1 1 2.0 1.0",
            "90.0 2 3 2 6.0 2.0",
            "null 2 3 2 6.0 1.0",
            "null 2 3 2 12.0 2.0",
            "null 2 3 2 12.0 1.0"
        ]
    );
    for choice in choices {
        let predicted = choice["predicted"].as_array().unwrap();
        assert_eq!(predicted.len(), 2);
        assert!(
            predicted
                .iter()
                .all(|it| it["median"].as_f64().unwrap() > 0.0)
        );
    }
    let (status, message) = refused(&format!("tune {SMALL} --percentile 101"));
    assert_eq!(
        (status, message.as_str()),
        (2, "bigbird: --percentile must be in [0, 100], got 101\n")
    );
    let (status, message) = refused(&format!("tune {SMALL} --attacker nobody"));
    assert_eq!(status, 2);
    assert!(
        message.starts_with(
            "bigbird: --attacker: unknown attacker `nobody`; use one of: none, random,"
        )
    );
}

#[test]
fn numbers_out_of_range_are_refused() {
    for arguments in [
        "simulate --sybils 0",
        "simulate --sybils 4294967295",
        "simulate --first-rank 0",
        "simulate --threads 0",
        "simulate --threads 100000",
        "simulate --batch-days 0",
    ] {
        let (status, message) = refused(arguments);
        assert_eq!(status, 2, "{arguments}");
        assert!(message.contains("is not in"), "{message}");
    }
    // A negative number is out of range, and not an unknown flag.
    for (arguments, expected) in [
        (
            "simulate --scale -1",
            "bigbird: --scale must be in (0, 10], got -1\n",
        ),
        (
            "tune --percentile -1",
            "bigbird: --percentile must be in [0, 100], got -1\n",
        ),
    ] {
        assert_eq!(refused(arguments), (2, expected.to_owned()));
    }
    for arguments in ["simulate --scale ten", "plan --conversions-per-day many"] {
        let (status, message) = refused(arguments);
        assert_eq!(status, 2, "{arguments}");
        assert!(message.contains("it is not a number"), "{message}");
    }
    let (status, message) = refused("simulate --scale 0.001 --lookback-epochs 5000");
    assert_eq!(
        (status, message.as_str()),
        (
            2,
            "bigbird: a conversion can look back at most 4095 epochs, got 5000\n"
        )
    );
    let (status, message) = refused("tune --scale 0.001 --querier-budget 0");
    assert_eq!(
        (status, message.as_str()),
        (
            2,
            "bigbird: --querier-budget must be a finite number above 0, got 0\n"
        )
    );
}

#[test]
fn plan_answers_both_ways() {
    let folder = folder();
    let figure = folder.file("plan.svg");
    let common = "plan --scale 0.005 --conversions-per-day 600";
    let wanted = parsed(&format!(
        "{common} --target 5 --figure {} --json",
        figure.display()
    ));
    assert!(figure.exists());
    let epsilon = wanted["answer"]["epsilon"].as_f64().unwrap();
    assert!(wanted["answer"]["error"].as_f64().unwrap() <= 0.05);
    let back = parsed(&format!("{common} --epsilon {epsilon} --json"));
    assert_eq!(back["answer"]["error"], wanted["answer"]["error"]);
    assert_eq!(
        parsed(&format!("{common} --target 5% --json"))["answer"],
        wanted["answer"]
    );
    // A target out of reach is a negative result. The answer says how large a batch would do.
    let output = bigbird(&format!("{common} --target 0.01 --json"));
    assert_eq!(output.status.code(), Some(1));
    let best: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(best["targetReached"], false);
    assert_eq!(best["batchTooSmall"], true);
    let enough = best["smallestBatch"]["batch"].as_f64().unwrap();
    let reached = parsed(&format!("{common} --target 0.01 --batch {enough} --json"));
    assert_eq!(reached["targetReached"], true);
    for (arguments, expected) in [
        (
            "--epsilon 0",
            "--epsilon must be a finite number above 0, got 0",
        ),
        (
            "--shares 0.5,0.2",
            "--shares must sum to 1, got a sum of 0.7",
        ),
        (
            "--others 9",
            "--others must be in [0, 2), below the global budget and the impression-site quota, \
             got 9",
        ),
    ] {
        let (status, message) = refused(&format!("{common} {arguments}"));
        assert_eq!((status, message), (2, format!("bigbird: {expected}\n")));
    }
}

/// An option that would have no effect is refused by every command.
#[test]
fn options_that_have_no_effect_are_refused() {
    let commands = [
        "simulate",
        "tune",
        "plan --conversions-per-day 600",
        "workload describe",
        "reproduce",
    ];
    for command in commands {
        let (status, message) = refused(&format!("{command} --time-unit seconds"));
        assert_eq!(status, 2);
        assert_eq!(
            message,
            "bigbird: --time-unit is for tables, but the workload is a synthetic population; \
             give the tables to read, such as logs.csv, or leave out --time-unit\n"
        );
    }
    for given in [
        "--columns device=user",
        "--time-unit minutes",
        "--time-origin 5",
        "--epoch-days 1",
        "--sorted",
        "--memory-rows 4000000",
    ] {
        let (status, message) = refused(&format!("workload describe --scale 0.001 {given}"));
        let option = given.split(' ').next().unwrap();
        let expected = format!("bigbird: {option} is for tables, but the workload is a synthetic");
        assert!(status == 2 && message.starts_with(&expected), "{message}");
    }
    for given in ["--days 11-30", "--no-resampling"] {
        let (status, message) = refused(&format!("workload describe --scale 0.001 {given}"));
        let option = given.split(' ').next().unwrap();
        assert_eq!(status, 2);
        assert_eq!(
            message,
            format!(
                "bigbird: {option} is for raw Criteo files, but the workload is a synthetic \
                 population; give --criteo-raw DIR, or leave out {option}\n"
            )
        );
    }

    let folder = folder();
    let prepared = folder.file("prepared").display().to_string();
    let written = bigbird(&format!("workload write --scale 0.001 --to {prepared}"));
    assert!(written.status.success());
    let (status, message) = refused(&format!("workload describe {prepared} --sorted"));
    let expected = format!(
        "bigbird: --sorted is for tables, but the workload is read from prepared Criteo files, \
         {prepared}; give the tables to read, such as logs.csv, or leave out --sorted\n"
    );
    assert_eq!((status, message), (2, expected));

    let table = folder.file("table.csv").display().to_string();
    let written = bigbird(&format!("workload write --scale 0.001 --to {table}"));
    assert!(written.status.success());
    let (status, message) = refused(&format!("workload describe {table} --days 1-2"));
    let expected = format!(
        "bigbird: --days is for raw Criteo files, but the workload is read from tables, {table}; \
         give --criteo-raw DIR, or leave out --days\n"
    );
    assert_eq!((status, message), (2, expected));
    let described = bigbird(&format!(
        "workload describe {table} --sorted --time-unit minutes --epoch-days 1 --memory-rows 10"
    ));
    assert!(described.status.success(), "{described:?}");
}
