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

use std::io;
use std::sync::Arc;

use crate::driver::{Driver, Handle};
use crate::mailbox::Mailbox;
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
    let core = crate::executor::Core::new(driver, mailbox);
    core.block_on(main(Env::new(core.clone(), 0)))
}

/// Runs `main(env, index)` on `threads` threads, one executor each; returns when all ended.
///
/// # Errors
/// The first driver's that could not be set up, or broke.
pub fn run_many<F: Future<Output = ()>>(
    kind: DriverKind,
    threads: usize,
    main: impl Fn(Env, usize) -> F + Send + Sync + 'static,
) -> io::Result<()> {
    let main = &main;
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .map(|index| {
                let name = format!("redbud-{index}");
                std::thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, move || run(kind, |env| main(env, index)))
            })
            .collect::<io::Result<_>>()?;
        let mut ended = if threads > 0 { run(kind, |env| main(env, 0)) } else { Ok(()) };
        for other in others {
            match other.join() {
                Ok(result) => ended = ended.and(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        ended
    })
}

/// Descriptor of a production handle.
pub(crate) fn raw(handle: &Handle) -> i32 {
    use std::os::fd::AsRawFd;
    match handle {
        Handle::Fd(fd) => fd.as_raw_fd(),
        Handle::Sim(_) => unreachable!("a simulated object in a production driver"),
    }
}
