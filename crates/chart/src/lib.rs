//! Charts as SVG: lines over a parameter, stacked bars, and pairs of bars that compare a truth with
//! a measurement. The laboratory, the auditor and the demonstration draw their figures with it.
//!
//! The colours of a chart are CSS classes, so that a page can override them. They follow the
//! reader's light or dark setting. Every point has a tooltip with its value.
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

use std::fmt::Write as _;

pub use comparison::ComparisonChart;

/// The style sheet of charts, both as files and in the report.
pub const STYLE: &str = "\
.chart{font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;--ink:#1f2328;--soft:#59636e;\
--grid:#d8dee4;--ground:#fff;--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#a4508b;--c4:#7d6608;\
--c5:#59636e}\
@media(prefers-color-scheme:dark){.chart{--ink:#e6edf3;--soft:#9198a1;--grid:#30363d;\
--ground:#0d1117;--c0:#58a6ff;--c1:#ff9a56;--c2:#3fd29a;--c3:#e08fc5;--c4:#d9c04f;--c5:#9198a1}}\
.chart text{fill:var(--ink)}.chart .soft{fill:var(--soft)}.chart .grid{stroke:var(--grid)}\
.chart .ground{fill:var(--ground)}.chart .line{fill:none;stroke-width:2.5}\
.chart .dashed{stroke-dasharray:5 4;stroke-width:1.5}.chart .flat{stroke-width:2}\
.chart .flat.s1{stroke-dasharray:10 5}.chart .flat.s3{stroke-dasharray:3 6}\
.chart .whisker{fill:none;stroke:var(--ink);stroke-width:1.5}\
.chart .paper{fill:var(--ground);stroke:var(--ink);stroke-width:1.5}\
.chart .s0{stroke:var(--c0)}.chart .s1{stroke:var(--c1)}.chart .s2{stroke:var(--c2)}\
.chart .s3{stroke:var(--c3)}.chart .s4{stroke:var(--c4)}.chart .s5{stroke:var(--c5)}\
.chart .f0{fill:var(--c0)}.chart .f1{fill:var(--c1)}.chart .f2{fill:var(--c2)}\
.chart .f3{fill:var(--c3)}.chart .f4{fill:var(--c4)}.chart .f5{fill:var(--c5)}";

/// The style sheet of pages with charts.
pub const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d8dee4;--ground:#fff;\
--panel:#f6f8fa;--good:#1a7f37;--bad:#cf222e;--accent:#0072b2}\
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;\
--ground:#0d1117;--panel:#161b22;--good:#3fb950;--bad:#f85149;--accent:#58a6ff}}\
*{box-sizing:border-box}a{color:var(--accent)}\
body{margin:0;background:var(--ground);color:var(--ink);\
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:1180px;margin:0 auto;padding:24px 20px 64px}h1{font-size:1.9rem;line-height:1.2;\
margin:.2em 0}h2{margin:2em 0 .4em;font-size:1.35rem}h3{margin:0 0 .2em;font-size:1.05rem}\
p{max-width:74ch}.soft{color:var(--soft)}.tiles{display:grid;gap:12px;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,250px),1fr));margin:20px 0}\
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 16px}\
.tile b{display:block;font-size:1.8rem;line-height:1.25}.figures{display:grid;gap:20px;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr))}figure{margin:0;\
border:1px solid var(--line);border-radius:8px;padding:12px;min-width:0}\
figure svg{width:100%;height:auto;display:block}figcaption{color:var(--soft);font-size:.92rem;\
margin-top:6px}.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem;\
margin:.6em 0}th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);\
vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;\
white-space:nowrap}.good{color:var(--good);font-weight:600;white-space:nowrap}\
.bad{color:var(--bad);font-weight:600;white-space:nowrap}\
pre{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px;\
overflow-x:auto}details{margin:.4em 0}summary{cursor:pointer}\
.verdict{border-left:4px solid var(--good);padding:2px 0 2px 14px;font-size:1.1rem}\
.verdict.failed{border-color:var(--bad)}figcaption ul{list-style:none;margin:.4em 0 0;padding:0}\
figcaption li{margin:.2em 0;color:var(--ink)}.label{display:none}\
@media(max-width:560px){figure{overflow-x:auto}figure svg{min-width:480px}}\
@media(max-width:640px){.cards tr:first-child{display:none}.cards tr,.cards td{display:block}\
.cards tr{border-bottom:1px solid var(--line);padding:8px 0}.cards td{border:0;padding:1px 0}\
.label{display:inline;color:var(--soft)}}";

/// A chart.
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
    /// Values of the paper, drawn for comparison.
    pub paper: Vec<(f64, f64)>,
    /// The unit of the values, for tooltips: `"%"`, for example.
    pub unit: &'static str,
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
    /// A horizontal line across the whole chart, at the height of its only point.
    Flat,
}

