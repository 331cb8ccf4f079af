//! Damaged devices: the reader refuses wrong checksums, and terminates for any bytes.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use env::sim::{SimDisk, SimRng};

use crate::device::{BLOCK, Error, ROOTS, u32_at, u64_at};
use crate::generate::{Contents, Plan, make, make_cutting};
use crate::{Image, USUAL, check, read, written};

const SMALL: Plan = Plan { names: 60, operations: 400, ..USUAL };
const CLOSED: Plan = Plan { cut: false, ..SMALL };

fn try_read(name: &str, disk: &SimDisk) -> Result<Contents, Error> {
    let path = written(name, disk);
    let image = Image::open(&path);
    std::fs::remove_file(path).unwrap();
    read(&image?)
}

/// What the reader finds on a device with a flipped bit in each of these blocks.
fn flipped(disk: &SimDisk, blocks: &[u64]) -> Result<Contents, String> {
    let disk = disk.fork();
    blocks.iter().for_each(|block| disk.flip_bit(block * BLOCK as u64 + 2000, 3));
    try_read("flipped", &disk).map_err(|error| error.to_string())
}

/// The first block of each type that the reader visited, by type. The trees of targets, which come
/// last on the device, it needs for comparisons only.
fn one_of_each(image: &Image) -> BTreeMap<u8, u64> {
    image.device.visited.borrow().iter().rev().map(|(&block, &kind)| (kind, block)).collect()
}

#[test]
fn block_with_a_flipped_bit_is_refused_by_its_checksum() {
    let disk = make(CLOSED);
    let image = check("whole", &disk);
    let mut blocks = one_of_each(&image);
    assert_eq!(blocks.remove(&ROOTS), Some(image.superblock.roots));
    // The reader does not need the bitmap or a name map to find the content.
    blocks.retain(|kind, _| ![crate::BITMAP, crate::NAME_MAP].contains(kind));
    assert_eq!(blocks.len(), 5);
    for block in blocks.into_values() {
        assert_eq!(flipped(&disk, &[block]), Err(format!("block {block}: wrong checksum")));
    }
}

#[test]
fn one_copy_of_the_label_is_enough_and_the_newer_one_counts() {
    let disk = make(CLOSED);
    let image = check("label", &disk);
    let (last, whole) = (disk.size() / BLOCK as u64 - 1, Ok(read(&image).unwrap()));
    for block in [0, last] {
        assert_eq!(flipped(&disk, &[block]), whole, "{block}");
    }
    assert_eq!(flipped(&disk, &[0, last]), Err("block 0: wrong checksum".to_owned()));
    // A copy that an update has not reached yet says that the device holds data.
    let older = disk.fork();
    let mut data = older.peek(0, BLOCK);
    data[48..56].fill(0);
    data[256] = 1;
    data[8..12].fill(0);
    let sum = crc32c::crc32c(&data);
    data[8..12].copy_from_slice(&sum.to_le_bytes());
    older.poke(0, &data);
    assert_eq!(flipped(&older, &[]), whole);
    assert_eq!(flipped(&older, &[last]), Err("not a metadata device".to_owned()));
}

#[test]
fn one_copy_of_the_superblock_and_of_the_roots_is_enough() {
    let disk = make(CLOSED);
    let image = check("copies", &disk);
    let (first, last, roots) = (1, image.superblock.blocks - 1, image.superblock.roots);
    let whole = Ok(read(&image).unwrap());
    for blocks in [&[first][..], &[last], &[roots], &[first, roots], &[last, roots]] {
        assert_eq!(flipped(&disk, blocks), whole, "{blocks:?}");
    }
    assert_eq!(flipped(&disk, &[first, last]), Err("block 1: wrong checksum".to_owned()));
    // The write of the roots was lost before the tail moved.
    let mut old = disk.peek(roots * BLOCK as u64, BLOCK);
    old[32..40].fill(7);
    old[40..48].fill(0);
    seal(&mut old);
    disk.poke(roots * BLOCK as u64, &old);
    assert_eq!(flipped(&disk, &[]), whole);
}

#[test]
fn log_with_a_damaged_group_is_refused_unless_it_is_the_last() {
    let disk = make(SMALL);
    let image = check("log", &disk);
    let log =
        |lsn: u64| image.superblock.log_first + lsn % image.superblock.log_bytes / BLOCK as u64;
    let tail = image.superblock.tail;
    let refused = format!("log at {tail}: a group is missing and later ones are whole");
    let disk_with = |lsn: u64| {
        let disk = disk.fork();
        disk.flip_bit(log(lsn) * BLOCK as u64 + 50, 3);
        disk
    };
    assert_eq!(try_read("log", &disk_with(tail)).unwrap_err().to_string(), refused);
    let torn = check("log", &disk_with(image.device.redone.last));
    assert_eq!(torn.device.redone.groups, image.device.redone.groups - 1);
}

