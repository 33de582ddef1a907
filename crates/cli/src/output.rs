//! Printing of results, as text, JSON or tables.

use std::io::{self, Write as _};

use bigbird_lab::text::grouped;
use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;

use crate::stdio;

/// Prints nothing for panics on threads for which this is true: a library turns such a panic into
/// an error, and the user sees only the error.
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

/// The lines above and below the header, and below the last row.
const LINES: TableStyle = {
    let line = LineStyle::none().fill('─').junction('─');
    TableStyle::new()
        .top_border(line)
        .header_separator(line)
        .bottom_border(line)
};

/// A table. From the second column on, cells are aligned to the right.
pub(crate) fn table(header: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(LINES);
    table.set_header(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(rows);
    table
}
