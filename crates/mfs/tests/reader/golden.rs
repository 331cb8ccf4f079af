//! The content of a golden image, in the form of its text file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::Image;
use crate::device::{u16_at, u32_at, u64_at};
use crate::image::{ForeignName, NamedInode, Outside, Subtree};
use crate::inode::{Inode, Kind, Object, Slot};
use crate::space::{Intent, Run};
use crate::superblock::{FOLLOWED_OBJECTS, LENT_SPACE, MOVED_DIRECTORIES, OBJECT_FILES, SHARDS};

/// Expands compressed golden images; `crates/mfs/src/golden/compression.rs` describes the format.
pub fn expand(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        let (literals, rest) = bytes[2..].split_at(usize::from(u16_at(bytes, 0)));
        out.extend_from_slice(literals);
        for _ in 0..u16_at(rest, 0) {
            out.push(out[out.len() - u32_at(rest, 2) as usize]);
        }
        bytes = &rest[6..];
    }
    out
}

/// The size of the device in a golden image, and its blocks with their numbers.
pub fn blocks(image: &[u8]) -> (u64, Vec<(u64, Vec<u8>)>) {
    let raw = expand(image.strip_prefix(b"REDBUDGOLD1\n").expect("a golden image"));
    let block = |piece: &[u8]| (u64_at(piece, 0), piece[8..].to_vec());
    (u64_at(&raw, 0), raw[8..].chunks_exact(8 + 4096).map(block).collect())
}

/// Describes what the reader finds, in the form of the text file.
pub fn text(image: &Image) -> String {
    let mut out = String::new();
    writeln!(out, "file system {}", shown(image.superblock.name.as_bytes())).unwrap();
    let pags = image.pags().unwrap();
    for pag in pags.iter().filter(|pag| !pag.target).chain(pags.iter().filter(|pag| pag.target)) {
        let mut uuid: String = pag.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        [20, 16, 12, 8].into_iter().for_each(|at| uuid.insert(at, '-'));
        if pag.target {
            let (blocks, address) = (pag.blocks - 1, shown(&image.address_of(pag.id).unwrap()));
            writeln!(out, "target {} {uuid} {blocks} at {address}", pag.id).unwrap();
        } else {
            writeln!(out, "zone {} {uuid} {}", pag.id, pag.blocks).unwrap();
        }
    }
    let found = image.walk().unwrap();
    let mut numbers = BTreeMap::new();
    let (mut links, mut segments) = (0, 0);
    // A dump leaves files in objects of another shard out.
    let is_dumped = |found: &&NamedInode| foreign_object(image, &found.inode).is_none();
    for NamedInode { path, parent, inode } in found.iter().filter(is_dumped) {
        let name = shown(path.rsplit(|&byte| byte == b'/').next().unwrap());
        if let Some(number) = numbers.get(&inode.ino) {
            writeln!(out, "{number} also {name} in {}", numbers[parent]).unwrap();
            links += 1;
            continue;
        }
        let parent = numbers.get(parent).copied().unwrap_or(0);
        let number = numbers.len() + 1;
        numbers.insert(inode.ino, number);
        describe(&mut out, number, &name, parent, inode);
        segments += inode.segments.len();
    }
    writeln!(out, "{} inodes, {links} further names, {segments} segments", numbers.len()).unwrap();
    let subtrees = image.subtrees().unwrap();
    let names: usize = subtrees.iter().map(|it| it.found.len() - 1 + it.foreign.len()).sum();
    let orphans = image.orphans().unwrap().len();
    writeln!(out, "{names} names, {segments} segments, {orphans} orphans").unwrap();
    let sum = |runs: Vec<crate::space::Run>| runs.iter().map(|run| run.len).sum::<u64>();
    let (pooled, freed) = (sum(image.pools().unwrap()), sum(image.freed().unwrap()));
    let clients = image.clients().unwrap().len();
    writeln!(out, "{clients} clients, {pooled} blocks in pools, {freed} given up").unwrap();
    unusual(image, &mut out);
    elsewhere(image, &subtrees, &mut out);
    out
}

/// The object of the inode, if another shard has issued its number.
fn foreign_object(image: &Image, inode: &Inode) -> Option<u64> {
    let object = inode.object.as_ref()?.number;
    (object >> 56 != u64::from(image.superblock.shard)).then_some(object)
}

/// Describes names that lead to other shards, and inodes with names there; of the directories
/// among these also what is in them.
fn elsewhere(image: &Image, subtrees: &[Subtree], out: &mut String) {
    let mut foreign: Vec<_> = subtrees.iter().flat_map(|it| &it.foreign).collect();
    foreign.sort();
    for ForeignName { dir, name, ino, kind } in foreign {
        writeln!(out, "{} in {dir:016x} leads to {ino:016x} {kind:?}", shown(name)).unwrap();
    }
    for Outside { ino, parent, names } in image.outside().unwrap() {
        let slot = image.locate(ino).unwrap();
        let inode = format!("{ino:016x} {:?}", slot.kind());
        if parent == 0 {
            writeln!(out, "{inode} has {names} names elsewhere").unwrap();
            continue;
        }
        writeln!(out, "{inode} is in {parent:016x}").unwrap();
        let mut entry = |slot: Slot| {
            let name = shown(&slot.name);
            writeln!(out, "  {name} {:016x} {:?}", slot.ino, slot.kind()).unwrap();
            Ok(())
        };
        image.list(&slot, &mut entry).unwrap();
    }
}

