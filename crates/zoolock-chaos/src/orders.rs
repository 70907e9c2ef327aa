//! The orders of the parent process, one line each.

use tokio::sync::mpsc::{self, Receiver};

use crate::Outcome;

/// The lines of standard input. A thread of its own reads them. It ends with the input, or after this value is dropped.
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

    /// Waits for the next order, which must be this one.
    pub(crate) async fn wait_for(&mut self, order: &str) -> Outcome<()> {
        match self.0.recv().await {
            Some(line) if line == order => Ok(()),
            Some(line) => Err(format!("expected the order {order}, received {line}").into()),
            None => Err("the parent process has ended".into()),
        }
    }
}
