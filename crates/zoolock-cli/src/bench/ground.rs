//! Where the works are done: a directory that was not there before and is not there afterwards.

use std::pin::Pin;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error};

use crate::connect::connect_plainly;
use crate::exit::{Exit, Failure};
use crate::plan::{Access, Endpoint, Service};

/// As long as what a contender of ours says about itself.
const DATA: [u8; 160] = [b'x'; 160];
/// How many deletions are under way at once.
const AT_ONCE: usize = 64;
/// How often a directory may vanish, or be filled again, under our hands.
const PATIENCE: usize = 20;

/// A plain session, and what is made by it.
pub(super) struct Ground {
    client: Client,
    /// As the library's: with credentials nobody else's.
    acls: Acls<'static>,
    /// With the chroot.
    dir: String,
    /// What is above it and was not there before, from the bottom.
    missing: Vec<String>,
}

/// What the library would give a node.
fn acls(service: &Service) -> Acls<'static> {
    match &service.endpoint {
        endpoint @ Endpoint::Remote { access: Access::Readers(_), .. } if endpoint.has_credentials() => {
            Acls::creator_all()
        }
        Endpoint::Remote { .. } | Endpoint::Local => Acls::anyone_all(),
    }
}

impl Ground {
    /// Opens the session and looks at what there is.
    pub(super) async fn look(service: &Service) -> Result<Self, Failure> {
        let client = connect_plainly(service).await?;
        let chroot = match &service.endpoint {
            Endpoint::Remote { hosts, .. } => hosts.find('/').map_or("", |at| &hosts[at..]),
            Endpoint::Local => "",
        };
        let dir = format!("{}{}", chroot.trim_end_matches('/'), service.root);
        let mut missing = Vec::new();
        let mut above = dir.as_str();
        while let Some(at) = above.rfind('/').filter(|at| *at > 0) {
            above = &above[..at];
            match client.check_stat(above).await {
                Ok(None) => missing.push(above.to_owned()),
                // Whatever is above it is there, too.
                Ok(Some(_)) => break,
                Err(error) => return Err(failed(above, &error)),
            }
        }
        Ok(Self { client, acls: acls(service), dir, missing })
    }

    fn create(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls)
    }

    /// Makes a directory in it, and it.
    async fn make(&self, name: &str) -> Result<String, Failure> {
        let path = format!("{}/{name}", self.dir);
        let mut todo = vec![path.as_str()];
        for _ in 0..PATIENCE + 2 * path.matches('/').count() {
            let Some(top) = todo.last().copied() else { return Ok(path) };
            let made = match self.client.create(top, b"", &self.create(CreateMode::Container)).await {
                // Before 3.5.3 there are no containers.
                Err(Error::Unimplemented | Error::BadArguments(_) | Error::MarshallingError) => {
                    self.client.create(top, b"", &self.create(CreateMode::Persistent)).await
                }
                made => made,
            };
            match (made, top.rfind('/')) {
                (Ok(_) | Err(Error::NodeExists), _) => _ = todo.pop(),
                (Err(Error::NoNode), Some(at)) if at > 0 => todo.push(&top[..at]),
                (Err(error), _) => return Err(failed(top, &error)),
            }
        }
        Err(Failure::unavailable(format!("{path}: the directory is removed as fast as it is made")))
    }

    /// Makes a directory in it that the service does not remove between two turns for being empty.
    pub(super) async fn make_kept(&self, name: &str) -> Result<String, Failure> {
        let path = self.make(name).await?;
        let kept = format!("{path}/kept");
        match self.client.create(&kept, b"", &self.create(CreateMode::Ephemeral)).await {
            Ok(_) | Err(Error::NodeExists) => Ok(path),
            Err(error) => Err(failed(&kept, &error)),
        }
    }

    /// One node made and deleted, one awaited after the other.
    pub(super) async fn create_delete(&self, prefix: &str) -> Result<(), Failure> {
        let made = self.client.create(prefix, &DATA, &self.create(CreateMode::EphemeralSequential)).await;
        let (_, sequence) = made.map_err(|error| failed(prefix, &error))?;
        let node = format!("{prefix}{sequence}");
        self.client.delete(&node, None).await.map_err(|error| failed(&node, &error))
    }

    /// Removes the directory with all that is in it, and what was made for it above.
    pub(super) async fn clear(&self, service: &Service) -> Result<(), Failure> {
        if self.clear_by(&self.client).await.is_ok() {
            return Ok(());
        }
        // The session may be the one that was lost.
        let client = connect_plainly(service).await?;
        self.clear_by(&client).await.map_err(|error| failed(&self.dir, &error))
    }

    /// Ends the session and waits for the answer: one that only ends with its process would be kept until it expires.
    pub(super) async fn close(self) {
        let mut states = self.client.state_watcher();
        drop(self);
        let mut state = states.state();
        while !state.is_terminated() {
            state = states.changed().await;
        }
    }

    async fn clear_by(&self, client: &Client) -> Result<(), Error> {
        remove(client, self.dir.clone()).await?;
        for above in &self.missing {
            // Others may be in it by now.
            match client.delete(above, None).await {
                Ok(()) | Err(Error::NoNode) => {}
                Err(_) => break,
            }
        }
        Ok(())
    }
}

/// Removes a node and all below it.
fn remove(client: &Client, path: String) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>> {
    Box::pin(async move {
        for _ in 0..PATIENCE {
            match client.delete(&path, None).await {
                Ok(()) | Err(Error::NoNode) => return Ok(()),
                Err(Error::NotEmpty) => {}
                Err(error) => return Err(error),
            }
            let names = match client.list_children(&path).await {
                Ok(names) => names,
                Err(Error::NoNode) => return Ok(()),
                Err(error) => return Err(error),
            };
            let below = stream::iter(names).map(|name| Ok(format!("{path}/{name}")));
            below.try_for_each_concurrent(AT_ONCE, |path| remove(client, path)).await?;
        }
        Err(Error::NotEmpty)
    })
}

fn failed(path: &str, error: &Error) -> Failure {
    let exit = match error {
        Error::NoAuth | Error::AuthFailed | Error::InvalidAcl | Error::QuotaExceeded => Exit::DENIED,
        _ => Exit::UNAVAILABLE,
    };
    let hint = match error {
        Error::NoAuth => "; name a --root that we may write to, or give --auth",
        _ => "",
    };
    Failure::new(exit, format!("{path}: {error}{hint}"))
}
