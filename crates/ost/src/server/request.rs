//! A request from its arrival to its answer.
//!
//! Invariants:
//! - nothing of a request happens before its capability, its ranges and its checksums are right;
//! - a request that was executed before a restart, as its kept reply shows, is not executed again.
//!   One of several changes is, from its beginning: repeating a change changes nothing;
//! - bytes that requests carry, and that reads fetch, are within the configured memory, or wait.
//!   Reads have a part of their own: none waits for a write that waits for others. What was read
//!   counts until it has left, and of one session not more than a bound: a client that does not
//!   take its answers leaves memory for others;
//! - a target whose store has failed answers nothing more: its clients send it again.

use std::rc::Rc;

use engine::cost::Cost;
use env::IoBuf;
use env::sync::Permit;
use proto::capability::{Capability, READ, SERVE, WRITE};
use proto::content::Content;
use proto::message::Peer;
use proto::ost::{
    DESTROY_MAX, IO_BLOCKS_MAX, Message, Op, OpReply, Ost, Reply, Request, Statement,
};
use session::server::recovery::replay::{KeptResults, ReplayDecision, Sending, decide};
use session::server::{ArrivedContent, SessionState};
use types::limits::{BLOCK, BLOCK_U64, COMPOUND_OPS_MAX, FILE_SIZE_MAX};
use types::{Bug, ClientId, Epoch, Fault, ObjectId, Transno, crc32c, planted};

use super::Server;
use super::sessions::Session;
use crate::store::{Asked, Room};

/// Blocks of an object: as many as the largest file has.
const OBJECT_BLOCKS: u64 = FILE_SIZE_MAX / BLOCK_U64;
/// Runs in one answer.
const RUNS_MAX: u32 = 4096;

/// Executes a request and sends its answer.
pub async fn serve(server: Rc<Server>, session: Rc<Session>, request: Request, fresh: bool) {
    if session.is_over() || server.runtime.is_stopping() {
        return;
    }
    let _busy = session.begin();
    let _load = server.count_load();
    let mut work = Execution {
        sync: request.sync,
        results: Vec::with_capacity(request.ops.len()),
        awaited: Transno::ZERO,
        transno: Transno::ZERO,
        leaves: false,
        server,
        session,
        request,
    };
    match work.look_up_kept(fresh).await {
        Ok(Found::Nothing) => work.execute().await,
        Ok(Found::Done) => work.answer_as_before(),
        Err(fault) => work.results.push(Err(fault)),
    }
    work.answer().await;
}

/// What is known of a request that may have been executed before the restart.
enum Found {
    /// It has to be executed.
    Nothing,
    /// Everything that it changed has survived.
    Done,
}

/// Bytes that were read. Their memory is free when they have left, or their connection has ended.
struct Answer {
    bytes: IoBuf,
    /// The session's and the target's.
    _room: [Permit; 2],
}

impl AsRef<[u8]> for Answer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct Execution {
    server: Rc<Server>,
    session: Rc<Session>,
    request: Request,
    results: Vec<Result<OpReply, Fault>>,
    /// It must be durable before the answer leaves.
    awaited: Transno,
    /// The last transaction of the request.
    transno: Transno,
    sync: bool,
    leaves: bool,
}

impl Execution {
    fn is_replay(&self) -> bool {
        self.request.replay.is_some()
    }

    fn asked(&self) -> Asked {
        let (slot, seq) = (self.request.slot, self.request.seq);
        Asked { client: self.session.client, slot, seq }
    }

