//! Asking those who write a file for its size and times, without taking anything away.
//!
//! Invariants:
//! - what is told was the file's size at one instant between question and answer. Under
//!   `DATA_X` one client knows it. Under `DATA_P` the size only grows, and is the largest that any
//!   holder or the server knows of: it is read twice, and counts if it was the same both times;
//! - an answer counts beside attributes that were the same before the question and after the
//!   answer: `stat` never tells a mode of after a write with the size of before it;
//! - a client is asked also about its own parts: only so all answers belong to one instant.

use std::rc::Rc;

use env::sync::oneshot;
use proto::mds::{DataAttr, Message, Push};
use types::{Attr, ClientId, Ino, Rights};

use crate::recall::{LOOK, end_the_late};
use crate::server::Server;

/// How often a file that changes all the time is asked about before the right to write it is taken.
const TRIES: u32 = 4;

/// What those said who write a file, and what the server had before it asked them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glimpsed {
    told: Told,
    /// The attributes as the server had them before it asked.
    before: Attr,
    /// Questions so far.
    tries: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Told {
    /// The holder of `DATA_X`, if there still was one.
    Whole(Option<DataAttr>),
    /// The holders of `DATA_P`: the largest of everything, that of the server included.
    Parts {
        /// The largest size and the latest times.
        data: DataAttr,
        /// Was it the same twice?
        settled: bool,
    },
}

impl Glimpsed {
    /// Does it say what `attr`, the attributes as the server has them now, lack? Only if these are
    /// the same as before it asked were they so when the writer answered. Those who write parts
    /// commit all the time, each for itself: of such a file only what commits leave alone must be
    /// the same.
    pub fn holds_for(&self, attr: &Attr) -> bool {
        let before = &self.before;
        match &self.told {
            Told::Whole(_) => attr.version == before.version,
            Told::Parts { data, settled } => {
                let others = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.nlink);
                *settled && attr.size <= data.size && others(attr) == others(before)
            }
        }
    }

    /// Questions so far.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Has it been asked often enough?
    pub fn is_given_up(&self) -> bool {
        self.tries >= TRIES
    }

    /// Adds to `attr` what the server does not know.
    pub fn put_in(&self, attr: &mut Attr) {
        match &self.told {
            Told::Whole(None) => {}
            Told::Whole(Some(data)) => {
                attr.size = data.size;
                attr.blocks = data.blocks;
                attr.mtime = data.mtime;
                attr.ctime = attr.ctime.max(data.ctime);
            }
            Told::Parts { data, .. } => {
                attr.size = attr.size.max(data.size);
                attr.blocks = attr.blocks.max(data.blocks);
                attr.mtime = attr.mtime.max(data.mtime);
                attr.ctime = attr.ctime.max(data.ctime);
            }
        }
    }
}

/// Asks all who write the file of which the server has `before`; `tries`: so often was it asked
/// already.
pub async fn glimpse(server: &Rc<Server>, before: Attr, tries: u32) -> Glimpsed {
    let told = ask_those_who_write(server, before.ino, before.size).await;
    Glimpsed { told, before, tries: tries + 1 }
}

async fn ask_those_who_write(server: &Rc<Server>, ino: Ino, size: u64) -> Told {
    let holders = server.leases.borrow().range_holders(ino);
    if holders.is_empty() {
        return Told::Whole(ask_writer(server, ino).await);
    }
    let first = ask_all(server, ino, size, &holders).await;
    // Of one holder an answer alone is of one instant.
    let same = holders.len() == 1 || ask_all(server, ino, size, &holders).await.size == first.size;
    let now = server.leases.borrow().range_holders(ino);
    let settled = same && now.iter().all(|holder| holders.contains(holder));
    Told::Parts { data: first, settled }
}

/// The largest of what `holders` and the server know; whoever holds nothing any more has told the
/// server.
async fn ask_all(server: &Rc<Server>, ino: Ino, size: u64, holders: &[ClientId]) -> DataAttr {
    let zero = Default::default();
    let mut all = DataAttr { size, blocks: 0, mtime: zero, ctime: zero };
    let answers: Vec<_> = holders
        .iter()
        .map(|&holder| {
            let this = server.clone();
            server.env.spawn_join(async move { ask(&this, ino, holder).await })
        })
        .collect();
    for answer in answers {
        let Some(Some(data)) = answer.await else { continue };
        all.size = all.size.max(data.size);
        all.blocks = all.blocks.max(data.blocks);
        all.mtime = all.mtime.max(data.mtime);
        all.ctime = all.ctime.max(data.ctime);
    }
    all
}

/// Asks the holder of `DATA_X`, as long as there is one; `None` if there is none any more.
async fn ask_writer(server: &Rc<Server>, ino: Ino) -> Option<DataAttr> {
    loop {
        let writer = server.leases.borrow().writer(ino)?;
        if let Some(answer) = ask(server, ino, writer).await {
            return answer;
        }
    }
}

/// What `client` answers; `None`: it is gone, or holds no right on content.
async fn ask(server: &Rc<Server>, ino: Ino, client: ClientId) -> Option<Option<DataAttr>> {
    loop {
        let writes = server.leases.borrow().rights(client, ino).intersects(Rights::WRITES);
        let session = server.session(client).filter(|_| writes)?;
        let (send, mut receive) = oneshot();
        let id = server.next_id();
        session.glimpses.borrow_mut().insert(id, send);
        let connection = session.connection_number();
        session.push(Message::Push { push: Push::Glimpse { id, ino } });
        loop {
            let patience = LOOK.min(server.config.lease / 4);
            if let Some(answer) = server.env.timeout(patience, &mut receive).await {
                return Some(answer.flatten());
            }
            end_the_late(server, &[client]).await;
            let gone = server.session(client).is_none_or(|now| !Rc::ptr_eq(&now, &session));
            if gone || session.connection_number() != connection {
                session.glimpses.borrow_mut().remove(&id);
                break;
            }
        }
    }
}
