//! Charts as SVG: lines over a parameter, stacked bars, and pairs of bars that compare a truth with
//! a measurement. The laboratory, the auditor and the demonstration draw their figures with it.
//!
//! The colours of a chart are CSS classes, so that a page can override them. They follow the
//! reader's light or dark setting. Every point has a tooltip with its value. Charts are narrow and
//! their text is large, so that a phone shows them without scrolling. [`page()`] makes a page of
//! them.
//!
//! ```
//! use bigbird_chart::{Chart, Series, Stroke};
//!
//! let chart = Chart {
//!     title: "Privacy loss".to_owned(),
//!     x_label: "helpers".to_owned(),
//!     y_label: "loss".to_owned(),
//!     ticks: Chart::round_numbers(4.0),
//!     series: vec![Series {
//!         name: "exact".to_owned(),
//!         colour: 0,
//!         stroke: Stroke::Solid,
//!         points: vec![(1.0, 1.4), (2.0, 1.7), (4.0, 2.5)],
//!     }],
//!     ..Chart::default()
//! };
//! assert!(chart.to_file().starts_with("<svg"));
//! ```
#![forbid(unsafe_code)]

mod comparison;
mod layout;
mod page;
mod style;

use std::fmt::Write as _;

use layout::{DrawnLine, around, legend, title, wrapped};

pub use comparison::ComparisonChart;
pub use page::{PageTable, page};
pub use style::{PAGE_STYLE, STYLE};

/// A chart.
///
/// Lines that coincide are drawn once, with one name: "this, that: the same". The series that do
/// not depend on the parameter ([`Stroke::Flat`]) have their names at the right of the frame.
#[derive(Debug, Clone, Default)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// The label of the horizontal axis: the parameter that is varied.
    pub x_label: String,
    /// The label of the vertical axis: what is measured.
    pub y_label: String,
    /// The values of the parameter: their positions and their labels.
    pub ticks: Vec<(f64, String)>,
    /// The lines, or the layers of the bars.
    pub series: Vec<Series>,
    /// True if the series are stacked bars instead of lines.
    pub stacked: bool,
    /// Values of others, drawn for comparison in the colour of their series.
    pub marks: Vec<Mark>,
    /// The source of the marks, for the legend: `"paper"`, for example.
    pub marks_from: &'static str,
    /// The 95% intervals of points.
    pub whiskers: Vec<Whisker>,
    /// The unit of the values, for tooltips: `"%"`, for example.
    pub unit: &'static str,
}

/// A value of somebody else for a point of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// The number of the series among those of the chart.
    pub series: usize,
    /// The value of the parameter. It does not matter for a flat series.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// True if the value is only known to be at most `y`.
    pub at_most: bool,
}

/// The interval of a point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Whisker {
    /// The number of the series among those of the chart.
    pub series: usize,
    /// The value of the parameter. It does not matter for a flat series.
    pub x: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A line, or one layer of stacked bars.
#[derive(Debug, Clone)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The colour, 0 to 5.
    pub colour: u8,
    /// The style of the line.
    pub stroke: Stroke,
    /// The points.
    pub points: Vec<(f64, f64)>,
}

/// The style of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stroke {
    /// A line with a dot at each point.
    Solid,
    /// A thin dashed line with small dots.
    Dashed,
    /// A thin line across the whole chart, at the height of its only point. Its name is at the
    /// right of the frame.
    Flat,
    /// The same, dotted.
    FlatDotted,
}

/// The width of a chart. A phone shows it at four fifths of this size, so text stays readable.
const WIDTH: f64 = 440.0;
/// The height of the frame.
const HEIGHT: f64 = 250.0;
const LEFT: f64 = 48.0;
/// The free space at the right of a frame without names there.
const RIGHT: f64 = 12.0;
/// The space between the frame and the names at its right, for marks.
const GUTTER: f64 = 20.0;
const BOTTOM: f64 = 46.0;

impl Chart {
    /// Ticks for numbers, each at its value.
    pub fn numbers(values: impl IntoIterator<Item = f64>) -> Vec<(f64, String)> {
        values
            .into_iter()
            .map(|value| (value, short(value)))
            .collect()
    }

    /// Ticks for a handful of round numbers from 0 to about `last`.
    pub fn round_numbers(last: f64) -> Vec<(f64, String)> {
        let step = nice_step(last.max(1e-9));
        let ticks = (0..=10).map(|tick| f64::from(tick) * step);
        Self::numbers(ticks.take_while(|value| *value <= last + step / 2.0))
    }

