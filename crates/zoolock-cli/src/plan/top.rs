//! The plan of `top`.

use std::time::Duration;

use super::refuse_json;
use super::service::{ConnectionSettings, check_prefix, plan_connection};
use crate::args::{Global, TopArgs};
use crate::base::exit::Failure;

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
    let TopArgs { prefix, interval, read_only } = asked;
    refuse_json(global, "top")?;
    let service =
        ConnectionSettings { command: Some("zoolock top".to_owned()), ..plan_connection(global, None)? };
    check_prefix(prefix.as_deref(), &service.root)?;
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
