//! A reader of metadata devices, written from FORMAT.md alone: it knows nothing of the store.
//!
//! Invariants:
//! - the modules of the reader use the standard library and CRC32C, nothing of Redbud; the store is
//!   in the tests only, where it makes images and says what should be found;
//! - what the reader needs to know stands in FORMAT.md, whose sections the modules name;
//! - reading is total: any bytes give a tree or an [`Error`].
//!
//! The reader is [`device`], [`superblock`], [`log`], [`tree`], [`directory`], [`inode`], [`space`]
//! and, on top of them, [`image`]. [`made`] makes images, [`golden`] unpacks those of the
//! repository, [`sound`] sees whether what must agree does, and [`damage`] damages them.

mod damage;
mod device;
mod directory;
mod golden;
mod image;
mod inode;
mod log;
mod made;
mod sound;
mod space;
mod superblock;
mod tree;

use std::collections::BTreeSet;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

use env::sim::SimDisk;
use redbud_store::SlotSize;

use device::{
    BITMAP, BLOB, CONTENT, CONTENT_1024, CONTENT_2048, CONTENT_4096, Error, LAYOUT, NAME_MAP,
    OWNED_BLOB, REPLIES, ROOTS, TREE,
};
use image::Image;
use made::{LOG, Plan, Told, make, make_cutting, told};

/// A file of its own with these blocks of a device.
fn file(name: &str, size: u64, blocks: impl IntoIterator<Item = (u64, Vec<u8>)>) -> PathBuf {
    let path = format!("reader-{}-{name}.img", std::process::id());
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
fn every_golden_image_is_what_the_text_beside_it_says() {
    let files = std::fs::read_dir(goldens()).unwrap().map(|entry| entry.unwrap().path());
    let images: Vec<_> = files.filter(|path| path.extension().unwrap() == "img").collect();
    assert!(images.len() >= 8);
    for path in images {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let (size, blocks) = golden::blocks(&golden(name, "img"));
        let path = file(name, size, blocks);
        let image = Image::open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(image.device.redone.groups > 0, "{name}: nothing to redo");
        let expected = String::from_utf8(golden(name, "txt")).unwrap();
        for (found, expected) in golden::text(&image).lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(golden::text(&image), expected);
        sound::check(&image);
    }
}

#[test]
fn the_reader_knows_nothing_of_redbud() {
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
            !["redbud_store::", "types::", "env::"].iter().any(|name| line.contains(name)),
            "{line}"
        );
    }
}

/// A device of the simulation as a file.
fn written(name: &str, disk: &SimDisk) -> PathBuf {
    let block = |block: u64| (block, disk.peek(block * 4096, 4096));
    let blocks = (0..disk.size() / 4096).map(block);
    file(name, disk.size(), blocks.filter(|(_, data)| !device::is_zero(data)))
}

/// Everything that the reader finds.
fn read(image: &Image) -> Result<Told, Error> {
    let clients = image.clients()?;
    let first = clients.first().map_or(0, |client| client.0);
    let replies = image.replies()?.into_iter();
    let mut kept = replies.filter(|reply| (reply.client, reply.slot) == (first, 4));
    let mut settings = image.settings()?.into_iter().filter(|&(key, _)| key == 3);
    Ok(Told {
        found: image.walk()?,
        orphans: image.orphans()?,
        pags: image.pags()?,
        pools: image.pools()?,
        clients,
        reply: kept.next().map(|reply| (reply.sequence, reply.answer)),
        setting: settings.next().map(|(_, value)| value),
    })
}

/// Compares the reader with the store, and what it reads with itself.
fn check(name: &str, disk: &SimDisk) -> Image {
    let path = written(name, disk);
    let image = Image::open(&path).unwrap();
    // The image stays open.
    std::fs::remove_file(path).unwrap();
    let (read, told) = (read(&image).unwrap(), told(disk));
    for (read, told) in read.found.iter().zip(&told.found) {
        assert_eq!(read, told, "{name}");
    }
    assert_eq!(read.found.len(), told.found.len(), "{name}");
    assert_eq!(Told { found: Vec::new(), ..read }, Told { found: Vec::new(), ..told }, "{name}");
    sound::check(&image);
    image
}

const USUAL: Plan = Plan {
    slots: SlotSize::Bytes512,
    inline: true,
    near: true,
    owners: true,
    cut: true,
    names: 300,
    operations: 900,
};

#[test]
fn an_image_of_each_kind_is_what_the_store_tells_of_it() {
    let sizes = [CONTENT, CONTENT_1024, CONTENT_2048, CONTENT_4096];
    for (slots, content) in SlotSize::ALL.into_iter().zip(sizes) {
        for kind in 0..8 {
            let (inline, near, cut) = (kind & 1 != 0, kind & 2 != 0, kind & 4 != 0);
            // Blobs of two of these do not say whose they are.
            let owners = ![3, 6].contains(&kind);
            let plan = Plan { slots, inline, near, owners, cut, ..USUAL };
            let image = check(&format!("{slots:?}-{kind}"), &make(plan));
            assert_eq!(image.device.redone.groups > 0, cut, "{plan:?}");
            // Everything that there may be was read.
            let mut expected = BTreeSet::from([ROOTS, BITMAP, TREE, CONTENT, REPLIES, NAME_MAP]);
            expected.insert(content);
            expected.insert(if owners { OWNED_BLOB } else { BLOB });
            expected.extend(near.then_some(LAYOUT));
            assert_eq!(
                image.device.met.borrow().values().copied().collect::<BTreeSet<_>>(),
                expected
            );
        }
    }
}

#[test]
fn what_a_power_cut_leaves_is_redone_wherever_it_came() {
    let (mut cut_in_two, mut at_home) = (0, 0);
    for (n, disk) in make_cutting(Plan { operations: 4500, ..USUAL }, 211).iter().enumerate() {
        let image = check(&format!("cut-{n}"), disk);
        let redone = &image.device.redone;
        cut_in_two +=
            usize::from(!redone.end.is_multiple_of(LOG) && redone.end / LOG > redone.last / LOG);
        at_home += redone.at_home.len();
    }
    assert!(cut_in_two > 0, "no group went on at the beginning of the log");
    assert!(at_home > 0, "no block had changes without an image");
}
