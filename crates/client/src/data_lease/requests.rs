//! Requests for the DATA rights of a file, and the requests that wait for them.

use std::rc::Rc;

use proto::mds::{Op, OpReply};
use proto::ranges::HeldRanges;
use proto::wire::Bytes;
use types::limits::{RANGE_BLOCKS_MAX, RANGES_AHEAD_MAX, RANGES_MAX};
use types::{Ahead, BlockRange, Bug, Fault, FileBlock, HeldRange, Rights, planted};

use super::state::State;
use super::{AcquireOutcome, Acquiring, Blocked, DataLease, IoGuard, RETRY, Service, blocks_of};
use crate::api::Caller;
use crate::boundary::{DataHalf, FileContent};
use crate::core::Core;
use crate::inode::{CAPABILITY, Inode, Xattrs};
use crate::ranges::pages_touched;
use crate::rpc::{Call, result};
use crate::waits::Wait;

impl Core {
    /// The kernel drops all pages that bytes `[from, to)` touch. May wait until they are unlocked.
    pub async fn inval_pages(&self, inode: &Inode, (from, to): (u64, u64)) {
        let range = vec![(from, to)];
        let _dropping = inode.data_lease().map(|data| data.pages.dropping(range));
        let len = if to == u64::MAX { 0 } else { to - from };
        self.kernel.inval_pages_outside_recall(inode.ino, from, len).await;
    }

    /// The DATA rights of a regular file, created if there are none.
    pub fn data_lease(&self, inode: &Inode) -> Rc<DataLease> {
        if let Some(data_lease) = inode.data_lease() {
            return data_lease;
        }
        let file = self.data().file(inode.ino, &inode.server_attr());
        let data_lease = Rc::new(DataLease::new(file, inode.server_attr().size));
        inode.set_data_lease(Some(data_lease.clone()));
        data_lease
    }

    /// Waits until a request on bytes `range` may be served under `need` (`DATA_S` or `DATA_X`) on
    /// the whole content.
    pub async fn acquire_io(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        service: Service,
        range: (u64, u64),
    ) -> Result<IoGuard, Fault> {
        self.acquire_guard(inode, need, service, range, true).await
    }

    /// As [`Core::acquire_io`], for a request that bypasses the kernel's pages: a range that covers
    /// `range` is enough.
    pub async fn acquire_range_io(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        range: (u64, u64),
    ) -> Result<IoGuard, Fault> {
        let large = blocks_of(range).len() > RANGE_BLOCKS_MAX / 2;
        self.acquire_guard(inode, need, Service::Plain, range, large).await
    }

    /// For a request that changes content: as [`Core::acquire_io`] under `DATA_X` if `whole`, else
    /// as [`Core::acquire_range_io`]. `security.capability` is gone when this ends. The kernel
    /// removes it only where it knows of it, and it may not know of one that another client set.
    ///
    /// The removal happens while the guard is held. The server executes it at once for a client
    /// that holds the right, so neither a recall nor a folio that the kernel has locked can block
    /// it.
    pub async fn acquire_write_io(
        &self,
        inode: &Rc<Inode>,
        service: Service,
        whole: bool,
        range: (u64, u64),
    ) -> Result<IoGuard, Fault> {
        let guard = if whole {
            self.acquire_io(inode, Rights::DATA_X, service, range).await?
        } else {
            self.acquire_range_io(inode, Rights::DATA_X, range).await?
        };
        let data_lease = &guard.data_lease;
        while !data_lease.state().lacks_capability() {
            if inode.xattrs().excludes(CAPABILITY) {
                data_lease.apply(State::capability_is_absent);
                break;
            }
            self.remove_capability(inode).await?;
            if !data_lease.writes() {
                // The session was lost, and the right with it.
                return Err(Fault::Evicted);
            }
        }
        Ok(guard)
    }

