//! The native-messaging host as a process, driven as a browser drives it.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use bigbird_store::{SqliteStore, StoreOptions};
use bigbird_user_agent::Storage as _;
use common::{SERVICE, bigbird, folder};
use serde_json::{Value, json};

/// A running `bigbird native-host`.
struct HostProcess {
    process: Child,
    input: Option<ChildStdin>,
    output: ChildStdout,
}

impl HostProcess {
    fn start(options: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_bigbird"))
            .arg("native-host")
            .args(["--aggregation-service", SERVICE, "--release-after", "300"])
            .arg("--unencrypted-for-testing")
            .args(options)
            // As Chromium appends it.
            .arg("chrome-extension://abcdefghijklmnopabcdefghijklmnop/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            input: process.stdin.take(),
            output: process.stdout.take().unwrap(),
            process,
        }
    }

    /// A host on a store that has connected, and its answer.
    fn connected(store: &Path) -> (Self, Value) {
        let mut host = Self::start(&["--store", store.to_str().unwrap()]);
        let answer = host.ask(&json!({"event": "connect", "id": "c", "profile": "p1"}));
        assert_eq!(answer["ok"], true, "{answer}");
        (host, answer)
    }

    fn send_bytes(&mut self, content: &[u8]) {
        let length = u32::try_from(content.len()).unwrap().to_ne_bytes();
        let input = self.input.as_mut().unwrap();
        input.write_all(&length).unwrap();
        input.write_all(content).unwrap();
    }

    fn send(&mut self, request: &Value) {
        self.send_bytes(request.to_string().as_bytes());
    }

    fn receive(&mut self) -> Value {
        let mut length = [0; 4];
        self.output.read_exact(&mut length).unwrap();
        let mut content = vec![0; u32::from_ne_bytes(length) as usize];
        self.output.read_exact(&mut content).unwrap();
        serde_json::from_slice(&content).unwrap()
    }

    fn ask(&mut self, request: &Value) -> Value {
        self.send(request);
        self.receive()
    }

    /// Ends the input. True if the host then succeeds.
    fn end(mut self) -> bool {
        drop(self.input.take());
        let mut rest = Vec::new();
        self.output.read_to_end(&mut rest).unwrap();
        self.process.wait().unwrap().success()
    }

