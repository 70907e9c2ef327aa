//! The timeline of a run: the faults, and the critical sections per second.

use std::fmt::Write as _;

use crate::clock::seconds;
use crate::verdict::RunVerdict;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 1180.0;
const TOP: f64 = 60.0;
/// The height of the curve of sections.
const CURVE: f64 = 140.0;
const ROW: f64 = 18.0;

/// Draws the timeline. The upper part shows critical sections per second and refused writes. The lower part has a row
/// for each kind of fault.
pub(crate) fn draw_timeline(verdict: &RunVerdict) -> String {
    let done: Vec<_> = verdict.faults.iter().filter(|fault| fault.is_done()).collect();
    let mut kinds: Vec<&str> = done.iter().map(|fault| fault.kind.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    let rows = TOP + CURVE + 34.0;
    let bottom = rows + ROW * kinds.len() as f64;
    let height = bottom + 56.0;
    let whole = seconds(verdict.ended - verdict.began).max(1.0);
    let x = |at: i64| LEFT + (seconds(at - verdict.began) / whole).clamp(0.0, 1.0) * (RIGHT - LEFT);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let sections: u64 = verdict.sections.values().sum();
    let title = format!(
        "{sections} critical sections, {} faults of {} kinds, {} violations",
        done.len(),
        kinds.len(),
        verdict.violations.len(),
    );
    draw_text(&mut svg, 16.0, 28.0, "start", "font-size=\"17\" fill=\"#0f172a\"", &title);
    let step =
        [10.0, 30.0, 60.0, 300.0, 600.0].into_iter().find(|step| whole / step <= 12.0).unwrap_or(1800.0);
    let mut at = 0.0;
    while at <= whole {
        let x = LEFT + at / whole * (RIGHT - LEFT);
        let _ = writeln!(svg, "<path d=\"M{x:.1} {TOP}V{bottom:.1}\" stroke=\"#e2e8f0\"/>");
        let label = if step < 60.0 { format!("{at} s") } else { format!("{} min", at / 60.0) };
        draw_text(&mut svg, x, bottom + 16.0, "middle", "font-size=\"11\" fill=\"#64748b\"", &label);
        at += step;
    }
    draw_curve(&mut svg, verdict, &x);
    for (row, kind) in kinds.iter().enumerate() {
        let y = rows + ROW * row as f64;
        draw_text(&mut svg, LEFT - 10.0, y + 12.0, "end", "fill=\"#475569\"", kind);
        for fault in done.iter().filter(|fault| fault.kind == *kind) {
            let (from, healed, settled) = (x(fault.struck), x(fault.healed), x(fault.settled));
            let _ = writeln!(
                svg,
                "<path d=\"M{from:.1} {:.1}H{settled:.1}\" stroke=\"#fdba74\" stroke-width=\"8\"/>\
                 <path d=\"M{from:.1} {:.1}H{:.1}\" stroke=\"#c2410c\" stroke-width=\"8\"/>",
                y + 8.0,
                y + 8.0,
                healed.max(from + 1.0),
            );
        }
    }
    let words = "curve: critical sections a second · red lines: writes that only the token refused · \
                 dark: broken · light: healed, until all waiters were served";
    draw_text(&mut svg, 16.0, bottom + 40.0, "start", "font-size=\"11\" fill=\"#64748b\"", words);
    svg + "</svg>\n"
}

fn draw_curve(svg: &mut String, verdict: &RunVerdict, x: &impl Fn(i64) -> f64) {
    let rates: Vec<(i64, f64)> = verdict
        .samples
        .windows(2)
        .map(|pair| {
            let time = seconds(pair[1].at - pair[0].at).max(0.001);
            (pair[1].at, pair[1].sections.saturating_sub(pair[0].sections) as f64 / time)
        })
        .collect();
    let top = rates.iter().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let y = |rate: f64| TOP + CURVE * (1.0 - rate / top);
    for at in &verdict.refused {
        let x = x(*at);
        let _ =
            writeln!(svg, "<path d=\"M{x:.1} {TOP}v{CURVE}\" stroke=\"#dc2626\" stroke-opacity=\"0.5\"/>");
    }
    let mut points = String::new();
    for (at, rate) in &rates {
        let _ = write!(points, "{:.1},{:.1} ", x(*at), y(*rate));
    }
    let _ = writeln!(
        svg,
        "<polyline points=\"{points}\" fill=\"none\" stroke=\"#0f766e\" stroke-width=\"1.2\"/>"
    );
    draw_text(
        svg,
        LEFT - 10.0,
        TOP + 6.0,
        "end",
        "font-size=\"11\" fill=\"#64748b\"",
        &format!("{top:.0}/s"),
    );
    draw_text(svg, LEFT - 10.0, TOP + CURVE, "end", "font-size=\"11\" fill=\"#64748b\"", "0");
}

fn draw_text(svg: &mut String, x: f64, y: f64, anchor: &str, style: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {style}>{words}</text>");
}
