//! A client that moves files between placement pools, for `redbud migrate`: it needs no mount.
//!
//! A *placement pool* is what a layout names: the blocks of data zones, or objects at targets. The
//! content is copied to a *spare*, a new file without a name that has the wanted layout. When the
//! copy is stable, both files exchange their layouts in one transaction ([`Op::SwapLayouts`]).
//!
//! Invariants:
//! - the copy counts only if a right on the content was held from its first read to the exchange:
//!   nobody has changed the file in between. A copy that lost the right begins again;
//! - the exchange is sent under `DATA_X` of both, when nothing of the spare is dirty, in flight,
//!   or not yet stable. No hole behind its size is on the way to a target, either: that would fall
//!   on what others write into the file later;
//! - the spare is durable before anything is written there: a server that lost it would not know
//!   that its object is there, if the mover died, too;
//! - a spare that has lost a byte is given up: a flush tells of each loss only once;
//! - nobody else knows the spare, so waiting for a right on it makes nobody wait. It is the only
//!   right that is waited for under a guard of another file;
//! - while the file is kept from its users, a device of the new place that does not answer is
//!   waited for [`PATIENCE`] at most. Then the file stays, and its users have it.
//!
//! | the mover, or its server, dies … | the file | the spare |
//! |---|---|---|
//! | before the spare is made | is as before | – |
//! | during the copy, or before the exchange arrives | is as before | an orphan: its blocks are freed, or its object is doomed, when its client is evicted, or after the grace |
//! | after the exchange, before it is durable, and the server dies, too | is as before, by the redone log; a mover that lives replays the exchange | as above |
//! | after the exchange is durable | lies in the new place | an orphan with the old place: its blocks are freed, or its object is doomed, as above |
//! | when the spare is being freed | lies in the new place | is freed in steps, which go on after a restart |

use std::cell::RefCell;
use std::rc::Rc;

use env::sync::first;
use proto::mds::{Op, OpReply};
use proto::placement::{ATTRIBUTE, Layout, Policy};
use proto::prealloc::Stream;
use types::limits::{IO_MAX, XATTR_TOTAL_MAX};
use types::{Bug, Duration, Fault, Ino, Rights, planted};

use crate::api::{Caller, Handle, OpenFlags, ReadData, Whence};
use crate::boundary::{DataHalf, FileContent, Lies};
use crate::client::Client;
use crate::data_lease::{IoGuard, Service};
use crate::inode::Inode;
use crate::rpc::result;

/// So many copies leave the file to writers between their steps; the next one keeps them out.
const POLITE: u32 = 2;
/// How long a device of the new place may be silent while the file is kept from its users.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause before an exchange is tried again that an evicted client's quarantine delays.
const RETRY: Duration = Duration::from_millis(500);

/// A move of one file to a pool.
pub struct Migration {
    ino: Ino,
    to: Layout,
    /// Any file of the pool is in the right place, whatever its layout says else.
    any: bool,
    /// Both are open meanwhile, so that what is removed stays until the move is over.
    source: Option<Handle>,
    spare: Option<Handle>,
    copy: Option<Copying>,
    /// Copies that a writer has ended.
    failed: u32,
    /// It lies in an object.
    from_object: bool,
    /// The device of the new place that did not answer.
    silent: Option<String>,
}

/// A copy that is under way.
struct Copying {
    /// [`FileContent::generation`] at its begin.
    generation: u64,
    /// Byte where the next step begins.
    next: u64,
    /// Everything is copied.
    ended: bool,
    /// Keeps writers out. No further guard of the file is asked for meanwhile: a recall that
    /// waits for this one blocks new requests.
    held: Option<IoGuard>,
}

/// What a step of a move has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MigrateStep {
    /// The file lies where it should: nothing is to be done.
    There,
    /// So many bytes were copied.
    Copied(u64),
    /// A writer had the file: the copy begins again.
    Again,
    /// An evicted client may still write the file: the next step tries again.
    Waits,
    /// The file lies in the pool, durably.
    Moved,
}

impl Migration {
    /// The file `ino` is to get the layout `to`. `any`: only blocks or objects matter, so a file
    /// of that kind stays where it is.
    pub fn new(ino: Ino, to: Layout, any: bool) -> Migration {
        Migration {
            ino,
            to,
            any,
            source: None,
            spare: None,
            copy: None,
            failed: 0,
            from_object: false,
            silent: None,
        }
    }

