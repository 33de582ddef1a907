//! Printing of results: as text for people, as Markdown, as CSV or as JSON.
//!
//! A command puts its result into a [`Document`]: paragraphs and typed tables. The document is
//! written in the [`ResultFormat`] that was asked for. JSON has a form of its own, which each
//! command defines.

mod document;
mod table;

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;
use serde::Serialize;

pub(crate) use self::document::Document;
pub(crate) use self::table::{ResultCell, ResultColumn, ResultTable, percent, signed, table};
use crate::stdio;

/// Prints nothing for panics on threads for which this is true: a library turns such a panic into
/// an error, and the user sees only the error.
#[cfg(feature = "lab")]
pub(crate) fn quiet_when(is_handled: fn() -> bool) {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !is_handled() {
            before(panic);
        }
    }));
}

/// Writes to standard output. A pipe that its reader closed early is not an error: the reader has
/// what it wanted.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut output = stdio::output();
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// The form of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum ResultFormat {
    /// Text with tables that fit the terminal
    #[default]
    Text,
    /// Text with tables for Markdown
    Markdown,
    /// Only the tables, with exact numbers
    Csv,
    /// Everything, for other programs
    Json,
}

/// The options of every command that prints tables.
#[derive(Debug, clap::Args)]
pub(crate) struct FormatArgs {
    /// Form of the result
    #[arg(
        long,
        value_enum,
        default_value_t,
        hide_possible_values = true,
        value_name = "text|markdown|csv|json",
        help_heading = "Output"
    )]
    format: ResultFormat,
    /// Print the result as JSON: short for --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    json: bool,
}

impl FormatArgs {
    pub(crate) fn format(&self) -> ResultFormat {
        match self.json {
            true => ResultFormat::Json,
            false => self.format,
        }
    }
}

/// One JSON document for other programs, indented, with a newline at the end.
pub(crate) fn json(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// A number with its noun, in the singular or the plural.
pub(crate) fn count(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{} {thing}s", grouped(number)),
    }
}

/// A count with commas between thousands.
pub(crate) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A text whose long lines are broken where the output ends.
pub(crate) fn fitted(text: &str) -> String {
    document::filled(text, width().min(document::LONGEST_LINE))
}

/// The number of columns to write in. It is that of the terminal. Anything else, such as a pipe or
/// a file, gets the same lines on every machine.
pub(crate) fn width() -> usize {
    const ELSEWHERE: usize = 100;
    const NARROWEST: usize = 20;
    let output = io::stdout();
    if !output.is_terminal() {
        return ELSEWHERE;
    }
    // A terminal that does not know its size says 0.
    let of_terminal = terminal_size::terminal_size_of(&output).map(|(width, _)| width.0);
    let known = of_terminal.filter(|width| *width > 0);
    known.map_or(ELSEWHERE, |width| usize::from(width).max(NARROWEST))
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_apart() {
        assert_eq!(
            [0, 12, 123, 1234, 1_234_567].map(grouped),
            ["0", "12", "123", "1,234", "1,234,567"]
        );
    }
}
