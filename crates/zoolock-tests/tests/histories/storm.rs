//! What happens to the connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use zoolock_tests::{Proxy, Random, opcode};

/// What is lost: the joins, releases and cancellations of locks, and their looks.
const LOST: [i32; 6] = [
    opcode::CREATE2,
    opcode::MULTI,
    opcode::DELETE,
    opcode::GET_DATA,
    opcode::GET_CHILDREN,
    opcode::GET_CHILDREN2,
];

/// Goes on until it is stopped. `long`: also silences in which sessions expire.
pub(crate) async fn rage(proxies: Vec<Arc<Proxy>>, mut random: Random, long: bool) {
    let mut calm = Instant::now();
    loop {
        sleep(Duration::from_millis(20 + random.below(100))).await;
        let proxy = &proxies[random.below(proxies.len() as u64) as usize];
        let opcode = LOST[random.below(LOST.len() as u64) as usize];
        match random.below(3) {
            0 => proxy.drop_next_reply(opcode),
            1 => proxy.drop_next_request(opcode),
            _ => proxy.cut().await,
        }
        if long && calm.elapsed() > Duration::from_millis(1_500) {
            if random.chance(50) {
                proxy.blackhole(true);
            } else {
                proxy.refuse(true).await;
                proxy.cut().await;
            }
            // Some lose only their lease.
            sleep(Duration::from_millis(1_000 + random.below(2_000))).await;
            proxy.blackhole(false);
            proxy.refuse(false).await;
            calm = Instant::now();
        }
    }
}
