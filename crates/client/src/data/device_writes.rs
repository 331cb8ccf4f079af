//! Writes to a data device: they wait in its queue ([`super::device_queue`]), and go to it in
//! requests that may join several of them.
//!
//! The writer whose write is the first of a request sends it, for all: nothing of a write is done
//! by a task that its writer does not wait for.
//!
//! Invariants:
//! - every writer gets an answer; if a request fails, all writers of it get the error;
//! - whether a write may go is asked again when its request goes, without a wait in between;
//! - when a request ends, however it does, the next ones go.

use std::rc::Rc;

use env::IoBuf;
use env::sync::{OneSender, oneshot};
use types::Fault;
use types::limits::BLOCK_U64;

use super::device::DataDevice;
use super::device_queue::{QueueCounts, Request, SIZES};
use crate::api::DeviceLoad;

/// What became of a write.
pub(super) enum Written {
    /// It has completed, with this stamp.
    Done(u64),
    /// When its turn came, it was not permitted, or not all that it was joined with were.
    Again(IoBuf),
}

/// A write in the queue.
pub(super) struct QueuedWrite {
    session: u64,
    buf: IoBuf,
    turn: OneSender<Turn>,
}

/// What a writer waits for.
enum Turn {
    /// It is to send this request.
    Send(TurnToSend),
    /// Another writer has sent its write, or nobody will.
    Ended(Result<Written, Fault>),
}

/// A write of a request that another writer sends.
struct Joined {
    buf: IoBuf,
    session: u64,
    turn: Option<OneSender<Turn>>,
}

/// The right to send a request. When it is dropped, the request has ended.
struct TurnToSend {
    device: Rc<DataDevice>,
    number: u64,
    /// Its first byte on the device.
    offset: u64,
    /// The first one is the sender's own.
    writes: Vec<Joined>,
    /// The device may have the request.
    sent: bool,
}

impl TurnToSend {
    fn new(device: &Rc<DataDevice>, request: Request<QueuedWrite>) -> (OneSender<Turn>, Self) {
        let join = |QueuedWrite { session, buf, turn }| Joined { buf, session, turn: Some(turn) };
        let mut writes: Vec<Joined> = request.items.into_iter().map(join).collect();
        let own = writes[0].turn.take().expect("just put in");
        let (number, offset) = (request.number, request.first * BLOCK_U64);
        (own, TurnToSend { device: device.clone(), number, offset, writes, sent: false })
    }

    /// Sends the request, if all its writes are permitted; the result is the sender's own.
    async fn send(mut self, permits: impl Fn(u64) -> bool) -> Result<Written, Fault> {
        if !self.writes.iter().all(|write| permits(write.session)) {
            return Ok(Written::Again(self.writes.remove(0).buf));
        }
        self.sent = true;
        let take = |write: &mut Joined| std::mem::replace(&mut write.buf, IoBuf::unspecified(0));
        let bufs = self.writes.iter_mut().map(take).collect();
        let result = self.device.submit_write(self.offset, bufs).await;
        for write in &mut self.writes {
            if let Some(turn) = write.turn.take() {
                turn.send(Turn::Ended(result.map(Written::Done)));
            }
        }
        result.map(Written::Done)
    }
}

impl Drop for TurnToSend {
    fn drop(&mut self) {
        for Joined { buf, turn, .. } in self.writes.drain(..) {
            let Some(turn) = turn else { continue };
            // The sender was cancelled: nobody knows what a device has of a request that it got.
            let end = if self.sent { Err(Fault::Io) } else { Ok(Written::Again(buf)) };
            turn.send(Turn::Ended(end));
        }
        self.device.queue.borrow_mut().ended(self.device.env.now(), self.number);
        self.device.send_waiting();
    }
}

impl DataDevice {
    /// Writes all of `buf` at `offset`, when its turn comes and `permits` says yes to its session.
    pub async fn write(
        self: &Rc<Self>,
        session: u64,
        offset: u64,
        buf: IoBuf,
        permits: impl Fn(u64) -> bool,
    ) -> Result<Written, Fault> {
        if self.refuses() {
            return Err(Fault::Io);
        }
        let (first, blocks) = (offset / BLOCK_U64, buf.len() as u64 / BLOCK_U64);
        let (turn, own) = oneshot();
        let write = QueuedWrite { session, buf, turn };
        self.queue.borrow_mut().push(self.env.now(), first, blocks, write);
        self.send_waiting();
        match own.await {
            Some(Turn::Send(turn)) => turn.send(permits).await,
            Some(Turn::Ended(end)) => end,
            None => Err(Fault::Io),
        }
    }

    /// Has the writers of those requests send them that may go now.
    fn send_waiting(self: &Rc<Self>) {
        // A writer that was cancelled ends its request at once: the loop below goes on with others.
        if self.sending.replace(true) {
            return;
        }
        loop {
            let request = self.queue.borrow_mut().next(self.env.now());
            let Some(request) = request else { break };
            let (own, turn) = TurnToSend::new(self, request);
            own.send(Turn::Send(turn));
        }
        self.sending.set(false);
    }

    /// The writes that wait fail.
    pub(super) fn refuse_waiting(&self) {
        let waiting = self.queue.borrow_mut().take_waiting();
        for QueuedWrite { turn, .. } in waiting {
            turn.send(Turn::Ended(Err(Fault::Io)));
        }
    }

    /// What the device has been asked to write, and how.
    pub(super) fn load(&self) -> DeviceLoad {
        if let Some(load) = self.target_load() {
            return load;
        }
        let counts: QueueCounts = self.queue.borrow().counts();
        let bounds = SIZES.map(|blocks| Some(blocks * BLOCK_U64)).into_iter().chain([None]);
        DeviceLoad {
            writes: counts.writes,
            requests: counts.requests,
            bytes: counts.blocks * BLOCK_U64,
            sizes: bounds.zip(counts.sizes).collect(),
            in_flight: counts.in_flight as u64,
            in_flight_max: counts.in_flight_max as u64,
            waiting: counts.waiting as u64,
            waiting_max: counts.waiting_max as u64,
        }
    }
}