    /// Ticks for names, at equal distances.
    pub fn names(names: impl IntoIterator<Item = String>) -> Vec<(f64, String)> {
        (0_u32..)
            .zip(names)
            .map(|(at, name)| (f64::from(at), name))
            .collect()
    }

    /// The chart as an SVG file.
    pub fn to_file(&self) -> String {
        let (body, height) = self.body();
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" viewBox=\"0 0 {WIDTH} \
             {height}\" width=\"{WIDTH}\" height=\"{height}\"><style>{STYLE}</style><rect \
             class=\"ground\" width=\"100%\" height=\"100%\"/>{body}</svg>\n"
        )
    }

    /// The chart as part of a page that includes [`STYLE`].
    pub fn to_inline(&self) -> String {
        let (body, height) = self.body();
        format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             aria-label=\"{}\">{body}</svg>",
            escape(&self.title)
        )
    }

    /// The contents of the chart, and its height.
    fn body(&self) -> (String, f64) {
        let mut svg = String::new();
        let lines = self.distinct_lines();
        let top = self.heading(&lines, &mut svg);
        let labels = self.labels(&lines);
        let frame = Frame::new(self, top, &labels);
        frame.axes(self, &mut svg);
        if self.stacked {
            self.bars(&frame, &mut svg);
        } else {
            self.lines(&frame, &lines, &mut svg);
            self.whiskers(&frame, &lines, &mut svg);
            frame.labels(labels, &mut svg);
        }
        self.marks(&frame, &lines, &mut svg);
        (svg, frame.bottom + BOTTOM)
    }

    /// The lines to draw: series that coincide are one line.
    fn distinct_lines(&self) -> Vec<DrawnLine> {
        let near = 0.006 * self.highest();
        let same = |one: &Series, other: &Series| {
            one.stroke.is_flat() == other.stroke.is_flat()
                && one.points.len() == other.points.len()
                && !one.points.is_empty()
                && one.points.iter().zip(&other.points).all(|(one, other)| {
                    (one.0 == other.0 || one.0.is_nan()) && (one.1 - other.1).abs() < near
                })
        };
        let mut lines: Vec<DrawnLine> = Vec::new();
        for (number, series) in self.series.iter().enumerate() {
            let known = lines
                .iter_mut()
                .find(|line| !self.stacked && same(&self.series[line.members[0]], series));
            match known {
                Some(line) => line.members.push(number),
                None => lines.push(DrawnLine {
                    members: vec![number],
                }),
            }
        }
        lines
    }

    fn is_flat(&self, line: &DrawnLine) -> bool {
        self.series[line.members[0]].stroke.is_flat()
    }

    fn name(&self, line: &DrawnLine) -> String {
        let names = line.members.iter().map(|of| self.series[*of].name.as_str());
        layout::joint_name(&names.collect::<Vec<_>>())
    }

    /// The names at the right of the frame: of each flat line, its value and its colour.
    fn labels(&self, lines: &[DrawnLine]) -> Vec<Label> {
        /// The most characters of a line of text.
        const CHARACTERS: usize = 17;
        let flat = lines
            .iter()
            .filter(|line| !self.stacked && self.is_flat(line));
        flat.filter_map(|line| {
            let series = &self.series[line.members[0]];
            let (_, y) = *series.points.first()?;
            let text = format!("{}: {}{}", self.name(line), short(y), self.unit);
            let text = text.replace(": the same: ", ": the same, ");
            Some(Label {
                at: y,
                colour: series.colour,
                lines: wrapped(&text, CHARACTERS),
            })
        })
        .collect()
    }

    /// Draws the title and the legend. Returns the height at which they end.
    fn heading(&self, lines: &[DrawnLine], svg: &mut String) -> f64 {
        let top = title(&self.title, 12.0, svg);
        let mut entries: Vec<(String, String)> = Vec::new();
        for line in lines {
            let series = &self.series[line.members[0]];
            if self.stacked {
                let sample = format!(
                    "<rect class=\"f{}\" x=\"5\" y=\"-10\" width=\"12\" height=\"12\"/>",
                    series.colour
                );
                entries.push((series.name.clone(), sample));
            } else if !self.is_flat(line) {
                let sample = format!("<path class=\"{}\" d=\"M0-4h22\"/>", series.class());
                entries.push((self.name(line), sample));
            }
        }
        for at_most in [false, true] {
            if self.marks.iter().any(|mark| mark.at_most == at_most) {
                let at_most_or_not = if at_most { ", at most" } else { "" };
                let sample = format!(
                    "<path class=\"mark\" d=\"{}\"/>",
                    shape(11.0, -4.0, 5.0, at_most)
                );
                entries.push((format!("{}{at_most_or_not}", self.marks_from), sample));
            }
        }
        if !self.whiskers.is_empty() {
            let sample = "<path class=\"whisker\" d=\"M7-10h8m-4 0v12m-4 0h8\"/>".to_owned();
            entries.push(("95% interval".to_owned(), sample));
        }
        legend(&entries, top, svg)
    }

    fn lines(&self, frame: &Frame, lines: &[DrawnLine], svg: &mut String) {
        for line in lines {
            let series = &self.series[line.members[0]];
            let (class, name) = (series.class(), escape(&self.name(line)));
            if series.stroke.is_flat() {
                if let Some((_, y)) = series.points.first() {
                    let up = frame.y(*y);
                    let _ = write!(
                        svg,
                        "<path class=\"{class}\" d=\"M{LEFT} {up:.1}H{:.0}\"><title>{name}: \
                         {}{}</title></path>",
                        frame.right,
                        short(*y),
                        self.unit
                    );
                }
                continue;
            }
            let mut path = String::new();
            for (x, y) in &series.points {
                let step = if path.is_empty() { 'M' } else { 'L' };
                let _ = write!(path, "{step}{:.1} {:.1}", frame.x(*x), frame.y(*y));
            }
            let _ = write!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
            // Dots would hide a dense line.
            const MOST_DOTS: usize = 30;
            for (x, y) in series
                .points
                .iter()
                .filter(|_| series.points.len() <= MOST_DOTS)
            {
                let radius = if series.stroke == Stroke::Solid {
                    3.5
                } else {
                    2.0
                };
                let _ = write!(
                    svg,
                    "<circle class=\"f{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\"><title>{name}, {}: \
                     {}{}</title></circle>",
                    series.colour,
                    frame.x(*x),
                    frame.y(*y),
                    escape(self.name_of(*x)),
                    short(*y),
                    self.unit
                );
            }
        }
    }

    /// The horizontal position of something about a series. What does not depend on the parameter
    /// is outside the frame.
    fn across(&self, series: usize, x: f64, frame: &Frame) -> f64 {
        match self.series.get(series) {
            Some(series) if series.stroke.is_flat() => frame.right + GUTTER / 2.0,
            _ => frame.x(x),
        }
    }

    fn colour_of(&self, series: usize) -> u8 {
        self.series.get(series).map_or(5, |series| series.colour)
    }

    /// The series that is drawn for a series: of those that coincide, the first.
    fn drawn(&self, series: usize, lines: &[DrawnLine]) -> usize {
        let line = lines.iter().find(|line| line.members.contains(&series));
        line.map_or(series, |line| line.members[0])
    }

    /// True if a series is drawn dashed or dotted.
    fn is_thin(&self, series: usize) -> bool {
        let stroke = self.series.get(series).map(|series| series.stroke);
        matches!(stroke, Some(Stroke::Dashed | Stroke::FlatDotted))
    }

    fn whiskers(&self, frame: &Frame, lines: &[DrawnLine], svg: &mut String) {
        for whisker in &self.whiskers {
            // The intervals of lines that coincide are as good as the same.
            if self.drawn(whisker.series, lines) != whisker.series {
                continue;
            }
            let at = self.across(whisker.series, whisker.x, frame);
            let (low, high) = (frame.y(whisker.low.max(0.0)), frame.y(whisker.high));
            // An interval that is smaller than its ends would only hide the point.
            if low - high < 2.0 {
                continue;
            }
            let _ = write!(
                svg,
                "<path class=\"{} s{}\" d=\"M{:.1} {high:.1}h6m-3 0V{low:.1}m-3 0h6\"><title>95% \
                 interval: {} to {}{}</title></path>",
                if self.is_thin(whisker.series) {
                    "fine"
                } else {
                    "thin"
                },
                self.colour_of(whisker.series),
                at - 3.0,
                short(whisker.low),
                short(whisker.high),
                self.unit
            );
        }
    }

    fn marks(&self, frame: &Frame, lines: &[DrawnLine], svg: &mut String) {
        let mut drawn: Vec<Mark> = Vec::new();
        for mark in &self.marks {
            // Of series that coincide, the first gives the colour.
            let mark = &Mark {
                series: self.drawn(mark.series, lines),
                ..*mark
            };
            if drawn.contains(mark) {
                continue;
            }
            drawn.push(*mark);
            // The value of a layer counts from the top of the layers below.
            let below = match self.stacked {
                true => self.below(mark.series, mark.x),
                false => 0.0,
            };
            let at_most = if mark.at_most { "at most " } else { "" };
            let _ = write!(
                svg,
                "<path class=\"mark s{}\" d=\"{}\"><title>{}: {at_most}{}{}</title></path>",
                self.colour_of(mark.series),
                shape(
                    self.across(mark.series, mark.x, frame),
                    frame.y(below + mark.y),
                    if self.is_thin(mark.series) { 3.5 } else { 5.0 },
                    mark.at_most
                ),
                escape(self.marks_from),
                short(mark.y),
                self.unit
            );
        }
    }

    /// The height of the layers below a series.
    fn below(&self, series: usize, x: f64) -> f64 {
        let layers = self.series.iter().take(series).flat_map(|it| &it.points);
        layers.filter(|(at, _)| *at == x).map(|(_, y)| y).sum()
    }

    fn bars(&self, frame: &Frame, svg: &mut String) {
        for (x, name) in &self.ticks {
            let mut below = 0.0;
            for series in &self.series {
                let Some((_, y)) = series.points.iter().find(|(at, _)| at == x) else {
                    continue;
                };
                let (top, bottom) = (frame.y(below + y), frame.y(below));
                let _ = write!(
                    svg,
                    "<rect class=\"f{}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" \
                     height=\"{:.1}\"><title>{}, {}: {}{}</title></rect>",
                    series.colour,
                    frame.x(*x) - frame.bar / 2.0,
                    frame.bar,
                    bottom - top,
                    escape(&series.name),
                    escape(name),
                    short(*y),
                    self.unit
                );
                below += y;
            }
        }
    }

    fn name_of(&self, x: f64) -> &str {
        let tick = self.ticks.iter().find(|(at, _)| *at == x);
        tick.map_or("", |(_, name)| name)
    }

    /// The largest value that is drawn.
    fn highest(&self) -> f64 {
        let heights: Vec<f64> = if self.stacked {
            let sum = |x: f64| -> f64 {
                let points = self.series.iter().flat_map(|series| &series.points);
                points.filter(|(at, _)| *at == x).map(|(_, y)| y).sum()
            };
            self.ticks.iter().map(|(x, _)| sum(*x)).collect()
        } else {
            let points = self.series.iter().flat_map(|series| &series.points);
            points.map(|(_, y)| *y).collect()
        };
        let marks = self.marks.iter().map(|mark| match self.stacked {
            true => self.below(mark.series, mark.x) + mark.y,
            false => mark.y,
        });
        let whiskers = self.whiskers.iter().map(|whisker| whisker.high);
        let others = marks.chain(whiskers);
        heights.into_iter().chain(others).fold(0.0, f64::max)
    }
}

