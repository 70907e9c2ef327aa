//! The access lists that clients send, before they are stored.

use std::collections::HashSet;

use zoolock_wire::{Acl, Code, Identity};

use crate::acl::{AclList, Subnet, identity_bytes, open_list, stored_bytes};
use crate::client::Client;
use crate::x500;

/// Maximum number of entries of a list.
const MAX_ENTRIES: usize = 1024;
/// Maximum number of subnets of a list. The number is limited, because the first check of a
/// connection compares its address with all of them.
const MAX_SUBNETS: usize = 256;
/// Maximum size of a stored list in bytes. [`MAX_ENTRIES`] does not limit the size, because a short
/// entry with `auth` can be stored as many long entries.
const MAX_BYTES: usize = 1 << 20;
/// Maximum size of all stored lists of a multi together, in bytes. This size is limited too,
/// because the log stores each list separately.
pub(crate) const MAX_MULTI_BYTES: usize = 2 << 20;

/// Converts a list from a client to the list to store. Removes duplicates, and replaces an `auth`
/// entry by entries for the client's authenticated identities.
///
/// # Errors
/// Returns [`Code::InvalidAcl`] if the list is empty or too long, or an entry is invalid. An entry
/// is invalid if its scheme is unknown or does not allow its id. An `auth` entry is also invalid if
/// the client has not authenticated.
pub fn resolve(sent: Vec<Acl>, client: &Client) -> Result<AclList, Code> {
    if let [only] = sent.as_slice()
        && only == &open_list()[0]
    {
        return Ok(open_list());
    }
    if sent.len() > MAX_ENTRIES {
        return Err(Code::InvalidAcl);
    }
    if sent.iter().filter(|acl| acl.identity.scheme == "ip").count() > MAX_SUBNETS {
        return Err(Code::InvalidAcl);
    }
    let mut stored: Vec<Acl> = Vec::with_capacity(sent.len());
    let mut seen = HashSet::with_capacity(sent.len());
    let mut added_bytes = 0;
    for acl in &sent {
        if !seen.insert(acl) {
            continue;
        }
        match acl.identity.scheme.as_str() {
            "world" if acl.identity.id == "anyone" => stored.push(acl.clone()),
            "auth" => {
                let authenticated = client.identities().iter().filter(|identity| is_authenticated(identity));
                let added: usize = authenticated.clone().map(identity_bytes).sum();
                added_bytes += added;
                if added == 0 || added_bytes > MAX_BYTES {
                    return Err(Code::InvalidAcl);
                }
                stored.extend(
                    authenticated.map(|identity| Acl { perms: acl.perms, identity: identity.clone() }),
                );
            }
            "digest" if has_two_parts(&acl.identity.id) => stored.push(acl.clone()),
            "x509" if x500::is_name(&acl.identity.id) => stored.push(acl.clone()),
            "ip" if Subnet::parse(&acl.identity.id).is_some() => stored.push(acl.clone()),
            _ => return Err(Code::InvalidAcl),
        }
    }
    if stored.is_empty() || stored_bytes(&stored) > MAX_BYTES {
        Err(Code::InvalidAcl)
    } else {
        Ok(stored.into())
    }
}

/// Returns whether a client gets this identity by authentication. An entry with the scheme `auth`
/// stands for all such identities of the client.
fn is_authenticated(identity: &Identity) -> bool {
    matches!(identity.scheme.as_str(), "digest" | "x509")
}

/// Returns whether Java's `split(":")`, which drops empty parts at the end, returns two parts.
fn has_two_parts(id: &str) -> bool {
    id.trim_end_matches(':').split(':').count() == 2
}

#[cfg(test)]
mod tests {
    use zoolock_wire::perms;

    use super::*;
    use crate::acl::{digest_identity, mask_digests};

    fn client(identities: &[Identity]) -> Client {
        Client::new(identities.to_vec())
    }

    #[test]
    fn auth_expands_to_client_identities() {
        let me = [Identity::new("ip", "127.0.0.1"), digest_identity(b"me:pw")];
        let auth = Acl { perms: perms::READ, identity: Identity::new("auth", "") };
        let list = resolve(vec![auth.clone()], &client(&me)).expect("authenticated");
        assert_eq!(*list, [Acl { perms: perms::READ, identity: me[1].clone() }]);
        assert_eq!(resolve(vec![auth], &client(&me[..1])), Err(Code::InvalidAcl));
        assert_eq!(resolve(vec![], &client(&me)), Err(Code::InvalidAcl));
        let check = |identities: &[Identity], perm| client(identities).check_permission(&list, perm);
        assert_eq!(check(&me, perms::READ), Ok(()));
        assert_eq!(check(&me, perms::WRITE), Err(Code::NoAuth));
        assert_eq!(check(&me[..1], perms::READ), Err(Code::NoAuth));
        assert_eq!(check(&[Identity::new("super", "")], perms::WRITE), Ok(()));
        assert_eq!(mask_digests(&list)[0].identity.id, "me:x");
    }

    #[test]
    fn list_with_too_many_subnets_is_refused() {
        let ip = |n: usize| Acl {
            perms: perms::READ,
            identity: Identity::new("ip", format!("10.0.{}.{}", n / 256, n % 256)),
        };
        assert!(resolve((0..MAX_SUBNETS).map(ip).collect(), &client(&[])).is_ok());
        assert_eq!(resolve((0..=MAX_SUBNETS).map(ip).collect(), &client(&[])), Err(Code::InvalidAcl));
    }
}
