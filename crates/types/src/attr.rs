//! The attributes of an inode, as `stat` reports them.

use crate::{Ino, Timestamp};

/// The type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A character device.
    CharDevice = 4,
    /// A block device.
    BlockDevice = 5,
    /// A named pipe.
    Fifo = 6,
    /// A socket.
    Socket = 7,
}

impl FileKind {
    /// The kind with this number on disk and on the wire.
    pub fn from_u8(value: u8) -> Option<FileKind> {
        Some(match value {
            1 => FileKind::Regular,
            2 => FileKind::Directory,
            3 => FileKind::Symlink,
            4 => FileKind::CharDevice,
            5 => FileKind::BlockDevice,
            6 => FileKind::Fifo,
            7 => FileKind::Socket,
            _ => return None,
        })
    }

    /// The `S_IFMT` bits of `st_mode`.
    pub fn mode_bits(self) -> u32 {
        match self {
            FileKind::Regular => 0o100000,
            FileKind::Directory => 0o040000,
            FileKind::Symlink => 0o120000,
            FileKind::CharDevice => 0o020000,
            FileKind::BlockDevice => 0o060000,
            FileKind::Fifo => 0o010000,
            FileKind::Socket => 0o140000,
        }
    }

    /// The kind named by the `S_IFMT` bits of `mode`.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & 0o170000 {
            0o100000 => FileKind::Regular,
            0o040000 => FileKind::Directory,
            0o120000 => FileKind::Symlink,
            0o020000 => FileKind::CharDevice,
            0o060000 => FileKind::BlockDevice,
            0o010000 => FileKind::Fifo,
            0o140000 => FileKind::Socket,
            _ => return None,
        })
    }
}

/// Attributes of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Type.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits (12 bits).
    pub mode: u16,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, as the kernel encodes it.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated data blocks of 4 KiB.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the content.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
    /// Of a directory: new files in it are spread over the metadata servers by their names.
    pub spread: bool,
    /// Every change that the server applies to the inode raises it: of two replies about one
    /// inode, the one with the higher version is newer, whichever arrives first.
    pub version: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_kinds_survive_both_encodings() {
        for value in 0..=255u8 {
            if let Some(kind) = FileKind::from_u8(value) {
                assert_eq!(kind as u8, value);
                assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o644), Some(kind));
            }
        }
        assert_eq!(FileKind::from_mode(0o644), None);
    }
}
