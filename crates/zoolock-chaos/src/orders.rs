//! What whoever started us tells us, a line each.

use tokio::sync::mpsc::{self, Receiver};

use crate::Outcome;

/// Lines of the standard input, read by a thread of its own, which ends with them or with us.
pub(crate) struct Orders(Receiver<String>);

impl Orders {
    pub(crate) fn listen() -> Orders {
        let (sender, receiver) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Orders(receiver)
    }

    /// Waits until we are told this.
    pub(crate) async fn expect(&mut self, order: &str) -> Outcome<()> {
        match self.0.recv().await {
            Some(line) if line == order => Ok(()),
            Some(line) => Err(format!("told to {line} and not to {order}").into()),
            None => Err("whoever started us is gone".into()),
        }
    }
}
