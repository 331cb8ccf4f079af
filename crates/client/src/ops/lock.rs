//! Locks between processes, on this client and others. The server decides.

use std::rc::Rc;

use env::sync::{Notify, oneshot};
use proto::mds::{Lock, Op, OpReply};
use types::limits::COMPOUND_OPS_MAX;
use types::{Bug, Duration, Fault, Ino, LockOwner, planted};

use crate::api::{Caller, Handle, LockRequest};
use crate::client::Client;
use crate::core::Core;
use crate::locks::LockUndo;
use crate::rpc::{Call, done, result};
use crate::waits::Wait;

/// A waiter asks again after this time even without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The lock as the server knows it.
pub(crate) fn wire(lock: LockRequest) -> Lock {
    let LockRequest { flock, owner, pid, exclusive, start, end } = lock;
    Lock { flock, owner, pid, exclusive: exclusive.unwrap_or(false), start, end }
}

impl Client {
    /// The first lock that conflicts with `lock`, if any.
    pub async fn getlk(
        &self,
        handle: Handle,
        lock: LockRequest,
    ) -> Result<Option<LockRequest>, Fault> {
        let ino = self.core.handles.ino(handle)?;
        let op = Op::TestLock { ino, lock: wire(lock) };
        let reply = self.core.rpc.call(Call::one(&Caller::default(), op)).await?;
        let OpReply::Locked { lock } = result(&reply, 0)? else { return Err(Fault::Protocol) };
        Ok(lock.clone().map(|lock| LockRequest {
            flock: lock.flock,
            owner: lock.owner,
            pid: lock.pid,
            exclusive: Some(lock.exclusive),
            start: lock.start,
            end: lock.end,
        }))
    }

    /// Takes or frees a lock; `wait`: until it is free. Dropping the future stops waiting: a lock
    /// that is granted nevertheless is undone, to what was held before.
    pub async fn setlk(&self, handle: Handle, lock: LockRequest, wait: bool) -> Result<(), Fault> {
        let core = &self.core;
        let ino = match core.handles.ino(handle) {
            // Locks on a deleted inode are already gone.
            Err(Fault::Stale) if lock.exclusive.is_none() => return Ok(()),
            ino => ino?,
        };
        if lock.exclusive.is_none() {
            return core.unlock(ino, lock).await;
        }
        if let Ok(file) = core.handles.file(handle) {
            file.note_locker(lock.flock, lock.owner);
        }
        let waiter = core.locks.waiter(ino, lock.owner);
        let mut waiting = LockWait { core, ino, lock, waiter, queued: false };
        let mut named = None;
        loop {
            let freed = waiting.waiter.notified();
            match core.clone().try_lock(ino, lock, wait).await {
                Err(Fault::WouldBlock) if wait => waiting.queued = true,
                other => {
                    waiting.queued = false;
                    return other;
                }
            }
            named.get_or_insert_with(|| core.waits.begin(&core.env, Wait::Lock(ino, lock)));
            let _ = core.env.timeout(POLL_INTERVAL, freed).await;
        }
    }
}

impl Client {
    /// Waits until no request about the locks of this owner on `ino` is in flight, and abandoned
    /// locks are undone.
    pub async fn locks_settled(&self, ino: Ino, flock: bool, owner: LockOwner) {
        drop(self.core.locks.lock_owner(ino, flock, owner).await);
    }
}

/// A wait for a lock; if it is dropped, it is cancelled at the server.
struct LockWait<'a> {
    core: &'a Rc<Core>,
    ino: Ino,
    lock: LockRequest,
    waiter: Notify,
    queued: bool,
}

impl Drop for LockWait<'_> {
    fn drop(&mut self) {
        let (core, ino, lock) = (self.core.clone(), self.ino, self.lock);
        core.locks.stop_waiting(ino, lock.owner);
        if self.queued {
            core.env.clone().spawn(async move {
                let op = Op::CancelLock { ino, lock: wire(lock) };
                let _ = core.rpc.call(Call::one(&Caller::default(), op)).await;
            });
        }
    }
}

impl Core {
    /// Asks once. The request completes even if the caller is gone; then the lock is undone, and
    /// the owner keeps what it held before.
    async fn try_lock(
        self: Rc<Self>,
        ino: Ino,
        lock: LockRequest,
        wait: bool,
    ) -> Result<(), Fault> {
        let owner_lock = self.locks.lock_owner(ino, lock.flock, lock.owner).await;
        let (sender, receiver) = oneshot();
        let core = self.clone();
        self.env.spawn(async move {
            let _owner_lock = owner_lock;
            let lock = wire(lock);
            let undo = core.locks.plan_undo(ino, &lock);
            let op = Op::Lock { ino, lock: lock.clone(), wait };
            let result = core.send_lock_ops(vec![op]).await;
            if !sender.is_closed() {
                return sender.send(result);
            }
            match result {
                Ok(()) if planted(Bug::LockKeptByNobody) => {}
                Ok(()) => core.undo_lock(ino, &lock, undo).await,
                Err(Fault::WouldBlock) if wait => {
                    let _ = core.send_lock_ops(vec![Op::CancelLock { ino, lock }]).await;
                }
                Err(_) => {}
            }
        });
        receiver.await.unwrap_or(Err(Fault::Interrupted))
    }

    async fn undo_lock(&self, ino: Ino, lock: &Lock, undo: LockUndo) {
        let undo = self.locks.undo(ino, undo);
        let free = undo.free.into_iter().map(|lock| Op::Unlock { ino, lock });
        let restore = undo.restore.into_iter().map(|lock| Op::Lock { ino, lock, wait: false });
        let mut ops: Vec<Op> = free.chain(restore).collect();
        while !ops.is_empty() {
            let tail = ops.split_off(ops.len().min(COMPOUND_OPS_MAX));
            let _ = self.send_lock_ops(std::mem::replace(&mut ops, tail)).await;
        }
        self.locks.undo_done(ino, lock.flock, lock.owner);
    }

    /// Frees a range of an owner.
    pub async fn unlock(&self, ino: Ino, lock: LockRequest) -> Result<(), Fault> {
        let _owner_lock = self.locks.lock_owner(ino, lock.flock, lock.owner).await;
        let lock = wire(lock);
        match self.send_lock_ops(vec![Op::Unlock { ino, lock: lock.clone() }]).await {
            // It is free, or was lost with the session of the request.
            Ok(()) | Err(Fault::Evicted) => {
                self.locks.released(ino, &lock);
                Ok(())
            }
            other => other,
        }
    }

    async fn send_lock_ops(&self, ops: Vec<Op>) -> Result<(), Fault> {
        let reply = self.rpc.call(Call::ops(&Caller::default(), ops)).await?;
        done(&reply)
    }
}
