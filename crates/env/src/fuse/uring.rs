//! Requests that come over io_uring.
//!
//! Invariants:
//! - an entry is in the kernel, or its request waits for its reply, which returns
//!   in the same entry;
//! - a queue that runs short of free entries gets further ones, up to its limit.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::{Rc, Weak};
use std::task::Waker;

use types::{Duration, HashMap};

use super::{FuseRequest, Inner};
use crate::driver::{Handle, Op, Payload};
use crate::os::fuse_ring::{self, FuseEntry};
use crate::sync::{OneSender, oneshot};

/// Payload of an entry: the largest write, and its headers.
const PAYLOAD: usize = (1 << 20) + 4096;
/// Attempts to register an entry while the kernel still processes the INIT reply.
const REGISTER_TRIES: u32 = 100;

/// The kernel queues that this channel serves, and their numbers of entries.
#[derive(Clone, Copy, Debug)]
pub struct UringOptions {
    /// The number of this executor among `executors`: it serves every `executors`-th queue.
    pub executor: usize,
    /// The number of executors that share the mount's queues.
    pub executors: usize,
    /// Entries per queue at first; each has a buffer of 1 MiB.
    pub depth: usize,
    /// Entries per queue at most.
    pub depth_max: usize,
}

/// The io_uring state of a channel.
#[derive(Default)]
pub(super) struct Uring {
    arrived: VecDeque<FuseRequest>,
    /// The entries that carry the replies of pending requests.
    pending: HashMap<u64, (Box<FuseEntry>, OneSender<Box<FuseEntry>>)>,
    failure: Option<io::Error>,
    /// Requests taken from the kernel so far.
    pub(super) taken: u64,
    pub(super) receiver: Option<Waker>,
}

impl Uring {
    pub(super) fn next(&mut self) -> Option<io::Result<FuseRequest>> {
        if let Some(request) = self.arrived.pop_front() {
            return Some(Ok(request));
        }
        self.failure.take().map(Err)
    }

    pub(super) fn has_arrivals(&self) -> bool {
        !self.arrived.is_empty() || self.failure.is_some()
    }

    /// Sends the reply if the request came over io_uring.
    pub(super) fn reply(&mut self, head: &[u8], body: &[u8]) -> Option<io::Result<()>> {
        let unique = u64::from_ne_bytes(head.get(8..16)?.try_into().ok()?);
        let (mut entry, sender) = self.pending.remove(&unique)?;
        let set = entry.set_reply(head, body);
        if set.is_err() {
            self.pending.insert(unique, (entry, sender));
            return Some(set);
        }
        sender.send(entry);
        Some(Ok(()))
    }

    fn update(state: &RefCell<Uring>, change: impl FnOnce(&mut Uring)) {
        let receiver = {
            let mut uring = state.borrow_mut();
            change(&mut uring);
            uring.receiver.take()
        };
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

/// Entries of one queue.
struct Queue {
    id: u16,
    entries: usize,
    free: usize,
    entries_max: usize,
}

pub(super) fn start(inner: &Rc<Inner>, options: UringOptions) -> io::Result<()> {
    let queues = fuse_ring::queues()?;
    for id in
        (0..queues).filter(|id| usize::from(*id) % options.executors.max(1) == options.executor)
    {
        let queue =
            Queue { id, entries: 0, free: 0, entries_max: options.depth_max.max(options.depth) };
        let queue = Rc::new(RefCell::new(queue));
        for _ in 0..options.depth.max(1) {
            add_entry(inner, &queue);
        }
    }
    Ok(())
}

fn add_entry(inner: &Rc<Inner>, queue: &Rc<RefCell<Queue>>) {
    let id = {
        let mut queue = queue.borrow_mut();
        queue.entries += 1;
        queue.free += 1;
        queue.id
    };
    let entry = FuseEntry::new(id, PAYLOAD);
    inner.env.spawn(serve(Rc::downgrade(inner), queue.clone(), entry));
}

/// Passes one entry to the kernel and back until the mount or the channel ends.
async fn serve(channel: Weak<Inner>, queue: Rc<RefCell<Queue>>, mut entry: Box<FuseEntry>) {
    let mut tries = 0;
    loop {
        let Some(inner) = channel.upgrade() else { return };
        let op = inner.env.submit(Op::Fuse { file: Handle::Fd(inner.fd.clone()), entry });
        // Entries that wait in the kernel do not keep the channel alive.
        drop(inner);
        let (result, payload) = op.await;
        let Payload::Fuse(back) = payload else {
            unreachable!("a FUSE operation returns its entry")
        };
        entry = back;
        let Some(inner) = channel.upgrade() else { return };
        if let Err(error) = result {
            match error.raw_os_error() {
                // The kernel has not finished INIT.
                Some(libc::EAGAIN) if tries < REGISTER_TRIES => {
                    tries += 1;
                    inner.env.sleep(Duration::from_millis(1)).await;
                    continue;
                }
                // The mount is gone; the device reports that to the receiver.
                Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ENODEV | libc::ECANCELED) => {
                    return;
                }
                _ => return Uring::update(&inner.uring, |uring| uring.failure = Some(error)),
            }
        }
        let (unique, request) = match entry.request() {
            Ok(request) => request,
            Err(error) => return Uring::update(&inner.uring, |uring| uring.failure = Some(error)),
        };
        let is_short = {
            let mut queue = queue.borrow_mut();
            queue.free -= 1;
            queue.free * 4 < queue.entries && queue.entries < queue.entries_max
        };
        if is_short {
            add_entry(&inner, &queue);
        }
        let (sender, replied) = oneshot();
        Uring::update(&inner.uring, |uring| {
            uring.pending.insert(unique, (entry, sender));
            uring.arrived.push_back(request);
            uring.taken += 1;
        });
        drop(inner);
        match replied.await {
            Some(back) => entry = back,
            None => return,
        }
        queue.borrow_mut().free += 1;
    }
}
