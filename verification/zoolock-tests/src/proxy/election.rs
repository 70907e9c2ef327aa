//! The first message of a connection for elections between the servers of an ensemble.

use std::io::Result;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The largest size of an address in the message, in bytes.
const LONGEST_ADDRESS: usize = 1024;

/// Forwards the message with another address. The message has a version (8 bytes), the number of the sender (8 bytes),
/// and the length (4 bytes) and the text of the address on which the sender listens.
pub(super) async fn forward_first_message(
    from: &mut TcpStream,
    to: &mut TcpStream,
    address: SocketAddr,
) -> Result<()> {
    let mut head = [0; 20];
    from.read_exact(&mut head).await?;
    let [.., a, b, c, d] = head;
    let mut sent_address = vec![0; (u32::from_be_bytes([a, b, c, d]) as usize).min(LONGEST_ADDRESS)];
    from.read_exact(&mut sent_address).await?;
    let address = address.to_string();
    to.write_all(&head[..16]).await?;
    to.write_all(&(address.len() as u32).to_be_bytes()).await?;
    to.write_all(address.as_bytes()).await
}
