//! The inode of a file whose name another shard gets: its coordinator makes it.
//!
//! Invariants:
//! - STARTED makes the inode, as an orphan that the reaper leaves alone, for the name needs its
//!   number. COMMITTED gives it its link, and an abort leaves it to the reaper;
//! - nobody finds the inode before the operation has freed its gate. So the client that made it
//!   can be granted what it wants with COMMITTED.

use std::collections::BTreeSet;

use mfs::{Cost, NewInode, StoreError};
use proto::mds::OpReply;
use proto::wire::Wire;
use types::{FileKind, Ino, Transno};

use commitment::{Entry, Record, TxnId};

use super::bounds;
use super::drive::{APPLY, keep};
use super::job::{Coordination, Job, Open};
use super::part::{NewFile, Part};
use crate::context::{Effects, Waited};
use crate::leases::Grants;
use crate::server::Server;

impl NewFile {
    fn inode(&self) -> NewInode<'static> {
        NewInode {
            kind: FileKind::Regular,
            mode: 0,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            size: 0,
            atime: self.time,
            mtime: self.time,
            ctime: self.time,
            btime: self.time,
            client: self.client,
            symlink: None,
        }
    }
}

impl Coordination {
    /// The file that STARTED has to make.
    fn new_file(&self) -> Option<NewFile> {
        let mut parts = self.shares.iter().flat_map(|share| &share.parts);
        parts.find_map(|part| match part {
            Part::AddFile { node, .. } => Some(node.clone()),
            _ => None,
        })
    }

    /// The file is made.
    fn set_made(&mut self, made: Ino) {
        self.made = Some(made);
        for part in self.shares.iter_mut().flat_map(|share| &mut share.parts) {
            if let Part::AddFile { ino, .. } = part {
                *ino = made;
            }
        }
    }
}

/// Writes a record of a coordinator that applies nothing.
pub async fn note(
    server: &Server,
    open: &Open,
    mut batch: Vec<Coordination>,
    (id, record): (TxnId, Record),
    keeps: Option<&Entry>,
) -> Result<Transno, StoreError> {
    if record == Record::Started && batch.iter().any(|it| it.new_file().is_some()) {
        return start(server, open, batch, id, keeps).await;
    }
    let made: Vec<Ino> = match record {
        Record::Aborted | Record::Ended => {
            batch.iter_mut().filter_map(|it| it.made.take()).collect()
        }
        _ => Vec::new(),
    };
    let job = Job::Coordinates { batch };
    let bytes = job.to_bytes();
    let wrote = server.runtime.mfs.run(APPLY, |txn| keep(txn, id, keeps, Some(&bytes))).await?;
    if !made.is_empty() {
        *open.job.borrow_mut() = job;
        made.into_iter().for_each(|ino| server.orphans.release(ino));
    }
    Ok(wrote.1)
}

/// STARTED with the inodes of new files.
async fn start(
    server: &Server,
    open: &Open,
    mut batch: Vec<Coordination>,
    id: TxnId,
    keeps: Option<&Entry>,
) -> Result<Transno, StoreError> {
    let cost = match batch.len() {
        1 => Cost::STEP,
        several => bounds::cost(several, batch.iter().map(|it| it.to_bytes().len()).sum()),
    };
    let mut held = BTreeSet::new();
    let wrote = server.runtime.mfs.run(cost, |txn| {
        for it in &mut batch {
            if let Some(node) = it.new_file() {
                let ino = txn.names().create_orphan(&node.inode(), None)?;
                // At once: the reaper may look for orphans just now.
                server.orphans.hold(ino);
                held.insert(ino);
                it.set_made(ino);
            }
        }
        keep(txn, id, keeps, Some(&Job::Coordinates { batch: batch.clone() }.to_bytes()))
    });
    let wrote = wrote.await;
    let made: Vec<Ino> = match &wrote {
        Ok(_) => batch.iter().filter_map(|it| it.made).collect(),
        Err(_) => Vec::new(),
    };
    // An attempt that ran again may have had other numbers.
    for &ino in held.iter().filter(|&ino| !made.contains(ino)) {
        server.orphans.unhold(ino);
    }
    let (_, transno) = wrote?;
    server.joint.close(open, &made);
    open.waited.borrow_mut().gates = Some(server.leases.enter(made).await);
    *open.job.borrow_mut() = Job::Coordinates { batch };
    Ok(transno)
}

/// COMMITTED has given the file its link. The client that waits for it gets what it wants of it.
pub fn committed(
    server: &Server,
    open: &Open,
    (it, waited): (&Coordination, &Waited),
    effects: &mut Effects,
    reply: &mut OpReply,
) {
    let session = server.sessions.get(it.client).filter(|session| !session.is_over());
    let (Some(ino), Some(session), true) = (it.made, session, open.is_asked.get()) else {
        return effects.grant_nothing();
    };
    let (grants, wants) = (std::mem::take(&mut effects.grants), std::mem::take(&mut effects.wants));
    let asked = Grants { grants, wants, ..Grants::default() };
    let own = waited.gates.as_ref();
    let granted = server.leases.grant(it.client, asked, own, |_, rights| rights);
    if granted.anything {
        session.mark_granting(it.slot);
    }
    server.leases.push(granted.recalls);
    let held = server.leases.table().held(it.client, ino);
    reply.each_leased(&mut |leased| {
        if leased.attr.ino == ino {
            (leased.rights, leased.seq) = (held.rights, held.seq);
        }
    });
}

/// COMMITTED is written: files that have their links need nobody any more who keeps them. Those of
/// operations that were not `applied` are orphans as others are.
pub fn settled(server: &Server, open: &Open, applied: &[bool]) {
    if let Job::Coordinates { batch } = &mut *open.job.borrow_mut() {
        for (it, &applied) in batch.iter_mut().zip(applied) {
            match it.made.take() {
                Some(made) if applied => server.orphans.unhold(made),
                Some(made) => server.orphans.release(made),
                None => {}
            }
        }
    }
}
