//! The server's status as administrators see it, and its JSON.

mod json;

use std::collections::BTreeMap;

use engine::scrubber::Running;
use mfs::scrub::Scrubbed;
use mfs::{SlotFeatures, ZoneKind};
use proto::mds::ServerInfo;
use session::server::{DoorCounts, Who};
use types::{Bug, ClientId, PagId, planted};

use crate::eviction::FenceState;
use crate::joint::JointStatus;
use crate::ops::READ;
use crate::server::Server;
use crate::sessions::SessionState;

/// A client as the server sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientStatus {
    /// Its number.
    pub id: u64,
    /// "live", "recovering", "suspended" or "quarantined".
    pub state: &'static str,
    /// The client's description of itself.
    pub description: String,
    /// Who it is, by its key or the local socket; empty if nobody asked.
    pub node: String,
    /// Are its frames encrypted?
    pub encrypted: bool,
    /// Address of its connection.
    pub address: String,
    /// Milliseconds since its last frame.
    pub silent_ms: u64,
    /// Number of leases it holds.
    pub leases: u64,
    /// Number of locks it holds.
    pub locks: u64,
    /// Blocks in its pool.
    pub pool_blocks: u64,
    /// Number of its requests that were answered.
    pub requests: u64,
    /// Does it run on the server's host?
    pub local: bool,
    /// Data zones that it could not reach when it last asked for space.
    pub unreachable: Vec<u16>,
    /// In quarantine: "none" if no fence is configured for it, "fencing", "fenced by …", or
    /// "failed: …". Else empty.
    pub fence: String,
}

/// A data zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagStatus {
    /// Its number.
    pub id: u16,
    /// UUID in its label.
    pub uuid: String,
    /// "blocks", "target", or "borrowed": another server's, which has lent this one blocks of it.
    pub kind: &'static str,
    /// Its device, if the configuration names it; of an object target its address.
    pub path: String,
    /// Blocks above the label; of a borrowed zone those that this server has.
    pub blocks: u64,
    /// Of them, those that other servers have, by their shards; of a borrowed zone, those that this
    /// server has, with the shard of the one whose zone it is.
    pub lent: Vec<(u64, u64)>,
    /// Blocks that can be granted; of an object target its free blocks, as it has last said.
    pub free: u64,
    /// Blocks that files gave up and that are not reusable yet.
    pub freed: u64,
    /// Of the free ones, blocks in windows: the server keeps them for the next writes of files of
    /// clients that keep no blocks, and grants them nevertheless if others are missing.
    pub windows: u64,
    /// Blocks in the pools of clients: client and number.
    pub pools: Vec<(u64, u64)>,
    /// "in service", "draining", "drain paused", "lost" or "unknown".
    pub state: &'static str,
    /// "sound"; "suspect": an eviction went on without waiting for its flush, and it has not
    /// answered since (no quarantine ends while one is suspect); "absent": it is not there, dead,
    /// or another device; "not open": the configuration does not name it.
    pub device: &'static str,
    /// Milliseconds since it is absent.
    pub absent_ms: u64,
    /// Why it is absent.
    pub why: String,
}

/// Scrubs of the metadata device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScrubStatus {
    /// "running"; else how the last one ended: "whole" or "broken off"; "never": none since the
    /// start.
    pub state: &'static str,
    /// How long the running one has taken so far, or the last one took.
    pub took_ms: u64,
    /// Milliseconds since the last one ended; 0 while one runs.
    pub ended_ms: u64,
    /// Upper bound of the running one's rate, in bytes a second; 0: no bound.
    pub rate: u64,
    /// Progress of the running one, or findings of the last one.
    pub found: Scrubbed,
}

