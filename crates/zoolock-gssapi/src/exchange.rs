//! One SASL exchange with GSSAPI (RFC 4752): first the tokens of Kerberos, then the agreement that no security layer
//! follows.
//!
//! GSSAPI blocks its caller, for half a minute if the Kerberos server (KDC) does not answer. So
//! each exchange has a thread of its own, which ends with the exchange.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use bytes::Bytes;
use libgssapi::context::{ClientCtx, SecurityContext};
use libgssapi::error::Error as GssError;
use tokio::sync::oneshot;
use zoolock_client::SaslStep;
use zoolock_client::sasl::{SaslExchange, StepFuture};

/// Name of the threads.
const THREAD: &str = "zoolock-kerberos";

/// The largest number of threads at once. A KDC that does not answer blocks each of them for half a minute.
const MAX_THREADS: usize = 4;

/// The client's last message: no security layer (1), and 0 as the size of the longest message.
const NO_LAYER: [u8; 4] = [1, 0, 0, 0];

/// The threads of one client.
#[derive(Clone, Default)]
pub(crate) struct Threads {
    running: Arc<AtomicUsize>,
}

impl Threads {
    /// Runs `work` on a thread. Returns false if too many threads run already, or if the system
    /// refuses a thread. Then `work` does not run.
    pub(crate) fn try_run(&self, work: impl FnOnce() + Send + 'static) -> bool {
        if self.running.fetch_add(1, Ordering::AcqRel) >= MAX_THREADS {
            self.running.fetch_sub(1, Ordering::AcqRel);
            return false;
        }
        let running = RunningThread(self.running.clone());
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        thread
            .spawn(move || {
                let _place = running;
                work();
            })
            .is_ok()
    }
}

/// One running thread in the count of running threads. Dropping it lowers the count.
struct RunningThread(Arc<AtomicUsize>);

impl Drop for RunningThread {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

type ChallengeRequest = (Option<Bytes>, oneshot::Sender<SaslStep>);

/// The session's handle of an exchange that runs on another thread.
pub(crate) struct ThreadedExchange {
    questions: Sender<ChallengeRequest>,
}

impl ThreadedExchange {
    /// Starts an exchange. `begin` runs on the thread of the exchange. It creates the GSSAPI
    /// context and the first token.
    pub(crate) fn start(
        threads: &Threads,
        begin: impl FnOnce() -> Option<(ClientCtx, Bytes)> + Send + 'static,
    ) -> ThreadedExchange {
        let (questions, asked) = channel();
        // If no thread starts, `step` returns `NoToken`.
        threads.try_run(move || run_exchange(asked, begin));
        ThreadedExchange { questions }
    }
}

impl SaslExchange for ThreadedExchange {
    fn step(&mut self, challenge: Option<Bytes>) -> StepFuture<'_> {
        let (sender, step) = oneshot::channel();
        // The send fails if the thread has ended. Then the receiver also fails, and the step is `NoToken`.
        let _ = self.questions.send((challenge, sender));
        Box::pin(async move { step.await.unwrap_or(SaslStep::NoToken) })
    }
}

/// Computes the steps of an exchange until the session drops it.
fn run_exchange(questions: Receiver<ChallengeRequest>, begin: impl FnOnce() -> Option<(ClientCtx, Bytes)>) {
    let Ok((_, sender)) = questions.recv() else { return };
    // Without a token, the sender is dropped, and the step is `NoToken`.
    let Some((mut context, token)) = begin() else { return };
    let mut has_context = context.is_complete();
    let _ = sender.send(SaslStep::Send(token));
    while let Ok((challenge, sender)) = questions.recv() {
        // A server without SASL answers with no token.
        let step = challenge
            .map_or(Ok(SaslStep::Failed), |challenge| next_step(&mut context, &mut has_context, &challenge));
        let _ = sender.send(step.unwrap_or(SaslStep::Failed));
    }
}

/// Returns the next step. Sets `has_context` when the context is complete. The challenge after that
/// offers security layers.
fn next_step(
    context: &mut ClientCtx,
    has_context: &mut bool,
    challenge: &[u8],
) -> Result<SaslStep, GssError> {
    if !*has_context {
        let token = context.step(Some(challenge), None)?;
        *has_context = context.is_complete();
        return Ok(SaslStep::Send(token.map_or(Bytes::new(), |token| Bytes::copy_from_slice(&token))));
    }
    let offer = context.unwrap(challenge)?;
    if offer.first().is_none_or(|layers| layers & NO_LAYER[0] == 0) {
        return Ok(SaslStep::Failed);
    }
    Ok(SaslStep::SendLast(Bytes::copy_from_slice(&context.wrap(false, &NO_LAYER)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_threads_are_limited() {
        let threads = Threads::default();
        let (release, blocked) = channel::<()>();
        let blocked = Arc::new(std::sync::Mutex::new(blocked));
        for _ in 0..MAX_THREADS {
            let blocked = blocked.clone();
            assert!(threads.try_run(move || drop(blocked.lock().map(|blocked| blocked.recv()))));
        }
        assert!(!threads.try_run(|| ()));
        drop(release);
        while threads.running.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        assert!(threads.try_run(|| ()));
    }
}
