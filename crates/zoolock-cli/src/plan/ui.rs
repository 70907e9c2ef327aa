//! Checks the flags of `zoolock ui`.

use std::net::SocketAddr;

use crate::args::{Global, UiArgs};
use crate::base::exit::Failure;
use crate::plan::{ConnectionSettings, Plan, plan_connection, refuse_json};

/// Checked settings of `zoolock ui`.
#[derive(Debug)]
pub(crate) struct UiPlan {
    pub(crate) service: ConnectionSettings,
    pub(crate) listen: SocketAddr,
    /// Accepted host names, in lower case.
    pub(crate) hosts: Vec<String>,
}

/// Checks the flags.
pub(crate) fn plan(global: &Global, args: UiArgs) -> Result<Plan, Failure> {
    refuse_json(global, "ui")?;
    let service = plan_connection(global, None)?;
    Ok(Plan::Ui(Box::new(UiPlan { service, listen: args.listen, hosts: args.host })))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::Args;

    fn planned(line: &[&str]) -> Result<UiPlan, String> {
        let args = Args::try_parse_from(["zoolock", "ui"].iter().chain(line)).map_err(|e| e.to_string())?;
        match Plan::new(args).map_err(|failure| failure.to_string())? {
            Plan::Ui(plan) => Ok(*plan),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn pages_are_on_loopback_by_default() {
        assert!(planned(&[]).expect("the plan is valid").listen.ip().is_loopback());
    }

    #[test]
    fn host_must_be_a_name_without_port() {
        for bad in ["", "a:80", "http://a", "a/b", "a b", "[::1]"] {
            assert!(planned(&["--host", bad]).expect_err("not a host name").contains("--host"), "{bad}");
        }
        assert_eq!(planned(&["--host", "Locks.Example"]).expect("a host name").hosts, ["locks.example"]);
    }
}
