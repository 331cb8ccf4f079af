//! A mounted client, from the first hello to the last goodbye.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use client::{Client, ClientConfig, ConnectError};
use env::{Env, FuseChannel};

use crate::fs::Filesystem;
use crate::init::{InitOptions, Negotiated};
use crate::mount::{MountOptions, become_io_flusher, mount, tune, unmount};
use crate::notify::Notifier;
use crate::session::{ServeOptions, serve};

/// What is mounted where.
#[derive(Clone)]
pub struct ClientMount {
    /// The client.
    pub config: ClientConfig,
    /// Mount point.
    pub target: PathBuf,
    /// How.
    pub options: MountOptions,
    /// What is asked of the kernel.
    pub init: InitOptions,
}

/// Why a mount failed.
#[derive(Debug)]
pub enum MountError {
    /// No session with a metadata server.
    Connect(ConnectError),
    /// The kernel or its helper refused.
    Mount(io::Error),
    /// The channel to the kernel failed.
    Serve(io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Connect(error) => error.fmt(f),
            MountError::Mount(error) => error.fmt(f),
            MountError::Serve(error) => write!(f, "the channel to the kernel failed: {error}"),
        }
    }
}

impl std::error::Error for MountError {}

/// Connects, mounts, calls `ready` when the mount can be used, and serves until it
/// is unmounted; then everything is written and the session ended. Signals as in
/// [`mount_and_serve`].
///
/// # Errors
/// Why it could not be mounted or served, for people.
pub async fn mount_client(
    env: &Env,
    what: ClientMount,
    ready: impl FnOnce() + 'static,
) -> Result<(), MountError> {
    let ClientMount { mut config, target, options, init } = what;
    config.read_only |= options.read_only();
    let log = config.log;
    let notifier = Notifier::new();
    let client = Client::connect(env.clone(), config, Rc::new(notifier.clone()))
        .await
        .map_err(MountError::Connect)?;
    let mounting = Mounting { target, options, init, notifier, log };
    let served = mount_and_serve(env, mounting, client.clone(), ready).await;
    client.unmount().await;
    served
}

/// What is mounted, besides the file system itself.
pub struct Mounting {
    /// Mount point.
    pub target: PathBuf,
    /// How.
    pub options: MountOptions,
    /// What is asked of the kernel.
    pub init: InitOptions,
    /// Is attached when the kernel has agreed.
    pub notifier: Notifier,
    /// Where lines for people go.
    pub log: fn(&str),
}

/// Mounts `fs`, calls `ready` when it can be used, and serves until it is unmounted.
/// SIGINT and SIGTERM unmount (lazily if the mount is in use); a second one ends
/// serving at once.
///
/// # Errors
/// Why it could not be mounted or served, for people.
pub async fn mount_and_serve<F: Filesystem>(
    env: &Env,
    what: Mounting,
    fs: F,
    ready: impl FnOnce() + 'static,
) -> Result<(), MountError> {
    let Mounting { target, options, init, notifier, log } = what;
    let channel = mount(&target, &options)
        .and_then(|fd| FuseChannel::new(env, fd))
        .map_err(MountError::Mount)?;
    become_io_flusher();
    let point = target.clone();
    let ready = move |_: &Negotiated| {
        tune(&point);
        ready();
    };
    let options = ServeOptions { init, notifier, ready: Some(Box::new(ready)) };
    let served = until_stopped(env, serve(env, channel, fs, options), target, log).await;
    served.map_err(MountError::Serve)
}

/// Runs `serving` to its end, unmounting at the first signal and giving up at the second.
async fn until_stopped(
    env: &Env,
    serving: impl Future<Output = io::Result<()>>,
    target: PathBuf,
    log: fn(&str),
) -> io::Result<()> {
    let mut serving = pin!(serving);
    let stopping = async {
        env.stop_signal().await;
        let left = env.offload(move || {
            unmount(&target, false).or_else(|error| {
                let busy = error.kind() == io::ErrorKind::ResourceBusy;
                if busy { unmount(&target, true) } else { Err(error) }
            })
        });
        if let Err(error) = left.await {
            log(&error.to_string());
        }
        env.stop_signal().await;
    };
    let mut stopping = pin!(stopping);
    std::future::poll_fn(|cx| {
        if let Poll::Ready(served) = serving.as_mut().poll(cx) {
            return Poll::Ready(served);
        }
        stopping.as_mut().poll(cx).map(|()| Ok(()))
    })
    .await
}
