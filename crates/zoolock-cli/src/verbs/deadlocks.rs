//! `zoolock deadlocks`: lists deadlocks, and the commands that end each one.

use std::collections::BTreeMap;

use crate::args::DeadlocksArgs;
use crate::base::exit::{Exit, Failure};
use crate::plan::{ConnectionSettings, Context};
use crate::render::deadlock::{SESSIONS, format_deadlock, is_certain};
use crate::render::text::{TextStyle, format_json, print};
use crate::service::connect::{connect_and_request, learn_server_clock};
use crate::verbs::missing_lock::MissingLock;

impl DeadlocksArgs {
    /// Prints the deadlocks among the locks at and below `prefix`.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let prefix = self.prefix.as_deref();
        let service = &context.connection_below(prefix)?;
        let (deadlocks, missing) = connect_and_request(service, reporter, async |zoolock| {
            let deadlocks = zoolock.admin().deadlocks(prefix).await?;
            let missing = match deadlocks.is_empty() {
                true => MissingLock::find_root(zoolock, prefix, service).await?,
                false => {
                    learn_server_clock(zoolock).await;
                    None
                }
            };
            Ok((deadlocks, missing))
        })
        .await?;
        let found = if deadlocks.is_empty() { Exit::OK } else { Exit::DEADLOCK };
        if global.json {
            print(&format_json(&BTreeMap::from([("deadlocks", &deadlocks)])))?;
        }
        if let Some(missing) = missing {
            return Err(missing.failure("", service));
        }
        if global.json {
            return Ok(found);
        }
        if deadlocks.is_empty() {
            let ConnectionSettings { endpoint, root, .. } = service;
            let part = prefix.map_or_else(String::new, |prefix| format!(" at or below {prefix}"));
            let (address, hint) = (endpoint.address(), endpoint.ensemble_hint());
            reporter.note(format_args!(
                "no deadlocks among the contenders that can be read{part} at {address} below {root}{hint}"
            ));
            return Ok(Exit::OK);
        }
        let style = TextStyle::of_stdout(global.color);
        let texts: Vec<_> =
            deadlocks.iter().map(|deadlock| format_deadlock(deadlock, service, &style)).collect();
        let printed = print(&texts.join("\n"));
        if !deadlocks.iter().all(is_certain) {
            reporter.note(format_args!("{SESSIONS}, so a possible deadlock may not be one"));
        }
        printed.map(|_| found)
    }
}
