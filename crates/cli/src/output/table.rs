//! Tables: columns with names, and cells that know what they hold.

use std::fmt::{self, Write as _};

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, TableStyle, Width,
};
use unicode_width::UnicodeWidthStr;

use super::{grouped, width};

/// A table.
#[derive(Debug, Clone)]
pub(crate) struct ResultTable {
    columns: Vec<ResultColumn>,
    rows: Vec<Vec<ResultCell>>,
    /// The number of columns that say what a row is about: at least the first.
    keys: usize,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub(crate) struct ResultColumn {
    /// The heading for people.
    title: String,
    /// The heading in CSV files.
    key: String,
    /// True if text in it is aligned to the right, as numbers are.
    right: bool,
}

/// What one row says about one column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ResultCell {
    /// Anything that is not a number.
    Text(String),
    /// A whole number, shown with commas between thousands.
    Count(u64),
    /// A whole number that may be negative.
    Signed(i64),
    /// A number that is shown with all of its digits, such as an epsilon.
    Number(f64),
    /// An amount of epsilon, shown with its unit.
    Epsilon(f64),
    /// A number that is shown with this many digits after the point.
    Rounded(f64, usize),
    /// A fraction that is shown as a percentage.
    Share(f64),
    /// A fraction with its 95% interval: the mean, and half of the interval's length.
    Interval(f64, f64),
    /// There is no value.
    Missing,
}

impl ResultCell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A cell for a value that may be missing.
    pub(crate) fn or_missing<T>(value: Option<T>, cell: impl FnOnce(T) -> Self) -> Self {
        value.map_or(Self::Missing, cell)
    }

    fn is_number(&self) -> bool {
        !matches!(self, Self::Text(_) | Self::Missing)
    }

    /// The cell for people, with its unit.
    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => grouped(*count),
            Self::Signed(number) => signed(*number),
            Self::Number(number) => number.to_string(),
            Self::Epsilon(epsilon) => format!("{epsilon} ε"),
            Self::Rounded(number, digits) => format!("{number:.digits$}"),
            Self::Share(share) => percent(*share),
            Self::Interval(mean, reach) => format!("{} ± {:.1}", percent(*mean), 100.0 * reach),
            Self::Missing => "–".to_owned(),
        }
    }

    /// The cell for programs, with every digit. Nothing stands for a missing value.
    fn exact(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Count(count) => count.to_string(),
            Self::Signed(number) => number.to_string(),
            Self::Number(number)
            | Self::Epsilon(number)
            | Self::Rounded(number, _)
            | Self::Share(number)
            | Self::Interval(number, _) => number.to_string(),
            Self::Missing => String::new(),
        }
    }
}

/// A fraction as a percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// A number with its digits in groups.
pub(crate) fn signed(number: i64) -> String {
    let sign = if number < 0 { "−" } else { "" };
    format!("{sign}{}", grouped(number.unsigned_abs()))
}

impl ResultColumn {
    pub(crate) fn new(title: impl Into<String>, key: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            key: key.into(),
            right: false,
        }
    }

    /// A column with a heading that people and programs share.
    pub(crate) fn named(name: &str) -> Self {
        Self::new(name, name)
    }
}

/// A table of text. From the second column on, cells are aligned to the right.
pub(crate) fn table(
    header: Vec<String>,
    rows: impl IntoIterator<Item = Vec<String>>,
) -> ResultTable {
    let columns = (0..).zip(header).map(|(number, title)| ResultColumn {
        right: number > 0,
        ..ResultColumn::new(title.clone(), title.replace('\n', " "))
    });
    let mut table = ResultTable::new(columns.collect());
    for row in rows {
        table.row(row.into_iter().map(ResultCell::Text).collect());
    }
    table
}

/// The lines above and below the header, and below the last row.
const LINES: TableStyle = {
    let line = LineStyle::none().fill('─').junction('─');
    TableStyle::new()
        .top_border(line)
        .header_separator(line)
        .bottom_border(line)
};

/// The spaces around a cell: one on both sides, and one in place of a line to the next column.
const PADDING: usize = 3;

/// Words that are longer than this may be broken to make a table fit.
const LONGEST_WORD: usize = 24;

