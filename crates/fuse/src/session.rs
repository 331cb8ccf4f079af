//! Serving a mount: requests in, one task each, answers out.
//!
//! Invariants:
//! - a request runs at once until it first waits; only then does it become a task
//!   of the executor that took it. That executor serves it to its end and answers it by the
//!   channel that it came by;
//! - a started request runs to its end, whatever happens to its caller, and is answered once;
//! - `serve` ends when the file system was unmounted and every request has ended, or
//!   none can be expected to end.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::sync::Notify;
use env::{Env, FuseChannel, FuseRequest, IoBuf};
use types::{Ino, limits::IO_MAX};

use crate::abi::{Abi, InHeader, NotifyRetrieveIn, Opcode, WriteIn};
use crate::counters::Counters;
use crate::decode::{Header, Operation, decode};
use crate::dispatch::dispatch;
use crate::errno::Errno;
use crate::executor_pool::{self, ExecutorPool};
use crate::fs::Filesystem;
use crate::init::{InitOptions, Negotiated, negotiate};
use crate::interrupt::{Interrupts, KilledFate, Requests};
use crate::locks::RangeOwners;
use crate::notify::{Notifier, NotifySupport};
use crate::reply::Answer;

/// Called once, with the result of the negotiation.
pub type Ready = Box<dyn FnOnce(&Negotiated)>;

/// Options of serving a mount.
pub struct ServeOptions {
    /// Options of the negotiation with the kernel.
    pub init: InitOptions,
    /// Attached to the channel after the negotiation.
    pub notifier: Notifier,
    /// Called after the negotiation, before the first request is served.
    pub ready: Option<Ready>,
    /// Receives log lines.
    pub log: Option<fn(&str)>,
    /// Where the requests that wait can be looked at.
    pub requests: Requests,
    /// After this number of requests of several threads in a row, all but the first without
    /// waiting, another executor is woken.
    pub wake_after: u32,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            init: InitOptions::default(),
            notifier: Notifier::default(),
            ready: None,
            log: None,
            requests: Requests::default(),
            wake_after: executor_pool::BUSY,
        }
    }
}

/// A mount being served.
pub(crate) struct Session<F> {
    pub(crate) fs: F,
    pub(crate) counters: Counters,
    pub(crate) interrupts: Rc<Interrupts>,
    pub(crate) range_owners: RangeOwners,
    pub(crate) notifier: Notifier,
    pub(crate) pool: ExecutorPool,
    negotiated: Negotiated,
    running: Cell<usize>,
    idle: Notify,
}

impl<F> Session<F> {
    /// May the kernel cache names?
    pub(crate) fn caches_names(&self) -> bool {
        self.negotiated.inc_epoch()
    }
}

impl<F: Filesystem> Session<F> {
    /// The inode of a node number of the kernel.
    fn inode(&self, node: Ino) -> Ino {
        if node == NODE_ROOT { self.fs.root() } else { node }
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.notifier.forgotten(ino);
        self.fs.forget(ino, count);
    }
}

/// Serves `fs` on a mounted channel until it is unmounted, with all executors of `env`. After it is
/// dropped, no executor takes another request; those already taken run to their end.
///
/// # Errors
/// A kernel that is too old, or a failure of the channel.
pub async fn serve<F: Filesystem>(
    env: &Env,
    channel: FuseChannel,
    fs: F,
    options: ServeOptions,
) -> io::Result<()> {
    let uring = options.init.uring;
    let Some(negotiated) = handshake(&channel, options.init).await? else {
        return Ok(());
    };
    let knows = NotifySupport {
        inc_epoch: negotiated.inc_epoch(),
        prune: negotiated.prunes(),
        retrieve: !negotiated.over_io_uring(),
    };
    options.notifier.attach(env, Rc::new(channel.clone()), knows, fs.root());
    fs.start(&negotiated);
    if let Some(ready) = options.ready {
        ready(&negotiated);
    }
    let session = Rc::new(Session {
        fs,
        counters: Counters::new(),
        interrupts: options.requests.0,
        range_owners: RangeOwners::default(),
        notifier: options.notifier,
        pool: ExecutorPool::new(options.wake_after),
        negotiated,
        running: Cell::new(0),
        idle: Notify::new(),
    });
    session.counters.count(Opcode::Init as u32);
    let running_pool = executor_pool::start_pool(env, &session, &channel, uring, options.log)?;
    let mut failed = pin!(session.pool.failed());
    let ended = loop {
        let mut next = pin!(channel.recv());
        let request = poll_fn(|cx| match next.as_mut().poll(cx) {
            Poll::Ready(request) => Poll::Ready(request),
            Poll::Pending => failed.as_mut().poll(cx).map(Err),
        });
        match request.await {
            Ok(Some(request)) => start(env, &session, &channel, request).await,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        session.pool.wake_if_busy(channel.in_a_row());
    };
    drop(running_pool);
    // The callers are gone with the mount.
    session.release_all();
    let mut gone = session.fs.gone();
    let mut ending = pin!(async {
        while session.running.get() > 0 {
            session.idle.notified().await;
        }
    });
    poll_fn(|cx| match ending.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => gone.as_mut().poll(cx),
    })
    .await;
    ended
}

/// The error if requests cannot travel over io_uring.
const NO_URING: &str = "the kernel does not offer FUSE over io_uring: \
     write Y to /sys/module/fuse/parameters/enable_uring before mounting, or mount with transport=dev";

