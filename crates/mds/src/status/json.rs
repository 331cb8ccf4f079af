//! The JSON of the server's status.

use types::json::Json;

use super::{ScrubStatus, Status};
use crate::joint::JointStatus;

/// Findings of a scrub that the status shows; the log has more.
const PROBLEMS_SHOWN: usize = 20;

impl Status {
    /// As JSON.
    pub fn to_json(&self) -> String {
        let mut out = Json::default();
        out.open('{');
        self.add_identity(&mut out);
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
        self.add_door(&mut out);
        out.flag("partial", self.partial);
        out.key("clients");
        out.open('[');
        for client in &self.clients {
            out.item();
            out.open('{');
            out.number("id", client.id);
            out.text("state", client.state);
            out.text("description", &client.description);
            out.text("node", &client.node);
            out.key("encrypted");
            out.raw(if client.encrypted { "true" } else { "false" });
            out.text("address", &client.address);
            out.number("silent_ms", client.silent_ms);
            out.number("leases", client.leases);
            out.number("locks", client.locks);
            out.number("pool_blocks", client.pool_blocks);
            out.number("requests", client.requests);
            out.flag("local", client.local);
            out.key("unreachable");
            out.open('[');
            for zone in &client.unreachable {
                out.item();
                out.raw(&zone.to_string());
            }
            out.close(']');
            if !client.fence.is_empty() {
                out.text("fence", &client.fence);
            }
            out.close('}');
        }
        out.close(']');
        self.add_pags(&mut out);
        out.key("scrub");
        self.scrub.add_to(&mut out);
        out.key("membership");
        out.raw(&self.membership);
        out.close('}');
        out.into_text()
    }

    /// Adds whose status it is.
    fn add_identity(&self, out: &mut Json) {
        out.text("fs_name", &self.fs_name);
        out.text("fs_uuid", &self.fs_uuid);
        out.number("server", u64::from(self.server));
        out.list("servers", &self.servers, |out, server| {
            out.open('{');
            out.number("server", u64::from(server.server.0));
            out.list("addresses", &server.addresses, |out, address| out.string(address));
            out.close('}');
        });
        out.number("epoch", u64::from(self.epoch));
        out.text("address", &self.address);
        if let Some(joint) = &self.joint {
            out.key("joint");
            add_joint(&mut *out, joint);
        }
    }

    fn add_door(&self, out: &mut Json) {
        let door = &self.door;
        out.text("security", &self.security);
        out.text("keys_problem", &self.keys_problem);
        out.key("door");
        out.open('{');
        for (name, count) in door.named() {
            out.number(name, count);
        }
        out.close('}');
    }

    fn add_pags(&self, out: &mut Json) {
        out.key("pags");
        out.open('[');
        for pag in &self.pags {
            out.item();
            out.open('{');
            out.number("id", u64::from(pag.id));
            out.text("uuid", &pag.uuid);
            out.text("kind", pag.kind);
            out.text("path", &pag.path);
            out.number("blocks", pag.blocks);
            out.number("free", pag.free);
            out.number("freed", pag.freed);
            out.number("windows", pag.windows);
            out.number("pooled", pag.pools.iter().map(|(_, blocks)| blocks).sum());
            out.key("pools");
            out.open('[');
            for (client, blocks) in &pag.pools {
                out.item();
                out.open('{');
                out.number("client", *client);
                out.number("blocks", *blocks);
                out.close('}');
            }
            out.close(']');
            if !pag.lent.is_empty() {
                out.key("lent");
                out.open('[');
                for (shard, blocks) in &pag.lent {
                    out.item();
                    out.open('{');
                    out.number("shard", *shard);
                    out.number("blocks", *blocks);
                    out.close('}');
                }
                out.close(']');
            }
            out.text("state", pag.state);
            out.text("device", pag.device);
            if pag.device == "absent" {
                out.number("absent_ms", pag.absent_ms);
                out.text("why", &pag.why);
            }
            out.close('}');
        }
        out.close(']');
    }
}

/// Adds what operations of several servers have cost, by the protocol that they agreed by.
fn add_joint(out: &mut Json, joint: &JointStatus) {
    out.open('{');
    out.text("protocol", joint.protocol);
    out.number("open", joint.open);
    out.number("operations", joint.operations);
    out.number("batch", joint.batch);
    out.list("peers", &joint.peers, |out, &(shard, epoch)| {
        out.open('{');
        out.number("server", u64::from(shard));
        out.number("epoch", u64::from(epoch));
        out.close('}');
    });
    out.key("counts");
    out.open('{');
    for (name, counts) in &joint.counts {
        out.key(name);
        out.open('{');
        for (name, count) in [
            ("committed", counts.committed),
            ("aborted", counts.aborted),
            ("forced", counts.forced),
            ("lazy", counts.lazy),
            ("messages", counts.messages),
            ("critical_forced", counts.critical_forced),
            ("critical_lazy", counts.critical_lazy),
            ("critical_messages", counts.critical_messages),
        ] {
            out.number(name, count);
        }
        out.close('}');
    }
    out.close('}');
    out.close('}');
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
