//! Requests whose callers do not wait for their end.
//!
//! A signal that a process handles ends only waits for locks, as on a local file system.
//! A process that is being killed is released from every call. It gets the answer EINTR, which
//! it does not live to see, and its request runs to its end without it.
//!
//! Invariants:
//! - an INTERRUPT for an unknown request is either too late or too early: it may overtake its
//!   request if another executor took that or it came over io_uring. The newest
//!   [`EARLY_MAX`] of their numbers are kept for this case; the kernel never reuses a number;
//! - the kernel reports only the first signal, and none when a process closes its
//!   files while it exits. So a process that may be killed later is checked repeatedly until it
//!   is answered;
//! - a released request is answered once, and itself returns the references that its answer
//!   would have given to the kernel.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::sync::{OneReceiver, OneSender, oneshot};
use env::{Env, FuseChannel};
use types::{Duration, Fault, HashMap, Ino, Instant};

use crate::abi::Opcode;
use crate::decode::{Header, Operation};
use crate::errno::Errno;
use crate::fs::{Filesystem, LockRequest};
use crate::reply::Answer;
use crate::session::{Session, answer};

/// INTERRUPTs kept that may have overtaken their requests: far more than the requests that can be
/// in flight from the kernel at a time.
const EARLY_MAX: usize = 1024;

/// How often callers are checked for being killed.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The fate of a request whose caller is being killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KilledFate {
    /// It has no waiting caller, or ends by itself.
    EndsByItself,
    /// It runs to its end.
    RunsOn,
    /// It may fail early, as far as it has changed nothing.
    GivenUp,
}

impl KilledFate {
    pub(crate) fn of(operation: &Operation) -> KilledFate {
        match operation {
            Operation::Release { .. } | Operation::Releasedir { .. } | Operation::Destroy => {
                KilledFate::EndsByItself
            }
            Operation::Setlk { lock: LockRequest { exclusive: Some(_), .. }, .. } => {
                KilledFate::EndsByItself
            }
            // Other processes wait for locks that it frees.
            Operation::Setlk { .. } | Operation::Flush { .. } => KilledFate::RunsOn,
            _ => KilledFate::GivenUp,
        }
    }
}

/// A waiting request.
struct WaitingRequest {
    /// The channel for its answer.
    channel: FuseChannel,
    pid: u32,
    ino: Ino,
    opcode: u32,
    since: Instant,
    ending: KilledFate,
    /// Is its caller checked for being killed?
    watched: bool,
    released: bool,
}

/// A lock request that waits.
struct LockWait {
    pid: u32,
    ino: Ino,
    opcode: u32,
    /// Since when it waits; `None`: it has only begun.
    since: Option<Instant>,
    /// Any signal ends it.
    any: bool,
    watched: bool,
    drop: OneSender<()>,
}

/// A request of the kernel that waits, for people who ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Its number, under which the file system knows the operation.
    pub unique: u64,
    /// The thread that waits, as the kernel reports it.
    pub pid: u32,
    /// The inode.
    pub ino: Ino,
    /// FUSE's name of the request.
    pub request: String,
    /// Since when.
    pub since: Instant,
}

/// The requests of a mount that wait. Clones are the same requests.
#[derive(Clone, Default)]
pub struct Requests(pub(crate) Rc<Interrupts>);

impl Requests {
    /// Those that wait now, the longest first.
    pub fn waiting(&self) -> Vec<Waiting> {
        let request = |opcode| match Opcode::from_u32(opcode) {
            Some(opcode) => format!("{opcode:?}").to_uppercase(),
            None => format!("request {opcode}"),
        };
        let waiting = self.0.waiting.borrow();
        let waiting = waiting.iter().filter(|(_, one)| !one.released).map(|(unique, one)| {
            let (pid, ino, since) = (one.pid, one.ino, one.since);
            Waiting { unique: *unique, pid, ino, request: request(one.opcode), since }
        });
        let taking = self.0.taking.borrow();
        let taking = taking.iter().filter_map(|(unique, one)| {
            let (pid, ino, since) = (one.pid, one.ino, one.since?);
            Some(Waiting { unique: *unique, pid, ino, request: request(one.opcode), since })
        });
        let mut all: Vec<Waiting> = waiting.chain(taking).collect();
        all.sort_by_key(|one| (one.since, one.unique));
        all
    }
}

/// The waiting requests, by their unique numbers.
#[derive(Default)]
pub(crate) struct Interrupts {
    waiting: RefCell<HashMap<u64, WaitingRequest>>,
    taking: RefCell<HashMap<u64, LockWait>>,
    /// Numbers of INTERRUPTs that found no request in `waiting` or `taking`, the oldest first.
    early: RefCell<VecDeque<u64>>,
    watching: Cell<bool>,
}

