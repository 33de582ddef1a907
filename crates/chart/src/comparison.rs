//! Pairs of bars: what is true, and what was measured with a known error.

use std::fmt::Write as _;

use crate::layout::{legend, title};
use crate::{STYLE, WIDTH, escape, nice_step, short};

/// A chart with two bars for each name, and a whisker on the second that shows its error.
#[derive(Debug, Clone, Default)]
pub struct ComparisonChart {
    /// The title.
    pub title: String,
    /// The label of the vertical axis.
    pub y_label: String,
    /// The names of the two bars in the legend, and of the whisker.
    pub legend: [String; 3],
    /// The name, the true value and the measured value of each pair.
    pub pairs: Vec<(String, f64, f64)>,
    /// Half the length of a whisker.
    pub error: f64,
}

const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 12.0;
/// The height of the frame.
const HEIGHT: f64 = 230.0;
/// The space below the frame.
const BELOW: f64 = 30.0;

impl ComparisonChart {
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
        let bottom = top + HEIGHT;
        let values = self.pairs.iter().flat_map(|(_, truth, measured)| {
            [*truth, measured + self.error, measured - self.error]
        });
        let (low, high) = values.fold((0.0_f64, 1e-9_f64), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let step = nice_step(high - low);
        let (low, high) = ((low / step).floor() * step, (high / step).ceil() * step);
        let y = |value: f64| bottom - HEIGHT * (value - low) / (high - low);
        let mut value = low;
        while value <= high + step / 2.0 {
            let up = y(value);
            let _ = write!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {up:.1}H{RIGHT}\"/><text class=\"soft\" \
                 x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                up + 4.0,
                short(value)
            );
            value += step;
        }
        #[expect(clippy::cast_precision_loss, reason = "a few hundred pairs")]
        let room = (RIGHT - LEFT) / self.pairs.len().max(1) as f64;
        let bar = (room * 0.34).min(46.0);
        let mut free_from = f64::NEG_INFINITY;
        for ((name, truth, measured), number) in self.pairs.iter().zip(0_u32..) {
            let middle = LEFT + room * (f64::from(number) + 0.5);
            for (value, class, what, from) in [
                (truth, "f0", &self.legend[0], middle - bar - 1.0),
                (measured, "f1", &self.legend[1], middle + 1.0),
            ] {
                let (top, bottom) = (y(value.max(0.0)), y(value.min(0.0)));
                let _ = write!(
                    svg,
                    "<rect class=\"{class}\" x=\"{from:.1}\" y=\"{top:.1}\" width=\"{bar:.1}\" \
                     height=\"{:.1}\"><title>{}, {}: {}</title></rect>",
                    bottom - top,
                    escape(name),
                    escape(what),
                    short(*value)
                );
            }
            let (at, cap) = (middle + 1.0 + bar / 2.0, (bar / 4.0).min(6.0));
            let _ = write!(
                svg,
                "<path class=\"whisker\" d=\"M{:.1} {:.1}h{:.1}M{at:.1} {:.1}V{:.1}M{:.1} \
                 {:.1}h{:.1}\"/>",
                at - cap,
                y(measured + self.error),
                2.0 * cap,
                y(measured + self.error),
                y(measured - self.error),
                at - cap,
                y(measured - self.error),
                2.0 * cap
            );
            #[expect(clippy::cast_precision_loss, reason = "a few letters")]
            let half = 3.4 * name.chars().count() as f64 + 2.0;
            if middle - half >= free_from {
                free_from = middle + half;
                let _ = write!(
                    svg,
                    "<text class=\"soft\" x=\"{middle:.1}\" y=\"{:.1}\" \
                     text-anchor=\"middle\">{}</text>",
                    bottom + 18.0,
                    escape(name)
                );
            }
        }
        let _ = write!(
            svg,
            "<text transform=\"translate(13 {:.1}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            f64::midpoint(top, bottom),
            escape(&self.y_label)
        );
        (svg, bottom + BELOW)
    }

    /// Draws the title and the legend. Returns the height at which they end.
    fn heading(&self, svg: &mut String) -> f64 {
        let top = title(&self.title, 12.0, svg);
        let samples = [
            "<rect class=\"f0\" x=\"5\" y=\"-10\" width=\"12\" height=\"12\"/>",
            "<rect class=\"f1\" x=\"5\" y=\"-10\" width=\"12\" height=\"12\"/>",
            "<path class=\"whisker\" d=\"M6-10h10m-5 0v12m-5 0h10\"/>",
        ];
        let entries: Vec<(String, String)> = self
            .legend
            .iter()
            .zip(samples)
            .map(|(name, sample)| (name.clone(), sample.to_owned()))
            .collect();
        legend(&entries, top, svg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_value_hangs_below_zero() {
        let chart = ComparisonChart {
            title: "a < b".to_owned(),
            pairs: vec![("x".to_owned(), 10.0, -5.0)],
            error: 1.0,
            ..ComparisonChart::default()
        };
        let svg = chart.to_file();
        assert!(svg.contains("a &lt; b") && svg.contains(": -5<"));
        // No bar has a negative height.
        assert!(!svg.contains("height=\"-"));
    }
}
