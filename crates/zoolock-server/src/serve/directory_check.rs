use super::SharedServer;
use crate::data_dir::DataDir;
use crate::log::LogError;

impl SharedServer {
    /// Fails the server if its data directory was replaced or removed. Another server may then use
    /// the path.
    pub(super) fn fail_if_directory_is_replaced(&self) {
        let Some(error) = self.directory_error() else { return };
        tracing::error!(%error, "stopping the server");
        match &self.journal {
            Some(journal) => journal.fail(error.to_string()),
            None => drop(self.broken.send_replace(true)),
        }
    }

    /// Returns the reason why `broken` is set.
    pub(super) fn describe_break(&self) -> String {
        match self.directory_error() {
            Some(error) if !self.inner.is_poisoned() => error.to_string(),
            _ => "a bug: the server's core panicked".to_owned(),
        }
    }

    fn directory_error(&self) -> Option<LogError> {
        self.data_dir.as_ref().and_then(DataDir::replacement_error)
    }
}