impl Interrupts {
    /// Was the caller of request `unique` released?
    pub(crate) fn is_released(&self, unique: u64) -> bool {
        self.waiting.borrow().get(&unique).is_some_and(|waiting| waiting.released)
    }

    /// The result of `taking` a lock, or [`Fault::Interrupted`] if the caller is interrupted
    /// first (`any`: by any signal); `taking` is then dropped.
    pub(crate) async fn take<T>(
        &self,
        header: &Header,
        any: bool,
        taking: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let (drop, dropped) = oneshot();
        let (pid, ino, opcode) = (header.caller.pid, header.ino, header.opcode);
        let entry = LockWait { pid, ino, opcode, since: None, any, watched: false, drop };
        self.taking.borrow_mut().insert(header.unique, entry);
        let _registered = Registered { interrupts: self, unique: header.unique };
        first(taking, dropped).await
    }

    /// Records an INTERRUPT that found no request.
    fn note_early(&self, unique: u64) {
        let mut early = self.early.borrow_mut();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
    }

    /// Did an INTERRUPT overtake this request? Forgets it.
    fn take_early(&self, unique: u64) -> bool {
        let mut early = self.early.borrow_mut();
        let at = early.iter().rposition(|early| *early == unique);
        at.is_some_and(|at| early.remove(at).is_some())
    }

    fn watched(&self) -> Vec<(u64, u32)> {
        let waiting = self.waiting.borrow();
        let waiting = waiting.iter().filter(|(_, waiting)| waiting.watched && !waiting.released);
        let taking = self.taking.borrow();
        let taking = taking.iter().filter(|(_, taking)| taking.watched);
        let mut all: Vec<_> = waiting.map(|(unique, waiting)| (*unique, waiting.pid)).collect();
        all.extend(taking.map(|(unique, taking)| (*unique, taking.pid)));
        all.sort_unstable();
        all
    }
}

impl<F: Filesystem> Session<F> {
    /// A request did not end at once: registers it.
    pub(crate) fn waits(
        self: &Rc<Self>,
        env: &Env,
        channel: &FuseChannel,
        header: &Header,
        ending: KilledFate,
    ) {
        if ending != KilledFate::EndsByItself {
            self.register(env, channel, header, ending);
        } else if let Some(taking) = self.interrupts.taking.borrow_mut().get_mut(&header.unique) {
            taking.since = Some(env.now());
        }
        if self.interrupts.take_early(header.unique) {
            self.interrupt(env, header.unique);
        }
    }

    fn register(
        self: &Rc<Self>,
        env: &Env,
        channel: &FuseChannel,
        header: &Header,
        ending: KilledFate,
    ) {
        // The kernel reports nothing for a process that exits while it closes its files.
        let watched = header.opcode == Opcode::Flush as u32;
        let waiting = WaitingRequest {
            channel: channel.clone(),
            pid: header.caller.pid,
            ino: header.ino,
            opcode: header.opcode,
            since: env.now(),
            ending,
            watched,
            released: false,
        };
        self.interrupts.waiting.borrow_mut().insert(header.unique, waiting);
        if watched {
            self.watch(env);
        }
    }

    /// A waiting request ends now. Returns whether its caller was released, and so answered.
    pub(crate) fn ends(&self, unique: u64) -> bool {
        let waited = self.interrupts.waiting.borrow_mut().remove(&unique);
        let Some(waiting) = waited.filter(|waiting| waiting.released) else { return false };
        if waiting.ending == KilledFate::GivenUp {
            self.fs.over(unique);
        }
        true
    }

    /// The caller of request `unique` got a signal.
    pub(crate) fn interrupt(self: &Rc<Self>, env: &Env, unique: u64) {
        let mut taking = self.interrupts.taking.borrow_mut();
        let pid = if let Some(taken) = taking.get_mut(&unique) {
            taken.watched = true;
            if taken.any {
                let taken = taking.remove(&unique);
                drop(taking);
                taken.into_iter().for_each(|taken| taken.drop.send(()));
                return;
            }
            taken.pid
        } else if let Some(waiting) = self.interrupts.waiting.borrow_mut().get_mut(&unique) {
            waiting.watched = true;
            waiting.pid
        } else {
            return self.interrupts.note_early(unique);
        };
        drop(taking);
        if is_ending(pid) {
            self.release(unique);
        } else {
            self.watch(env);
        }
    }

