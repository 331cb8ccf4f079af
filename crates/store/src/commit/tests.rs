//! How groups gather, and that who is alone does not wait.

use env::DiskOptions;
use env::sim::{DiskModel, HardDisk, SimWorld};
use types::{FileKind, Ino, Name, Uuid};

use super::*;
use crate::mfs::Cost;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use crate::testing::new_inode;

#[test]
fn a_group_gathers_an_eighth_of_the_time_that_the_one_before_took_or_until_all_are_there() {
    let (ms, now) = (Duration::from_millis, Instant(1_000_000_000));
    let after = |took, waiting| Gathering::after(took, now, waiting);
    assert_eq!(after(ms(4), 1), Gathering::NOTHING, "alone");
    assert_eq!(after(Duration::from_micros(300), 40), Gathering::NOTHING, "a fast device");
    let four = after(ms(4), 40);
    let end = now + Duration::from_micros(500);
    assert_eq!(four.goes_on(now, 20), Some(end));
    assert_eq!(four.goes_on(now, 40), None, "all are there");
    assert_eq!(four.goes_on(end, 20), None, "the time is over");
    assert_eq!(after(ms(4000), 9).goes_on(now, 0), Some(now + GATHER_MAX));
    assert_eq!(Gathering::NOTHING.goes_on(Instant(0), 0), None);
}

/// Processes make files on the papers' hard disk, each durable before the next, with a moment
/// between: the groups that the log took, and the time.
fn durable(processes: u64, files: u64) -> (u64, Duration) {
    let world = SimWorld::new(1);
    let disk = world.disk("meta", 1 << 30);
    disk.set_model(DiskModel::Hard(HardDisk::fibre_channel()));
    let outside = disk.clone();
    world.run(|env| async move {
        let disk = env.open_disk("meta", DiskOptions { write: true, exclusive: false });
        let disk = disk.await.unwrap();
        let options = FormatOptions {
            name: "home".to_owned(),
            uuid: Uuid([9; 16]),
            log_bytes: 16 << 20,
            pags: Vec::new(),
            features: crate::features::Features::USUAL,
            force: false,
        };
        Mfs::format(&env, &disk, &options).await.unwrap();
        let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap();
        mfs.sync().await.unwrap();
        let (before, begin) = (outside.counts().flushes, env.now());
        let work = |process: u64| {
            let (env, mfs) = (env.clone(), mfs.clone());
            async move {
                // They do not begin together.
                env.sleep(Duration::from_micros(process * 211)).await;
                for n in 0..files {
                    let text = format!("{process}.{n}");
                    let name = Name::new(text.as_bytes()).unwrap();
                    let made = mfs.run(Cost::SMALL, |txn| {
                        txn.create(Ino::ROOT, &name, &new_inode(FileKind::Regular), None)
                    });
                    let number = made.await.unwrap().1;
                    mfs.wait_durable(number).await.unwrap();
                    env.sleep(Duration::from_micros(100 + process * 37 % 200)).await;
                }
            }
        };
        let tasks: Vec<_> = (0..processes).map(|process| env.spawn_join(work(process))).collect();
        for task in tasks {
            task.await;
        }
        (outside.counts().flushes - before, env.now().since(begin))
    })
}

#[test]
fn many_who_wait_for_a_slow_log_share_its_groups_and_one_alone_waits_for_nobody() {
    let (groups, _) = durable(40, 50);
    // Without a moment to gather each group would carry half of them.
    assert!(groups < 2000 / 30, "{groups}");
    let (groups, time) = durable(1, 50);
    assert_eq!(groups, 50);
    let turn = Duration::from_millis(4);
    assert!(time < turn * 50 + Duration::from_millis(50), "{time:?}");
}