impl Stroke {
    const fn is_flat(self) -> bool {
        matches!(self, Self::Flat | Self::FlatDotted)
    }
}

impl Series {
    fn class(&self) -> String {
        let stroke = match self.stroke {
            Stroke::Solid => "line",
            Stroke::Dashed => "line dashed",
            Stroke::Flat => "line flat",
            Stroke::FlatDotted => "line flat dotted",
        };
        format!("{stroke} s{}", self.colour)
    }
}

/// The path of a mark: a diamond, or a triangle that points down if the value is at most this.
fn shape(x: f64, y: f64, size: f64, at_most: bool) -> String {
    let (left, top) = (x - size, y - size);
    match at_most {
        true => format!("M{left:.1} {top:.1}h{}l-{size} {size}z", 2.0 * size),
        false => format!("M{x:.1} {top:.1}l{size} {size}l-{size} {size}l-{size} -{size}z"),
    }
}

/// The name of a flat line, at the right of the frame.
struct Label {
    /// The value of the line.
    at: f64,
    colour: u8,
    lines: Vec<String>,
}

/// The area in which values are drawn.
struct Frame {
    top: f64,
    bottom: f64,
    right: f64,
    first: f64,
    last: f64,
    inset: f64,
    highest: f64,
    step: f64,
    bar: f64,
}

