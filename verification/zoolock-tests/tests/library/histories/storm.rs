//! Random connection faults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use zoolock_tests::{Proxy, opcode};

use fastrand::Rng;

/// Operations whose requests or replies are lost: creates, deletes, transactions and reads.
const LOST: [i32; 6] = [
    opcode::CREATE2,
    opcode::MULTI,
    opcode::DELETE,
    opcode::GET_DATA,
    opcode::GET_CHILDREN,
    opcode::GET_CHILDREN2,
];

/// Injects faults into the proxies until the task is aborted. With `long`, some outages outlast the
/// session timeout.
pub(crate) async fn disturb(proxies: Vec<Arc<Proxy>>, mut random: Rng, long: bool) {
    let mut calm = Instant::now();
    loop {
        sleep(Duration::from_millis(20 + random.u64(..100))).await;
        let proxy = &proxies[random.u64(..proxies.len() as u64) as usize];
        let opcode = LOST[random.u64(..LOST.len() as u64) as usize];
        match random.u64(..3) {
            0 => proxy.drop_next_reply(opcode),
            1 => proxy.drop_next_request(opcode),
            _ => proxy.close_connections().await,
        }
        if long && calm.elapsed() > Duration::from_millis(1_500) {
            if random.u8(..100) < 50 {
                proxy.blackhole(true);
            } else {
                proxy.refuse(true).await;
                proxy.close_connections().await;
            }
            // The outage can be shorter than the session timeout. Then the client loses at most its
            // lease.
            sleep(Duration::from_millis(1_000 + random.u64(..2_000))).await;
            proxy.blackhole(false);
            proxy.refuse(false).await;
            calm = Instant::now();
        }
    }
}