#[test]
fn block_older_at_home_than_the_log_says_is_refused() {
    let mut tried = 0;
    for disk in make_cutting(Plan { operations: 3000, ..USUAL }, 500) {
        let image = check("older", &disk);
        for (&block, &lsn) in &image.device.redone.at_home {
            let mut data = disk.peek(block * BLOCK as u64, BLOCK);
            data[16..24].copy_from_slice(&(lsn - 1).to_le_bytes());
            seal(&mut data);
            disk.poke(block * BLOCK as u64, &data);
            let path = written("older", &disk);
            let error = Image::open(&path).unwrap().device.read(block, data[4]).unwrap_err();
            assert_eq!(error.to_string(), format!("block {block}: older than the log says"));
            std::fs::remove_file(path).unwrap();
            tried += 1;
        }
    }
    assert!(tried > 0);
}

/// Recomputes the checksum of a block.
fn seal(data: &mut [u8]) {
    let sum = crc32c::crc32c(&data[4..]);
    data[..4].copy_from_slice(&sum.to_le_bytes());
}

#[test]
fn unknown_needed_feature_is_refused_by_name() {
    let disk = make(CLOSED);
    // The last block of the slice; that of the device is the label's copy.
    let last = disk.size() / BLOCK as u64 - 2;
    let with = |offset: usize, bits: u64, bit: u8| {
        let disk = disk.fork();
        for block in [1, last] {
            let mut data = disk.peek(block * BLOCK as u64, BLOCK);
            let bits = u64_at(&data, offset) | bits;
            data[offset..offset + 8].copy_from_slice(&bits.to_le_bytes());
            data[2272..2274].copy_from_slice(&7u16.to_le_bytes());
            data[2274..2281].copy_from_slice(&[bit, 5, b'w', b'a', b'r', b'p', b's']);
            seal(&mut data);
            disk.poke(block * BLOCK as u64, &data);
        }
        try_read("features", &disk)
    };
    assert_eq!(with(48, 1 << 50, 50).unwrap_err().to_string(), "features warps");
    assert_eq!(with(48, 1 << 0, 0).unwrap_err().to_string(), "a load has not ended");
    assert!(with(200, 1 << 7, 64 + 7).is_ok());
}

/// Offsets on the device and lengths of the log's groups that do not wrap around.
fn groups(image: &Image, disk: &SimDisk) -> Vec<(u64, usize)> {
    let (superblock, end) = (&image.superblock, image.device.redone.end);
    let (mut lsn, mut out) = (superblock.tail, Vec::new());
    while lsn < end {
        let offset = lsn % superblock.log_bytes;
        let place = superblock.log_first * BLOCK as u64 + offset;
        let len = u32_at(&disk.peek(place, 64), 16) as usize;
        if offset + len as u64 <= superblock.log_bytes {
            out.push((place, len));
        }
        lsn += (len as u64).next_multiple_of(BLOCK as u64);
    }
    out
}

/// Changes random bytes of these pieces, each of which begins with its checksum, again and again.
fn try_by_chance(name: &str, disk: &SimDisk, pieces: &[(u64, usize)]) {
    let path = written(name, disk);
    #[expect(clippy::disallowed_methods, reason = "the reader opens plain files")]
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let (mut rng, mut refused) = (SimRng::new(3), 0);
    let mut below = |limit: usize| rng.next_u64() as usize % limit;
    for _ in 0..500 {
        let (place, len) = pieces[below(pieces.len())];
        let mut data = vec![0; len];
        file.read_exact_at(&mut data, place).unwrap();
        let old = data.clone();
        // Most fields that matter are in the first bytes.
        let within = len.min([80, 300, len][below(3)]);
        for _ in 0..=below(3) {
            data[below(within)] = [0, 1, 0xff, below(256) as u8][below(4)];
        }
        seal(&mut data);
        file.write_all_at(&data, place).unwrap();
        refused += usize::from(Image::open(&path).and_then(|image| read(&image)).is_err());
        file.write_all_at(&old, place).unwrap();
    }
    assert!((50..500).contains(&refused), "{name}: {refused}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn random_bytes_with_right_checksums_give_a_tree_or_an_error() {
    let disk = make(CLOSED);
    let image = check("blocks", &disk);
    let blocks: Vec<u64> = image.device.visited.borrow().keys().copied().collect();
    let blocks = blocks.into_iter().chain([1, image.superblock.blocks - 1]);
    let pieces: Vec<_> = blocks.map(|block| (block * BLOCK as u64, BLOCK)).collect();
    try_by_chance("by chance", &disk, &pieces);
    let disk = make(SMALL);
    let image = check("groups", &disk);
    try_by_chance("by chance", &disk, &groups(&image, &disk));
}
