//! The handle through which tasks use their executor.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use types::{Duration, Instant, Timestamp, Uuid};

use crate::buffer::IoBuf;
use crate::disk::Disk;
use crate::driver::{DiskOptions, NodeId, Op, Payload, Target};
use crate::executor::{Core, OpFuture};
use crate::net::{Listener, Stream};

/// How long [`Env::listen`] waits for an address in use, and how often it retries.
const LISTEN_PATIENCE: Duration = Duration::from_secs(2);
const LISTEN_PAUSE: Duration = Duration::from_millis(10);
/// In how many parts [`Env::timeout_awake`] waits.
const PARTS: u32 = 5;

/// A handle on the executor of this thread. Cheap to clone, `!Send`. In an executor group
/// ([`crate::run_group`]) it is a handle on the executor of whichever thread uses it.
#[derive(Clone)]
pub struct Env {
    home: Rc<Core>,
    node: NodeId,
}

impl Env {
    pub(crate) fn new(home: Rc<Core>, node: NodeId) -> Env {
        Env { home, node }
    }

    pub(crate) fn core(&self) -> Rc<Core> {
        self.home.here()
    }

    /// The number of executors in this group.
    pub fn executors(&self) -> usize {
        match self.home.group() {
            Some(group) => group.size(),
            None => self.home.with_driver(|driver| driver.executors(self.node)),
        }
    }

    /// The number of this executor among [`Env::executors`].
    pub fn executor(&self) -> usize {
        self.home.group().map_or_else(|| self.home.seat(), |_| crate::executor_group::seat())
    }

    /// Starts a task on one of [`Env::executors`], by its number; 0 is the first.
    pub fn spawn_on(&self, executor: usize, task: impl Future<Output = ()> + 'static) {
        match self.home.group() {
            Some(group) => group.core(executor).spawn(self.node, task),
            None => self.home.spawn_at(self.node, executor, task),
        }
    }

    pub(crate) fn node(&self) -> NodeId {
        self.node
    }

    pub(crate) fn submit(&self, op: Op) -> OpFuture {
        self.core().submit(self.node, op)
    }

    /// The time of a clock that never goes back and counts while the host sleeps.
    pub fn now(&self) -> Instant {
        self.core().with_driver(|driver| driver.node_time(self.node, driver.now()))
    }

    /// From `at` on (by [`Env::now`]), no operation of this node begins: each fails at once with
    /// `TimedOut`. `None`: no end. A later call replaces an earlier one. For a process that may act
    /// only as long as its lease lasts, even if it was stopped meanwhile (003 §III).
    pub fn end_io_at(&self, at: Option<Instant>) {
        self.core().end_io_at(self.node, at);
    }

    /// Is the time of [`Env::end_io_at`] over?
    pub fn io_has_ended(&self) -> bool {
        self.core().is_over(self.node)
    }

    /// The wall clock.
    pub fn wall(&self) -> Timestamp {
        self.core().with_driver(|driver| driver.wall(self.node))
    }

    /// 64 random bits (simulated: from the seed).
    pub fn random_u64(&self) -> u64 {
        self.core().with_driver(|driver| driver.entropy())
    }

