//! Identifiers. Each is its own type; the code that knows its meaning does the arithmetic.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A shard: the part of the metadata that one metadata zone holds. Every number of an inode or
    /// a directory names the shard that issued it. A file system with one server has shard 0.
    ShardId(u8)
}
id! {
    /// Inode number: `DirNo` 40 bits, reuse 8 bits, slot 16 bits. Stable for the
    /// file's life, never reused. Its top 8 bits are the shard of birth ([`Ino::shard`]); only
    /// `mfs` interprets the others. 0 means none.
    Ino(u64)
}
id! {
    /// Number of a chunk (at most 65,536 slots) of a directory's content: the shard that issued it,
    /// 8 bits, and its number there, 32 bits.
    DirNo(u64)
}
id! {
    /// Parallel allocation group: one data device, or a slice of one.
    PagId(u16)
}
id! {
    /// Index of a 4 KiB block inside a file.
    FileBlock(u64)
}
id! {
    /// Index of a 4 KiB block inside a PAG (block 0 is the PAG's label).
    PagBlock(u64)
}
id! {
    /// Index of a 4 KiB block of the metadata device.
    MetaBlock(u64)
}
id! {
    /// A count of 4 KiB blocks.
    Blocks(u64)
}
id! {
    /// Every start of a metadata server raises it; it never goes back.
    Epoch(u32)
}
id! {
    /// Position in the log: bytes since mkfs. Only grows.
    Lsn(u64)
}
id! {
    /// A client; a server issues it durably at the client's first hello and never reuses it. It is
    /// unique over all servers: the shard that issued it << 40 | how many it had issued before,
    /// from 1 on. It is below 2^48, so it can be the offset of a byte that the client locks. 0
    /// means none.
    ClientId(u64)
}
id! {
    /// An object of the object targets: content of one file. The metadata server that issued it
    /// never issues it again: its shard, 8 bits, and its number there, 56 bits. 0 means none.
    ObjectId(u64)
}
id! {
    /// A server process of the cluster; 0 is the first metadata server.
    ServerId(u16)
}
id! {
    /// The owner of a POSIX or flock lock, as the client's kernel names it.
    LockOwner(u64)
}

impl Ino {
    /// No inode.
    pub const NONE: Ino = Ino(0);
    /// The root directory of the file system, which is that of shard 0.
    pub const ROOT: Ino = Ino(1);

    /// The shard that issued the number.
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> 56) as u8)
    }
}

impl DirNo {
    /// The `number`-th chunk of `shard`.
    pub fn of(shard: ShardId, number: u32) -> DirNo {
        DirNo(u64::from(shard.0) << 32 | u64::from(number))
    }

    /// The shard that issued the number.
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> 32) as u8)
    }

    /// The number within its shard.
    pub fn number(self) -> u32 {
        self.0 as u32
    }
}

impl ObjectId {
    /// Bits of a number within its shard.
    pub const BITS: u32 = 56;

    /// The `number`-th object of `shard`, below 2^[`ObjectId::BITS`]; number 0 is no object.
    pub fn of(shard: ShardId, number: u64) -> ObjectId {
        ObjectId(u64::from(shard.0) << ObjectId::BITS | number)
    }

    /// The shard that issued the number.
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> ObjectId::BITS) as u8)
    }

    /// The number within its shard.
    pub fn number(self) -> u64 {
        self.0 & ((1 << ObjectId::BITS) - 1)
    }
}

impl ClientId {
    /// No client.
    pub const NONE: ClientId = ClientId(0);
    /// A shard issues fewer numbers than this.
    pub const PER_SHARD: u64 = 1 << 40;

    /// The `count`-th client of `shard`, below [`ClientId::PER_SHARD`].
    pub fn of(shard: ShardId, count: u64) -> ClientId {
        ClientId(u64::from(shard.0) << 40 | count)
    }

    /// The shard that issued the number.
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> 40) as u8)
    }

    /// The number within its shard.
    pub fn count(self) -> u64 {
        self.0 % ClientId::PER_SHARD
    }
}

impl ServerId {
    /// Whichever server it is.
    pub const ANY: ServerId = ServerId(u16::MAX);
}

/// Transaction number: position of an operation's record in its epoch's log.
/// Ordered by epoch, then by LSN. `Transno::ZERO` precedes every operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Transno {
    /// Epoch of the server that applied the operation.
    pub epoch: Epoch,
    /// End of the operation's record in the log.
    pub lsn: Lsn,
}

impl Transno {
    /// Precedes every operation.
    pub const ZERO: Transno = Transno { epoch: Epoch(0), lsn: Lsn(0) };
}

impl fmt::Debug for Transno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch.0, self.lsn.0)
    }
}

impl fmt::Display for Transno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A UUID, as labels and superblocks carry it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl std::str::FromStr for Uuid {
    type Err = String;

    fn from_str(text: &str) -> Result<Uuid, String> {
        let wrong = || format!("`{text}` is no UUID: write 32 hex digits, with or without dashes");
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(|c| *c != '-')
            .map(|c| c.to_digit(16).map(|digit| digit as u8))
            .collect();
        let digits = digits.filter(|digits| digits.len() == 32).ok_or_else(wrong)?;
        let mut uuid = Uuid::default();
        for (byte, pair) in uuid.0.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = pair[0] << 4 | pair[1];
        }
        Ok(uuid)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_reads_what_it_prints() {
        let uuid = Uuid([0, 1, 0x9f, 0xa0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        assert_eq!(uuid.to_string().replace('-', "").to_uppercase().parse(), Ok(uuid));
        for bad in ["", "12", "g0019fa0-0405-0607-0809-0a0b0c0d0eff", &"0".repeat(33), "-+é"] {
            assert!(bad.parse::<Uuid>().is_err(), "{bad}");
        }
    }

    #[test]
    fn transnos_order_by_epoch_before_lsn() {
        let old = Transno { epoch: Epoch(1), lsn: Lsn(900) };
        let new = Transno { epoch: Epoch(2), lsn: Lsn(10) };
        assert!(Transno::ZERO < old && old < new);
    }

    #[test]
    fn numbers_name_the_shard_that_issued_them() {
        assert_eq!(Ino::ROOT.shard(), ShardId(0));
        for shard in [0, 7, 255].map(ShardId) {
            let chunk = DirNo::of(shard, u32::MAX);
            assert_eq!((chunk.shard(), chunk.number()), (shard, u32::MAX));
            assert_eq!(Ino(chunk.0 << 24 | 0xff_ffff).shard(), shard);
            let client = ClientId::of(shard, ClientId::PER_SHARD - 1);
            assert_eq!((client.shard(), client.count()), (shard, ClientId::PER_SHARD - 1));
            // It is an offset in a device.
            assert!(client.0 < i64::MAX as u64);
            let object = ObjectId::of(shard, (1 << ObjectId::BITS) - 1);
            assert_eq!((object.shard(), object.number()), (shard, (1 << 56) - 1));
        }
        assert_eq!(ClientId::of(ShardId(0), 5), ClientId(5));
    }

    #[test]
    fn uuid_prints_in_five_groups() {
        let uuid = Uuid([0xab; 16]);
        assert_eq!(uuid.to_string(), "abababab-abab-abab-abab-abababababab");
    }
}
