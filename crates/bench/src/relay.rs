//! Passes bytes between a client and a server, so that the client reaches the server by TCP.
//!
//! A client on the server's host finds the server's Unix socket by the address. Behind a relay the
//! address is another one. The relay's work is this process's: neither client nor server pays it.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

/// Accepts on a port of 127.0.0.1, which it returns, and connects each peer with `server`.
///
/// # Errors
/// No port could be had.
pub fn start(server: u16) -> io::Result<u16> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for peer in listener.incoming().flatten() {
            // A client whose server is gone is refused, as by the server's host.
            let _ = TcpStream::connect(("127.0.0.1", server)).and_then(|to| join(&peer, &to));
        }
    });
    Ok(port)
}

/// Passes on what either sends, until it ends.
fn join(peer: &TcpStream, server: &TcpStream) -> io::Result<()> {
    peer.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (mut from, mut to) in
        [(peer.try_clone()?, server.try_clone()?), (server.try_clone()?, peer.try_clone()?)]
    {
        thread::spawn(move || {
            // However it ends, the other side learns that no more will come.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn bytes_and_ends_pass_both_ways() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = start(server.local_addr().unwrap().port()).unwrap();
        let mut peer = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut at_server, _) = server.accept().unwrap();
        peer.write_all(b"greeting").unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut text = String::new();
        at_server.read_to_string(&mut text).unwrap();
        assert_eq!(text, "greeting");
        at_server.write_all(b"welcome").unwrap();
        drop(at_server);
        text.clear();
        peer.read_to_string(&mut text).unwrap();
        assert_eq!(text, "welcome");
    }
}
