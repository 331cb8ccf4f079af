//! The answering side: a task of the process's own executor.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

use env::{Env, Listener, Stream};
use types::Duration;
use types::json::Json;

use super::{Ask, LINE_MAX, Request, VERSION};
use crate::log;

/// Connections at a time; a further one is closed at once.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may say nothing.
const IDLE: Duration = Duration::from_secs(60);
/// How long an answer may take, and how long the other side may take to read it.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Pause after a failed accept (too many files, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// JSON, or why there is none.
pub type Answer = Result<String, String>;
/// Answers a request.
pub type Handler = Rc<dyn Fn(Ask) -> Pin<Box<dyn Future<Output = Answer>>>>;

/// Answers requests at the socket `path` until the executor ends.
///
/// # Errors
/// The socket cannot be made.
pub fn listen(env: &Env, path: &Path, handler: Handler) -> io::Result<()> {
    let listener = env.listen_at(path)?;
    env.spawn(accept(env.clone(), listener, handler));
    Ok(())
}

async fn accept(env: Env, listener: Listener, handler: Handler) {
    let open = Rc::new(Cell::new(0));
    loop {
        let Ok(stream) = listener.accept().await else {
            env.sleep(ACCEPT_PAUSE).await;
            continue;
        };
        if !may_ask(&stream) || open.get() >= CONNECTIONS_MAX {
            stream.shutdown();
            continue;
        }
        open.set(open.get() + 1);
        let (handle, open, handler) = (env.clone(), open.clone(), handler.clone());
        env.spawn(async move {
            converse(&handle, &stream, &handler).await;
            stream.shutdown();
            open.set(open.get() - 1);
        });
    }
}

/// Root, and the user of this process.
fn may_ask(stream: &Stream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    match stream.peer_user() {
        Some(user) if user == 0 || user == own => true,
        Some(user) => {
            log::line(&format!("control socket: user {user} was refused"));
            false
        }
        None => false,
    }
}

/// Answers requests until the other side has no more, or one is too long.
async fn converse(env: &Env, stream: &Stream, handler: &Handler) {
    let mut buffer = Vec::new();
    loop {
        let read = stream.read(std::mem::take(&mut buffer), 4096);
        let Some((got, bytes)) = env.timeout(IDLE, read).await else { return };
        buffer = bytes;
        if !matches!(got, Ok(1..)) {
            return;
        }
        while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let late = || Err("there is no answer in time".to_owned());
            let answer = env.timeout(ANSWER_WITHIN, answer(&line, handler)).await;
            if !send(env, stream, answer.unwrap_or_else(late)).await {
                return;
            }
        }
        if buffer.len() > LINE_MAX {
            let text = format!("a request has at most {LINE_MAX} bytes");
            // The connection ends in any case.
            send(env, stream, Err(text)).await;
            return;
        }
    }
}

/// Sends an answer; false if the other side does not take it.
async fn send(env: &Env, stream: &Stream, answer: Answer) -> bool {
    let sent = env.timeout(ANSWER_WITHIN, stream.write_all(line_of(answer))).await;
    sent.is_some_and(|(written, _)| written.is_ok())
}

async fn answer(line: &[u8], handler: &Handler) -> Answer {
    let request: Request = serde_json::from_slice(line)
        .map_err(|error| format!("the request is not understood: {error}"))?;
    if request.version != VERSION {
        return Err(format!(
            "this process speaks version {VERSION} of the control socket, not {}: use the `redbud` \
             that it was started with",
            request.version
        ));
    }
    handler(request.ask).await
}

fn line_of(answer: Answer) -> Vec<u8> {
    let mut out = Json::default();
    out.open('{');
    out.number("version", u64::from(VERSION));
    match answer {
        Ok(json) => {
            out.key("answer");
            out.raw(&json);
        }
        Err(text) => out.text("error", &text),
    }
    out.close('}');
    let mut line = out.into_text().into_bytes();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(line: &str) -> String {
        let handler: Handler = Rc::new(|ask| {
            Box::pin(async move {
                match ask {
                    Ask::Status => Ok("[1]".to_owned()),
                    _ => Err("no \"such\"".to_owned()),
                }
            })
        });
        let mut answer = Box::pin(answer(line.as_bytes(), &handler));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match answer.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(answer) => String::from_utf8(line_of(answer)).unwrap(),
            std::task::Poll::Pending => panic!("nothing to wait for"),
        }
    }

    #[test]
    fn answers_are_lines_and_name_what_is_wrong() {
        let status = answered(r#"{"version":1,"ask":"status"}"#);
        assert_eq!(status, "{\"version\":1,\"answer\":[1]}\n");
        let refused = answered(r#"{"version":1,"ask":"evict","client":1}"#);
        assert_eq!(refused, "{\"version\":1,\"error\":\"no \\\"such\\\"\"}\n");
        assert!(answered(r#"{"version":9,"ask":"status"}"#).contains("version 1"));
        assert!(answered("nonsense").contains("not understood"));
    }
}
