//! The server's status as administrators see it, and its JSON.

use std::fmt::Write;

use mfs::SlotFeatures;
use mfs::scrub::Scrubbed;

use crate::devices;
use crate::ops::READ;
use crate::server::Server;
use crate::session::SessionState;

/// Findings of a scrub that the status shows; the log has more.
const PROBLEMS_SHOWN: usize = 20;

/// A client as the server sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientStatus {
    /// Its number.
    pub id: u64,
    /// "live", "recovering", "suspended" or "quarantined".
    pub state: &'static str,
    /// The client's description of itself.
    pub description: String,
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
}

/// A data zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PagStatus {
    /// Its number.
    pub id: u16,
    /// UUID in its label.
    pub uuid: String,
    /// Its device, if the configuration names it.
    pub path: String,
    /// Blocks above the label.
    pub blocks: u64,
    /// Blocks that can be granted.
    pub free: u64,
    /// Blocks that files gave up and that are not reusable yet.
    pub freed: u64,
    /// "sound"; "suspect": an eviction went on without waiting for its flush, and it has not
    /// answered since (no quarantine ends while one is suspect); "not open": this host does not
    /// have it.
    pub device: &'static str,
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
    /// Clients.
    pub clients: Vec<ClientStatus>,
    /// Data zones.
    pub pags: Vec<PagStatus>,
    /// Scrubs.
    pub scrub: ScrubStatus,
}

/// The state now.
pub async fn collect(server: &Server) -> Status {
    let usage = server.mfs.usage();
    let mut clients = Vec::new();
    let sessions: Vec<_> = server.sessions.borrow().values().cloned().collect();
    for session in sessions {
        let state = match session.state() {
            SessionState::Recovering => "recovering",
            _ if session.is_connected() => "live",
            _ => "suspended",
        };
        let pool_blocks = pool_blocks(server, session.client).await;
        clients.push(ClientStatus {
            id: session.client.0,
            state,
            description: session.description.clone(),
            address: session.peer().unwrap_or_default(),
            silent_ms: server.silence(&session).as_millis() as u64,
            leases: server.leases.borrow().count(session.client) as u64,
            locks: server.locks.borrow().count(session.client) as u64,
            pool_blocks,
            requests: session.requests.get(),
            local: session.local.get(),
        });
    }
    for client in server.quarantine.clients() {
        let pool_blocks = pool_blocks(server, client).await;
        clients.push(ClientStatus {
            id: client.0,
            state: "quarantined",
            description: String::new(),
            address: String::new(),
            silent_ms: 0,
            leases: 0,
            locks: 0,
            pool_blocks,
            requests: 0,
            local: false,
        });
    }
    let (orphans, freeing) = server.reaper.counts();
    let features = server.mfs.superblock().features;
    let pags = pags(server).await;
    let (hand_overs, waited, longest) = server.hand_overs.counts();
    Status {
        fs_name: server.identity.name.clone(),
        fs_uuid: server.identity.uuid.to_string(),
        epoch: server.identity.epoch.0,
        address: server.address.borrow().clone(),
        uptime_ms: server.env.now().since(server.started).as_millis() as u64,
        lease_ms: server.config.lease.as_millis() as u64,
        state: if server.grace.is_over() { "serving" } else { "grace" },
        requests: server.requests.get(),
        leases: server.leases.borrow().len() as u64,
        locks: server.locks.borrow().len() as u64,
        gates: server.gates.len() as u64,
        hand_overs,
        hand_over_wait_ms: waited.as_millis() as u64,
        hand_over_longest_ms: longest.as_millis() as u64,
        orphans: orphans as u64,
        freeing: freeing as u64,
        last_committed: server.mfs.last_committed().to_string(),
        metadata_blocks: usage.blocks,
        metadata_free: usage.blocks_free,
        log_used: usage.log_used,
        log_bytes: usage.log_bytes,
        slot_bytes: features.slots().share() as u64,
        features: features.names(),
        dirty_blocks: usage.dirty as u64,
        index_searches: usage.index.searches,
        index_nodes: usage.index.nodes,
        clients,
        pags,
        scrub: scrub(server),
    }
}

