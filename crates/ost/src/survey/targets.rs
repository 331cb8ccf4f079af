//! Targets through their messages, as a client reaches them: blocks travel with their checksums,
//! and an object lies in units on all targets in turns.

use std::rc::Rc;

use env::Env;
use proto::capability::{Capability, READ, TargetKey, WRITE};
use proto::ost::{DESTROY_MAX, Op, OpReply, Ost, Statement};
use proto::placement::object_place;
use proto::slots::SlotClass;
use session::client::{Call, Session, done, result};
use types::limits::BLOCK;
use types::{ClientId, Epoch, Fault, ObjectId, crc32c};

use super::{Record, object_of};

/// The epoch of capabilities: targets do not keep it, and no metadata server has the shard of the
/// objects.
const EPOCH: Epoch = Epoch(0);
/// Threads of one session: fewer than it has slots.
pub const THREADS_PER_SESSION: usize = 32;

/// A target, as a survey reaches it.
pub struct Target {
    /// What its capabilities are made with.
    pub key: TargetKey,
    /// Sessions with it, [`THREADS_PER_SESSION`] threads to each.
    pub sessions: Vec<Rc<Session<Ost>>>,
}

/// See the module.
pub struct Targets {
    all: Vec<Rc<Target>>,
    /// Blocks of a unit.
    part: u64,
}

/// Blocks of a record that are together on a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    target: usize,
    /// The first one, as the object on the target has it.
    block: u64,
    /// The first one within the record, and how many there are.
    from: usize,
    len: usize,
}

impl Targets {
    /// Objects on these targets, with units of `part` blocks.
    pub fn new(all: Vec<Target>, part: u64) -> Targets {
        assert!(part > 0 && all.iter().all(|target| !target.sessions.is_empty()));
        assert!(!all.is_empty(), "a survey of no target");
        Targets { all: all.into_iter().map(Rc::new).collect(), part }
    }

    /// Writes a record: all its pieces at once.
    pub(super) async fn write(
        &self,
        env: &Env,
        thread: usize,
        record: Record,
        data: Vec<u8>,
        sync: bool,
    ) -> Result<(), Fault> {
        let pieces = pieces(record, self.part, self.all.len());
        let object = object_of(record.object);
        if let [piece] = pieces[..] {
            return self.all[piece.target].write(thread, object, piece.block, data, sync).await;
        }
        let writes: Vec<_> = pieces
            .into_iter()
            .map(|Piece { target, block, from, len }| {
                let target = self.all[target].clone();
                let data = data[from * BLOCK..(from + len) * BLOCK].to_vec();
                let write = async move { target.write(thread, object, block, data, sync).await };
                env.spawn_join(write)
            })
            .collect();
        let mut all = Ok(());
        for write in writes {
            all = all.and(write.await);
        }
        all
    }

    /// Reads a record.
    pub(super) async fn read(
        &self,
        env: &Env,
        thread: usize,
        record: Record,
    ) -> Result<Vec<u8>, Fault> {
        let pieces = pieces(record, self.part, self.all.len());
        let object = object_of(record.object);
        if let [piece] = pieces[..] {
            return self.all[piece.target].read(thread, object, piece.block, piece.len).await;
        }
        let reads: Vec<_> = pieces
            .into_iter()
            .map(|Piece { target, block, len, .. }| {
                let target = self.all[target].clone();
                env.spawn_join(async move { target.read(thread, object, block, len).await })
            })
            .collect();
        let mut all = Ok(Vec::with_capacity(record.len as usize * BLOCK));
        for read in reads {
            match (&mut all, read.await) {
                (Ok(bytes), Ok(more)) => bytes.extend_from_slice(&more),
                (Ok(_), Err(fault)) => all = Err(fault),
                (Err(_), _) => {}
            }
        }
        all
    }

    /// Makes durable what was written.
    pub(super) async fn flush(&self) -> Result<(), Fault> {
        for session in self.sessions() {
            session.sync().await?;
        }
        Ok(())
    }

