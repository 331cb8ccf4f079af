//! A single request of an administrator's tool, on a connection of its own.
//!
//! Invariant: a tool has no number, no lease and no slot that outlives its connection; what it asks
//! for is sent once.

use env::Env;
use proto::frame::Received;
use proto::message::{ADMINISTRATOR, Hello, Message, Peer, Principal, Request};
use types::{Duration, Fault, ServerId};

use super::ReadClientKeys;
use super::connection::{Failure, greet, receive};

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToolError {
    /// The server is not reached.
    Unreachable(String),
    /// It did not answer in time.
    Late(String),
    /// It refuses the tool, or is not the server that it should be.
    Refused(String),
    /// It refuses the tool's key.
    KeyRefused(String),
    /// It refuses the request.
    Fault(Fault),
}

/// Asks the server at `address` of the file system `fs_name` for `op`, and waits for each step for
/// `patience` at most.
///
/// # Errors
/// See [`ToolError`].
pub async fn ask<P: Peer>(
    env: &Env,
    way: (&str, Option<&ReadClientKeys>),
    names: (&str, &str),
    asked: (Principal, P::Op),
    patience: Duration,
) -> Result<P::OpReply, ToolError> {
    ask_server::<P>(env, way, (names, ServerId::ANY), asked, patience).await
}

/// As [`ask`], of this server only: another one counts as unreachable, because the server may be
/// found at another address.
///
/// # Errors
/// See [`ToolError`].
pub async fn ask_server<P: Peer>(
    env: &Env,
    (address, keys): (&str, Option<&ReadClientKeys>),
    ((fs_name, description), server): ((&str, &str), ServerId),
    (principal, op): (Principal, P::Op),
    patience: Duration,
) -> Result<P::OpReply, ToolError> {
    let mut hello = Hello::new::<P>(ADMINISTRATOR, fs_name, description);
    if let Some(expected) = &mut hello.expected.0 {
        expected.server = server;
    }
    let greeted = greet::<P>(env, (address, keys), hello, patience).await;
    let mut connection = greeted.map_err(|failure| match failure {
        Failure::Unreachable(text) => ToolError::Unreachable(text),
        // It stands by, or ends just now: another address may serve.
        Failure::Refused(refused) if refused.fault == Fault::Busy => {
            ToolError::Unreachable(refused.text)
        }
        failure if failure.is_of_other_than(server) => ToolError::Unreachable(failure.text()),
        Failure::Refused(refused) if refused.fault == Fault::NotPermitted => {
            ToolError::KeyRefused(refused.text)
        }
        Failure::Refused(refused) => ToolError::Refused(refused.text),
        Failure::Wrong(text) => ToolError::Refused(text),
    })?;
    let ops = vec![op];
    let request = Request { slot: 0, seq: 1, principal, sync: false, replay: None, ops };
    let mut bytes = Vec::new();
    proto::frame::encode::<P>(&Message::Request { request }, &mut bytes);
    let stream = connection.stream.clone();
    let answered = async {
        stream
            .write_all(bytes)
            .await
            .0
            .map_err(|error| ToolError::Unreachable(error.to_string()))?;
        loop {
            let received = receive(&stream, &mut connection.decoder, || ()).await;
            match received.map_err(ToolError::Unreachable)? {
                Received::Message(Message::Reply { reply }) => {
                    let first = reply.results.into_iter().next();
                    return first.unwrap_or(Err(Fault::Protocol)).map_err(ToolError::Fault);
                }
                Received::Message(Message::Push { .. }) => {}
                _ => return Err(ToolError::Refused("it sent an unexpected message".into())),
            }
        }
    };
    let late = || Err(ToolError::Late("no reply in time".into()));
    let answer = env.timeout(patience, answered).await.unwrap_or_else(late);
    stream.shutdown();
    answer
}
