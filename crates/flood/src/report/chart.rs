//! Line charts as inline SVG.
//!
//! The frame is an SVG element without a `viewBox`: positions are percentages of it, so that texts
//! and strokes have the same size however wide the page is. The lines are in an SVG element inside
//! it that is stretched. Colours are CSS classes, for light, dark and print.

use std::fmt::Write as _;

use serde_json::json;

use super::axis::{Axis, Unit};
use super::html::{Escaped, script_json};
use super::number;
use super::series::{Keep, POINTS_MAX, Point, thin};

/// Width and height of the stretched drawing, in its own units.
const FRAME: f64 = 1000.0;

/// A line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: &'static str,
    /// The number of its colour in the style sheet: 1 to 5.
    pub colour: u8,
    /// In the order of time.
    points: Vec<Point>,
    keep: Keep,
}

impl Line {
    /// Returns a line that retains its peaks when it is thinned.
    pub fn new(name: &'static str, colour: u8, points: Vec<Point>) -> Line {
        Line { name, colour, points, keep: Keep::Max }
    }

    /// Returns a line that retains its dips as well as its peaks when it is thinned.
    pub fn with_dips(name: &'static str, colour: u8, points: Vec<Point>) -> Line {
        Line { name, colour, points, keep: Keep::Extremes }
    }

    /// Returns this line if any of its values is above zero.
    pub fn if_any(self) -> Option<Line> {
        let any = self.values().any(|value| value > 0.0);
        any.then_some(self)
    }

    /// Returns the part of the line that a time axis up to `seconds` shows.
    fn until(&self, seconds: f64) -> Line {
        let shown = self.points.iter().filter(|point| point.0 <= seconds).copied().collect();
        Line { points: thin(shown, POINTS_MAX, self.keep), ..*self }
    }

    fn values(&self) -> impl Iterator<Item = f64> {
        self.points.iter().filter_map(|point| point.1)
    }
}

/// A chart of lines over the time of the run.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Distinguishes the chart's elements from those of other charts on the page.
    pub id: &'static str,
    /// The heading.
    pub title: &'static str,
    /// A description of the axes.
    pub axes: &'static str,
    /// The unit of the value axis.
    pub unit: Unit,
    /// Lines without any value are not drawn.
    pub lines: Vec<Line>,
    /// The end of the time axis if that is before the end of the run. Later points are not shown.
    pub end_seconds: Option<f64>,
    /// A note below the chart, or nothing.
    pub note: &'static str,
}

impl Chart {
    /// Returns the chart as an HTML `<figure>`, for a run of `seconds`.
    pub fn html(&self, seconds: f64) -> String {
        let seconds = self.end_seconds.unwrap_or(seconds);
        let lines: Vec<Line> = self
            .lines
            .iter()
            .map(|line| line.until(seconds))
            .filter(|line| line.values().next().is_some())
            .collect();
        let mut out = String::new();
        // Writing to a String can't fail, here and in the rest of this file.
        let _ = write!(
            out,
            "<figure class=\"chart\" id=\"{}\"><figcaption><h3>{}</h3><p>{}</p></figcaption>",
            self.id,
            Escaped(self.title),
            Escaped(self.axes)
        );
        if lines.is_empty() {
            out.push_str("<p class=\"nothing\">Nothing recorded</p></figure>\n");
            return out;
        }
        self.legend(&mut out, &lines);
        self.plot(&mut out, &lines, seconds);
        if !self.note.is_empty() {
            let _ = write!(out, "<p class=\"note\">{}</p>", Escaped(self.note));
        }
        out.push_str("</figure>\n");
        out
    }

    fn legend(&self, out: &mut String, lines: &[Line]) {
        out.push_str("<ul class=\"legend\">");
        for line in lines {
            let peak = line.values().fold(0.0, f64::max);
            let _ = write!(
                out,
                "<li><i class=\"c{}\"></i>{} <span>peak {}</span></li>",
                line.colour,
                Escaped(line.name),
                Escaped(&self.unit.text(peak))
            );
        }
        out.push_str("</ul>");
    }