    /// Releases the caller of a request, which is being killed.
    fn release(&self, unique: u64) {
        let taken = self.interrupts.taking.borrow_mut().remove(&unique);
        if let Some(taken) = taken {
            taken.drop.send(());
            return;
        }
        let mut waiting = self.interrupts.waiting.borrow_mut();
        let Some(entry) = waiting.get_mut(&unique).filter(|entry| !entry.released) else { return };
        entry.released = true;
        let (channel, ending) = (entry.channel.clone(), entry.ending);
        drop(waiting);
        if ending == KilledFate::GivenUp {
            self.fs.give_up(unique);
        }
        answer(&channel, unique, Answer::Status(Err(Errno(libc::EINTR))));
    }

    /// Releases all callers.
    pub(crate) fn release_all(&self) {
        let mut all: Vec<u64> = self.interrupts.waiting.borrow().keys().copied().collect();
        all.extend(self.interrupts.taking.borrow().keys());
        all.sort_unstable();
        all.into_iter().for_each(|unique| self.release(unique));
    }

    /// Checks the processes that got a signal, or close a file, until they have their answers.
    fn watch(self: &Rc<Self>, env: &Env) {
        if self.interrupts.watching.replace(true) {
            return;
        }
        let (session, env) = (self.clone(), env.clone());
        env.clone().spawn(async move {
            loop {
                env.sleep(CHECK_INTERVAL).await;
                let watched = session.interrupts.watched();
                if watched.is_empty() {
                    session.interrupts.watching.set(false);
                    return;
                }
                for (unique, pid) in watched {
                    if is_ending(pid) {
                        session.release(unique);
                    }
                }
            }
        });
    }
}

/// Removes the registration however the wait ends.
struct Registered<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.interrupts.taking.borrow_mut().remove(&self.unique);
    }
}

async fn first<T>(
    future: impl Future<Output = Result<T, Fault>>,
    interrupted: OneReceiver<()>,
) -> Result<T, Fault> {
    let mut future = pin!(future);
    let mut interrupted = pin!(interrupted);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(result) = future.as_mut().poll(cx) {
            return Poll::Ready(result);
        }
        match interrupted.as_mut().poll(cx) {
            Poll::Ready(Some(())) => Poll::Ready(Err(Fault::Interrupted)),
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Is thread `pid` being killed, or exiting? False for threads that this process cannot see, such
/// as those of other containers.
#[allow(clippy::disallowed_methods, reason = "reading /proc does not wait")]
fn is_ending(pid: u32) -> bool {
    pid != 0 && std::fs::read(format!("/proc/{pid}/stat")).is_ok_and(|stat| shows_ending(&stat))
}

/// Evaluates proc_pid_stat(5): flags in field 9, pending signals in field 31.
fn shows_ending(stat: &[u8]) -> bool {
    const EXITING: u64 = 0x4;
    const KILL: u64 = 1 << (libc::SIGKILL - 1);
    // The name, in parentheses, may contain any byte.
    let Some(name_end) = stat.iter().rposition(|&byte| byte == b')') else { return false };
    let rest = String::from_utf8_lossy(&stat[name_end + 1..]);
    let field = |number: usize| -> u64 {
        rest.split_ascii_whitespace().nth(number - 3).and_then(|f| f.parse().ok()).unwrap_or(0)
    };
    field(9) & EXITING != 0 || field(31) & KILL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(flags: u64, pending: u64) -> Vec<u8> {
        let zeros = |count: usize| vec!["0"; count].join(" ");
        format!("12 (a) b (c) S 1 2 3 4 5 {flags} {} {pending} {}", zeros(21), zeros(21)).into()
    }

    #[test]
    fn early_interrupts_are_kept_for_their_requests_and_bounded() {
        let interrupts = Interrupts::default();
        for unique in 0..3 * EARLY_MAX as u64 {
            interrupts.note_early(unique);
        }
        assert_eq!(interrupts.early.borrow().len(), EARLY_MAX);
        let newest = 3 * EARLY_MAX as u64 - 1;
        assert!(interrupts.take_early(newest) && !interrupts.take_early(newest));
        assert!(!interrupts.take_early(7));
    }

    #[test]
    fn killed_or_exiting_process_differs_from_a_signalled_one() {
        assert!(!shows_ending(&stat(0x40_0000, 0)));
        assert!(!shows_ending(&stat(0x40_0000, 1 << (libc::SIGUSR1 - 1))));
        assert!(shows_ending(&stat(0x40_0000, 1 << (libc::SIGKILL - 1))));
        assert!(shows_ending(&stat(0x40_0004, 0)));
        assert!(!shows_ending(b"") && !shows_ending(b"1 (x)"));
        assert!(!is_ending(std::process::id()) && !is_ending(0));
    }
}