    /// The path of the device or target that did not answer, if the move has ended for that.
    pub fn silent(&self) -> Option<&str> {
        self.silent.as_deref()
    }

    /// Do the file's blocks, as `stat` counts them, include holes, which are not copied? They do
    /// if it lies in an object. Known from the first [`MigrateStep::Copied`] on.
    pub fn counts_holes(&self) -> bool {
        self.from_object
    }

    /// Is a file that lies so in the right place?
    fn is_there(&self, lies: &Lies) -> bool {
        let wants_object = matches!(self.to.policy, Policy::Objects { .. });
        if wants_object != lies.object.is_some() {
            return false;
        }
        match (&lies.object, self.to.policy) {
            _ if self.any => true,
            (Some((part, targets)), Policy::Objects { part: wanted, width }) => {
                let allowed = &self.to.zones;
                let all = targets.iter().all(|target| allowed.contains(target));
                *part == wanted
                    && targets.len() == usize::from(width.max(1))
                    && (allowed.is_empty() || all)
            }
            _ => Layout::from_attribute(&lies.placement).is_ok_and(|layout| layout == self.to),
        }
    }

    /// The text of the layout; empty: the default.
    fn placement(&self) -> Vec<u8> {
        match self.to == Layout::default() {
            true => Vec::new(),
            false => self.to.to_string().into_bytes(),
        }
    }
}

impl Client {
    /// One step of a move. After [`MigrateStep::There`] or [`MigrateStep::Moved`] there is none.
    /// Other clients that want the file get it between two steps, up to the third copy.
    ///
    /// # Errors
    /// `NoSpace`: the pool has no room. `TooBig`: the file has too many segments, or no room for
    /// the attribute that names the layout. `Unsupported`:
    /// the server is of an older release. `IsDirectory`, `NotSupported`: it is no regular file.
    /// `Stale`: it is gone. `Io`: also if [`Migration::silent`] names a device. The file is as
    /// before in all cases.
    pub async fn migrate_step(&self, move_: &mut Migration) -> Result<MigrateStep, Fault> {
        let core = &self.core;
        let inode = match move_.source {
            Some(source) => core.handles.file(source)?.inode.clone(),
            None => {
                let read = OpenFlags(0);
                let opened = self.open(&Caller::default(), move_.ino, read).await?;
                move_.source = Some(opened.handle);
                core.handles.file(opened.handle)?.inode.clone()
            }
        };
        let Some(spare) = move_.spare else {
            if self.is_there(&inode, move_).await? {
                return Ok(MigrateStep::There);
            }
            self.check_attributes(move_).await?;
            move_.spare = Some(self.spare(move_.ino, move_.placement()).await?);
            core.rpc.of(move_.ino).sync().await?;
            return Ok(MigrateStep::Copied(0));
        };
        let Some(copy) = &mut move_.copy else {
            // Who ended the last copy may have moved the file.
            if move_.failed > 0 && self.is_there(&inode, move_).await? {
                self.end_migration(move_).await;
                return Ok(MigrateStep::There);
            }
            move_.copy = Some(self.begin_copy(&inode, spare, move_.failed).await?);
            return Ok(MigrateStep::Copied(0));
        };
        let done = match copy.ended {
            false => self.copy_step(&inode, spare, copy).await,
            true => self.exchange(&inode, spare, copy).await,
        };
        let step = match done {
            Ok(step) => step,
            Err(Stays::Fault(fault)) => return Err(fault),
            Err(Stays::Silent(path)) => {
                // Its users wait no longer.
                (move_.copy, move_.silent) = (None, Some(path));
                return Err(Fault::Io);
            }
        };
        match step {
            MigrateStep::Again => {
                move_.failed += 1;
                move_.copy = None;
            }
            // The old place is given up at once.
            MigrateStep::Moved => self.end_migration(move_).await,
            MigrateStep::Waits => core.env.sleep(RETRY).await,
            MigrateStep::Copied(_) | MigrateStep::There => {}
        }
        Ok(step)
    }

