//! `redbud mds`: runs the metadata server until a signal stops it.

pub mod failover;
mod standby;
mod stations;

use std::future::{Future, poll_fn};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::{DriverKind, Env};
use mds::fence::Fence;
use mds::{Config, Mds, MembershipReport, PagPlace, ServeError};
use membership::Membership;
use mfs::journal::{self, Disks};
use mfs::{Cost, Feature, Features, LayoutLimits, Mfs, OpenOptions, StoreError, ZoneKind};
use proto::mds::ServerInfo;
use rustix::process::{Signal, getpid, kill_process};
use types::limits::{BLOCK_U64, HALF_OPEN_MAX, SESSIONS_MAX};
use types::units::human_size;
use types::{Epoch, PagId, ServerId, ShardId};

use crate::address;
use crate::args::{MdsArgs, MdsCommand};
use crate::commands::mount;
use crate::config::{Cluster, ClusterFile, FenceConfig, MembershipConfig, Zone};
use crate::control::{Handler, of_mds};
use crate::devices::{open_metadata, with_path};
use crate::etcd::EtcdMembership;
use crate::exit::{Ended, Failure, Status};
use crate::fence_agent::Agent;
use crate::keys::{self, KeyOptions};
use crate::membership_file::FileMembership;
use crate::registry::{self, Kind, Registered, Registration};
use crate::source::Source;
use crate::{control, log, notify};

/// Open files of the server beside its clients' connections: devices, listeners, the log.
const OTHER_FILES: u64 = 64;

/// Runs the server, or a command about a running one.
pub fn run(args: &MdsArgs) -> Ended {
    if let Some(MdsCommand::Failover(asked)) = &args.command {
        return failover::run(asked);
    }
    let config = args.config.as_deref().unwrap_or(Path::new(""));
    let file = ClusterFile::read(config).map_err(|error| Failure::usage(error.to_string()))?;
    let posts = posts(file, args)?;
    raise_open_files();
    if args.until_eof {
        stop_at_end_of_input();
    }
    match posts {
        Posts::Alone(cluster) => {
            let ended =
                env::run(DriverKind::Auto, |env| async move { alone(env, &cluster, args).await });
            let unable = |error| failed(format!("cannot start the I/O driver: {error}"));
            ended.map_err(unable).flatten()
        }
        Posts::Shared { first, all, take_over } => stations::run((first, all), &take_over, args),
    }
}

/// Whose metadata this process serves, or may come to serve.
enum Posts {
    /// Those of this server, and no other process ever does.
    Alone(Box<Cluster>),
    /// Of one of these, and of others beside it.
    Shared {
        /// The servers that the process may be, each as it sees the cluster.
        first: Vec<Cluster>,
        /// All servers.
        all: Vec<Cluster>,
        /// The addresses at which it takes over others.
        take_over: Vec<String>,
    },
}

/// Metadata that one of several processes owns.
struct Post {
    /// The cluster as their server sees it.
    cluster: Cluster,
    /// Where the processes agree on who owns them.
    membership: Rc<dyn Membership>,
}

/// What this process is for, by its options.
fn posts(file: ClusterFile, args: &MdsArgs) -> Result<Posts, Failure> {
    let membership = file.any().membership.is_some();
    if args.standby && !membership {
        let text = format!(
            "{}: --standby needs a table [membership], where the servers agree on who serves",
            file.any().file.display()
        );
        return Err(Failure::usage(text));
    }
    let listen = listen(&file, args)?;
    let take_over = take_over(&file, args)?;
    let mut all = file.servers.clone();
    let mut clusters = match file.is_several() && args.standby {
        true => {
            // It is checked, and says what is served first.
            args.server
                .map(|_| file.clone().server(args.server))
                .transpose()
                .map_err(Failure::usage)?;
            file.servers
        }
        false => vec![file.server(args.server).map_err(Failure::usage)?],
    };
    for cluster in &mut clusters {
        if let Some(listen) = &listen {
            cluster.listen_at(listen.clone());
        }
    }
    for cluster in clusters.iter_mut().chain(&mut all) {
        cluster.cache = args.cache.unwrap_or(cluster.cache);
    }
    if !membership {
        return Ok(Posts::Alone(Box::new(clusters.swap_remove(0))));
    }
    Ok(Posts::Shared { first: clusters, all, take_over })
}

