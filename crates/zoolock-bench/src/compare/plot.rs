//! Plots. A few lines, dots and words on one axis: drawn here, since a plotting crate that knows no font could not
//! place the names either.

use std::fmt::Write as _;

use super::client::Client;
use super::results::{Entry, Measured};
use super::target::Verdict;
use crate::stats::short;

const WIDTH: f64 = 960.0;
/// Where the axis begins and ends; names are left of it, figures right.
const LEFT: f64 = 260.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 76.0;
const ROW: f64 = 26.0;
const LINE: f64 = 18.0;
const OURS: &str = "#c2410c";
const THEIRS: &str = "#475569";
const GOOD: &str = "#15803d";
const BAD: &str = "#b91c1c";

/// One plot: for each that did it the median, the p99, and how far the rounds lie apart, on a logarithmic axis; below,
/// what it must show.
pub(super) fn svg(work: &Measured, verdicts: &[&Verdict]) -> String {
    let bottom = TOP + ROW * work.entries.len() as f64;
    let height = bottom + 56.0 + LINE * verdicts.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = if work.cut_short { format!("{} (cut short)", work.title) } else { work.title.clone() };
    text(&mut svg, 16.0, 28.0, "start", "font-size=\"17\" fill=\"#0f172a\"", &title);
    let axis = Axis::around(&work.entries);
    for tick in axis.ticks() {
        let x = axis.x(tick);
        let _ = writeln!(svg, "<path d=\"M{x:.1} {:.1}V{bottom:.1}\" stroke=\"#e2e8f0\"/>", TOP - 8.0);
        text(&mut svg, x, TOP - 14.0, "middle", "font-size=\"11\" fill=\"#64748b\"", &time(tick));
    }
    for (at, entry) in work.entries.iter().enumerate() {
        row(&mut svg, &axis, entry, TOP + ROW * (at as f64 + 0.5));
    }
    legend(&mut svg, bottom + 34.0);
    for (at, verdict) in verdicts.iter().enumerate() {
        judged(&mut svg, verdict, bottom + 34.0 + LINE * (at as f64 + 1.0));
    }
    svg + "</svg>\n"
}

fn row(svg: &mut String, axis: &Axis, entry: &Entry, y: f64) {
    let ours = entry.who.client == Client::Zoolock;
    let colour = if ours { OURS } else { THEIRS };
    let weight = if ours { " font-weight=\"bold\"" } else { "" };
    let style = format!("fill=\"{colour}\"{weight}");
    text(svg, LEFT - 14.0, y + 4.5, "end", &style, &entry.who.name());
    let Some(median) = entry.median() else {
        let why = entry.failed.as_deref().unwrap_or("not measured");
        let why: String = why.chars().take(86).collect();
        return text(svg, LEFT, y + 4.5, "start", "font-size=\"11\" fill=\"#94a3b8\"", &why);
    };
    let (least, most) = entry.spread();
    let x = axis.x(median);
    if let Some(p99) = entry.p99() {
        let (far, top) = (axis.x(p99), y - 5.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {y:.1}H{far:.1}\" stroke=\"{colour}\" stroke-width=\"1\" stroke-dasharray=\"2 3\"/>\
             <path d=\"M{far:.1} {top:.1}v10\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        );
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1} {y:.1}H{:.1}\" stroke=\"{colour}\" stroke-width=\"7\" stroke-opacity=\"0.35\" stroke-linecap=\"round\"/>\
         <circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\" fill=\"{colour}\"/>",
        axis.x(least),
        axis.x(most),
    );
    let p99 = entry.p99().map(|p99| format!(", p99 {}", time(p99))).unwrap_or_default();
    let figures = time(median) + &p99;
    text(svg, RIGHT + 24.0, y + 4.5, "start", &style, &figures);
}

fn legend(svg: &mut String, y: f64) {
    let words = "dot: median of the rounds · band: least to most of the rounds · bar: p99 · less is better";
    text(svg, 16.0, y, "start", "font-size=\"11\" fill=\"#64748b\"", words);
}

fn judged(svg: &mut String, verdict: &Verdict, y: f64) {
    let (colour, word) = match verdict.reached {
        Some(true) => (GOOD, "reached: "),
        Some(false) => (BAD, "missed: "),
        None => ("#64748b", ""),
    };
    let what = if verdict.what.is_empty() { String::new() } else { format!("{}: ", verdict.what) };
    let words = format!("{word}{what}{}, is {}", verdict.bound, verdict.found);
    text(svg, 16.0, y, "start", &format!("font-size=\"12\" fill=\"{colour}\""), &words);
}

/// A logarithmic one, in microseconds.
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn around(entries: &[Entry]) -> Self {
        let figures =
            entries.iter().filter_map(|entry| Some((entry.spread(), entry.p99().unwrap_or(entry.median()?))));
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for ((least, most), p99) in figures {
            low = low.min(least).min(p99);
            high = high.max(most).max(p99);
        }
        if !low.is_finite() || low <= 0.0 {
            (low, high) = (1.0, 1000.0);
        }
        Self { low: low / 1.15, high: high.max(low * 2.0) * 1.15 }
    }

    fn x(&self, figure: f64) -> f64 {
        let part = (figure.max(self.low).ln() - self.low.ln()) / (self.high.ln() - self.low.ln());
        LEFT + part * (RIGHT - LEFT)
    }

    /// 1, 2 and 5 of each power of ten; fewer where they would touch.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = if decades > 4.0 {
            &[1.0]
        } else if decades > 2.5 {
            &[1.0, 3.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let powers = (-3..10).map(|power| 10f64.powi(power));
        let ticks = powers.flat_map(|power| steps.iter().map(move |step| step * power));
        ticks.filter(|tick| (self.low..=self.high).contains(tick)).collect()
    }
}

fn time(micros: f64) -> String {
    let (figure, unit) = match micros {
        micros if micros >= 1e6 => (micros / 1e6, "s"),
        micros if micros >= 1e4 => (micros / 1e3, "ms"),
        micros => (micros, "µs"),
    };
    let figure = short(figure);
    let figure =
        if figure.contains('.') { figure.trim_end_matches('0').trim_end_matches('.') } else { &figure };
    format!("{figure} {unit}")
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, style: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{words}</text>");
}