    /// `TooBig` if the file's extended attributes leave no room for that of the new layout.
    async fn check_attributes(&self, move_: &Migration) -> Result<(), Fault> {
        let mut sum = match move_.placement() {
            layout if layout.is_empty() => return Ok(()),
            layout => ATTRIBUTE.len() + layout.len(),
        };
        let names = self.listxattr(move_.ino).await?;
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            match self.getxattr(move_.ino, name).await {
                Ok(value) => sum += name.len() + value.len(),
                // It was removed meanwhile.
                Err(Fault::NoAttribute) => {}
                Err(fault) => return Err(fault),
            }
        }
        if sum > XATTR_TOTAL_MAX { Err(Fault::TooBig) } else { Ok(()) }
    }

    /// Does the file lie where it should?
    async fn is_there(&self, inode: &Rc<Inode>, move_: &mut Migration) -> Result<bool, Fault> {
        let read = Rights::DATA_S;
        let guard = self.core.acquire_io(inode, read, Service::Plain, (0, 0)).await?;
        let lies = guard.file().lies();
        move_.from_object = lies.object.is_some();
        Ok(move_.is_there(&lies))
    }

    /// Begins a copy; the `failed` ones before left something in the spare.
    async fn begin_copy(
        &self,
        inode: &Rc<Inode>,
        spare: Handle,
        failed: u32,
    ) -> Result<Copying, Fault> {
        let core = &self.core;
        if failed > 0 {
            let spare = core.handles.file(spare)?.inode.clone();
            let guard = core.acquire_io(&spare, Rights::DATA_X, Service::Plain, (0, 0)).await?;
            guard.file().set_size(0).await?;
            guard.file().flush().await?;
        }
        let keeps = failed >= POLITE;
        let need = if keeps { Rights::DATA_X } else { Rights::DATA_S };
        let guard = core.acquire_io(inode, need, Service::Plain, (0, 0)).await?;
        let generation = guard.file().generation();
        let held = keeps.then_some(guard);
        Ok(Copying { generation, next: 0, ended: false, held })
    }

    /// Copies the next bytes that are no hole.
    async fn copy_step(
        &self,
        inode: &Rc<Inode>,
        spare: Handle,
        copy: &mut Copying,
    ) -> Result<MigrateStep, Stays> {
        let core = &self.core;
        let guard = match &copy.held {
            Some(_) => None,
            None => Some(core.acquire_io(inode, Rights::DATA_S, Service::Plain, (0, 0)).await?),
        };
        let Some(file) = guard.as_ref().or(copy.held.as_ref()).map(|guard| guard.file().clone())
        else {
            return Ok(MigrateStep::Again);
        };
        if file.generation() != copy.generation {
            return Ok(MigrateStep::Again);
        }
        let at = match file.seek(copy.next, Whence::Data).await {
            Ok(at) => at,
            Err(Fault::NoData) => {
                copy.ended = true;
                return Ok(MigrateStep::Copied(0));
            }
            Err(fault) => return Err(fault.into()),
        };
        let hole = file.seek(at, Whence::Hole).await?;
        let len = hole.saturating_sub(at).min(IO_MAX as u64);
        let data = file.read(at, len as usize).await?;
        drop(guard);
        let write = self.write_spare(spare, at, &data);
        let spare = core.handles.file(spare)?.inode.clone();
        let written = match copy.held {
            Some(_) => self.unless_silent(&spare, write).await?,
            None => write.await?,
        };
        copy.next = at + written;
        Ok(MigrateStep::Copied(written))
    }

    /// Does `work` on the spare, unless a device where it lies is silent for too long.
    async fn unless_silent<T>(
        &self,
        spare: &Inode,
        work: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Stays> {
        let lies = spare.data_lease().map(|data_lease| data_lease.file.lies());
        let targets = lies.and_then(|lies| lies.object).map(|(_, targets)| targets);
        let (core, path) = (&self.core, RefCell::default());
        let silent = core.data().zone_silent_for(targets.unwrap_or_default(), PATIENCE);
        let ended = first(work, async {
            path.replace(silent.await);
        })
        .await;
        Ok(ended.ok_or(Stays::Silent(path.into_inner()))??)
    }

    /// Writes bytes to the spare. Returns their number.
    async fn write_spare(&self, spare: Handle, at: u64, data: &ReadData) -> Result<u64, Fault> {
        let core = &self.core;
        let len = data.len();
        let mut buffer = core.env.buffer(len);
        let mut end = 0;
        for part in &data.parts {
            let bytes = part.bytes();
            buffer[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        }
        let inode = core.handles.file(spare)?.inode.clone();
        let client = core.rpc.of(inode.ino).client();
        let stream = Stream { client, handle: spare.0, process: 0 };
        let guard = core.acquire_io(&inode, Rights::DATA_X, Service::Plain, (0, 0)).await?;
        let (_, written) = guard.file().write(Some(at), buffer, len, Some(stream)).await?;
        check_not_lost(&guard)?;
        if written as usize == len && len > 0 { Ok(len as u64) } else { Err(Fault::Io) }
    }

    /// Makes the copy stable, and has the two files exchange their layouts.
    async fn exchange(
        &self,
        inode: &Rc<Inode>,
        spare: Handle,
        copy: &mut Copying,
    ) -> Result<MigrateStep, Stays> {
        let core = &self.core;
        let spare = core.handles.file(spare)?.inode.clone();
        let to = core.acquire_io(&spare, Rights::DATA_X, Service::Plain, (0, 0)).await?;
        let from = match copy.held.take() {
            Some(held) => {
                self.unless_silent(&spare, settle(&to)).await?;
                held
            }
            None => {
                // What takes long, as a target that is away does, keeps nobody from the file yet.
                settle(&to).await?;
                core.acquire_io(inode, Rights::DATA_X, Service::Plain, (0, 0)).await?
            }
        };
        if has_changed(&from, copy) {
            return Ok(MigrateStep::Again);
        }
        let ready = async {
            to.file().set_size(from.file().size()).await?;
            settle(&to).await?;
            settle(&from).await
        };
        self.unless_silent(&spare, ready).await?;
        check_not_lost(&to)?;
        if has_changed(&from, copy) {
            return Ok(MigrateStep::Again);
        }
        let op = Op::SwapLayouts { ino: inode.ino, spare: spare.ino };
        let reply = core.send_change(&Caller::default(), op).await?;
        drop((to, from));
        match result(&reply, 0) {
            Ok(OpReply::Attr { .. }) => {}
            Ok(_) => return Err(Fault::Protocol.into()),
            Err(Fault::Busy) => return Ok(MigrateStep::Waits),
            Err(fault) => return Err(fault.into()),
        }
        core.rpc.of(inode.ino).sync().await?;
        Ok(MigrateStep::Moved)
    }

    /// Ends a move, whatever it has done: gives the rights back, and closes both files. The spare
    /// goes, with what it has: in a task of its own if a device is silent, for its blocks are not
    /// free before the writes to them have ended.
    pub async fn end_migration(&self, move_: &mut Migration) {
        move_.copy = None;
        // What this client knows of the layouts may be that of the other file.
        if let Some(spare) = move_.spare.take() {
            match move_.silent {
                Some(_) => {
                    let this = self.clone();
                    self.core.env.spawn(async move { this.close_whole(spare).await });
                }
                None => self.close_whole(spare).await,
            }
        }
        if let Some(source) = move_.source.take() {
            self.close_whole(source).await;
        }
    }

    /// Gives all rights on an open file back, and closes it.
    async fn close_whole(&self, handle: Handle) {
        let Ok(file) = self.core.handles.any_file(handle) else { return };
        if let Some(data_lease) = file.inode.data_lease() {
            // Nobody wants what the spare has lost.
            data_lease.file.acknowledge_loss();
        }
        if !file.inode.is_lost() {
            self.core.give_up_whole(&file.inode).await;
        }
        drop(file);
        self.release(handle, None).await;
    }
}

/// Why a step fails.
enum Stays {
    Fault(Fault),
    /// This device of the new place does not answer.
    Silent(String),
}

impl From<Fault> for Stays {
    fn from(fault: Fault) -> Stays {
        Stays::Fault(fault)
    }
}

/// Makes all of a file stable.
async fn settle(guard: &IoGuard) -> Result<(), Fault> {
    while !guard.file().is_settled() {
        guard.file().flush().await?;
    }
    Ok(())
}

/// Has the file changed since its copy began?
fn has_changed(file: &IoGuard, copy: &Copying) -> bool {
    file.file().generation() != copy.generation && !planted(Bug::StaleCopyExchanged)
}

/// `Io` if the spare has lost anything since it was made.
fn check_not_lost(spare: &IoGuard) -> Result<(), Fault> {
    if spare.file().error_seq() > 0 { Err(Fault::Io) } else { Ok(()) }
}
