//! Writes requests to the connection.
//!
//! Invariants:
//! - requests that are made during a turn of an executor are sent at its end in one piece, written
//!   by that executor: no other is woken for them;
//! - one executor writes at a time; requests that are made meanwhile are sent after that;
//! - while a large request leaves slowly, the server is not taken for dead.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use env::Env;
use env::sync::Notify;
use proto::message::Peer;
use types::{Duration, Instant};

use super::Session;
use crate::{Link, Outgoing};

/// A longer buffer is written in pieces of this size, so that its progress shows.
const PIECE: usize = 128 << 10;
/// A piece that took longer had to wait for room in the socket.
const AT_ONCE: Duration = Duration::from_millis(20);
/// Capacity up to which an emptied buffer is kept for the next requests.
const SPARE_MAX: usize = 1 << 20;

/// One writer for each executor.
pub(super) struct Writers(Vec<Notify>);

impl Writers {
    pub fn new(env: &Env) -> Writers {
        Writers((0..env.executors()).map(|_| Notify::new()).collect())
    }

    /// Wakes the writer of this executor: there is a request.
    pub fn wake(&self, env: &Env) {
        self.0[env.executor()].notify_one();
    }

    /// Wakes all: the connection changed.
    pub fn wake_all(&self) {
        self.0.iter().for_each(Notify::notify_all);
    }
}

impl<P: Peer> Session<P> {
    /// Lets every executor write to connection `number`.
    pub(super) fn start_writers(self: &Rc<Self>, stream: &Link, number: u64) {
        for executor in 0..self.writers.0.len() {
            self.env.spawn_on(executor, self.clone().write(executor, stream.clone(), number));
        }
    }

    async fn write(self: Rc<Self>, executor: usize, stream: Link, number: u64) {
        let mut spare = Vec::new();
        loop {
            let woken = self.writers.0[executor].notified();
            let taken = {
                let mut state = self.state.borrow_mut();
                if state.connection != number || state.stream.is_none() {
                    return;
                }
                let due = !state.writing && !state.out.is_empty();
                state.writing |= due;
                let mut next = || Outgoing::reusing(std::mem::take(&mut spare));
                due.then(|| std::mem::replace(&mut state.out, next()))
            };
            let Some(taken) = taken else {
                woken.await;
                continue;
            };
            let (result, bytes) = match taken.into_parts() {
                Ok(frames) if frames.len() > PIECE => self.write_long(&stream, frames).await,
                Ok(frames) => stream.write_all(frames).await,
                Err(parts) => {
                    let begun = Cell::new(self.env.now());
                    let moved = || begun.set(self.note_progress(begun.get()));
                    (stream.write_parts(parts, moved).await, Vec::new())
                }
            };
            if bytes.capacity() <= SPARE_MAX {
                spare = bytes;
            }
            let mut state = self.state.borrow_mut();
            if state.connection == number {
                state.writing = false;
            }
            drop(state);
            if result.is_err() {
                // The reader sees the end of the connection and reconnects.
                stream.shutdown();
                return;
            }
        }
    }

    /// Writes a long buffer; returns it emptied.
    async fn write_long(&self, stream: &Link, mut bytes: Vec<u8>) -> (io::Result<()>, Vec<u8>) {
        if !stream.is_plain() {
            return self.write_in_pieces(stream, bytes).await;
        }
        let mut start = 0;
        while start < bytes.len() {
            let begun = self.env.now();
            let written;
            (written, bytes) = stream.write_from(bytes, start).await;
            match written {
                Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), Vec::new()),
                Ok(written) => start += written,
                Err(error) => return (Err(error), Vec::new()),
            }
            self.note_progress(begun);
        }
        bytes.clear();
        (Ok(()), bytes)
    }

    /// Bytes have left since `begun`: if that took long, the server is not taken for dead. Returns
    /// the time.
    fn note_progress(&self, begun: Instant) -> Instant {
        let now = self.env.now();
        if now.since(begun) > AT_ONCE {
            self.state.borrow_mut().liveness.moved(now);
        }
        now
    }

    /// As [`Session::write_long`], for a link that changes the bytes.
    async fn write_in_pieces(
        &self,
        stream: &Link,
        mut bytes: Vec<u8>,
    ) -> (io::Result<()>, Vec<u8>) {
        let mut piece = Vec::with_capacity(PIECE);
        for next in bytes.chunks(PIECE) {
            piece.extend_from_slice(next);
            let begun = self.env.now();
            let result;
            (result, piece) = stream.write_all(piece).await;
            if result.is_err() {
                return (result, Vec::new());
            }
            self.note_progress(begun);
        }
        bytes.clear();
        (Ok(()), bytes)
    }
}
