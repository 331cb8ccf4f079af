//! The client: one object whose methods are the operations of a mounted file system.

use std::rc::Rc;

use env::Env;
use env::sync::first;
use proto::mds::Mds;
use session::client::Session;
use types::{ClientId, Duration, Fault, FileKind, HeldRange, Ino, Rights, ShardId};

use crate::api::{
    Caller, ClientConfig, ClientStatus, ConnectError, DeviceStatus, Kernel, LocalFuture,
    ServerSession,
};
use crate::boundary::{CommitCounts, DataHalf};
use crate::core::Core;
use crate::data::{DataConfig, DataContext, TargetSettings};
use crate::data_rpc::DataRpc;
use crate::homes::Rehomed;
use crate::inode::Inode;
use crate::rpc::{Events, Rpc};

/// How often the size of the inode table is checked.
const TRIM: Duration = Duration::from_secs(1);
/// A data device that has not answered a request for this long is reported.
const SILENT_AFTER: Duration = Duration::from_secs(1);
/// After a sync, so many more at most: holes follow commits, and are made durable by the next one.
const SYNCS: u32 = 3;
/// How long an unmount waits for an absent server, or for a data device that does not answer; at
/// least two leases.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the data part needs to know.
fn data_config(config: &ClientConfig, core: &Core) -> DataConfig {
    DataConfig {
        devices: config.devices.clone(),
        dirty_max: config.dirty_max,
        read_only: config.read_only,
        allocation: config.allocation,
        commit: config.commit,
        on_edit: config.on_edit.clone(),
        waits: core.waits.clone(),
        targets: TargetSettings {
            fs_name: config.fs_name.clone(),
            description: config.description.clone(),
            lease: config.lease,
            keys: config.keys.clone(),
            ping: config.target_ping,
        },
    }
}

/// A client of one file system. Clones are the same client; it lives on one executor.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Rc<Core>,
}

