//! A mounted client, from the first hello to the last goodbye.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use client::{Client, ClientConfig, ConnectError};
use env::{Env, FuseChannel};
use types::{Duration, Instant};

use crate::fs::{Filesystem, LocalFuture};
use crate::init::{InitOptions, Negotiated};
use crate::interrupt::Requests;
use crate::mount::{MountOptions, become_io_flusher, mount, tune, unmount};
use crate::notify::Notifier;
use crate::session::{ServeOptions, serve};

/// What to mount, and where.
#[derive(Clone)]
pub struct ClientMount {
    /// The client.
    pub config: ClientConfig,
    /// Mount point.
    pub target: PathBuf,
    /// Mount options.
    pub options: MountOptions,
    /// Options of the negotiation with the kernel.
    pub init: InitOptions,
    /// Receives log lines, also those of the client.
    pub log: fn(&str),
}

/// A mounted client, to be asked what it does.
pub struct Introspection {
    /// The client.
    pub client: Client,
    /// The requests of the kernel that wait.
    pub requests: Requests,
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
    /// It was mounted and served, but at its end not everything could be written: the losses.
    Lost(String),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Connect(error) => error.fmt(f),
            MountError::Mount(error) => error.fmt(f),
            MountError::Lost(text) => f.write_str(text),
            MountError::Serve(error) => write!(f, "the channel to the kernel failed: {error}"),
        }
    }
}

impl std::error::Error for MountError {}

/// Signals within this time of each other count as one: a parent that dies with
/// several threads sends several.
const APART: Duration = Duration::from_secs(1);
/// How often to check whether the remaining work waits in vain.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Connects, mounts, calls `ready` when the mount can be used, and serves until it is unmounted;
/// then writes everything and ends the session. Signals as in [`mount_and_serve`]. While the
/// remaining work waits for an unreachable server or a stalled device, any signal after the first
/// gives it up. `introspect` gets what can be asked of the client from then on, until the end.
///
/// # Errors
/// Why it could not be mounted or served, or what was lost, as text.
pub async fn mount_client(
    env: &Env,
    what: ClientMount,
    introspect: impl FnOnce(Introspection),
    ready: impl FnOnce() + 'static,
) -> Result<(), MountError> {
    client_mounted(env, what, Box::new(introspect), Box::new(ready)).await
}

fn client_mounted<'a>(
    env: &'a Env,
    what: ClientMount,
    introspect: Box<dyn FnOnce(Introspection) + 'a>,
    ready: Box<dyn FnOnce()>,
) -> LocalFuture<'a, Result<(), MountError>> {
    Box::pin(async move {
        let ClientMount { mut config, target, options, init, log } = what;
        config.read_only |= options.read_only();
        config.log = Rc::new(log);
        let notifier = Notifier::new();
        let client = Client::connect(env.clone(), config, Rc::new(notifier.clone()))
            .await
            .map_err(MountError::Connect)?;
        let requests = Requests::default();
        introspect(Introspection { client: client.clone(), requests: requests.clone() });
        let mounting = Mounting { target, options, init, notifier, requests, log };
        let stops = StopSignals::new(env);
        let served = serve_mounted(env, mounting, client.clone(), &stops, ready).await;
        let mut given_up = pin!(give_up(&client, &stops, log));
        let mut writing = pin!(client.unmount());
        let lost = std::future::poll_fn(|cx| match writing.as_mut().poll(cx) {
            Poll::Ready(lost) => Poll::Ready(lost),
            Poll::Pending => given_up.as_mut().poll(cx).map(|who| {
                let text = client.loss_report(&format!("a signal ended it while {who}"));
                log(&text);
                Some(text)
            }),
        })
        .await;
        match (served, lost) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(text)) => Err(MountError::Lost(text)),
            (Ok(()), None) => Ok(()),
        }
    })
}

/// Ends when two signals came and the remaining work waits for a peer that does not answer;
/// returns which.
async fn give_up(client: &Client, stops: &StopSignals, log: fn(&str)) -> String {
    while stops.seen() < 2 {
        stops.next().await;
        if let Some(who) = client.unanswering(APART).filter(|_| stops.seen() < 2) {
            log(&format!("unmounting waits while {who}; a further signal gives it up"));
        }
    }
    loop {
        if let Some(who) = client.unanswering(APART) {
            return who;
        }
        stops.env.sleep(CHECK_INTERVAL).await;
    }
}

