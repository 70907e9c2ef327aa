//! The owners of acquisitions, which show which owner waits for which.
//!
//! An owner is one job, which may hold several locks and wait for others. The caller may name the owner. Otherwise it is the
//! tokio task that acquires, or the thread outside of a task.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::chance;
use crate::base::error::Error;

/// The kind of owner that a handle's acquisitions have.
#[derive(Debug, Clone, Default)]
pub(crate) enum AskAs {
    /// The owner of the client if the caller named one, or else the task or thread that acquires.
    #[default]
    Caller,
    /// A named owner.
    Owner(Arc<str>),
    /// A queue position that all tasks of the process share. It holds or waits for this lock only.
    Place(u64),
}

/// The owner in the data of a znode. At most one of the two fields is set.
#[derive(Debug, Default)]
pub(crate) struct Asker {
    pub(crate) owner: Option<Box<str>>,
    pub(crate) task: Option<Box<str>>,
}

/// The owner names of one client.
#[derive(Debug)]
pub(crate) struct Askers {
    /// The random name of the client. It does not depend on the session id.
    client: String,
    /// The owner of all acquisitions of this client, if the caller named one.
    owner: Option<Arc<str>>,
    places: AtomicU64,
}

impl Askers {
    pub(crate) fn new(owner: Option<Arc<str>>) -> Askers {
        Askers { client: drawn(), owner, places: AtomicU64::new(0) }
    }

    /// Returns a new queue position that tasks share.
    pub(crate) fn new_place(&self) -> AskAs {
        AskAs::Place(self.places.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the owner of an acquisition that the current task or thread starts.
    pub(crate) fn asker(&self, ask_as: &AskAs) -> Asker {
        let owner = match ask_as {
            AskAs::Owner(owner) => Some(owner),
            AskAs::Caller | AskAs::Place(_) => self.owner.as_ref(),
        };
        if let Some(owner) = owner {
            return Asker { owner: Some(owner.as_ref().into()), task: None };
        }
        // Written to a buffer first, so that there is one allocation of the right size.
        let (client, mut text) = (&self.client, [0; LONGEST]);
        let mut rest = &mut text[..];
        let written = match (ask_as, tokio::task::try_id()) {
            (AskAs::Place(place), _) => write!(rest, "{client}-p{place}"),
            (_, Some(task)) => write!(rest, "{client}-{task}"),
            (_, None) => write!(rest, "{client}-t{}", thread()),
        };
        written.expect("two numbers have room in it");
        let length = LONGEST - rest.len();
        let text = std::str::from_utf8(&text[..length]).expect("digits and dashes");
        Asker { owner: None, task: Some(text.into()) }
    }
}

/// Returns a random name of 48 bits. Two of ten thousand clients have the same name in one of five million fleets.
pub(crate) fn drawn() -> String {
    format!("{:012x}", chance::uuid().as_u128() >> 80)
}

/// Returns a number of this thread that no other thread of the process gets. The system reuses its own numbers.
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    // A thread that is ending has lost its number. All such threads count as one.
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX)
}

/// The maximum length of an owner's name in bytes. Every client that lists the lock reads it.
const LONGEST: usize = 64;

/// Checks the name of an owner, of this client or of another one.
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

    fn task(askers: &Askers) -> String {
        askers.asker(&AskAs::Caller).task.expect("nobody was named").into()
    }

    #[test]
    fn a_thread_is_one_owner_and_another_thread_another() {
        let askers = Askers::new(None);
        let here = task(&askers);
        assert_eq!(here, task(&askers));
        assert_ne!(here, task(&Askers::new(None)), "of another client");
        let there = std::thread::scope(|scope| scope.spawn(|| task(&askers)).join().expect("no panic"));
        assert_ne!(here, there);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_task_is_one_owner_wherever_it_runs() {
        let askers = Arc::new(Askers::new(None));
        let seen = |askers: Arc<Askers>| async move {
            let first = task(&askers);
            tokio::task::yield_now().await;
            assert_eq!(first, task(&askers));
            first
        };
        let (one, two) = (tokio::spawn(seen(askers.clone())), tokio::spawn(seen(askers.clone())));
        assert_ne!(one.await.expect("no panic"), two.await.expect("no panic"));
    }

    #[test]
    fn who_is_named_comes_before_who_asks() {
        let askers = Askers::new(Some("job-7".into()));
        let of = |ask_as: &AskAs| {
            let Asker { owner, task } = askers.asker(ask_as);
            assert_eq!(task, None);
            owner.expect("named")
        };
        assert_eq!(&*of(&AskAs::Caller), "job-7");
        assert_eq!(&*of(&askers.new_place()), "job-7");
        assert_eq!(&*of(&AskAs::Owner("other".into())), "other");
    }

    #[test]
    fn a_name_is_short_and_plain() {
        assert!(check("job-7/3:a").is_ok() && check(&"x".repeat(LONGEST)).is_ok());
        for wrong in ["", "two words", "line\n", "prüfung", &"x".repeat(LONGEST + 1)] {
            assert!(check(wrong).is_err(), "{wrong:?}");
        }
    }
}
