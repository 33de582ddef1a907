//! Tells the program from which commit it was built.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env!("CARGO_PKG_VERSION");
    let version = match commit() {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=BIGBIRD_VERSION={version}");
}

/// The first digits of the commit, if it is known.
fn commit() -> Option<String> {
    packaged().or_else(checked_out)
}

/// The number of digits of a commit.
const DIGITS: usize = 7;

/// The commit of a published package: cargo writes it into the package.
fn packaged() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let after = info.split_once("\"sha1\"")?.1;
    let digits: String = after
        .chars()
        .skip_while(|letter| !letter.is_ascii_hexdigit())
        .take_while(char::is_ascii_hexdigit)
        .take(DIGITS)
        .collect();
    (digits.len() == DIGITS).then_some(digits)
}

/// The commit that is checked out. None without git, and if this folder belongs to no repository.
fn checked_out() -> Option<String> {
    // A copy inside of another repository, such as a folder of dotfiles, is not part of it.
    git(&["ls-files", "--error-unmatch", "build.rs"])?;
    // The commit changes with what is checked out, and with the branch that is. The log of both has
    // a new line then.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file])
            && Path::new(&path).exists()
        {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&["rev-parse", &format!("--short={DIGITS}"), "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