    /// Destroys objects on all targets, durably.
    pub(super) async fn destroy(&self, objects: &[ObjectId]) -> Result<(), Fault> {
        let mut all = Ok(());
        for target in &self.all {
            all = all.and(target.destroy(objects).await);
        }
        all
    }

    /// Ends the sessions.
    pub(super) async fn close(&self) {
        for session in self.sessions() {
            session.close().await;
        }
    }

    fn sessions(&self) -> impl Iterator<Item = &Rc<Session<Ost>>> {
        self.all.iter().flat_map(|target| &target.sessions)
    }
}

impl Target {
    fn session(&self, thread: usize) -> &Session<Ost> {
        &self.sessions[thread / THREADS_PER_SESSION % self.sessions.len()]
    }

    async fn write(
        &self,
        thread: usize,
        object: ObjectId,
        block: u64,
        data: Vec<u8>,
        sync: bool,
    ) -> Result<(), Fault> {
        let sums = data.chunks_exact(BLOCK).map(crc32c).collect();
        let op = Op::Write {
            may: self.may(object, WRITE),
            block,
            data: data.into(),
            sums,
            room: Statement::default(),
        };
        done(&*self.session(thread).call(Call { sync, ..call(op) }).await?)
    }

    /// The bytes of blocks, with the right checksums; holes are left out.
    async fn read(
        &self,
        thread: usize,
        object: ObjectId,
        block: u64,
        len: usize,
    ) -> Result<Vec<u8>, Fault> {
        let op = Op::Read { may: self.may(object, READ), block, len: len as u32 };
        let reply = self.session(thread).call(call(op)).await?;
        let OpReply::Data { data, sums, .. } = result(&reply, 0)? else {
            return Err(Fault::Protocol);
        };
        let blocks = data.chunks_exact(BLOCK);
        let right = blocks.len() == sums.len()
            && blocks.zip(sums).all(|(block, sum)| crc32c(block) == *sum);
        if right { Ok(data.to_vec()) } else { Err(Fault::Corrupt) }
    }

    async fn destroy(&self, objects: &[ObjectId]) -> Result<(), Fault> {
        let session = &self.sessions[0];
        let may = self.key.issue_to_server(object_of(0).shard(), EPOCH);
        for part in objects.chunks(DESTROY_MAX) {
            let op = Op::Destroy { may, objects: part.to_vec() };
            done(&*session.call(call(op)).await?)?;
        }
        session.sync().await
    }

    fn may(&self, object: ObjectId, rights: u8) -> Capability {
        // No metadata server gives a client this number.
        self.key.issue(object, ClientId(u64::MAX), rights, EPOCH)
    }
}

/// Where the blocks of a record lie, in their order: on so many targets, in units of `part` blocks.
fn pieces(record: Record, part: u64, targets: usize) -> Vec<Piece> {
    let end = record.block + u64::from(record.len);
    let (mut at, mut all) = (record.block, Vec::new());
    while at < end {
        let (target, block, next) = match targets {
            1 => (0, at, end),
            _ => object_place(at, part, targets),
        };
        let next = next.min(end);
        let (from, len) = ((at - record.block) as usize, (next - at) as usize);
        all.push(Piece { target, block, from, len });
        at = next;
    }
    all
}

fn call(op: Op) -> Call<Ost> {
    Call { class: SlotClass::Ordinary, ..Call::reserved(vec![op]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_record_end_with_their_units() {
        let record = Record { object: 0, block: 6, len: 8 };
        let piece = |target, block, from, len| Piece { target, block, from, len };
        assert_eq!(pieces(record, 4, 1), [piece(0, 6, 0, 8)]);
        let striped = [piece(1, 2, 0, 2), piece(0, 4, 2, 4), piece(1, 4, 6, 2)];
        assert_eq!(pieces(record, 4, 2), striped);
    }
}
