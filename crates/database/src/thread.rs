//! Threads of parts that work with a database.

use std::io;
use std::thread::JoinHandle;

use tokio::sync::watch;

/// The runtime of such a thread.
///
/// Other threads wake it through one of its descriptors, so make it before the shards take descriptor tables of their
/// own: in those, the number of a later descriptor would mean another one.
pub struct Runtime(tokio::runtime::Runtime);

impl Runtime {
    /// Makes a runtime.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Runtime(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
    }

    /// Runs a future on the calling thread, before [`spawn`].
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.0.block_on(future)
    }
}

/// The handle of a running thread. The thread ends when it is dropped.
pub struct Running {
    ending: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Starts a thread of this name that runs the future of `run` on the runtime. The future gets true when it must end; it
/// then ends within seconds, also if PostgreSQL does not reply.
///
/// # Errors
/// If the thread can't be started.
pub fn spawn<F: Future<Output = ()>>(
    name: &str,
    Runtime(runtime): Runtime,
    run: impl FnOnce(watch::Receiver<bool>) -> F + Send + 'static,
) -> io::Result<Running> {
    let (ending, ended) = watch::channel(false);
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        runtime.block_on(run(ended));
        // A pending name resolution must not delay the end of the process.
        runtime.shutdown_background();
    })?;
    Ok(Running { ending, thread: Some(thread) })
}

/// Waits until the future of [`spawn`] must end, or the handle of its thread is gone.
pub async fn ended(ending: &mut watch::Receiver<bool>) {
    let _ = ending.wait_for(|is_ending| *is_ending).await;
}

impl Running {
    /// Waits until the thread has completed its work and ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.ending.send(true);
        if let Some(thread) = self.thread.take() {
            // After a panic the thread has logged it already.
            let _ = thread.join();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_future_learns_that_it_must_end_and_the_handle_waits_for_it() {
        let (sender, receiver) = mpsc::channel();
        let running = spawn("test", Runtime::new().unwrap(), move |mut ending| async move {
            ended(&mut ending).await;
            sender.send("ended").unwrap();
        });
        drop(running.unwrap());
        assert_eq!(receiver.try_recv(), Ok("ended"));
    }
}
