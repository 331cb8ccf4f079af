//! Readiness notification: a process sends a datagram to `$NOTIFY_SOCKET` when it is ready, as
//! systemd expects. `redbud local` and `redbud mount` wait for their children the same way.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

const VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends `message` (such as `READY=1`) to `$NOTIFY_SOCKET`. It is no error if the variable is not
/// set or the listener is gone.
pub fn send(message: &str) {
    let Some(name) = std::env::var_os(VARIABLE) else { return };
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    let sent = address.and_then(|address| {
        let socket = UnixDatagram::unbound()?;
        socket.send_to_addr(message.as_bytes(), &address)
    });
    drop(sent);
}

/// Waits for one child to be ready.
pub struct ReadyListener {
    socket: UnixDatagram,
    name: String,
}

/// The result of waiting for a child.
#[derive(Debug)]
pub enum Readiness {
    /// It is ready.
    Ready,
    /// It ended first.
    Ended(ExitStatus),
    /// It was neither ready nor ended in time.
    Late,
}

impl ReadyListener {
    /// Creates a listener with a unique name.
    pub fn new() -> std::io::Result<ReadyListener> {
        let mut attempt = 0u32;
        loop {
            let name = format!("redbud-ready-{}-{attempt}", std::process::id());
            match UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name)?) {
                Ok(socket) => return Ok(ReadyListener { socket, name }),
                Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && attempt < 1000 => {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The environment variable to set for the child.
    pub fn environment(&self) -> (&'static str, String) {
        (VARIABLE, format!("@{}", self.name))
    }

    /// Waits until `child` says that it is ready, ends, or `limit` has passed.
    pub fn wait(&self, child: &mut Child, limit: Duration) -> std::io::Result<Readiness> {
        let until = Instant::now() + limit;
        let mut message = [0u8; 4096];
        self.socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        loop {
            // Before the socket, so that a message sent just before the end counts.
            let ended = child.try_wait()?;
            match self.socket.recv(&mut message) {
                Ok(length) => {
                    let text = String::from_utf8_lossy(&message[..length]);
                    if text.lines().any(|line| line == "READY=1") {
                        return Ok(Readiness::Ready);
                    }
                }
                Err(error) if is_pause(&error) => match ended {
                    Some(status) => return Ok(Readiness::Ended(status)),
                    None if Instant::now() >= until => return Ok(Readiness::Late),
                    None => {}
                },
                Err(error) => return Err(error),
            }
        }
    }
}

fn is_pause(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn child_that_ends_silently_differs_from_one_that_is_late() {
        let listener = ReadyListener::new().unwrap();
        let mut child = Command::new("true").spawn().unwrap();
        let readiness = listener.wait(&mut child, Duration::from_secs(60)).unwrap();
        assert!(matches!(readiness, Readiness::Ended(status) if status.success()));

        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let readiness = listener.wait(&mut child, Duration::from_millis(50)).unwrap();
        assert!(matches!(readiness, Readiness::Late));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn readiness_arrives_among_other_lines() {
        let listener = ReadyListener::new().unwrap();
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        let address = SocketAddr::from_abstract_name(&listener.name).unwrap();
        sender.send_to_addr(b"READY=1\nSTATUS=127.0.0.1:9", &address).unwrap();
        let readiness = listener.wait(&mut child, Duration::from_secs(60)).unwrap();
        assert!(matches!(readiness, Readiness::Ready));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