/// The server's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    /// Name of the file system.
    pub fs_name: String,
    /// Its UUID.
    pub fs_uuid: String,
    /// Its number among the metadata servers of the namespace.
    pub server: u16,
    /// All metadata servers of the namespace, with their addresses; empty: it is the only one.
    pub servers: Vec<ServerInfo>,
    /// Operations of several servers; `None`: there are no others.
    pub joint: Option<JointStatus>,
    /// Epoch of this start.
    pub epoch: u32,
    /// The address it listens on.
    pub address: String,
    /// Milliseconds since the start.
    pub uptime_ms: u64,
    /// The lease in milliseconds.
    pub lease_ms: u64,
    /// "grace" or "serving".
    pub state: &'static str,
    /// Number of requests answered.
    pub requests: u64,
    /// Number of leases.
    pub leases: u64,
    /// Number of locks.
    pub locks: u64,
    /// Gates in use.
    pub gates: u64,
    /// Hand-overs of rights on content between clients.
    pub hand_overs: u64,
    /// How long clients waited for all of them together, in milliseconds.
    pub hand_over_wait_ms: u64,
    /// The longest of these waits, in milliseconds.
    pub hand_over_longest_ms: u64,
    /// Orphans that are open.
    pub orphans: u64,
    /// Orphans being freed.
    pub freeing: u64,
    /// Last durable transaction.
    pub last_committed: String,
    /// Blocks of the metadata device.
    pub metadata_blocks: u64,
    /// Free blocks of the metadata device.
    pub metadata_free: u64,
    /// Bytes of the log in use.
    pub log_used: u64,
    /// Bytes of the log.
    pub log_bytes: u64,
    /// Bytes of a directory slot.
    pub slot_bytes: u64,
    /// Names of the features of the format, with spaces between.
    pub features: String,
    /// Dirty metadata blocks.
    pub dirty_blocks: u64,
    /// Searches in the namespace index since the start.
    pub index_searches: u64,
    /// Nodes that these searches read.
    pub index_nodes: u64,
    /// What clients have to prove: "encrypted", "greeting" (frames are clear behind the handshake,
    /// so an active attacker may change them) or "none".
    pub security: String,
    /// Why the files of keys are not in force as they are; empty: they are.
    pub keys_problem: String,
    /// What has happened at the door.
    pub door: DoorCounts,
    /// Does the asking node see its own clients only?
    pub partial: bool,
    /// Clients: all for an administrator, else those of the asking node.
    pub clients: Vec<ClientStatus>,
    /// Data zones.
    pub pags: Vec<PagStatus>,
    /// Scrubs.
    pub scrub: ScrubStatus,
    /// JSON about the owner of the metadata, the servers that stand by, and the history of
    /// takeovers; "null": there is one server.
    pub membership: String,
}

/// The state now, as `viewer` may read it.
pub async fn collect(server: &Server, viewer: &Who) -> Status {
    let (runtime, usage) = (&server.runtime, server.runtime.mfs.usage());
    let mut pools = Pools::new();
    let clients = clients(server, viewer, &mut pools).await;
    let (orphans, freeing) = server.orphans.counts();
    let features = runtime.mfs.superblock().features;
    let pags = pags(server, &pools).await;
    let (hand_overs, waited, longest) = server.leases.hand_overs();
    let membership = match &runtime.config.membership {
        Some(report) => report().await,
        None => "null".into(),
    };
    // Nothing is awaited from here on: the fields borrow the tables of the server.
    Status {
        fs_name: runtime.identity.name.clone(),
        fs_uuid: runtime.identity.uuid.to_string(),
        server: runtime.server_id().0,
        servers: runtime.config.servers.clone(),
        joint: server.joint.has_peers().then(|| server.joint.status()),
        epoch: runtime.identity.epoch.0,
        address: server.sessions.address(),
        uptime_ms: runtime.env.now().since(runtime.started).as_millis() as u64,
        lease_ms: runtime.config.lease.as_millis() as u64,
        state: if server.recovery.is_over() { "serving" } else { "grace" },
        requests: server.sessions.answered(),
        leases: server.leases.table().len() as u64,
        locks: server.locks.len() as u64,
        gates: server.leases.gates_in_use() as u64,
        hand_overs,
        hand_over_wait_ms: waited.as_millis() as u64,
        hand_over_longest_ms: longest.as_millis() as u64,
        orphans: orphans as u64,
        freeing: freeing as u64,
        last_committed: runtime.mfs.last_committed().to_string(),
        metadata_blocks: usage.blocks,
        metadata_free: usage.blocks_free,
        log_used: usage.log_used,
        log_bytes: usage.log_bytes,
        slot_bytes: features.slots().share() as u64,
        features: features.names(),
        dirty_blocks: usage.dirty as u64,
        index_searches: usage.index.searches,
        index_nodes: usage.index.nodes,
        security: server.door.least().map_or_else(|| "none".into(), |mode| mode.to_string()),
        keys_problem: server.door.problem().unwrap_or_default(),
        door: server.door.counts(),
        partial: !viewer.administers(),
        clients,
        pags,
        scrub: scrub(server),
        membership,
    }
}

/// The clients with blocks of each zone in their pools, and how many.
type Pools = BTreeMap<PagId, Vec<(u64, u64)>>;

