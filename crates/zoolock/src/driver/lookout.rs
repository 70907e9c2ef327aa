//! A holder that looks out for clients of other makes that join its queue and do not see it.
//!
//! Nobody can stop them: they will think that they hold, too. But the holder can be told. It looks only while somebody
//! listens, not before it has held for a while, and the more rarely the longer its queue: so many names in a second.

use std::sync::{Arc, Weak};
use std::time::Duration;

use zoolock_core::Record;
use zoolock_core::Zxid;
use zoolock_core::census::census;
use zoolock_core::layout::Layout;
use zoolock_core::names::{Name, Spelling};

use super::Acquisition;
use crate::events::LockEvent;
use crate::naming;
use crate::session::lock;

/// Who holds for less than this never looks.
const PACE: Duration = Duration::from_secs(1);
/// How many names may be read in that time.
const NAMES: u32 = 64;

/// What was seen in one directory.
#[derive(Default)]
struct Sight {
    changed: Option<(Zxid, i32)>,
    reported: Vec<Stranger>,
}

/// What was found there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stranger {
    /// Contenders written in these ways.
    Clash(Spelling, Spelling),
    /// A semaphore of another client library.
    Layout(Layout),
}

/// Looks until the lock is gone.
pub(super) async fn look_out(acquisition: Weak<Acquisition>, places: usize) {
    let mut sights: Vec<Sight> = (0..places).map(|_| Sight::default()).collect();
    let mut wait = PACE;
    loop {
        tokio::time::sleep(wait).await;
        let mut read = 0;
        for (place, sight) in sights.iter_mut().enumerate() {
            let Some(acquisition) = acquisition.upgrade() else { return };
            if lock(&acquisition.state).lost.is_some() || acquisition.is_leaving() {
                return;
            }
            if !acquisition.listeners.is_anybody_there() {
                continue;
            }
            read += acquisition.look_around(place, sight).await;
        }
        wait = PACE * (1 + read / NAMES);
    }
}

impl Acquisition {
    /// How many names were read.
    async fn look_around(self: &Arc<Self>, place: usize, sight: &mut Sight) -> u32 {
        let Some(keeper) = self.session.keeper() else { return 0 };
        let directory = self.directories[place].as_str();
        // Most of the time nothing has happened, and that costs no listing.
        let Ok((data, stat)) = keeper.read(directory).await else { return 0 };
        if sight.changed == Some((stat.pzxid, stat.version)) {
            return 0;
        }
        let Ok((names, _)) = keeper.children(directory).await else { return 0 };
        sight.changed = Some((stat.pzxid, stat.version));
        if let Some(what) = self.stranger(place, &names, Record::parse(&data))
            && !sight.reported.contains(&what.0)
        {
            sight.reported.push(what.0);
            let what = format!("{directory}: {}", what.1);
            tracing::warn!("{what}");
            self.tell(&lock(&self.state), |ticket| LockEvent::Neighbour(ticket, what));
        }
        u32::try_from(names.len()).unwrap_or(u32::MAX)
    }

    /// Who stands there that does not see us, or another one: what tells it from others, and words for it.
    fn stranger(&self, place: usize, names: &[String], record: Record) -> Option<(Stranger, String)> {
        let node = lock(&self.state).machine.node(place)?;
        let mine = node.name();
        let own = node.prefix.parsed(node.sequence);
        if let Some(layout) = Layout::proven_by(names, record) {
            return Some((Stranger::Layout(layout), naming::two_layouts(&own, layout)));
        }
        let others = names.iter().filter(|name| **name != mine).filter_map(|name| Name::parse(name));
        let clash = census(others, Some(own), self.config.names)?;
        let kinds = (clash.blind.spelling, clash.unseen.spelling);
        Some((Stranger::Clash(kinds.0, kinds.1), naming::refusal(&clash)))
    }
}
