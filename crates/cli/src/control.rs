//! The control socket of a process: what one on this host can ask a running client or server.
//!
//! A request is a line of JSON, `{"version":1,"ask":"status"}`. Its answer is a line, too:
//! `{"version":1,"answer":…}` or `{"version":1,"error":"…"}`. A connection may carry several, one
//! after the other.
//!
//! Invariants:
//! - only root and the user of the process are answered, even if others reach the socket;
//! - requests and connections are bounded in size, number and time;
//! - an answer never waits for what it reports: what it asks of others is bounded.

mod ask;
pub mod of_mds;
pub mod of_mount;
mod serve;

pub use ask::{ask, ask_mount, ask_server, mounts_of};
pub use serve::{Answer, Handler, listen};

use serde::{Deserialize, Serialize};

/// Version of requests and answers.
pub const VERSION: u32 = 1;
/// Longest request or error text.
const LINE_MAX: usize = 64 << 10;

/// A request, with its version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Request {
    /// See [`VERSION`].
    pub version: u32,
    /// What is asked.
    #[serde(flatten)]
    pub ask: Ask,
}

/// What can be asked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// What the process holds and owes.
    Status,
    /// Of a client: what these threads wait for, or what requests on an inode do.
    Why {
        /// Threads, as /proc numbers them.
        #[serde(default)]
        threads: Vec<u32>,
        /// The inode.
        #[serde(default)]
        ino: Option<u64>,
    },
    /// Of a client: makes everything durable that it has changed; says whether all is, for it may
    /// take longer than an answer.
    Sync,
    /// Of a client: moves a directory to another metadata server. The answer says if it takes
    /// longer than an answer may.
    MoveDirectory {
        /// The directory.
        ino: u64,
        /// The metadata server.
        mds: u8,
    },
    /// Of a client: has some of the files of a directory follow it to its metadata server.
    MoveFiles {
        /// The directory.
        ino: u64,
        /// The metadata server, which has the directory.
        mds: u8,
        /// Where to go on, 0 at first.
        after: u64,
    },
    /// Of a server: evicts a client.
    Evict {
        /// Its number.
        client: u64,
    },
    /// Of a server: hands the metadata over to one that stands by.
    Failover,
    /// Of a server or of targets: starts a scrub, or stops the running one.
    Scrub {
        /// Bytes a second at most, 0: no limit; none: stop it.
        rate: Option<u64>,
        /// Of several targets the one that listens at this address; none: all.
        #[serde(default)]
        only: Option<String>,
    },
    /// Of a server: makes a device a data zone.
    AddZone {
        /// Its path.
        path: String,
        /// Also if it has content.
        overwrite: bool,
        /// Its number, if it is new; none: the server chooses.
        #[serde(default)]
        number: Option<u16>,
    },
    /// Of a server: sets the state of a data zone.
    SetZoneState {
        /// The zone.
        pag: u16,
        /// The state, as in its record.
        state: u16,
        /// Only if it is one of these until then; empty: whatever it is.
        only_from: Vec<u16>,
    },
    /// Of a server: names files with blocks in a data zone.
    ZoneFiles {
        /// The zone.
        pag: u16,
        /// First block.
        from: u64,
        /// One past the last block.
        to: u64,
        /// Where the last answer ended.
        at: (u64, u64),
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_lines_of_json() {
        let text = |ask| serde_json::to_string(&Request { version: VERSION, ask }).unwrap();
        assert_eq!(text(Ask::Status), r#"{"version":1,"ask":"status"}"#);
        assert_eq!(text(Ask::Evict { client: 7 }), r#"{"version":1,"ask":"evict","client":7}"#);
        let read = |text: &str| serde_json::from_str::<Request>(text).map(|request| request.ask);
        let why = read(r#"{"version":1,"ask":"why","threads":[3]}"#).unwrap();
        assert_eq!(why, Ask::Why { threads: vec![3], ino: None });
        assert!(read(r#"{"version":1,"ask":"explode"}"#).is_err());
        assert!(read("[]").is_err() && read(r#"{"ask":"status"}"#).is_err());
    }
}
