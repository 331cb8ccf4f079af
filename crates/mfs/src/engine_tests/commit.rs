//! Group commit delays: many callers share groups, and a single caller does not wait.

use env::DiskOptions;
use env::sim::{DiskModel, HardDisk, SimWorld};
use types::{Duration, FileKind, Ino, Name, Uuid};

use crate::handle::Mfs;
use crate::mkfs::FormatOptions;
use crate::open::OpenOptions;
use crate::testing::new_inode;
use engine::cost::Cost;

/// Processes create files on the modelled hard disk, each durable before the next, with short
/// pauses. Returns the number of groups that the log took, and the time.
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
            features: engine::format::features::Features::NONE,
            force: false,
        };
        Mfs::format(&env, &disk, &options).await.unwrap();
        let mfs = Mfs::open(&env, &disk, OpenOptions::default()).await.unwrap();
        mfs.sync().await.unwrap();
        let (before, begin) = (outside.counts().flushes, env.now());
        let work = |process: u64| {
            let (env, mfs) = (env.clone(), mfs.clone());
            async move {
                // The processes do not begin together.
                env.sleep(Duration::from_micros(process * 211)).await;
                for n in 0..files {
                    let text = format!("{process}.{n}");
                    let name = Name::new(text.as_bytes()).unwrap();
                    let made = mfs.run(Cost::SMALL, |txn| {
                        txn.names().create(Ino::ROOT, &name, &new_inode(FileKind::Regular), None)
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
fn group_commit_is_shared_by_many_callers_and_not_delayed_for_one() {
    let (groups, _) = durable(40, 50);
    // Without the delay each group would carry half of the callers.
    assert!(groups < 2000 / 30, "{groups}");
    let (groups, time) = durable(1, 50);
    assert_eq!(groups, 50);
    let turn = Duration::from_millis(4);
    assert!(time < turn * 50 + Duration::from_millis(50), "{time:?}");
}
