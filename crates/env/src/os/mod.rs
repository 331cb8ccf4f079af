//! The production side of the seam: Linux.
//!
//! Only this module and its children make system calls.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "this is what the seam is made of"
)]

pub(crate) mod device;
pub(crate) mod fallback;
pub(crate) mod fuse_dev;
pub(crate) mod fuse_ring;
pub(crate) mod lock;
pub(crate) mod near;
pub(crate) mod pool;
pub(crate) mod ring;
pub(crate) mod signal;
pub(crate) mod sys;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use crate::driver::{Driver, Handle};
use crate::executor::Core;
use crate::executor_group::{Carried, ExecutorGroup, Seated, without_token};
use crate::mailbox::Mailbox;
use crate::run_token::RunToken;
use crate::{DriverKind, Env};

/// A driver of `kind` and the mailbox that wakes it, for this thread.
fn driver(kind: DriverKind) -> io::Result<(Box<dyn Driver>, Arc<Mailbox>)> {
    let bell = Arc::new(sys::eventfd()?);
    let ringer = bell.clone();
    let mailbox = Mailbox::new(Box::new(move || sys::ring_bell(&ringer)));
    let ring = match kind {
        DriverKind::Fallback => None,
        DriverKind::Ring => Some(ring::Ring::new(&bell, mailbox.clone())?),
        DriverKind::Auto => ring::Ring::new(&bell, mailbox.clone()).ok(),
    };
    let driver: Box<dyn Driver> = match ring {
        Some(ring) => Box::new(ring),
        None => Box::new(fallback::Fallback::new(&bell, mailbox.clone())?),
    };
    Ok((driver, mailbox))
}

/// Runs `main` on this thread until it ends; remaining tasks are dropped.
///
/// # Errors
/// The driver could not be set up, or failed.
pub fn run<T, F: Future<Output = T>>(
    kind: DriverKind,
    main: impl FnOnce(Env) -> F,
) -> io::Result<T> {
    let (driver, mailbox) = driver(kind)?;
    let core = Core::new(driver, mailbox);
    core.block_on(main(Env::new(core.clone(), 0)))
}

/// Runs `main` on this thread until it ends, with a group of `executors` executors, each on a
/// thread of its own. They may share state that is not `Send`: one of them runs at a time, and the
/// others run meanwhile only in the kernel. [`Env::spawn_on`] starts tasks on other executors;
/// tasks that remain at the end are dropped.
///
/// # Errors
/// A driver could not be set up, or failed, or a thread could not be created.
pub fn run_group<T, F: Future<Output = T>>(
    kind: DriverKind,
    executors: usize,
    main: impl FnOnce(Env) -> F,
) -> io::Result<T> {
    if executors <= 1 {
        return run(kind, main);
    }
    let token = Arc::default();
    let _seated = Seated::new(&token, 0, executors);
    let group = ExecutorGroup::new();
    let (driver, mailbox) = driver(kind)?;
    // One kind for all: sockets are created for it.
    let kind = if driver.is_ring() { DriverKind::Ring } else { DriverKind::Fallback };
    let core = Core::new(driver, mailbox);
    group.join(&core);
    let ended = core.block_on(async {
        let mut others = Others { group: group.clone(), threads: Vec::new() };
        for seat in 1..executors {
            others.start(kind, &token, (seat, executors))?;
        }
        let mut main = pin!(main(Env::new(core.clone(), 0)));
        let mut failure = pin!(group.failure());
        poll_fn(|cx| match main.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => failure.as_mut().poll(cx).map(Err),
        })
        .await
    });
    group.dissolve();
    ended?
}

/// The threads of a group but the first. Dropping it joins them.
struct Others {
    group: Rc<ExecutorGroup>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Others {
    /// Starts the thread of the next seat.
    fn start(
        &mut self,
        kind: DriverKind,
        token: &Arc<RunToken>,
        (seat, executors): (usize, usize),
    ) -> io::Result<()> {
        let (token, group) = (token.clone(), Carried::new(self.group.clone()));
        let (sender, started) = std::sync::mpsc::sync_channel(1);
        let thread =
            std::thread::Builder::new().name(format!("redbud-{seat}")).spawn(move || {
                let seated = Seated::new(&token, seat, executors);
                let group = group.open(&seated);
                let core = match driver(kind) {
                    Ok((driver, mailbox)) => Core::new(driver, mailbox),
                    Err(error) => return drop(sender.send(Err(error))),
                };
                group.join(&core);
                // The first seat waits for it.
                drop(sender.send(Ok(())));
                if let Err(error) = core.block_on(group.over()) {
                    group.report_failure(error);
                }
            })?;
        self.threads.push(thread);
        without_token(|| started.recv())
            .unwrap_or_else(|_| Err(io::Error::other("a thread ended at once")))
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.group.end();
        for thread in self.threads.drain(..) {
            // A panic has aborted the process.
            drop(without_token(|| thread.join()));
        }
    }
}

/// Raises the limit of open files of this process (RLIMIT_NOFILE) as far as it may go without
/// privileges, and returns it. Each connection is an open file.
pub fn raise_open_files() -> u64 {
    sys::raise_open_files()
}

/// Descriptor of a production handle.
pub(crate) fn raw(handle: &Handle) -> i32 {
    use std::os::fd::AsRawFd;
    match handle {
        Handle::Fd(fd) => fd.as_raw_fd(),
        Handle::Sim(_) => unreachable!("a simulated object in a production driver"),
    }
}
