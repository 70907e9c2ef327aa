//! Answers reads.

use bytes::Bytes;
use zoolock_wire::{Code, OpResult, Reply, Request, perms};

use crate::acl;
use crate::prepare::Requester;
use crate::state::State;
use crate::tree::Znode;

/// Maximum number of bytes of data and names in the answer to a `multiRead`. The number is limited,
/// because a few bytes of a request can ask for a megabyte.
const MAX_READ: usize = 16 << 20;

/// Maximum size of a listing in bytes. A listing of this size fits into one frame.
const MAX_LISTING: usize = 1 << 30;

/// Answers a request that changes nothing. The caller sets watches.
///
/// # Errors
/// Returns the code for the reply header.
pub fn query(request: &Request, state: &State, asker: Requester<'_>) -> Result<Reply, Code> {
    let readable = |path: &str| -> Result<Znode<'_>, Code> {
        let node = state.tree.get(path).ok_or(Code::NoNode)?;
        acl::check_permission(node.acl(), perms::READ, asker.identities)?;
        Ok(node)
    };
    match request {
        Request::Exists { path, .. } if path.contains('\0') => Err(Code::BadArguments),
        Request::Exists { path, .. } => {
            state.tree.get(path).map(|node| Reply::Stat(node.stat())).ok_or(Code::NoNode)
        }
        Request::GetData { path, .. } => {
            let node = readable(path)?;
            Ok(Reply::Data { data: node.data().map(Bytes::copy_from_slice), stat: node.stat() })
        }
        Request::GetChildren { path, .. } => readable(path).and_then(list_children).map(Reply::Children),
        Request::GetChildren2 { path, .. } => {
            let node = readable(path)?;
            Ok(Reply::ChildrenStat { children: list_children(node)?, stat: node.stat() })
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
            let mut paths = state.tree.ephemerals(asker.session);
            paths.retain(|path| all || path.starts_with(prefix.as_str()));
            if paths.iter().map(|path| path.len() + 4).sum::<usize>() > MAX_LISTING {
                return Err(Code::SystemError);
            }
            Ok(Reply::Children(paths.iter().map(|path| path.as_ref().to_owned()).collect()))
        }
        Request::GetAcl { path } => {
            let node = state.tree.get(path).ok_or(Code::NoNode)?;
            acl::check_permission(node.acl(), perms::READ | perms::ADMIN, asker.identities)?;
            let acl = match acl::check_permission(node.acl(), perms::ADMIN, asker.identities) {
                Ok(()) => node.acl().to_vec(),
                Err(_) => acl::mask_digests(node.acl()),
            };
            Ok(Reply::AclStat { acl, stat: node.stat() })
        }
        Request::MultiRead(reads) => {
            let mut budget = MAX_READ;
            let mut charge = |len: usize| {
                budget = budget.checked_sub(len).ok_or(Code::SystemError)?;
                Ok(())
            };
            let mut answer = |read: &Request| match read {
                Request::GetData { .. } | Request::GetChildren { .. } => match query(read, state, asker) {
                    Ok(Reply::Data { data, stat }) => {
                        charge(data.as_ref().map_or(0, Bytes::len))?;
                        Ok(OpResult::GetData { data, stat })
                    }
                    Ok(Reply::Children(children)) => {
                        charge(children.iter().map(|name| name.len() + 4).sum())?;
                        Ok(OpResult::GetChildren(children))
                    }
                    Ok(_) => Err(Code::SystemError),
                    Err(code) => Ok(OpResult::Error(code.number())),
                },
                _ => Err(Code::MarshallingError),
            };
            reads.iter().map(&mut answer).collect::<Result<_, _>>().map(Reply::Multi)
        }
        Request::Sync { path } => Ok(Reply::Path(path.clone())),
        Request::WhoAmI => {
            let shown = asker
                .identities
                .iter()
                .map(|identity| (identity.scheme.clone(), identity.shown_id().to_owned()));
            Ok(Reply::Identities(shown.collect()))
        }
        _ => Err(Code::Unimplemented),
    }
}

fn list_children(node: Znode<'_>) -> Result<Vec<String>, Code> {
    if node.children().map(|name| name.len() + 4).sum::<usize>() > MAX_LISTING {
        return Err(Code::SystemError);
    }
    Ok(node.children().map(str::to_owned).collect())
}
