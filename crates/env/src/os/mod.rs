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

use crate::baton::Baton;
use crate::driver::{Driver, Handle};
use crate::executor::Core;
use crate::mailbox::Mailbox;
use crate::team::{Carried, Seated, Team, away};
use crate::{DriverKind, Env};

/// A driver of `kind` and the mailbox that rings it, for this thread.
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

/// Runs `main` on this thread until it ends; tasks that are left are dropped.
///
/// # Errors
/// The driver could not be set up, or broke.
pub fn run<T, F: Future<Output = T>>(
    kind: DriverKind,
    main: impl FnOnce(Env) -> F,
) -> io::Result<T> {
    let (driver, mailbox) = driver(kind)?;
    let core = Core::new(driver, mailbox);
    core.block_on(main(Env::new(core.clone(), 0)))
}

/// Runs `main` on this thread until it ends, with `executors` executors, each on a thread of its
/// own, that take turns: they may share what is not `Send`, and run beside each other while
/// they are in the kernel. Tasks are started on others by [`Env::spawn_on`]; those that are left at
/// the end are dropped.
///
/// # Errors
/// A driver could not be set up, or broke, or a thread not be made.
pub fn run_team<T, F: Future<Output = T>>(
    kind: DriverKind,
    executors: usize,
    main: impl FnOnce(Env) -> F,
) -> io::Result<T> {
    if executors <= 1 {
        return run(kind, main);
    }
    let baton = Arc::default();
    let _seated = Seated::new(&baton, 0, executors);
    let team = Team::new();
    let (driver, mailbox) = driver(kind)?;
    // One kind for all: sockets are made for it.
    let kind = if driver.is_ring() { DriverKind::Ring } else { DriverKind::Fallback };
    let core = Core::new(driver, mailbox);
    team.join(&core);
    let ended = core.block_on(async {
        let mut others = Others { team: team.clone(), threads: Vec::new() };
        for seat in 1..executors {
            others.start(kind, &baton, (seat, executors))?;
        }
        let mut main = pin!(main(Env::new(core.clone(), 0)));
        let mut broken = pin!(team.broken());
        poll_fn(|cx| match main.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Ok(value)),
            Poll::Pending => broken.as_mut().poll(cx).map(Err),
        })
        .await
    });
    team.dissolve();
    ended?
}

/// The threads of a team but the first. Dropped, it waits for their ends.
struct Others {
    team: Rc<Team>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Others {
    /// Starts the thread of the next seat.
    fn start(
        &mut self,
        kind: DriverKind,
        baton: &Arc<Baton>,
        (seat, executors): (usize, usize),
    ) -> io::Result<()> {
        let (baton, team) = (baton.clone(), Carried::new(self.team.clone()));
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let thread =
            std::thread::Builder::new().name(format!("redbud-{seat}")).spawn(move || {
                let seated = Seated::new(&baton, seat, executors);
                let team = team.open(&seated);
                let core = match driver(kind) {
                    Ok((driver, mailbox)) => Core::new(driver, mailbox),
                    Err(error) => return drop(tell.send(Err(error))),
                };
                team.join(&core);
                // The first seat waits for it.
                drop(tell.send(Ok(())));
                if let Err(error) = core.block_on(team.over()) {
                    team.tell_broken(error);
                }
            })?;
        self.threads.push(thread);
        away(|| told.recv()).unwrap_or_else(|_| Err(io::Error::other("a thread ended at once")))
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        self.team.end();
        for thread in self.threads.drain(..) {
            // A panic has ended the process.
            drop(away(|| thread.join()));
        }
    }
}

/// Descriptor of a production handle.
pub(crate) fn raw(handle: &Handle) -> i32 {
    use std::os::fd::AsRawFd;
    match handle {
        Handle::Fd(fd) => fd.as_raw_fd(),
        Handle::Sim(_) => unreachable!("a simulated object in a production driver"),
    }
}
