//! Limits on the number of connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// A counter of connections, including connections with an unfinished handshake.
#[derive(Debug)]
pub(crate) struct ConnectionLimits {
    /// 0: no limit.
    total: usize,
    per_address: usize,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    total: usize,
    addresses: HashMap<IpAddr, usize>,
}

/// A counted connection. Dropping it makes room for another one.
#[derive(Debug)]
pub(crate) struct Place {
    limits: Arc<ConnectionLimits>,
    address: IpAddr,
}

impl ConnectionLimits {
    pub(crate) fn new(total: usize, per_address: usize) -> Self {
        ConnectionLimits { total, per_address, present: Mutex::default() }
    }

    /// Counts a new connection. Returns `None` if a limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        // IPv4 and its IPv6 form count as the same address.
        let address = address.to_canonical();
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let here = present.addresses.get(&address).copied().unwrap_or(0);
        let full = |limit, count| limit != 0 && count >= limit;
        if full(self.total, present.total) || full(self.per_address, here) {
            return None;
        }
        present.total += 1;
        present.addresses.insert(address, here + 1);
        Some(Place { limits: Arc::clone(self), address })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut present = self.limits.present.lock().unwrap_or_else(PoisonError::into_inner);
        present.total -= 1;
        match present.addresses.get_mut(&self.address) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                present.addresses.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_come_back() {
        let limits = Arc::new(ConnectionLimits::new(3, 2));
        let at = |last| IpAddr::from([127, 0, 0, last]);
        let (a, b) = (limits.enter(at(1)), limits.enter(at(1)));
        assert!(a.is_some() && b.is_some() && limits.enter(at(1)).is_none());
        let c = limits.enter(at(2));
        assert!(c.is_some() && limits.enter(at(3)).is_none());
        drop(a);
        assert!(limits.enter(at(3)).is_some());
        drop((b, c));
        assert!(limits.present.lock().expect("nobody panicked").addresses.is_empty());
    }
}
