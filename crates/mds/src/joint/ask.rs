//! Questions to other shards, whose answers a plan needs.
//!
//! Invariants:
//! - a question changes nothing, and who answers it waits at no gate;
//! - an answer tells only of what is durable;
//! - the way up to the root is asked under the rename gate of the namespace;
//! - who gives a directory another parent has it closed before that gate opens, and opens it when
//!   the parent is another one. So a directory that is not closed keeps its parent;
//! - a closed one keeps its old parent as long as its operation waits at the gate.

use std::rc::Rc;

use commitment::TxnId;
use env::Env;
use env::sync::oneshot;
use mfs::{HOMES_MAX, Stop, StoreError, Txn};
use proto::mds::{JointId, Letter, MOVING, MOVING_OBJECTS, PagInfo, PagRun};
use proto::wire::{Reader, Wire};
use proto::{wire_enum, wire_struct};
use types::{Duration, Fault, FileKind, Ino, Name, PagId, ShardId, Uuid};

use super::GATE_PATIENCE;
use super::job::Job;
use super::letter::{self, Aside};
use crate::leases::NO_CLIENT;
use crate::ops::{READ, move_directory, move_file};
use crate::server::Server;
use crate::uncommitted::MetaItem;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a directory is asked again whose parent is changing.
const PAUSE: Duration = Duration::from_millis(3);
/// The way up crosses at most so many shards; a longer one is a cycle.
const CROSSINGS_MAX: usize = 4096;
/// How often a directory is looked for that is on its way.
const TRIES: u32 = 100;
/// Greatest depth of a path; a longer one is a cycle.
const DEPTH_MAX: usize = 1 << 24;

wire_enum! {
    /// What a plan asks.
    pub enum Ask {
        /// What does this name lead to?
        Entry = 1 { dir: Ino, name: Name, },
        /// Is `ancestor` the directory `dir` or above it?
        Above = 2 { dir: Ino, ancestor: Ino, },
        /// Where does the inode live?
        Home = 3 { ino: Ino, },
        /// Can a directory with so many names move to the shard?
        Receive = 4 { shard: u8, names: u32, },
        /// Can a file with blocks of these zones follow its name to the shard?
        ReceiveFile = 5 { shard: u8, zones: Vec<LenderZone>, segments: u32, },
        /// What has the shard of this zone that is free, and could go back to the shard `to`?
        FreeLent = 6 { shard: u8, pag: PagId, to: u8, },
        /// Can a file with an object at these targets follow its name to the shard?
        ReceiveObject = 7 { shard: u8, targets: Vec<(PagId, Uuid)>, },
    }
}