impl ResultTable {
    pub(crate) fn new(columns: Vec<ResultColumn>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
            keys: 1,
        }
    }

    /// Sets the number of columns that say what a row is about. If a table is too wide, it becomes
    /// several tables, and each of them has these columns.
    pub(crate) fn keys(mut self, keys: usize) -> Self {
        self.keys = keys;
        self
    }

    pub(crate) fn row(&mut self, cells: Vec<ResultCell>) {
        self.rows.push(cells);
    }

    /// True if the cells of a column are aligned to the right.
    fn is_right(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column));
        self.columns[column].right || cells.any(ResultCell::is_number)
    }

    /// The width of the widest cell of a column, without its heading.
    fn widest(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.shown().width()).max().unwrap_or(0)
    }

    /// The least width of a column: that of its numbers, or of its longest word.
    fn least(&self, column: usize) -> usize {
        if self.is_right(column) {
            return self.widest(column);
        }
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let longest = cells.flat_map(|cell| {
            let shown = cell.shown();
            let words = shown.split_whitespace().map(UnicodeWidthStr::width);
            words.max()
        });
        longest.max().unwrap_or(0).min(LONGEST_WORD)
    }

    /// The table in at most `width` columns. If it does not fit, it becomes several tables with
    /// some of the columns each, and if these do not fit either, each row becomes a list.
    pub(super) fn text(&self, width: usize) -> String {
        if let Some(text) = self.fitted(width) {
            return text;
        }
        let keys = self.keys.min(self.columns.len());
        let mut tables = Vec::new();
        let mut rest = keys..self.columns.len();
        while !rest.is_empty() {
            let fits = |end: usize| {
                let columns: Vec<usize> = (0..keys).chain(rest.start..end).collect();
                Some((end, self.only(&columns).fitted(width)?))
            };
            let Some((end, text)) = (rest.start + 1..=rest.end).rev().find_map(fits) else {
                return self.records(width);
            };
            tables.push(text);
            rest.start = end;
        }
        match tables.is_empty() {
            true => self.records(width),
            false => tables.join("\n"),
        }
    }

    /// The table with only some of its columns.
    fn only(&self, columns: &[usize]) -> Self {
        let cells = |row: &Vec<ResultCell>| {
            let cells = columns.iter().filter_map(|column| row.get(*column));
            cells.cloned().collect()
        };
        Self {
            columns: columns.iter().map(|it| self.columns[*it].clone()).collect(),
            rows: self.rows.iter().map(cells).collect(),
            keys: self.keys,
        }
    }

    /// The lines of each heading, at most this many.
    fn headings(&self, most_lines: usize) -> Vec<Vec<String>> {
        let columns = self.columns.iter().enumerate();
        let heading = |(number, column): (usize, &ResultColumn)| {
            in_lines(&column.title, self.widest(number), most_lines)
        };
        columns.map(heading).collect()
    }

    /// The table in at most `width` columns, if it fits. Headings are broken into as few lines as
    /// possible.
    fn fitted(&self, width: usize) -> Option<String> {
        let (headings, least) = [2, 3, usize::MAX].into_iter().find_map(|most_lines| {
            let headings = self.headings(most_lines);
            let least: Vec<usize> = headings
                .iter()
                .enumerate()
                .map(|(column, lines)| {
                    let lines = lines.iter().map(|line| line.width());
                    lines.max().unwrap_or(0).max(self.least(column)) + PADDING
                })
                .collect();
            (least.iter().sum::<usize>() <= width + 1).then_some((headings, least))
        })?;
        let mut table = comfy_table::Table::new();
        table.load_style(LINES);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(width).unwrap_or(u16::MAX));
        table.set_header(headings.iter().map(|lines| lines.join("\n")));
        let shown = |row: &Vec<ResultCell>| row.iter().map(ResultCell::shown).collect::<Vec<_>>();
        table.add_rows(self.rows.iter().map(shown));
        for (number, column) in table.column_iter_mut().enumerate() {
            if self.is_right(number) {
                column.set_cell_alignment(CellAlignment::Right);
                column.set_constraint(ColumnConstraint::ContentWidth);
            } else {
                // The library's widths include the spaces of a cell, but not those between columns.
                let least = u16::try_from(least[number] - 1).unwrap_or(u16::MAX);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
            }
        }
        let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
        Some(lines.collect())
    }

    /// Each row as a list of its cells, for terminals that are too narrow for the table.
    fn records(&self, width: usize) -> String {
        let titles: Vec<String> = self
            .columns
            .iter()
            .map(|column| column.title.replace('\n', " ") + ":")
            .collect();
        let longest = titles.iter().map(|title| title.width()).max().unwrap_or(0);
        let mut text = String::new();
        for (number, row) in self.rows.iter().enumerate() {
            if number > 0 {
                text.push('\n');
            }
            for (title, cell) in titles.iter().zip(row) {
                let shown = cell.shown();
                if shown.is_empty() {
                    continue;
                }
                let pad = " ".repeat(longest - title.width() + 1);
                let fits = longest + 1 + shown.width() <= width;
                let _ = match fits {
                    true => writeln!(text, "{title}{pad}{shown}"),
                    false => writeln!(text, "{title} {shown}"),
                };
            }
        }
        text
    }

    pub(super) fn markdown(&self) -> String {
        let cell = |text: String| text.replace('|', "\\|").replace('\n', " ");
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        let titles = self.columns.iter().map(|column| cell(column.title.clone()));
        let mut text = line(titles.collect());
        let rules = (0..self.columns.len()).map(|column| match self.is_right(column) {
            true => "---:".to_owned(),
            false => ":---".to_owned(),
        });
        text += &line(rules.collect());
        for row in &self.rows {
            text += &line(row.iter().map(|it| cell(it.shown())).collect());
        }
        text
    }

    /// The table as CSV.
    pub(crate) fn csv(&self) -> String {
        let mut csv = csv::Writer::from_writer(Vec::new());
        // Memory does not refuse to be written to, and every row has a cell for each column.
        let _ = csv.write_record(self.columns.iter().map(|column| &column.key));
        for row in &self.rows {
            let _ = csv.write_record(row.iter().map(ResultCell::exact));
        }
        let bytes = csv.into_inner().unwrap_or_default();
        String::from_utf8(bytes).unwrap_or_default()
    }
}

