//! A user agent in a process of its own, for benchmarks. The process is the benchmark's own
//! program, started again.
//!
//! The child reads requests from its standard input and uses the wall clock, as the user agent of a
//! browser does. The parent sends the requests, and records the time and the place of each answer.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "each benchmark uses a part of this module"
)]

pub mod agent;
pub mod numbers;

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use agent::Setup;

/// Answers to requests with this id are counted, but not kept.
pub const UNNOTED: u64 = 0;

/// An answer of the child.
#[derive(Debug, Clone)]
pub struct Noted {
    pub at: Instant,
    /// The number of answers that came before it.
    pub place: u64,
    pub line: String,
}

impl Noted {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.line).unwrap()
    }

    /// The sum of its histogram.
    pub fn total(&self) -> u64 {
        let json = self.json();
        let buckets = json["histogram"].as_array().into_iter().flatten();
        buckets.filter_map(Value::as_u64).sum()
    }
}

/// The child process. It is killed when this is dropped.
pub struct Process {
    child: Child,
    input: ChildStdin,
    noted: Arc<Mutex<HashMap<u64, Noted>>>,
    unnoted: Arc<AtomicU64>,
}

impl Process {
    /// Starts the child, and waits until it answers.
    pub fn start(setup: &Setup) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(std::env::args().skip(1).filter(|it| it != "--bench"))
            .args(["--agent", &setup.argument()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::with_capacity(1 << 20, child.stdout.take().unwrap());
        let mut process = Self {
            child,
            input,
            noted: Arc::default(),
            unnoted: Arc::default(),
        };
        let (noted, unnoted) = (Arc::clone(&process.noted), Arc::clone(&process.unnoted));
        thread::spawn(move || {
            let mut line = String::new();
            let mut place = 0;
            while output.read_line(&mut line).is_ok_and(|length| length > 0) {
                let at = Instant::now();
                match id(&line) {
                    UNNOTED => {
                        unnoted.fetch_add(1, Ordering::Relaxed);
                    }
                    id => {
                        let line = line.clone();
                        let answer = Noted { at, place, line };
                        noted.lock().unwrap().insert(id, answer);
                    }
                }
                place += 1;
                line.clear();
            }
        });
        let ready = process.ask(u64::MAX, "status", Duration::from_secs(300));
        assert!(ready.is_some(), "the agent did not start within 300 s");
        process
    }

    /// Sends lines, and waits while the pipe is full.
    pub fn send(&mut self, lines: &str) {
        self.input.write_all(lines.as_bytes()).unwrap();
    }

    /// Sends a request of the user, and waits for the answer, at most for `wait`.
    pub fn ask(&mut self, id: u64, event: &str, wait: Duration) -> Option<Noted> {
        self.send(&own(id, event));
        self.wait_for(id, wait)
    }

    pub fn wait_for(&self, id: u64, wait: Duration) -> Option<Noted> {
        let begin = Instant::now();
        loop {
            match self.answer(id) {
                None if begin.elapsed() < wait => thread::sleep(Duration::from_millis(1)),
                answer => return answer,
            }
        }
    }

    pub fn answer(&self, id: u64) -> Option<Noted> {
        self.noted.lock().unwrap().get(&id).cloned()
    }

    /// The number of answers that were counted but not kept.
    pub fn unnoted(&self) -> u64 {
        self.unnoted.load(Ordering::Relaxed)
    }

    /// The peak memory of the child in MB, if the system reports it.
    pub fn peak_memory(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        let kilobytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kilobytes / 1024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The child may still have a lot of work that nobody waits for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn id(line: &str) -> u64 {
    let digits = line.rsplit("\"id\":").next().unwrap_or_default();
    let end = digits.find(|it: char| !it.is_ascii_digit());
    digits[..end.unwrap_or(0)].parse().unwrap_or(UNNOTED)
}

/// A request of the user, as a line.
pub fn own(id: u64, event: &str) -> String {
    json!({"event": event, "id": id}).to_string() + "\n"
}

/// A request of a page, as a line.
pub fn page(id: u64, event: &str, site: &str, options: &Value) -> String {
    json!({"event": event, "id": id, "site": site, "options": options}).to_string() + "\n"
}

/// The number that follows the flag `name` on the command line.
pub fn argument(name: &str, default: u64) -> u64 {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    match (arguments.next(), arguments.next()) {
        (None, _) => default,
        (Some(_), number) => number
            .as_deref()
            .and_then(|number| number.parse().ok())
            .unwrap_or_else(|| {
                let got = number.unwrap_or_default();
                eprintln!("{name} must be followed by a whole number, got `{got}`");
                std::process::exit(2)
            }),
    }
}
