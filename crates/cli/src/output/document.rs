//! Documents: what a command tells, as paragraphs and tables.

use unicode_width::UnicodeWidthStr as _;

use super::table::ResultTable;
use super::{ResultFormat, width};

/// The longest line of a paragraph. Longer lines are hard to read, however wide the terminal is.
pub(super) const LONGEST_LINE: usize = 100;

/// The result of a command, before it has a form.
#[derive(Debug, Default)]
pub(crate) struct Document {
    blocks: Vec<Block>,
    data: Option<ResultTable>,
}

#[derive(Debug)]
enum Block {
    /// Text, whose lines are filled.
    Paragraph(String),
    /// Text, whose lines are kept.
    Lines(String),
    ResultTable(ResultTable),
}

impl Document {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a paragraph. Each of its lines is filled on its own.
    pub(crate) fn paragraph(&mut self, text: impl Into<String>) -> &mut Self {
        self.add(Block::Paragraph(text.into()))
    }

    /// Adds text whose lines are aligned already.
    pub(crate) fn lines(&mut self, text: impl Into<String>) -> &mut Self {
        self.add(Block::Lines(text.into().trim_end().to_owned()))
    }

    pub(crate) fn table(&mut self, table: ResultTable) -> &mut Self {
        self.add(Block::ResultTable(table))
    }

    /// Sets the table that CSV contains instead of those of the text.
    pub(crate) fn data(&mut self, table: ResultTable) -> &mut Self {
        self.data = Some(table);
        self
    }

    fn add(&mut self, block: Block) -> &mut Self {
        self.blocks.push(block);
        self
    }

    /// The document in a form. JSON has no documents, so it is written as text.
    pub(crate) fn render(&self, format: ResultFormat) -> String {
        match format {
            ResultFormat::Text | ResultFormat::Json => self.text(width()),
            ResultFormat::Markdown => self.markdown(),
            ResultFormat::Csv => self.csv(),
        }
    }

    fn text(&self, width: usize) -> String {
        let blocks = self.blocks.iter().map(|block| match block {
            Block::Paragraph(text) => filled(text, width.min(LONGEST_LINE)),
            Block::Lines(text) => text.clone() + "\n",
            Block::ResultTable(table) => table.text(width),
        });
        blocks.collect::<Vec<_>>().join("\n")
    }

    fn markdown(&self) -> String {
        let blocks = self.blocks.iter().map(|block| match block {
            // Two spaces at the end of a line keep the next one apart.
            Block::Paragraph(text) => text.trim_end().replace('\n', "  \n") + "\n",
            Block::Lines(text) => format!("```text\n{text}\n```\n"),
            Block::ResultTable(table) => table.markdown(),
        });
        blocks.collect::<Vec<_>>().join("\n")
    }

    fn csv(&self) -> String {
        if let Some(data) = &self.data {
            return data.csv();
        }
        let tables = self.blocks.iter().filter_map(|block| match block {
            Block::ResultTable(table) => Some(table.csv()),
            _ => None,
        });
        tables.collect::<Vec<_>>().join("\n")
    }
}

/// A text in lines of at most `width` columns. Lines of the text stay apart, lines that are short
/// enough stay as they are, and lines that begin with spaces continue with as many.
pub(super) fn filled(text: &str, width: usize) -> String {
    let mut filled = String::new();
    for line in text.trim_end().lines() {
        if line.width() <= width {
            filled.push_str(line);
            filled.push('\n');
            continue;
        }
        let words = line.trim_start();
        let mut indent = " ".repeat(line.len() - words.len());
        let mut column = 0;
        for word in words.split_whitespace() {
            let length = word.width();
            if column > 0 && column + 1 + length > width {
                filled.push('\n');
                column = 0;
            }
            if column == 0 {
                filled.push_str(&indent);
                column = indent.len();
            } else {
                filled.push(' ');
                column += 1;
            }
            filled.push_str(word);
            column += length;
            if word == "*" {
                // The text of a list item is aligned below its first word.
                indent.push_str("  ");
            }
        }
        filled.push('\n');
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::super::{ResultCell, ResultColumn};
    use super::*;

    fn document() -> Document {
        let mut table = ResultTable::new(vec![
            ResultColumn::new("site", "site"),
            ResultColumn::new("ε", "epsilon"),
        ]);
        table.row(vec![ResultCell::text("shop, a"), ResultCell::Number(0.25)]);
        let mut document = Document::new();
        document
            .paragraph("One two three.\nFour.")
            .lines("a  b")
            .table(table);
        document
    }

    #[test]
    fn a_document_has_a_form_for_each_reader() {
        assert_eq!(
            document().text(12),
            "One two\nthree.\nFour.\n\na  b\n\nsite: shop, a\nε:    0.25\n"
        );
        assert_eq!(
            document().markdown(),
            "One two three.  \nFour.\n\n```text\na  b\n```\n\n\
             | site | ε |\n| :--- | ---: |\n| shop, a | 0.25 |\n"
        );
        assert_eq!(document().csv(), "site,epsilon\n\"shop, a\",0.25\n");
    }

    #[test]
    fn no_line_is_longer_than_asked() {
        let text = "a bb ccc dddd\n  indented lines keep their place";
        for width in 12..40 {
            assert!(
                filled(text, width)
                    .lines()
                    .all(|line| line.width() <= width)
            );
        }
    }
}
