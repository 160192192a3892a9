//! Reading requests: bodies, queries and names in paths.

use std::mem::take;
use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body as Streamed, Bytes, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Uri, header};
use futures_util::future::{BoxFuture, Either, FutureExt, Ready, ready};
use futures_util::stream::{self, StreamExt};
use http_body_util::BodyExt;
use hyper::body::Frame;
use model::ErrorCode;
use percent_encoding::percent_decode_str;
use protocol::http::media;
use serde::de::DeserializeOwned;

use super::access::Caller;
use super::gate::Arrival;
use super::listener::On;
use super::{Rejection, Served};

/// A JSON body.
pub(crate) struct Body<T>(pub T);

impl<T: DeserializeOwned, S: Served + ?Sized> FromRequest<Arc<S>> for Body<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, served: &Arc<S>) -> Result<Self, Rejection> {
        check_media(request.headers(), "application/json")?;
        parse(&whole_body(request, &**served).await?).map(Body)
    }
}

/// The largest body of a call that requires no key, in bytes.
const OPEN_BODY_BYTES_MAX: usize = 4 << 10;

/// A short JSON body of a call that requires no key. It takes no capacity from the bodies of callers with a key.
pub(crate) struct OpenBody<T>(pub T);

impl<T: DeserializeOwned, S: Served + ?Sized> FromRequest<Arc<S>> for OpenBody<T> {
    type Rejection = Rejection;

    async fn from_request(request: Request, served: &Arc<S>) -> Result<Self, Rejection> {
        check_media(request.headers(), "application/json")?;
        let too_large = || {
            let message =
                format!("the body of this call may have at most {OPEN_BODY_BYTES_MAX} bytes");
            Rejection::new(ErrorCode::BodyTooLarge, message)
        };
        let (parts, bytes) = read_body(request, OPEN_BODY_BYTES_MAX, too_large, |_| Ok(())).await?;
        charge(&parts, bytes.len(), &**served);
        parse(&bytes).map(OpenBody)
    }
}

/// Reads a whole body. All bodies under way share one limit on the bytes that have arrived.
pub(crate) fn whole_body<S: Served + ?Sized>(
    request: Request,
    served: &S,
) -> impl Future<Output = Result<Bytes, Rejection>> {
    let (max, connections) = (served.body_bytes_max(), served.connections());
    let mut reserved = connections.reserved();
    let reserve = move |bytes| connections.reserve(&mut reserved, bytes).ok_or_else(bodies_full);
    read_body(request, max, move || too_large(max), reserve).map(|read| {
        let (parts, bytes) = read?;
        charge(&parts, bytes.len(), served);
        Ok(bytes)
    })
}

/// The result of reading a body.
type ReadBody = Result<(Parts, Bytes), Rejection>;

/// Reads a body of at most `max` bytes. `reserve` may reject each piece by its length. If the body has not come with the
/// head, waits until this process may work on the request; if another process serves by then, the request goes there.
fn read_body<'a>(
    request: Request,
    max: usize,
    too_large: impl Fn() -> Rejection + Send + 'a,
    reserve: impl FnMut(usize) -> Result<(), Rejection> + Send + 'a,
) -> Either<Ready<ReadBody>, BoxFuture<'a, ReadBody>> {
    let (mut parts, mut body) = request.into_parts();
    let arrival = parts.extensions.remove::<Arc<Arrival>>();
    if usize::try_from(body.size_hint().lower()).is_ok_and(|bytes| bytes > max) {
        return Either::Left(ready(Err(too_large())));
    }
    let mut reader = BodyReader { bytes: Vec::new(), max, too_large, reserve };
    // What came with the head is there already. If more must come, `read_rest` polls the body again, with a waker.
    let first = body.frame().now_or_never();
    match first.map_or(Ok(None), |frame| reader.add(frame, body.is_end_stream())) {
        Ok(Some(whole)) => {
            body_arrived(&parts);
            Either::Left(ready(Ok((parts, whole))))
        }
        Ok(None) => Either::Right(read_rest(parts, body, arrival, reader).boxed()),
        Err(rejection) => Either::Left(ready(Err(rejection))),
    }
}

