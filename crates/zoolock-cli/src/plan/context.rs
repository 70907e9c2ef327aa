//! The settings and the helpers that all commands share.

use std::sync::Arc;

use crate::args::Global;
use crate::base::exit::Failure;
use crate::base::machine_file;
use crate::base::reporter::Reporter;
use crate::plan::service::ConnectionSettings;

/// The input of each command beside its own arguments.
pub(crate) struct Context {
    pub(crate) global: Global,
    pub(crate) reporter: Arc<Reporter>,
}

impl Context {
    /// Checks the flags that choose the server and the session, and reads the credentials. Warns about variables that look
    /// like settings.
    pub(crate) fn connection(&self) -> Result<ConnectionSettings, Failure> {
        let Global { machine, unknown, auth, .. } = &self.global;
        // Not a note, which --quiet hides: without its settings, zoolock may use another server.
        for name in unknown.iter().filter(|name| !auth.as_ref().is_some_and(|auth| auth.ends_with(*name))) {
            self.reporter.error(format_args!("{name} is not a setting of zoolock, and has no effect"));
        }
        let file = machine_file::path();
        let names = machine.as_ref().map_err(|why| Failure::usage(format!("{}: {why}", file.display())))?;
        if !names.is_empty() {
            self.reporter.detail(format_args!("{} sets {}", file.display(), names.join(", ")));
        }
        ConnectionSettings::new(&self.global)
    }

    /// Returns the same as [`Context::connection`], for a command on the lock `name`.
    pub(crate) fn connection_for(&self, name: &str) -> Result<ConnectionSettings, Failure> {
        let service = self.connection()?;
        service.check_name(name)?;
        Ok(service)
    }

    /// Returns the same as [`Context::connection`], for a command on the locks at and below `prefix`.
    pub(crate) fn connection_below(&self, prefix: Option<&str>) -> Result<ConnectionSettings, Failure> {
        let service = self.connection()?;
        match prefix {
            None | Some("/") => {}
            // A slash at the end is allowed.
            Some(prefix) => service.check_name(prefix.strip_suffix('/').unwrap_or(prefix))?,
        }
        Ok(service)
    }

    /// Refuses `--json` for a command that prints no JSON.
    pub(crate) fn refuse_json(&self, command: &str) -> Result<(), Failure> {
        if self.global.json {
            return Err(Failure::usage(format!(
                "--json has no effect on `{command}`; it works with hold, ls, show, watch, why, deadlocks, history, doctor and serve --status"
            )));
        }
        Ok(())
    }
}
