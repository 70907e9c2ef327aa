//! Checks of the files in `packaging`: systemd units, a Grafana dashboard, Prometheus alerts.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use zoolock_tests::ZoolockBinary;
use zoolock_tests::skip::skip;

const DOCS: &str = include_str!("../../../../docs/METRICS.md");
/// Width of Grafana's grid.
const COLUMNS: u64 = 24;

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(packaging(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana/zoolock.json")).expect("the dashboard is JSON")
}

/// Returns the metrics in docs/METRICS.md, and `up`, which Prometheus itself records. For a
/// histogram, adds the series that Prometheus derives from it.
fn documented() -> BTreeSet<String> {
    let mut names = BTreeSet::from(["up".to_owned()]);
    for row in DOCS.lines().filter(|line| line.starts_with("| `")) {
        let mut cells = row.trim_matches('|').split('|').map(str::trim);
        let name = cells.next().expect("a row has cells").trim_matches('`').to_owned();
        if cells.next() == Some("histogram") {
            names.extend(["_bucket", "_sum", "_count"].map(|part| format!("{name}{part}")));
        }
        names.insert(name);
    }
    names
}

/// Returns the metrics in an expression: words that are no function, keyword, label or duration.
fn metrics_in(expression: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 9] =
        ["and", "or", "unless", "bool", "offset", "inf", "nan", "group_left", "group_right"];
    const BEFORE_LABELS: [&str; 4] = ["by", "without", "on", "ignoring"];
    // String literals are removed first, because they can contain brackets.
    let bare: String = expression.split(['"', '\'']).step_by(2).collect();
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = BTreeSet::new();
    let mut rest = bare.as_str();
    while let Some(first) = rest.chars().next() {
        let closed = |text: &str, bracket: char| text.find(bracket).expect("every bracket is closed") + 1;
        let length = match first {
            '{' => closed(rest, '}'),
            '[' => closed(rest, ']'),
            // A number with its unit.
            '0'..='9' => rest.find(|c: char| !is_part(c) && c != '.').unwrap_or(rest.len()),
            _ if is_part(first) => {
                let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
                let (word, after) = (&rest[..length], rest[length..].trim_start());
                let aggregates = BEFORE_LABELS.iter().any(|label| after.starts_with(&format!("{label} (")));
                if BEFORE_LABELS.contains(&word) && after.starts_with('(') {
                    closed(rest, ')')
                } else {
                    if !after.starts_with('(') && !aggregates && !KEYWORDS.contains(&word) {
                        names.insert(word.to_owned());
                    }
                    length
                }
            }
            _ => first.len_utf8(),
        };
        rest = &rest[length..];
    }
    names
}

/// Returns every expression of a dashboard, including those of its variables.
fn expressions(dashboard: &Value) -> Vec<String> {
    let panels = dashboard["panels"].as_array().expect("panels is a list");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let mut all: Vec<String> = targets
        .map(|target| target["expr"].as_str().expect("a target has an expression").to_owned())
        .collect();
    for variable in dashboard["templating"]["list"].as_array().expect("list is a list") {
        // The query of a variable has the form label_values(METRIC, LABEL).
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        let of = query.strip_prefix("label_values(").and_then(|query| query.rsplit_once(", "));
        all.push(of.unwrap_or_else(|| panic!("{query} has another form")).0.to_owned());
    }
    all
}

#[test]
fn metric_names_are_parsed_from_expressions() {
    let of = |expression: &str| metrics_in(expression).into_iter().collect::<Vec<_>>();
    assert_eq!(
        of("sum by (job, le) (rate(a_total{b=\"c}\"}[5m])) > 0.05 * d and e offset 5m"),
        ["a_total", "d", "e"]
    );
    assert_eq!(of("histogram_quantile(0.99, x_bucket)"), ["x_bucket"]);
    assert_eq!(of("up{job=\"zoolock\"} == 0"), ["up"]);
    assert_eq!(of("max by (a, b) (zoolock_x) > 1e3"), ["zoolock_x"]);
}

#[test]
fn dashboard_and_alerts_use_only_documented_metrics() {
    let documented = documented();
    let alerts = read("prometheus/alerts.yml");
    let rules = alerts.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).map(str::to_owned);
    let rules: Vec<String> = rules.collect();
    assert_eq!(rules.len(), alerts.matches("- alert: ").count());
    let all = expressions(&dashboard()).into_iter().chain(rules);
    let mut used = BTreeSet::new();
    for expression in all {
        let names = metrics_in(&expression);
        assert!(!names.is_empty(), "{expression} has no metric");
        for name in names {
            assert!(documented.contains(&name), "{name} of {expression} is not in docs/METRICS.md");
            used.insert(name);
        }
    }
    assert!(used.len() > 20, "{used:?}");
}

#[test]
fn dashboard_shows_every_library_metric() {
    let shown: BTreeSet<String> =
        expressions(&dashboard()).iter().flat_map(|expression| metrics_in(expression)).collect();
    let section = DOCS
        .split("\n## ")
        .find(|section| section.starts_with("The library"))
        .expect("docs/METRICS.md has the section");
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let name = row.split('`').nth(1).expect("a row starts with a name");
        let is_shown = shown.iter().any(|metric| {
            metric == name || metric.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'))
        });
        assert!(is_shown, "{name} is on no panel");
    }
}

