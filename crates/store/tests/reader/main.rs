//! A reader of metadata devices, written from FORMAT.md alone: it knows nothing of the store.
//!
//! Invariants:
//! - the modules of the reader use the standard library and CRC32C, nothing of Redbud; the store is in the tests only,
//!   where it makes images and says what should be found;
//! - what the reader needs to know stands in FORMAT.md, whose sections the modules name;
//! - reading is total: any bytes give a tree or an [`Error`](device::Error).

mod device;
mod directory;
mod golden;
mod image;
mod inode;
mod log;
mod made;
mod space;
mod superblock;
mod tree;

use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

use env::sim::SimDisk;
use redbud_store::SlotSize;

use directory::ATTIC;
use image::Image;
use inode::{Kind, Slot};
use made::{Plan, Told, make, told};

const GOLDENS: [&str; 8] = [
    "v1",
    "v1-name-maps",
    "v1-inline-data",
    "v1-namespace-index",
    "v1-layout-blocks",
    "v1-slots-1024",
    "v1-slots-2048",
    "v1-slots-4096",
];

/// A file of its own with these blocks of a device.
fn file(name: &str, size: u64, blocks: impl IntoIterator<Item = (u64, Vec<u8>)>) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("reader-{name}.img"));
    #[expect(clippy::disallowed_methods, reason = "the reader opens plain files")]
    let mut file = std::fs::File::create(&path).unwrap();
    file.set_len(size).unwrap();
    for (block, data) in blocks {
        file.seek(SeekFrom::Start(block * 4096)).unwrap();
        file.write_all(&data).unwrap();
    }
    path
}

#[expect(clippy::disallowed_methods, reason = "golden images are files of the repository")]
fn golden(name: &str, ending: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
    std::fs::read(path.join(format!("{name}.{ending}"))).unwrap()
}

#[test]
fn every_golden_image_is_what_the_text_beside_it_says() {
    for name in GOLDENS {
        let (size, blocks) = golden::blocks(&golden(name, "img"));
        let image = Image::open(&file(name, size, blocks)).unwrap();
        assert!(image.device.redone.groups > 0, "{name}: nothing to redo");
        let expected = String::from_utf8(golden(name, "txt")).unwrap();
        for (found, expected) in golden::text(&image).lines().zip(expected.lines()) {
            assert_eq!(found, expected, "{name}");
        }
        assert_eq!(golden::text(&image), expected);
    }
}

/// A device of the simulation as a file.
fn written(name: &str, disk: &SimDisk) -> PathBuf {
    let block = |block: u64| (block, disk.peek(block * 4096, 4096));
    let blocks = (0..disk.size() / 4096).map(block);
    file(name, disk.size(), blocks.filter(|(_, data)| !device::is_zero(data)))
}

/// Everything that the reader finds.
fn read(image: &Image) -> Told {
    let clients = image.clients().unwrap();
    let first = clients[0].0;
    let replies = image.replies().unwrap().into_iter();
    let mut kept = replies.filter(|&(client, slot, ..)| (client, slot) == (first, 4));
    let mut settings = image.settings().unwrap().into_iter().filter(|&(key, _)| key == 3);
    Told {
        found: image.walk().unwrap(),
        orphans: image.orphans().unwrap(),
        pags: image.pags().unwrap(),
        pools: image.pools().unwrap(),
        clients,
        reply: kept.next().map(|(_, _, sequence, answer)| (sequence, answer)),
        setting: settings.next().map(|(_, value)| value),
    }
}

/// Compares the reader with the store, and what it reads with itself.
fn check(name: &str, plan: Plan) {
    let disk = make(plan);
    let path = written(name, &disk);
    let image = Image::open(&path).unwrap();
    assert_eq!(image.device.redone.groups > 0, plan.cut, "{plan:?}");
    let (read, told) = (read(&image), told(&disk));
    for (read, told) in read.found.iter().zip(&told.found) {
        assert_eq!(read, told, "{plan:?}");
    }
    assert_eq!(read.found.len(), told.found.len());
    assert_eq!(Told { found: Vec::new(), ..read }, Told { found: Vec::new(), ..told }, "{plan:?}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn an_image_of_each_kind_is_what_the_store_tells_of_it() {
    for slots in SlotSize::ALL {
        for kind in 0..8 {
            let (inline, near, cut) = (kind & 1 != 0, kind & 2 != 0, kind & 4 != 0);
            let name = format!("{slots:?}-{kind}");
            check(&name, Plan { slots, inline, near, cut, names: 300 });
        }
    }
}
