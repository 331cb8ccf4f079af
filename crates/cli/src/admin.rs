//! A single request of an administrator's command to a metadata server, on its own connection.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use proto::frame::{Decoder, Received, encode};
use proto::mds::{ADMINISTRATOR, Hello, Mds, Message, Op, OpReply, Principal, Request};
use serde_json::Value;

use crate::control::{self, of_mds};
use crate::exit::{Failure, Status};
use crate::registry::{self, Kind, Registration};
use crate::source::Source;

/// How long each step may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends `op` to the first server of `source` that answers. A server on this host is asked by its
/// control socket, if that takes such a request: root and the user of the server need nothing else.
pub fn ask(source: &Source, op: Op) -> Result<OpReply, Failure> {
    if let Some(answer) = ask_here(source, &op) {
        return answer;
    }
    let mut reasons = Vec::new();
    for server in &source.servers {
        match connect(server) {
            Ok(stream) => return Conversation::new(stream, server).ask(&source.fs_name, op),
            Err(error) => reasons.push(format!("{server}: {error}")),
        }
    }
    let text =
        format!("no metadata server of `{}` answers: {}", source.fs_name, reasons.join("; "));
    Err(Failure::new(Status::Unreachable, "RB-MDS-UNREACHABLE", text))
}

/// Asks a server of `source` on this host; `None`: there is none that can be asked for this.
fn ask_here(source: &Source, op: &Op) -> Option<Result<OpReply, Failure>> {
    let question = of_mds::request(op)?;
    let is_asked = |one: &Registration| {
        let serves = Source::parse(&one.source).is_ok_and(|served| served.is_same_as(source));
        one.kind == Kind::Mds && serves
    };
    let here = registry::running().into_iter().map(|(_, one)| one).find(is_asked)?;
    let answer = control::ask(&here.socket?, question);
    match answer {
        // It starts or ends just now.
        Err(failure) if failure.code == Status::Unreachable as u8 => None,
        Err(failure) => Some(Err(failure)),
        Ok(Value::Null) => Some(Ok(OpReply::Done {})),
        Ok(value) => Some(Ok(OpReply::Text { text: value.to_string() })),
    }
}

/// The status of the server of `source`.
pub fn status(source: &Source) -> Result<Value, Failure> {
    match ask(source, Op::Status {})? {
        OpReply::Text { text } => serde_json::from_str(&text).map_err(|error| {
            Failure::failed(
                "RB-MDS-REFUSED",
                format!("{source}: the server sent an invalid status: {error}"),
            )
        }),
        _ => Err(Failure::failed(
            "RB-MDS-REFUSED",
            format!("{source}: the server sent an unexpected reply"),
        )),
    }
}

fn connect(server: &str) -> std::io::Result<TcpStream> {
    let mut last =
        std::io::Error::new(std::io::ErrorKind::NotFound, "the host name has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

struct Conversation<'a> {
    stream: TcpStream,
    decoder: Decoder,
    server: &'a str,
}

impl<'a> Conversation<'a> {
    fn new(stream: TcpStream, server: &'a str) -> Conversation<'a> {
        Conversation { stream, decoder: Decoder::new(), server }
    }

    fn ask(&mut self, fs_name: &str, op: Op) -> Result<OpReply, Failure> {
        self.send(&Message::Hello { hello: hello(fs_name) })?;
        match self.receive()? {
            Message::Welcome { .. } => {}
            Message::Refused { refused } => {
                return Err(self.failed(&format!("refused: {}", refused.text)));
            }
            other => return Err(self.unexpected(&other)),
        }
        self.send(&Message::Request { request: request(op) })?;
        loop {
            match self.receive()? {
                Message::Reply { reply } => {
                    return match reply.results.into_iter().next() {
                        Some(Ok(reply)) => Ok(reply),
                        Some(Err(fault)) => Err(self.failed(fault.text())),
                        None => Err(self.failed("sent a reply without a result")),
                    };
                }
                Message::Push { .. } => {}
                other => return Err(self.unexpected(&other)),
            }
        }
    }

    fn send(&mut self, message: &Message) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        encode(message, &mut bytes);
        self.stream.write_all(&bytes).map_err(|error| self.broken(&error))
    }

    fn receive(&mut self) -> Result<Message, Failure> {
        let mut bytes = [0u8; 16 << 10];
        loop {
            match self.decoder.next() {
                Ok(Some(Received::Message(message))) => return Ok(message),
                Ok(Some(Received::Unknown { .. })) => {
                    return Err(self.failed("sent an unknown message"));
                }
                Ok(None) => {}
                Err(malformed) => return Err(self.failed(malformed.0)),
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(self.broken(&std::io::ErrorKind::UnexpectedEof.into())),
                Ok(length) => self.decoder.push(&bytes[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    fn broken(&self, error: &std::io::Error) -> Failure {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        let late = matches!(error.kind(), TimedOut | WouldBlock);
        let status = if late { Status::Timeout } else { Status::Unreachable };
        let text = if late { "no reply in time".to_owned() } else { error.to_string() };
        Failure::new(
            status,
            "RB-MDS-UNREACHABLE",
            format!("metadata server {}: {text}", self.server),
        )
    }

    fn failed(&self, text: &str) -> Failure {
        Failure::failed("RB-MDS-REFUSED", format!("metadata server {}: {text}", self.server))
    }

    fn unexpected(&self, message: &Message) -> Failure {
        let text = format!("{message:?}");
        let end = text.find(|c: char| !c.is_alphanumeric()).unwrap_or(text.len());
        self.failed(&format!("answered with an unexpected {}", &text[..end]))
    }
}

fn hello(fs_name: &str) -> Hello {
    let description = format!("redbud, pid {}", std::process::id());
    Hello::new::<Mds>(ADMINISTRATOR, fs_name, &description)
}

fn request(op: Op) -> Request {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    Request {
        slot: 0,
        seq: 1,
        principal: Principal { uid: user, gid: group, groups: Vec::new() },
        sync: false,
        replay: None,
        ops: vec![op],
    }
}