    fn plot(&self, out: &mut String, lines: &[Line], seconds: f64) {
        let across = Axis::of_time(seconds);
        let up = Axis::of_values(lines.iter().flat_map(|line| line.values()), self.unit);
        let (id, title) = (self.id, Escaped(self.title));
        let _ = write!(
            out,
            "<div class=\"plot\"><svg class=\"frame\" role=\"img\" aria-label=\"{title}\" \
             aria-describedby=\"{id}-desc\"><desc id=\"{id}-desc\">{}</desc>",
            Escaped(&self.description(lines, &across))
        );
        ticks(out, &across, &up);
        let mut dots = String::new();
        out.push_str(
            "<svg class=\"lines\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" \
             width=\"100%\" height=\"100%\">",
        );
        for line in lines {
            let drawing = Drawing::of(&line.points, &across, &up);
            if lines.len() == 1 && !drawing.area.is_empty() {
                let (colour, area) = (line.colour, &drawing.area);
                let _ = write!(out, "<path class=\"area c{colour}\" d=\"{area}\"/>");
            }
            if !drawing.path.is_empty() {
                let _ = write!(out, "<path class=\"c{}\" d=\"{}\"/>", line.colour, drawing.path);
            }
            for (x, y) in drawing.dots {
                let (x, y) = (x * 100.0 / FRAME, y * 100.0 / FRAME);
                let _ = write!(
                    dots,
                    "<circle class=\"c{}\" cx=\"{x:.2}%\" cy=\"{y:.2}%\" r=\"2.2\"/>",
                    line.colour
                );
            }
        }
        let _ = write!(
            out,
            "</svg>{dots}</svg><script type=\"application/json\">{}</script></div>",
            script_json(&self.hover(lines, &across))
        );
    }

    /// Describes the chart in words for people who can't see it.
    fn description(&self, lines: &[Line], across: &Axis) -> String {
        let mut text = format!("Line chart over {}.", number::run_time(across.high()));
        for line in lines {
            let least = line.values().fold(f64::INFINITY, f64::min);
            let most = line.values().fold(0.0, f64::max);
            let last = line.values().last().unwrap_or(0.0);
            let _ = write!(
                text,
                " {}: lowest {}, highest {}, last {}.",
                line.name,
                self.unit.text(least),
                self.unit.text(most),
                self.unit.text(last)
            );
        }
        text
    }

    /// Returns the data that the page's script shows under the pointer.
    fn hover(&self, lines: &[Line], across: &Axis) -> serde_json::Value {
        let tenths = |at: f64| (at * 10.0).round() / 10.0;
        let point = |(at, value): &Point| value.map(|v| json!([tenths(*at), self.unit.text(v)]));
        let lines: Vec<_> = lines
            .iter()
            .map(|line| {
                let points: Vec<_> = line.points.iter().filter_map(point).collect();
                json!({ "name": line.name, "colour": line.colour, "points": points })
            })
            .collect();
        json!({ "seconds": across.high(), "lines": lines })
    }
}

fn ticks(out: &mut String, across: &Axis, up: &Axis) {
    out.push_str("<g class=\"grid\">");
    for tick in &up.ticks {
        let y = 100.0 - tick.position * 100.0;
        let _ = write!(out, "<line x2=\"100%\" y1=\"{y:.2}%\" y2=\"{y:.2}%\"/>");
    }
    out.push_str("</g><g class=\"up\">");
    for tick in &up.ticks {
        let y = 100.0 - tick.position * 100.0;
        let _ = write!(
            out,
            "<text x=\"-8\" y=\"{y:.2}%\" dy=\"0.32em\">{}</text>",
            Escaped(&tick.label)
        );
    }
    out.push_str("</g><g class=\"across\">");
    for tick in &across.ticks {
        let x = tick.position * 100.0;
        let _ = write!(
            out,
            "<text x=\"{x:.2}%\" y=\"100%\" dy=\"1.7em\">{}</text>",
            Escaped(&tick.label)
        );
    }
    out.push_str("</g>");
}

/// A line in the units of the frame, with y downwards.
#[derive(Debug, Default)]
struct Drawing {
    /// The path through all stretches of two or more points.
    path: String,
    /// The stretches of `path`, each closed along the bottom of the frame.
    area: String,
    /// Single points between two gaps, which a path would not show.
    dots: Vec<(f64, f64)>,
}

