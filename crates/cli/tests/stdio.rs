//! Standard streams that are non-blocking, full or closed.
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(unix)]

mod common;

use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, PipeReader, PipeWriter, Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use common::folder;
use rustix::io::ioctl_fionbio;
use serde_json::{Value, json};

fn bigbird(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bigbird"));
    command.args(arguments.split_whitespace());
    command
}

/// A pipe with two non-blocking ends. The mode also applies to a process that inherits an end.
fn non_blocking() -> (PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    ioctl_fionbio(&reader, true).unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    (reader, writer)
}

/// Fills a pipe, so that the next write would block. Returns the number of bytes in it.
fn fill(mut pipe: &PipeWriter) -> usize {
    let mut held = 0;
    loop {
        match pipe.write(&[b'.'; 4096]) {
            Ok(count) => held += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return held,
            Err(error) => panic!("{error}"),
        }
    }
}

/// An input that has no data yet has not ended.
#[test]
fn the_agent_waits_for_its_input() {
    let (theirs, mut ours) = non_blocking();
    let mut agent = bigbird("agent --in-memory --test-clock")
        .stdin(theirs)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = BufReader::new(agent.stdout.take().unwrap());
    for id in 0..100 {
        let request = json!({"event": "budgets", "id": id}).to_string() + "\n";
        // In two pieces, so that the agent also has to wait for the rest of a line.
        let (first, second) = request.as_bytes().split_at(10);
        ours.write_all(first).unwrap();
        thread::yield_now();
        ours.write_all(second).unwrap();
        let mut answer = String::new();
        answers.read_line(&mut answer).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&answer["ok"], &answer["id"]), (&json!(true), &json!(id)));
    }
    drop(ours);
    assert!(agent.wait().unwrap().success());
}

/// An output that is full loses no answer: all answers come, complete and in order.
#[test]
fn the_agent_waits_for_its_output() {
    const REQUESTS: usize = 20_000;
    let (mut ours, theirs) = non_blocking();
    let held = fill(&theirs);
    let mut agent = bigbird("agent --in-memory")
        .stdin(Stdio::piped())
        .stdout(theirs)
        .spawn()
        .unwrap();
    let mut input = agent.stdin.take().unwrap();
    let (sender, some_are_sent) = mpsc::channel();
    let sending = thread::spawn(move || {
        for id in 0..REQUESTS {
            writeln!(input, "{}", json!({"event": "enableAPI", "id": id})).unwrap();
            // This is more than a pipe holds. So the agent has read some requests, and it cannot
            // answer them.
            if id == 3500 {
                sender.send(()).unwrap();
            }
        }
    });
    some_are_sent.recv().unwrap();
    ioctl_fionbio(&ours, false).unwrap();
    ours.read_exact(&mut vec![0; held]).unwrap();
    let answers = BufReader::new(ours).lines().map(Result::unwrap);
    let mut count = 0;
    for (id, answer) in answers.enumerate() {
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((&answer["ok"], &answer["id"]), (&json!(true), &json!(id)));
        count += 1;
    }
    sending.join().unwrap();
    assert_eq!(count, REQUESTS);
    assert!(agent.wait().unwrap().success());
}

/// Other commands wait for their output too.
#[test]
fn long_results_wait_for_the_output() {
    let arguments = "simulate --scale 0.01 --min-conversions-per-day 20 --min-batch 50 \
                     --batch-days 1 --seed 1,2,3 --json";
    let expected = bigbird(arguments).output().unwrap();
    let (mut ours, theirs) = non_blocking();
    let held = fill(&theirs);
    assert!(expected.stdout.len() > 2 * held);
    let mut simulate = bigbird(arguments).stdout(theirs).spawn().unwrap();
    ioctl_fionbio(&ours, false).unwrap();
    ours.read_exact(&mut vec![0; held]).unwrap();
    let mut result = Vec::new();
    // In small pieces, so that the pipe is full most of the time.
    while (&mut ours).take(100).read_to_end(&mut result).unwrap() > 0 {}
    assert!(simulate.wait().unwrap().success());
    assert!(result == expected.stdout);
}

/// Commands that print a result, the help or the version.
const PRINT: [&str; 6] = [
    "example",
    "policy --json",
    "explain ../conformance/vectors/w3c-draft.jsonl",
    "workload describe --scale 0.001",
    "--help",
    "--version",
];

/// A result that cannot be written is an error in one line.
#[cfg(target_os = "linux")]
#[test]
fn a_full_output_is_an_error() {
    let full = || File::options().write(true).open("/dev/full").unwrap();
    for arguments in PRINT {
        let output = bigbird(arguments).stdout(full()).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments}: {told}");
        assert_eq!(
            told, "bigbird: cannot write the result: No space left on device (os error 28)\n",
            "{arguments}"
        );
    }
    // Even if the error cannot be printed, the exit status reports it.
    let mut nobody = bigbird("example");
    let status = nobody.stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));

    let mut agent = bigbird("agent --in-memory --test-clock")
        .stdin(Stdio::piped())
        .stdout(full())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = agent.stdin.take().unwrap();
    input.write_all(b"{\"event\": \"budgets\"}\n").unwrap();
    drop(input);
    let output = agent.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        "bigbird: cannot write answers: No space left on device (os error 28)\n"
    );
}

/// A result file that cannot be written is an error too, in every format.
#[cfg(target_os = "linux")]
#[test]
fn a_full_file_is_an_error() {
    let folder = folder();
    for (name, arguments, told_first) in [
        ("table.csv", "workload write --scale 0.001 --to", ""),
        ("table.parquet", "workload write --scale 0.001 --to", ""),
        (
            "runs.csv",
            "simulate --scale 0.01 --min-conversions-per-day 20 --csv",
            "cannot write ",
        ),
    ] {
        let path = folder.file(name);
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let output = bigbird(arguments).arg(&path).output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        let expected = format!(
            "bigbird: {told_first}{}: No space left on device (os error 28)\n",
            path.display()
        );
        assert_eq!(told, expected);
    }
    let output = bigbird("workload write --scale 0.001 --to /dev/full").output();
    let told = String::from_utf8(output.unwrap().stderr).unwrap();
    assert_eq!(
        told,
        "bigbird: /dev/full: cannot create a folder for prepared files (to write a table, use .csv, \
         .parquet or .pqt): File exists (os error 17)\n"
    );
}

/// A reader that closes the pipe early has what it wanted.
#[test]
fn a_closed_pipe_is_no_error() {
    for arguments in PRINT {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = bigbird(arguments).stdout(writer).output().unwrap();
        assert!(output.status.success(), "{arguments}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments}: {output:?}");
    }
}