/// The table as text, as wide as the output allows.
impl fmt::Display for ResultTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(width()).trim_end())
    }
}

/// A heading, broken after spaces and hyphens into lines that are as narrow as possible, but not
/// narrower than the widest cell of the column. There are at most this many lines, unless a line
/// would be wider than its longest word. Lines that the heading has already are kept.
fn in_lines(title: &str, widest: usize, most: usize) -> Vec<String> {
    if title.contains('\n') {
        return title.lines().map(str::to_owned).collect();
    }
    let words: Vec<&str> = title.split_inclusive([' ', '-']).collect();
    let longest = words.iter().map(|word| word.trim_end().width()).max();
    let narrowest = longest.unwrap_or(0).max(widest);
    let mut lines: Vec<String> = Vec::new();
    for width in narrowest..=title.width().max(narrowest) {
        lines.clear();
        for word in &words {
            match lines.last_mut() {
                Some(line) if line.width() + word.trim_end().width() <= width => {
                    line.push_str(word);
                }
                _ => lines.push((*word).to_owned()),
            }
        }
        if lines.len() <= most {
            break;
        }
    }
    for line in &mut lines {
        line.truncate(line.trim_end().len());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs() -> ResultTable {
        let mut table = ResultTable::new(vec![
            ResultColumn::named("attacker"),
            ResultColumn::new("impression-site quota", "impressionSiteQuota"),
            ResultColumn::named("median"),
        ]);
        for (attacker, quota, median) in [("none", Some(0.5), 0.051), ("random", None, 0.2)] {
            table.row(vec![
                ResultCell::text(attacker),
                ResultCell::or_missing(quota, ResultCell::Number),
                ResultCell::Share(median),
            ]);
        }
        table
    }

    #[test]
    fn numbers_are_aligned_and_headings_broken() {
        assert_eq!(
            runs().text(100),
            "─────────────────────────────────\n\
             \x20attacker   impression-   median\n\
             \x20            site quota\n\
             ─────────────────────────────────\n\
             \x20none               0.5     5.1%\n\
             \x20random               –    20.0%\n\
             ─────────────────────────────────\n"
        );
    }

    #[test]
    fn csv_has_keys_and_every_digit() {
        assert_eq!(
            runs().csv(),
            "attacker,impressionSiteQuota,median\nnone,0.5,0.051\nrandom,,0.2\n"
        );
    }

    /// Whatever the terminal, no line of a table is too long, and no number is broken.
    #[test]
    fn tables_fit_every_terminal() {
        let mut table = runs();
        table.row(vec![
            ResultCell::text("a text with several words in it"),
            ResultCell::Number(0.123_456),
            ResultCell::Interval(0.062, 0.004),
        ]);
        for width in 37..120 {
            let text = table.text(width);
            let longest = text.lines().map(UnicodeWidthStr::width).max();
            assert!(longest <= Some(width), "{width}\n{text}");
            for number in ["0.123456", "6.2% ± 0.4", "20.0%"] {
                assert!(text.contains(number), "{width}\n{text}");
            }
        }
        assert!(table.text(100).starts_with('─') && table.text(20).starts_with("attacker:"));
    }
}