impl Client {
    /// Opens a session and the data devices. Fails within `connect_timeout`, saying what is wrong
    /// and what to do.
    pub fn connect(
        env: Env,
        config: ClientConfig,
        kernel: Rc<dyn Kernel>,
    ) -> LocalFuture<'static, Result<Client, ConnectError>> {
        Box::pin(async move {
            let sessions = Rpc::open(env.clone(), &config).await?;
            let core = Core::new(env.clone(), config.clone(), kernel, sessions.clone());
            let events: Rc<dyn Events<Mds>> = core.clone();
            let session = sessions.home();
            sessions.set_events(&events);
            let rehomed: Rc<dyn Rehomed> = core.clone();
            sessions.set_rehomed(Rc::downgrade(&rehomed));
            let data = data_config(&config, &core);
            let fs = session.offer().0;
            if let Some(Err(text)) = config.admit.as_ref().map(|admit| admit(fs)) {
                sessions.close().await;
                return Err(ConnectError { text });
            }
            let rpc = Rc::new(DataRpc(Rc::downgrade(&core)));
            match DataContext::open(env.clone(), data, fs, sessions.offers(), rpc).await {
                Ok(data) => core.set_data(data),
                Err(text) => {
                    sessions.close().await;
                    return Err(ConnectError { text });
                }
            }
            if let Err(fault) = core.fetch_attr(Ino::ROOT).await {
                sessions.close().await;
                return Err(ConnectError {
                    text: format!("cannot read the root directory: {fault}"),
                });
            }
            let client = Client { core: core.clone() };
            if let Err(text) = client.find_mount_root().await {
                sessions.close().await;
                return Err(ConnectError { text });
            }
            client.cache_root_info().await;
            let weak = Rc::downgrade(&core);
            env.clone().spawn(async move {
                loop {
                    env.sleep(TRIM).await;
                    match weak.upgrade() {
                        Some(core) if !core.rpc.is_closed() => core.trim().await,
                        _ => return,
                    }
                }
            });
            Ok(client)
        })
    }

    /// The directory that is mounted: what the kernel calls the root.
    pub fn root(&self) -> Ino {
        self.core.root.get()
    }

    /// Finds the directory to mount. The kernel never forgets it.
    async fn find_mount_root(&self) -> Result<(), String> {
        let core = &self.core;
        let mut path = format!("{}:", core.config.fs_name);
        for name in &core.config.dir {
            let dir = self.root();
            path = format!("{path}/{name}");
            let found = self.lookup(&Caller::default(), dir, name).await;
            let entry = found.map_err(|fault| format!("cannot look up {path}: {fault}"))?.map_err(
                |_| format!("{path} does not exist: create it, or mount a directory above it"),
            )?;
            if dir != Ino::ROOT {
                self.forget(dir, 1);
            }
            core.root.set(entry.attr.ino);
            if entry.attr.kind != FileKind::Directory {
                return Err(format!("{path} is not a directory: only directories can be mounted"));
            }
        }
        Ok(())
    }

    /// Writes everything, returns the pool and ends the session. Waits for an absent server, and
    /// for a device that does not answer, as [`Client::unmount_deadline`] does. Returns, and logs,
    /// what could not be written.
    pub fn unmount(&self) -> LocalFuture<'_, Option<String>> {
        Box::pin(async move {
            let core = &self.core;
            if let Some(who) = self.unanswering(SILENT_AFTER) {
                let limit = self.patience().as_nanos() / 1_000_000_000;
                core.rpc.log(&format!(
                    "unmounting while {who}: waiting up to {limit} s to write unsaved data"
                ));
            }
            let lost = match first(self.write_all(), self.unmount_deadline()).await {
                Some(Ok(())) => None,
                Some(Err(fault)) => Some(self.loss_report(fault.text())),
                None => Some(self.loss_report(&self.unanswering(SILENT_AFTER).unwrap_or_default())),
            };
            if let Some(text) = &lost {
                core.rpc.log(text);
            }
            if core.data().writes_in_flight() > 0 {
                // The writes in flight may still reach blocks that a goodbye would free for others.
                // Without one the server keeps these blocks until it is certain that the writes
                // cannot.
                core.rpc.abandon();
                return lost;
            }
            if core.rpc.is_connected() {
                let _ = core.env.timeout(PATIENCE, core.data().return_pool()).await;
            }
            core.data().leave_targets().await;
            core.rpc.close().await;
            lost
        })
    }

    /// Writes everything, also the holes that only a commit of the size lets go to the targets.
    async fn write_all(&self) -> Result<(), Fault> {
        let mut result = self.syncfs().await;
        for _ in 0..SYNCS {
            if self.core.data().is_settled() {
                break;
            }
            result = result.and(self.syncfs().await);
        }
        result
    }

    /// Ends when the server has been away, or a data device has not answered, for so long that an
    /// unmount waits no longer.
    pub fn unmount_deadline(&self) -> LocalFuture<'static, ()> {
        let (rpc, data) = (self.core.rpc.clone(), self.core.data().clone());
        let patience = self.patience();
        Box::pin(async move {
            let _ = first(rpc.away(patience), data.device_silent_for(patience)).await;
        })
    }

    /// What does not answer, as a message: the server, or a data device for at least `silent`.
    pub fn unanswering(&self, silent: Duration) -> Option<String> {
        let sessions = self.core.rpc.all();
        if let Some(away) = sessions.iter().find(|session| !session.is_connected()) {
            return Some(match &sessions[..] {
                [_] => "the metadata server is away".into(),
                _ => format!("metadata server {} is away", away.server()),
            });
        }
        let (path, silence) = self.core.data().most_silent()?;
        (silence >= silent).then(|| {
            let seconds = silence.as_nanos() / 1_000_000_000;
            format!("the data device {path} has not answered for {seconds} s")
        })
    }

    fn patience(&self) -> Duration {
        (self.core.rpc.lease() * 2).max(PATIENCE)
    }

    /// What is lost if this client ends now, as a message.
    pub fn loss_report(&self, why: &str) -> String {
        const NAMED: usize = 10;
        let core = &self.core;
        let files = core.data().unsaved();
        let mut named: Vec<String> =
            files.iter().take(NAMED).map(|ino| core.path_hints.describe(*ino)).collect();
        if files.len() > NAMED {
            named.push("…".into());
        }
        let named =
            if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
        format!(
            "not everything could be written at unmount, {why}: unsaved data of {} files{named} is \
             lost, and {} requests may be undone by the server's restart",
            files.len(),
            core.rpc.unconfirmed(),
        )
    }

    /// Polls a future of `operation`, which is not 0, so that the operation can be given up.
    pub fn step<T>(&self, operation: u64, poll: impl FnOnce() -> T) -> T {
        self.core.rpc.step(operation, poll)
    }

    /// The caller of `operation` is gone. Requests that the operation has not sent yet fail with
    /// `Fault::Interrupted`; requests in flight are completed. The kernel must then forget what
    /// they change.
    pub fn give_up(&self, operation: u64) {
        self.core.rpc.give_up(operation);
        self.core.data().give_up(operation);
    }

    /// `operation`, which was given up, has ended.
    pub fn operation_ended(&self, operation: u64) {
        self.core.rpc.operation_ended(operation);
    }

    /// How long the caches of client and kernel may still be used without hearing from the server.
    pub fn lease_left(&self) -> Duration {
        self.core.rpc.lease_left()
    }

    /// Its number at the server; 0 while it has no session.
    pub fn number(&self) -> ClientId {
        self.core.rpc.home().client()
    }

    /// The sessions with all metadata servers, in the order of their numbers.
    pub fn sessions(&self) -> Vec<ServerSession> {
        let of = |session: &Rc<Session<Mds>>| {
            let status = session.status();
            ServerSession {
                server: session.server(),
                client: status.client,
                epoch: status.epoch,
                in_flight: status.in_flight,
                replay: status.replay,
                evictions: status.evictions,
                lease_left: session.lease_left(),
            }
        };
        self.core.rpc.all().iter().map(of).collect()
    }

    /// The shard where the client believes the inode to live.
    pub fn home(&self, ino: Ino) -> ShardId {
        self.core.rpc.shard_of(ino)
    }

    /// The rights that the client relies on while its lease is good, by inode.
    pub fn leases(&self) -> Vec<(Ino, Rights)> {
        let held = |inode: Rc<Inode>| {
            let mut rights = inode.lease(|lease| lease.rights());
            // A client that asks for the whole right has given up the ranges before the reply
            // arrives.
            if !inode.data_lease().is_some_and(|data| data.holds_ranges()) {
                rights -= Rights::DATA_P;
            }
            (!rights.is_empty()).then_some((inode.ino, rights))
        };
        self.core.inodes.all().into_iter().filter_map(held).collect()
    }

    /// The ranges of files that the client relies on while its lease is good, by inode.
    pub fn ranges(&self) -> Vec<(Ino, HeldRange)> {
        let held = |inode: Rc<Inode>| {
            let data_lease = inode.data_lease().filter(|_| inode.holds(Rights::DATA_P))?;
            let parts = data_lease.ranges().into_iter().map(|part| (inode.ino, part));
            Some(parts.collect::<Vec<_>>())
        };
        self.core.inodes.all().into_iter().filter_map(held).flatten().collect()
    }

    /// The data devices.
    pub fn devices(&self) -> Vec<DeviceStatus> {
        self.core.data().devices()
    }

    /// What the commit pipeline has done and holds.
    pub fn commits(&self) -> CommitCounts {
        self.core.data().commit_counts()
    }

    /// Is a write answered only when it is stable and committed?
    pub fn commits_synchronously(&self) -> bool {
        self.core.config.commit.sync
    }

    /// What the client is doing.
    pub fn status(&self) -> ClientStatus {
        let core = &self.core;
        let mut status = ClientStatus {
            inodes: core.inodes.len(),
            names: core.inodes.names(),
            handles: core.handles.len(),
            dirty_bytes: core.data().dirty_bytes(),
            pool_blocks: core.data().pool_blocks().0,
            tainted_blocks: core.data().pool_blocks().1,
            recalls: core.recalls.get(),
            ..ClientStatus::default()
        };
        core.rpc.fill_in(&mut status);
        status
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.rpc.abandon();
        self.close_data();
    }
}
