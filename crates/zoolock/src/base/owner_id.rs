//! Owners of acquisitions. Observers use them to show which owner waits for which other owner.
//!
//! An owner is one job, which may hold several locks and wait for others. The caller may name the owner. Otherwise the
//! owner is the tokio task that acquires, or the thread outside of a task.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::error::Error;
use crate::base::uuid::random_uuid;

/// The kind of owner that a handle's acquisitions have.
#[derive(Debug, Clone, Default)]
pub(crate) enum OwnerMode {
    /// The named owner of the client. If the client has none, the task or the thread that acquires.
    #[default]
    Caller,
    /// The owner with this name.
    Owner(Arc<str>),
    /// The named owner of the client. If the client has none, the shared hold with this number. Such an owner holds or
    /// waits for one lock only.
    SharedHold(u64),
}

/// The owner in the data of a znode. At most one of the two fields is set.
#[derive(Debug, Default)]
pub(crate) struct OwnerId {
    pub(crate) owner: Option<Box<str>>,
    pub(crate) task: Option<Box<str>>,
}

/// The owner names of one client.
#[derive(Debug)]
pub(crate) struct OwnerIds {
    /// The random name of the client. The name stays the same when the client opens another
    /// session.
    client: String,
    /// The owner of all acquisitions of this client, if the caller named one.
    owner: Option<Arc<str>>,
    shared_holds: AtomicU64,
}

impl OwnerIds {
    pub(crate) fn new(owner: Option<Arc<str>>) -> OwnerIds {
        OwnerIds { client: random_name(), owner, shared_holds: AtomicU64::new(0) }
    }

    /// Returns the owner for a new shared hold.
    pub(crate) fn new_shared_hold(&self) -> OwnerMode {
        OwnerMode::SharedHold(self.shared_holds.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the owner of an acquisition that the current task or thread starts.
    pub(crate) fn owner_id(&self, mode: &OwnerMode) -> OwnerId {
        let owner = match mode {
            OwnerMode::Owner(owner) => Some(owner),
            OwnerMode::Caller | OwnerMode::SharedHold(_) => self.owner.as_ref(),
        };
        if let Some(owner) = owner {
            return OwnerId { owner: Some(owner.as_ref().into()), task: None };
        }
        let client = &self.client;
        let text = match (mode, tokio::task::try_id()) {
            (OwnerMode::SharedHold(number), _) => format!("{client}-p{number}"),
            (_, Some(task)) => format!("{client}-{task}"),
            (_, None) => format!("{client}-t{}", thread_number()),
        };
        OwnerId { owner: None, task: Some(text.into()) }
    }
}

/// Returns a random name of 48 bits. The probability that two of ten thousand clients get the same name is one in five
/// million.
pub(crate) fn random_name() -> String {
    format!("{:012x}", random_uuid().as_u128() >> 80)
}

/// Returns a number of this thread that no other thread of the process ever gets. The operating
/// system's own thread ids are reused.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // All threads that are ending count as one, because they have lost their numbers.
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX)
}

/// The maximum length of an owner's name in bytes. It is small, because every client that lists the lock reads the
/// name.
const LONGEST: usize = 64;

/// Checks an owner's name, for this client or for another one.
pub(crate) fn check(owner: &str) -> Result<(), Error> {
    let wrong = |message: String| Err(Error::invalid(format!("owner {owner:?}"), message));
    if owner.is_empty() {
        return wrong("is empty; leave it out, or give it a name".to_owned());
    }
    if owner.len() > LONGEST {
        return wrong(format!("is longer than {LONGEST} bytes; a random number is enough"));
    }
    if !owner.bytes().all(|byte| byte.is_ascii_graphic()) {
        return wrong("has other than printable ASCII characters, or a space".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(owner_ids: &OwnerIds) -> String {
        owner_ids.owner_id(&OwnerMode::Caller).task.expect("owner is a task or a thread").into()
    }

    #[test]
    fn each_thread_is_one_owner() {
        let owner_ids = OwnerIds::new(None);
        let here = task(&owner_ids);
        assert_eq!(here, task(&owner_ids));
        assert_ne!(here, task(&OwnerIds::new(None)), "two clients have different owners");
        let there = std::thread::scope(|scope| scope.spawn(|| task(&owner_ids)).join().expect("no panic"));
        assert_ne!(here, there);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_task_is_one_owner() {
        let owner_ids = Arc::new(OwnerIds::new(None));
        let seen = |owner_ids: Arc<OwnerIds>| async move {
            let first = task(&owner_ids);
            tokio::task::yield_now().await;
            assert_eq!(first, task(&owner_ids));
            first
        };
        let (one, two) = (tokio::spawn(seen(owner_ids.clone())), tokio::spawn(seen(owner_ids.clone())));
        assert_ne!(one.await.expect("no panic"), two.await.expect("no panic"));
    }

    #[test]
    fn named_owner_overrides_the_task() {
        let owner_ids = OwnerIds::new(Some("job-7".into()));
        let of = |mode: &OwnerMode| {
            let OwnerId { owner, task } = owner_ids.owner_id(mode);
            assert_eq!(task, None);
            owner.expect("owner has a name")
        };
        assert_eq!(&*of(&OwnerMode::Caller), "job-7");
        assert_eq!(&*of(&owner_ids.new_shared_hold()), "job-7");
        assert_eq!(&*of(&OwnerMode::Owner("other".into())), "other");
    }

    #[test]
    fn long_or_nonprintable_owner_is_refused() {
        assert!(check("job-7/3:a").is_ok() && check(&"x".repeat(LONGEST)).is_ok());
        for wrong in ["", "two words", "line\n", "prüfung", &"x".repeat(LONGEST + 1)] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
