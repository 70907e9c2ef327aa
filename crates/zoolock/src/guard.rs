//! What a holder holds.

use crate::held::Departure;

/// How the last holder left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Previous {
    /// It released the lock: what it wrote is complete.
    Clean,
    /// It is gone without a word, or let go while it unwound from a panic: what it wrote may be half done. Known only
    /// with [`crash_detection`](crate::Mutex::crash_detection), but for the panic.
    Crashed,
    /// It is not known: a crash, a contender that gave up, a client of another make, a directory that was removed in
    /// between, or no last holder at all; or it was not read yet, see [`tell_previous`](crate::Mutex::tell_previous).
    Unknown,
}

impl std::fmt::Display for Previous {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Previous::Clean => "clean",
            Previous::Crashed => "crashed",
            Previous::Unknown => "unknown",
        })
    }
}

/// The check that a caller puts into its own ZooKeeper transaction, so that it is carried out only while the lock is
/// held: a check of this path and version.
///
/// ZooKeeper compares versions, not who created a znode. Should the whole directory of the lock be deleted and made
/// again, the same name can come back with another holder; a resource that keeps the token is safe from that, too. Where
/// the tasks of a process share a place ([`Mutex::batching`](crate::Mutex::batching)) it tells processes apart and not tasks:
/// a transaction that is still on its way when the next task has the lock is carried out.
///
/// ```no_run
/// # async fn example(zl: zoolock::Zoolock, client: zookeeper_client::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = zl.mutex("nightly").lock().await?;
/// let check = guard.check();
/// let mut transaction = client.new_check_writer(&check.path, Some(check.version))?;
/// transaction.add_set_data("/state", b"done", None)?;
/// transaction.commit().await?; // refused if the lock is lost
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Check {
    /// The znode that has to be there, with the chroot of the connect string.
    pub path: String,
    /// The version to check: -1, which is any.
    pub version: i32,
}

impl Check {
    pub(crate) fn of(path: String) -> Check {
        Check { path, version: -1 }
    }
}

