//! How results reach the terminal or a pipe.

use std::io::{self, Write as _};

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};
use serde::Serialize;

use crate::stdio;

/// Writes to standard output. A reader that closes the pipe early has what it wanted.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut output = stdio::output();
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Machine output: one JSON document, indented, closed by a newline.
pub(crate) fn json(value: &impl Serialize) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// Lines around the header and below the last row.
const LINES: TableStyle = {
    let line = LineStyle::none().fill('─').junction('─');
    TableStyle::new()
        .top_border(line)
        .header_separator(line)
        .bottom_border(line)
};

/// A table; numbers are aligned to the right from the second column on.
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