    /// Asks for the status until it is as expected.
    fn wait_until(&mut self, expected: impl Fn(&Value) -> bool) -> Value {
        loop {
            let status = self.ask(&json!({"event": "status"}));
            if expected(&status) {
                return status;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn save(&mut self, action: u64) {
        let answer = self.ask(&json!({
            "event": "saveImpression", "site": "news.example", "userAction": action,
            "options": {"histogramIndex": 3},
        }));
        assert_eq!(answer, json!({"ok": true}));
    }

    /// The histogram of a conversion, and the length of its report.
    fn convert(&mut self, action: u64) -> (Value, usize) {
        let answer = self.ask(&conversion(action));
        assert_eq!(answer["ok"], true, "{answer}");
        let length = answer["report"].as_str().unwrap().len();
        (answer["histogram"].clone(), length)
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn conversion(action: u64) -> Value {
    json!({
        "event": "measureConversion", "site": "shop.example", "userAction": action,
        "options": {"aggregationService": SERVICE, "histogramSize": 5, "epsilon": 0.5},
    })
}

/// A status of a store that works.
fn works(status: &Value) -> bool {
    status["enabled"].is_boolean()
}

/// The sum of what all filters have consumed, in µε.
fn consumed(store: &Path) -> u64 {
    let shown = common::parsed(&format!("store show --json {}", store.display()));
    let epochs = shown["epochs"].as_array().unwrap();
    let budgets = epochs
        .iter()
        .flat_map(|it| it["budgets"].as_array().unwrap());
    budgets.map(|it| it["consumed"].as_u64().unwrap()).sum()
}

const NULL: [u32; 5] = [0; 5];
const CREDIT: [u32; 5] = [0, 0, 0, 1, 0];

#[test]
fn a_browser_connects_saves_and_measures() {
    let folder = folder();
    let stores = folder.file("new/stores");
    let mut host = HostProcess::start(&["--folder", stores.to_str().unwrap()]);
    let answer = host.ask(&json!({"event": "connect", "id": 1, "profile": "p1"}));
    assert_eq!(
        answer,
        json!({
            "ok": true,
            "id": 1,
            "version": env!("CARGO_PKG_VERSION"),
            "rules": "big-bird",
            "releaseAfter": 300,
            "store": stores.join("p1.store"),
            "services": [SERVICE],
        })
    );
    host.save(1);
    let (histogram, _) = host.convert(2);
    assert_eq!(histogram, json!(CREDIT));
    assert!(host.end());
    assert!(consumed(&stores.join("p1.store")) > 0);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(&stores).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[test]
fn frames_that_are_not_requests_are_answered_and_change_nothing() {
    let folder = folder();
    let store = folder.file("store");
    let mut host = HostProcess::start(&["--store", store.to_str().unwrap()]);
    let malformed = |host: &mut HostProcess, content: &[u8]| {
        host.send_bytes(content);
        let answer = host.receive();
        assert_eq!(answer["error"], "MalformedRequest", "{answer}");
        answer["message"].as_str().unwrap().to_owned()
    };
    // Before the browser connects, nothing but `connect` is taken.
    for wrong in [
        json!({"event": "status"}),
        json!({"event": "connect"}),
        json!({"event": "connect", "profile": ""}),
        json!({"event": "connect", "profile": "../../etc/passwd"}),
        json!({"event": "connect", "profile": "P1"}),
        json!({"event": "connect", "profile": "p".repeat(65)}),
        json!({"event": "connect", "profile": 1}),
        json!([]),
    ] {
        malformed(&mut host, wrong.to_string().as_bytes());
    }
    let answer = host.ask(&json!({"event": "connect", "profile": "p".repeat(64)}));
    assert_eq!(answer["store"], json!(store));

    let too_long = malformed(&mut host, &vec![b' '; 2 << 20]);
    assert!(too_long.contains("got 2097152"), "{too_long}");
    malformed(&mut host, b"");
    malformed(&mut host, b"\n\n");
    malformed(&mut host, b"\xff");
    malformed(&mut host, b"{");
    malformed(&mut host, b"{}{}");
    malformed(&mut host, "[".repeat(10_000).as_bytes());
    malformed(&mut host, &b"{\"event\":".repeat(10_000));
    // Two requests in one frame are not two requests.
    malformed(
        &mut host,
        b"{\"event\":\"status\"}\n{\"event\":\"disableAPI\"}",
    );
    // A browser connects once.
    malformed(&mut host, br#"{"event": "connect", "profile": "p1"}"#);
    // Line breaks between the words of a request are fine.
    host.send_bytes(b"{\n\t\"event\":\r\n\"status\"\n}");
    let status = host.receive();
    assert_eq!(status["enabled"], true, "{status}");
    assert!(host.end());
}

#[test]
fn the_largest_report_fits_into_an_answer() {
    let folder = folder();
    let (mut host, _) = HostProcess::connected(&folder.file("store"));
    let mut request = conversion(1);
    request["id"] = json!("x".repeat(254));
    request["options"]["histogramSize"] = json!(1024);
    request["options"]["value"] = json!(u32::MAX);
    request["options"]["maxValue"] = json!(u32::MAX);
    let answer = host.ask(&request);
    let report = answer["report"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"));
    assert!(
        (600_000..1 << 20).contains(&report.len()),
        "{}",
        report.len()
    );
}

#[test]
fn a_killed_host_gives_nothing_back() {
    let folder = folder();
    let store = folder.file("store");
    let (mut host, _) = HostProcess::connected(&store);
    host.save(1);
    let (histogram, _) = host.convert(2);
    assert_eq!(histogram, json!(CREDIT));
    // This one is killed before its answer is due.
    host.send(&conversion(3));
    host.process.kill().unwrap();
    host.process.wait().unwrap();

    let (mut host, answer) = HostProcess::connected(&store);
    assert!(answer.get("storeError").is_none(), "{answer}");
    assert!(consumed(&store) > 0);
    // The querier budget is 1, and 0.5 was spent before. One of these two is null at the least.
    let sum: u64 = [4, 5]
        .map(|action| host.convert(action).0[3].as_u64().unwrap())
        .iter()
        .sum();
    assert!(sum <= 1, "{sum}");
    assert!(host.end());
}

#[test]
fn two_hosts_share_a_store() {
    let folder = folder();
    let store = folder.file("store");
    let (mut first, _) = HostProcess::connected(&store);
    let (mut second, _) = HostProcess::connected(&store);
    first.save(1);
    first.wait_until(works);
    assert_eq!(second.convert(2).0, json!(CREDIT));
    assert_eq!(first.convert(3).0, json!(CREDIT));
    // Together they have spent the querier budget.
    assert_eq!(second.convert(4).0, json!(NULL));
    assert!(first.end() && second.end());
}

/// The host starts on a store that `breaking` made unusable, and recovers when `repair` repaired
/// it.
fn recovers(breaking: impl Fn(&Path), reasons: &[&str], repair: impl Fn(&Path)) {
    let folder = folder();
    let store = folder.file("store");
    let (mut host, _) = HostProcess::connected(&store);
    host.save(1);
    let (good, length) = host.convert(2);
    assert_eq!(good, json!(CREDIT));
    assert!(host.end());

    breaking(&store);
    let (mut host, answer) = HostProcess::connected(&store);
    let error = &answer["storeError"];
    let reason = error["reason"].as_str().unwrap();
    assert!(reasons.contains(&reason), "{answer}");
    assert!(error["advice"].is_string(), "{answer}");
    // A page sees nothing of it.
    assert_eq!(host.convert(3), (json!(NULL), length));
    host.save(4);
    // The user sees what is wrong.
    let budgets = host.ask(&json!({"event": "budgets"}));
    assert_eq!(budgets["error"], "StoreError", "{budgets}");
    assert_eq!(budgets["reason"], reason);
    assert_eq!(budgets["advice"], error["advice"]);
    let status = host.ask(&json!({"event": "status"}));
    assert_eq!(status["enabled"], Value::Null);
    assert_eq!(status["lastStoreError"], budgets["message"]);
    assert_eq!(status["advice"], error["advice"]);

    repair(&store);
    host.wait_until(works);
    let (_, after) = host.convert(5);
    assert_eq!(after, length);
    assert!(host.end());
    assert!(
        bigbird(&format!("store check {}", store.display()))
            .status
            .success()
    );
}

/// The path of a copy beside a store.
fn copy_of(store: &Path) -> PathBuf {
    store.with_extension("copy")
}

#[test]
fn a_store_that_became_garbage_is_reset_without_a_restart() {
    recovers(
        |store| fs::write(store, vec![0x5a; 20_000]).unwrap(),
        &["notAStore", "damaged"],
        |store| {
            let reset = format!("store reset {} --reason test", store.display());
            assert!(bigbird(&reset).status.success());
        },
    );
}

#[test]
fn a_damaged_store_is_restored_without_a_restart() {
    recovers(
        |store| {
            fs::copy(store, copy_of(store)).unwrap();
            let mut bytes = fs::read(store).unwrap();
            for byte in &mut bytes[5_000..] {
                *byte ^= 1;
            }
            fs::write(store, bytes).unwrap();
        },
        &["damaged"],
        |store| fs::rename(copy_of(store), store).unwrap(),
    );
}

#[cfg(unix)]
#[test]
fn a_store_that_is_read_only_for_a_while_is_used_again() {
    use std::os::unix::fs::PermissionsExt as _;
    let may = |store: &Path, mode| {
        fs::set_permissions(store, fs::Permissions::from_mode(mode)).unwrap();
    };
    recovers(
        |store| may(store, 0o444),
        &["readOnly"],
        |store| may(store, 0o644),
    );
}

#[test]
fn a_store_that_disappears_while_it_is_open_is_not_replaced_by_an_old_one() {
    let folder = folder();
    let store = folder.file("store");
    let (mut host, _) = HostProcess::connected(&store);
    host.save(1);
    assert_eq!(host.convert(2).0, json!(CREDIT));
    // The user resets the store, from another process.
    let reset = format!("store reset {} --reason test", store.display());
    assert!(bigbird(&reset).status.success());
    host.wait_until(works);
    // The reset closed this epoch, and nothing that was spent comes back.
    host.save(3);
    assert_eq!(host.convert(4).0, json!(NULL));
    assert!(host.end());
}

#[test]
fn a_store_that_another_process_locks_is_used_again_when_it_is_free() {
    let folder = folder();
    let store = folder.file("store");
    let (mut host, _) = HostProcess::connected(&store);
    host.save(1);
    let (good, length) = host.convert(2);
    assert_eq!(good, json!(CREDIT));

    let mut other = SqliteStore::open(&store, &StoreOptions::default()).unwrap();
    let lock = other.begin().unwrap();
    let (null, null_length) = host.convert(3);
    assert_eq!((null, null_length), (json!(NULL), length));
    let status = host.wait_until(|status| !works(status));
    assert!(
        status["lastStoreError"].as_str().unwrap().contains("lock"),
        "{status}"
    );
    let budgets = host.ask(&json!({"event": "budgets"}));
    assert_eq!(budgets["reason"], "busy", "{budgets}");
    drop(lock);
    host.wait_until(works);
    assert_eq!(host.convert(4).0, json!(CREDIT));
    assert!(host.end());
}
