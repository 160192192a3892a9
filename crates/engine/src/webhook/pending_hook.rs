//! Requests that wait for a response of the application.

use model::{Name, Publication};
use protocol::phoenix::ClientMessage;
use protocol::request::Subscribe;

use crate::core::reply_target::ReplyTarget;

/// What waits for the application's response.
#[derive(Debug)]
pub enum PendingHook {
    /// A Phoenix client that wants to join, with the number of the request.
    Join(u32, Box<ClientMessage>),
    /// An HTTP request that subscribes: its number among those to the application, and the topic.
    HttpSubscribe(u32, Name),
    /// A request whose users the application names, with its number.
    Connect(u32),
    /// A connection that ends at this time, in seconds since 1970, unless it may stay.
    Refresh(u32),
    /// A client that subscribes by a command, with the number of the request.
    Subscribe(u32, Box<Subscribe>),
    /// An MQTT client that subscribes, with the number of the request and the filter's position in it.
    Mqtt(u32, usize),
    /// A message to which the application replies.
    Message(ReplyTarget),
    /// A message that is published if the application allows it.
    Publish(Box<Publication>, ReplyTarget),
    /// A message that a back end has to accept, and whether the engine publishes it then.
    Forward(Box<Publication>, bool, ReplyTarget),
}