const WIDTH: f64 = 600.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 50.0;
const LINE: f64 = 18.0;

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
        let top = self.heading(&mut svg);
        let frame = Frame::new(self, top);
        frame.axes(self, &mut svg);
        if self.stacked {
            self.bars(&frame, &mut svg);
        } else {
            self.lines(&frame, &mut svg);
        }
        for (x, y) in &self.paper {
            let (at, up) = (frame.x(*x), frame.y(*y));
            let _ = write!(
                svg,
                "<path class=\"paper\" d=\"M{at:.1} {:.1}l5 5l-5 5l-5 -5z\"><title>paper: \
                 {}{}</title></path>",
                up - 5.0,
                short(*y),
                self.unit
            );
        }
        (svg, top + HEIGHT - 40.0)
    }

    /// Draws the title and the legend. Returns the height at which they end.
    fn heading(&self, svg: &mut String) -> f64 {
        let _ = write!(
            svg,
            "<text x=\"{LEFT}\" y=\"20\" font-size=\"14\" font-weight=\"600\">{}</text>",
            escape(&self.title)
        );
        let (mut x, mut y) = (LEFT, 42.0);
        let entries = self
            .series
            .iter()
            .map(|series| (series.name.as_str(), Some(series)));
        let paper = (!self.paper.is_empty()).then_some(("paper, median", None));
        for (name, series) in entries.chain(paper) {
            #[expect(clippy::cast_precision_loss, reason = "a few letters")]
            let width = 36.0 + 6.6 * name.chars().count() as f64;
            if x > LEFT && x + width > WIDTH - RIGHT {
                (x, y) = (LEFT, y + LINE);
            }
            let middle = y - 4.0;
            let _ = match series {
                Some(series) if self.stacked => write!(
                    svg,
                    "<rect class=\"f{}\" x=\"{x}\" y=\"{}\" width=\"12\" height=\"12\"/>",
                    series.colour,
                    y - 10.0
                ),
                Some(series) => write!(
                    svg,
                    "<path class=\"{}\" d=\"M{x} {middle}h22\"/>",
                    series.class()
                ),
                None => write!(
                    svg,
                    "<path class=\"paper\" d=\"M{} {}l5 5l-5 5l-5 -5z\"/>",
                    x + 11.0,
                    middle - 5.0
                ),
            };
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{y}\">{}</text>",
                x + 28.0,
                escape(name)
            );
            x += width;
        }
        y + 14.0
    }

    fn lines(&self, frame: &Frame, svg: &mut String) {
        for series in &self.series {
            let class = series.class();
            if series.stroke == Stroke::Flat {
                for (_, y) in series.points.iter().take(1) {
                    let up = frame.y(*y);
                    let _ = write!(
                        svg,
                        "<path class=\"{class}\" d=\"M{LEFT} {up:.1}H{}\"><title>{}: \
                         {}{}</title></path>",
                        WIDTH - RIGHT,
                        escape(&series.name),
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
                    "<circle class=\"f{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"{radius}\"><title>{}, {}: \
                     {}{}</title></circle>",
                    series.colour,
                    frame.x(*x),
                    frame.y(*y),
                    escape(&series.name),
                    escape(self.name_of(*x)),
                    short(*y),
                    self.unit
                );
            }
        }
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
        let paper = self.paper.iter().map(|(_, y)| *y);
        heights.into_iter().chain(paper).fold(0.0, f64::max)
    }
}

impl Series {
    fn class(&self) -> String {
        let stroke = match self.stroke {
            Stroke::Solid => "line",
            Stroke::Dashed => "line dashed",
            Stroke::Flat => "line flat",
        };
        format!("{stroke} s{}", self.colour)
    }
}

/// The area in which values are drawn.
struct Frame {
    top: f64,
    bottom: f64,
    first: f64,
    last: f64,
    inset: f64,
    highest: f64,
    step: f64,
    bar: f64,
}

impl Frame {
    fn new(chart: &Chart, top: f64) -> Self {
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
        let width = WIDTH - LEFT - RIGHT;
        let inset = if chart.stacked { 26.0 } else { 18.0 };
        let room = match last > first {
            true => (width - 2.0 * inset) * nearest / (last - first),
            false => width,
        };
        Self {
            top,
            bottom: top + HEIGHT - 40.0 - BOTTOM,
            first,
            last,
            inset,
            highest,
            step,
            bar: (room * 0.7).clamp(4.0, 48.0),
        }
    }

    fn x(&self, x: f64) -> f64 {
        let width = WIDTH - LEFT - RIGHT - 2.0 * self.inset;
        if self.last <= self.first {
            return LEFT + self.inset + width / 2.0;
        }
        LEFT + self.inset + width * (x - self.first) / (self.last - self.first)
    }

    fn y(&self, y: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * y / self.highest
    }

    fn axes(&self, chart: &Chart, svg: &mut String) {
        let right = WIDTH - RIGHT;
        let mut value = 0.0;
        while value <= self.highest + self.step / 2.0 {
            let up = self.y(value);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {up:.1}H{right}\"/><text class=\"soft\" \
                 x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                up + 4.0,
                short(value)
            );
            value += self.step;
        }
        let mut free_from = f64::NEG_INFINITY;
        for (x, name) in &chart.ticks {
            let at = self.x(*x);
            #[expect(clippy::cast_precision_loss, reason = "a few letters")]
            let half = 3.4 * name.chars().count() as f64 + 2.0;
            if at - half < free_from {
                continue;
            }
            free_from = at + half;
            let _ = write!(
                svg,
                "<text class=\"soft\" x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                self.bottom + 17.0,
                escape(name)
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text><text \
             transform=\"translate(14 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(LEFT, right),
            self.bottom + 38.0,
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
}