/// The addresses at which this process takes over other servers.
fn take_over(file: &ClusterFile, args: &MdsArgs) -> Result<Vec<String>, Failure> {
    let known = &file.any().take_over;
    if args.take_over.is_empty() {
        let own = args.server.and_then(|number| known.get(usize::from(number)));
        return Ok(own.cloned().unwrap_or_default());
    }
    if args.take_over == ["none"] {
        return Ok(Vec::new());
    }
    let mut found: Vec<String> = Vec::new();
    for asked in &args.take_over {
        let address = address::check_address(asked).map_err(Failure::usage)?;
        if !known.iter().flatten().any(|one| *one == address) {
            let text = format!(
                "--take-over {address}: clients and the other servers do not look for servers \
                 there: add the address to a key `mds.take_over`"
            );
            return Err(Failure::usage(text));
        }
        if found.contains(&address) {
            return Err(Failure::usage(format!("--take-over {address}: it is named twice")));
        }
        found.push(address);
    }
    Ok(found)
}

/// The address of this process, if it is not that of its server in the file.
fn listen(file: &ClusterFile, args: &MdsArgs) -> Result<Option<String>, Failure> {
    let any = file.any();
    let asked = args.listen.as_deref().map(address::check_address).transpose();
    let asked = asked.map_err(Failure::usage)?;
    if !file.is_several() {
        return Ok(asked);
    }
    let Some(asked) = asked else {
        return match (args.server, &any.standbys[..]) {
            (Some(number), _) => Ok(any.namespace.get(usize::from(number)).cloned()),
            (None, [only]) if args.standby => Ok(Some(only.clone())),
            (None, _) if args.standby => Err(Failure::usage(
                "--standby: name this server's address by --listen, one of `server.standbys`, or \
                 its number by --server",
            )),
            // What the file says to it follows.
            (None, _) => Ok(None),
        };
    };
    if any.membership.is_none() {
        let text = "--listen: the other servers look for this one at the address that its table \
                    [[mds]] has: change it there";
        return Err(Failure::usage(text));
    }
    if !any.servers().contains(&asked) {
        return Err(Failure::usage(format!(
            "--listen {asked}: clients and the other servers look for servers only at {}: add the \
             address to `server.standbys`",
            any.servers().join(", ")
        )));
    }
    Ok(Some(asked))
}

/// How a server has ended.
enum Done {
    /// The process ends.
    Ended(u8),
    /// It stands by from now on.
    StandsBy,
}

/// Where the servers agree on who owns these metadata: those of each of several have a place of
/// their own.
fn membership_of(cluster: &Cluster) -> Result<Rc<dyn Membership>, Failure> {
    let several = cluster.is_of_several().then(|| format!("server-{}", cluster.shard.0));
    match &cluster.membership {
        None => Err(failed("the cluster's file has no table [membership]".into())),
        Some(MembershipConfig::Directory(path)) => {
            let path = several.map_or_else(|| path.clone(), |name| path.join(name));
            Ok(Rc::new(FileMembership::new(&path).map_err(failed)?))
        }
        Some(MembershipConfig::Etcd(config)) => {
            let name = several.map_or_else(
                || cluster.name.clone(),
                |server| format!("{}/{server}", cluster.name),
            );
            Ok(Rc::new(EtcdMembership::new(config, &name).map_err(failed)?))
        }
    }
}

fn failed(text: String) -> Failure {
    Failure::failed("RB-MDS", text)
}

fn store_failed(path: &str, error: &StoreError) -> Failure {
    failed(with_path(path, error))
}

/// Why a server ended. One that is superseded must not be started again by itself.
fn ended(error: &ServeError) -> Failure {
    match error {
        ServeError::Superseded { text, .. } => {
            Failure::new(Status::Superseded, "RB-MDS-SUPERSEDED", text.clone())
        }
        _ => failed(error.to_string()),
    }
}

