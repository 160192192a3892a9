//! Requests whose bodies take their time.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::Request;
use axum::response::Response;

use super::{Forwarding, Gate, Pass, Working, until_end};

/// A request with a body. It is work of this process until its body is read, and again when all of that has
/// come: until then it waits for its caller, and nobody waits for it.
///
/// Where another process serves by then, the request goes there with what has come of it. Nothing was done for
/// it here.
pub(crate) struct Arrival {
    gate: Arc<Gate>,
    state: Mutex<State>,
}

enum State {
    /// It is worked on.
    Here(Working),
    /// Its body comes.
    Coming,
    /// Another process serves.
    Elsewhere(Box<Moved>),
}

/// A request that another process answers.
pub(crate) struct Moved {
    pub request: Request,
    /// Where that process listens.
    pub to: Arc<PathBuf>,
    pub forwarding: Forwarding,
}

impl Arrival {
    /// A request that was let through, and of whose body nothing was read.
    pub fn new(working: Working) -> Arc<Self> {
        Arc::new(Arrival { gate: working.0.clone(), state: Mutex::new(State::Here(working)) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on its body comes.
    pub fn begin(&self) {
        *self.state() = State::Coming;
    }

    /// Ends when another process serves: the request is to [move](Arrival::move_on) there.
    pub async fn elsewhere(&self) {
        self.gate.forwarded().await;
    }

    /// Its body is whole: waits until it may be worked on. False when another process serves instead, to which
    /// it is to [move](Arrival::move_on).
    pub async fn end(&self) -> bool {
        match self.gate.pass(|| ()).await {
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

    /// The answer to the request, unless another process gives it. It is work until it has ended.
    pub fn on_replied(&self, response: Response) -> Result<Response, Box<Moved>> {
        match std::mem::replace(&mut *self.state(), State::Coming) {
            State::Here(working) => Ok(until_end(response, working)),
            // It was refused before its body was whole.
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
        match gate.pass(|| ()).await {
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