/// A body that is being read.
struct BodyReader<L, R> {
    /// What has come so far.
    bytes: Vec<u8>,
    max: usize,
    too_large: L,
    reserve: R,
}

impl<L: Fn() -> Rejection, R: FnMut(usize) -> Result<(), Rejection>> BodyReader<L, R> {
    /// Adds a frame of the body; `None` is the body's end. Returns the body at its end, or at once if its only piece is
    /// its last frame, as `is_end` says.
    fn add(
        &mut self,
        frame: Option<Result<Frame<Bytes>, axum::Error>>,
        is_end: bool,
    ) -> Result<Option<Bytes>, Rejection> {
        let Some(frame) = frame else { return Ok(Some(take(&mut self.bytes).into())) };
        let Ok(piece) = frame.map_err(|_| cut_short())?.into_data() else { return Ok(None) };
        if self.bytes.len() + piece.len() > self.max {
            return Err((self.too_large)());
        }
        (self.reserve)(piece.len())?;
        // Nearly all bodies come in one piece, which needs no copy. Others are copied: a piece may retain far more
        // memory than it has bytes.
        if self.bytes.is_empty() && is_end {
            return Ok(Some(piece));
        }
        self.bytes.extend_from_slice(&piece);
        Ok(None)
    }
}

/// Reads the rest of a body, for which the server waits.
async fn read_rest<L: Fn() -> Rejection, R: FnMut(usize) -> Result<(), Rejection>>(
    parts: Parts,
    mut body: Streamed,
    arrival: Option<Arc<Arrival>>,
    mut reader: BodyReader<L, R>,
) -> ReadBody {
    let arrival = arrival.as_deref();
    arrival.inspect(|arrival| arrival.begin());
    let mut elsewhere = pin!(async {
        match arrival {
            Some(arrival) => arrival.elsewhere().await,
            None => std::future::pending().await,
        }
    });
    let whole = loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = &mut elsewhere => {
                let body = joined(reader.bytes.into(), body);
                return Err(moved(arrival, Request::from_parts(parts, body)));
            }
        };
        if let Some(whole) = reader.add(frame, body.is_end_stream())? {
            break whole;
        }
    };
    body_arrived(&parts);
    if let Some(arrival) = arrival
        && !arrival.end().await
    {
        return Err(moved(Some(arrival), Request::from_parts(parts, whole.into())));
    }
    Ok((parts, whole))
}

/// Notes that the body is whole: from here on the server works on the request, or waits to.
fn body_arrived(parts: &Parts) {
    if let Some(ConnectInfo(On(peer, ..))) = parts.extensions.get() {
        peer.body_arrived();
    }
}

/// Joins the part of a body that was read, and the rest.
fn joined(read: Bytes, rest: Streamed) -> Streamed {
    let read = stream::once(ready(Ok(read)));
    Streamed::from_stream(read.chain(rest.into_data_stream()))
}

/// Moves the request to another process. The rejection is the response if that fails.
fn moved(arrival: Option<&Arrival>, request: Request) -> Rejection {
    arrival.inspect(|arrival| arrival.move_on(request));
    Rejection::going_down()
}

/// Charges the caller's key for a body.
fn charge(parts: &Parts, bytes: usize, served: &(impl Served + ?Sized)) {
    if let Some(caller) = parts.extensions.get::<Caller>() {
        caller.took(bytes, served);
    }
}

fn cut_short() -> Rejection {
    Rejection::new(ErrorCode::BadBody, "the body did not arrive completely")
}

fn too_large(max: usize) -> Rejection {
    let message = format!("the body has more than {max} bytes (admin.body_bytes_max)");
    Rejection::new(ErrorCode::BodyTooLarge, message)
}

