//! Limits on the number of connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The limits on the number of connections, with the current counts. Connections with an unfinished
/// handshake count, too.
#[derive(Debug)]
pub struct ConnectionLimits {
    /// Maximum number of connections; 0: no limit.
    total: usize,
    /// Maximum number of connections per client address; 0: no limit.
    per_address: usize,
    /// Like `per_address`, for the addresses of this machine.
    per_loopback_address: usize,
    counts: Mutex<OpenCounts>,
}

#[derive(Debug, Default)]
struct OpenCounts {
    total: usize,
    addresses: HashMap<IpAddr, usize>,
}

/// A counted connection. Dropping the permit makes room for another connection.
#[derive(Debug)]
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    address: IpAddr,
}

/// Minimum limit per address for HTTP: a monitor, a few checks of health, and a person with a browser.
#[cfg(feature = "http")]
const MIN_HTTP_SHARE: usize = 4;

impl ConnectionLimits {
    pub(crate) fn new(total: usize, per_address: usize) -> Self {
        let per_loopback_address = per_address;
        ConnectionLimits { total, per_address, per_loopback_address, counts: Mutex::default() }
    }

    /// Returns limits for HTTP. One address may have an eighth of the connections.
    ///
    /// A loopback address may have half of them, because all clients of a reverse proxy on this machine share that
    /// address. The other half is left for clients that connect directly.
    #[cfg(feature = "http")]
    pub fn for_http(total: usize) -> Self {
        let total = total.max(1);
        let share = |part: usize| part.max(MIN_HTTP_SHARE);
        let (per_address, per_loopback_address) = (share(total / 8), share(total / 2));
        ConnectionLimits { total, per_address, per_loopback_address, counts: Mutex::default() }
    }

    /// Counts a new connection. Returns `None` if a limit is reached.
    pub fn try_acquire(self: &Arc<Self>, address: IpAddr) -> Option<ConnectionPermit> {
        // An IPv4 address and its IPv6 form count as the same address.
        let address = address.to_canonical();
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let here = counts.addresses.get(&address).copied().unwrap_or(0);
        let full = |limit, count| limit != 0 && count >= limit;
        let share = if address.is_loopback() { self.per_loopback_address } else { self.per_address };
        if full(self.total, counts.total) || full(share, here) {
            return None;
        }
        counts.total += 1;
        counts.addresses.insert(address, here + 1);
        Some(ConnectionPermit { limits: Arc::clone(self), address })
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut counts = self.limits.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        match counts.addresses.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.addresses.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_connections_free_their_slots() {
        let limits = Arc::new(ConnectionLimits::new(3, 2));
        let at = |last| IpAddr::from([127, 0, 0, last]);
        let (a, b) = (limits.try_acquire(at(1)), limits.try_acquire(at(1)));
        assert!(a.is_some() && b.is_some() && limits.try_acquire(at(1)).is_none());
        let c = limits.try_acquire(at(2));
        assert!(c.is_some() && limits.try_acquire(at(3)).is_none());
        drop(a);
        assert!(limits.try_acquire(at(3)).is_some());
        drop((b, c));
        assert!(limits.counts.lock().expect("no thread panicked").addresses.is_empty());
    }

    #[test]
    fn http_share_of_one_address_leaves_room() {
        for total in [8, 16, 29, 128, 256] {
            for address in [[10, 0, 0, 1], [127, 0, 0, 1]] {
                let limits = Arc::new(ConnectionLimits::for_http(total));
                let permits: Vec<_> = (0..total).map_while(|_| limits.try_acquire(address.into())).collect();
                let share = if address[0] == 127 { total / 2 } else { total / 8 };
                assert_eq!(permits.len(), share.max(4), "{total} {address:?}");
                assert!(limits.try_acquire([10, 0, 0, 2].into()).is_some());
            }
        }
    }
}