/// The clients that `viewer` may see. Adds the blocks in their pools to those of each zone.
async fn clients(server: &Server, viewer: &Who, pools: &mut Pools) -> Vec<ClientStatus> {
    let mut clients = Vec::new();
    for session in server.sessions.all() {
        let who = session.who();
        if !viewer.administers() && who.node() != viewer.node() {
            continue;
        }
        let state = match session.state() {
            SessionState::Recovering => "recovering",
            _ if session.is_connected() => "live",
            _ => "suspended",
        };
        let pool_blocks = pool(server, session.client, pools).await;
        clients.push(ClientStatus {
            id: session.client.0,
            state,
            description: session.description.clone(),
            node: if who == Who::Anybody { String::new() } else { who.to_string() },
            encrypted: session.is_encrypted(),
            address: session.peer().unwrap_or_default(),
            silent_ms: server.sessions.silence(&session).as_millis() as u64,
            leases: server.leases.table().count(session.client) as u64,
            locks: server.locks.count(session.client) as u64,
            pool_blocks,
            requests: session.requests(),
            local: session.is_local(),
            unreachable: session.unreachable().iter().map(|pag| pag.0).collect(),
            fence: String::new(),
        });
    }
    let quarantined = server.evictions.quarantined().into_iter();
    for client in quarantined.filter(|_| viewer.administers()) {
        let pool_blocks = pool(server, client, pools).await;
        let (description, fence) = server.evictions.quarantined_client(client);
        clients.push(ClientStatus {
            id: client.0,
            state: "quarantined",
            description,
            node: String::new(),
            encrypted: false,
            address: String::new(),
            silent_ms: 0,
            leases: 0,
            locks: 0,
            pool_blocks,
            requests: 0,
            local: false,
            unreachable: Vec::new(),
            fence: fence_text(fence),
        });
    }
    clients
}

/// Blocks in a client's pool, which are added to those of each zone.
async fn pool(server: &Server, client: ClientId, pools: &mut Pools) -> u64 {
    let pool = server.space.pool_by_zone(client).await;
    pool.iter().for_each(|(pag, blocks)| pools.entry(*pag).or_default().push((client.0, *blocks)));
    pool.values().sum()
}

fn fence_text(state: Option<FenceState>) -> String {
    match state {
        None => "none".into(),
        Some(FenceState::Due | FenceState::Begun) => "fencing".into(),
        Some(FenceState::Proven(how)) => format!("fenced by {how}"),
        Some(FenceState::Failed(why)) => format!("failed: {why}"),
    }
}

fn scrub(server: &Server) -> ScrubStatus {
    let now = server.runtime.env.now();
    if let Some(Running { how, since, found }) = server.scrubber.running() {
        let took_ms = since.map_or(0, |since| now.since(since).as_millis() as u64);
        return ScrubStatus { state: "running", took_ms, ended_ms: 0, rate: how.rate, found };
    }
    let Some(last) = server.scrubber.last() else {
        let found = Scrubbed::default();
        return ScrubStatus { state: "never", took_ms: 0, ended_ms: 0, rate: 0, found };
    };
    ScrubStatus {
        state: if last.whole { "whole" } else { "broken off" },
        took_ms: last.took.as_millis() as u64,
        ended_ms: now.since(last.at).as_millis() as u64,
        rate: 0,
        found: last.found,
    }
}

async fn pags(server: &Server, pools: &Pools) -> Vec<PagStatus> {
    let read =
        server.runtime.mfs.run(READ, |txn| Ok((txn.space().pags()?, txn.space().lent_by_zone()?)));
    let read = server.runtime.checked(read.await, "reading the zones");
    let (pags, lent) = read.map(|(read, _)| read).unwrap_or_default();
    let targets = server.targets.free_blocks();
    pags.into_iter()
        .map(|pag| {
            let path = server.space.path(pag.id);
            let (id, uuid) = (pag.id.0, pag.uuid.to_string());
            let device = server.space.device_state(pag.id);
            let lent = lent.get(&pag.id).into_iter().flatten();
            let lent: Vec<_> = lent.map(|(shard, n)| (u64::from(shard.0), *n)).collect();
            PagStatus {
                id,
                uuid,
                kind: match pag.kind {
                    ZoneKind::Target => "target",
                    ZoneKind::Borrowed => "borrowed",
                    ZoneKind::Blocks => "blocks",
                },
                path,
                blocks: match pag.kind {
                    ZoneKind::Borrowed => lent.iter().map(|(_, blocks)| blocks).sum(),
                    _ => pag.total,
                },
                lent,
                free: match planted(Bug::FreedCalledFree) {
                    true => pag.free + pag.freed,
                    false => targets.get(&pag.id).copied().unwrap_or(pag.free),
                },
                freed: pag.freed,
                windows: server.space.placing.in_windows(pag.id),
                pools: pools.get(&pag.id).cloned().unwrap_or_default(),
                state: pag.state.name(),
                device: device.state,
                absent_ms: device.absent.as_millis() as u64,
                why: device.why,
            }
        })
        .collect()
}