impl Frame {
    fn new(chart: &Chart, top: f64, labels: &[Label]) -> Self {
        let positions = || chart.ticks.iter().map(|(x, _)| *x);
        let (first, last) = (
            positions().fold(f64::INFINITY, f64::min),
            positions().fold(f64::NEG_INFINITY, f64::max),
        );
        let nearest = positions()
            .zip(positions().skip(1))
            .map(|(one, next)| (next - one).abs())
            .fold(f64::INFINITY, f64::min);
        let step = nice_step(chart.highest().max(1e-9));
        let highest = (chart.highest() / step).ceil().max(1.0) * step;
        let words = labels.iter().flat_map(|label| &label.lines);
        let longest = words.map(|line| layout::width(line)).fold(0.0, f64::max);
        let right = match labels.is_empty() {
            true => WIDTH - RIGHT,
            false => WIDTH - GUTTER - longest - 2.0,
        };
        let width = right - LEFT;
        let inset = if chart.stacked { 20.0 } else { 14.0 };
        let room = match last > first {
            true => (width - 2.0 * inset) * nearest / (last - first),
            false => width,
        };
        Self {
            top,
            bottom: top + HEIGHT,
            right,
            first,
            last,
            inset,
            highest,
            step,
            bar: (room * 0.7).clamp(4.0, 48.0),
        }
    }

