//! Signals that end a command must leave no files behind, and `SIGXFSZ` is only an error.
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(unix)]

mod common;

use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{AgentProcess, arguments, convert, folder, save};
use serde_json::{Value, json};

/// The signals that end a command: from a terminal (Ctrl-C), from a service manager, from a
/// terminal that is closed, and the one that no handler can catch.
const SIGNALS: [(&str, i32); 4] = [("INT", 2), ("TERM", 15), ("HUP", 1), ("KILL", 9)];

/// A command that is ended while it reads logs leaves no files behind. It is ended while it waits
/// for the rest of the second table, which comes through a pipe and is copied to a temporary file.
#[test]
fn signals_while_tables_are_read_leave_nothing() {
    for (name, signal) in SIGNALS {
        let folder = folder();
        let temporary = folder.file("temporary");
        std::fs::create_dir(&temporary).unwrap();
        write_table(&folder.file("first.csv"));
        fifo(&folder.file("second.csv"));
        let mut command = bigbird(&temporary)
            .args(["workload", "describe", "--memory-rows", "100"])
            .args([folder.file("first.csv"), folder.file("second.csv")])
            .spawn()
            .unwrap();
        let second = File::options().write(true).open(folder.file("second.csv"));
        let mut second = second.unwrap();
        // This is far more than a pipe holds, so it returns when the command copies it.
        second.write_all(&[b'x'; 1 << 20]).unwrap();
        is_ended(&mut command, name, signal, &temporary);
        drop(second);
    }
}

/// A command that is ended while it replays such logs leaves no files behind either. It is ended
/// while it waits for a reader of its output.
#[test]
fn signals_while_tables_are_written_leave_nothing() {
    for (name, signal) in SIGNALS {
        let folder = folder();
        let temporary = folder.file("temporary");
        std::fs::create_dir(&temporary).unwrap();
        write_table(&folder.file("first.csv"));
        fifo(&folder.file("written.csv"));
        let mut command = bigbird(&temporary)
            .args(["workload", "write", "--memory-rows", "100"])
            .arg(folder.file("first.csv"))
            .arg("--to")
            .arg(folder.file("written.csv"))
            .spawn()
            .unwrap();
        let mut written = File::open(folder.file("written.csv")).unwrap();
        written.read_exact(&mut [0]).unwrap();
        is_ended(&mut command, name, signal, &temporary);
    }
}

/// When the files of a store reach the file size limit, the agent reports an error and continues.
/// What it answered before is durable.
#[test]
fn a_file_size_limit_is_an_answer() {
    let folder = folder();
    let store = folder.file("store");
    assert!(AgentProcess::start(&arguments(&store)).end());
    let mut process = limited(1000)
        .arg("agent")
        .args(arguments(&store))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut agent = AgentProcess {
        input: process.stdin.take(),
        output: BufReader::new(process.stdout.take().unwrap()),
        process,
    };
    // Each conversion has its own site, so that the files grow fast. Far fewer are enough.
    let mut conversions = (1..1000).map(|number| {
        let site = format!("shop-{number}.example");
        agent.ask(&save(0, number, "news.example", number));
        // The page does not learn of the failure. The user does, from the status.
        let answer = agent.ask(&convert(0, 1000 + number, &site, 0.000_1));
        assert_eq!(answer["ok"], true, "{answer}");
        agent.ask(&json!({"event": "status"}))
    });
    let failing = |status: &Value| status["storeErrors"] != 0;
    let status = conversions.find(failing).unwrap();
    assert!(status["lastStoreError"].is_string(), "{status}");
    let before = agent.ask(&json!({"event": "budgets"}));
    assert_eq!(before["ok"], true, "{before}");
    assert!(agent.end());

    let checked = common::bigbird(&format!("store check {}", store.display()));
    assert!(checked.status.success(), "{checked:?}");
    let mut agent = AgentProcess::start(&arguments(&store));
    assert_eq!(agent.ask(&json!({"event": "budgets"})), before);
    assert!(agent.end());
    assert!(spent(&before) > 0);
}

