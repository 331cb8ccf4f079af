//! The kernel's FUSE interface, version 7.45: numbers, flags and structures.
//!
//! Invariants:
//! - every structure has the kernel's layout: all fields are integers, in the
//!   kernel's order, native byte order, without padding the compiler added
//!   (const assertions compare each size with the one of `linux/fuse.h`);
//! - reading is total: too few bytes give `None`, never a panic.

/// Reads structures from the bytes of a request.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// The next `N` bytes.
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*head)
    }

    /// The next structure.
    pub fn take<T: Abi>(&mut self) -> Option<T> {
        T::read(self)
    }

    /// The bytes up to the next NUL, which is skipped.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let end = self.bytes.iter().position(|&b| b == 0)?;
        let (string, rest) = self.bytes.split_at(end);
        self.bytes = rest.get(1..)?;
        Some(string)
    }

    /// The next `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(..len)?;
        self.bytes = self.bytes.get(len..)?;
        Some(bytes)
    }

    /// Bytes not read yet.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }
}

/// A destination for structures: a buffer of fixed size, filled from the start.
pub trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A value with the kernel's layout.
pub trait Abi: Sized {
    /// Size in bytes.
    const SIZE: usize;
    /// Reads it; `None` if there are too few bytes.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
    /// Appends it to `sink`.
    fn write<S: Sink>(&self, sink: &mut S);
}

macro_rules! integers {
    ($($int:ty),*) => {
        $(impl Abi for $int {
            const SIZE: usize = size_of::<$int>();
            fn read(reader: &mut Reader<'_>) -> Option<Self> {
                reader.array().map(<$int>::from_ne_bytes)
            }
            fn write<S: Sink>(&self, sink: &mut S) {
                sink.put(&self.to_ne_bytes());
            }
        })*
    };
}

integers!(u16, u32, u64, i32, i64);

impl<T: Abi + Copy + Default, const N: usize> Abi for [T; N] {
    const SIZE: usize = T::SIZE * N;
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut out = [T::default(); N];
        for slot in &mut out {
            *slot = T::read(reader)?;
        }
        Some(out)
    }
    fn write<S: Sink>(&self, sink: &mut S) {
        for value in self {
            value.write(sink);
        }
    }
}