/// The epoch that this server's must be above. Refuses an older copy of the metadata, unless the
/// administrator wants it.
async fn epoch_above(
    env: &Env,
    disks: &Disks,
    cluster: &Cluster,
    args: &MdsArgs,
) -> Result<Epoch, Failure> {
    let path = |(_, zone): &(PagId, Zone)| zone.path.display().to_string();
    let paths: Vec<String> = cluster.data.iter().map(path).collect();
    match mds::check_epoch(env, disks, &paths).await {
        Ok(_) => Ok(Epoch(0)),
        Err(ServeError::Superseded { fencing, text }) if args.older_copy => {
            log::line(&format!("{text}; --older-copy: serving them nevertheless"));
            Ok(fencing)
        }
        Err(error @ ServeError::Superseded { .. }) => Err(ended(&error)),
        Err(ServeError::Store(error)) => {
            Err(store_failed(&cluster.metadata.path.display().to_string(), &error))
        }
        Err(error) => Err(failed(error.to_string())),
    }
}

/// The only server of its file system, until a signal stops it.
async fn alone(env: Env, cluster: &Cluster, args: &MdsArgs) -> Ended {
    let server = start(&env, cluster, args, Epoch(0), None).await?;
    let source = Source {
        servers: addresses(cluster, server.address()),
        fs_name: server.fs_name(),
        dir: Vec::new(),
        cluster: None,
        server: None,
    };
    let among = cluster.is_of_several().then_some(cluster.shard.0);
    let place = (0, args.control.clone());
    let registered = register(&env, (source, among), place, of_mds::handler(server.control()));
    // Polled once first, so that a signal right after the notification stops the server.
    let mut signal = pin!(env.stop_signal());
    let early = poll_fn(|cx| Poll::Ready(signal.as_mut().poll(cx))).await;
    notify::send(&format!("READY=1\nSTATUS=serving at {}\n", server.address()));
    let stop = async {
        let signal = match early {
            Poll::Ready(signal) => signal,
            Poll::Pending => signal.await,
        };
        stopping(signal);
    };
    let served = server.run(stop).await;
    // A server that cannot remove its registration leaves one that counts as stale.
    drop(registered.map(|registered| registered.end(None)));
    served.map_err(|error| ended(&error))?;
    log::line("stopped; the checkpoint is complete");
    Ok(0)
}

/// The addresses by which this host can mount: the server's own first.
fn addresses(cluster: &Cluster, own: String) -> Vec<String> {
    let others = cluster.namespace.iter().filter(|address| **address != cluster.listen);
    std::iter::once(own).chain(others.cloned()).collect()
}

fn stopping(signal: i32) {
    log::line(&format!("stopping (signal {signal})"));
    notify::send("STOPPING=1\n");
}

/// Opens the metadata with an epoch above `above`, and begins to serve them.
async fn start(
    env: &Env,
    cluster: &Cluster,
    args: &MdsArgs,
    above: Epoch,
    membership: Option<MembershipReport>,
) -> Result<Mds, Failure> {
    let path = cluster.metadata.path.display().to_string();
    let disks =
        open_metadata(env, cluster, true).await.map_err(|error| failed(error.to_string()))?;
    // Before the epoch of this start is written there. What cannot be read, the opening reports.
    if let Ok(found) = journal::look(env, &disks).await {
        check_shard(cluster, &path, (found.superblock.shard, found.superblock.features))?;
    }
    let options = OpenOptions {
        epoch_above: above.max(epoch_above(env, &disks, cluster, args).await?),
        cache_bytes: cluster.cache as usize,
        read_only: false,
        layouts: LayoutLimits { ahead: cluster.layout_ahead, ..LayoutLimits::USUAL },
        ..OpenOptions::default()
    };
    let opened = Mfs::open(env, &disks, options).await;
    let mfs = opened.map_err(|error| store_failed(&path, &error))?;
    report_damage(&path, &mfs);
    let (identity, cache) = (mfs.identity(), mfs.usage().cache_max as u64 * BLOCK_U64);
    let config = match config_of(env, cluster, (&path, &mfs), membership).await {
        Ok(config) => config,
        Err(failure) => {
            // If this fails, the store has: the next opening recovers.
            drop(mfs.close().await);
            return Err(failure);
        }
    };
    let server = Mds::start(env.clone(), mfs, config).await.map_err(|error| ended(&error))?;
    if cluster.security.is_none() {
        log::line("security = \"none\": who reaches the server can read and change everything");
    }
    let among = match cluster.namespace.len() {
        0 => String::new(),
        count => format!(" as server {} of {count}", cluster.shard.0),
    };
    log::line(&format!(
        "serving `{}`{among} at {}, epoch {}, with a cache of {}",
        identity.name,
        server.address(),
        identity.epoch,
        human_size(cache)
    ));
    Ok(server)
}

