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
use env::sync::oneshot;
use mfs::{Stop, Txn};
use proto::mds::{JointId, Letter};
use proto::wire::{Reader, Wire};
use proto::{wire_enum, wire_struct};
use types::{Duration, Fault, FileKind, Ino, Name, ShardId};

use super::GATE_PATIENCE;
use super::job::Job;
use super::letter::{self, Aside};
use crate::leases::NO_CLIENT;
use crate::ops::READ;
use crate::server::Server;
use crate::uncommitted::MetaItem;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause before a directory is asked again whose parent is changing.
const PAUSE: Duration = Duration::from_millis(3);
/// The way up crosses at most so many shards; a longer one is a cycle.
const CROSSINGS_MAX: usize = 4096;
/// Greatest depth of a path; a longer one is a cycle.
const DEPTH_MAX: usize = 1 << 24;

wire_enum! {
    /// What a plan asks.
    pub enum Ask {
        /// What does this name lead to?
        Entry = 1 { dir: Ino, name: Name, },
        /// Is `ancestor` the directory `dir` or above it?
        Above = 2 { dir: Ino, ancestor: Ino, },
    }
}

/// The answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// What the name leads to.
    Entry(Option<(Ino, FileKind)>),
    /// It is that or above.
    Above(bool),
}

wire_struct! {
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
    }
}

/// Finds out what a plan asks.
///
/// # Errors
/// `Busy`: a server does not answer, or the parent of a directory is changing for too long. Else
/// what the other shard's fault is.
pub async fn find_out(server: &Rc<Server>, ask: &Ask) -> Result<Known, Fault> {
    match ask {
        Ask::Entry { dir, .. } => match say(server, dir.shard(), ask).await {
            Said::Entry { found } => Ok(Known::Entry(found)),
            Said::Refused { fault } => Err(fault),
            Said::Way { .. } => Err(Fault::Protocol),
        },
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
            match say(server, at.shard(), &Ask::Above { dir: at, ancestor }).await {
                Said::Way { way } if way.movers.iter().all(|&id| waits(server, id)) => break way,
                Said::Way { .. } => server.runtime.env.sleep(PAUSE).await,
                Said::Refused { fault } => return Err(fault),
                Said::Entry { .. } => return Err(Fault::Protocol),
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
        return Said::Refused { fault: Fault::Corrupt };
    };
    let busy = Said::Refused { fault: Fault::Busy };
    if !peer.is_reached() {
        return busy;
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
    let ran = server.runtime.mfs.run(READ, |txn| match ask {
        Ask::Entry { dir, name } => entry(server, txn, *dir, name),
        Ask::Above { dir, ancestor } => Ok(Said::Way { way: way(server, txn, *dir, *ancestor)? }),
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
        if at.shard() != server.runtime.shard {
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
    /// Open operations that have closed the directory and give it another parent.
    fn movers(&self, ino: Ino) -> Vec<TxnId> {
        let open = self.open.borrow();
        let moves =
            |it: &super::Open| it.closed.borrow().contains(&ino) && it.job.borrow().reparents(ino);
        open.iter().filter(|(_, it)| moves(it)).map(|(&id, _)| id).collect()
    }
}
