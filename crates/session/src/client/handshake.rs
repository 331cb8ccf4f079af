//! The client's side of the handshake, and how it chooses between a Unix socket and TCP.
//!
//! Invariants:
//! - a client with keys sends its hello by TCP only after the server has proved one of the public
//!   keys that the client was given;
//! - by a Unix socket it needs no key, because the kernel says who is at the other end. It takes
//!   one only where the server trusts its user in turn.

use std::rc::Rc;

use channel::{Initiator, MESSAGE_MAX, Mode, Problem, PublicKey, SecretKey};
use env::{Env, Stream};
use proto::frame::MAGIC;
use proto::message::Peer;
use types::Duration;

use super::connection::Failure;
use crate::Link;

/// The keys of a client's connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientKeys {
    /// Are frames encrypted?
    pub mode: Mode,
    /// The client's own key.
    pub secret: SecretKey,
    /// The servers' public keys. More than one: a server may have either, while keys are changed.
    pub servers: Vec<PublicKey>,
}

/// Reads a client's keys; called for each connection, so that changed keys are used.
pub type ReadClientKeys = Rc<dyn Fn() -> Result<ClientKeys, String>>;

/// How long a TCP connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to the server at `address`, and proves keys if there are any.
pub(super) async fn reach<P: Peer>(
    env: &Env,
    address: &str,
    keys: Option<&ReadClientKeys>,
) -> Result<Link, Failure> {
    let Some(keys) = keys else {
        return Ok(connect::<P>(env, address, |_| true).await?.into());
    };
    let wrong = |text: &str| Failure::Wrong(format!("the {} at {address}: {text}", P::NAME));
    let me = env.own_user();
    let stream = connect::<P>(env, address, |server| me == 0 || me == server).await?;
    if stream.peer_user().is_some() {
        return Ok(stream.into());
    }
    let keys = keys().map_err(|text| wrong(&text))?;
    let mut stream = Some(stream);
    for server in &keys.servers {
        let stream = match stream.take() {
            Some(stream) => stream,
            // The server closes a connection that asks for another server.
            None => connect::<P>(env, address, |_| false).await?,
        };
        match shake_hands(env, stream, &keys, server).await {
            Ok(link) => return Ok(link),
            Err(Refusal::Lost(text)) => return Err(Failure::unreachable::<P>(address, &text)),
            Err(Refusal::Problem(Problem::WrongServer)) => {}
            Err(Refusal::Problem(problem)) => return Err(wrong(explain(problem))),
            Err(Refusal::NoHandshake) => {
                let text = format!(
                    "it takes no keys (security = \"none\"), and this client asks for \
                     \"{}\"; write the same for both",
                    keys.mode
                );
                return Err(wrong(&text));
            }
        }
    }
    Err(wrong("it has none of the public keys that this client was given for its server"))
}

async fn connect<P: Peer>(
    env: &Env,
    address: &str,
    near: impl Fn(u32) -> bool,
) -> Result<Stream, Failure> {
    let reached = env.timeout(CONNECT_TIMEOUT, env.connect_as(address, near)).await;
    let late = || format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
    let reached = reached.ok_or_else(|| Failure::unreachable::<P>(address, &late()))?;
    reached.map_err(|error| Failure::unreachable::<P>(address, &error.to_string()))
}

/// Proves keys on a new connection by TCP, with the first of the server's public keys.
///
/// # Errors
/// The text of the refusal, or of the loss of the connection.
pub async fn secure(env: &Env, stream: Stream, keys: &ClientKeys) -> Result<Link, String> {
    let server = keys.servers.first().ok_or("no public key of the server is given")?;
    shake_hands(env, stream, keys, server).await.map_err(|refusal| match refusal {
        Refusal::Problem(problem) => explain(problem).to_owned(),
        Refusal::NoHandshake => "it takes no keys".to_owned(),
        Refusal::Lost(text) => text,
    })
}

fn explain(problem: Problem) -> &'static str {
    match problem {
        Problem::WrongMode => {
            "it wants encrypted frames; write security = \"encrypted\" for this client"
        }
        Problem::WrongServer => "it has another key",
        Problem::WrongProof => "it does not accept this client's proof of its key",
        Problem::Malformed | Problem::Unknown => "it speaks another version of the handshake",
    }
}

enum Refusal {
    Problem(Problem),
    /// The other side does not know handshakes.
    NoHandshake,
    Lost(String),
}

async fn shake_hands(
    env: &Env,
    stream: Stream,
    keys: &ClientKeys,
    server: &PublicKey,
) -> Result<Link, Refusal> {
    let mut out = Vec::new();
    let begun = Initiator::begin(keys.mode, (&keys.secret, server), env.random_bytes(), &mut out);
    let mut initiator = begun.map_err(Refusal::Problem)?;
    let (written, mut out) = stream.write_all(out).await;
    written.map_err(|error| Refusal::Lost(error.to_string()))?;
    let mut input = Vec::new();
    loop {
        let result;
        (result, input) = stream.read(input, MESSAGE_MAX).await;
        match result {
            Ok(1..) => {}
            Ok(0) => return Err(Refusal::Lost("the server closed the connection".into())),
            Err(error) => return Err(Refusal::Lost(error.to_string())),
        }
        if input.starts_with(&MAGIC.to_le_bytes()) {
            return Err(Refusal::NoHandshake);
        }
        let made = initiator.receive(&mut input, &mut out).map_err(Refusal::Problem)?;
        if let Some(made) = made {
            // The last message leaves together with the hello.
            return Ok(Link::after_handshake(stream, made.transport, (input, out)));
        }
    }
}
