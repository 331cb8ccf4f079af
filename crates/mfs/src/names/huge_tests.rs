//! A directory with room for a hundred million files: positions, places, numbers and counts at its
//! far end.
//!
//! Nearly all of its blocks were given back, as if the files had been removed: so it is small, but
//! every address is as it would be. Files are put into slots all over it.

use env::DiskOptions;
use env::sim::SimWorld;
use types::{Attr, DirNo, FileKind, Ino, Name, Uuid};

use crate::format::chunk::{ContentRun, DESCRIPTOR, Descriptor, chunk_key};
use crate::format::number::{CHUNK_BLOCKS, CHUNK_SLOTS, SlotPlace, ino_of};
use crate::fsck::{FsckOptions, fsck};
use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use crate::testing::new_inode;
use crate::trees::{CHUNKS, NEXT_CHUNK};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::Stop;
use engine::format::features::Features;

/// Files for which there is room, and the device that would hold them.
const ROOM: u64 = 100_000_000;
const DEVICE: u64 = 64 << 30;
const CHUNKS_OF_IT: u64 = ROOM.div_ceil(CHUNK_SLOTS as u64);
const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };

fn name(n: u64) -> Name {
    Name::new(format!("file{n}").as_bytes()).unwrap()
}

async fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    mfs.run(Cost::STEP, body).await.unwrap().0
}

/// The directory and its first chunk; all blocks of its chunks were given back.
async fn hollow_directory(mfs: &Mfs) -> (Ino, DirNo) {
    let dir = run(mfs, |txn| {
        let attr = txn.names().attr(Ino::ROOT)?.unwrap();
        txn.names().set_attr(&Attr { nlink: attr.nlink + 1, ..attr })?;
        txn.names().create(
            Ino::ROOT,
            &Name::new(b"huge").unwrap(),
            &new_inode(FileKind::Directory),
            None,
        )
    })
    .await;
    let first = run(mfs, |txn| txn.root(NEXT_CHUNK)).await;
    for from in (0..CHUNKS_OF_IT).step_by(64) {
        run(mfs, |txn| {
            for index in from..CHUNKS_OF_IT.min(from + 64) {
                let number = DirNo(first + index);
                let more = index + 1 < CHUNKS_OF_IT;
                let next = DirNo(if more { first + index + 1 } else { 0 });
                let index = index as u32;
                let descriptor = Descriptor { owner: dir, next, index, used: CHUNK_BLOCKS };
                let run = ContentRun::hole(0, CHUNK_BLOCKS, 3);
                CHUNKS.insert(txn, &chunk_key(number, 0), &run.encode())?;
                CHUNKS.insert(txn, &chunk_key(number, DESCRIPTOR), &descriptor.encode())?;
            }
            txn.set_root(NEXT_CHUNK, first + CHUNKS_OF_IT)
        })
        .await;
    }
    run(mfs, |txn| {
        let (spot, mut slot) = txn.names().locate_live(dir)?;
        slot.set_body(first);
        txn.names().store(&spot, &slot)
    })
    .await;
    mfs.forget_indexes();
    (dir, DirNo(first))
}

#[test]
fn directory_for_a_hundred_million_files_works_to_its_last_slot() {
    let world = SimWorld::new(1);
    world.disk("meta", DEVICE);
    world.run(|env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let format = FormatOptions {
            name: "huge".to_owned(),
            uuid: Uuid([9; 16]),
            log_bytes: 16 << 20,
            pags: Vec::new(),
            features: Features::NONE,
            force: false,
        };
        Mfs::format(&env, &disk, &format).await.unwrap();
        let open = || Mfs::open(&env, &disk, OpenOptions::default());
        let mfs = open().await.unwrap();
        let (dir, first) = hollow_directory(&mfs).await;
        let mut made = Vec::new();
        for index in (0..CHUNKS_OF_IT).step_by(25) {
            for slot in [0, 77, CHUNK_SLOTS - 1] {
                let ino = ino_of(SlotPlace { chunk: DirNo(first.0 + index), slot }, 3);
                let number = index * u64::from(CHUNK_SLOTS) + u64::from(slot);
                let file = new_inode(FileKind::Regular);
                let there =
                    run(&mfs, |txn| txn.names().create(dir, &name(number), &file, Some(ino))).await;
                assert_eq!(there, ino);
                made.push((number, ino));
            }
        }
        assert!(made.last().unwrap().0 >= ROOM - 1);
        // And one for which the store chooses the slot.
        let taken =
            run(&mfs, |txn| txn.names().create(dir, &name(5), &new_inode(FileKind::Regular), None))
                .await;
        mfs.close().await.unwrap();
        let mfs = open().await.unwrap();
        for &(number, ino) in &made {
            let found = run(&mfs, |txn| txn.names().lookup(dir, &name(number))).await;
            assert_eq!(found, Some(ino), "{number}");
        }
        assert_eq!(run(&mfs, |txn| txn.names().lookup(dir, &name(5))).await, Some(taken));
        let (mut listed, mut after) = (Vec::new(), 0);
        loop {
            let entries = run(&mfs, |txn| txn.names().readdir(dir, after, 7)).await;
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            listed.extend(entries.iter().map(|entry| entry.ino).filter(|ino| *ino != taken));
        }
        assert_eq!(listed, made.iter().map(|(_, ino)| *ino).collect::<Vec<_>>());
        mfs.close().await.unwrap();
        let report = fsck(&env, &disk, FsckOptions::default()).await.unwrap();
        assert_eq!(report.problems, []);
        // The root, the orphan directory, the directory, and its files.
        assert_eq!(report.counts.inodes, 3 + made.len() as u64 + 1);
    });
}
