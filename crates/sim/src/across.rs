//! What a client knows of several shards.

use std::cell::RefCell;

use client::{Caller, Client, ServerSession};
use types::{Ino, ShardId};

use crate::call::Op;
use crate::mount::Mount;

/// The extended attribute with the layout of a directory.
const LAYOUT: &[u8] = b"user.redbud.dir.layout";

/// The shard of the server of a session.
pub(crate) fn shard_of(session: &ServerSession) -> ShardId {
    ShardId(session.server.0 as u8)
}

/// How many sessions a client had lost at its last call, and where that was first noticed; of each
/// server.
#[derive(Default)]
pub(crate) struct Evictions(RefCell<Vec<(u64, u64)>>);

impl Evictions {
    /// A call begins. `begins` gets each shard of which it is the first in a new session.
    pub(crate) fn note(&self, client: &Client, begun: u64, begins: impl Fn(ShardId)) {
        let mut known = self.0.borrow_mut();
        let sessions = client.sessions();
        known.resize(sessions.len(), (0, 0));
        for (known, session) in known.iter_mut().zip(sessions) {
            if session.evictions > known.0 {
                *known = (session.evictions, begun);
                begins(shard_of(&session));
            }
        }
    }

    /// Has the client lost a session since then?
    pub(crate) fn any_since(&self, client: &Client, begun: u64) -> bool {
        let known = self.0.borrow();
        let before: u64 = known.iter().map(|(evictions, _)| evictions).sum();
        known.iter().any(|(_, at)| *at > begun) || client.status().evictions > before
    }
}

impl Mount {
    /// Sets where new directories in this one go; the model does not know it. A failure says
    /// nothing.
    pub async fn set_home(&self, dir: Ino, layout: &str) {
        let _locked = self.lock(&[dir]).await;
        let begun = self.begin(&Op::GetXattr(dir));
        let root = Caller { uid: 0, gid: 0, pid: 1 };
        let _ = self.client.setxattr(&root, dir, LAYOUT, layout.as_bytes(), 0, false).await;
        self.vfs.changed(dir);
        self.history.end(begun, Vec::new());
    }
}