    async fn look_up_kept(&self, fresh: bool) -> Result<Found, Fault> {
        if self.is_replay() && self.session.state() != SessionState::Recovering {
            return Err(Fault::Protocol);
        }
        let changes = self.request.ops.iter().filter(|op| Ost::may_change(op)).count();
        if !fresh || !self.session.known || changes == 0 {
            return Ok(Found::Nothing);
        }
        let (client, slot) = (self.session.client, u32::from(self.request.slot));
        let runtime = &self.server.runtime;
        let found = runtime.engine().run(Cost::READ, |txn| txn.reply(client, slot)).await;
        let found = found.map_err(|error| runtime.fault_of(&error, "looking for a reply"))?.0;
        let sending = if self.is_replay() { Sending::Replayed } else { Sending::Sent };
        let only_one = changes == 1 && self.request.ops.len() == 1;
        let kept = KeptResults::of(self.request.seq, found.map(|(seq, _)| seq), || only_one);
        match decide(sending, kept) {
            ReplayDecision::Execute => Ok(Found::Nothing),
            ReplayDecision::GoOn if kept == KeptResults::Whole => Ok(Found::Done),
            ReplayDecision::GoOn => Ok(Found::Nothing),
            ReplayDecision::AnswerAsBefore => Ok(Found::Done),
            ReplayDecision::Refuse => Err(Fault::Protocol),
        }
    }

    /// Everything that the request changed has survived.
    fn answer_as_before(&mut self) {
        self.results = match &self.request.replay {
            Some(replay) => replay.results.clone(),
            None => vec![Ok(OpReply::Done {})],
        };
        // Durable before the answer: several such answers carry the same number.
        self.transno = self.session.last_transno();
        self.awaited = self.transno;
    }

    async fn execute(&mut self) {
        if self.request.ops.len() > COMPOUND_OPS_MAX {
            self.results.push(Err(Fault::TooBig));
            return;
        }
        let ops = std::mem::take(&mut self.request.ops);
        // Each takes memory, and several answers may exceed a frame. The slot keeps the answer to a
        // change, and would keep the memory of what was read with it.
        let with_bytes = |op: &&Op| matches!(op, Op::Read { .. } | Op::Write { .. });
        let reads = ops.iter().any(|op| matches!(op, Op::Read { .. }));
        let changes = ops.iter().any(Ost::may_change);
        if ops.iter().filter(with_bytes).count() > 1 || reads && changes {
            self.results.push(Err(Fault::TooBig));
            return;
        }
        for (index, op) in ops.into_iter().enumerate() {
            let before = self.request.replay.as_ref().and_then(|replay| replay.results.get(index));
            let result = match before {
                // It changed nothing then, and the client has acted on that failure.
                Some(Err(fault)) => Err(*fault),
                _ => self.execute_one(op).await,
            };
            let failed = result.is_err();
            self.results.push(result);
            if failed {
                return;
            }
        }
    }

    async fn execute_one(&mut self, op: Op) -> Result<OpReply, Fault> {
        let is_tool = self.session.client == ClientId(0);
        let for_tools = matches!(op, Op::Statfs {} | Op::Status {} | Op::Renew {});
        if is_tool && !for_tools {
            return Err(Fault::NotPermitted);
        }
        match op {
            Op::Write { may, block, data, sums, room } => {
                self.write(may, (block, room), data, &sums).await
            }
            Op::Read { may, block, len } => self.read(may, block, len).await,
            Op::Punch { may, from, to } => self.punch(may, from, to).await,
            Op::Runs { may, from, max } => self.runs(may, from, max).await,
            Op::Destroy { may, objects } => self.destroy(may, &objects).await,
            Op::Fence { may, client } => self.fence(may, client).await,
            Op::Admit { may, epoch } => self.admit(may, epoch).await,
            Op::Reserve { may, room, needed, wanted } => {
                self.reserve(may, room, needed, wanted).await
            }
            Op::Hold { room } => {
                let anew = self.session.state() == SessionState::Recovering;
                self.server.runtime.store.state_promise(self.session.client, room, anew);
                Ok(OpReply::Done {})
            }
            Op::Statfs {} => Ok(OpReply::Target { info: self.server.runtime.store.info() }),
            Op::Sync {} => {
                self.awaited = self.awaited.max(self.session.last_transno());
                Ok(OpReply::Done {})
            }
            Op::Renew {} => Ok(OpReply::Done {}),
            Op::Recovered {} => {
                if self.session.state() == SessionState::Recovering {
                    self.server.sessions.finish_recovery(&self.session);
                    self.server.sessions.look_whether_settled();
                }
                Ok(OpReply::Done {})
            }
            Op::Goodbye {} => {
                self.leaves = true;
                let transno = self.server.sessions.goodbye(&self.session).await?;
                self.awaited = self.awaited.max(transno);
                Ok(OpReply::Done {})
            }
            Op::Status {} if is_tool && self.session.who().administers() => {
                Ok(OpReply::Text { text: self.server.status() })
            }
            Op::Status {} => Err(Fault::NotPermitted),
        }
    }

