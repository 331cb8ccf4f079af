//! A reader of metadata devices, written from FORMAT.md alone, without any code of the store.
//!
//! Invariants:
//! - the modules of the reader use the standard library and CRC32C, nothing of Redbud. Only the
//!   tests use the store: it makes images and gives their expected content;
//! - FORMAT.md has everything that the reader needs to know; the modules cite its sections;
//! - reading is total: any bytes give a tree or an [`Error`].
//!
//! The reader is [`device`], [`superblock`], [`log`], [`tree`], [`directory`], [`inode`], [`space`]
//! and, on top of them, [`image`]. [`generate`] makes images, [`golden`] expands those of the
//! repository, [`consistency`] checks that the parts of an image agree, and [`damage`] damages
//! images.

mod consistency;
mod damage;
mod device;
mod directory;
mod generate;
mod golden;
mod image;
mod inode;
mod log;
mod space;
mod superblock;
mod tree;

use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use env::sim::SimDisk;
use redbud_mfs::SlotSize;

use device::{
    BITMAP, BLOB, CONTENT, CONTENT_1024, CONTENT_2048, CONTENT_4096, Error, LAYOUT, NAME_MAP,
    REPLIES, ROOTS, TREE,
};
use generate::{Contents, LOG, Plan, make, make_cutting, make_external, store_contents};
use image::Image;
use superblock::{Slice, Superblock};

/// Makes a new file with these blocks of a device. No two calls use the same path: tests run at
/// the same time, and give their files the same names.
fn file(name: &str, size: u64, blocks: impl IntoIterator<Item = (u64, Vec<u8>)>) -> PathBuf {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Relaxed);
    let path = format!("reader-{}-{number}-{name}.img", std::process::id());
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(path);
    let mut file = std::fs::File::create(&path).unwrap();
    file.set_len(size).unwrap();
    for (block, data) in blocks {
        file.seek(SeekFrom::Start(block * 4096)).unwrap();
        file.write_all(&data).unwrap();
    }
    path
}

fn goldens() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden")
}

#[expect(clippy::disallowed_methods, reason = "golden images are files of the repository")]
fn golden(name: &str, ending: &str) -> Vec<u8> {
    std::fs::read(goldens().join(format!("{name}.{ending}"))).unwrap()
}

#[test]
fn reader_finds_in_golden_images_what_their_text_describes() {
    let files = std::fs::read_dir(goldens()).unwrap().map(|entry| entry.unwrap().path());
    let images: Vec<_> = files.filter(|path| path.extension().unwrap() == "img").collect();
    assert!(images.len() >= 8);
    let (mut shards, mut journals) = (BTreeSet::new(), 0);
    for path in images {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let expand = |ending: &str| {
            let (size, blocks) = golden::blocks(&golden(name, ending));
            file(&format!("{name}.{ending}"), size, blocks)
        };
        let home = expand("img");
        let journal = path.with_extension("journal").exists().then(|| expand("journal"));
        if journal.is_some() {
            assert!(matches!(Image::open(&home), Err(Error::Refused(_))), "{name}: no journal");
        }
        let image = Image::open_with(&home, journal.as_deref()).unwrap();
        check_labels(&image, &home, journal.as_deref());
        shards.insert(image.superblock.shard);
        journals += usize::from(journal.is_some());
        for path in [home].into_iter().chain(journal) {
            std::fs::remove_file(path).unwrap();
        }
        assert!(image.device.redone.groups > 0, "{name}: nothing to redo");
        let expected = String::from_utf8(golden(name, "txt")).unwrap();
        for (found, expected) in golden::text(&image).lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(golden::text(&image), expected);
        consistency::check(&image);
    }
    assert!(journals > 0 && shards == BTreeSet::from([0, 2, 200]), "{journals} {shards:?}");
}

/// The labels name the slices and their pairing as the superblock does.
fn check_labels(image: &Image, home: &Path, journal: Option<&Path>) {
    let superblock = &image.superblock;
    let &Superblock { shard, metadata, journal: log, .. } = superblock;
    let slices = |path: &Path| superblock::slices(path).unwrap();
    assert_eq!(slices(home), [Slice { kind: 2, shard, uuid: metadata, pair: log }]);
    if let Some(journal) = journal {
        assert_eq!(slices(journal), [Slice { kind: 3, shard, uuid: log, pair: metadata }]);
    }
    assert_eq!(superblock.is_external(), log != [0; 16]);
}

#[test]
fn reader_uses_no_code_of_redbud() {
    let modules = [
        include_str!("device.rs"),
        include_str!("directory.rs"),
        include_str!("image.rs"),
        include_str!("inode.rs"),
        include_str!("log.rs"),
        include_str!("space.rs"),
        include_str!("superblock.rs"),
        include_str!("tree.rs"),
    ];
    let theirs =
        ["std::", "crate::Image;", "crate::device::", "crate::directory::", "crate::image::"];
    let others = ["crate::inode::", "crate::log::", "crate::superblock::", "crate::tree::"];
    let allowed: Vec<_> = theirs.into_iter().chain(others).collect();
    for line in modules.iter().flat_map(|module| module.lines()) {
        let used = line.strip_prefix("use ").unwrap_or("std::");
        assert!(allowed.iter().any(|start| used.starts_with(start)), "{line}");
        assert!(
            !["redbud_mfs::", "types::", "env::"].iter().any(|name| line.contains(name)),
            "{line}"
        );
    }
}

