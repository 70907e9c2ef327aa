//! etcd's own lock service over gRPC. Its few messages are written by hand, because the crate etcd-client needs protoc
//! to build. The JSON gateway would add a hop that etcd's users do not have.

use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use super::peer::{POLL, Peer};
use crate::Outcome;

/// A channel to etcd, and a lease.
#[derive(Clone)]
pub(super) struct Etcd {
    channel: Channel,
    lease: i64,
}

#[derive(Clone)]
pub(super) struct EtcdLock {
    etcd: Etcd,
    name: Vec<u8>,
}

/// The lease in seconds. It is longer than any work, so no renewal is needed.
const TTL: i64 = 600;

impl Peer for Etcd {
    type Lock = EtcdLock;
    /// The key of the hold.
    type Held = Vec<u8>;

    async fn open(address: &str) -> Outcome<Self> {
        let channel = channel(address).await?;
        let granted: LeaseGranted =
            call(&channel, "/etcdserverpb.Lease/LeaseGrant", LeaseGrant { ttl: TTL, id: 0 }).await?;
        Ok(Self { channel, lease: granted.id })
    }

    fn lock(&self, path: &str) -> EtcdLock {
        EtcdLock { etcd: self.clone(), name: path.as_bytes().to_vec() }
    }

    async fn acquire(lock: &EtcdLock) -> Outcome<Vec<u8>> {
        let request = LockRequest { name: lock.name.clone(), lease: lock.etcd.lease };
        let locked: Locked = call(&lock.etcd.channel, "/v3lockpb.Lock/Lock", request).await?;
        Ok(locked.key)
    }

    async fn release(lock: &EtcdLock, key: Vec<u8>) -> Outcome<()> {
        let _: IgnoredReply = call(&lock.etcd.channel, "/v3lockpb.Lock/Unlock", Unlock { key }).await?;
        Ok(())
    }

    async fn close(self) -> Outcome<()> {
        let revoke = LeaseRevoke { id: self.lease };
        let _: IgnoredReply = call(&self.channel, "/etcdserverpb.Lease/LeaseRevoke", revoke).await?;
        Ok(())
    }

    async fn prepare(_: &str, _: &[String]) -> Outcome<()> {
        Ok(())
    }

    async fn await_contenders(address: &str, paths: &[String], count: usize) -> Outcome<()> {
        let channel = channel(address).await?;
        for path in paths {
            // The range has all keys below `path/`. It ends at `path0`, because `0` is the byte after the slash.
            let (key, end) = (format!("{path}/").into_bytes(), format!("{path}0").into_bytes());
            loop {
                let range = Range { key: key.clone(), end: end.clone(), count_only: true };
                let there: Counted = call(&channel, "/etcdserverpb.KV/Range", range).await?;
                if usize::try_from(there.count).is_ok_and(|there| there >= count) {
                    break;
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(())
    }
}

async fn channel(address: &str) -> Outcome<Channel> {
    Ok(Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await?)
}

async fn call<A, B>(channel: &Channel, method: &'static str, request: A) -> Outcome<B>
where
    A: prost::Message + 'static,
    B: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await?;
    let path = PathAndQuery::from_static(method);
    let answer = grpc.unary(Request::new(request), path, ProstCodec::default()).await;
    Ok(answer.map_err(|status| format!("etcd: {}", status.message()))?.into_inner())
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGrant {
    #[prost(int64, tag = "1")]
    ttl: i64,
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseGranted {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseRevoke {
    #[prost(int64, tag = "1")]
    id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LockRequest {
    #[prost(bytes = "vec", tag = "1")]
    name: Vec<u8>,
    #[prost(int64, tag = "2")]
    lease: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Locked {
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Unlock {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Range {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    end: Vec<u8>,
    #[prost(bool, tag = "9")]
    count_only: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Counted {
    #[prost(int64, tag = "4")]
    count: i64,
}

/// An answer whose fields are not needed.
#[derive(Clone, PartialEq, prost::Message)]
struct IgnoredReply {}