/// A result that exceeds the limit is an error in one line.
#[test]
fn a_file_size_limit_is_an_error_of_other_commands() {
    let folder = folder();
    let table = folder.file("table.csv");
    let arguments = ["workload", "write", "--scale", "0.001", "--to"];
    let output = limited(1).args(arguments).arg(&table).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    let expected = format!("bigbird: {}: File too large", table.display());
    assert!(told.starts_with(&expected) && told.lines().count() == 1);

    write_table(&folder.file("large.csv"));
    let output = limited(16)
        .args(["workload", "describe", "--memory-rows", "100"])
        .arg(folder.file("large.csv"))
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    let expected = format!(
        "bigbird: {}: cannot write a temporary file in this folder: File too large",
        folder.path().display()
    );
    assert!(told.starts_with(&expected), "{told}");
    assert_eq!(told.lines().count(), 1);

    let printed = File::create(folder.file("printed")).unwrap();
    let output = limited(1).arg("example").stdout(printed).output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.starts_with("bigbird: cannot write the result: File too large"));
    assert_eq!(told.lines().count(), 1);
}

/// The command with a file size limit, in blocks of 512 or 1024 bytes.
fn limited(blocks: u32) -> Command {
    let mut command = Command::new("sh");
    let script = format!(r#"ulimit -f {blocks} && exec "$0" "$@""#);
    command.args(["-c", &script, env!("CARGO_BIN_EXE_bigbird")]);
    command
}

/// The sum of what all budgets and quotas have paid.
fn spent(budgets: &Value) -> u64 {
    let budgets = budgets["budgets"].as_array().unwrap();
    let consumed = budgets.iter().map(|it| it["consumed"].as_u64().unwrap());
    consumed.sum()
}

/// The command with a folder for its temporary files.
fn bigbird(temporary: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bigbird"));
    command.env("TMPDIR", temporary);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Writes a table that has far more rows than fit into a pipe.
fn write_table(path: &Path) {
    let mut table = String::from("device,time,conversion_site,impression_site,bucket,kind,value\n");
    for row in 0..20_000 {
        table += &format!("device-{},{row},shop.example,,,conversion,1\n", row % 7000);
    }
    std::fs::write(path, table).unwrap();
}

/// Creates a named pipe.
fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Sends a signal to a command that has temporary files, and checks that no file is left.
fn is_ended(command: &mut Child, name: &str, signal: i32, temporary: &Path) {
    let modes = modes_of_files(command.id(), temporary);
    let ignored = is_ignored(signal);
    // The process that runs the tests may ignore the signal, as `nohup` does. The command inherits
    // that.
    let name = if ignored { "KILL" } else { name };
    let pid = command.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(sent.unwrap().success());
    let ended = command.wait().unwrap().signal();
    assert_eq!(ended, Some(if ignored { 9 } else { signal }));
    let left: Vec<_> = std::fs::read_dir(temporary).unwrap().collect();
    assert!(left.is_empty(), "{name} leaves {left:?}");
    assert!(modes.iter().all(|mode| *mode == 0o600), "{modes:?}");
    // Only Linux shows open files that have no name.
    assert!(!modes.is_empty() || !cfg!(target_os = "linux"));
}

/// The modes of the files that a process has open in a folder, on systems that show them.
fn modes_of_files(process: u32, folder: &Path) -> Vec<u32> {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else {
        return Vec::new();
    };
    let folder = folder.canonicalize().unwrap();
    let open = open.map(|entry| entry.unwrap().path());
    open.filter(|open| std::fs::read_link(open).is_ok_and(|file| file.starts_with(&folder)))
        .map(|open| std::fs::metadata(&open).unwrap().mode() & 0o7777)
        .collect()
}

/// True if this process ignores a signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 == 1
}