/// The server's options; refuses metadata of another file system.
async fn config_of(
    env: &Env,
    cluster: &Cluster,
    (path, mfs): (&str, &Mfs),
    membership: Option<MembershipReport>,
) -> Result<Config, Failure> {
    let identity = mfs.identity();
    if identity.name != cluster.name {
        let text = format!(
            "{path}: the device holds the file system `{}`, but {} names `{}`",
            identity.name,
            cluster.file.display(),
            cluster.name
        );
        return Err(failed(text));
    }
    let target_key = cluster.target_key.as_deref().map(keys::read_target_key).transpose();
    Ok(Config {
        target_key: target_key.map_err(failed)?,
        target_keys: keys::of_server_to_targets(cluster),
        lease: cluster.lease,
        serve: cluster.serve,
        pags: places(mfs, path, cluster).await?,
        elsewhere: cluster.paths_elsewhere(),
        scrub_interval: cluster.scrub_interval,
        scrub_rate: cluster.scrub_rate,
        keys: keys::of_server(cluster)?,
        fences: fences(env, cluster),
        own_host: mount::host_name(),
        validate: false,
        servers: servers_of(cluster),
        protocol: cluster.protocol,
        batch: cluster.batch,
        spread_at: cluster.spread_at,
        membership,
        log: Rc::new(log::line),
        ..Config::new(&cluster.name, &cluster.listen)
    })
}

/// Refuses the metadata of another server, and those of a server alone among several.
fn check_shard(
    cluster: &Cluster,
    path: &str,
    (shard, features): (ShardId, Features),
) -> Result<(), Failure> {
    let (file, number) = (cluster.file.display(), shard.0);
    let is_of_several = features.has(Feature::SHARDS);
    let text = if shard != cluster.shard {
        format!(
            "{path}: the device holds the metadata of server {number}, but {file} names it as that \
             of server {}",
            cluster.shard.0
        )
    } else if is_of_several && !cluster.is_of_several() {
        format!(
            "{path}: the device holds the metadata of server {number} of several, but {file} names \
             no other server: write a table [[mds]] for each"
        )
    } else if cluster.is_of_several() && !is_of_several {
        format!(
            "{path}: the device holds a file system with one metadata server, but {file} names {}: \
             only `redbud mkfs` makes one with several",
            cluster.namespace.len()
        )
    } else {
        return Ok(());
    };
    Err(failed(text))
}

/// All servers of the namespace; empty: there is one.
fn servers_of(cluster: &Cluster) -> Vec<ServerInfo> {
    let server = |number: usize| ServerInfo {
        server: ServerId(number as u16),
        shards: vec![number as u8],
        addresses: cluster.addresses_of(number),
    };
    (0..cluster.namespace.len()).map(server).collect()
}

/// Names in the log what was damaged when the metadata were opened.
fn report_damage(path: &str, mfs: &Mfs) {
    if let Some(damage) = mfs.label_damage() {
        log::line(&format!("{path}: {damage}; `redbud fsck --repair` writes the label anew"));
    }
    for (block, what) in mfs.damage() {
        log::line(&format!(
            "{path}: metadata block {block} is damaged ({what}); the server uses its copy"
        ));
    }
}

