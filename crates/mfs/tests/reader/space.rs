//! Data space, clients, settings and the bitmap: FORMAT.md 3.5, 10 and 11.

use crate::Image;
use crate::device::{BITMAP, BLOCK, Error, HEADER, REPLIES, big, u16_at, u32_at, u64_at};
use crate::inode::DESCRIPTION;
use crate::tree::{
    CLIENTS, DOOMED, Entry, FREE, FREED, INTENTS, LENT, OWED_FENCES, PAGS, POOLS,
    REPLIES as REPLY_TREE, SETTINGS, Tree,
};

/// A data zone.
#[derive(Debug, PartialEq, Eq)]
pub struct Pag {
    pub id: u16,
    pub uuid: [u8; 16],
    pub device: [u8; 16],
    /// First block of the slice on the device.
    pub start: u64,
    pub blocks: u64,
    /// 0 in service, 1 draining, 2 lost, 3 drain paused.
    pub state: u8,
    /// It is an object target.
    pub target: bool,
    /// It is another shard's.
    pub borrowed: bool,
    pub free: u64,
    pub freed: u64,
}

/// Data blocks that belong to no file: zone, first block, length, and the client whose pool has
/// them.
#[derive(Debug, PartialEq, Eq)]
pub struct Run {
    pub pag: u16,
    pub start: u64,
    pub len: u64,
    pub client: u64,
}

/// An operation of several shards.
#[derive(Debug, PartialEq, Eq)]
pub struct Intent {
    /// The coordinator's shard, its epoch, and the number there.
    pub id: (u8, u32, u64),
    pub protocol: u8,
    pub part: u8,
    pub kept: u8,
    pub workers: Vec<u8>,
    pub length: usize,
    pub bytes: Vec<u8>,
}

pub struct Reply {
    pub client: u64,
    pub slot: u64,
    pub sequence: u32,
    pub answer: Vec<u8>,
}

/// Stands for a long reply until that is read.
const LONG: &[u8] = &[0; 27];

impl Image {
    pub fn pags(&self) -> Result<Vec<Pag>, Error> {
        let pag = |(key, value): &Entry| Pag {
            id: big(key) as u16,
            uuid: value[..16].try_into().expect("16 bytes"),
            device: value[16..32].try_into().expect("16 bytes"),
            start: u64_at(value, 32),
            blocks: u64_at(value, 40) & ((1 << 48) - 1),
            state: value[46],
            target: value[47] == 1,
            borrowed: value[47] == 2,
            free: u64_at(value, 48),
            freed: u64_at(value, 56),
        };
        Ok(self.entries(&PAGS)?.iter().map(pag).collect())
    }

    /// What targets have still to do: destroy ⟨target, object⟩, and refuse ⟨target, client⟩.
    pub fn owed_by_targets(&self) -> Result<[Vec<(u16, u64)>; 2], Error> {
        let pair = |(key, _): &Entry| (big(&key[..2]) as u16, big(&key[2..]));
        let pairs = |tree: &Tree| -> Result<Vec<(u16, u64)>, Error> {
            Ok(self.entries(tree)?.iter().map(pair).collect())
        };
        Ok([pairs(&DOOMED)?, pairs(&OWED_FENCES)?])
    }

    /// Operations of several shards (11.1).
    pub fn intents(&self) -> Result<Vec<Intent>, Error> {
        let mut all: Vec<Intent> = Vec::new();
        for (key, value) in self.entries(&INTENTS)? {
            let id = (key[0], big(&key[1..5]) as u32, big(&key[5..13]));
            let item = big(&key[13..]);
            if item == 0 {
                let count = usize::from(value[3]);
                all.push(Intent {
                    id,
                    protocol: value[0],
                    part: value[1],
                    kept: value[2],
                    workers: value[4..4 + count].to_vec(),
                    length: u32::from_le_bytes([value[8], value[9], value[10], value[11]]) as usize,
                    bytes: Vec::new(),
                });
                continue;
            }
            let Some(last) = all.last_mut().filter(|last| last.id == id) else {
                return Err(Error::Refused("an intent without a head".to_owned()));
            };
            if item as usize != last.bytes.len().div_ceil(value.len()) + 1 {
                return Err(Error::Refused("an item of an intent out of its turn".to_owned()));
            }
            let rest = last.length - last.bytes.len();
            last.bytes.extend(&value[..rest.min(value.len())]);
        }
        Ok(all)
    }

