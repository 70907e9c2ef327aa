//! The plan of `top`.

use std::time::Duration;

use super::refuse_json;
use super::service::{ConnectionSettings, check_prefix, plan_connection};
use crate::args::{Global, TopArgs};
use crate::base::duration::parse_duration;
use crate::base::exit::Failure;

/// Minimum interval. A shorter interval shows nothing more, and loads the server.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum interval.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Checked arguments of `zoolock top`.
#[derive(Debug, Clone)]
pub(crate) struct TopPlan {
    pub(crate) service: ConnectionSettings,
    pub(crate) prefix: Option<String>,
    pub(crate) interval: Duration,
    pub(crate) read_only: bool,
    /// Set if `-v` is given. The logs go to standard error.
    pub(crate) logs: bool,
}

pub(super) fn plan_top(global: &Global, asked: TopArgs) -> Result<TopPlan, Failure> {
    let TopArgs { prefix, interval: text, read_only } = asked;
    refuse_json(global, "top")?;
    let service =
        ConnectionSettings { command: Some("zoolock top".to_owned()), ..plan_connection(global, None)? };
    check_prefix(prefix.as_deref(), &service.root)?;
    let interval = parse_duration("--interval", &text)?;
    if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
        return Err(Failure::usage(format!("--interval {text}: must be between 100ms and 1h")));
    }
    Ok(TopPlan { service, prefix, interval, read_only, logs: global.verbose > 0 })
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::test_plans::{plan, refused};

    #[test]
    fn bad_top_intervals_are_refused() {
        for text in ["0s", "99ms", "2h", "soon"] {
            let message = refused(&["top", "--interval", text]);
            assert!(message.contains("--interval"), "{message}");
        }
        refused(&["top", "a//b"]);
        refused(&["top", "--json"]);
        let Ok(Plan::Top(top)) = plan(&["top", "db/", "--interval", "100ms"]) else {
            panic!("expected a plan of top")
        };
        assert_eq!((top.prefix.as_deref(), top.read_only), (Some("db/"), false));
    }
}
