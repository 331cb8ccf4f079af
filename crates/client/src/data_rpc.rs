//! Requests of the data half to the server, in reserved slots.

use proto::mds::{LayoutSlice, Leased, Op, OpReply, PagRun, ZONE_PUSHES, ZoneList};
use types::limits::{COMPOUND_OPS_MAX, RETURN_RUNS_MAX};
use types::{Attr, Epoch, Fault, FileBlock, Ino, Instant, ServerId, Timestamp};

use crate::boundary::{
    Commit, CommitsAndGrant, Granted, LocalFuture, PlaceRequest, Refusal, Rpc, SpaceRequest,
};
use crate::core::Core;
use crate::rpc::{Call, result};

/// [`Rpc`] of a client that may be gone already.
pub(crate) struct DataRpc(pub std::rc::Weak<Core>);

impl DataRpc {
    fn core(&self) -> Result<std::rc::Rc<Core>, Fault> {
        self.0.upgrade().ok_or(Fault::Unreachable)
    }

    async fn reserved(&self, op: Op) -> Result<OpReply, Fault> {
        let server = self.core()?.rpc.executing(&op).server();
        self.reserved_at(server, op).await
    }

    async fn reserved_at(&self, server: ServerId, op: Op) -> Result<OpReply, Fault> {
        let core = self.core()?;
        let reply = core.rpc.call_at(server, Call::reserved(vec![op])).await?;
        result(&reply, 0).cloned()
    }

    /// The blocks that the server grants for `op`. Before there are none, inodes that the kernel
    /// does not use are given up.
    async fn granted(&self, server: ServerId, op: Op) -> Result<Granted, Fault> {
        let mut granted = self.reserved_at(server, op.clone()).await;
        if matches!(granted, Err(Fault::NoSpace)) && self.core()?.reclaim_lingering().await {
            granted = self.reserved_at(server, op).await;
        }
        grant_of(granted?)
    }
}

impl DataRpc {
    /// Commits, in requests to each server, and a request for blocks with the last one, which goes
    /// to the server that grants them if a file of it is committed. A commit that fails ends its
    /// compound: those of other files are sent again without it.
    async fn commits(
        &self,
        commits: Vec<Commit>,
        sync: bool,
        refill: Option<SpaceRequest>,
    ) -> CommitsAndGrant {
        assert!(
            commits.len() + usize::from(refill.is_some()) <= COMPOUND_OPS_MAX,
            "a compound has at most COMPOUND_OPS_MAX operations"
        );
        let Ok(core) = self.core() else {
            return (vec![Err(Fault::Unreachable.into()); commits.len()], None);
        };
        let mut results: Vec<Option<Result<Leased, Refusal>>> = vec![None; commits.len()];
        loop {
            let all: Vec<usize> = (0..commits.len()).filter(|&i| results[i].is_none()).collect();
            let refills = refill.as_ref().map(|refill| refill.server);
            let is_other =
                |index: &&usize| Some(core.rpc.server_of(commits[**index].ino)) != refills;
            let Some(&first) = all.iter().find(is_other).or(all.first()) else {
                return (results.into_iter().flatten().collect(), None);
            };
            let server = core.rpc.server_of(commits[first].ino);
            let is_its = |index: &usize| core.rpc.server_of(commits[*index].ino) == server;
            let open: Vec<usize> = all.iter().copied().filter(is_its).collect();
            let mut ops: Vec<Op> =
                open.iter().map(|&index| commit_op(commits[index].clone())).collect();
            // Nothing is sent after this request if all of it succeeds, so what is granted is not
            // kept waiting.
            let is_last = open.len() == all.len() && Some(server) == refills;
            ops.extend(refill.clone().filter(|_| is_last).map(space_op));
            let call = Call { sync, ..Call::reserved(ops) };
            let reply = core.rpc.call(call).await;
            let granted = reply.as_ref().ok().and_then(|reply| reply.results.get(open.len()));
            let granted = granted.map(|granted| grant_of(granted.clone()?));
            let answers: Vec<_> = match reply {
                Ok(reply) if reply.results.is_empty() => vec![Err(Fault::Protocol.into())],
                Ok(reply) => reply.results.iter().map(commit_result).collect(),
                Err(fault) => vec![Err(fault.into()); open.len()],
            };
            for (&index, answer) in open.iter().zip(answers) {
                if let Err(Refusal { fault, .. }) = answer {
                    let later = commits.iter().enumerate().skip(index + 1);
                    for (later, _) in later.filter(|(_, c)| c.ino == commits[index].ino) {
                        results[later] = Some(Err(fault.into()));
                    }
                }
                results[index] = Some(answer);
            }
            if granted.is_some() {
                return (results.into_iter().flatten().collect(), granted);
            }
        }
    }
}

impl Rpc for DataRpc {
    fn server_of(&self, ino: Ino) -> ServerId {
        self.core().map_or(ServerId::ANY, |core| core.rpc.server_of(ino))
    }