/// Counts SIGINT and SIGTERM. Signals within [`APART`] of a counted one count as the same.
struct StopSignals {
    env: Env,
    seen: Cell<u32>,
    last: Cell<Option<Instant>>,
}

impl StopSignals {
    fn new(env: &Env) -> StopSignals {
        StopSignals { env: env.clone(), seen: Cell::new(0), last: Cell::new(None) }
    }

    fn seen(&self) -> u32 {
        self.seen.get()
    }

    /// Ends at the next counted signal.
    async fn next(&self) {
        loop {
            self.env.stop_signal().await;
            let now = self.env.now();
            if self.last.get().is_none_or(|last| now.since(last) >= APART) {
                self.last.set(Some(now));
                self.seen.set(self.seen.get() + 1);
                return;
            }
        }
    }
}

/// The parameters of a mount besides the file system itself.
pub struct Mounting {
    /// Mount point.
    pub target: PathBuf,
    /// Mount options.
    pub options: MountOptions,
    /// Options of the negotiation with the kernel.
    pub init: InitOptions,
    /// Attached after the negotiation with the kernel.
    pub notifier: Notifier,
    /// Where the requests that wait can be looked at.
    pub requests: Requests,
    /// Receives log lines.
    pub log: fn(&str),
}

/// Mounts `fs`, calls `ready` when it can be used, and serves until it is unmounted.
/// SIGINT and SIGTERM unmount (lazily if the mount is in use). A second signal, at least a second
/// later, ends serving at once; so does a server that stays unreachable.
///
/// # Errors
/// Why it could not be mounted or served, as text.
pub async fn mount_and_serve<F: Filesystem>(
    env: &Env,
    what: Mounting,
    fs: F,
    ready: impl FnOnce() + 'static,
) -> Result<(), MountError> {
    serve_mounted(env, what, fs, &StopSignals::new(env), ready).await
}

async fn serve_mounted<F: Filesystem>(
    env: &Env,
    what: Mounting,
    fs: F,
    stops: &StopSignals,
    ready: impl FnOnce() + 'static,
) -> Result<(), MountError> {
    let Mounting { target, options, init, notifier, requests, log } = what;
    let channel = mount(&target, &options)
        .and_then(|fd| FuseChannel::new(env, fd))
        .map_err(MountError::Mount)?;
    become_io_flusher();
    let point = target.clone();
    let ready = move |_: &Negotiated| {
        tune(&point);
        ready();
    };
    let options = ServeOptions {
        init,
        notifier,
        requests,
        ready: Some(Box::new(ready)),
        log: Some(log),
        ..ServeOptions::default()
    };
    let gone = fs.gone();
    let serving = serve(env, channel, fs, options);
    until(serving, stop(stops, target, gone, log)).await.map_err(MountError::Serve)
}

/// Unmounts at the first signal; ends at the second, or when remaining users of the mount get no
/// more answers.
async fn stop(stops: &StopSignals, target: PathBuf, gone: LocalFuture<'static, ()>, log: fn(&str)) {
    stops.next().await;
    let env = stops.env.clone();
    // It may have to wait for requests that are served here.
    stops.env.spawn(async move {
        let left = env.offload(move || {
            unmount(&target, false).or_else(|error| {
                let busy = error.kind() == io::ErrorKind::ResourceBusy;
                if busy { unmount(&target, true) } else { Err(error) }
            })
        });
        // EINVAL: it was detached before, and its remaining users are still served.
        if let Err(error) = left.await
            && error.kind() != io::ErrorKind::InvalidInput
        {
            log(&error.to_string());
        }
    });
    let second = async {
        stops.next().await;
        Ok(())
    };
    // Neither fails.
    let _ = until(second, gone).await;
}

/// Runs `serving` until it or `stopping` ends.
async fn until(
    serving: impl Future<Output = io::Result<()>>,
    stopping: impl Future<Output = ()>,
) -> io::Result<()> {
    let (mut serving, mut stopping) = (pin!(serving), pin!(stopping));
    // Polls `stopping` first, so that signals are handled before `ready` is called.
    std::future::poll_fn(|cx| match stopping.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(Ok(())),
        Poll::Pending => serving.as_mut().poll(cx),
    })
    .await
}
