//! `zoolock leader`: prints the leader of an election.

use serde::Serialize;
use zoolock::admin::{Entry, Role, Snapshot};

use crate::args::LeaderArgs;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::escape_unprintable;
use crate::plan::Context;
use crate::render::status::describe_contender;
use crate::render::text::{format_held, format_json, print};
use crate::service::connect::{connect_and_request, learn_server_clock};
use crate::verbs::missing_lock::MissingLock;

/// The output of `leader --json`.
#[derive(Serialize)]
struct LeaderReport<'a> {
    path: &'a str,
    leader: Option<&'a Entry>,
    /// Number of the candidates behind the leader.
    waiting: usize,
    clash: Option<&'a str>,
}

impl LeaderArgs {
    /// Prints the leader, and how long it has led. Fails without a leader.
    pub(crate) async fn run(self, context: &Context) -> Result<Exit, Failure> {
        let Context { global, reporter } = context;
        let name = self.name.as_str();
        let service = &context.connection_for(name)?;
        let (seen, missing) = connect_and_request(service, reporter, async |zoolock| {
            let seen = zoolock.admin().poller(name, 0).snapshot().await?.lock;
            let missing = match seen.holder {
                Some(_) => None,
                None => MissingLock::find(zoolock, name, &seen, service).await?,
            };
            learn_server_clock(zoolock).await;
            Ok((seen, missing))
        })
        .await?;
        let leader = find_leader(name, &seen)?;
        if global.json {
            let (path, waiting, clash) = (seen.path.as_str(), seen.waiting, seen.clash.as_deref());
            print(&format_json(&LeaderReport { path, leader, waiting, clash }))?;
        } else if let Some(clash) = &seen.clash {
            reporter
                .error(format_args!("{name} may have several leaders now: {}", escape_unprintable(clash)));
        }
        match (leader, missing) {
            (Some(_), _) if global.json => Ok(Exit::OK),
            (Some(leader), _) => print(&format_leader(leader)),
            (None, Some(missing)) => Err(missing.failure(name, service)),
            (None, None) => Err(Failure::new(Exit::NO_SUCH_LOCK, format!("{name} has no leader"))),
        }
    }
}

/// Returns the holder. Fails if several contenders can hold the lock together, or if a part of the queue cannot be read,
/// because another contender there may be the first.
fn find_leader<'a>(name: &str, seen: &'a Snapshot) -> Result<Option<&'a Entry>, Failure> {
    let is_shared = seen.permits.is_some()
        || seen.foreign_semaphore.is_some()
        || seen.holder.as_ref().is_some_and(|holder| holder.role != Role::Exclusive);
    if is_shared {
        let message =
            format!("{name} has no leader: several contenders can hold it together; see zoolock show {name}");
        return Err(Failure::usage(message));
    }
    if let Some(part) = seen.unread.first() {
        let message = format!(
            "{name}: the leader is not known: no permission to read {}; see zoolock doctor",
            escape_unprintable(part)
        );
        return Err(Failure::new(Exit::DENIED, message));
    }
    Ok(seen.holder.as_ref())
}

/// Formats the leader as one line.
fn format_leader(leader: &Entry) -> String {
    let mut line = describe_contender(leader);
    if let Some(token) = &leader.token {
        line.push_str(&format!(", token {token}"));
    }
    if let Some(held) = format_held(leader) {
        line.push_str(&format!(", leads for {held}"));
    }
    line + "\n"
}
