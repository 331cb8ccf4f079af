//! The workload: weighted random operations over a small, contended tree.

use std::cell::Cell;
use std::rc::Rc;

use client::OpenFlags;
use env::sim::SimRng;
use types::{Duration, Fault, FileKind, Ino};

use crate::call::{At, LOCK_UNITS, NAMES, NameNo};
use crate::model::SET_GID;
use crate::mount::{Mount, OpenFile, Target};
use crate::script::{Script, ScriptStep, Workload};

/// Most open files of a process.
const FILES_MAX: usize = 3;
/// Owners and groups.
const IDS: u64 = 6;
/// One operation in this many is not in the table. The others draw what they drew before such
/// operations existed.
const EXTRA: u64 = 10;

/// With several shards one operation in this many says where new directories go.
const PLACED: u64 = 12;

/// A process, which runs one operation after another.
pub struct Process {
    pub(crate) mount: Mount,
    pub(crate) number: u64,
    pub(crate) script: Rc<Script>,
    /// Random numbers of the current operation.
    pub(crate) rng: SimRng,
    pub(crate) files: Vec<OpenFile>,
    /// How often it was killed and replaced.
    deaths: u64,
}

/// Distance between the owner numbers of a process and its replacement.
const GENERATION: u64 = 1000;

impl Process {
    /// A process on a mount; `number` identifies it among those of the client.
    pub fn new(mount: Mount, number: u64, script: Rc<Script>) -> Process {
        Process { mount, number, script, rng: SimRng::new(0), files: Vec::new(), deaths: 0 }
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.rng.one_in(n)
    }

    fn name(&mut self) -> NameNo {
        self.rng.between(u64::from(*NAMES.start()), u64::from(*NAMES.end())) as NameNo
    }

    /// Runs the kept ones of the first `operations` of its script, from `next` on, then closes its
    /// files.
    pub async fn run(&mut self, operations: u64, next: &Cell<u32>) {
        let (client, process) = (self.mount.slot as u32, self.number as u32);
        while next.get() < operations as u32 {
            let index = next.replace(next.get() + 1);
            let step = ScriptStep::Operation { client, process, index };
            if !self.script.takes(step) {
                continue;
            }
            self.rng = self.script.rng(step);
            self.mount.next_operation();
            // Failures are in the history, which the judge checks.
            let _ = self.operation().await;
            if self.mount.is_dead() {
                self.end().await;
                self.deaths += 1;
                self.mount = self.mount.of_process(self.owner());
            }
            if self.one_in(8) {
                let pause = self.rng.below(2000);
                self.mount.env.sleep(Duration::from_micros(pause)).await;
            }
            if !self.script.spacing.is_zero() {
                let pause = self.script.pause(1, &mut self.rng);
                self.mount.env.sleep(pause).await;
            }
        }
        self.end().await;
        self.mount.abandoned_requests_ended().await;
    }

    /// The kernel closes the open files of a process that ends.
    async fn end(&mut self) {
        for file in std::mem::take(&mut self.files) {
            self.mount.close(file, self.owner()).await;
        }
    }

    /// Its number as a lock owner.
    fn owner(&self) -> u64 {
        self.number + GENERATION * self.deaths
    }

    /// A directory, mostly near the root.
    async fn dir(&mut self) -> Result<Ino, Fault> {
        let mut dir = Ino::ROOT;
        while !self.one_in(3) {
            let name = self.name();
            match self.mount.lookup(At { dir, name }).await? {
                Some(Target { ino, kind: FileKind::Directory }) => dir = ino,
                _ => break,
            }
        }
        Ok(dir)
    }

    async fn any_place(&mut self) -> Result<At, Fault> {
        let dir = self.dir().await?;
        Ok(At { dir, name: self.name() })
    }

