//! What the content half asks of the server, in reserved slots.

use proto::mds::{LayoutPart, Leased, Op, OpReply, PagRun};
use types::limits::COMPOUND_OPS_MAX;
use types::{Attr, Fault, FileBlock, Ino, Instant, PagId, Timestamp};

use super::{Call, result};
use crate::boundary::{Commit, LocalFuture, Rpc};
use crate::core::Core;

/// [`Rpc`] of a client that may be gone already.
pub(crate) struct ContentRpc(pub std::rc::Weak<Core>);

impl ContentRpc {
    fn core(&self) -> Result<std::rc::Rc<Core>, Fault> {
        self.0.upgrade().ok_or(Fault::Unreachable)
    }

    async fn reserved(&self, op: Op) -> Result<OpReply, Fault> {
        let core = self.core()?;
        let reply = core.session.call(Call::reserved(vec![op])).await?;
        result(&reply, 0).cloned()
    }
}

impl Rpc for ContentRpc {
    fn space(
        &self,
        hint: Option<PagId>,
        blocks: u64,
    ) -> LocalFuture<'_, Result<Vec<PagRun>, Fault>> {
        Box::pin(async move {
            match self.reserved(Op::Space { hint, blocks }).await? {
                OpReply::Space { runs } => Ok(runs),
                _ => Err(Fault::Protocol),
            }
        })
    }

    fn return_space(&self, runs: Vec<PagRun>) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move { self.reserved(Op::ReturnSpace { runs }).await.map(|_| ()) })
    }

    fn layout(&self, ino: Ino, from: FileBlock) -> LocalFuture<'_, Result<LayoutPart, Fault>> {
        Box::pin(async move {
            let ino = proto::mds::InoRef::Is { ino };
            match self.reserved(Op::Layout { ino, from }).await? {
                OpReply::Layout { part } => Ok(part),
                _ => Err(Fault::Protocol),
            }
        })
    }

    fn commit(
        &self,
        commits: Vec<Commit>,
        sync: bool,
    ) -> LocalFuture<'_, Vec<Result<Leased, Fault>>> {
        assert!(commits.len() <= COMPOUND_OPS_MAX, "a compound has a limit");
        Box::pin(async move {
            let count = commits.len();
            let mut results = Vec::with_capacity(count);
            let mut rest: Vec<Op> = commits.into_iter().map(commit_op).collect();
            let core = match self.core() {
                Ok(core) => core,
                Err(fault) => return vec![Err(fault); count],
            };
            // A commit that fails ends its compound: the others go again without it.
            while !rest.is_empty() {
                let call = Call { sync, ..Call::reserved(rest.clone()) };
                let reply = match core.session.call(call).await {
                    Ok(reply) => reply,
                    Err(fault) => {
                        results.resize(count, Err(fault));
                        break;
                    }
                };
                if reply.results.is_empty() {
                    results.resize(count, Err(Fault::Protocol));
                    break;
                }
                rest.drain(..reply.results.len().min(rest.len()));
                results.extend(reply.results.iter().map(|result| match result {
                    Ok(OpReply::Attr { leased }) => Ok(leased.clone()),
                    Ok(_) => Err(Fault::Protocol),
                    Err(fault) => Err(*fault),
                }));
            }
            results
        })
    }

    fn lease_ends(&self) -> Instant {
        self.core().map_or(Instant(0), |core| core.session.lease_ends())
    }

    fn wait_lease(&self) -> LocalFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let core = self.core()?;
            let client = core.session.client();
            core.session.live().await?;
            if core.session.client() == client { Ok(()) } else { Err(Fault::Evicted) }
        })
    }

    fn time(&self) -> Timestamp {
        self.core().map_or_else(|_| Timestamp::default(), |core| core.session.time())
    }

    fn log(&self, text: &str) {
        if let Ok(core) = self.core() {
            core.session.log(text);
        }
    }

    fn describe(&self, ino: Ino) -> String {
        self.core().map_or_else(|_| format!("inode {ino}"), |core| core.origins.describe(ino))
    }

    fn attr(&self, ino: Ino) -> Option<Attr> {
        let core = self.core().ok()?;
        core.inodes.get(ino).map(|inode| inode.server_attr())
    }
}

fn commit_op(commit: Commit) -> Op {
    let Commit { ino, edits, size, mtime, ctime } = commit;
    Op::Commit { ino, edits, size, mtime, ctime }
}
