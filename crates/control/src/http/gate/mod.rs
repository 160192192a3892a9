//! Makes requests of the admin port wait while the node's state is passed to another process, and forwards them
//! afterwards.
//!
//! The state must not change while it is passed. A request that begins meanwhile waits, and goes to the process that
//! has the state then.

mod arrival;
mod forward;
mod patience;
pub(crate) mod receive;

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use hyper::body::{Frame, SizeHint};
use tokio::sync::watch;

pub(crate) use arrival::{Arrival, Moved, PendingRequest};
pub(crate) use forward::forward;
pub use patience::{Patience, PauseSteps};

/// Once the new process serves, silent connections are closed after this time.
pub(crate) const END_WAIT: Duration = Duration::from_secs(10);

/// What the gate does with requests.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Mode {
    /// This process serves them.
    Open,
    /// They wait.
    Paused,
    /// The process that listens at this socket serves them.
    Forwarded(Arc<PathBuf>),
}

/// Lets requests through, makes them wait, or forwards them.
pub struct Gate {
    mode: watch::Sender<Mode>,
    /// Requests that this process works on.
    working: AtomicUsize,
    /// Requests that are forwarded, until their responses are sent.
    forwarding: AtomicUsize,
}

impl Default for Gate {
    fn default() -> Self {
        let mode = watch::Sender::new(Mode::Open);
        Gate { mode, working: AtomicUsize::new(0), forwarding: AtomicUsize::new(0) }
    }
}

/// What to do with a request.
pub(crate) enum Pass {
    /// Work on it; the request is counted until this is dropped.
    Here(Working),
    /// Forward it to the process that listens at this socket.
    To(Arc<PathBuf>, Forwarding),
}

impl Gate {
    /// Makes requests wait that begin from now on. Those under way continue: see [`Gate::is_quiet`].
    pub fn pause(&self) {
        self.change(|mode| *mode == Mode::Open, Mode::Paused);
    }

    /// Lets requests through again, with those that wait: the state stays here.
    pub fn release(&self) {
        self.change(|mode| *mode == Mode::Paused, Mode::Open);
    }

    /// Forwards waiting requests, and all later ones, to the process that listens at this socket. This is final: the
    /// port accepts no more connections here.
    pub fn forward(&self, to: PathBuf) {
        self.change(|_| true, Mode::Forwarded(Arc::new(to)));
    }

    fn change(&self, may: impl Fn(&Mode) -> bool, to: Mode) {
        self.mode.send_if_modified(|mode| may(mode) && std::mem::replace(mode, to.clone()) != to);
    }

    /// Reports whether requests wait and none is worked on. Streams of figures and of an upgrade's progress don't
    /// count, nor do health checks, nor requests whose bodies are still coming.
    pub fn is_quiet(&self) -> bool {
        // A request counts itself before it checks the mode.
        *self.mode.borrow() != Mode::Open && self.working.load(Ordering::SeqCst) == 0
    }

    /// Reports whether requests go to another process.
    pub fn is_forwarding(&self) -> bool {
        matches!(*self.mode.borrow(), Mode::Forwarded(_))
    }

    /// Returns an empty stream of this media type if requests go to another process. Its reader then requests the
    /// stream from that process.
    pub(crate) fn ended_stream(&self, media_type: &'static str) -> Option<Response> {
        let response = || ([(header::CONTENT_TYPE, media_type)], empty()).into_response();
        self.is_forwarding().then(response)
    }

    /// Returns how many requests are being forwarded.
    pub(crate) fn forwarding(&self) -> usize {
        self.forwarding.load(Ordering::SeqCst)
    }

    /// Begins work. Returns `None` while the node's state must not change.
    pub(crate) fn work(self: &Arc<Self>) -> Option<Working> {
        let working = Working::new(self);
        (*self.mode.borrow() == Mode::Open).then_some(working)
    }

    /// Begins work of a request that this process works on. It may outlive the request.
    pub(crate) fn extend(self: &Arc<Self>) -> Working {
        Working::new(self)
    }

