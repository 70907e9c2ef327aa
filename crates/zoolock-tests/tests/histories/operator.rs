//! Those who ask holders and waiters to let go, take locks away, and delete nodes by hand.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use zookeeper_client::Client;
use zoolock::{Error, FencingToken, Zoolock};
use zoolock_tests::Random;

use crate::hall::{Hall, Holder};
use crate::worker::{LOCKS, SEMAPHORES};

pub(crate) struct Operator {
    pub(crate) zl: Zoolock,
    pub(crate) client: Client,
    /// Where the locks are, for the plain client.
    pub(crate) root: String,
    pub(crate) hall: Arc<Hall>,
    pub(crate) random: Random,
}

impl Operator {
    pub(crate) async fn run(mut self) {
        loop {
            sleep(Duration::from_millis(10 + self.random.below(60))).await;
            let holders = self.hall.holders();
            match self.random.below(10) {
                0..4 if !holders.is_empty() => {
                    let Holder { name, ticket, .. } = self.one_of(&holders);
                    self.revoke(name, ticket).await;
                }
                4..6 => {
                    if let Some((name, ticket)) = self.waiter().await {
                        self.revoke(name, ticket).await;
                    }
                }
                6..9 if !holders.is_empty() => {
                    let Holder { name, ticket, .. } = self.one_of(&holders);
                    if self.hall.is_exact(name) {
                        self.delete(name, ticket).await;
                    } else {
                        self.break_lock(name, ticket).await;
                    }
                }
                9 => {
                    if let Some((name, ticket)) = self.waiter().await
                        && !self.hall.is_exact(name)
                    {
                        self.break_lock(name, ticket).await;
                    }
                }
                _ => {}
            }
        }
    }

    async fn revoke(&mut self, name: &'static str, ticket: FencingToken) {
        match self.zl.mutex(name).revoke(ticket).await {
            Ok(()) => self.hall.revoked(ticket),
            Err(error) => self.accept(name, "revoke", &error),
        }
    }

    async fn break_lock(&mut self, name: &'static str, ticket: FencingToken) {
        self.hall.doom(ticket, name);
        match self.zl.mutex(name).break_lock(ticket).await {
            Ok(_) => self.hall.broken(ticket),
            Err(error) => self.accept(name, "break", &error),
        }
    }

    /// Without a word in the lock's record: as if the holder had died.
    async fn delete(&mut self, name: &'static str, ticket: FencingToken) {
        let seen = match self.zl.mutex(name).snapshot().await {
            Ok(seen) => seen,
            Err(error) => return self.accept(name, "look at", &error),
        };
        let text = Some(ticket.to_string());
        let all = seen.holder.iter().chain(&seen.beside).chain(&seen.waiters);
        let Some(node) = all.filter(|entry| entry.token == text).map(|entry| entry.node.clone()).next()
        else {
            return;
        };
        self.hall.doom(ticket, name);
        let path = format!("{}/{name}/{node}", self.root);
        if self.client.delete(&path, None).await.is_ok() {
            self.hall.broken(ticket);
        }
    }

    /// Somebody who waits, or begins to hold just now.
    async fn waiter(&mut self) -> Option<(&'static str, FencingToken)> {
        let names: Vec<&'static str> = LOCKS.into_iter().chain(SEMAPHORES.map(|(name, _)| name)).collect();
        let name = self.one_of(&names);
        let seen = match self.zl.mutex(name).snapshot().await {
            Ok(seen) => seen,
            Err(error) => {
                self.accept(name, "look at", &error);
                return None;
            }
        };
        if seen.waiters.is_empty() {
            return None;
        }
        let waiter = &seen.waiters[self.random.below(seen.waiters.len() as u64) as usize];
        let token = waiter.token.as_ref()?;
        Some((name, token.parse().expect("a snapshot shows tokens")))
    }

    fn accept(&self, name: &str, what: &str, error: &Error) {
        match error {
            Error::NoSuchHolder { .. } => {}
            // It changes faster than it can be changed.
            Error::Unavailable { .. } => self.hall.count("restless"),
            error => self.hall.fail(&format!("cannot {what} {name}: {error}")),
        }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.below(all.len() as u64) as usize]
    }
}
