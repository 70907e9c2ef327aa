//! The errors of acquisitions.

use zoolock_core::acquisition::{Kind, Reason, Refusal, RequestFailure, SessionEnd};
use zoolock_core::layout::Layout;

use crate::base::error::{Error, LossReason, OVER_QUOTA};
use crate::base::naming;
use crate::engine::Acquisition;
use crate::lock::acquire::Lock;
use crate::zk::session::NO_IDENTITY;

impl Lock {
    /// Returns the error for the reason why an acquisition failed. Returns `Ok` if the lock is busy.
    pub(super) fn failure_error(
        &self,
        reason: Reason,
        kind: Kind,
        acquisition: &Acquisition,
    ) -> Result<(), Error> {
        let paths = acquisition.directories().iter().map(|path| self.context.without_chroot(path.as_str()));
        let path = paths.collect::<Vec<_>>().join(", ");
        let refusal_message = acquisition.refusal_message();
        let subject = || format!("lock {path}");
        match reason {
            Reason::TimedOut | Reason::Busy => Ok(()),
            // `Lost` in place of `Removed`, because the caller gets the reader's guard back with this error,
            // and must not rely on it.
            Reason::Broken if matches!(kind, Kind::Upgrade { .. }) => {
                Err(Error::Lost { path, reason: LossReason::Broken })
            }
            Reason::Broken => Err(Error::Removed { path }),
            Reason::SessionOver(SessionEnd::AuthFailed) => Err(Error::lock_denied(&path)),
            Reason::SessionOver(SessionEnd::Closed) => Err(Error::Closed),
            // The caller handles this reason itself, because a waiter joins the queue again on another session.
            Reason::SessionOver(SessionEnd::Expired) => {
                Err(Error::Lost { path, reason: LossReason::SessionExpired })
            }
            Reason::OtherKind => Err(Error::wrong_kind(
                path,
                match kind {
                    Kind::Permits { .. } => {
                        "is not a semaphore, but a lock of another kind; use another name"
                    }
                    _ => "is a semaphore; a lock of another kind needs a name of its own",
                },
            )),
            Reason::OtherLayout(layout) => Err(self.other_layout(layout)),
            Reason::Clash(clash) => Err(Error::ForeignContender { path, message: naming::clash_error_message(&clash) }),
            Reason::OtherSize(actual) => {
                Err(Error::WrongSize { path, expected: kind.size().unwrap_or_default(), actual })
            }
            Reason::ForeignRecord => Err(Error::invalid(
                subject(),
                "the data of its znode belongs to something else; use another name, or empty it",
            )),
            Reason::Outranked => Err(Error::Conflict {
                path,
                message: "another reader has precedence (behind a queued writer); release the read lock and acquire the write \
                          lock"
                    .to_owned(),
            }),
            Reason::Exhausted => Err(Error::Conflict {
                path,
                message: "the directory has almost used up its sequence numbers; release the read lock, and acquire the \
                          write lock"
                    .to_owned(),
            }),
            Reason::Occupied(lock_index, child) => {
                let child = acquisition.directories()[lock_index].child(&child);
                Err(Error::invalid(subject(), occupied_message(self.context.without_chroot(&child))))
            }
            Reason::Refused(RequestFailure::Refused(Refusal::Other)) => {
                Err(Error::Protocol { subject: subject(), message: refusal_message })
            }
            Reason::Refused(RequestFailure::Refused(Refusal::Denied)) if refusal_message == NO_IDENTITY => {
                Err(Error::Denied { subject: subject(), message: refusal_message })
            }
            Reason::Refused(RequestFailure::Refused(Refusal::Denied)) => Err(Error::lock_denied(&path)),
            Reason::Refused(RequestFailure::Refused(Refusal::Quota)) => Err(Error::Denied {
                subject: subject(),
                message: OVER_QUOTA.to_owned(),
            }),
            Reason::Refused(failure) => Err(Error::Protocol {
                subject: subject(),
                message: format!("unexpected answer from the server: {failure:?}"),
            }),
        }
    }

    /// Returns the error for a semaphore of another client library at this path.
    pub(crate) fn other_layout(&self, layout: Layout) -> Error {
        let library = layout.library();
        let message = format!(
            "is a semaphore of {library}, from which zoolock cannot acquire permits; use another name, or acquire them \
             with {library}"
        );
        Error::wrong_kind(self.path(), message)
    }
}

/// Returns the message for a directory that cannot be replaced because of this child.
pub(crate) fn occupied_message(child: &str) -> String {
    format!("has no sequence numbers left, and cannot get new ones while {child} exists; delete that znode")
}