    /// Waits until this process may work on a request, or must forward it.
    pub(crate) async fn pass(self: &Arc<Self>) -> Pass {
        if let Some(working) = self.work() {
            return Pass::Here(working);
        }
        let mut mode = self.mode.subscribe();
        loop {
            match &*mode.borrow_and_update() {
                Mode::Paused => {}
                Mode::Open => {}
                Mode::Forwarded(to) => return Pass::To(to.clone(), Forwarding::new(self)),
            }
            if let Some(working) = self.work() {
                return Pass::Here(working);
            }
            // The gate owns the sender, so this can't fail.
            let _ = mode.changed().await;
        }
    }

    /// Returns where a request goes that never waits here, if requests are forwarded.
    pub(crate) fn pass_vital(self: &Arc<Self>) -> Option<(Arc<PathBuf>, Forwarding)> {
        match &*self.mode.borrow() {
            Mode::Forwarded(to) => Some((to.clone(), Forwarding::new(self))),
            Mode::Open | Mode::Paused => None,
        }
    }

    /// Waits until requests go to another process.
    pub(crate) async fn forwarded(&self) {
        let mut mode = self.mode.subscribe();
        let _ = mode.wait_for(|mode| matches!(mode, Mode::Forwarded(_))).await;
    }
}

/// A request that is worked on.
pub(crate) struct Working(Arc<Gate>);

impl Working {
    fn new(gate: &Arc<Gate>) -> Self {
        gate.working.fetch_add(1, Ordering::SeqCst);
        Working(gate.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A request that is forwarded.
pub(crate) struct Forwarding(Arc<Gate>);

impl Forwarding {
    fn new(gate: &Arc<Gate>) -> Self {
        gate.forwarding.fetch_add(1, Ordering::SeqCst);
        Forwarding(gate.clone())
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        self.0.forwarding.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Retains `guard` until a response's body has ended. A body of known length is whole, and is only to be sent: the
/// guard is dropped at once.
fn until_end<T: Send + Unpin + 'static>(response: Response, guard: T) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    response.map(|body| Body::new(UntilEnd { body, _guard: guard }))
}

/// A body with a guard that lives as long.
pub(crate) struct UntilEnd<T> {
    pub body: Body,
    pub _guard: T,
}

impl<T: Unpin> HttpBody for UntilEnd<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An empty body.
fn empty() -> Body {
    Body::new(
        http_body_util::Empty::new().map_err(|never: std::convert::Infallible| match never {}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_under_way_is_waited_for_and_one_that_begins_waits() {
        let gate = Arc::new(Gate::default());
        let Pass::Here(working) = gate.pass().await else { panic!("forwarded") };
        assert!(!gate.is_quiet());
        gate.pause();
        assert!(!gate.is_quiet());
        drop(working);
        assert!(gate.is_quiet() && gate.work().is_none());
        let other = gate.clone();
        let waits = tokio::spawn(async move { matches!(other.pass().await, Pass::Here(_)) });
        tokio::task::yield_now().await;
        assert!(gate.is_quiet() && !waits.is_finished());
        gate.release();
        assert!(waits.await.unwrap());
        assert!(!gate.is_quiet() && gate.work().is_some());
    }

    #[tokio::test]
    async fn a_paused_request_goes_where_the_state_went() {
        let gate = Arc::new(Gate::default());
        gate.pause();
        assert!(gate.pass_vital().is_none());
        let other = gate.clone();
        let waits = tokio::spawn(async move {
            match other.pass().await {
                Pass::To(path, _) => path.to_path_buf(),
                Pass::Here(_) => panic!("here"),
            }
        });
        tokio::task::yield_now().await;
        gate.forward("/a".into());
        assert_eq!(waits.await.unwrap(), PathBuf::from("/a"));
        gate.release();
        assert!(gate.is_forwarding() && gate.pass_vital().is_some() && gate.work().is_none());
        assert_eq!(gate.forwarding(), 0);
        gate.forwarded().await;
    }

    #[test]
    fn a_body_without_a_known_length_is_work_until_it_has_ended() {
        let gate = Arc::new(Gate::default());
        let whole = until_end(Response::new(Body::from("x")), gate.work());
        gate.pause();
        assert!(gate.is_quiet());
        drop(whole);
        gate.release();
        let pieces = futures_util::stream::empty::<Result<Bytes, std::io::Error>>();
        let streamed = until_end(Response::new(Body::from_stream(pieces)), gate.work());
        gate.pause();
        assert!(!gate.is_quiet());
        drop(streamed);
        assert!(gate.is_quiet());
    }
}
