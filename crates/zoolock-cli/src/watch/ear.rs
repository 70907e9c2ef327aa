//! Hearing that something happened, without standing in the way of whoever looks meanwhile.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::plan::Service;
use crate::pokes::{Poked, Pokes};

/// Between two tries to set the watch.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

type Setting = Pin<Box<dyn Future<Output = Option<Poked>> + Send>>;

/// Hears what the service tells of one lock, where it can.
pub(super) struct Ear {
    pokes: Arc<Pokes>,
    path: String,
    poked: Option<Poked>,
    /// Goes on where it was, however often nobody waits for it.
    setting: Option<Setting>,
    pause: Duration,
}

impl Ear {
    pub(super) fn new(service: &Service, path: &str) -> Ear {
        let (pokes, path) = (Arc::new(Pokes::new(service.clone())), path.to_owned());
        Ear { pokes, path, poked: None, setting: None, pause: Duration::ZERO }
    }

    pub(super) fn hears(&self) -> bool {
        self.poked.is_some()
    }

    /// Hears no more, until somebody asks again.
    pub(super) fn close(&mut self) {
        self.poked = None;
    }

    /// Resolves when something happened, or may have. So it does when it begins to hear: what was before that is not told.
    pub(super) async fn heard(&mut self) {
        if self.poked.is_some() {
            return Poked::told(&mut self.poked).await;
        }
        while self.poked.is_none() {
            let setting = self.setting.get_or_insert_with(|| {
                let (pokes, path, pause) = (Arc::clone(&self.pokes), self.path.clone(), self.pause);
                Box::pin(async move {
                    sleep(pause).await;
                    pokes.at(&path).await
                })
            });
            self.poked = setting.await;
            self.setting = None;
            self.pause = (self.pause * 2).clamp(SHORTEST, LONGEST);
        }
        self.pause = Duration::ZERO;
    }

    /// Ends its session.
    pub(super) async fn leave(self) {
        let Ear { pokes, poked, setting, .. } = self;
        drop((poked, setting));
        pokes.close().await;
    }
}
