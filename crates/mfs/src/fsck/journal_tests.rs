//! Damage of a journal's header and label, and a label of the metadata that names another journal.

use env::sim::{SimDisk, SimWorld};
use env::{DiskOptions, Env};
use label::{Label, SliceKind};
use types::limits::BLOCK;
use types::{Lsn, MetaBlock, Uuid};

use super::tests::{Outcome, settled};
use super::{FsckOptions, ProblemKind, Repaired, Report, Subject, fsck, repair};
use crate::handle::Mfs;
use crate::journal::{Disks, move_log};
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use engine::format::features::Features;

const WRITE: DiskOptions = DiskOptions { write: true, exclusive: false };
const SIZE: u64 = 64 << 20;
const LOG: u64 = 4 << 20;

/// The metadata device and that of its journal.
struct Pair {
    home: SimDisk,
    log: SimDisk,
}

async fn disks(env: &Env) -> Disks {
    let home = env.open_disk("meta", WRITE).await.unwrap();
    Disks { home, log: Some(env.open_disk("log", WRITE).await.unwrap()) }
}

impl Pair {
    fn formatted() -> Pair {
        let pair = Pair { home: SimDisk::new(SIZE), log: SimDisk::new(LOG + 4 * BLOCK as u64) };
        pair.run(|env| async move {
            let options = FormatOptions {
                name: "home".to_owned(),
                uuid: Uuid([3; 16]),
                log_bytes: LOG,
                pags: Vec::new(),
                features: Features::NONE,
                force: false,
            };
            Mfs::format(&env, &disks(&env).await, &options).await.unwrap();
        });
        pair
    }

    fn fork(&self) -> Pair {
        Pair { home: self.home.fork(), log: self.log.fork() }
    }

    fn run<T: 'static, F: Future<Output = T>>(&self, body: impl FnOnce(Env) -> F) -> T {
        let world = SimWorld::new(1);
        world.attach("meta", &self.home);
        world.attach("log", &self.log);
        world.run(body)
    }

    fn checked(&self) -> Report {
        self.run(|env| async move {
            fsck(&env, &disks(&env).await, FsckOptions::default()).await.unwrap()
        })
    }

    fn repaired(&self) -> Repaired {
        self.run(|env| async move {
            repair(&env, &disks(&env).await, FsckOptions::default()).await.unwrap()
        })
    }

    /// The check finds only this, and repair mends it.
    fn assert_repaired(&self, kind: ProblemKind, subject: Subject, what: &str) {
        let found: Vec<_> =
            self.checked().problems.into_iter().map(|it| (it.kind, it.subject)).collect();
        assert_eq!(found, [(kind, subject)], "{what}");
        let repaired = self.repaired();
        assert_eq!(repaired.left.problems, [], "{what}");
        assert_eq!(repaired.found.len(), 1, "{what}");
        assert_eq!(self.checked().problems, [], "{what}");
        settled(kind, Outcome::Repaired);
    }
}

#[test]
pub(crate) fn damaged_header_or_label_of_a_journal_is_written_anew() {
    let pair = Pair::formatted();
    assert_eq!(pair.checked().problems, []);
    let last = pair.log.size() / BLOCK as u64 - 1;
    // A copy of the label, a copy of the header, the other ones.
    for block in [0, 1, 2, last] {
        let pair = pair.fork();
        pair.log.flip_bit(block * BLOCK as u64 + 20, 3);
        let subject = Subject::Log(Lsn(0));
        pair.assert_repaired(ProblemKind::DamagedJournal, subject, &format!("block {block}"));
    }
    let both = pair.fork();
    [0, last].iter().for_each(|block| both.log.poke(block * BLOCK as u64, &[0; BLOCK]));
    both.assert_repaired(ProblemKind::DamagedJournal, Subject::Log(Lsn(0)), "no label");
}

#[test]
fn label_that_names_another_journal_than_the_superblock_is_written_anew() {
    let pair = Pair::formatted();
    let before = pair.fork();
    let new = SimDisk::new(LOG + 4 * BLOCK as u64);
    let to = new.clone();
    let world = SimWorld::new(2);
    world.attach("meta", &pair.home);
    world.attach("log", &pair.log);
    world.attach("new", &to);
    world.run(|env| async move {
        let to = env.open_disk("new", WRITE).await.unwrap();
        move_log(&env, &disks(&env).await, Some(&to), false).await.unwrap();
    });
    // As a move that was cut off before it wrote the label.
    let end = SIZE / BLOCK as u64 - 1;
    for block in [0, end] {
        pair.home.poke(block * BLOCK as u64, &before.home.peek(block * BLOCK as u64, BLOCK));
    }
    let moved = Pair { home: pair.home, log: new };
    let subject = Subject::Block(MetaBlock(0));
    moved.assert_repaired(ProblemKind::DamagedLabel, subject, "the old journal");
}

#[test]
fn label_that_names_another_shard_than_the_superblock_is_written_anew() {
    let pair = Pair::formatted();
    let world = SimWorld::new(2);
    world.attach("meta", &pair.home);
    world.run(|env| async move {
        let disk = env.open_disk("meta", WRITE).await.unwrap();
        let found = label::read(&disk).await.unwrap();
        let change = |label: &mut Label| {
            if let SliceKind::Metadata { shard, .. } = &mut label.slices[0].kind {
                *shard = 7;
            }
        };
        label::update(&disk, &found, change).await.unwrap();
    });
    let subject = Subject::Block(MetaBlock(0));
    pair.assert_repaired(ProblemKind::DamagedLabel, subject, "another shard");
}

#[test]
fn fsck_refuses_a_device_without_the_journal_of_the_metadata() {
    let pair = Pair::formatted();
    [1, 2].iter().for_each(|block| pair.log.poke(block * BLOCK as u64, &[0; BLOCK]));
    let refused = pair.run(|env| async move {
        let disks = disks(&env).await;
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let opened = Mfs::open(&env, &disks, options).await.err().unwrap().to_string();
        let checked = fsck(&env, &disks, FsckOptions::default()).await.unwrap_err().to_string();
        assert_eq!(opened, checked);
        checked
    });
    assert!(refused.contains("carries no journal"), "{refused}");
}
