//! Requests whose bodies arrive slowly.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::HttpBody;
use axum::extract::Request;
use axum::response::Response;

use super::{Forwarding, Gate, Pass, Working, until_end};

/// A request with a body. It is work of this process until the server waits for its body, and again when the body is
/// whole. In between it waits for its caller, and an upgrade does not wait for it. If the body came with the head, it
/// is work all the time.
///
/// If another process serves by then, the request goes there with the part of its body that has come. This process
/// has done nothing for it.
pub(crate) struct Arrival {
    gate: Arc<Gate>,
    state: Mutex<State>,
}

enum State {
    /// This process works on it.
    Here(Working),
    /// Its body is on its way.
    Coming,
    /// Another process serves.
    Elsewhere(Box<Moved>),
}

/// A request that goes to another process.
pub(crate) struct Moved {
    pub request: Request,
    /// The socket at which that process listens.
    pub to: Arc<PathBuf>,
    pub forwarding: Forwarding,
}

/// A request without a response yet, as an upgrade counts it.
pub(crate) enum PendingRequest {
    /// An upgrade does not wait for it.
    Uncounted,
    /// It has no body: it is work until its response has ended.
    Working(Working),
    /// It has a body, and is no work while the server waits for the body.
    Arrival(Arc<Arrival>),
}

impl PendingRequest {
    /// Begins the work on a request that was let through.
    pub fn new(working: Working, request: &mut Request) -> Self {
        if request.body().is_end_stream() {
            return PendingRequest::Working(working);
        }
        let arrival = Arrival::new(working);
        request.extensions_mut().insert(arrival.clone());
        PendingRequest::Arrival(arrival)
    }

    /// Returns the response, which is work until it has ended, or the request if another process serves it.
    pub fn on_replied(self, response: Response) -> Result<Response, Box<Moved>> {
        match self {
            PendingRequest::Uncounted => Ok(response),
            PendingRequest::Working(working) => Ok(until_end(response, working)),
            PendingRequest::Arrival(arrival) => arrival.on_replied(response),
        }
    }
}

impl Arrival {
    /// Takes a request that was let through, before its body is read.
    fn new(working: Working) -> Arc<Self> {
        Arc::new(Arrival { gate: working.0.clone(), state: Mutex::new(State::Here(working)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server waits for its body from now on.
    pub fn begin(&self) {
        *self.state() = State::Coming;
    }

    /// Waits until another process serves: then the request must [move](Arrival::move_on) there.
    pub async fn elsewhere(&self) {
        self.gate.forwarded().await;
    }

    /// Its body is whole: waits until this process may work on it. Returns false if another process serves instead,
    /// to which it must [move](Arrival::move_on).
    pub async fn end(&self) -> bool {
        match self.gate.pass().await {
            Pass::Here(working) => {
                *self.state() = State::Here(working);
                true
            }
            Pass::To(..) => false,
        }
    }

    /// Takes the request, with all of its body, for the other process.
    pub fn move_on(&self, request: Request) {
        if let Some((to, forwarding)) = self.gate.pass_vital() {
            *self.state() = State::Elsewhere(Box::new(Moved { request, to, forwarding }));
        }
    }

    /// Returns the response, which is work until it has ended, or the request if another process serves it.
    fn on_replied(&self, response: Response) -> Result<Response, Box<Moved>> {
        match std::mem::replace(&mut *self.state(), State::Coming) {
            State::Here(working) => Ok(until_end(response, working)),
            // It was rejected before its body was whole.
            State::Coming => Ok(response),
            State::Elsewhere(moved) => Err(moved),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    async fn arrival(gate: &Arc<Gate>) -> Arc<Arrival> {
        match gate.pass().await {
            Pass::Here(working) => Arrival::new(working),
            Pass::To(..) => panic!("forwarded"),
        }
    }

    #[tokio::test]
    async fn no_request_waits_for_a_body() {
        let gate = Arc::new(Gate::default());
        let arrival = arrival(&gate).await;
        gate.pause();
        assert!(!gate.is_quiet());
        arrival.begin();
        assert!(gate.is_quiet());
        let whole = arrival.clone();
        let whole = tokio::spawn(async move { whole.end().await });
        tokio::task::yield_now().await;
        assert!(gate.is_quiet() && !whole.is_finished(), "it waits as one that begins does");
        gate.release();
        assert!(whole.await.unwrap());
        gate.pause();
        assert!(!gate.is_quiet());
        assert!(arrival.on_replied(Response::new(Body::from("x"))).is_ok());
        assert!(gate.is_quiet());
    }

    #[tokio::test]
    async fn it_goes_where_the_state_went() {
        let gate = Arc::new(Gate::default());
        let [half, whole] = [arrival(&gate).await, arrival(&gate).await];
        half.begin();
        whole.begin();
        gate.pause();
        gate.forward("/a".into());
        half.elsewhere().await;
        assert!(!whole.end().await);
        for arrival in [half, whole] {
            arrival.move_on(Request::new(Body::from("body")));
            assert_eq!(gate.forwarding(), 1);
            let Err(moved) = arrival.on_replied(Response::default()) else { panic!("here") };
            assert_eq!((&**moved.to, gate.is_quiet()), ("/a".as_ref(), true));
        }
        assert_eq!(gate.forwarding(), 0);
    }

    #[tokio::test]
    async fn one_that_was_refused_early_is_no_work() {
        let gate = Arc::new(Gate::default());
        let arrival = arrival(&gate).await;
        arrival.begin();
        assert!(arrival.on_replied(Response::default()).is_ok());
        gate.pause();
        assert!(gate.is_quiet());
    }
}