macro_rules! abi {
    ($($(#[$doc:meta])* $name:ident[$size:literal] { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[allow(missing_docs, reason = "the fields are those of linux/fuse.h")]
            #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
            #[repr(C)]
            pub struct $name { $(pub $field: $type,)* }

            impl Abi for $name {
                const SIZE: usize = $size;
                fn read(reader: &mut Reader<'_>) -> Option<Self> {
                    Some($name { $($field: <$type>::read(reader)?,)* })
                }
                fn write<S: Sink>(&self, sink: &mut S) {
                    $(self.$field.write(sink);)*
                }
            }

            const _: () = assert!(size_of::<$name>() == $size);
            const _: () = assert!(0 $(+ <$type as Abi>::SIZE)* == $size, "no padding");
        )*
    };
}

abi! {
    /// `fuse_in_header`: starts every request.
    InHeader[40] { len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16, padding: u16, }
    /// `fuse_out_header`: starts every reply and notification.
    OutHeader[16] { len: u32, error: i32, unique: u64, }
    /// `fuse_attr`.
    FuseAttr[88] {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32,
        rdev: u32, blksize: u32, flags: u32,
    }
    /// `fuse_sx_time`.
    SxTime[16] { seconds: i64, nanos: u32, reserved: i32, }
    /// `fuse_statx`.
    FuseStatx[256] {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: SxTime, btime: SxTime, ctime: SxTime, mtime: SxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    /// `fuse_entry_out`.
    EntryOut[128] {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nsec: u32, attr_valid_nsec: u32, attr: FuseAttr,
    }
    /// `fuse_attr_out`.
    AttrOut[104] { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: FuseAttr, }
    /// `fuse_statx_out`.
    StatxOut[288] { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: FuseStatx, }
    /// `fuse_statx_in`.
    StatxIn[24] { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32, }
    /// `fuse_kstatfs`, which is all of `fuse_statfs_out`.
    Kstatfs[80] {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    }
    /// `fuse_file_lock`.
    FileLock[24] { start: u64, end: u64, kind: u32, pid: u32, }
    /// `fuse_forget_in`.
    ForgetIn[8] { nlookup: u64, }
    /// `fuse_forget_one`.
    ForgetOne[16] { nodeid: u64, nlookup: u64, }
    /// `fuse_batch_forget_in`.
    BatchForgetIn[8] { count: u32, dummy: u32, }
    /// `fuse_getattr_in`.
    GetattrIn[16] { getattr_flags: u32, dummy: u32, fh: u64, }
    /// `fuse_setattr_in`.
    SetattrIn[88] {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    /// `fuse_mknod_in`.
    MknodIn[16] { mode: u32, rdev: u32, umask: u32, padding: u32, }
    /// `fuse_mkdir_in`.
    MkdirIn[8] { mode: u32, umask: u32, }
    /// `fuse_rename_in`.
    RenameIn[8] { newdir: u64, }
    /// `fuse_rename2_in`.
    Rename2In[16] { newdir: u64, flags: u32, padding: u32, }
    /// `fuse_link_in`.
    LinkIn[8] { oldnodeid: u64, }
    /// `fuse_open_in`.
    OpenIn[8] { flags: u32, open_flags: u32, }
    /// `fuse_create_in`.
    CreateIn[16] { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    /// `fuse_open_out`.
    OpenOut[16] { fh: u64, open_flags: u32, backing_id: i32, }
    /// `fuse_release_in`.
    ReleaseIn[24] { fh: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    /// `fuse_flush_in`.
    FlushIn[24] { fh: u64, unused: u32, padding: u32, lock_owner: u64, }
    /// `fuse_read_in`.
    ReadIn[40] { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// `fuse_write_in`.
    WriteIn[40] { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32, }
    /// `fuse_write_out`.
    WriteOut[8] { size: u32, padding: u32, }
    /// `fuse_fsync_in`.
    FsyncIn[16] { fh: u64, fsync_flags: u32, padding: u32, }
    /// `fuse_setxattr_in`, as extended by [`SETXATTR_EXT`].
    SetxattrIn[16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    /// The first half of [`SetxattrIn`]: all there is without [`SETXATTR_EXT`].
    SetxattrCompatIn[8] { size: u32, flags: u32, }
    /// `fuse_getxattr_in`.
    GetxattrIn[8] { size: u32, padding: u32, }
    /// `fuse_getxattr_out`.
    GetxattrOut[8] { size: u32, padding: u32, }
    /// `fuse_lk_in`.
    LkIn[48] { fh: u64, owner: u64, lk: FileLock, lk_flags: u32, padding: u32, }
    /// `fuse_init_in`.
    InitIn[64] { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11], }
    /// `fuse_init_in` before [`INIT_EXT`].
    InitCompatIn[16] { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    /// `fuse_init_out`.
    InitOut[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16, congestion_threshold: u16,
        max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    /// `fuse_interrupt_in`.
    InterruptIn[8] { unique: u64, }
    /// `fuse_fallocate_in`.
    FallocateIn[32] { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    /// `fuse_lseek_in`.
    LseekIn[24] { fh: u64, offset: u64, whence: u32, padding: u32, }
    /// `fuse_lseek_out`.
    LseekOut[8] { offset: u64, }
    /// `fuse_copy_file_range_in`.
    CopyFileRangeIn[56] { fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64, }
    /// `fuse_copy_file_range_out`, the answer to [`Opcode::CopyFileRange64`].
    CopyFileRangeOut[8] { bytes_copied: u64, }
    /// `fuse_dirent` without its name.
    Dirent[24] { ino: u64, off: u64, namelen: u32, kind: u32, }
    /// `fuse_notify_inval_inode_out`.
    NotifyInvalInodeOut[24] { ino: u64, off: i64, len: i64, }
    /// `fuse_notify_inval_entry_out` without its name.
    NotifyInvalEntryOut[16] { parent: u64, namelen: u32, flags: u32, }
    /// `fuse_notify_store_out`.
    NotifyStoreOut[24] { nodeid: u64, offset: u64, size: u32, padding: u32, }
    NotifyRetrieveOut[32] {
        notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32,
    }
    /// `fuse_notify_retrieve_in`: the bytes follow it.
    NotifyRetrieveIn[40] {
        dummy1: u64, offset: u64, size: u32, dummy2: u32, dummy3: u64, dummy4: u64,
    }
    /// `fuse_notify_prune_out` without the inodes that follow it.
    NotifyPruneOut[16] { count: u32, padding: u32, spare: u64, }
}

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        /// The operation that a request asks for.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum Opcode { $($(#[$doc])* $name = $value,)* }

        impl Opcode {
            /// Every opcode known here.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            /// The opcode with this number.
            pub fn from_u32(value: u32) -> Option<Opcode> {
                match value { $($value => Some(Opcode::$name),)* _ => None }
            }

            /// Its name in lower case, as the counters show it.
            pub fn text(self) -> &'static str {
                match self { $(Opcode::$name => $text,)* }
            }
        }
    };
}

opcodes! {
    /// Finds a name.
    Lookup = 1, "lookup";
    /// The kernel drops references to an inode. No reply.
    Forget = 2, "forget";
    /// Attributes.
    Getattr = 3, "getattr";
    /// Changes attributes.
    Setattr = 4, "setattr";
    /// Target of a symbolic link.
    Readlink = 5, "readlink";
    /// Creates a symbolic link.
    Symlink = 6, "symlink";
    /// Creates a file, device, pipe or socket.
    Mknod = 8, "mknod";
    /// Creates a directory.
    Mkdir = 9, "mkdir";
    /// Removes a name.
    Unlink = 10, "unlink";
    /// Removes a directory.
    Rmdir = 11, "rmdir";
    /// Renames.
    Rename = 12, "rename";
    /// A further name.
    Link = 13, "link";
    /// Opens.
    Open = 14, "open";
    /// Reads.
    Read = 15, "read";
    /// Writes.
    Write = 16, "write";
    /// Space.
    Statfs = 17, "statfs";
    /// The last descriptor of an open file was closed.
    Release = 18, "release";
    /// Makes a file durable.
    Fsync = 20, "fsync";
    /// Sets an extended attribute.
    Setxattr = 21, "setxattr";
    /// Reads an extended attribute.
    Getxattr = 22, "getxattr";
    /// Names of the extended attributes.
    Listxattr = 23, "listxattr";
    /// Removes an extended attribute.
    Removexattr = 24, "removexattr";
    /// A descriptor was closed.
    Flush = 25, "flush";
    /// The first request of a mount.
    Init = 26, "init";
    /// Opens a directory.
    Opendir = 27, "opendir";
    /// Reads entries.
    Readdir = 28, "readdir";
    /// Closes a directory.
    Releasedir = 29, "releasedir";
    /// Makes a directory durable.
    Fsyncdir = 30, "fsyncdir";
    /// Tests a lock.
    Getlk = 31, "getlk";
    /// Takes or releases a lock.
    Setlk = 32, "setlk";
    /// Takes a lock, waiting.
    Setlkw = 33, "setlkw";
    /// Checks permission; never sent with default_permissions.
    Access = 34, "access";
    /// Creates and opens a file.
    Create = 35, "create";
    /// The caller of another request got a signal. No reply.
    Interrupt = 36, "interrupt";
    /// Block of a file; only for file systems on a block device.
    Bmap = 37, "bmap";
    /// The mount ends.
    Destroy = 38, "destroy";
    /// Device control.
    Ioctl = 39, "ioctl";
    /// Readiness.
    Poll = 40, "poll";
    /// Answer to a retrieve notification.
    NotifyReply = 41, "notify_reply";
    /// Several forgets at once. No reply.
    BatchForget = 42, "batch_forget";
    /// Allocates, punches, zeroes.
    Fallocate = 43, "fallocate";
    /// Reads entries with their attributes.
    Readdirplus = 44, "readdirplus";
    /// Renames, with flags.
    Rename2 = 45, "rename2";
    /// Finds data or holes.
    Lseek = 46, "lseek";
    /// Copies inside the file system.
    CopyFileRange = 47, "copy_file_range";
    /// Maps a DAX window; never negotiated.
    Setupmapping = 48, "setupmapping";
    /// Unmaps it.
    Removemapping = 49, "removemapping";
    /// Makes everything durable.
    Syncfs = 50, "syncfs";
    /// Creates and opens a file without a name (O_TMPFILE).
    Tmpfile = 51, "tmpfile";
    /// Attributes, including the birth time.
    Statx = 52, "statx";
    /// Copies; the reply has a length of 64 bits.
    CopyFileRange64 = 53, "copy_file_range_64";
}

/// Major version of the interface.
pub const KERNEL_VERSION: u32 = 7;
/// Minor version that this code speaks.
pub const KERNEL_MINOR: u32 = 45;
/// Oldest supported minor version (Linux 5.4); later features are optional.
pub const KERNEL_MINOR_MIN: u32 = 31;

// Flags of INIT; those from bit 32 travel in `flags2`.
/// Reads of one file may run concurrently.
pub const ASYNC_READ: u64 = 1 << 0;
/// This file system handles fcntl locks.
pub const POSIX_LOCKS: u64 = 1 << 1;
/// Writes larger than a page.
pub const BIG_WRITES: u64 = 1 << 5;
/// The kernel passes the umask and does not apply it.
pub const DONT_MASK: u64 = 1 << 6;
/// This file system handles flock locks.
pub const FLOCK_LOCKS: u64 = 1 << 10;
/// The kernel drops cached data when size or mtime changed.
pub const AUTO_INVAL_DATA: u64 = 1 << 12;
/// READDIRPLUS is understood.
pub const DO_READDIRPLUS: u64 = 1 << 13;
/// The kernel chooses between READDIR and READDIRPLUS.
pub const READDIRPLUS_AUTO: u64 = 1 << 14;
/// Direct I/O is submitted asynchronously.
pub const ASYNC_DIO: u64 = 1 << 15;
/// Lookups and readdirs of one directory may run concurrently.
pub const PARALLEL_DIROPS: u64 = 1 << 18;
/// The kernel checks POSIX ACLs.
pub const POSIX_ACL: u64 = 1 << 20;
/// `max_pages` of the reply is valid.
pub const MAX_PAGES: u64 = 1 << 22;
/// The kernel caches targets of symbolic links.
pub const CACHE_SYMLINKS: u64 = 1 << 23;
/// The kernel drops cached data only on notification.
pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
/// This file system clears set-id bits when the request says so.
pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
/// SETXATTR has its long form.
pub const SETXATTR_EXT: u64 = 1 << 29;
/// `flags2` is valid.
pub const INIT_EXT: u64 = 1 << 30;
/// Shared mappings of files that are open with [`FOPEN_DIRECT_IO`].
pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
/// Mounts may map ids: on all mounts, requests that create nothing name no caller ([`INVALID_ID`]).
pub const ALLOW_IDMAP: u64 = 1 << 40;
/// The user or group of a caller that the request does not name.
pub const INVALID_ID: u32 = u32::MAX;
/// Requests may travel over io_uring.
pub const OVER_IO_URING: u64 = 1 << 41;

/// Reads and writes bypass the page cache.
pub const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// The page cache stays valid.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// Direct writes of one file may run concurrently.
pub const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

/// `fuse_setattr_in.valid`: mode.
pub const FATTR_MODE: u32 = 1 << 0;
/// `fuse_setattr_in.valid`: owner.
pub const FATTR_UID: u32 = 1 << 1;
/// `fuse_setattr_in.valid`: group.
pub const FATTR_GID: u32 = 1 << 2;
/// `fuse_setattr_in.valid`: size.
pub const FATTR_SIZE: u32 = 1 << 3;
/// `fuse_setattr_in.valid`: access time.
pub const FATTR_ATIME: u32 = 1 << 4;
/// `fuse_setattr_in.valid`: modification time.
pub const FATTR_MTIME: u32 = 1 << 5;
/// `fuse_setattr_in.valid`: the handle is valid.
pub const FATTR_FH: u32 = 1 << 6;
/// `fuse_setattr_in.valid`: access time is now.
pub const FATTR_ATIME_NOW: u32 = 1 << 7;
/// `fuse_setattr_in.valid`: modification time is now.
pub const FATTR_MTIME_NOW: u32 = 1 << 8;
/// `fuse_setattr_in.valid`: clear set-id bits.
pub const FATTR_KILL_SUIDGID: u32 = 1 << 11;

/// `fuse_getattr_in`: the handle is valid.
pub const GETATTR_FH: u32 = 1 << 0;
/// `fuse_lk_in`: a flock lock.
pub const LK_FLOCK: u32 = 1 << 0;
/// `fuse_write_in`: write-back of the page cache; the handle is a guess.
pub const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in`: clear set-id bits.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_read_in`: the lock owner is valid: the read serves a system call.
/// Without it, the read fills pages.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `fuse_release_in`: flock locks of the owner end.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `fuse_fsync_in`: data only.
pub const FSYNC_FDATASYNC: u32 = 1 << 0;
/// `fuse_open_in`, `fuse_create_in`: clear set-id bits.
pub const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `fuse_setxattr_in`: an access ACL clears the set-group-id bit.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;

/// Notification: cached pages and attributes of an inode are invalid.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Notification: a cached name is invalid.
pub const NOTIFY_INVAL_ENTRY: i32 = 3;
/// Notification: bytes of a file; they raise the kernel's size of the file if they lie beyond it.
pub const NOTIFY_STORE: i32 = 4;
/// Notification: the kernel reports what its pages of a file hold. Its answer is a request.
pub const NOTIFY_RETRIEVE: i32 = 5;
/// Notification: all cached names are invalid (from minor version 44).
pub const NOTIFY_INC_EPOCH: i32 = 8;
/// First minor version with [`NOTIFY_INC_EPOCH`].
pub const MINOR_INC_EPOCH: u32 = 44;
/// Notification: the kernel should drop unused names of these inodes (from minor version 45).
pub const NOTIFY_PRUNE: i32 = 9;
/// First minor version with [`NOTIFY_PRUNE`].
pub const MINOR_PRUNE: u32 = 45;

/// `STATX_BASIC_STATS | STATX_BTIME`: the fields that a `FuseStatx` of ours contains.
pub const STATX_MASK: u32 = 0x7ff | 0x800;

/// Directory records are padded to a multiple of this.
pub const DIRENT_ALIGN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abi_structures_survive_writing_and_reading() {
        let lock = LkIn {
            fh: 1,
            owner: u64::MAX,
            lk: FileLock { start: 3, end: 4, kind: 1, pid: 77 },
            lk_flags: LK_FLOCK,
            padding: 0,
        };
        let mut bytes = Vec::new();
        lock.write(&mut bytes);
        assert_eq!(bytes.len(), LkIn::SIZE);
        assert_eq!(Reader::new(&bytes).take::<LkIn>(), Some(lock));
        assert_eq!(Reader::new(&bytes[..47]).take::<LkIn>(), None);
    }

    #[test]
    fn opcode_is_found_by_its_number() {
        for &opcode in Opcode::ALL {
            assert_eq!(Opcode::from_u32(opcode as u32), Some(opcode));
        }
        assert_eq!(Opcode::from_u32(0), None);
        assert_eq!(Opcode::from_u32(4096), None);
    }

    #[test]
    fn string_without_nul_is_not_read() {
        let mut reader = Reader::new(b"ab\0cd");
        assert_eq!(reader.string(), Some(&b"ab"[..]));
        assert_eq!(reader.string(), None);
        assert_eq!(reader.left(), 2);
    }
}
