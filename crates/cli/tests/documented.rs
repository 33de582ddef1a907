//! Every command that the documentation and the help texts show, run in a scratch folder.
//!
//! [`RUN`] says how each of them is run: as it is shown, smaller, or not at all, with the reason. A
//! command that is shown and not listed there fails the test, and so does one that is listed and
//! not shown any more.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bigbird_testing::Folder;
use common::{bigbird, folder};

/// How a command that is shown is run here.
enum DocumentedRun {
    /// As it is shown.
    Shown,
    /// With these words at the end, which make it small.
    With(&'static str),
    /// In other words, which the test's scratch folder needs.
    As(&'static str),
    /// Not at all.
    Skip(&'static str),
}

use DocumentedRun::{As, Shown, Skip, With};

/// Makes a run of the laboratory small.
const SMALL: &str = "--scale 0.002 --min-conversions-per-day 10 --min-batch 200";

/// The same for logs, whose size is given.
const FEW: &str = "--min-conversions-per-day 10 --min-batch 200";

/// Every command that is shown, without `cargo run --release --`.
const RUN: &[(&str, DocumentedRun)] = &[
    // The README.
    ("bigbird reproduce", With(SMALL)),
    ("cargo test", Skip("this is one of its tests")),
    ("cargo bench", Skip("it takes many minutes")),
    (
        "cargo build --release -p bigbird-cli --no-default-features",
        Skip("`.ci/run` checks this build"),
    ),
    (
        "cargo build -p bigbird-cli --no-default-features",
        Skip("`.ci/run` checks this build"),
    ),
    (
        "cargo run -p bigbird-store --example browser",
        Skip("`cargo test` builds examples"),
    ),
    ("bigbird demo", With("--devices 200")),
    (
        "bigbird demo browser",
        Skip("`browser/test` runs it, in the browsers that it installs"),
    ),
    ("bigbird example", Shown),
    ("bigbird policy --profile w3c-draft", Shown),
    ("bigbird conformance crates/conformance/vectors", Shown),
    (
        "bigbird explain crates/conformance/vectors/w3c-draft.jsonl",
        Shown,
    ),
    (
        r#"echo '{"event": "budgets"}' | bigbird agent --store target/profile.store"#,
        Shown,
    ),
    ("bigbird store show target/profile.store", Shown),
    (
        "bigbird simulate --profile big-bird,global-only --attacker none,random",
        With(SMALL),
    ),
    (
        "bigbird headers 'Save-Impression: histogram-index=3, match-value=7'",
        Shown,
    ),
    ("bigbird workload describe", With("--scale 0.002")),
    ("bigbird tune", With(SMALL)),
    (
        "bigbird audit",
        With("--manager agent,winner-pays --scripts 100"),
    ),
    (
        "bigbird plan --conversions-per-day 600 --target 5",
        With("--scale 0.005"),
    ),
    // The manual of the laboratory.
    ("bigbird tune logs.parquet", With(FEW)),
    ("bigbird workload describe logs.parquet", Shown),
    (
        "bigbird simulate --lookback-epochs 0 --impression-site-quota 0.5 --site-charging \
         full,paper,uniform",
        With(SMALL),
    ),
    ("bigbird simulate logs.parquet --format csv", With(FEW)),
    (
        "bigbird simulate logs.parquet --seed 1,2,3 --batches batches.parquet",
        With(FEW),
    ),
    (
        "bigbird workload describe LOGS",
        As("bigbird workload describe logs.csv"),
    ),
    (
        "bigbird simulate LOGS --explain why.csv",
        As("bigbird simulate logs.csv --min-conversions-per-day 10 --explain why.csv"),
    ),
    (
        "bigbird tune LOGS",
        As("bigbird tune logs.csv --min-conversions-per-day 10 --min-batch 200 --format markdown"),
    ),
    (
        "bigbird workload write --to PATH",
        As("bigbird workload write --scale 0.001 --to written.parquet"),
    ),
    (
        "bigbird headers 'Save-Impression: histogram-index=1'",
        Shown,
    ),
    ("bigbird explain FILE", As("bigbird explain calls.jsonl")),
    (
        "bigbird explain --store FILE",
        As("bigbird explain --store target/profile.store"),
    ),
    (
        "bigbird simulate --scale 0.01 --min-conversions-per-day 20 --epsilon 0.5 --explain why.csv",
        Shown,
    ),
    (
        "bigbird simulate --scale 0.1 --attacker free-denial --site-charging full,paper,uniform",
        As(
            "bigbird simulate --attacker free-denial --site-charging full,paper,uniform \
             --scale 0.005 --min-conversions-per-day 10 --min-batch 200",
        ),
    ),
    (
        "bigbird workload describe data/",
        As("bigbird workload describe data/ --min-conversions-per-day 1"),
    ),
    // The manual of the command.
    ("bigbird --version", Shown),
    ("bigbird COMMAND --help", As("bigbird simulate --help")),
    ("bigbird COMMAND -h", As("bigbird simulate -h")),
    // Help texts.
    (
        "bigbird explain crates/conformance/vectors/big-bird.jsonl --list",
        Shown,
    ),
    (
        "bigbird headers 'Save-Impression: histogram-index=3, conversion-sites=(\"shop.example\")'",
        Shown,
    ),
    (
        "bigbird headers 'Measure-Conversion: histogram-size=5'",
        Shown,
    ),
    (
        "bigbird reproduce --seed 1,2,3",
        As("bigbird reproduce --seed 1,2 --suite fig6b --scale 0.002 \
             --min-conversions-per-day 10 --min-batch 200"),
    ),
    (
        "bigbird workload describe logs.csv --impression-kind view --conversion-kind \
         purchase,signup",
        As(
            "bigbird workload describe shop.csv --impression-kind view --conversion-kind \
             purchase,signup",
        ),
    ),
    (
        "bigbird workload describe logs.csv --bucket-column country --buckets 20 --value-unit 0.01",
        As(
            "bigbird workload describe shop.csv --bucket-column country --buckets 20 --value-unit \
             0.01 --impression-kind view",
        ),
    ),
    (
        "bigbird reproduce --scale 1",
        As(
            "bigbird reproduce --suite fig6b --scale 0.002 --min-conversions-per-day 10 --min-batch 200",
        ),
    ),
    (
        "bigbird reproduce --criteo-prepared DIR --min-conversions-per-day 50",
        As(
            "bigbird reproduce --suite fig6b --criteo-prepared prepared --min-conversions-per-day 10 --min-batch \
             200",
        ),
    ),
    (
        "bigbird policy --querier-budget 1 --conversion-sites 4 --impression-sites 2 --fan-out 4",
        Shown,
    ),
    // Its exit status is 1: the profile does not serve the workload.
    (
        "bigbird policy --profile big-bird --conversion-sites 9 --impression-sites 2 --fan-out 2",
        Shown,
    ),
    (
        "bigbird audit --seconds 600 --out audit",
        As("bigbird audit --manager agent --scripts 100 --out audit"),
    ),
    (
        "bigbird audit --manager agent --seconds 60",
        As("bigbird audit --manager agent --scripts 100"),
    ),
    ("bigbird audit --manager winner-pays", Shown),
    (
        "bigbird audit --manager agent --script FILE",
        As("bigbird audit --manager agent --script script.json"),
    ),
    (
        "bigbird simulate --scale 0.1 --profile big-bird,global-only --attacker none,random",
        As(
            "bigbird simulate --scale 0.005 --profile big-bird,global-only --attacker none,random \
             --min-conversions-per-day 10 --min-batch 200",
        ),
    ),
    (
        "bigbird simulate --criteo-prepared DIR --impression-site-quota 1,2,3 --json",
        As(
            "bigbird simulate --criteo-prepared prepared --impression-site-quota 1,2,3 --json \
             --min-conversions-per-day 10 --min-batch 200",
        ),
    ),
    (
        "bigbird simulate --seed 1,2,3 --batches batches.parquet",
        With(SMALL),
    ),
    (
        "bigbird tune logs.csv --columns device=user,time=ts --time-unit seconds --time-origin \
         1700000000",
        As(
            "bigbird tune renamed.csv --columns device=user,time=ts --time-unit seconds \
             --time-origin 1700000000 --min-conversions-per-day 10 --min-batch 200",
        ),
    ),
    ("bigbird tune logs.csv --percentile 50,85,99", With(FEW)),
    (
        "bigbird tune --exact --attacker random,omniscient",
        With(SMALL),
    ),
    (
        "bigbird plan --conversions-per-day 600 --epsilon 0.2 --shares 0.6,0.2,0.1,0.05,0.05",
        With("--scale 0.005"),
    ),
    (
        "bigbird plan --conversions-per-day 600 --target 5 --figure plan.svg",
        With("--scale 0.005"),
    ),
    (
        "bigbird workload write --scale 0.01 --to logs.csv",
        As("bigbird workload write --scale 0.001 --to written.csv"),
    ),
    (
        "bigbird workload write --scale 1 --to prepared",
        As("bigbird workload write --scale 0.001 --to written"),
    ),
    (
        "bigbird workload write --criteo-raw DIR --to logs.parquet",
        Skip("the data set is not ours to ship; `crates/lab/tests` has a sample in its form"),
    ),
    ("bigbird keys generate --out service", Shown),
    (
        "bigbird aggregate --service service --site shop.example --histogram-size 5 reports/",
        Skip("`tests/aggregate.rs` makes reports and sums them"),
    ),
    (
        "bigbird aggregate --service service --site shop.example --histogram-size 5 --batch monday \
         --batch-epsilon 1 --epsilon 0.5 reports/",
        Skip("`tests/aggregate.rs` makes reports and sums them"),
    ),
    (
        "bigbird completions bash > ~/.local/share/bash-completion/completions/bigbird",
        Shown,
    ),
    ("bigbird completions zsh > ~/.zfunc/_bigbird", Shown),
    (
        "bigbird completions fish > ~/.config/fish/completions/bigbird.fish",
        Shown,
    ),
    ("bigbird man | man -l -", As("bigbird man")),
    ("bigbird man --out ~/.local/share/man/man1", Shown),
];

/// The commands whose exit status is 1, because their answer is no.
const NEGATIVE: [&str; 3] = [
    "bigbird headers 'Measure-Conversion: histogram-size=5'",
    "bigbird policy --profile big-bird --conversion-sites 9 --impression-sites 2 --fan-out 2",
    // The paper's literal charging breaks the bound on payment, which this shows.
    "bigbird simulate --scale 0.1 --attacker free-denial --site-charging full,paper,uniform",
];

/// The documents whose commands are run.
const DOCUMENTS: [&str; 4] = [
    "README.md",
    "docs/lab.md",
    "docs/command.md",
    "crates/cli/README.md",
];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A command as it is listed: without comments, and without the words that build it first.
fn normal(line: &str) -> String {
    let line = line.trim();
    let end = line.find("  ").or_else(|| line.find(" #"));
    let line = &line[..end.unwrap_or(line.len())];
    let words: Vec<&str> = line.split_whitespace().collect();
    words
        .join(" ")
        .replace("cargo run --release -- ", "bigbird ")
}

/// A text in which lines that end in a backslash are joined with the next ones.
fn joined(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines() {
        match joined.ends_with("\\") {
            true => {
                joined.truncate(joined.trim_end_matches('\\').trim_end().len());
                joined += " ";
                joined += line.trim_start();
            }
            false => joined += line,
        }
        if !line.ends_with('\\') {
            joined += "\n";
        }
    }
    joined
}

/// The commands of a document: in code blocks for shells, and in the text.
fn of_document(text: &str) -> BTreeSet<String> {
    let mut commands = BTreeSet::new();
    let mut in_shell = false;
    let mut in_code = false;
    for line in joined(text).lines() {
        if line.starts_with("```") {
            in_shell = !in_code && line == "```sh";
            in_code = !in_code;
        } else if in_shell && !line.trim().is_empty() && !line.starts_with('#') {
            commands.insert(normal(line));
        } else if !in_code {
            let spans = line.split('`').skip(1).step_by(2);
            let spans = spans.filter(|it| it.starts_with("bigbird ") || it.starts_with("cargo "));
            commands.extend(spans.map(normal));
        }
    }
    commands
}

/// The examples of a help text, and of those of the commands below.
fn of_help(path: &str, commands: &mut BTreeSet<String>) {
    let output = bigbird(&format!("{path} --help"));
    assert!(output.status.success(), "{path}: {output:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    fits(&format!("{path} --help"), &help);
    let short = bigbird(&format!("{path} -h"));
    let short = String::from_utf8(short.stdout).unwrap();
    fits(&format!("{path} -h"), &short);
    assert!(
        short.len() <= help.len(),
        "{path}: -h is longer than --help"
    );
    let joined = joined(&help);
    commands.extend(
        joined
            .lines()
            .filter(|line| line.starts_with("  bigbird "))
            .map(normal),
    );
    let listed = help.split_once("\nCommands:\n").map_or("", |it| it.1);
    for line in listed.lines().take_while(|line| line.starts_with("  ")) {
        let name = line.split_whitespace().next().unwrap();
        if name != "help" && !line.starts_with("   ") {
            of_help(format!("{path} {name}").trim(), commands);
        }
    }
}

/// Lines have at most 100 columns.
fn fits(command: &str, text: &str) {
    assert_eq!(too_wide(text), None, "{command}");
}

/// The first line that has more than 100 columns.
fn too_wide(text: &str) -> Option<&str> {
    text.lines().find(|line| line.chars().count() > 100)
}

/// True if a command only names a command, or asks for its help.
fn is_name(command: &str) -> bool {
    let words: Vec<&str> = command.split_whitespace().collect();
    let path = words.strip_suffix(&["--help"]).unwrap_or(&words);
    let is_word = |word: &&str| word.chars().all(|it| it.is_ascii_lowercase() || it == '-');
    path.len() <= 3
        && path[0] == "bigbird"
        && path[1..].iter().all(is_word)
        && !path[1..].iter().any(|word| word.starts_with('-'))
}

/// A folder with the files that examples read.
fn scratch() -> Folder {
    let folder = folder();
    let make = |arguments: &str| {
        let output = bigbird(arguments);
        assert!(output.status.success(), "{output:?}");
    };
    for name in ["logs.csv", "logs.parquet", "prepared"] {
        let to = folder.file(name).display().to_string();
        make(&format!("workload write --scale 0.002 --to {to}"));
    }
    // Logs whose columns have other names, and whose times are in seconds since 1970.
    let logs = std::fs::read_to_string(folder.file("logs.csv")).unwrap();
    let mut lines = logs.lines();
    let header = lines.next().unwrap();
    let mut renamed = header.replace("device", "user").replace("time", "ts") + "\n";
    for line in lines {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        let minute: u64 = cells[1].parse().unwrap();
        cells[1] = (1_700_000_000 + 60 * minute).to_string();
        renamed += &(cells.join(",") + "\n");
    }
    std::fs::write(folder.file("renamed.csv"), renamed).unwrap();
    std::fs::write(
        folder.file("shop.csv"),
        "user_id,time,advertiser,publisher,event,country,revenue\n\
         u1,2026-01-03T10:00:00Z,shop.example,news.example,view,DE,\n\
         u1,2026-01-03T11:00:00Z,shop.example,,purchase,,12.34\n\
         u2,2026-01-04 09:30,shop.example,blog.example,view,FR,\n\
         u2,2026-01-04 10:30,shop.example,,signup,,1.00\n",
    )
    .unwrap();
    std::fs::write(
        folder.file("calls.jsonl"),
        "{\"event\": \"saveImpression\", \"seconds\": 0, \"site\": \"news.example\"}\n\
         {\"event\": \"measureConversion\", \"seconds\": 60, \"site\": \"shop.example\"}\n",
    )
    .unwrap();
    let data = folder.file("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(
        data.join("sources.json"),
        r#"{"user_id": "u1", "publisher": "https://news.example", "web_destination":
         "https://shop.example", "timestamp": "1767434400000", "event_id": 1}"#,
    )
    .unwrap();
    std::fs::write(
        data.join("triggers.json"),
        r#"{"user_id": "u1", "attribution_destination": "https://shop.example", "timestamp":
         "1767438000000", "trigger_data": 1}"#,
    )
    .unwrap();
    // A script that the auditor found.
    let found = workspace().join("crates/audit/tests/found/upkeep-by-names.json");
    std::fs::copy(found, folder.file("script.json")).unwrap();
    for name in [
        "target",
        "bin",
        ".zfunc",
        ".local/share/bash-completion/completions",
        ".config/fish/completions",
    ] {
        std::fs::create_dir_all(folder.file(name)).unwrap();
    }
    let link = |from: &Path, name: &str| {
        std::os::unix::fs::symlink(from, folder.file(name)).unwrap();
    };
    link(
        &workspace().join("crates").canonicalize().unwrap(),
        "crates",
    );
    link(Path::new(env!("CARGO_BIN_EXE_bigbird")), "bin/bigbird");
    folder
}

/// Runs a command line in the folder, which is also the home of its user.
fn shell(folder: &Path, command: &str) -> Output {
    let path = std::env::var("PATH").unwrap();
    Command::new("sh")
        .args(["-c", command])
        .current_dir(folder)
        .env("HOME", folder)
        .env("PATH", format!("{}:{path}", folder.join("bin").display()))
        .output()
        .unwrap()
}

#[test]
fn every_command_that_is_shown_works() {
    let mut shown = BTreeSet::new();
    for name in DOCUMENTS {
        let text = std::fs::read_to_string(workspace().join(name)).unwrap();
        shown.extend(of_document(&text));
    }
    of_help("", &mut shown);
    assert!(shown.len() > 30, "{shown:?}");
    for (listed, _) in RUN {
        assert!(
            shown.contains(*listed) || listed.starts_with("cargo build"),
            "`{listed}` is not shown any more"
        );
    }
    let folder = scratch();
    let mut later = Vec::new();
    let mut unknown = Vec::new();
    let mut wrong = Vec::new();
    for command in &shown {
        if is_name(command) && RUN.iter().all(|(listed, _)| listed != command) {
            let path = command
                .trim_start_matches("bigbird")
                .trim_end_matches("--help");
            let output = bigbird(&format!("{path} --help"));
            assert!(output.status.success(), "`{command}`: {output:?}");
            continue;
        }
        if RUN.iter().all(|(listed, _)| listed != command) {
            unknown.push(command);
        }
    }
    assert!(
        unknown.is_empty(),
        "shown, but tests/documented.rs does not say how to run them: {unknown:#?}"
    );
    // In the order of the list: some read what others write.
    for (command, run) in RUN {
        let line = match run {
            Shown => (*command).to_owned(),
            With(more) => format!("{command} {more}"),
            As(other) => (*other).to_owned(),
            Skip(reason) => {
                assert!(!reason.is_empty());
                continue;
            }
        };
        let begin = std::time::Instant::now();
        let output = shell(folder.path(), &line);
        println!("{:5.1} s  {line}", begin.elapsed().as_secs_f64());
        let (printed, told) = (
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        );
        let expected = i32::from(NEGATIVE.contains(command));
        if output.status.code() != Some(expected) || told.contains("panicked") {
            wrong.push(format!("`{line}`: {}\n{printed}{told}", output.status));
        }
        if printed.trim().is_empty() && !line.contains(" > ") {
            wrong.push(format!("`{line}` printed nothing"));
        }
        // What is for programs, and what other programs fill.
        let not_for_people = [
            "--json",
            "--format csv",
            "markdown",
            "bigbird man",
            "agent --store",
        ];
        if let Some(wide) = too_wide(&printed)
            && !not_for_people.iter().any(|it| line.contains(it))
        {
            wrong.push(format!("`{line}` printed a line that is too wide: {wide}"));
        }
        later.push((line, printed));
    }
    // For people who want to look at all of it.
    if let Some(path) = std::env::var_os("BIGBIRD_SHOW_COMMANDS") {
        let text: String = later
            .iter()
            .map(|(line, printed)| format!("$ {line}\n{printed}\n"))
            .collect();
        std::fs::write(path, text).unwrap();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn completions_and_pages_are_what_shells_and_man_read() {
    let folder = folder();
    let script = bigbird("completions bash").stdout;
    std::fs::write(folder.file("bigbird.bash"), &script).unwrap();
    let output = shell(
        folder.path(),
        "bash -n bigbird.bash && bash -c '. ./bigbird.bash && complete -p bigbird'",
    );
    assert!(output.status.success(), "{output:?}");
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let script = String::from_utf8(bigbird(&format!("completions {shell}")).stdout).unwrap();
        assert!(script.contains("simulate") && script.contains("impression-site-quota"));
    }

    let pages = folder.file("man");
    let output = bigbird(&format!("man --out {}", pages.display()));
    assert!(output.status.success(), "{output:?}");
    for name in ["bigbird.1", "bigbird-simulate.1", "bigbird-store-show.1"] {
        let page = std::fs::read_to_string(pages.join(name)).unwrap();
        assert!(page.contains(".TH ") && page.contains(".SH NAME"), "{name}");
    }
    let simulate = std::fs::read_to_string(pages.join("bigbird-simulate.1")).unwrap();
    assert!(simulate.contains("impression\\-site\\-quota"));
    assert_eq!(
        bigbird("man").stdout,
        std::fs::read(pages.join("bigbird.1")).unwrap()
    );
}
