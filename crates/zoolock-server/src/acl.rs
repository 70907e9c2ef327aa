//! Access lists: the permissions that identities have on a znode.
//!
//! An entry has the scheme `world`, `auth`, `digest`, `ip` or `x509`. A client with an identity of
//! scheme `super` has all permissions on every znode.

use std::hash::{BuildHasher as _, Hash, Hasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};
use zoolock_wire::{Acl, Identity, perms};

/// The access list of a znode. Znodes with the same list share it.
///
/// A list is prepared for fast checks when it is created. A check compares numbers, not names, and takes a time in
/// proportion to the identities of the client, not to the length of the list.
#[derive(Debug, Clone)]
pub struct AclList(Arc<PreparedList>);

#[derive(Debug)]
struct PreparedList {
    entries: Box<[Acl]>,
    /// Number of this list. No other list gets the same number while the server runs.
    number: u64,
    /// Permissions of every client.
    everyone: i32,
    /// Permissions by the keys of identities, sorted by key.
    by_key: Box<[(u128, i32)]>,
    /// Permissions of subnets.
    subnets: Box<[(Subnet, i32)]>,
    /// Approximate size in the log, in bytes.
    bytes: usize,
    /// Hash of the entries. Equal lists have the same hash. It is keyed at random, because clients choose the entries.
    hash: u32,
}

static OPEN: LazyLock<AclList> = LazyLock::new(|| AclList::from([Acl::anyone(perms::ALL)]));

impl AclList {
    /// Returns whether there is another copy of this list, which keeps its memory.
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns a number that no other list gets while the server runs.
    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    /// Returns the permissions that the list gives to a client without the identity `super`.
    pub(crate) fn granted(&self, keys: &[u128], addresses: &[IpAddr]) -> i32 {
        let PreparedList { entries, everyone, by_key, subnets, .. } = &*self.0;
        if entries.is_empty() {
            return perms::ALL;
        }
        let of_key =
            |key: &u128| by_key.binary_search_by_key(key, |(key, _)| *key).map_or(0, |at| by_key[at].1);
        let of_subnet = |(net, perms): &(Subnet, i32)| {
            if addresses.iter().any(|address| net.contains(*address)) { *perms } else { 0 }
        };
        let granted = keys.iter().map(of_key).fold(*everyone, std::ops::BitOr::bitor);
        subnets.iter().map(of_subnet).fold(granted, std::ops::BitOr::bitor)
    }

    /// Returns the approximate size of the list in the log, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Returns the hash of the entries.
    pub(crate) fn hash_number(&self) -> u32 {
        self.0.hash
    }
}

impl From<Vec<Acl>> for AclList {
    fn from(entries: Vec<Acl>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        let mut hasher = HASHER.build_hasher();
        let (mut everyone, mut by_key, mut subnets) = (0, Vec::new(), Vec::new());
        for Acl { perms, identity } in &entries {
            let key = identity_key(identity);
            (key, perms).hash(&mut hasher);
            match identity.scheme.as_str() {
                "world" if identity.id == "anyone" => everyone |= perms,
                "world" => {}
                "ip" => subnets.extend(Subnet::parse(&identity.id).map(|net| (net, *perms))),
                _ => by_key.push((key, *perms)),
            }
        }
        by_key.sort_unstable_by_key(|(key, _)| *key);
        by_key.dedup_by(|(key, perms), (kept, all)| {
            let same = key == kept;
            *all |= if same { *perms } else { 0 };
            same
        });
        AclList(Arc::new(PreparedList {
            bytes: stored_bytes(&entries),
            hash: hasher.finish() as u32,
            entries: entries.into(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            everyone,
            by_key: by_key.into(),
            subnets: subnets.into(),
        }))
    }
}

impl<const N: usize> From<[Acl; N]> for AclList {
    fn from(entries: [Acl; N]) -> Self {
        Vec::from(entries).into()
    }
}

impl Deref for AclList {
    type Target = [Acl];

