//! Creates lock directories when they are first needed, and again after the server removed them.

use std::sync::Arc;

use zoolock_core::acquisition::{Refusal, RequestFailure};
use zoolock_wire::Request;

use crate::zk::session::{ZkError, ZkSession, zk_error};

/// Maximum number of creates, besides two for each part of the path. If the directory is removed again after each
/// create, this limit ends the attempt.
const MAX_CREATES: usize = 100;

/// The creation of a directory and its missing parents, one request after the other.
///
/// Creates containers, so that the server removes them after they have been empty for a while. Creates persistent znodes
/// if the server does not support containers (before 3.5.3). With `lasting`, the directory itself is persistent in any
/// case, because a removed directory loses the record of how its last holder left.
pub(crate) struct DirectoryCreation {
    /// The znodes that are missing. The last one is created first.
    missing: Vec<String>,
    lasting: bool,
    /// Set if the server has refused to create a container.
    refused_container: bool,
    /// Number of creates that are left.
    creates: usize,
}

impl DirectoryCreation {
    pub(crate) fn new(path: String, lasting: bool) -> DirectoryCreation {
        let creates = MAX_CREATES + 2 * path.matches('/').count();
        DirectoryCreation { missing: vec![path], lasting, refused_container: false, creates }
    }

    /// Returns the next request; `None` if the directory exists.
    pub(crate) fn next_request(&self, zk: &ZkSession) -> Option<Request> {
        let path = self.missing.last()?;
        Some(if self.creates_container() {
            zk.create_container_request(path)
        } else {
            zk.create_persistent_request(path)
        })
    }

    /// Sends the requests that are left, and the last one again.
    ///
    /// # Errors
    /// As [`DirectoryCreation::handle_outcome`].
    pub(crate) async fn run(mut self, zk: &ZkSession) -> Result<(), ZkError> {
        while let Some(request) = self.next_request(zk) {
            self.handle_outcome(zk.create(&request).await)?;
        }
        Ok(())
    }

    fn creates_container(&self) -> bool {
        let is_last = self.missing.len() == 1;
        !(self.refused_container || self.lasting && is_last)
    }

    /// Handles the outcome of the last request.
    ///
    /// # Errors
    /// The server refuses a create, or its outcome is unknown, or the directory is deleted again and again.
    pub(crate) fn handle_outcome(&mut self, outcome: Result<(), ZkError>) -> Result<(), ZkError> {
        self.creates = self.creates.saturating_sub(1);
        match outcome {
            Ok(()) | Err(ZkError { failure: RequestFailure::NodeExists, .. }) => drop(self.missing.pop()),
            Err(ZkError { failure: RequestFailure::Refused(Refusal::Other), .. })
                if self.creates_container() =>
            {
                self.refused_container = true;
            }
            Err(error) if error.failure == RequestFailure::NoNode => {
                let parent = self.missing.last().and_then(|path| path.rsplit_once('/'));
                match parent {
                    Some((parent, _)) if !parent.is_empty() => self.missing.push(parent.to_owned()),
                    _ => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
        if self.creates == 0 && !self.missing.is_empty() {
            let message = "the directory is deleted again after each create";
            return Err(zk_error(RequestFailure::Refused(Refusal::Other), message));
        }
        Ok(())
    }
}

/// Creates `path` and its missing parents. See [`DirectoryCreation`].
pub(crate) async fn create_with_parents(
    zk: Arc<ZkSession>,
    path: String,
    lasting: bool,
) -> Result<(), ZkError> {
    DirectoryCreation::new(path, lasting).run(&zk).await
}

#[cfg(test)]
mod tests {
    use super::*;

    type Outcome = Result<(), RequestFailure>;

    fn handle(creation: &mut DirectoryCreation, outcome: Outcome) -> Outcome {
        let outcome = outcome.map_err(|failure| zk_error(failure, ""));
        creation.handle_outcome(outcome).map_err(|error| error.failure)
    }

    #[test]
    fn parents_are_created_first() {
        let no_node = Err(RequestFailure::NoNode);
        let other = Err(RequestFailure::Refused(Refusal::Other));
        // Outcome of a create, what is missing then, and whether the next znode is a container.
        let rows: [(Outcome, &[&str], bool); 6] = [
            (no_node, &["/a/b", "/a"], true),
            (other, &["/a/b", "/a"], false),
            (Ok(()), &["/a/b"], false),
            (no_node, &["/a/b", "/a"], false),
            (Err(RequestFailure::NodeExists), &["/a/b"], false),
            (Ok(()), &[], false),
        ];
        let mut creation = DirectoryCreation::new("/a/b".to_owned(), false);
        assert!(creation.creates_container());
        for (outcome, missing, is_container) in rows {
            assert_eq!(handle(&mut creation, outcome), Ok(()));
            assert_eq!(creation.missing, missing);
            assert_eq!(creation.creates_container(), is_container);
        }
    }

    #[test]
    fn lasting_directory_is_persistent_and_its_parents_are_containers() {
        let mut creation = DirectoryCreation::new("/a/b".to_owned(), true);
        assert!(!creation.creates_container());
        assert_eq!(handle(&mut creation, Err(RequestFailure::NoNode)), Ok(()));
        assert!(creation.creates_container());
    }

    #[test]
    fn creation_ends_with_an_error() {
        let refused = Err(RequestFailure::Refused(Refusal::Other));
        let denied = Err(RequestFailure::Refused(Refusal::Denied));
        let mut root = DirectoryCreation::new("/a".to_owned(), false);
        assert_eq!(handle(&mut root, Err(RequestFailure::NoNode)), Err(RequestFailure::NoNode));
        let mut lasting = DirectoryCreation::new("/a".to_owned(), true);
        assert_eq!(handle(&mut lasting, refused), refused);
        assert_eq!(handle(&mut lasting, denied), denied);
        let mut deleted_again = DirectoryCreation::new("/a/b".to_owned(), false);
        let outcomes = [Err(RequestFailure::NoNode), Ok(())].into_iter().cycle().take(MAX_CREATES + 3);
        for outcome in outcomes {
            assert_eq!(handle(&mut deleted_again, outcome), Ok(()));
        }
        assert_eq!(handle(&mut deleted_again, Ok(())), refused, "the parent exists, and no create is left");
    }
}
