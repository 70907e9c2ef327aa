//! A check for the caller's own ZooKeeper transaction.

/// A check for the caller's own ZooKeeper transaction. With this check, the server commits the transaction only while
/// the lock is held.
///
/// ZooKeeper compares versions, not creators of znodes. If the whole lock directory is deleted and
/// created again, the same name can belong to another holder. A resource that checks fencing tokens
/// is safe even then.
///
/// With a [shared hold](crate::SharedHold), the check tells clients apart, not tasks: a transaction of one task is still
/// committed after the next task has got the lock.
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
    /// Path of the znode that must exist, including the chroot of the connect string.
    pub path: String,
    /// Version to check: -1, which matches any version.
    pub version: i32,
}

impl Check {
    pub(crate) fn of(path: String) -> Check {
        Check { path, version: -1 }
    }
}
