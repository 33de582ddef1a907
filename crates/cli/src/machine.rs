//! The program and the machine it runs on, for reports.

use std::fs;

use jiff::Timestamp;

/// The version of this program, with its commit if the build script knew it.
pub(crate) fn version() -> String {
    let version = option_env!("BIGBIRD_VERSION").unwrap_or(env!("CARGO_PKG_VERSION"));
    format!("bigbird {version}")
}

/// The current date and time in UTC, to the minute.
pub(crate) fn date() -> String {
    Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}

/// The number of cores, the processor and the operating system, as far as they are known.
pub(crate) fn machine() -> String {
    let cores = match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => "1 core".to_owned(),
        cores => format!("{cores} cores"),
    };
    let architecture = std::env::consts::ARCH;
    let processor = line("/proc/cpuinfo", "model name", ':');
    let processor = processor.map_or_else(
        || architecture.to_owned(),
        |model| format!("{model} ({architecture})"),
    );
    let system = line("/etc/os-release", "PRETTY_NAME", '=');
    let system = system.unwrap_or_else(|| std::env::consts::OS.to_owned());
    format!("{cores}, {processor}, {system}")
}

/// The value of a line such as `key: value` or `key="value"` of a file of the system.
fn line(path: &str, key: &str, mark: char) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let (_, value) = text
        .lines()
        .filter_map(|line| line.split_once(mark))
        .find(|(name, _)| name.trim() == key)?;
    let value = value.trim().trim_matches('"');
    (!value.is_empty()).then(|| value.to_owned())
}
