//! Helpers that the tests of the command share.
#![allow(dead_code, reason = "not every test uses every helper")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use bigbird_testing::Folder;
use serde_json::{Value, json};

pub(crate) const SERVICE: &str = "https://agg.example";

/// A folder that is removed when the test ends.
pub(crate) fn folder() -> Folder {
    Folder::below(env!("CARGO_TARGET_TMPDIR"))
}

/// Runs the command. Its arguments contain no spaces.
pub(crate) fn bigbird(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args(arguments.split_whitespace())
        .output()
        .unwrap()
}

/// Runs a command of `bigbird` with this standard input.
pub(crate) fn with_input(command: &str, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .arg(command)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut standard_input = child.stdin.take().unwrap();
    standard_input.write_all(input.as_bytes()).unwrap();
    drop(standard_input);
    child.wait_with_output().unwrap()
}

/// The JSON that the command prints.
pub(crate) fn parsed(arguments: &str) -> Value {
    let output = bigbird(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The exit status and the standard error of a command that fails.
pub(crate) fn refused(arguments: &str) -> (i32, String) {
    let output = bigbird(arguments);
    assert!(output.stdout.is_empty(), "{output:?}");
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// A running `bigbird agent`.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) process: Child,
    pub(crate) input: Option<ChildStdin>,
    pub(crate) output: BufReader<ChildStdout>,
}

/// The arguments of an agent with a store and a test clock that shows histograms.
pub(crate) fn arguments(store: &Path) -> Vec<String> {
    let store = store.display().to_string();
    let fixed = [
        "--test-clock",
        "--unencrypted-for-testing",
        "--aggregation-service",
        SERVICE,
    ];
    let mut arguments = vec!["--store".to_owned(), store];
    arguments.extend(fixed.map(str::to_owned));
    arguments
}

impl AgentProcess {
    pub(crate) fn start(arguments: &[String]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_bigbird"))
            .arg("agent")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take(),
            output: BufReader::new(process.stdout.take().unwrap()),
            process,
        }
    }

    /// Sends a line.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Reads an answer.
    pub(crate) fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// Sends a request and reads the answer.
    pub(crate) fn ask(&mut self, request: &Value) -> Value {
        self.send(&request.to_string());
        self.receive()
    }

    /// Ends the input of the agent. True if the agent then succeeds.
    pub(crate) fn end(mut self) -> bool {
        drop(self.input.take());
        self.process.wait().unwrap().success()
    }
}

/// The answer to a conversion without its encrypted report, which must be there.
pub(crate) fn without_report(mut answer: Value) -> Value {
    let report = answer.as_object_mut().unwrap().remove("report");
    let report = report.and_then(|report| Some(report.as_str()?.len()));
    assert!(report.is_some_and(|length| length > 500), "{answer}");
    answer
}

pub(crate) fn save(seconds: i64, action: u64, site: &str, match_value: u64) -> Value {
    json!({
        "event": "saveImpression",
        "seconds": seconds,
        "userAction": action,
        "site": site,
        "options": {"histogramIndex": match_value % 5, "matchValue": match_value},
    })
}

pub(crate) fn convert(seconds: i64, action: u64, site: &str, epsilon: f64) -> Value {
    json!({
        "event": "measureConversion",
        "seconds": seconds,
        "userAction": action,
        "site": site,
        "options": {"aggregationService": SERVICE, "histogramSize": 5, "epsilon": epsilon},
    })
}