    /// An existing inode.
    async fn find_existing(&mut self, kind: Option<FileKind>) -> Result<Option<Target>, Fault> {
        for _ in 0..3 {
            let at = self.any_place().await?;
            let found = self.mount.lookup(at).await?;
            if let Some(found) = found.filter(|found| kind.is_none_or(|kind| found.kind == kind)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn operation(&mut self) -> Result<(), Fault> {
        if self.script.workload == Workload::Fields {
            return self.use_fields().await;
        }
        if self.script.extra_operations && self.one_in(EXTRA) {
            return self.extra_operations().await;
        }
        if self.script.shards > 1 && self.one_in(PLACED) {
            return self.place().await;
        }
        match self.script.workload.roll(&mut self.rng) {
            0..8 => self.make().await,
            8..16 => self.create().await,
            16..24 => {
                let at = self.any_place().await?;
                self.mount.unlink(at).await
            }
            24..28 => {
                let at = self.any_place().await?;
                self.mount.rmdir(at).await
            }
            28..36 => self.rename().await,
            36..40 => self.link().await,
            40..46 => {
                let dir = self.dir().await?;
                let (plus, small) = (self.one_in(2), self.one_in(3));
                self.mount.list(dir, plus, if small { 400 } else { 4096 }).await
            }
            46..52 => match self.find_existing(None).await? {
                Some(found) => self.mount.getattr(found.ino).await.map(|_| ()),
                None => Ok(()),
            },
            52..56 => self.attributes().await,
            56..62 => self.open().await,
            62..64 => self.forget(),
            _ => self.content().await,
        }
    }

    /// New directories in this one go to another shard from here on, or to all in turn, or stay. In
    /// half of the cases its new files are spread.
    async fn place(&mut self) -> Result<(), Fault> {
        let dir = self.dir().await?;
        let layout = match self.rng.below(6) {
            0 => "mds=parent".to_owned(),
            1 | 2 => format!("mds={}", self.rng.below(self.script.shards as u64)),
            _ => "mds=spread".to_owned(),
        };
        let spread = ["", " spread=on", " spread=on", " spread=off"];
        let spread = spread[self.rng.below(4) as usize];
        self.mount.set_home(dir, &format!("{layout}{spread}")).await;
        Ok(())
    }

    async fn make(&mut self) -> Result<(), Fault> {
        let at = self.any_place().await?;
        let kind = match self.rng.below(8) {
            0..4 => FileKind::Directory,
            4..7 => FileKind::Regular,
            _ => return self.mount.symlink(at, !self.script.extra_operations).await.map(|_| ()),
        };
        self.mount.make(at, kind).await.map(|_| ())
    }

    fn flags(&mut self) -> u32 {
        match self.rng.below(6) {
            0 => 0,
            1 => OpenFlags::WRITE_ONLY,
            3 => OpenFlags::READ_WRITE | OpenFlags::DSYNC,
            2 => OpenFlags::WRITE_ONLY | OpenFlags::APPEND,
            _ => OpenFlags::READ_WRITE,
        }
    }

    async fn create(&mut self) -> Result<(), Fault> {
        self.make_room().await?;
        let at = self.any_place().await?;
        let flags = self.flags();
        let file = if self.one_in(10) {
            self.mount.tmpfile(at.dir, OpenFlags::READ_WRITE).await?
        } else {
            let exclusive = self.one_in(2);
            self.mount.create(at, exclusive, flags).await?
        };
        self.files.push(file);
        Ok(())
    }

    async fn open(&mut self) -> Result<(), Fault> {
        self.make_room().await?;
        if let Some(found) = self.find_existing(Some(FileKind::Regular)).await? {
            let flags = self.flags();
            let file = self.mount.open(found.ino, flags).await?;
            self.files.push(file);
        }
        Ok(())
    }

    async fn make_room(&mut self) -> Result<(), Fault> {
        if self.files.len() >= FILES_MAX {
            let file = self.files.remove(0);
            self.mount.close(file, self.owner()).await;
        }
        if self.mount.is_dead() { Err(Fault::Interrupted) } else { Ok(()) }
    }

    async fn rename(&mut self) -> Result<(), Fault> {
        let from = self.any_place().await?;
        let to = if self.one_in(2) {
            At { name: self.name(), ..from }
        } else {
            self.any_place().await?
        };
        let flags = match self.rng.below(8) {
            0 => 1,
            1 => 2,
            _ => 0,
        };
        // The kernel itself answers this.
        if from == to {
            return Ok(());
        }
        self.mount.rename(from, to, flags).await
    }

    async fn link(&mut self) -> Result<(), Fault> {
        let Some(found) = self.find_existing(Some(FileKind::Regular)).await? else { return Ok(()) };
        let at = self.any_place().await?;
        self.mount.link(found.ino, at).await
    }

    async fn attributes(&mut self) -> Result<(), Fault> {
        let Some(found) = self.find_existing(None).await? else { return Ok(()) };
        match self.rng.below(4) {
            0 => {
                let mut mode = 0o400 + self.rng.below(0o400) as u16;
                if found.kind == FileKind::Directory && mode % 2 == 1 {
                    mode |= SET_GID;
                }
                self.mount.chmod(found.ino, mode).await
            }
            1 if found.kind == FileKind::Regular => {
                let value = (!self.one_in(4)).then(|| self.rng.below(1000) as u32);
                self.mount.set_xattr(found.ino, value).await
            }
            2 if found.kind == FileKind::Regular => self.mount.get_xattr(found.ino).await,
            _ if self.script.kills && self.one_in(3) => self.mount.sync_all().await,
            _ => self.mount.fsync_dir(Ino::ROOT).await,
        }
    }

    /// An operation that is not in the table.
    async fn extra_operations(&mut self) -> Result<(), Fault> {
        match self.rng.below(5) {
            0 => {
                let dir = self.dir().await?;
                self.mount.fsync_dir(dir).await
            }
            1 | 2 => self.chown().await,
            3 => self.readlink().await,
            _ => self.directory_xattr().await,
        }
    }

    async fn directory_xattr(&mut self) -> Result<(), Fault> {
        let dir = self.dir().await?;
        if self.one_in(2) {
            return self.mount.get_xattr(dir).await;
        }
        let value = (!self.one_in(4)).then(|| self.rng.below(1000) as u32);
        self.mount.set_xattr(dir, value).await
    }

    /// Symbolic links are few: if none is found, this creates one.
    async fn readlink(&mut self) -> Result<(), Fault> {
        match self.find_existing(Some(FileKind::Symlink)).await? {
            Some(found) => self.mount.readlink(found.ino).await,
            None => {
                let at = self.any_place().await?;
                self.mount.symlink(at, false).await.map(|_| ())
            }
        }
    }

    /// Sets owner, group or both, mostly to values that nothing else has.
    async fn chown(&mut self) -> Result<(), Fault> {
        let Some(found) = self.find_existing(None).await? else { return Ok(()) };
        let which = self.rng.below(3);
        let uid = (which != 0).then(|| self.rng.below(IDS) as u32);
        let gid = (which != 1).then(|| self.rng.below(IDS) as u32);
        self.mount.chown(found.ino, (uid, gid)).await
    }

    /// The kernel is short of memory.
    fn forget(&mut self) -> Result<(), Fault> {
        self.mount.forget();
        Ok(())
    }

    /// Takes a flock or an fcntl lock, perhaps waiting for it, and frees it later, in parts or as a
    /// whole. An owner that dies frees its locks; live owners free them here.
    async fn hold_lock(&mut self, file: OpenFile) -> Result<(), Fault> {
        let exclusive = Some(!self.one_in(3));
        let first = self.rng.below(u64::from(LOCK_UNITS)) as u8;
        let end = self.rng.between(u64::from(first) + 1, u64::from(LOCK_UNITS)) as u8;
        let range = (!self.one_in(3)).then_some((first, end));
        let wait = self.one_in(2);
        self.mount.lock_file(file, self.owner(), (range, exclusive), wait).await?;
        // Some outlast a restart of the server.
        let most = [300, 3_000, 30_000, 300_000, 3_000_000][self.rng.below(5) as usize];
        self.mount.env.sleep(Duration::from_micros(self.rng.below(most))).await;
        if let Some((first, end)) = range.filter(|(first, end)| first + 1 < *end)
            && self.one_in(2)
        {
            let part = Some((first, end - 1));
            self.mount.lock_file(file, self.owner(), (part, None), false).await?;
        }
        self.mount.lock_file(file, self.owner(), (range, None), false).await
    }

    /// Locks the one file that all processes lock.
    async fn contend(&mut self) -> Result<(), Fault> {
        let at = At { dir: Ino::ROOT, name: *NAMES.start() };
        let flags = OpenFlags::READ_WRITE;
        let file = self.mount.create(at, false, flags).await?;
        let held = self.hold_lock(file).await;
        self.mount.close(file, self.owner()).await;
        held
    }

    /// Stores into a mapping; the kernel writes it back later, or when it must.
    async fn store(&mut self, file: OpenFile, offset: u64, len: u32) -> Result<(), Fault> {
        self.mount.store(file, offset, len).await;
        if self.one_in(2) {
            self.mount.write_back_later(file);
        }
        Ok(())
    }

    fn range(&mut self) -> (u64, u32) {
        let len = match self.rng.below(4) {
            0 => self.rng.between(1, 100),
            1 => 4096,
            2 => self.rng.between(1, 5000),
            _ => self.rng.between(4096, 20_000),
        };
        let offset = match self.rng.below(3) {
            0 => 0,
            1 => 4096 * self.rng.below(6),
            _ => self.rng.below(24_000),
        };
        (offset, len as u32)
    }

    async fn content(&mut self) -> Result<(), Fault> {
        if self.files.is_empty() {
            return self.open().await;
        }
        let file = self.files[self.rng.below(self.files.len() as u64) as usize];
        let writes = file.flags.writes();
        let reads = file.flags.0 & OpenFlags::ACCESS != OpenFlags::WRITE_ONLY;
        let (offset, len) = self.range();
        let often = if self.script.workload == Workload::Content { 2 } else { 6 };
        if file.maps_writable() && self.script.maps && self.one_in(often) {
            return self.store(file, offset, len).await;
        }
        match self.rng.below(20) {
            0..6 if reads => self.mount.read(file, offset, len.max(3000)).await,
            6..12 if writes => self.mount.write(file, Some(offset), len).await,
            12..14 if writes => self.mount.truncate(file.ino, offset, Some(file.handle)).await,
            14 if writes => {
                let mode = [0, 1, 3, 16, 17][self.rng.below(5) as usize];
                self.mount.fallocate(file, mode, offset, u64::from(len)).await
            }
            15 | 16 => {
                let datasync = self.one_in(2);
                self.mount.fsync(file, datasync).await
            }
            17 => self.mount.getattr(file.ino).await.map(|_| ()),
            18 if self.one_in(2) => self.contend().await,
            18 => self.hold_lock(file).await,
            _ => {
                let at = self.files.iter().position(|other| other.handle == file.handle);
                if let Some(at) = at {
                    self.files.remove(at);
                    self.mount.close(file, self.owner()).await;
                }
                Ok(())
            }
        }
    }
}