    /// Removes `security.capability` while a guard of a right to write is held.
    async fn remove_capability(&self, inode: &Inode) -> Result<(), Fault> {
        let name = Bytes(CAPABILITY.to_vec());
        let op = Op::RemoveXattr { ino: inode.ino, name };
        let reply = self.rpc.call(Call::reserved(vec![op])).await?;
        match result(&reply, 0) {
            Ok(_) | Err(Fault::NoAttribute) => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    async fn acquire_guard(
        &self,
        inode: &Rc<Inode>,
        need: Rights,
        service: Service,
        range: (u64, u64),
        mut whole: bool,
    ) -> Result<IoGuard, Fault> {
        let data_lease = self.data_lease(inode);
        let writes = need.contains(Rights::DATA_X);
        let part = HeldRange { range: blocks_of(range), exclusive: writes };
        let locked = if service == Service::PageRead { pages_touched(range) } else { (0, 0) };
        let mut blocked = None;
        loop {
            self.wait_for_lease(inode.ino).await?;
            if inode.is_lost() {
                return Err(Fault::Stale);
            }
            let changed = data_lease.changed.notified();
            let refused = service == Service::WriteBack && data_lease.state().is_stale(range);
            if refused && !planted(Bug::StaleWriteBack) {
                // Others may have written the file since. A recall may wait for this answer.
                data_lease.refuse_write_back();
                return Err(Fault::Io);
            }
            if data_lease.is_ready(need) && inode.holds(need) {
                let number = blocked.as_ref().map(|blocked: &Blocked<'_>| blocked.id);
                if data_lease.admits(service, range, number) {
                    data_lease.note(service, range);
                    let now = self.env.now();
                    let mut guard = data_lease.guard_whole(now);
                    if service == Service::PageRead {
                        inode.set_pages(true);
                        data_lease.apply(|state| state.refilled(range));
                        guard.reading = Some(data_lease.pages.read(range, now));
                    }
                    drop(blocked);
                    if writes && data_lease.apply(State::take_tail_unknown) {
                        guard.file().zero_tail().await?;
                    }
                    return Ok(guard);
                }
            } else if !whole && data_lease.covers(part) {
                // Another client may have written beyond the size that is known here.
                if !writes && range.1 > data_lease.file.size() {
                    whole = true;
                    continue;
                }
                if !data_lease.state().blocks(part.range) {
                    drop(blocked);
                    return Ok(data_lease.guard_range(part.range));
                }
            } else if data_lease.may_acquire() {
                drop(changed);
                // Others may ask for the file before the server answers: its folios are locked
                // meanwhile.
                blocked.get_or_insert_with(|| Blocked::new(&data_lease, locked));
                let part = (!whole).then_some(part.range);
                whole |= self.acquire(inode, &data_lease, need, part).await?.uncontended;
                continue;
            }
            blocked.get_or_insert_with(|| Blocked::new(&data_lease, locked));
            self.waits.named(&self.env, Wait::Content(inode.ino), changed).await;
        }
    }

    /// Acquires `OPEN`, and with it `need` on the whole content unless other clients also write the
    /// file. True if several clients write it at this time. While the server recalls rights from
    /// this client it grants nothing; then this asks again. A file that counts as open keeps what
    /// was granted, however often others ask for it, so this ends.
    pub async fn acquire_open(&self, inode: &Rc<Inode>, need: Rights) -> Result<bool, Fault> {
        let data_lease = self.data_lease(inode);
        let writes = need.contains(Rights::DATA_X);
        let part = writes.then(BlockRange::default);
        loop {
            if inode.is_lost() {
                return Err(Fault::Stale);
            }
            let changed = data_lease.changed.notified();
            let has = !writes || inode.holds(need) || data_lease.holds_ranges();
            if inode.holds(Rights::OPEN) && has {
                return Ok(writes && !inode.holds(need));
            }
            if data_lease.may_acquire() {
                drop(changed);
                let outcome = self.acquire(inode, &data_lease, need, part).await?;
                if inode.holds(Rights::OPEN) {
                    return Ok(writes && !outcome.uncontended && !inode.holds(need));
                }
                self.env.sleep(RETRY).await;
                continue;
            }
            self.waits.named(&self.env, Wait::Content(inode.ino), changed).await;
        }
    }

    /// Acquires rights. At most one request at a time for an inode: a DATA right and the layout
    /// must come from the same reply. Without `part` the ranges that are held are given up for the
    /// whole.
    async fn acquire(
        &self,
        inode: &Rc<Inode>,
        data_lease: &Rc<DataLease>,
        need: Rights,
        part: Option<BlockRange>,
    ) -> Result<AcquireOutcome, Fault> {
        let _acquiring = Acquiring::new(data_lease);
        // A client that holds the whole right to read has pages, and gives that right up first.
        let part = part.filter(|_| !inode.holds(Rights::DATA_S));
        let held = data_lease.state().ranges().map_or(0, HeldRanges::len);
        let many = held + RANGES_AHEAD_MAX >= RANGES_MAX;
        let part = part.filter(|_| !many);
        if part.is_none() {
            self.give_up_ranges(inode, data_lease).await;
        }
        if inode.is_lost() {
            return Err(Fault::Stale);
        }
        let ino = inode.ino;
        let rights = need | Rights::ATTR | Rights::OPEN;
        let next = |part: BlockRange| data_lease.apply(|state| state.ahead(part.from.0));
        let ahead = part.map_or_else(Ahead::default, next);
        let from = FileBlock(0);
        let mut ops = vec![Op::Acquire { ino, rights, from, range: part, ahead }];
        // The list of attributes says, before the first write, whether there is a
        // `security.capability`.
        let first = !data_lease.holds_ranges();
        if first && need.contains(Rights::DATA_X) && inode.xattrs() == Xattrs::Unknown {
            ops.push(Op::ListXattr { ino, want: Rights::ATTR });
        }
        let reply = self.rpc.call(Call::ops(&Caller::default(), ops)).await?;
        match result(&reply, 0)? {
            OpReply::Acquired { uncontended: calm, tail_unknown, .. } => {
                data_lease.apply(|state| state.tail_reply(*tail_unknown));
                Ok(AcquireOutcome { uncontended: *calm })
            }
            _ => Err(Fault::Protocol),
        }
    }
}