/// Writes a simulated device to a file.
fn written(name: &str, disk: &SimDisk) -> PathBuf {
    let block = |block: u64| (block, disk.peek(block * 4096, 4096));
    let blocks = (0..disk.size() / 4096).map(block);
    file(name, disk.size(), blocks.filter(|(_, data)| !device::is_zero(data)))
}

/// Everything that the reader finds in an image.
fn read(image: &Image) -> Result<Contents, Error> {
    let clients = image.clients()?;
    let first = clients.first().map_or(0, |client| client.0);
    let replies = image.replies()?.into_iter();
    let kept = replies.filter(|reply| reply.client == first);
    let mut settings = image.settings()?.into_iter().filter(|&(key, _)| key == 3);
    Ok(Contents {
        found: image.walk()?,
        orphans: image.orphans()?,
        pags: image.pags()?,
        pools: image.pools()?,
        clients,
        replies: kept.map(|reply| (reply.slot, reply.sequence, reply.answer)).collect(),
        setting: settings.next().map(|(_, value)| value),
    })
}

/// Compares the reader with the store, and checks the consistency of the image.
fn check(name: &str, disk: &SimDisk) -> Image {
    let path = written(name, disk);
    let image = Image::open(&path).unwrap();
    // The image stays open, so it can be read without its name.
    std::fs::remove_file(path).unwrap();
    compare(name, &image, store_contents(disk, None));
    image
}

fn compare(name: &str, image: &Image, expected: Contents) {
    let read = read(image).unwrap();
    for (read, expected) in read.found.iter().zip(&expected.found) {
        assert_eq!(read, expected, "{name}");
    }
    assert_eq!(read.found.len(), expected.found.len(), "{name}");
    assert_eq!(
        Contents { found: Vec::new(), ..read },
        Contents { found: Vec::new(), ..expected },
        "{name}"
    );
    consistency::check(image);
}

#[test]
fn reader_redoes_an_external_log_and_refuses_what_is_not_its_journal() {
    let [home, log] = make_external(USUAL);
    let (path, journal) = (written("home", &home), written("journal", &log));
    let image = Image::open_with(&path, Some(&journal)).unwrap();
    assert!(image.device.redone.groups > 0);
    compare("external", &image, store_contents(&home, Some(&log)));
    check_labels(&image, &path, Some(&journal));
    let refused =
        |journal: Option<&Path>| matches!(Image::open_with(&path, journal), Err(Error::Refused(_)));
    assert!(refused(None) && refused(Some(&path)));
    // UUIDs of file system, journal and metadata, generation, what was durable, and state.
    for at in [16, 32, 48, 64, 85, 88] {
        let other = log.fork();
        for block in [1, 2] {
            let mut header = other.peek(block * 4096, 4096);
            // The generation grows by two, the state becomes "retired".
            header[at] = if at == 64 { header[at] + 2 } else { header[at] ^ 3 };
            let sum = crc32c::crc32c(&header[4..]).to_le_bytes();
            header[..4].copy_from_slice(&sum);
            other.poke(block * 4096, &header);
        }
        let other = written(&format!("other-{at}"), &other);
        assert!(refused(Some(&other)), "byte {at}");
        std::fs::remove_file(other).unwrap();
    }
    std::fs::remove_file(path).unwrap();
    std::fs::remove_file(journal).unwrap();
}

const USUAL: Plan = Plan {
    shard: 0,
    slots: SlotSize::Bytes512,
    inline: true,
    near: true,
    cut: true,
    names: 300,
    operations: 900,
};

#[test]
fn reader_agrees_with_the_store_on_images_of_each_kind() {
    let sizes = [CONTENT, CONTENT_1024, CONTENT_2048, CONTENT_4096];
    for (slots, content) in SlotSize::ALL.into_iter().zip(sizes) {
        for kind in 0..8 {
            let (inline, near, cut) = (kind & 1 != 0, kind & 2 != 0, kind & 4 != 0);
            let shard = if inline { 0 } else { 200 };
            let plan = Plan { shard, slots, inline, near, cut, ..USUAL };
            let image = check(&format!("{slots:?}-{kind}"), &make(plan));
            assert_eq!(image.device.redone.groups > 0, cut, "{plan:?}");
            // The reader must have read blocks of every type.
            let mut expected =
                BTreeSet::from([ROOTS, BITMAP, TREE, CONTENT, BLOB, REPLIES, NAME_MAP]);
            expected.insert(content);
            expected.extend(near.then_some(LAYOUT));
            assert_eq!(
                image.device.visited.borrow().values().copied().collect::<BTreeSet<_>>(),
                expected
            );
        }
    }
}

#[test]
fn reader_redoes_the_log_after_power_cuts_at_any_moment() {
    let (mut cut_in_two, mut at_home) = (0, 0);
    for (n, disk) in make_cutting(Plan { operations: 4500, ..USUAL }, 211).iter().enumerate() {
        let image = check(&format!("cut-{n}"), disk);
        let redone = &image.device.redone;
        cut_in_two +=
            usize::from(!redone.end.is_multiple_of(LOG) && redone.end / LOG > redone.last / LOG);
        at_home += redone.at_home.len();
    }
    assert!(cut_in_two > 0, "no group continued at the beginning of the log");
    assert!(at_home > 0, "no block had changes without an image");
}
