//! The places of text: titles, legends and names beside a chart.

use std::fmt::Write as _;

use crate::{WIDTH, escape};

/// A line of a chart: the series that it shows. There are several if they coincide.
pub(crate) struct DrawnLine {
    pub(crate) members: Vec<usize>,
}

/// The name of series that coincide: `one, other: the same`. What all names begin or end with, up
/// to a comma, is said once: `one, other: the same, median`.
pub(crate) fn joint_name(names: &[&str]) -> String {
    let [first, others @ ..] = names else {
        return String::new();
    };
    if others.is_empty() {
        return (*first).to_owned();
    }
    let names: Vec<Vec<&str>> = names.iter().map(|it| it.split(", ").collect()).collect();
    let shortest = names.iter().map(Vec::len).min().unwrap_or(0);
    let shared = |at: &dyn Fn(&[&'_ str], usize) -> String, most: usize| {
        let same = |number: &usize| {
            names
                .iter()
                .all(|it| at(it, *number) == at(&names[0], *number))
        };
        (0..most).take_while(same).count()
    };
    let before = shared(&|it, number| it[number].to_owned(), shortest);
    let after = shared(
        &|it, number| it[it.len() - 1 - number].to_owned(),
        shortest - before,
    );
    let own = names
        .iter()
        .map(|it| it[before..it.len() - after].join(", "));
    let parts = names[0][..before].iter().map(|it| (*it).to_owned());
    let parts: Vec<String> = parts.chain(own.filter(|it| !it.is_empty())).collect();
    let ending = &names[0][names[0].len() - after..];
    let ending = ending
        .iter()
        .map(|it| format!(", {it}"))
        .collect::<String>();
    format!("{}: the same{ending}", parts.join(", "))
}

/// The width of text, roughly: fonts differ.
#[expect(clippy::cast_precision_loss, reason = "a few letters")]
pub(crate) fn width(text: &str) -> f64 {
    7.1 * text.chars().count() as f64
}

/// Text in lines of at most some characters. A longer word has a line of its own.
pub(crate) fn wrapped(text: &str, characters: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= characters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Draws a title. Returns the height at which it ends.
pub(crate) fn title(text: &str, left: f64, svg: &mut String) -> f64 {
    let mut y = 4.0;
    for line in wrapped(text, 54) {
        y += 16.0;
        let _ = write!(
            svg,
            "<text x=\"{left}\" y=\"{y}\" font-size=\"14\" font-weight=\"600\">{}</text>",
            escape(&line)
        );
    }
    y
}

/// Draws a legend below a height: for each name a sample, 22 wide, whose line of text is at 0.
/// Returns the height at which the legend ends.
pub(crate) fn legend(entries: &[(String, String)], top: f64, svg: &mut String) -> f64 {
    const LINE: f64 = 18.0;
    const LEFT: f64 = 12.0;
    const SAMPLE: f64 = 28.0;
    let (mut x, mut y) = (LEFT, top + LINE + 2.0);
    for (name, sample) in entries {
        let width = SAMPLE + 1.06 * width(name) + 14.0;
        if x > LEFT && x + width > WIDTH {
            (x, y) = (LEFT, y + LINE);
        }
        let _ = write!(
            svg,
            "<g transform=\"translate({x:.0} {y})\">{sample}<text x=\"{SAMPLE}\">{}</text></g>",
            escape(name)
        );
        x += width;
    }
    if entries.is_empty() {
        return top + 12.0;
    }
    y + 14.0
}

/// The tops of blocks of these heights, in order from top to bottom, each around its middle if the
/// others leave room, with a gap between them, and within limits if they fit.
pub(crate) fn around(
    middles: &[f64],
    heights: &[f64],
    gap: f64,
    first: f64,
    last: f64,
) -> Vec<f64> {
    let mut tops = Vec::with_capacity(middles.len());
    let mut free_from = first;
    for (middle, height) in middles.iter().zip(heights) {
        let top = (middle - height / 2.0).max(free_from);
        tops.push(top);
        free_from = top + height + gap;
    }
    // What went beyond the end goes up again, and pushes the others.
    let mut free_to = last;
    for (top, height) in tops.iter_mut().zip(heights).rev() {
        *top = top.min(free_to - height);
        free_to = *top - gap;
    }
    tops
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_share_is_said_once() {
        assert_eq!(joint_name(&["a, median"]), "a, median");
        assert_eq!(joint_name(&["a", "b, c"]), "a, b, c: the same");
        assert_eq!(
            joint_name(&["a, median", "b, median"]),
            "a, b: the same, median"
        );
        assert_eq!(joint_name(&["a, x", "a, y"]), "a, x, y: the same");
        assert_eq!(joint_name(&["a", "a"]), "a: the same");
    }

    #[test]
    fn blocks_make_room_for_each_other() {
        let tops = around(&[50.0, 52.0, 100.0], &[20.0, 20.0, 20.0], 2.0, 0.0, 100.0);
        assert_eq!(tops, [36.0, 58.0, 80.0]);
    }
}
