//! The operator: revokes and breaks locks of holders and waiters, and deletes znodes by hand.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;
use zookeeper_client::Client;
use zoolock::{Error, FencingToken, Zoolock};

use crate::histories::referee::{Holder, Referee};
use crate::histories::worker::{LOCKS, SEMAPHORES};
use fastrand::Rng;

pub(crate) struct Operator {
    pub(crate) zl: Zoolock,
    pub(crate) client: Client,
    /// Parent path of the lock directories, for the plain client.
    pub(crate) root: String,
    pub(crate) referee: Arc<Referee>,
    pub(crate) random: Rng,
}

impl Operator {
    pub(crate) async fn run(mut self) {
        loop {
            sleep(Duration::from_millis(10 + self.random.u64(..60))).await;
            let holders = self.referee.holders();
            match self.random.u64(..10) {
                0..4 if !holders.is_empty() => {
                    let Holder { name, ticket, .. } = self.one_of(&holders);
                    self.revoke(name, ticket).await;
                }
                4..6 => {
                    if let Some((name, ticket)) = self.random_waiter().await {
                        self.revoke(name, ticket).await;
                    }
                }
                6..9 if !holders.is_empty() => {
                    let Holder { name, ticket, .. } = self.one_of(&holders);
                    if self.referee.is_never_broken(name) {
                        self.delete(name, ticket).await;
                    } else {
                        self.break_lock(name, ticket).await;
                    }
                }
                9 => {
                    if let Some((name, ticket)) = self.random_waiter().await
                        && !self.referee.is_never_broken(name)
                    {
                        self.break_lock(name, ticket).await;
                    }
                }
                _ => {}
            }
        }
    }

    async fn revoke(&mut self, name: &'static str, ticket: FencingToken) {
        match self.zl.admin().revoke(name, ticket).await {
            Ok(()) => self.referee.record_revocation(ticket),
            Err(error) => self.accept(name, "revoke", &error),
        }
    }

    async fn break_lock(&mut self, name: &'static str, ticket: FencingToken) {
        self.referee.begin_break(ticket, name);
        match self.zl.admin().break_lock(name, ticket).await {
            Ok(_) => self.referee.record_break(ticket),
            Err(error) => self.accept(name, "break", &error),
        }
    }

    /// Deletes the holder's znode without a release marker, as if the holder had crashed.
    async fn delete(&mut self, name: &'static str, ticket: FencingToken) {
        let seen = match self.zl.admin().snapshot(name).await {
            Ok(seen) => seen,
            Err(error) => return self.accept(name, "look at", &error),
        };
        let wanted = Some(zoolock::Ticket::from(ticket));
        let all = seen.holder.iter().chain(&seen.beside).chain(&seen.waiters);
        let Some(node) = all.filter(|entry| entry.token == wanted).map(|entry| entry.node.clone()).next()
        else {
            return;
        };
        self.referee.begin_break(ticket, name);
        let path = format!("{}/{name}/{node}", self.root);
        if self.client.delete(&path, None).await.is_ok() {
            self.referee.record_break(ticket);
        }
    }

    /// Returns a random waiter, which can be granted the lock at any moment.
    async fn random_waiter(&mut self) -> Option<(&'static str, FencingToken)> {
        let names: Vec<&'static str> = LOCKS.into_iter().chain(SEMAPHORES.map(|(name, _)| name)).collect();
        let name = self.one_of(&names);
        let seen = match self.zl.admin().snapshot(name).await {
            Ok(seen) => seen,
            Err(error) => {
                self.accept(name, "look at", &error);
                return None;
            }
        };
        if seen.waiters.is_empty() {
            return None;
        }
        let waiter = &seen.waiters[self.random.u64(..seen.waiters.len() as u64) as usize];
        let token = waiter.token?.to_string();
        Some((name, token.parse().expect("a snapshot shows tokens")))
    }

    fn accept(&self, name: &str, what: &str, error: &Error) {
        match error {
            Error::NoSuchHolder { .. } => {}
            // The queue changed between the read and the write.
            Error::Unavailable { .. } => self.referee.count("restless"),
            error => self.referee.fail(&format!("cannot {what} {name}: {error}")),
        }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.u64(..all.len() as u64) as usize]
    }
}
