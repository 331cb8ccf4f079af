//! The JSON of the server's status.

use std::fmt::Write;

use super::{ScrubStatus, Status};

/// Findings of a scrub that the status shows; the log has more.
const PROBLEMS_SHOWN: usize = 20;

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
        out.close('}');
        out.0
    }

    fn add_pags(&self, out: &mut Json) {
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
            if pag.device == "absent" {
                out.number("absent_ms", pag.absent_ms);
                out.text("why", &pag.why);
            }
            out.close('}');
        }
        out.close(']');
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