fn bodies_full() -> Rejection {
    let message =
        "the memory for request bodies is full (admin.bodies_bytes_max): try again in a second";
    Rejection::new(ErrorCode::Overloaded, message)
}

/// Checks that the body may be of the type that the call takes: [`media`].
pub(crate) fn check_media(headers: &HeaderMap, expected: &str) -> Result<(), Rejection> {
    // No call takes a type that is not text.
    let said = headers.get(header::CONTENT_TYPE).map(|media| media.to_str().unwrap_or("?"));
    media::expect(said, expected)
        .map_err(|message| Rejection::new(ErrorCode::BadMediaType, message))
}

/// Reads a JSON object.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Rejection> {
    protocol::object::read(bytes).map_err(|error| {
        let code = if error.is_data() { ErrorCode::BadRequest } else { ErrorCode::BadJson };
        Rejection::new(code, format!("the body does not fit this call: {error}"))
    })
}

/// The parameters in a query. Unlike [`Query`] it rejects text that is not UTF-8: the caller would get a response to
/// something else.
pub(crate) struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Rejection> {
        let query = parts.uri.query().unwrap_or_default();
        percent_decode_str(query).decode_utf8().map_err(|_| {
            Rejection::new(ErrorCode::BadQuery, "the query is not percent-encoded UTF-8")
        })?;
        match read::<T>(query) {
            Ok(params) => Ok(QueryParams(params)),
            Err(error) => Err(Rejection::new(ErrorCode::BadQuery, explained::<T>(query, error))),
        }
    }
}

/// Reads a query. The error is serde's own.
fn read<T: DeserializeOwned>(query: &str) -> Result<T, String> {
    let uri = Uri::builder().path_and_query(format!("/?{query}")).build();
    let uri = uri.map_err(|error| error.to_string())?;
    match Query::try_from_uri(&uri) {
        Ok(Query(params)) => Ok(params),
        Err(error) => {
            let text = error.body_text();
            let (_, why) = text.split_once("query string: ").unwrap_or(("", &text));
            // The parameter may stand in front of it, and is named anyway.
            Err(why.split_once(": ").map_or(why, |(_, why)| why).to_owned())
        }
    }
}

/// Says which parameter of a query is wrong, its value, and what would be right.
fn explained<T: DeserializeOwned>(query: &str, error: String) -> String {
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Err(why) = read::<T>(pair) else { continue };
        let Some((name, value)) = protocol::query::pairs(pair).flatten().next() else { continue };
        return match &*why {
            // Each parameter by itself gives this error.
            why if why.starts_with("missing field") => continue,
            why if why.starts_with("unknown field") => {
                let known: Vec<&str> = why.split('`').skip(3).step_by(2).collect();
                format!("there is no parameter {name}: this call accepts {}", known.join(", "))
            }
            why if why.contains("`true` or `false`") => {
                format!("{name} must be true or false, not {value:?}")
            }
            why if why.contains("digit") || why.contains("integer") || why.contains("number") => {
                format!("{name} must be a whole number, not {value:?}")
            }
            why => format!("{name} can't be {value:?}: {why}"),
        };
    }
    // Each parameter is valid by itself, so one is missing or repeated.
    error
}

/// The name of a topic or user in a path.
pub(crate) fn path_name(path: Result<Path<String>, PathRejection>) -> Result<String, Rejection> {
    let Path(name) = path.map_err(|error| Rejection::new(ErrorCode::BadPath, error.body_text()))?;
    Ok(name)
}

/// Rejects a `limit` of 0 or above `max`. The default is `usual`.
pub(crate) fn checked_limit(
    limit: Option<usize>,
    usual: usize,
    max: usize,
) -> Result<usize, Rejection> {
    let limit = limit.unwrap_or(usual);
    if (1..=max).contains(&limit) {
        return Ok(limit);
    }
    Err(Rejection::new(ErrorCode::BadLimit, format!("limit must be from 1 to {max}")))
}