    async fn write(
        &mut self,
        may: Capability,
        (block, room): (u64, Statement),
        data: Content,
        sums: &[u32],
    ) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check(&may, WRITE, self.is_replay())?;
        let blocks = data.len() / BLOCK;
        let whole = data.len().is_multiple_of(BLOCK) && sums.len() == blocks;
        if !whole {
            return Err(Fault::Invalid);
        }
        check_range(block, u32::try_from(blocks).map_err(|_| Fault::Invalid)?)?;
        server.access.admitted(may.shard()).await;
        self.wait_for_statements((may.object, block), blocks as u64).await?;
        let _change = server.access.begin(&may, WRITE, self.is_replay())?;
        let (data, _room) = match data.into_buffer::<ArrivedContent>() {
            Ok(ArrivedContent { bytes, room }) => (bytes, room),
            Err(data) => {
                let room = server.room_for_write(data.len(), self.is_replay()).await;
                (IoBuf::copy_of(&data), Some(room))
            }
        };
        // The client may have been fenced meanwhile.
        server.access.check(&may, WRITE, self.is_replay())?;
        let pairs = data.chunks_exact(BLOCK).zip(sums);
        if pairs.into_iter().any(|(bytes, sum)| crc32c(bytes) != *sum) {
            server.note_corrupt(self.session.client, may.object, block);
            return Err(Fault::Corrupt);
        }
        let store = &server.runtime.store;
        let room = if self.is_replay() { Room::Repeated } else { Room::Of(room) };
        let written = store.write(self.asked(), (may.object, block), data, sums, room).await;
        self.changed(written).await
    }

    /// A write that takes more than is kept for its client waits until the other clients are back,
    /// and have said what is kept for them.
    async fn wait_for_statements(&self, at: (ObjectId, u64), len: u64) -> Result<(), Fault> {
        let (server, client) = (&self.server, self.session.client);
        let recovers = self.session.state() == SessionState::Recovering;
        if recovers || !server.sessions.clients_recover() {
            return Ok(());
        }
        let beyond = server.runtime.store.beyond_promise(client, at, len).await;
        if self.checked(beyond).await? > 0 {
            server.sessions.recovered().await;
        }
        Ok(())
    }

    async fn reserve(
        &mut self,
        may: Capability,
        said: Statement,
        needed: u64,
        wanted: u64,
    ) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check(&may, WRITE, false)?;
        if said.number == 0 || needed > wanted {
            return Err(Fault::Invalid);
        }
        if self.session.state() == SessionState::Recovering {
            return Err(Fault::Protocol);
        }
        server.sessions.recovered().await;
        let given = server.promise(self.session.client, said, (needed, wanted)).await;
        given.map(|blocks| OpReply::Room { blocks })
    }

    async fn read(&mut self, may: Capability, block: u64, len: u32) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check(&may, READ, false)?;
        check_range(block, len)?;
        let bytes = len as usize * BLOCK;
        let own = self.session.read.acquire(bytes).await;
        let room = server.read.acquire(bytes).await;
        let found = server.runtime.store.read(may.object, block, len).await;
        let found = self.checked(found).await?;
        let data = Content::whole(Answer { bytes: found.data, _room: [own, room] });
        Ok(OpReply::Data { runs: found.runs, data, sums: found.sums })
    }

    async fn punch(&mut self, may: Capability, from: u64, to: u64) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check(&may, WRITE, self.is_replay())?;
        server.access.admitted(may.shard()).await;
        let _change = server.access.begin(&may, WRITE, self.is_replay())?;
        let end = if to == u64::MAX { to } else { to.saturating_sub(1) };
        if from >= to || from >= OBJECT_BLOCKS || (end >= OBJECT_BLOCKS && end != u64::MAX) {
            return Err(Fault::Invalid);
        }
        let punched = server.runtime.store.punch(self.asked(), may.object, from, to).await;
        self.changed(punched).await
    }

    async fn runs(&mut self, may: Capability, from: u64, max: u32) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check(&may, READ, false)?;
        if max == 0 {
            return Err(Fault::Invalid);
        }
        let runs = server.runtime.store.runs(may.object, from, max.min(RUNS_MAX)).await;
        let (runs, end) = self.checked(runs).await?;
        Ok(OpReply::Runs { runs, end })
    }

    async fn destroy(&mut self, may: Capability, objects: &[ObjectId]) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check_server(&may, self.is_replay()).await?;
        if objects.len() > DESTROY_MAX {
            return Err(Fault::TooBig);
        }
        // Nobody may repeat a write to them afterwards, also in a later start of the target.
        if !self.is_replay() && !objects.is_empty() && server.sessions.clients_recover() {
            return Err(Fault::Busy);
        }
        let objects = if planted(Bug::ObjectsKept) { &[] } else { objects };
        let destroyed = server.runtime.store.destroy(self.asked(), objects).await;
        self.changed(destroyed).await
    }

    async fn fence(&mut self, may: Capability, client: ClientId) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check(&may, SERVE, self.is_replay())?;
        // The metadata servers' own capabilities are in the name of number 0.
        if client.count() == 0 || client.shard() != may.shard() {
            return Err(Fault::Invalid);
        }
        server.access.check_server(&may, self.is_replay()).await?;
        let fenced = server.access.fence(client).await;
        self.checked(fenced).await?;
        let shard = may.shard();
        server.runtime.log(&format!("client {client} of metadata server {shard} is fenced"));
        Ok(OpReply::Done {})
    }

    async fn admit(&mut self, may: Capability, epoch: Epoch) -> Result<OpReply, Fault> {
        let server = self.server.clone();
        server.access.check_server(&may, self.is_replay()).await?;
        if epoch != server.runtime.epoch {
            return Err(Fault::Stale);
        }
        server.access.admit(may.shard());
        // No change of its own waits for this.
        self.awaited = self.awaited.max(server.access.note());
        Ok(OpReply::Done {})
    }

    async fn changed(&mut self, result: Result<Transno, Fault>) -> Result<OpReply, Fault> {
        let transno = self.checked(result).await?;
        self.transno = self.transno.max(transno);
        self.session.note_change(transno);
        Ok(OpReply::Done {})
    }

    /// Looks whether the store has stopped if it failed.
    async fn checked<T>(&self, result: Result<T, Fault>) -> Result<T, Fault> {
        if matches!(result, Err(Fault::Io)) {
            self.server.runtime.look_at_store().await;
        }
        result
    }

    /// Waits until what the answer promises is durable, then sends it.
    async fn answer(self) {
        let (server, session) = (&self.server, &self.session);
        let runtime = &server.runtime;
        let own = if self.sync { session.last_transno() } else { Transno::ZERO };
        let durable = runtime.wait_durable(self.awaited.max(own)).await;
        let failed = durable.is_err() || runtime.failure().is_some();
        let stops = failed && !planted(Bug::FailedTargetAnswers);
        if stops || session.is_over() && !self.leaves {
            return;
        }
        let last_committed = runtime.last_committed();
        let (slot, seq, transno) = (self.request.slot, self.request.seq, self.transno);
        let (waited, load, results) = (0, server.load_now(), self.results);
        let reply = Reply { slot, seq, transno, last_committed, waited, load, results };
        // What changed nothing may be executed again.
        session.answered(&reply, transno != Transno::ZERO);
        session.note_durable(last_committed);
        server.sessions.note_answer();
        session.push(Message::Reply { reply });
        if self.leaves {
            session.unbind();
        }
        server.event_ended();
    }
}

/// Are `len` blocks from `block` on blocks of an object, and not too many?
fn check_range(block: u64, len: u32) -> Result<(), Fault> {
    let end = block.checked_add(u64::from(len)).ok_or(Fault::Invalid)?;
    match (1..=IO_BLOCKS_MAX).contains(&len) && end <= OBJECT_BLOCKS {
        true => Ok(()),
        false => Err(Fault::Invalid),
    }
}