    fn deref(&self) -> &[Acl] {
        &self.0.entries
    }
}

impl PartialEq for AclList {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl Eq for AclList {}

impl Hash for AclList {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u32(self.0.hash);
    }
}

/// Returns the key of an identity, a number that stands for it in checks. The hash has 128 bits and is keyed at random,
/// so that no client can find two identities with the same key.
pub(crate) fn identity_key(identity: &Identity) -> u128 {
    static HASHERS: LazyLock<[RandomState; 2]> = LazyLock::new(|| [RandomState::new(), RandomState::new()]);
    let [high, low] = HASHERS.each_ref().map(|hasher| hasher.hash_one(identity));
    u128::from(high) << 64 | u128::from(low)
}

/// Returns the identity that `user:password` proves in the scheme `digest`.
pub fn digest_identity(credentials: &[u8]) -> Identity {
    let text = String::from_utf8_lossy(credentials);
    let user = text.split(':').next().unwrap_or_default();
    let hash = STANDARD.encode(Sha1::digest(text.as_bytes()));
    Identity::new("digest", format!("{user}:{hash}"))
}

/// Returns the list that gives every client all permissions.
pub fn open_list() -> AclList {
    OPEN.clone()
}

/// Returns the approximate size of a list in the log, in bytes.
pub(crate) fn stored_bytes(list: &[Acl]) -> usize {
    list.iter().map(|acl| identity_bytes(&acl.identity)).sum()
}

pub(crate) fn identity_bytes(identity: &Identity) -> usize {
    identity.scheme.len() + identity.id.len()
}

/// Returns the list without its password hashes, for clients without the ADMIN permission.
pub fn mask_digests(list: &[Acl]) -> Vec<Acl> {
    let mask = |acl: &Acl| match acl.identity.scheme.as_str() {
        "digest" => Acl {
            perms: acl.perms,
            identity: Identity::new("digest", format!("{}:x", acl.identity.shown_id())),
        },
        _ => acl.clone(),
    };
    list.iter().map(mask).collect()
}

#[derive(Debug)]
pub(crate) struct Subnet {
    addr: IpAddr,
    bits: u32,
}

impl Subnet {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (addr, bits) = match text.split_once('/') {
            Some((addr, bits)) => (addr, Some(bits.parse().ok()?)),
            None => (text, None),
        };
        let addr = parse_ipv4(addr).map(IpAddr::V4).or_else(|| addr.parse().ok())?;
        let all = if addr.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        (bits <= all).then_some(Subnet { addr, bits })
    }

    fn contains(&self, other: IpAddr) -> bool {
        match (self.addr, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.bits
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros() >= self.bits
            }
            _ => false,
        }
    }
}

/// Parses an IPv4 address as ZooKeeper does, with Java's `parseInt` for each number. "+127.00.0.1" is an address, too.
fn parse_ipv4(addr: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = addr.split('.');
    for octet in &mut octets {
        *octet = u8::try_from(parts.next()?.parse::<i32>().ok()?).ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_as_zookeeper_does() {
        // From the ZooKeeper administrator's guide: the digest of super:test.
        assert_eq!(digest_identity(b"super:test").id, "super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
    }

    #[test]
    fn subnet_contains_only_its_addresses() {
        let within = |net: &str, addr: &str| {
            Subnet::parse(net).is_some_and(|net| net.contains(addr.parse().expect("an address")))
        };
        assert!(within("10.1.0.0/16", "10.1.2.3"));
        assert!(!within("10.1.0.0/16", "10.2.2.3"));
        assert!(within("10.1.2.0/23", "10.1.3.9"));
        assert!(!within("10.1.2.0/23", "10.1.4.9"));
        assert!(within("127.0.0.1", "127.0.0.1"));
        assert!(within("0.0.0.0/0", "8.8.8.8"));
        assert!(!within("::1", "127.0.0.1"));
        assert!(Subnet::parse("10.0.0.0/33").is_none());
        assert!(Subnet::parse("home").is_none());
        assert!(Subnet::parse("1.2.3.4.5").is_none() && Subnet::parse("1.2.3").is_none());
        assert!(within("fe80::/10", "fe80::1") && !within("fe80::/10", "10.0.0.1"));
    }
}
