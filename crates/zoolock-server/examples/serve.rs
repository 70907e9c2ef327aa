//! Serves until a line, or the end, comes on standard input: `cargo run --example serve -- 127.0.0.1:2181`.

use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let addr = args.next().unwrap_or_else(|| "127.0.0.1:2181".to_owned()).parse()?;
    let mut builder = zoolock_server::Server::builder().listen(addr).container_check(Duration::from_secs(10));
    if let Some(digest) = args.next() {
        builder = builder.super_digest(digest);
    }
    let server = builder.start().await?;
    println!("{}", server.local_addr());
    tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())).await??;
    server.shutdown().await;
    Ok(())
}