    /// A random (version 4) UUID.
    pub fn random_uuid(&self) -> Uuid {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.random_u64().to_le_bytes());
        bytes[8..].copy_from_slice(&self.random_u64().to_le_bytes());
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        Uuid(bytes)
    }

    /// Starts a task that runs to its end.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.core().spawn(self.node, task);
    }

    /// Starts a task; the handle yields its value. Dropping the handle detaches it.
    pub fn spawn_join<T: 'static>(&self, task: impl Future<Output = T> + 'static) -> Join<T> {
        let state = Rc::new(RefCell::new(JoinState { value: None, waker: None }));
        let join = Join(state.clone());
        self.spawn(async move {
            let value = task.await;
            let waker = {
                let mut state = state.borrow_mut();
                state.value = Some(value);
                state.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        join
    }

    /// The number of tasks of this executor that have not ended.
    pub fn live_tasks(&self) -> usize {
        self.core().live_tasks()
    }

    /// Waits for `time`.
    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now() + time).await;
    }

    /// Waits until `at`; returns at once if that has passed.
    pub async fn sleep_until(&self, at: Instant) {
        let at = self.core().with_driver(|driver| driver.world_time(self.node, at));
        self.core().sleep_until(at).await;
    }

    /// The result of `future`, or `None` if it takes longer than `time`.
    pub async fn timeout<T>(&self, time: Duration, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut sleep = pin!(self.sleep_until(self.now() + time));
        poll_fn(|cx| {
            if let Poll::Ready(value) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// As [`Env::timeout`], where the answer proves something of who gives it: a stop of this
    /// process counts as a fifth of `time` at most. So what was answered meanwhile is taken in.
    pub async fn timeout_awake<T>(
        &self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        let mut future = pin!(future);
        for _ in 0..PARTS {
            if let Some(value) = self.timeout(time / PARTS, future.as_mut()).await {
                return Some(value);
            }
        }
        None
    }

    /// Lets the other ready tasks run first.
    pub async fn yield_now(&self) {
        let mut yielded = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Runs an expensive pure function on another thread (in simulation: on this one).
    pub async fn offload<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let job = Op::Job(Box::new(move || {
            let value = f();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        }));
        let (ended, _) = self.submit(job).await;
        let value = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        match value {
            Some(value) => value,
            None => panic!("the offloaded function returned no result: {ended:?}"),
        }
    }

    /// 32 random bytes (simulated: from the seed).
    pub fn random_bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&self.random_u64().to_le_bytes());
        }
        bytes
    }

    /// The effective user of this process (simulated: 0).
    pub fn own_user(&self) -> u32 {
        self.core().with_driver(|driver| driver.own_user())
    }

    /// Connects by TCP, or to a [`Listener`] on this host by a Unix socket. `address` is
    /// "host:port"; TCP_NODELAY is set.
    pub async fn connect(&self, address: &str) -> io::Result<Stream> {
        self.connect_as(address, |_| true).await
    }

    /// The same, by a Unix socket only if `near` accepts the user whose process listens there.
    pub async fn connect_as(
        &self,
        address: &str,
        near: impl Fn(u32) -> bool,
    ) -> io::Result<Stream> {
        let mut failure = None;
        for target in self.resolve(address).await? {
            if let Some((handle, peer)) =
                self.core().with_driver(|driver| driver.connect_near(&target))
            {
                let stream = Stream::new(self.clone(), handle, peer);
                if stream.peer_user().is_some_and(&near) {
                    return Ok(stream);
                }
            }
            match self.submit(Op::Connect { target }).await {
                (Ok(_), Payload::Socket(handle, peer)) => {
                    return Ok(Stream::new(self.clone(), handle, peer));
                }
                (Ok(_), _) => unreachable!("a connection completes with a socket"),
                (Err(error), _) => failure = Some(error),
            }
        }
        let error = failure
            .unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        Err(io::Error::new(error.kind(), format!("connect to {address}: {error}")))
    }

    async fn resolve(&self, address: &str) -> io::Result<Vec<Target>> {
        if self.core().with_driver(|driver| driver.simulated()) {
            return Ok(vec![Target::Name(address.to_owned())]);
        }
        if let Ok(literal) = address.parse::<SocketAddr>() {
            return Ok(vec![Target::Ip(literal)]);
        }
        let name = address.to_owned();
        let found = self.offload(move || name.to_socket_addrs().map(Vec::from_iter)).await;
        let found = found
            .map_err(|error| io::Error::new(error.kind(), format!("resolve {address}: {error}")))?;
        Ok(found.into_iter().map(Target::Ip).collect())
    }

    /// Listens for TCP connections on "host:port" (port 0 takes a free one), and for connections
    /// from this host on a Unix socket beside it, if its name is free. Retries for a while if an
    /// address is in use: the kernel closes the io_uring of a killed process, and what it holds,
    /// only after the process has ended.
    pub async fn listen(&self, address: &str) -> io::Result<Listener> {
        let until = self.now() + LISTEN_PATIENCE;
        let tcp = || self.core().with_driver(|driver| driver.listen(self.node, address));
        let (handle, local) = self.when_free(until, tcp).await.map_err(|error| {
            io::Error::new(error.kind(), format!("listen on {address}: {error}"))
        })?;
        let near = || self.core().with_driver(|driver| driver.listen_near(&local));
        let near = self.when_free(until, near).await.unwrap_or_default();
        Ok(Listener::new(self.clone(), handle, near, local))
    }

    /// Listens for processes of this host on a Unix socket at `path`, which replaces whatever is
    /// there. Only the user of this process and root can connect; the name stays when the listener
    /// is gone. `Unsupported` in simulation.
    pub fn listen_at(&self, path: &Path) -> io::Result<Listener> {
        let handle = self.core().with_driver(|driver| driver.listen_at(path))?;
        Ok(Listener::new(self.clone(), handle, None, path.display().to_string()))
    }

    async fn when_free<T>(
        &self,
        until: Instant,
        mut listen: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match listen() {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && self.now() < until => {
                    self.sleep(LISTEN_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    /// Opens a block device or file with O_DIRECT. Errors name the path.
    pub async fn open_disk(&self, path: &str, options: DiskOptions) -> io::Result<Disk> {
        let opened =
            self.core().with_driver(|driver| driver.open_disk(self.node, path, options))?;
        Ok(Disk::new(self.clone(), path, opened))
    }

    /// An aligned, zeroed buffer of `len` bytes from the pool of this thread.
    pub fn buffer(&self, len: usize) -> IoBuf {
        IoBuf::zeroed(len)
    }

    /// Waits for SIGINT or SIGTERM and returns its number. A signal that arrived since this
    /// executor started or since the last call ended counts.
    pub async fn stop_signal(&self) -> i32 {
        if self.core().with_driver(|driver| driver.simulated()) {
            let (signal, _) = self.submit(Op::Stop).await;
            return signal
                .ok()
                .and_then(|signal| i32::try_from(signal).ok())
                .unwrap_or(libc::SIGTERM);
        }
        crate::os::signal::next(&self.core().signals_seen).await
    }
}

struct JoinState<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// Yields the value of a task that was started with [`Env::spawn_join`].
pub struct Join<T>(Rc<RefCell<JoinState<T>>>);

impl<T> Join<T> {
    /// Has the task ended?
    pub fn is_ready(&self) -> bool {
        self.0.borrow().value.is_some()
    }

    /// The value, if the task has ended.
    pub fn take(&self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }
}

impl<T> Future for Join<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.borrow_mut();
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