    fn x(&self, x: f64) -> f64 {
        let width = self.right - LEFT - 2.0 * self.inset;
        if self.last <= self.first {
            return LEFT + self.inset + width / 2.0;
        }
        LEFT + self.inset + width * (x - self.first) / (self.last - self.first)
    }

    fn y(&self, y: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * y / self.highest
    }

    /// Writes the names of flat lines at the right of the frame, each as near to its line as the
    /// others allow.
    fn labels(&self, mut labels: Vec<Label>, svg: &mut String) {
        const LINE: f64 = 14.0;
        labels.sort_by(|one, other| other.at.total_cmp(&one.at));
        #[expect(clippy::cast_precision_loss, reason = "a few lines")]
        let heights: Vec<f64> = labels
            .iter()
            .map(|label| LINE * label.lines.len() as f64)
            .collect();
        let middles: Vec<f64> = labels.iter().map(|label| self.y(label.at)).collect();
        let tops = around(&middles, &heights, 6.0, self.top - 4.0, self.bottom + 4.0);
        for (label, top) in labels.iter().zip(tops) {
            let _ = write!(svg, "<text class=\"small f{}\">", label.colour);
            let mut down = top + LINE - 3.5;
            for line in &label.lines {
                let _ = write!(
                    svg,
                    "<tspan x=\"{:.1}\" y=\"{down:.1}\">{}</tspan>",
                    self.right + GUTTER,
                    escape(line)
                );
                down += LINE;
            }
            svg.push_str("</text>");
        }
    }

    fn axes(&self, chart: &Chart, svg: &mut String) {
        let right = self.right;
        svg.push_str("<g class=\"soft\" text-anchor=\"end\">");
        let mut value = 0.0;
        while value <= self.highest + self.step / 2.0 {
            let up = self.y(value);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {up:.1}H{right:.0}\"/><text x=\"{}\" \
                 y=\"{:.1}\">{}</text>",
                LEFT - 6.0,
                up + 4.0,
                short(value)
            );
            value += self.step;
        }
        svg.push_str("</g><g class=\"soft\" text-anchor=\"middle\">");
        let mut free_from = f64::NEG_INFINITY;
        for (x, name) in &chart.ticks {
            let at = self.x(*x);
            #[expect(clippy::cast_precision_loss, reason = "a few letters")]
            let half = 3.5 * name.chars().count() as f64 + 2.0;
            if at - half < free_from {
                continue;
            }
            free_from = at + half;
            let _ = write!(
                svg,
                "<text x=\"{at:.1}\" y=\"{:.1}\">{}</text>",
                self.bottom + 17.0,
                escape(name)
            );
        }
        svg.push_str("</g>");
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text \
             transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, right),
            self.bottom + 37.0,
            escape(&chart.x_label),
            f64::midpoint(self.top, self.bottom),
            escape(&chart.y_label)
        );
    }
}