/// Makes the server known on this host, and opens its control socket. Without either it works, and
/// administrators ask it over the network.
fn register(
    env: &Env,
    (source, server): (Source, Option<u8>),
    (station, control): (usize, Option<PathBuf>),
    handler: Handler,
) -> Option<Registered> {
    let pid = std::process::id();
    let socket = control.unwrap_or_else(|| registry::usual_socket(Kind::Mds, pid, station));
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    let registered = registry::register(&Registration {
        kind: Kind::Mds,
        pid,
        station,
        source: source.to_string(),
        server,
        mount: PathBuf::new(),
        socket: Some(socket.clone()),
        log: None,
        keys: KeyOptions::default(),
        lost: None,
    });
    match control::listen(env, &socket, handler) {
        Ok(()) => {
            if let Ok(registered) = &registered {
                registered.made_socket().note(&socket);
            }
        }
        Err(error) => log::line(&format!("no control socket: {}: {error}", socket.display())),
    }
    registered.map_err(|failure| log::line(&failure.to_string())).ok()
}

/// The means to fence evicted clients that the cluster's file names.
fn fences(env: &Env, cluster: &Cluster) -> Vec<Rc<dyn Fence>> {
    let agent = |config: &FenceConfig| -> Rc<dyn Fence> {
        Rc::new(Agent::new(env.clone(), config.clone()))
    };
    cluster.fences.iter().map(agent).collect()
}

/// The data zones: their identities from the metadata, their paths from the cluster's file.
async fn places(mfs: &Mfs, path: &str, cluster: &Cluster) -> Result<Vec<PagPlace>, Failure> {
    let states = mfs.run(Cost::SMALL, |txn| txn.space().pags()).await;
    let (states, _) = states.map_err(|error| store_failed(path, &error))?;
    let mut places = Vec::new();
    let unknown = |(id, _): &&(PagId, Zone)| states.iter().all(|state| state.id != *id);
    if let Some((id, zone)) = cluster.data.iter().find(unknown) {
        let text = format!(
            "{}: the file system has no data zone {id}, as which the file names {}: if the zone was lost, `redbud fsck --repair` enters it \
             again; otherwise remove it from the file",
            cluster.file.display(),
            zone.path.display()
        );
        return Err(failed(text));
    }
    for state in states {
        let named = cluster.data.iter().find(|(id, _)| *id == state.id);
        let path = match named {
            Some((_, zone)) => std::path::absolute(&zone.path).unwrap_or(zone.path.clone()),
            // The metadata know its address.
            None if state.kind == ZoneKind::Target => continue,
            // Its server's part of the file names it.
            None if state.kind == ZoneKind::Borrowed => continue,
            None => {
                // `redbud pag add` adds zones while other servers stand by.
                log::line(&format!(
                    "{}: the file system has a data zone {} ({}) that the file does not name: add \
                     a table [[data]] with `id = {}`; until then what lies there fails",
                    cluster.file.display(),
                    state.id,
                    state.uuid,
                    state.id
                ));
                PathBuf::new()
            }
        };
        places.push(PagPlace { id: state.id, uuid: state.uuid, path: path.display().to_string() });
    }
    Ok(places)
}

/// Each client is an open file: the server takes as many as it may have, and says when that is less
/// than the clients that it could serve.
fn raise_open_files() {
    let most = env::raise_open_files();
    let others = keys::half_open_max(most) as u64 + OTHER_FILES;
    let wanted = (SESSIONS_MAX + HALF_OPEN_MAX) as u64 + OTHER_FILES;
    if most < wanted {
        log::line(&format!(
            "this process may have {most} open files, so at most {} clients can be connected at once; for {SESSIONS_MAX} of them start \
             it with a limit of {wanted} (LimitNOFILE= of the service, or `ulimit -n`)",
            most.saturating_sub(others)
        ));
    }
}

/// Stops the server when all writers have closed the pipe at standard input.
pub fn stop_at_end_of_input() {
    std::thread::spawn(|| {
        let mut input = std::io::stdin().lock();
        let mut bytes = [0u8; 64];
        while !matches!(input.read(&mut bytes), Ok(0)) {}
        // A signal to this process; it cannot fail.
        let _ = kill_process(getpid(), Signal::TERM);
    });
}