/// Answers INIT. `None`: unmounted before it came.
async fn handshake(channel: &FuseChannel, options: InitOptions) -> io::Result<Option<Negotiated>> {
    let too_old = || {
        io::Error::new(
            io::ErrorKind::Unsupported,
            "the kernel's FUSE interface is too old: Linux 5.4 or newer is needed",
        )
    };
    if options.uring.is_some() && !channel.can_start_uring() {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "io_uring is not allowed here: mount with transport=dev",
        ));
    }
    let Some(request) = channel.recv().await? else {
        return Ok(None);
    };
    let header = Header::decode(&request.head[..request.head_len]).ok_or_else(too_old)?;
    if header.opcode != Opcode::Init as u32 {
        return Err(too_old());
    }
    let args = arguments(&request);
    match negotiate(&args, options) {
        Ok((_, negotiated)) if options.uring.is_some() && !negotiated.over_io_uring() => {
            Answer::Status(Err(Errno(libc::EPROTO))).send(channel, header.unique)?;
            Err(io::Error::new(io::ErrorKind::Unsupported, NO_URING))
        }
        Ok((out, negotiated)) => {
            Answer::fixed(&out).send(channel, header.unique)?;
            Ok(Some(negotiated))
        }
        Err(errno) => {
            Answer::Status(Err(errno)).send(channel, header.unique)?;
            Err(too_old())
        }
    }
}

/// Everything after the header, concatenated.
fn arguments(request: &FuseRequest) -> Vec<u8> {
    let head = request.head.get(InHeader::SIZE..request.head_len).unwrap_or_default();
    [head, &request.body].concat()
}

/// Serves a request, or starts the task that does.
pub(crate) async fn start<F: Filesystem>(
    env: &Env,
    session: &Rc<Session<F>>,
    channel: &FuseChannel,
    request: FuseRequest,
) {
    let Some(mut header) = Header::decode(&request.head[..request.head_len]) else {
        return;
    };
    header.ino = session.inode(header.ino);
    session.counters.count(header.opcode);
    if header.opcode == Opcode::NotifyReply as u32 {
        let answer = arguments(&request);
        let bytes = answer.get(NotifyRetrieveIn::SIZE..).unwrap_or_default();
        return session.notifier.retrieved(header.unique, bytes.to_vec());
    }
    session.notifier.request_came(header.caller.pid);
    session.pool.record_request(header.caller.pid);
    let (operation, body) = match decode_request(session, &header, request) {
        Ok(decoded) => decoded,
        Err(errno) => {
            if expects_answer(header.opcode) {
                answer(channel, header.unique, Answer::Status(Err(errno)));
            }
            return;
        }
    };
    match operation {
        Operation::Forget { count } => session.forget(header.ino, count),
        Operation::BatchForget { inodes } => {
            for (ino, count) in inodes {
                session.forget(ino, count);
            }
        }
        Operation::Interrupt { unique } => session.interrupt(env, unique),
        Operation::Rename { name, to, new_name, flags } => {
            let to = session.inode(to);
            let operation = Operation::Rename { name, to, new_name, flags };
            run(env, session, channel, header, operation, body).await;
        }
        operation => run(env, session, channel, header, operation, body).await,
    }
}

fn decode_request<F>(
    session: &Session<F>,
    header: &Header,
    request: FuseRequest,
) -> Result<(Operation, IoBuf), Errno> {
    let FuseRequest { head, head_len, body } = request;
    let fixed = head.get(InHeader::SIZE..head_len).unwrap_or_default();
    let ext = session.negotiated.setxattr_ext();
    // A WRITE's data stays where it is; its fixed part fills the head.
    let whole = fixed.len() == WriteIn::SIZE && header.opcode == Opcode::Write as u32;
    let operation = if whole || body.is_empty() {
        decode(header, fixed, ext)?
    } else {
        decode(header, &[fixed, &body].concat(), ext)?
    };
    Ok((operation, body))
}

/// The kernel expects no answer to FORGET, BATCH_FORGET and INTERRUPT.
fn expects_answer(opcode: u32) -> bool {
    !matches!(
        Opcode::from_u32(opcode),
        Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt | Opcode::NotifyReply)
    )
}

async fn run<F: Filesystem>(
    env: &Env,
    session: &Rc<Session<F>>,
    channel: &FuseChannel,
    header: Header,
    operation: Operation,
    body: IoBuf,
) {
    let here = Rc::clone(session);
    let (unique, ending) = (header.unique, KilledFate::of(&operation));
    let mut task = Box::pin(async move { dispatch(&here, &header, operation, body).await });
    let polled =
        poll_fn(|cx| Poll::Ready(session.fs.step(unique, || task.as_mut().poll(cx)))).await;
    if let Poll::Ready(result) = polled {
        return answer(channel, unique, result);
    }
    session.running.set(session.running.get() + 1);
    session.waits(env, channel, &header, ending);
    let (here, channel) = (Rc::clone(session), channel.clone());
    env.spawn(async move {
        let result = poll_fn(|cx| here.fs.step(unique, || task.as_mut().poll(cx))).await;
        // No caller is released from here on, so there is one answer.
        if !here.ends(unique) {
            answer(&channel, unique, result);
        }
        here.running.set(here.running.get() - 1);
        if here.running.get() == 0 {
            here.idle.notify_all();
        }
    });
}

/// Answers a request by the channel that it came by. Other executors run meanwhile.
pub(crate) fn answer(channel: &FuseChannel, unique: u64, answer: Answer) {
    // A reply fails when the mount is gone, and its callers with it.
    let _ = answer.send(channel, unique);
}

/// The kernel's number of the root of the mount, which may be any directory. All other nodes
/// have the numbers of their inodes. None has this one, because the file system's own root
/// is below nothing.
const NODE_ROOT: Ino = Ino::ROOT;

const _: () = assert!(NODE_ROOT.0 == 1, "FUSE's root is node 1");
const _: () = assert!(IO_MAX <= 1 << 20, "env's receive buffers hold a request of 1 MiB");
