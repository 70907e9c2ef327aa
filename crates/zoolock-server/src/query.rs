//! Answers reads.

use bytes::Bytes;
use zoolock_wire::{Code, OpResult, Reply, Request, perms};

use crate::acl;
use crate::prepare::Requester;
use crate::state::State;
use crate::tree::Znode;

/// Answers a request that changes nothing. The caller sets watches.
///
/// # Errors
/// Returns the code for the reply header.
pub fn query(request: &Request, state: &State, asker: Requester<'_>) -> Result<Reply, Code> {
    let readable = |path: &str| -> Result<Znode<'_>, Code> {
        let node = state.tree.get(path).ok_or(Code::NoNode)?;
        asker.client.check_permission(node.acl(), perms::READ)?;
        Ok(node)
    };
    match request {
        Request::Exists { path, .. } if path.contains('\0') => Err(Code::BadArguments),
        Request::Exists { path, .. } => {
            state.tree.get(path).map(|node| Reply::Stat(node.stat())).ok_or(Code::NoNode)
        }
        Request::GetData { path, .. } => {
            let node = readable(path)?;
            asker.client.charge_bytes(node.data().map_or(0, <[u8]>::len))?;
            Ok(Reply::Data { data: node.data().map(Bytes::copy_from_slice), stat: node.stat() })
        }
        Request::GetChildren { path, .. } => {
            readable(path).and_then(|node| list_children(node, asker)).map(Reply::Children)
        }
        Request::GetChildren2 { path, .. } => {
            let node = readable(path)?;
            Ok(Reply::ChildrenStat { children: list_children(node, asker)?, stat: node.stat() })
        }
        Request::GetAllChildrenNumber { path } => {
            readable(path)?;
            let mut count = state.tree.count_descendants(path).ok_or(Code::NoNode)?;
            // ZooKeeper stores the root twice, as "" and as "/". It counts "/" as a child of "".
            count += usize::from(path.is_empty());
            Ok(Reply::Number(i32::try_from(count).unwrap_or(i32::MAX)))
        }
        Request::GetEphemerals { prefix } => {
            let all = matches!(prefix.trim(), "" | "/");
            let mut paths = Vec::new();
            for path in state.tree.ephemerals_unsorted(asker.session) {
                // Each path is built before it is compared, so each one counts.
                asker.client.charge_bytes(path.len())?;
                if all || path.starts_with(prefix.as_str()) {
                    paths.push(path);
                }
            }
            paths.sort_unstable();
            Ok(Reply::Children(paths))
        }
        Request::GetAcl { path } => {
            let node = state.tree.get(path).ok_or(Code::NoNode)?;
            asker.client.check_permission(node.acl(), perms::READ | perms::ADMIN)?;
            let acl = match asker.client.check_permission(node.acl(), perms::ADMIN) {
                Ok(()) => node.acl().to_vec(),
                Err(_) => acl::mask_digests(node.acl()),
            };
            Ok(Reply::AclStat { acl, stat: node.stat() })
        }
        Request::MultiRead(reads) => {
            let answer = |read: &Request| match read {
                Request::GetData { .. } | Request::GetChildren { .. } => match query(read, state, asker) {
                    Ok(Reply::Data { data, stat }) => Ok(OpResult::GetData { data, stat }),
                    Ok(Reply::Children(children)) => Ok(OpResult::GetChildren(children)),
                    Ok(_) => Err(Code::SystemError),
                    // The whole request is too much, not this read alone.
                    Err(Code::QuotaExceeded) => Err(Code::QuotaExceeded),
                    Err(code) => Ok(OpResult::Error(code.number())),
                },
                _ => Err(Code::MarshallingError),
            };
            reads.iter().map(answer).collect::<Result<_, _>>().map(Reply::Multi)
        }
        Request::Sync { path } => Ok(Reply::Path(path.clone())),
        Request::WhoAmI => {
            let shown = asker
                .client
                .identities()
                .iter()
                .map(|identity| (identity.scheme.clone(), identity.shown_id().to_owned()));
            Ok(Reply::Identities(shown.collect()))
        }
        _ => Err(Code::Unimplemented),
    }
}

fn list_children(node: Znode<'_>, asker: Requester<'_>) -> Result<Vec<String>, Code> {
    let charged = |name: &str| {
        asker.client.charge_bytes(name.len())?;
        Ok(name.to_owned())
    };
    node.children().map(charged).collect()
}