impl Ask {
    /// If it asks whether something can move: the shard, and the version that the server of that
    /// shard needs.
    fn of_move(&self) -> Option<(ShardId, u32)> {
        match *self {
            Ask::Receive { shard, .. }
            | Ask::ReceiveFile { shard, .. }
            | Ask::FreeLent { shard, .. } => Some((ShardId(shard), MOVING)),
            Ask::ReceiveObject { shard, .. } => Some((ShardId(shard), MOVING_OBJECTS)),
            Ask::Entry { .. } | Ask::Above { .. } | Ask::Home { .. } => None,
        }
    }
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Known {
    /// What the name leads to.
    Entry(Option<(Ino, FileKind)>),
    /// It is that or above.
    Above(bool),
    /// It can move there.
    Ready,
    /// These blocks are free there; the last loan of which that shard has heard.
    Free(Vec<PagRun>, u32),
}

wire_struct! {
    /// A zone of which another shard has blocks.
    pub struct LenderZone {
        /// The zone.
        pub zone: PagInfo,
        /// Its first block on the device.
        pub start: u64,
    }

    /// The way up from a directory, as far as one shard knows it.
    pub struct Way {
        /// It meets the ancestor.
        pub met: bool,
        /// It leaves to this directory of another shard.
        pub leaves: Option<Ino>,
        /// Operations that may be giving directories on it other parents.
        pub movers: Vec<JointId>,
    }
}

wire_enum! {
    /// What one shard answers.
    pub enum Said {
        /// What the name leads to.
        Entry = 1 { found: Option<(Ino, FileKind)>, },
        /// The way up.
        Way = 2 { way: Way, },
        /// Why there is no answer.
        Refused = 3 { fault: Fault, },
        /// Where the inode lives, as far as the shard knows. It is also the answer to another
        /// question about a directory that is not there.
        Home = 4 { ino: Ino, shard: u8, },
        /// It can come.
        Ready = 5 {},
        /// These blocks are free; the last loan of which the shard has heard.
        Free = 6 { runs: Vec<PagRun>, known: u32, },
    }
}

/// Finds out what a plan asks.
///
/// # Errors
/// `Busy`: a server does not answer, or the parent of a directory is changing for too long. Else
/// what the other shard's fault is.
pub async fn find_out(server: &Rc<Server>, ask: &Ask) -> Result<Known, Fault> {
    match ask {
        Ask::Entry { dir, .. } => {
            for _ in 0..TRIES {
                match say(server, server.home_of(*dir), ask).await {
                    Said::Entry { found } => return Ok(Known::Entry(found)),
                    Said::Refused { fault } => return Err(fault),
                    Said::Home { ino, shard } => learn(server, ino, ShardId(shard)).await,
                    _ => return Err(Fault::Protocol),
                }
            }
            Err(Fault::Busy)
        }
        Ask::Receive { shard, .. }
        | Ask::ReceiveFile { shard, .. }
        | Ask::ReceiveObject { shard, .. } => {
            // A third server may have a share of a rename that concerns it.
            for peer in server.joint.peers.values() {
                if !peer.is_reached() {
                    return Err(Fault::Busy);
                }
                if !peer.knows(MOVING) {
                    return Err(Fault::NotSupported);
                }
            }
            prepare_for_move(server, ask).await?;
            match say(server, ShardId(*shard), ask).await {
                Said::Ready {} => Ok(Known::Ready),
                Said::Refused { fault } => Err(fault),
                _ => Err(Fault::Protocol),
            }
        }
        Ask::FreeLent { shard, .. } => match say(server, ShardId(*shard), ask).await {
            Said::Free { runs, known } => Ok(Known::Free(runs, known)),
            Said::Refused { fault } => Err(fault),
            _ => Err(Fault::Protocol),
        },
        Ask::Home { .. } => Err(Fault::Protocol),
        Ask::Above { dir, ancestor } => {
            let climbed = server.runtime.env.timeout(GATE_PATIENCE, climb(server, *dir, *ancestor));
            climbed.await.unwrap_or(Err(Fault::Busy)).map(Known::Above)
        }
    }
}

/// See the module. Only the shard of the root asks, under the rename gate.
async fn climb(server: &Rc<Server>, dir: Ino, ancestor: Ino) -> Result<bool, Fault> {
    let mut at = dir;
    for _ in 0..CROSSINGS_MAX {
        let way = loop {
            match say(server, server.home_of(at), &Ask::Above { dir: at, ancestor }).await {
                Said::Way { way } if way.movers.iter().all(|&id| waits(server, id)) => break way,
                Said::Way { .. } => server.runtime.env.sleep(PAUSE).await,
                Said::Refused { fault } => return Err(fault),
                Said::Home { ino, shard } => learn(server, ino, ShardId(shard)).await,
                _ => return Err(Fault::Protocol),
            }
        };
        match way.leaves {
            _ if way.met => return Ok(true),
            None => return Ok(false),
            Some(next) => at = next,
        }
    }
    Err(Fault::Corrupt)
}

/// Another shard has said where an inode is. It may be on its way: the same question would have the
/// same answer just now.
async fn learn(server: &Server, ino: Ino, home: ShardId) {
    server.learned.note(ino, home);
    server.runtime.env.sleep(PAUSE).await;
}

/// Finds out where an inode lives, from shard to shard.
pub async fn find_home(server: &Rc<Server>, ino: Ino) {
    let mut at = server.home_of(ino);
    for _ in 0..=server.joint.peers.len() {
        let Said::Home { shard, .. } = say(server, at, &Ask::Home { ino }).await else { return };
        let next = ShardId(shard);
        server.learned.note(ino, next);
        if next == at {
            return;
        }
        at = next;
    }
}

/// The store of this shard has room for what is to come or go, and can note what has moved.
async fn prepare_for_move(server: &Server, ask: &Ask) -> Result<(), Fault> {
    let mfs = &server.runtime.mfs;
    let (names, zones) = match ask {
        Ask::Receive { names, .. } => (*names as usize, &[][..]),
        Ask::ReceiveFile { zones, segments, .. } => {
            (move_file::as_names(*segments as usize), &zones[..])
        }
        Ask::ReceiveObject { targets, .. } => {
            if !server.targets.has_all(targets) {
                return Err(Fault::CrossDevice);
            }
            (move_file::as_names(0), &[][..])
        }
        _ => return Err(Fault::Protocol),
    };
    if !move_directory::fits(&mfs.usage(), names) {
        return Err(Fault::TooBig);
    }
    if mfs.moved_inodes() >= HOMES_MAX {
        return Err(Fault::Overloaded);
    }
    let failed = |error: StoreError| {
        server.runtime.note_failure(&error, "preparing for a move");
        error.fault()
    };
    mfs.add_moved_directories().await.map_err(failed)?;
    if let Ask::ReceiveObject { .. } = ask {
        mfs.add_followed_objects().await.map_err(failed)?;
    }
    match zones.is_empty() {
        true => Ok(()),
        false => server.space.enter_lenders(zones).await,
    }
}

/// Does the operation wait at the rename gate of this shard?
fn waits(server: &Server, id: JointId) -> bool {
    let open = server.joint.open.borrow();
    let of = |it: &super::Open| matches!(&*it.job.borrow(), Job::Works { .. });
    open.get(&letter::txn_id(id)).is_some_and(|it| of(it) && !it.is_planned.get())
}

/// Asks a shard.
async fn say(server: &Rc<Server>, shard: ShardId, ask: &Ask) -> Said {
    let (joint, runtime) = (&server.joint, &server.runtime);
    if shard == runtime.shard {
        return answer(server, ask).await;
    }
    let Some(peer) = joint.peers.get(&shard) else {
        let fault = if ask.of_move().is_some() { Fault::Invalid } else { Fault::Corrupt };
        return Said::Refused { fault };
    };
    let busy = Said::Refused { fault: Fault::Busy };
    if !peer.is_reached() {
        return busy;
    }
    let needed = match ask {
        Ask::Home { .. } => Some(MOVING),
        _ => ask.of_move().map(|(_, version)| version),
    };
    if needed.is_some_and(|version| !peer.knows(version)) {
        return Said::Refused { fault: Fault::NotSupported };
    }
    let number = joint.asked.get();
    joint.asked.set(number + 1);
    let (send, said) = oneshot();
    joint.questions.borrow_mut().insert(number, send);
    let id = JointId { coordinator: runtime.shard.0, epoch: runtime.identity.epoch, number };
    let from = (runtime.shard, runtime.identity.epoch);
    let question = letter::beside(from, shard, id, Aside::Question, ask.to_bytes());
    peer.send(runtime, question);
    let said = runtime.env.timeout(PATIENCE, said).await.flatten();
    joint.questions.borrow_mut().remove(&number);
    said.unwrap_or(busy)
}

/// A question or an answer has come.
///
/// # Errors
/// `Protocol`: it is not to be understood.
pub fn hear(server: &Rc<Server>, aside: Aside, it: &Letter) -> Result<(), Fault> {
    let mut reader = Reader::new(&it.body.0);
    let (shard, epoch) = (server.runtime.shard, server.runtime.identity.epoch);
    match aside {
        Aside::Question => {
            let ask = Ask::get(&mut reader).map_err(|_| Fault::Protocol)?;
            let (to, id, server) = (ShardId(it.from), it.id, server.clone());
            server.runtime.env.clone().spawn(async move {
                let said = answer(&server, &ask).await.to_bytes();
                if let Some(peer) = server.joint.peers.get(&to) {
                    let answer = letter::beside((shard, epoch), to, id, Aside::Answer, said);
                    peer.send(&server.runtime, answer);
                }
            });
        }
        Aside::Answer => {
            let said = Said::get(&mut reader).map_err(|_| Fault::Protocol)?;
            let mine = it.id.coordinator == shard.0 && it.id.epoch == epoch;
            let waiting = server.joint.questions.borrow_mut().remove(&it.id.number);
            if let Some(waiting) = waiting.filter(|_| mine) {
                waiting.send(said);
            }
        }
    }
    Ok(())
}

/// What this shard says.
async fn answer(server: &Rc<Server>, ask: &Ask) -> Said {
    server.recovery.ended().await;
    match ask {
        Ask::Home { ino } => return home(server, *ino),
        Ask::Entry { dir, .. } | Ask::Above { dir, .. } if !server.is_here(*dir) => {
            return home(server, *dir);
        }
        Ask::Receive { .. } | Ask::ReceiveFile { .. } | Ask::ReceiveObject { .. } => {
            return match prepare_for_move(server, ask).await {
                Ok(()) => Said::Ready {},
                Err(fault) => Said::Refused { fault },
            };
        }
        // Blocks that an open operation has promised may still be in the free tree.
        Ask::FreeLent { pag, .. } if server.joint.gives_back(*pag) => {
            return Said::Refused { fault: Fault::Busy };
        }
        Ask::Entry { .. } | Ask::Above { .. } | Ask::FreeLent { .. } => {}
    }
    let ran = server.runtime.mfs.run(READ, |txn| match ask {
        Ask::Entry { dir, name } => entry(server, txn, *dir, name),
        Ask::Above { dir, ancestor } => Ok(Said::Way { way: way(server, txn, *dir, *ancestor)? }),
        Ask::FreeLent { pag, to, .. } => {
            let free = txn.space().free_lent(ShardId(*to), *pag)?;
            let run = |(addr, len)| PagRun { pag: *pag, addr, len };
            let known = txn.space().last_had(ShardId(*to))?;
            Ok(Said::Free { runs: free.into_iter().map(run).collect(), known })
        }
        _ => Err(Fault::Protocol.into()),
    });
    let said = match ran.await {
        Ok((said, _)) => said,
        Err(error) => {
            server.runtime.note_failure(&error, "answering another server");
            Said::Refused { fault: error.fault() }
        }
    };
    if let Ask::Entry { dir, name } = ask {
        let items = [MetaItem::Name(*dir, name.clone()), MetaItem::Attr(*dir)];
        let awaited = server.uncommitted.awaited(&items, NO_CLIENT);
        drop(server.runtime.wait_durable(awaited).await);
    }
    said
}

fn home(server: &Server, ino: Ino) -> Said {
    Said::Home { ino, shard: server.home_of(ino).0 }
}

fn entry(server: &Server, txn: &mut Txn<'_>, dir: Ino, name: &Name) -> Result<Said, Stop> {
    let attr = match server.orphans.is_freeing(dir) {
        true => None,
        false => txn.names().attr(dir)?,
    };
    let attr = attr.ok_or(Stop::Fault(Fault::Stale))?;
    match attr.kind {
        FileKind::Directory if attr.nlink == 0 => Err(Fault::NotFound.into()),
        FileKind::Directory => Ok(Said::Entry { found: txn.names().entry(dir, name)? }),
        _ => Err(Fault::NotDirectory.into()),
    }
}

fn way(server: &Server, txn: &mut Txn<'_>, dir: Ino, ancestor: Ino) -> Result<Way, Stop> {
    let mut way = Way { met: false, leaves: None, movers: Vec::new() };
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == ancestor {
            return Ok(Way { met: true, ..way });
        }
        if !server.is_here(at) {
            return Ok(Way { leaves: Some(at), ..way });
        }
        way.movers.extend(server.joint.movers(at).into_iter().map(letter::joint_id));
        match txn.names().parent(at)? {
            Some(parent) => at = parent,
            None => return Ok(way),
        }
    }
    Err(Fault::Corrupt.into())
}

impl super::Joint {
    /// Does an open operation give blocks of the zone back, from here or to here?
    pub fn gives_back(&self, pag: PagId) -> bool {
        self.open.borrow().values().any(|it| it.job.borrow().gives_back(pag))
    }

    /// Waits a moment until no lent blocks go back, from here or to here.
    pub async fn none_goes_back(&self, env: &Env) {
        for _ in 0..TRIES {
            if !self.takes_back() {
                return;
            }
            env.sleep(PAUSE).await;
        }
    }

    /// Does an open operation take lent blocks back, from here or to here?
    pub fn takes_back(&self) -> bool {
        self.open.borrow().values().any(|it| it.job.borrow().takes_back())
    }

    /// Open operations that have closed the directory and give it another parent.
    fn movers(&self, ino: Ino) -> Vec<TxnId> {
        let open = self.open.borrow();
        let moves =
            |it: &super::Open| it.closed.borrow().contains(&ino) && it.job.borrow().reparents(ino);
        open.iter().filter(|(_, it)| moves(it)).map(|(&id, _)| id).collect()
    }
}
