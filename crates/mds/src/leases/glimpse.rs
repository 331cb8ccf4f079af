//! Glimpses: asks the writers of a file for its size and times, without recalling anything.
//!
//! Invariants:
//! - the reported size was the file's size at one instant between question and answer. Under
//!   `DATA_X` one client knows it. Under `DATA_P` the size only grows, and is the largest that any
//!   holder or the server knows: the server reads it twice, and it counts if it was the same both
//!   times;
//! - an answer counts only if the attributes are the same before the question and after the answer.
//!   So `stat` never shows a mode from after a write with the size from before it;
//! - a client is asked also about its own ranges: only then do all answers belong to one instant.

use std::rc::Rc;

use proto::mds::{DataAttr, Message, Push};
use types::{Attr, ClientId, Ino, Rights};

use super::{CHECK_INTERVAL, Evictor, Leases};

/// How often the server glimpses a file that changes all the time before it takes the right to
/// write.
const TRIES: u32 = 4;

/// What the writers of a file answered, and what the server had before it asked them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Glimpsed {
    answer: GlimpseAnswer,
    /// The attributes as the server had them before it asked.
    before: Attr,
    /// Number of glimpses so far.
    tries: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum GlimpseAnswer {
    /// Of the holder of `DATA_X`, if there still was one.
    Whole(Option<DataAttr>),
    /// Of the holders of `DATA_P`: the largest values, those of the server included.
    Parts {
        /// The largest size and the latest times.
        data: DataAttr,
        /// Was the size the same both times?
        consistent: bool,
    },
}

impl Glimpsed {
    /// Does it complete `attr`, the attributes as the server has them now? It does only if they are
    /// the same as before the glimpse: then they were so when the writer answered. Writers of
    /// ranges commit all the time, each for itself. Of such a file only those attributes must be
    /// the same that commits do not change.
    pub fn is_valid_for(&self, attr: &Attr) -> bool {
        let before = &self.before;
        match &self.answer {
            GlimpseAnswer::Whole(_) => attr.version == before.version,
            GlimpseAnswer::Parts { data, consistent } => {
                let others = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.nlink);
                *consistent && attr.size <= data.size && others(attr) == others(before)
            }
        }
    }

    /// Number of glimpses so far.
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Has the server glimpsed it often enough?
    pub fn is_given_up(&self) -> bool {
        self.tries >= TRIES
    }

    /// Adds to `attr` what the server does not know.
    pub fn complete(&self, attr: &mut Attr) {
        match &self.answer {
            GlimpseAnswer::Whole(None) => {}
            GlimpseAnswer::Whole(Some(data)) => {
                attr.size = data.size;
                attr.blocks = data.blocks;
                attr.mtime = data.mtime;
                attr.ctime = attr.ctime.max(data.ctime);
            }
            GlimpseAnswer::Parts { data, .. } => {
                attr.size = attr.size.max(data.size);
                attr.blocks = attr.blocks.max(data.blocks);
                attr.mtime = attr.mtime.max(data.mtime);
                attr.ctime = attr.ctime.max(data.ctime);
            }
        }
    }
}

/// Asks all writers of the file, of which the server has the attributes `before`; `tries`: glimpses
/// so far.
pub async fn glimpse(
    leases: &Rc<Leases>,
    evictor: &Rc<impl Evictor + 'static>,
    before: Attr,
    tries: u32,
) -> Glimpsed {
    let answer = ask_writers(leases, evictor, before.ino, before.size).await;
    Glimpsed { answer, before, tries: tries + 1 }
}

async fn ask_writers(
    leases: &Rc<Leases>,
    evictor: &Rc<impl Evictor + 'static>,
    ino: Ino,
    size: u64,
) -> GlimpseAnswer {
    let holders = leases.table().range_holders(ino);
    if holders.is_empty() {
        return GlimpseAnswer::Whole(ask_writer(leases, &**evictor, ino).await);
    }
    let first = ask_all(leases, evictor, (ino, size), &holders).await;
    // A single holder's answer is of one instant by itself.
    let same = holders.len() == 1
        || ask_all(leases, evictor, (ino, size), &holders).await.size == first.size;
    let now = leases.table().range_holders(ino);
    let consistent = same && now.iter().all(|holder| holders.contains(holder));
    GlimpseAnswer::Parts { data: first, consistent }
}

/// The largest values that `holders` and the server know. A client that holds nothing any more has
/// reported to the server.
async fn ask_all(
    leases: &Rc<Leases>,
    evictor: &Rc<impl Evictor + 'static>,
    (ino, size): (Ino, u64),
    holders: &[ClientId],
) -> DataAttr {
    let zero = Default::default();
    let mut all = DataAttr { size, blocks: 0, mtime: zero, ctime: zero };
    let answers: Vec<_> = holders
        .iter()
        .map(|&holder| {
            let (leases, evictor) = (leases.clone(), evictor.clone());
            let env = leases.runtime.env.clone();
            env.spawn_join(async move { ask(&leases, &*evictor, ino, holder).await })
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
async fn ask_writer(leases: &Leases, evictor: &impl Evictor, ino: Ino) -> Option<DataAttr> {
    loop {
        let writer = leases.table().writer(ino)?;
        if let Some(answer) = ask(leases, evictor, ino, writer).await {
            return answer;
        }
    }
}

/// What `client` answers; `None`: it is gone, or holds no right to write.
async fn ask(
    leases: &Leases,
    evictor: &impl Evictor,
    ino: Ino,
    client: ClientId,
) -> Option<Option<DataAttr>> {
    let runtime = &leases.runtime;
    loop {
        let writes = leases.table().rights(client, ino).intersects(Rights::WRITES);
        let session = leases.sessions.get(client).filter(|_| writes)?;
        let id = runtime.next_id();
        let mut receive = session.expect_glimpse(id);
        let connection = session.connection_number();
        session.push(Message::Push { push: Push::Glimpse { id, ino } });
        loop {
            let patience = CHECK_INTERVAL.min(runtime.config.lease / 4);
            if let Some(answer) = runtime.env.timeout(patience, &mut receive).await {
                return Some(answer.flatten());
            }
            evictor.evict_unresponsive(&[client]).await;
            let gone = leases.sessions.get(client).is_none_or(|now| !Rc::ptr_eq(&now, &session));
            if gone || session.connection_number() != connection {
                session.forget_glimpse(id);
                break;
            }
        }
    }
}