impl Drawing {
    fn of(points: &[Point], across: &Axis, up: &Axis) -> Drawing {
        let mut drawing = Drawing::default();
        for stretch in points.split(|point| point.1.is_none()) {
            let placed: Vec<(f64, f64)> = stretch
                .iter()
                .filter_map(|(at, value)| Some((*at, (*value)?)))
                .map(|(at, value)| {
                    (across.position(at) * FRAME, (1.0 - up.position(value)) * FRAME)
                })
                .collect();
            drawing.stretch(&placed);
        }
        drawing
    }

    fn stretch(&mut self, placed: &[(f64, f64)]) {
        let (Some(first), Some(last)) = (placed.first(), placed.last()) else { return };
        if placed.len() == 1 {
            self.dots.push(*first);
            return;
        }
        let from = self.path.len();
        for (index, (x, y)) in placed.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(self.path, "{command}{x:.1} {y:.1}");
        }
        let _ = write!(self.area, "{}", &self.path[from..]);
        let _ = write!(self.area, "L{:.1} {FRAME:.1}L{:.1} {FRAME:.1}Z", last.0, first.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chart(unit: Unit, lines: Vec<Line>) -> Chart {
        Chart { id: "test", title: "Title", axes: "axes", unit, lines, end_seconds: None, note: "" }
    }

    fn coordinates(path: &str) -> Vec<f64> {
        let numbers = path.split(['M', 'L', 'Z', ' ']).filter(|text| !text.is_empty());
        numbers.map(|text| text.parse().unwrap()).collect()
    }

    fn any_value() -> impl Strategy<Value = Option<f64>> {
        prop_oneof![
            Just(None),
            (0.0..1e7_f64).prop_map(Some),
            Just(Some(u64::MAX as f64)),
            Just(Some(f64::MAX)),
            Just(Some(0.0)),
        ]
    }

    proptest! {
        #[test]
        fn lines_stay_in_the_frame(
            values in proptest::collection::vec((0.0..8_000.0_f64, any_value()), 0..200),
            seconds in 0.0..8_000.0_f64,
            unit in prop::sample::select(vec![Unit::Count, Unit::Bytes, Unit::Micros, Unit::Cores]),
        ) {
            let mut points: Vec<Point> = values;
            points.sort_by(|one, next| one.0.total_cmp(&next.0));
            let across = Axis::of_time(seconds);
            let up = Axis::of_values(points.iter().filter_map(|point| point.1), unit);
            let drawing = Drawing::of(&points, &across, &up);
            let mut all = coordinates(&drawing.path);
            all.extend(coordinates(&drawing.area));
            all.extend(drawing.dots.iter().flat_map(|(x, y)| [*x, *y]));
            prop_assert!(all.iter().all(|position| (0.0..=FRAME).contains(position)), "{all:?}");
            let html = chart(unit, vec![Line::new("line", 1, points)]).html(seconds);
            prop_assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        }
    }

    #[test]
    fn lines_stop_at_gaps() {
        let points = [(0.0, Some(1.0)), (1.0, Some(2.0)), (2.0, None), (3.0, Some(1.0))];
        let up = Axis::of_values([2.0].into_iter(), Unit::Count);
        let drawing = Drawing::of(&points, &Axis::of_time(4.0), &up);
        assert_eq!(drawing.path, "M0.0 500.0L250.0 0.0");
        assert_eq!(drawing.area, "M0.0 500.0L250.0 0.0L250.0 1000.0L0.0 1000.0Z");
        assert_eq!(drawing.dots, [(750.0, 500.0)]);
    }

    #[test]
    fn a_chart_without_values_says_so() {
        let html = chart(Unit::Count, vec![Line::new("line", 1, vec![(1.0, None)])]).html(1.0);
        assert!(html.contains("Nothing recorded") && !html.contains("<svg"));
        assert!(chart(Unit::Micros, Vec::new()).html(0.0).contains("Nothing recorded"));
    }

    #[test]
    fn a_chart_is_described_in_words() {
        let points = vec![(1.0, Some(1_500.0)), (2.0, Some(900.0))];
        let html = chart(Unit::Micros, vec![Line::new("p99", 1, points)]).html(2.0);
        assert!(html.contains("role=\"img\" aria-label=\"Title\""));
        assert!(html.contains("p99: lowest 900 µs, highest 1.5 ms, last 900 µs."));
    }
}