    fn space(&self, asked: SpaceRequest) -> LocalFuture<'_, Result<Granted, Fault>> {
        Box::pin(async move { self.granted(asked.server, space_op(asked)).await })
    }

    fn place(&self, asked: PlaceRequest) -> LocalFuture<'_, Result<Granted, Fault>> {
        let PlaceRequest { ino, pieces, stream, policy, hint, unreachable } = asked;
        let writer = stream.map(|stream| (stream.handle, stream.process));
        let op = Op::Place { ino, pieces, writer, policy, hint, unreachable };
        Box::pin(async move { self.granted(self.server_of(ino), op).await })
    }

    fn end_placing(&self, ino: Ino, handle: Option<u64>) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move { self.reserved(Op::EndPlacing { ino, handle }).await.map(drop) })
    }

    fn return_space(
        &self,
        server: ServerId,
        runs: Vec<PagRun>,
    ) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let mut ops: Vec<Op> = runs
                .chunks(RETURN_RUNS_MAX)
                .map(|runs| Op::ReturnSpace { runs: runs.to_vec() })
                .collect();
            if ops.is_empty() {
                ops.push(Op::ReturnSpace { runs: Vec::new() });
            }
            let core = self.core()?;
            for ops in ops.chunks(COMPOUND_OPS_MAX) {
                let reply = core.rpc.call_at(server, Call::reserved(ops.to_vec())).await?;
                (0..ops.len()).try_for_each(|index| result(&reply, index).map(|_| ()))?;
            }
            Ok(())
        })
    }

    fn zones(&self, server: ServerId) -> LocalFuture<'_, Result<ZoneList, Fault>> {
        Box::pin(async move {
            let session = self.core()?.rpc.get(server).ok_or(Fault::Unreachable)?;
            if session.agreed().1 & ZONE_PUSHES == 0 {
                return Err(Fault::Unsupported);
            }
            match self.reserved_at(server, Op::Zones {}).await? {
                OpReply::Zones { list } => Ok(list),
                _ => Err(Fault::Protocol),
            }
        })
    }

    fn layout(&self, ino: Ino, from: FileBlock) -> LocalFuture<'_, Result<LayoutSlice, Fault>> {
        Box::pin(async move {
            match self.reserved(Op::Layout { ino, from }).await? {
                OpReply::Layout { slice: part } => Ok(part),
                _ => Err(Fault::Protocol),
            }
        })
    }

    fn sync(&self, server: ServerId) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let call = Call { sync: true, ..Call::reserved(Vec::new()) };
            self.core()?.rpc.call_at(server, call).await.map(drop)
        })
    }

    fn commit(
        &self,
        commits: Vec<Commit>,
        sync: bool,
    ) -> LocalFuture<'_, Vec<Result<Leased, Refusal>>> {
        Box::pin(async move { self.commits(commits, sync, None).await.0 })
    }

    fn commit_and_refill(
        &self,
        commits: Vec<Commit>,
        sync: bool,
        refill: SpaceRequest,
    ) -> LocalFuture<'_, CommitsAndGrant> {
        Box::pin(async move { self.commits(commits, sync, Some(refill)).await })
    }

    fn load(&self) -> u16 {
        let all = self.core().map_or_else(|_| Vec::new(), |core| core.rpc.all());
        all.iter().map(|session| session.load()).max().unwrap_or_default()
    }

    fn lease_ends(&self, server: ServerId) -> Instant {
        let session = self.core().ok().and_then(|core| core.rpc.get(server));
        session.map_or(Instant(0), |session| session.lease_ends())
    }

    fn require_epoch(&self, server: ServerId, epoch: Epoch) {
        if let Some(session) = self.core().ok().and_then(|core| core.rpc.get(server)) {
            session.require_epoch(epoch);
        }
    }

    fn wait_lease(&self, server: ServerId) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let session = self.core()?.rpc.get(server).ok_or(Fault::Unreachable)?;
            let client = session.client();
            session.wait_for_lease().await?;
            if session.client() == client { Ok(()) } else { Err(Fault::Evicted) }
        })
    }

    fn time(&self) -> Timestamp {
        self.core().map_or_else(|_| Timestamp::default(), |core| core.rpc.time())
    }

    fn log(&self, text: &str) {
        if let Ok(core) = self.core() {
            core.rpc.log(text);
        }
    }

    fn describe(&self, ino: Ino) -> String {
        self.core().map_or_else(|_| format!("inode {ino}"), |core| core.path_hints.describe(ino))
    }

    fn attr(&self, ino: Ino) -> Option<Attr> {
        let core = self.core().ok()?;
        core.inodes.get(ino).map(|inode| inode.server_attr())
    }

    fn inval_pages(&self, ino: Ino, from: u64, to: u64) {
        let Ok(core) = self.core() else { return };
        let Some(inode) = core.inodes.get(ino) else { return };
        core.env.clone().spawn(async move { core.inval_unlocked_pages(&inode, (from, to)).await });
    }

    fn is_open(&self, ino: Ino) -> bool {
        let inode = self.core().ok().and_then(|core| core.inodes.get(ino));
        inode.is_some_and(|inode| inode.opens() > 0)
    }
}

fn space_op(asked: SpaceRequest) -> Op {
    let SpaceRequest { hint, blocks, unreachable, .. } = asked;
    Op::Space { hint, blocks, unreachable }
}

/// Translates the answer to a request for blocks.
fn grant_of(answer: OpReply) -> Result<Granted, Fault> {
    match answer {
        OpReply::Space { runs, left } => Ok(Granted { runs, left }),
        _ => Err(Fault::Protocol),
    }
}

/// Translates the answer to a commit.
fn commit_result(result: &Result<OpReply, Fault>) -> Result<Leased, Refusal> {
    match result {
        Ok(OpReply::Attr { leased }) => Ok(leased.clone()),
        Ok(OpReply::Partial { done, fault }) => {
            Err(Refusal { fault: *fault, done: *done as usize })
        }
        Ok(_) => Err(Fault::Protocol.into()),
        Err(fault) => Err((*fault).into()),
    }
}

fn commit_op(commit: Commit) -> Op {
    let Commit { ino, edits, size, mtime, ctime, merge, tail_zero } = commit;
    Op::Commit { ino, edits, size, mtime, ctime, merge, tail_zero }
}
