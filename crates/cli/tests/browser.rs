//! `bigbird browser install`: what it writes works, and `uninstall` removes it.
#![allow(missing_docs, clippy::unwrap_used)]
#![cfg(unix)]

mod common;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::folder;
use serde_json::Value;

fn browser(home: &Path, arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .arg("browser")
        .args(arguments.split_whitespace())
        .env("HOME", home)
        .env_remove("XDG_CONFIG_HOME")
        .env_remove("XDG_DATA_HOME")
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn an_installed_host_answers_the_browser() {
    let folder = folder();
    let home = folder.file("home of o'hara");
    fs::create_dir(&home).unwrap();
    let options = "install --browser chromium --aggregation-service https://agg.example \
                   --release-after 500";
    let dry = text(&browser(&home, &format!("{options} --dry-run")));
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "{dry}");
    let told = text(&browser(&home, options));
    assert_eq!(dry.replace("Would write", "Wrote"), told);

    // The manifest leads to the launcher, and that starts the host with these options.
    let name = ".config/chromium/NativeMessagingHosts/org.bigbird.attribution.json";
    let manifest = fs::read(home.join(name)).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let mut host = Command::new(manifest["path"].as_str().unwrap())
        .arg(manifest["allowed_origins"][0].as_str().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let request = br#"{"event": "connect", "profile": "p1"}"#;
    let mut input = host.stdin.take().unwrap();
    let length = u32::try_from(request.len()).unwrap().to_ne_bytes();
    input.write_all(&length).unwrap();
    input.write_all(request).unwrap();
    drop(input);
    let mut answer = Vec::new();
    host.stdout
        .take()
        .unwrap()
        .read_to_end(&mut answer)
        .unwrap();
    assert!(host.wait().unwrap().success());
    let answer: Value = serde_json::from_slice(&answer[4..]).unwrap();
    assert_eq!(answer["releaseAfter"], 500);
    assert_eq!(answer["services"][0], "https://agg.example");
    let store = home.join(".local/share/bigbird/p1.store");
    assert_eq!(answer["store"], store.to_str().unwrap());

    let removed = text(&browser(&home, "uninstall --browser chromium"));
    assert!(removed.contains(name), "{removed}");
    assert!(!home.join(name).exists());
    assert!(store.exists(), "stores are kept");
    let again = browser(&home, "uninstall --browser chromium");
    assert_eq!(again.status.code(), Some(1));
}

#[test]
fn mistakes_are_told_in_one_line() {
    let folder = folder();
    for (arguments, words) in [
        (
            "install --browser lynx",
            "unknown browser `lynx`; use one of: firefox, chromium",
        ),
        (
            "install --browser chrome --browser-profile x",
            "--browser-profile is for Firefox",
        ),
        (
            "install --browser firefox --browser-profile x",
            "unknown profile `x`; use a folder",
        ),
        (
            "uninstall --browser firefox",
            "nothing is installed for Firefox",
        ),
    ] {
        let output = browser(folder.path(), arguments);
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success());
        assert!(told.contains(words), "{arguments}: {told}");
    }
}

#[test]
fn a_browser_that_is_not_installed_is_told() {
    let folder = folder();
    let output = Command::new(env!("CARGO_BIN_EXE_bigbird"))
        .args(["browser", "run", "--headless", "--browser", "firefox"])
        .env("PATH", folder.path())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        told.contains("Firefox is not installed") && told.contains("apt install"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1);
}
