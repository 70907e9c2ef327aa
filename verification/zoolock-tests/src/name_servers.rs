//! Two name servers that answer as a test wants. They run in [`Namespaces`](crate::namespaces::Namespaces).

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::sleep;

use crate::{Result, TestFailure, lock};

/// The address of the name server that resolvers ask first.
pub const FIRST: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 54);
/// The address of the other name server.
pub const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);

/// The answers of a name server to questions about IPv4 addresses.
#[derive(Clone, Debug)]
pub enum Answers {
    /// The right address, after a time.
    Right(Duration),
    /// These addresses for each name.
    Fixed(Vec<Ipv4Addr>),
    /// In turn the right address and an error. Begins with the right address if this is false.
    Flaps(bool),
    /// An error.
    Fails,
    /// No answer.
    Silent,
}

/// Two name servers, of which resolvers ask the first one first. Both are silent at first.
#[derive(Debug)]
pub struct NameServers([Arc<Mutex<Answers>>; 2]);

impl NameServers {
    /// Starts the name servers. `right_address` returns the right address of a name.
    ///
    /// # Errors
    /// Fails if port 53 is not free or not allowed.
    pub async fn start(right_address: fn(&str) -> Ipv4Addr) -> Result<NameServers> {
        let servers = NameServers([FIRST, SECOND].map(|_| Arc::new(Mutex::new(Answers::Silent))));
        for (address, answers) in [FIRST, SECOND].into_iter().zip(&servers.0) {
            let socket = UdpSocket::bind((address, 53)).await;
            let socket =
                socket.map_err(|error| TestFailure::during("starting a name server on port 53", error))?;
            tokio::spawn(answer_questions(Arc::new(socket), answers.clone(), right_address));
        }
        Ok(servers)
    }

    /// Sets the answers to later questions.
    pub fn set(&self, first: Answers, second: Answers) {
        *lock(&self.0[0]) = first;
        *lock(&self.0[1]) = second;
    }
}

async fn answer_questions(
    socket: Arc<UdpSocket>,
    answers: Arc<Mutex<Answers>>,
    right_address: fn(&str) -> Ipv4Addr,
) {
    let mut question = [0; 512];
    loop {
        let (length, from) = socket.recv_from(&mut question).await.expect("a question arrives");
        let question = question[..length].to_vec();
        let right = || vec![right_address(&asked_name(&question))];
        let (delay, addresses) = match &mut *lock(&answers) {
            Answers::Right(delay) => (*delay, Some(right())),
            Answers::Fixed(addresses) => (Duration::ZERO, Some(addresses.clone())),
            Answers::Flaps(fails) => {
                *fails = !*fails;
                (Duration::ZERO, fails.then(right))
            }
            Answers::Fails => (Duration::ZERO, None),
            Answers::Silent => continue,
        };
        let socket = socket.clone();
        tokio::spawn(async move {
            sleep(delay).await;
            let _ = socket.send_to(&dns_answer(&question, addresses), from).await;
        });
    }
}

/// Returns the name in a question, such as `zk1.test`.
fn asked_name(question: &[u8]) -> String {
    let (mut labels, mut rest) = (Vec::new(), &question[12..]);
    while let [length @ 1..=63, after @ ..] = rest {
        let (label, others) = after.split_at(usize::from(*length));
        labels.push(String::from_utf8_lossy(label));
        rest = others;
    }
    labels.join(".")
}

/// Returns the answer to a question. Without addresses, the server failed.
fn dns_answer(question: &[u8], addresses: Option<Vec<Ipv4Addr>>) -> Vec<u8> {
    let name = question[12..].iter().position(|byte| *byte == 0).expect("a name ends with a zero");
    let asked = &question[12..12 + name + 5];
    // A question about IPv6 addresses has an answer without addresses.
    let is_ipv4 = asked[asked.len() - 3] == 1;
    let failed = u8::from(addresses.is_none()) * 2;
    let addresses = addresses.filter(|_| is_ipv4).unwrap_or_default();
    let count = u8::try_from(addresses.len()).expect("few addresses");
    let mut answer = [&question[..2], &[0x81, 0x80 | failed, 0, 1, 0, count, 0, 0, 0, 0], asked].concat();
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        answer.extend(address.octets());
    }
    answer
}
