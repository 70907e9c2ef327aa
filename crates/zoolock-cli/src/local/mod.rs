//! Local mode: one server per user and machine. The first command that needs the server starts it.
//!
//! The files of the server are in a directory to which only this user has access:
//!
//! | file | contents |
//! |---|---|
//! | `socket` | the Unix socket of the server |
//! | `lock` | locked by the server while it runs |
//! | `server` | the process of the server; valid while `lock` is locked |
//! | `starting` | locked by the command that starts the server, and for a moment by `serve --stop` |
//! | `wanted` | present until `serve --stop`: commands that hold or wait start the server again if it ends |
//! | `sessions` | the number of sessions, for `serve --status` |
//! | `log` | the messages of the server |
//! | `data` | the data of the server, so that tokens rise over restarts |
//! | `holders` | a file for each command of `run`; a new server frees the locks of commands that have died |
//! | `machine` | the machine and the boot of the last server; other machines are refused |

mod file_system;
mod files;
mod holders;
mod keep;
pub(crate) mod limits;
mod log;
mod machine;
mod paths;
mod process;
mod server;
mod start;
mod state;

use std::time::Duration;

pub(crate) use holders::HolderFile;
pub(crate) use keep::{ServerKeeper, mark_stopped};
pub(crate) use machine::adopt;
pub(crate) use paths::StateDir;
pub(crate) use server::{become_independent, serve};
pub(crate) use start::{find_or_start_server, take_starting_lock};
pub(crate) use state::{LocalState, server_state};

use self::process::VERSION;
use crate::base::exit::Failure;

/// Interval between checks of the server while a command connects.
const LOOK: Duration = Duration::from_millis(100);

/// Returns the failure to report if a connection to this user's server gets no session. The message
/// names the state of the server.
pub(crate) fn session_failure(error: impl std::fmt::Display) -> Failure {
    let dir = match StateDir::open() {
        Ok(dir) => dir,
        Err(failure) => return failure,
    };
    let about = match server_state(&dir) {
        Ok(LocalState::Listening(process)) if process.version != VERSION => format!(
            "this user's server is zoolock {}, and this is {VERSION}: if no lock is held, run: zoolock serve --stop",
            process.version
        ),
        Ok(LocalState::Listening(process)) => {
            let place = if process.is_in_our_namespace() {
                format!("as process {}", process.pid)
            } else {
                "in another process namespace, such as a container".to_owned()
            };
            format!("this user's server runs {place}; see {}", dir.file("log").display())
        }
        Err(failure) => return failure,
        Ok(_) => match log::last_failure(&dir) {
            Some(why) => {
                let log = dir.file("log");
                return Failure::unavailable(format!(
                    "this user's server has failed: {why}; see {}",
                    log.display()
                ));
            }
            None => format!("this user's server has ended; see {}", dir.file("log").display()),
        },
    };
    Failure::unavailable(format!("{error}; {about}"))
}

/// Resolves when this user's server has ended.
pub(crate) async fn wait_for_server_end() {
    loop {
        tokio::time::sleep(LOOK).await;
        if StateDir::open().is_ok_and(|dir| server_state(&dir).ok() == Some(LocalState::Absent)) {
            return;
        }
    }
}
