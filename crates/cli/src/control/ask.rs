//! The asking side: commands.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use super::{Ask, Request, VERSION};
use crate::exit::{Failure, Status};
use crate::registry::{self, Kind, Registration};

/// How long a process may take to say what it holds and owes.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long it may take for what it asks of others, or does.
const LONG_PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer.
const ANSWER_MAX: u64 = 64 << 20;

/// Asks the process behind the socket `path`.
///
/// # Errors
/// `Unreachable`: nobody listens there. `Timeout`: no answer in time. `Failed`: the process
/// refused, and says why.
pub fn ask(path: &Path, ask: Ask) -> Result<Value, Failure> {
    let patience = if ask == Ask::Status { PATIENCE } else { LONG_PATIENCE };
    ask_within(path, ask, patience)
}

/// Asks the metadata server behind the socket `path`: its status can be long.
///
/// # Errors
/// See [`ask`].
pub fn ask_server(path: &Path, ask: Ask) -> Result<Value, Failure> {
    ask_within(path, ask, LONG_PATIENCE)
}

/// One time limit for all of it: nobody accepts the connection of a stopped process whose queue is
/// full, and connecting has no time limit of its own.
fn ask_within(path: &Path, ask: Ask, patience: Duration) -> Result<Value, Failure> {
    let (sender, receiver) = mpsc::channel();
    let whole = path.to_owned();
    // If it waits for longer, the command ends without it.
    std::thread::spawn(move || sender.send(converse(&whole, ask, patience)));
    receiver.recv_timeout(patience).unwrap_or_else(|_| Err(late(path, patience)))
}

fn late(path: &Path, patience: Duration) -> Failure {
    let text =
        format!("{}: no answer within {} s: is it stopped?", path.display(), patience.as_secs());
    Failure::new(Status::Timeout, "RB-CONTROL", text)
}

fn converse(path: &Path, ask: Ask, patience: Duration) -> Result<Value, Failure> {
    let broken = |error: std::io::Error| {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        if matches!(error.kind(), TimedOut | WouldBlock) {
            return late(path, patience);
        }
        let text = format!("{}: {error}", path.display());
        Failure::new(Status::Unreachable, "RB-CONTROL", text)
    };
    let refused =
        |text: &str| Failure::failed("RB-CONTROL-REFUSED", format!("{}: {text}", path.display()));
    let mut stream = connect(path).map_err(broken)?;
    stream.set_read_timeout(Some(patience)).map_err(broken)?;
    stream.set_write_timeout(Some(patience)).map_err(broken)?;
    let mut line = serde_json::to_vec(&Request { version: VERSION, ask })
        .map_err(|error| refused(&error.to_string()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(broken)?;
    let mut text = String::new();
    BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut text).map_err(broken)?;
    if text.is_empty() {
        let text = "the process refuses this user, or is busy: ask as root or as its user";
        return Err(Failure::new(
            Status::NotPermitted,
            "RB-CONTROL-REFUSED",
            format!("{}: {text}", path.display()),
        ));
    }
    let mut answer: Value = serde_json::from_str(&text)
        .map_err(|error| refused(&format!("it sent an invalid answer: {error}")))?;
    match answer.get("error").and_then(Value::as_str) {
        Some(text) => Err(refused(text)),
        None => Ok(answer["answer"].take()),
    }
}

/// The name of a socket has few bytes: its directory is named by a descriptor.
fn connect(path: &Path) -> std::io::Result<UnixStream> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = std::fs::File::open(dir)?;
    let name = path.file_name().ok_or(std::io::ErrorKind::InvalidInput)?;
    UnixStream::connect(Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name))
}

/// The clients of mounts that run on this host and can be asked.
pub fn mounts_of(is_asked: impl Fn(&Registration) -> bool) -> Vec<(Registration, PathBuf)> {
    let all = registry::running().into_iter().map(|(_, one)| one);
    let mounts = all.filter(|one| one.kind == Kind::Mount && is_asked(one));
    mounts.filter_map(|one| Some((one.clone(), one.socket?))).collect()
}

/// Asks the client of the mount at `mount`.
///
/// # Errors
/// There is none, or as [`ask`].
pub fn ask_mount(mount: &Path, question: Ask) -> Result<Value, Failure> {
    match mounts_of(|one| one.mount == mount).pop() {
        Some((_, socket)) => ask(&socket, question),
        None => {
            let text = format!(
                "{}: no client of this host's and this user's mounts has a control socket: ask on \
                 the host, and as the user, that mounted it",
                mount.display()
            );
            Err(Failure::new(Status::Unreachable, "RB-CONTROL", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Instant;

    use super::*;

    #[test]
    fn one_time_limit_holds_for_the_whole_exchange() {
        let path = std::env::temp_dir().join(format!("redbud-ask-{}.sock", std::process::id()));
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path).unwrap();
        // It always says something, and never ends.
        let slow = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..100 {
                if stream.write_all(b" ").is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let begun = Instant::now();
        let failure = ask_within(&path, Ask::Status, Duration::from_millis(300)).unwrap_err();
        assert_eq!(failure.code, Status::Timeout as u8, "{failure}");
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        drop(std::fs::remove_file(&path));
        slow.join().unwrap();
    }
}
