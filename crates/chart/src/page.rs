//! Pages with charts, and tables that a phone can show.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::{PAGE_STYLE, STYLE};

/// A page with the style sheets of charts and pages. It refers to nothing outside itself.
pub fn page(title: &str, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { (title) }
                style { (PreEscaped(PAGE_STYLE)) (PreEscaped(STYLE)) }
            }
            body { main { (body) } }
        }
    }
}

/// A table. On a phone, each row is a card in which every cell has its column's name.
///
/// ```
/// use bigbird_chart::PageTable;
/// use maud::html;
///
/// let mut table = PageTable::new(&["site", "#reports"]);
/// table.row(vec![html! { "shop.example" }, html! { "5" }]);
/// let page = table.to_markup().into_string();
/// assert!(page.contains("<td class=\"n\" data-label=\"reports\">5</td>"));
/// ```
#[derive(Debug, Clone)]
pub struct PageTable {
    columns: Vec<&'static str>,
    rows: Vec<Vec<Markup>>,
}

impl PageTable {
    /// A table with these columns. A column of numbers has a name that begins with `#`. A name that
    /// begins with `-` is not repeated on cards.
    pub fn new(columns: &[&'static str]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Markup>) {
        self.rows.push(cells);
    }

    /// The table as part of a page.
    pub fn to_markup(&self) -> Markup {
        let name = |column: &&'static str| column.trim_start_matches(['#', '-']);
        let label = |column: &&'static str| {
            let shown = !column.is_empty() && !column.starts_with('-');
            shown.then(|| name(column))
        };
        let is_number = |column: &&'static str| column.starts_with('#');
        html! {
            div class="scroll" { table class="cards" {
                thead { tr {
                    @for column in &self.columns {
                        th class=[is_number(column).then_some("n")] { (name(column)) }
                    }
                } }
                tbody { @for row in &self.rows { tr {
                    @for (column, cell) in self.columns.iter().zip(row) {
                        td class=[is_number(column).then_some("n")]
                            data-label=[label(column)] {
                            (cell)
                        }
                    }
                } } }
            } }
        }
    }
}