/// Describes a log that is external, what targets have still to do, and operations of several
/// shards. Also lent space, directories that moved, and the numbers of a shard other than 0.
fn unusual(image: &Image, out: &mut String) {
    let superblock = &image.superblock;
    if superblock.is_external() {
        writeln!(out, "{} blocks of log in a journal", superblock.log_bytes / 4096).unwrap();
    }
    if superblock.has(OBJECT_FILES) {
        let [doomed, owed] = image.owed_by_targets().unwrap();
        let next = image.roots[21];
        writeln!(out, "next object {next}, doomed {doomed:?}, owed fences {owed:?}").unwrap();
    }
    if superblock.has(SHARDS) {
        for operation in image.intents().unwrap() {
            let Intent { id: (shard, epoch, number), protocol, kept, workers, bytes, .. } =
                operation;
            let (protocol, kept) = (
                ["", "PrN", "PrC", "EP", "1PC"][usize::from(protocol)],
                ["", "Started", "Prepared", "Committed", "Aborted"][usize::from(kept)],
            );
            let (length, sum) = (bytes.len(), crc32c::crc32c(&bytes));
            writeln!(
                out,
                "operation {shard}.{epoch}.{number} {protocol} {kept} workers {workers:?}, {length} \
                 bytes {sum:08x}"
            )
            .unwrap();
        }
    }
    if superblock.has(LENT_SPACE) {
        for (run, loan) in image.lent().unwrap() {
            let Run { pag, start, len, client: shard } = run;
            writeln!(out, "lent {pag}:{start} {len} shard {shard} loan {loan}").unwrap();
        }
    }
    if superblock.has(MOVED_DIRECTORIES) {
        for (ino, home) in image.homes().unwrap() {
            writeln!(out, "{ino:016x} is on shard {home}").unwrap();
        }
    }
    if superblock.has(FOLLOWED_OBJECTS) {
        let of = |it: &NamedInode| Some((foreign_object(image, &it.inode)?, it.inode.ino));
        let objects: BTreeMap<u64, u64> = image.walk().unwrap().iter().filter_map(of).collect();
        for (object, ino) in objects {
            writeln!(out, "inode {ino:016x} lies in object {object:016x}").unwrap();
        }
    }
    if superblock.shard != 0 {
        let clients = image.clients().unwrap().into_iter().map(|(client, _)| client);
        writeln!(out, "shard {}, root {:016x}", superblock.shard, superblock.root()).unwrap();
        writeln!(out, "clients {:012x?}", clients.collect::<Vec<_>>()).unwrap();
        writeln!(out, "orphans {:016x?}", image.orphans().unwrap()).unwrap();
    }
}

fn describe(out: &mut String, number: usize, name: &str, parent: usize, inode: &Inode) {
    let Inode { kind, mode, uid, gid, rdev, size, version, .. } = inode;
    // The text describes a dump, which does not have the size of directories.
    let size = if *kind == Kind::Directory { &0 } else { size };
    writeln!(
        out,
        "{number} {kind:?} {name} in {parent} mode {mode:o} uid {uid} gid {gid} rdev {rdev} size {size} \
         version {version}"
    )
    .unwrap();
    let [a, m, c, b] = inode.times.map(|(seconds, nanos)| format!("{seconds}.{nanos:09}"));
    writeln!(out, "  times {a} {m} {c} {b}").unwrap();
    if !inode.target.is_empty() {
        writeln!(out, "  to {}", shown(&inode.target)).unwrap();
    }
    for (name, value) in &inode.xattrs {
        writeln!(out, "  xattr {} = {}", shown(name), shown(value)).unwrap();
    }
    if !inode.content.is_empty() {
        let sum = crc32c::crc32c(&inode.content);
        writeln!(out, "content {number} {} bytes {sum:08x}", inode.content.len()).unwrap();
    }
    if let Some(Object { number: object, part, targets }) = &inode.object {
        writeln!(out, "object {number} is {object:016x} in {part} on {targets:?}").unwrap();
    }
    for e in &inode.segments {
        let state = if e.written { "Written" } else { "Unwritten" };
        writeln!(out, "{number} at {} {} of {}:{} {state}", e.file, e.len, e.pag, e.addr).unwrap();
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    match text.len() {
        0..=80 => format!("{text:?}"),
        len => format!("{len} bytes with crc {:08x}", crc32c::crc32c(bytes)),
    }
}