    /// The address of a target: the setting of 2^31 + its number (10).
    pub fn address_of(&self, target: u16) -> Result<Vec<u8>, Error> {
        let key = (1 << 31) + u64::from(target);
        let found = self.settings()?.into_iter().find(|setting| setting.0 == key);
        Ok(found.map_or_else(Vec::new, |(_, address)| address))
    }

    /// What this shard has lent, or others to it: runs, each with the number of the other shard in
    /// place of a client, and the sequence of the loan.
    pub fn lent(&self) -> Result<Vec<(Run, u32)>, Error> {
        let run = |(key, value): &Entry| {
            let (pag, start) = (big(&key[..2]) as u16, big(&key[2..]));
            let run = Run { pag, start, len: u64_at(value, 0), client: value[8].into() };
            (run, u32_at(value, 9))
        };
        Ok(self.entries(&LENT)?.iter().map(run).collect())
    }

    pub fn free(&self) -> Result<Vec<Run>, Error> {
        self.runs(&FREE, 0)
    }

    pub fn freed(&self) -> Result<Vec<Run>, Error> {
        self.runs(&FREED, 0)
    }

    pub fn pools(&self) -> Result<Vec<Run>, Error> {
        self.runs(&POOLS, 8)
    }

    /// Runs of a tree whose keys are `client` bytes of a client, zone and start, and whose values
    /// begin with the length.
    fn runs(&self, tree: &Tree, client: usize) -> Result<Vec<Run>, Error> {
        let run = |(key, value): &Entry| Run {
            client: big(&key[..client]),
            pag: big(&key[client..client + 2]) as u16,
            start: big(&key[client + 2..]),
            len: u64_at(value, 0),
        };
        Ok(self.entries(tree)?.iter().map(run).collect())
    }

    /// The clients, with their descriptions.
    pub fn clients(&self) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let client = |(key, value): &Entry| {
            let (client, first) = (big(key), u64_at(value, 0));
            Ok((client, self.blob(first, client, DESCRIPTION)?))
        };
        self.entries(&CLIENTS)?.iter().map(client).collect()
    }

    /// The replies stored for clients.
    pub fn replies(&self) -> Result<Vec<Reply>, Error> {
        let mut out = Vec::new();
        for (key, value) in self.entries(&REPLY_TREE)? {
            let block = self.device.read(u64_at(&value, 0), REPLIES)?;
            let (client, number) = (big(&key[..8]), big(&key[8..]));
            if number > 0 {
                for (n, reply) in (0..).zip(block[HEADER..].chunks_exact(1352).take(3)) {
                    let len = usize::from(u16_at(reply, 4)).min(1024);
                    // The short record has come before, and says whether this one counts.
                    let slot = 3 * (number - 1) + n;
                    for short in out.iter_mut().filter(|it: &&mut Reply| {
                        (it.client, it.slot) == (client, slot) && it.answer == LONG
                    }) {
                        short.answer = reply[8..8 + len].to_vec();
                    }
                }
                continue;
            }
            for (slot, reply) in (0..).zip(block[HEADER..].chunks_exact(31).take(128)) {
                let (sequence, len) = (u32_at(reply, 0), usize::from(reply[4]));
                let answer = match len {
                    0 => continue,
                    255 => LONG.to_vec(),
                    _ => reply[5..5 + len - 1].to_vec(),
                };
                out.push(Reply { client, slot, sequence, answer });
            }
        }
        Ok(out)
    }

    pub fn settings(&self) -> Result<Vec<(u64, Vec<u8>)>, Error> {
        let setting = |(key, value): &Entry| {
            (big(key), value[2..2 + usize::from(u16_at(value, 0)).min(62)].to_vec())
        };
        Ok(self.entries(&SETTINGS)?.iter().map(setting).collect())
    }

    /// Is this block of the metadata device allocated?
    pub fn is_allocated(&self, block: u64) -> Result<bool, Error> {
        let bits = ((BLOCK - HEADER) * 8) as u64;
        let bitmap = self.device.read(self.superblock.bitmap_first + block / bits, BITMAP)?;
        let bit = (block % bits) as usize;
        Ok(bitmap[HEADER + bit / 8] >> (bit % 8) & 1 == 1)
    }
}