/// Checks the rules of Grafana's dashboard model that apply here. If a panel breaks such a rule,
/// Grafana hides the panel, or shows it empty.
#[test]
fn grafana_can_import_the_dashboard() {
    let dashboard = dashboard();
    assert!(dashboard["id"].is_null(), "Grafana assigns the id");
    assert_eq!(dashboard["uid"], "zoolock");
    assert!(dashboard["schemaVersion"].as_u64() >= Some(30));
    for text in ["title", "refresh"] {
        assert!(dashboard[text].as_str().is_some_and(|text| !text.is_empty()), "{text}");
    }
    for time in ["from", "to"] {
        assert!(dashboard["time"][time].as_str().is_some_and(|time| time.starts_with("now")), "{time}");
    }
    let variables = dashboard["templating"]["list"].as_array().expect("list is a list");
    let variable = |name: &str| variables.iter().find(|variable| variable["name"] == name);
    assert_eq!(variable("datasource").map(|variable| &variable["type"]), Some(&"datasource".into()));
    let required = dashboard["__requires"].as_array().expect("__requires is a list");
    let is_required = |id: &str| required.iter().any(|item| item["type"] == "panel" && item["id"] == id);
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in dashboard["panels"].as_array().expect("panels is a list") {
        let title = panel["title"].as_str().filter(|title| !title.is_empty()).expect("a panel has a title");
        assert!(
            ids.insert(panel["id"].as_u64().expect("the id is a number")),
            "{title}: the id is not unique"
        );
        let side =
            |name: &str| panel["gridPos"][name].as_u64().unwrap_or_else(|| panic!("{title}: no {name}"));
        let (x, y, w, h) = (side("x"), side("y"), side("w"), side("h"));
        assert!(w > 0 && h > 0 && x + w <= COLUMNS, "{title}: outside of the grid");
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(cell), "{title}: overlaps another panel");
        }
        if panel["type"] == "row" {
            assert!(panel["panels"].as_array().is_some_and(Vec::is_empty), "{title}");
            continue;
        }
        assert!(
            is_required(panel["type"].as_str().expect("a panel has a type")),
            "{title}: {} is not required",
            panel["type"]
        );
        assert!(panel["fieldConfig"]["defaults"]["unit"].is_string(), "{title}: no unit");
        let targets = panel["targets"].as_array().filter(|targets| !targets.is_empty());
        let mut ref_ids = BTreeSet::new();
        for target in targets.unwrap_or_else(|| panic!("{title}: no targets")) {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            assert!(
                ref_ids.insert(target["refId"].as_str().expect("a target has a refId")),
                "{title}: a refId twice"
            );
            // Every variable in the expression is defined.
            let expression = target["expr"].as_str().expect("a target has an expression");
            for used in expression.split('$').skip(1) {
                let name: String =
                    used.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                assert!(name.starts_with("__") || variable(&name).is_some(), "{title}: no variable ${name}");
            }
        }
    }
}

/// Runs a command. Returns whether it succeeded, and its output.
///
/// If the program is not installed, reports `test` as skipped and returns `None`.
fn run(test: &str, package: &str, command: &mut Command) -> Option<(bool, String)> {
    match command.output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skip(test, &format!("no {:?}, install {package}", command.get_program()));
            None
        }
        Err(error) => panic!("{command:?}: {error}"),
    }
}

fn promtool(test: &str, line: &[&str]) -> Option<(bool, String)> {
    run(test, "prometheus", Command::new("promtool").args(line).current_dir(packaging("prometheus")))
}

#[test]
fn prometheus_accepts_the_alerts() {
    let Some((accepted, output)) =
        promtool("prometheus_accepts_the_alerts", &["check", "rules", "alerts.yml"])
    else {
        return;
    };
    assert!(accepted, "{output}");
}

#[test]
fn every_alert_passes_its_rule_test() {
    let test = "every_alert_passes_its_rule_test";
    let (alerts, tests) = (read("prometheus/alerts.yml"), read("prometheus/alerts-test.yml"));
    for alert in alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {alert}\n")), "{alert} has no rule test");
    }
    let Some((passed, output)) = promtool(test, &["test", "rules", "alerts-test.yml"]) else { return };
    assert!(passed, "{output}");
}

const UNITS: [&str; 4] = ["zoolock.service", "nightly.service", "nightly.timer", "mailer.service"];

/// Maximum exposure of the server's unit in `systemd-analyze security`, from 0 (fully confined) to 100.
const MAX_EXPOSURE: &str = "20";

#[test]
fn systemd_accepts_the_units() {
    let test = "systemd_accepts_the_units";
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let program = zoolock.path().to_str().expect("path in UTF-8");
    let directory = tempfile::tempdir().expect("temporary directory created");
    let units = UNITS.map(|name| {
        // systemd-analyze requires that the program exists.
        let text = read(&format!("systemd/{name}")).replace("/usr/bin/zoolock", program);
        assert!(name.ends_with(".timer") || text.contains(&format!("ExecStart={program} ")), "{text}");
        let unit = directory.path().join(name);
        std::fs::write(&unit, text).expect("unit written");
        unit
    });
    let analyze = |line: &[&str], units: &[PathBuf]| {
        run(test, "systemd", Command::new("systemd-analyze").args(line).args(units))
    };
    let Some((accepted, output)) = analyze(&["verify", "--man=no"], &units) else { return };
    // The output can also be about other units of this machine.
    let complaint = output.lines().find(|line| UNITS.iter().any(|unit| line.contains(unit)));
    assert!(accepted && complaint.is_none(), "{output}");

    let threshold = format!("--threshold={MAX_EXPOSURE}");
    let (confined, output) = analyze(&["security", "--offline=true", "--no-pager", &threshold], &units[..1])
        .expect("systemd is installed");
    assert!(confined, "{output}");

    let text = std::fs::read_to_string(&units[0]).expect("unit written before");
    std::fs::write(&units[0], text.replace("ProtectSystem=", "ProtecSystem=")).expect("unit written");
    let (_, output) = analyze(&["verify", "--man=no"], &units[..1]).expect("systemd is installed");
    assert!(output.contains("ProtecSystem"), "an unknown setting is not reported: {output}");
}