/// Makes a guard: what all of them offer.
macro_rules! guard {
    ($(#[$doc:meta])* $guard:ident) => {
        $(#[$doc])*
        ///
        /// Dropping it releases the lock in the background: the request goes out at once, and before anything else that
        /// its session sends; it is repeated after a lost connection until the node is gone or the session is over.
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $guard {
            held: crate::held::Held,
        }

        impl $guard {
            pub(crate) fn new(held: crate::held::Held) -> $guard {
                $guard { held }
            }

            /// Calls `tell` on our own thread when the lock is lost, unless the handle is aborted first.
            pub(crate) fn when_lost(
                &self,
                tell: impl FnOnce(crate::LossReason) + Send + 'static,
            ) -> crate::tasks::Task {
                self.held.when_lost(tell)
            }

            /// Until when the lock may be believed to be ours. Moves on with each renewal; reads no clock and sends
            /// nothing. Once the lock is lost it has passed.
            pub fn valid_until(&self) -> crate::Deadline {
                self.held.valid_until()
            }

            /// Whether the lock may be believed to be ours now. Reads the clock and sends nothing. Once it said no,
            /// it always says no.
            pub fn is_valid(&self) -> bool {
                self.held.is_valid()
            }

            /// Waits until the lock is lost. Resolves at once, and always the same, if it has been.
            ///
            /// # Cancel safety
            /// Can be dropped and called again at any time.
            pub async fn lost(&self) -> crate::LossReason {
                self.held.lost().await
            }

            /// Why the lock was lost, if that is known already. Waits for nothing.
            pub fn loss(&self) -> Option<crate::LossReason> {
                self.held.loss()
            }

            /// Waits until somebody asks us to let go: `zoolock revoke`, Curator, or whoever follows ZooKeeper's
            /// recipe. It is a request, nothing more: the lock is ours until we release it.
            ///
            /// # Cancel safety
            /// Can be dropped and called again at any time.
            pub async fn revoked(&self) {
                self.held.revoked().await;
            }

            /// Whether somebody has asked us to let go.
            pub fn is_revoked(&self) -> bool {
                self.held.is_revoked()
            }

            /// Whether somebody has asked us to let go by now, if only while we stood in the queue. Asks the service, if
            /// that is not known yet; false if the lock is lost.
            ///
            /// # Cancel safety
            /// Can be dropped and called again at any time.
            pub async fn revoked_by_now(&self) -> bool {
                self.held.revoked_by_now().await
            }

            /// What names this holder to [`revoke`](crate::Mutex::revoke) and
            /// [`break_lock`](crate::Mutex::break_lock). No fence.
            pub fn ticket(&self) -> crate::Ticket {
                self.held.ticket()
            }

            /// Returns the identifier of the acquisition, which no other one has ([`Entry::id`](crate::Entry::id)).
            pub fn acquisition_id(&self) -> String {
                self.held.acquisition_id()
            }

            /// The check that a caller puts into its own ZooKeeper transaction.
            pub fn check(&self) -> crate::Check {
                self.held.check()
            }

            /// The node that holds the lock; the first one of a multi-lock.
            pub fn node_path(&self) -> String {
                self.held.node_path()
            }

            /// The id of the session that holds the lock.
            #[doc(hidden)]
            pub fn session_id(&self) -> i64 {
                self.held.session_id()
            }

            /// What the session is doing: for a word to the user, not for deciding anything.
            pub fn connection(&self) -> tokio::sync::watch::Receiver<crate::Connection> {
                self.held.connection()
            }

            /// Releases the lock and waits until the service has confirmed it.
            ///
            /// # Errors
            /// [`Error::Lost`](crate::Error::Lost) where the lock had been lost before;
            /// [`Error::Denied`](crate::Error::Denied) where the service refuses the delete, which is then tried
            /// again in the background until the session ends.
            ///
            /// # Cancel safety
            /// Dropping the future releases the lock in the background.
            pub async fn release(self) -> Result<(), crate::Error> {
                self.held.release().await
            }
        }

        impl std::fmt::Debug for $guard {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($guard))
                    .field("path", &self.held.paths())
                    .field("ticket", &self.held.ticket())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// The path of a guard on one lock.
macro_rules! guard_of_one {
    ($guard:ident) => {
        impl $guard {
            /// The directory of the lock.
            pub fn path(&self) -> &str {
                self.held.path()
            }
        }
    };
}

/// How the last holder left.
macro_rules! guard_after_another {
    ($guard:ident) => {
        impl $guard {
            /// How the last one that held the lock alone left, as far as it is known now: with
            /// [`crash_detection`](crate::Mutex::crash_detection) and
            /// [`tell_previous`](crate::Mutex::tell_previous) from the grant on. Without, whoever had to wait for a
            /// [`Mutex`](crate::Mutex) may be told [`Unknown`](crate::Previous::Unknown) in its first milliseconds;
            /// what is told otherwise stays so.
            pub fn previous(&self) -> crate::Previous {
                self.held.previous()
            }
        }
    };
}

/// What only those who hold alone have.
macro_rules! exclusive_guard {
    ($guard:ident) => {
        impl $guard {
            /// A number that rises with every grant, for the resource to check.
            pub fn token(&self) -> crate::FencingToken {
                self.held.token()
            }
        }
    };
}

pub(crate) use {exclusive_guard, guard, guard_after_another, guard_of_one};

guard! {
    /// Proof that the lock is ours, and the knowledge of how long it may be believed.
    Guard
}
guard_of_one!(Guard);
guard_after_another!(Guard);
exclusive_guard!(Guard);

impl Guard {
    pub(crate) fn departure(&self) -> Departure {
        self.held.departure()
    }

    /// Lets go of what nobody has worked under; to be dropped after that.
    pub(crate) fn give_back(&self) {
        self.held.give_back();
    }

    /// Lets go as a holder does that panics; to be dropped after that.
    pub(crate) fn release_as_panicked(&self) {
        self.held.release_as_panicked();
    }
}