/// A step of 1, 2 or 5 times a power of ten that divides the height into a handful of parts.
fn nice_step(highest: f64) -> f64 {
    let rough = highest / 5.0;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|step| rough <= step * power);
    step.unwrap_or(10.0) * power
}

/// A number with about three significant digits.
pub fn short(number: f64) -> String {
    let digits = match number.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 || size == 0.0 => 2,
        _ => 4,
    };
    let text = format!("{number:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Text, escaped for SVG and HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        for (highest, step) in [
            (0.9, 0.2),
            (5.0, 1.0),
            (48.5, 10.0),
            (87.6, 20.0),
            (21.0, 5.0),
        ] {
            assert!((nice_step(highest) - step).abs() < 1e-12, "{highest}");
        }
    }

    #[test]
    fn what_is_named_is_escaped() {
        let chart = Chart {
            title: "a < b & \"c\"".to_owned(),
            ticks: Chart::names(["<x>".to_owned()]),
            ..Chart::default()
        };
        let file = chart.to_file();
        assert!(file.contains("a &lt; b &amp; &quot;c&quot;") && file.contains("&lt;x&gt;"));
        assert!(!file.contains("<x>"));
    }

    fn series(name: &str, stroke: Stroke, points: &[(f64, f64)]) -> Series {
        Series {
            name: name.to_owned(),
            colour: 1,
            stroke,
            points: points.to_vec(),
        }
    }

    fn chart(series: Vec<Series>) -> Chart {
        Chart {
            ticks: Chart::numbers([1.0, 2.0]),
            series,
            unit: "%",
            marks_from: "paper",
            ..Chart::default()
        }
    }

    #[test]
    fn lines_that_coincide_are_drawn_and_named_once() {
        let points = [(1.0, 5.0), (2.0, 6.0)];
        let apart = [(1.0, 5.0), (2.0, 9.0)];
        let svg = chart(vec![
            series("one", Stroke::Solid, &points),
            series("two", Stroke::Solid, &points),
            series("three", Stroke::Solid, &apart),
        ])
        .to_inline();
        assert!(svg.contains(">one, two: the same</text>"), "{svg}");
        assert!(svg.contains(">three</text>"), "{svg}");
        assert_eq!(svg.matches("class=\"line s1\" d=\"M48").count(), 0);
        assert_eq!(svg.matches("<circle").count(), 4);
        // A line beside a flat one of the same height is another thing.
        let svg = chart(vec![
            series("line", Stroke::Solid, &[(1.0, 5.0)]),
            series("flat", Stroke::Flat, &[(1.0, 5.0)]),
        ])
        .to_inline();
        assert!(!svg.contains("the same"), "{svg}");
    }

    #[test]
    fn names_of_flat_lines_do_not_overlap() {
        let flat = |name: &str, y| series(name, Stroke::Flat, &[(1.0, y)]);
        let svg = chart(vec![
            flat("one name that takes several lines of text", 1.0),
            flat("another that does", 2.0),
            flat("far away", 40.0),
            flat("the name of the fourth line", 3.0),
        ])
        .to_inline();
        let mut heights: Vec<f64> = svg
            .split("<tspan x=")
            .skip(1)
            .map(|text| text.split('"').nth(3).unwrap().parse().unwrap())
            .collect();
        assert!(heights.len() >= 8, "{svg}");
        heights.sort_by(f64::total_cmp);
        assert!(
            heights.windows(2).all(|pair| pair[1] - pair[0] > 13.9),
            "{heights:?}"
        );
    }

    #[test]
    fn marks_have_the_colour_of_their_series_and_stand_on_the_layers_below() {
        let mut bars = chart(vec![
            series("low", Stroke::Solid, &[(1.0, 4.0)]),
            series("high", Stroke::Solid, &[(1.0, 1.0)]),
        ]);
        bars.stacked = true;
        bars.series[1].colour = 3;
        bars.marks = vec![Mark {
            series: 1,
            x: 1.0,
            y: 6.0,
            at_most: false,
        }];
        // 4 below and 6 of the mark's own.
        assert_eq!(bars.highest(), 10.0);
        let svg = bars.to_inline();
        assert!(
            svg.contains("class=\"mark s3\"") && svg.contains("paper: 6%"),
            "{svg}"
        );
    }
}
