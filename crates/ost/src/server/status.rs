//! The state of a target as JSON.

use engine::store::barrier::Waits;
use session::server::SessionState;
use types::json::Json;

use super::Server;
use super::scrub::add_status as add_scrub;

impl Server {
    /// The server's state, for administrators.
    pub(super) fn status(&self) -> String {
        let (runtime, info) = (&self.runtime, self.runtime.store.info());
        let mut out = Json::default();
        out.open('{');
        out.number("version", 1);
        out.text("target", &info.uuid.to_string());
        out.text("fs_name", &runtime.fs_name);
        out.text("fs_uuid", &runtime.fs.to_string());
        out.text("address", &self.address.borrow());
        out.text("state", if self.sessions.recovers() { "recovering" } else { "serving" });
        out.number("epoch", u64::from(runtime.epoch.0));
        out.number("uptime_ms", runtime.env.now().since(runtime.started).as_millis() as u64);
        out.number("lease_ms", runtime.config.lease.as_millis() as u64);
        out.number("blocks", info.blocks);
        out.number("free", info.free);
        out.flag("checksums", info.checksums);
        out.text("last_committed", &runtime.last_committed().to_string());
        out.number("requests", self.sessions.answered());
        out.number("in_flight", self.load.get() as u64);
        out.number("changes_in_flight", self.access.changes_in_flight() as u64);
        out.number("memory", runtime.config.memory as u64);
        out.number("memory_free", self.memory_free() as u64);
        self.add_servers(&mut out);
        out.number("capabilities_refused", self.access.refused());
        out.number("corrupt_writes", self.corrupt.get());
        self.add_journal(&mut out);
        self.add_door(&mut out);
        out.key("scrub");
        add_scrub(&self.scrubber, runtime.env.now(), &mut out);
        out.number("clients_absent", self.sessions.absent() as u64);
        self.add_clients(&mut out);
        out.close('}');
        out.into_text()
    }

    /// What the store did, with the points of serialisation of paper 001, section 3.2: waits for
    /// the closed group, at a quarter of the journal, for data, and for flush and journal.
    fn add_journal(&self, out: &mut Json) {
        let (usage, counters) = (self.runtime.engine().usage(), self.runtime.store.counters());
        out.key("store");
        out.open('{');
        out.number("writes", counters.writes);
        out.number("written_blocks", counters.written_blocks);
        out.number("writes_in_flight", counters.in_flight);
        out.number("reads", counters.reads);
        out.number("read_blocks", counters.read_blocks);
        out.number("corrupt_blocks", counters.corrupt);
        out.number("held_blocks", counters.held_blocks);
        out.number("promised_blocks", counters.promised_blocks);
        add_waits(out, "data", &counters.data);
        add_waits(out, "held", &counters.held);
        out.number("metadata_blocks", usage.blocks);
        out.number("metadata_free", usage.blocks_free);
        out.number("metadata_for_overwrites", self.runtime.store.metadata_for_overwrites());
        out.flag("short_of_metadata", self.runtime.store.is_short_of_metadata());
        out.close('}');
        let commit = &counters.commit;
        out.key("journal");
        out.open('{');
        out.number("used", usage.log_used);
        out.number("bytes", usage.log_bytes);
        out.number("groups", commit.groups);
        out.number("group_bytes", commit.bytes);
        add_waits(out, "closed", &commit.closed);
        add_waits(out, "locked", &commit.locked);
        add_waits(out, "home", &commit.home);
        add_waits(out, "data", &commit.data);
        add_waits(out, "data_flush", &commit.data_flush);
        add_waits(out, "log", &commit.log);
        out.close('}');
    }

    /// The metadata servers that it has heard of.
    fn add_servers(&self, out: &mut Json) {
        let servers = self.access.servers();
        let awaits = servers.iter().any(|(_, _, awaits)| *awaits);
        out.flag("waits_for_metadata_server", awaits);
        out.list("metadata_servers", servers, |out, (shard, oldest, awaits)| {
            out.open('{');
            out.number("server", u64::from(shard.0));
            out.number("oldest_epoch", u64::from(oldest.0));
            out.flag("waits", awaits);
            out.close('}');
        });
    }

    fn add_door(&self, out: &mut Json) {
        let security = self.door.least().map_or("none".to_owned(), |mode| mode.to_string());
        out.text("security", &security);
        out.text("keys_problem", &self.door.problem().unwrap_or_default());
        out.key("door");
        out.open('{');
        for (name, count) in self.door.counts().named() {
            out.number(name, count);
        }
        out.close('}');
    }

    fn add_clients(&self, out: &mut Json) {
        out.list("clients", self.sessions.all(), |out, session| {
            out.open('{');
            out.number("id", session.client.0);
            let state = match session.state() {
                SessionState::Live => "live",
                SessionState::Recovering => "recovering",
                SessionState::Over => "over",
            };
            out.text("state", state);
            out.text("description", &session.description);
            out.text("address", &session.peer().unwrap_or_default());
            out.flag("connected", session.is_connected());
            out.number("silent_ms", self.sessions.silence(&session).as_millis() as u64);
            out.number("requests", session.requests());
            out.number("in_flight", session.in_flight() as u64);
            out.text("transno", &session.last_transno().to_string());
            out.close('}');
        });
    }
}

/// Waits: `bins` counts those of less than 1, 2, 4, 8 … µs.
fn add_waits(out: &mut Json, name: &str, waits: &Waits) {
    out.key(name);
    out.open('{');
    out.number("count", waits.count);
    out.number("total_us", waits.nanos / 1000);
    out.number("longest_us", waits.longest_nanos / 1000);
    out.list("bins", waits.bins, |out, count| out.raw(&count.to_string()));
    out.close('}');
}