fn scrub(server: &Server) -> ScrubStatus {
    let now = server.env.now();
    if let Some((options, since, found)) = server.scrubber.running() {
        let took_ms = since.map_or(0, |since| now.since(since).as_millis() as u64);
        return ScrubStatus { state: "running", took_ms, ended_ms: 0, rate: options.rate, found };
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

async fn pool_blocks(server: &Server, client: types::ClientId) -> u64 {
    let pool = server.mfs.run(READ, |txn| txn.pool(client)).await;
    let pool = server.checked(pool, "reading a pool").map(|(pool, _)| pool).unwrap_or_default();
    pool.iter().map(|(_, _, len)| len).sum()
}

async fn pags(server: &Server) -> Vec<PagStatus> {
    let pags = server.mfs.run(READ, |txn| txn.pags()).await;
    let pags = server.checked(pags, "reading the zones").map(|(pags, _)| pags).unwrap_or_default();
    let path = |id| {
        let known = server.pags.borrow();
        known.iter().find(|pag| pag.id == id).map_or_else(String::new, |pag| pag.path.clone())
    };
    pags.into_iter()
        .map(|pag| {
            let path = path(pag.id);
            let (id, uuid) = (pag.id.0, pag.uuid.to_string());
            let device = devices::state(server, &path);
            PagStatus {
                id,
                uuid,
                path,
                blocks: pag.total,
                free: pag.free,
                freed: pag.freed,
                device,
            }
        })
        .collect()
}

impl Status {
    /// As JSON.
    pub fn to_json(&self) -> String {
        let mut out = Json::default();
        out.open('{');
        out.text("fs_name", &self.fs_name);
        out.text("fs_uuid", &self.fs_uuid);
        out.number("epoch", u64::from(self.epoch));
        out.text("address", &self.address);
        out.number("uptime_ms", self.uptime_ms);
        out.number("lease_ms", self.lease_ms);
        out.text("state", self.state);
        out.number("requests", self.requests);
        out.number("leases", self.leases);
        out.number("locks", self.locks);
        out.number("gates", self.gates);
        out.number("hand_overs", self.hand_overs);
        out.number("hand_over_wait_ms", self.hand_over_wait_ms);
        out.number("hand_over_longest_ms", self.hand_over_longest_ms);
        out.number("orphans", self.orphans);
        out.number("freeing", self.freeing);
        out.text("last_committed", &self.last_committed);
        out.number("metadata_blocks", self.metadata_blocks);
        out.number("metadata_free", self.metadata_free);
        out.number("log_used", self.log_used);
        out.number("log_bytes", self.log_bytes);
        out.number("slot_bytes", self.slot_bytes);
        out.text("features", &self.features);
        out.number("dirty_blocks", self.dirty_blocks);
        out.number("index_searches", self.index_searches);
        out.number("index_nodes", self.index_nodes);
        out.key("clients");
        out.open('[');
        for client in &self.clients {
            out.item();
            out.open('{');
            out.number("id", client.id);
            out.text("state", client.state);
            out.text("description", &client.description);
            out.text("address", &client.address);
            out.number("silent_ms", client.silent_ms);
            out.number("leases", client.leases);
            out.number("locks", client.locks);
            out.number("pool_blocks", client.pool_blocks);
            out.number("requests", client.requests);
            out.key("local");
            out.raw(if client.local { "true" } else { "false" });
            out.close('}');
        }
        out.close(']');
        out.key("pags");
        out.open('[');
        for pag in &self.pags {
            out.item();
            out.open('{');
            out.number("id", u64::from(pag.id));
            out.text("uuid", &pag.uuid);
            out.text("path", &pag.path);
            out.number("blocks", pag.blocks);
            out.number("free", pag.free);
            out.number("freed", pag.freed);
            out.text("device", pag.device);
            out.close('}');
        }
        out.close(']');
        out.key("scrub");
        self.scrub.add_to(&mut out);
        out.close('}');
        out.0
    }
}

impl ScrubStatus {
    fn add_to(&self, out: &mut Json) {
        let found = &self.found;
        out.open('{');
        out.text("state", self.state);
        out.number("took_ms", self.took_ms);
        out.number("ended_ms", self.ended_ms);
        out.number("rate", self.rate);
        out.number("blocks", found.blocks);
        out.number("newer", found.newer);
        out.number("inodes", found.inodes);
        out.number("written_anew", found.rewritten.len() as u64);
        out.number("findings", found.problems.len() as u64 + found.omitted);
        out.key("problems");
        out.open('[');
        for problem in found.problems.iter().take(PROBLEMS_SHOWN) {
            out.item();
            out.string(&problem.to_string());
        }
        out.close(']');
        out.close('}');
    }
}

#[derive(Default)]
struct Json(String);

impl Json {
    fn open(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    fn close(&mut self, bracket: char) {
        self.0.push(bracket);
    }

    fn item(&mut self) {
        if !self.0.ends_with(['{', '[']) {
            self.0.push(',');
        }
    }

    fn key(&mut self, key: &str) {
        self.item();
        self.string(key);
        self.0.push(':');
    }

    fn raw(&mut self, value: &str) {
        self.0.push_str(value);
    }

    fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        self.raw(&value.to_string());
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.string(value);
    }

    fn string(&mut self, value: &str) {
        self.0.push('"');
        for c in value.chars() {
            match c {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                c if (c as u32) < 0x20 => {
                    // Writing to a string cannot fail.
                    let _ = write!(self.0, "\\u{:04x}", c as u32);
                }
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_separated_and_escaped() {
        let mut json = Json::default();
        json.open('{');
        json.text("a", "x\"\\\n");
        json.key("b");
        json.open('[');
        json.item();
        json.raw("1");
        json.item();
        json.raw("2");
        json.close(']');
        json.close('}');
        assert_eq!(json.0, r#"{"a":"x\"\\\u000a","b":[1,2]}"#);
    }
}
