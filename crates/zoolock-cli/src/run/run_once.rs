//! Runs the command once under a lock.

use std::ffi::OsString;

use zoolock::Held;
use zoolock::internals::Slots;

use crate::args::IfKilled;
use crate::base::clock;
use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::base::signals::Signals;
use crate::base::terminal::{self, Terminal};
use crate::local::HolderFile;
use crate::plan::Endpoint;
use crate::reaper::child::{CommandStart, HELD_VARIABLE, RunningCommand};
use crate::reaper::session::ReaperSession;
use crate::run::acquire::Acquired;
use crate::run::job::Job;
use crate::run::supervisor::{RunOutcome, Supervisor};
use crate::secrets::TlsFiles;
use crate::service::outer::held_variable;

/// Starts the command under the acquired lock, and supervises it until it has ended. `has_leftovers`: set if processes of an
/// earlier command may live. The reaper of this command does not see them, so it does not free the lock.
pub(crate) async fn run_once(
    job: &Job,
    acquired: &Acquired,
    reporter: &Reporter,
    signals: &mut Signals,
    has_leftovers: bool,
) -> Result<RunOutcome, Failure> {
    let Acquired { zoolock, holder, slots } = acquired;
    let name = job.wanted.name.as_str();
    if !holder.is_valid() {
        return Err(Failure::new(Exit::LOST, format!("lost {name} before the command was started")));
    }
    let ids = [&job.wanted.outer[..], &[holder.acquisition_id()]].concat();
    let of_lock = [
        ("ZOOLOCK_NAME", Some(job.wanted.names.join(" "))),
        ("ZOOLOCK_PATH", Some(holder.paths().join(" "))),
        // Without a fencing token, an inherited token is removed, which belongs to another lock.
        ("ZOOLOCK_TOKEN", holder.token().map(|token| token.to_string())),
        ("ZOOLOCK_TICKET", Some(holder.ticket().to_string())),
        // An inherited number belongs to another lock.
        ("ZOOLOCK_SLOT", slots.as_ref().map(join_numbers)),
        ("ZOOLOCK_PREVIOUS", Some(holder.previous().to_string())),
        ("ZOOLOCK_OWNER", Some(job.owner.clone())),
        (HELD_VARIABLE, Some(held_variable(&ids, &job.service)?)),
    ];
    let mut variables = job.service.passed_variables.clone();
    variables.extend(of_lock.map(|(name, value)| (name.to_owned(), value.map(OsString::from))));
    let terminal = Terminal::open();
    let foreground = terminal.as_ref().is_some_and(|terminal| terminal.is_foreground())
        && terminal::command_starts_in_foreground()
        && !job.child.keep;
    if terminal.is_some() {
        // Handles ^Z on a terminal that zoolock shares with the command. The command stops first,
        // then zoolock.
        let _ = signals.add_unless_ignored(rustix::process::Signal::TSTP);
    }
    let lease = clock::lease_time_of(holder.valid_until());
    let grace = job.grace_of(zoolock.session_timeout().unwrap_or(job.service.session_timeout));
    let file = HolderFile::create_for(&job.service, holder.session_id());
    let session = match job.child.if_killed {
        IfKilled::Free if !has_leftovers => session_to_end(job, holder).await?,
        IfKilled::Free | IfKilled::Wait => None,
    };
    let start = CommandStart {
        command: &job.command,
        variables: &variables,
        foreground,
        grace,
        lease,
        session,
        held: file.as_ref().map(HolderFile::file),
    };
    let child = RunningCommand::start(start).await?;
    let supervisor = Supervisor::new(job, acquired, grace, reporter, child, lease, terminal.as_ref());
    Ok(supervisor.supervise(signals).await)
}

/// Returns the session of the holder, for the reaper.
async fn session_to_end(job: &Job, holder: &Held) -> Result<Option<ReaperSession>, Failure> {
    let (credentials, tls) = match &job.service.endpoint {
        Endpoint::Local => (None, None),
        Endpoint::Remote { auth, tls, .. } => {
            let auth = match auth {
                Some(auth) => Some(auth.credentials(job.service.connect_timeout).await?),
                None => None,
            };
            (auth, tls.as_ref().map(TlsFiles::to_absolute))
        }
    };
    Ok(ReaperSession::of(holder, &job.wanted.name, credentials, tls))
}

fn join_numbers(slots: &Slots) -> String {
    slots.numbers().iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

/// Returns the command's name, for messages.
pub(crate) fn command_name(job: &Job) -> String {
    job.command.first().map(|program| escape_unprintable(&program.to_string_lossy())).unwrap_or_default()
}
