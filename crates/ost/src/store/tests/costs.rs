//! What the log costs (paper 001, sections 3.2 and 5): the paper counts 16 KB and 4 KB of journal
//! for each appended megabyte, in two writes at least.

use env::IoBuf;
use types::limits::BLOCK;
use types::{Duration, ObjectId, crc32c};

use super::{Disks, FREELY, NOBODY, open, write};

/// Appends `count` times 1 MiB to one object; returns the bytes of the log for each, the groups,
/// and the writes and flushes of the journal's disk.
fn append(count: u64, wait: bool) -> (u64, u64, u64, u64) {
    let disks = Disks::formatted(count * 256 + 10_000, 16 << 20, true, true);
    let journal = disks.journal.clone().unwrap();
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        let sums = vec![crc32c(&[0; BLOCK]); 256];
        let before = journal.counts();
        for n in 0..count {
            let data = IoBuf::zeroed(256 * BLOCK);
            let number =
                store.write(NOBODY, (ObjectId(1), n * 256), data, &sums, FREELY).await.unwrap();
            if wait {
                store.engine().wait_durable(number).await.unwrap();
            }
        }
        store.engine().sync().await.unwrap();
        let (commit, after) = (store.counters().commit, journal.counts());
        assert_eq!(commit.log.count, commit.groups);
        let (writes, flushes) = (after.writes - before.writes, after.flushes - before.flushes);
        (commit.bytes / count, commit.groups, writes, flushes)
    })
}

#[test]
fn append_of_a_megabyte_takes_few_bytes_of_the_log_and_one_write_of_it() {
    let (bytes, groups, writes, flushes) = append(256, true);
    assert_eq!((groups, writes, flushes), (256, 256, 256), "one write and one flush each");
    assert!(bytes <= 12 << 10, "{bytes} bytes of log for each");
    let (bytes, groups, writes, _) = append(256, false);
    assert!(groups <= 8 && writes <= 16, "{groups} groups in {writes} writes");
    assert!(bytes <= 4 << 10, "{bytes} bytes of log for each");
}

#[test]
fn points_of_serialisation_are_counted() {
    let disks = Disks::formatted(4000, 256 << 10, false, true);
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        let clients: Vec<_> = (0..8u64)
            .map(|object| {
                let store = store.clone();
                env.spawn_join(async move {
                    for n in 0..20 {
                        let number = write(&store, object, n * 16, 16, n).await.unwrap();
                        store.engine().wait_durable(number).await.unwrap();
                    }
                })
            })
            .collect();
        for client in clients {
            client.await;
        }
        let counters = store.counters();
        let commit = counters.commit;
        assert_eq!((counters.writes, counters.written_blocks, counters.in_flight), (160, 2560, 0));
        assert!(commit.groups > 20 && commit.groups < 160, "{commit:?}");
        assert_eq!((commit.data.count, commit.log.count), (commit.groups, commit.groups));
        assert!(commit.closed.count > 0 && commit.closed.nanos > 0, "{commit:?}");
        assert!(commit.data.nanos > 0 && commit.data_flush.nanos > 0, "{commit:?}");
        assert!(counters.data.count == 160 && counters.data.nanos > 0);
        // Without anybody who waits, a quarter of the log locks the group.
        for n in 0..300 {
            write(&store, 1, n * 2, 1, n).await.unwrap();
        }
        let commit = store.counters().commit;
        assert!(commit.locked.count + commit.home.count > 0, "{commit:?}");
        env.sleep(Duration::from_secs(2)).await;
        assert_eq!(store.engine().last_committed().lsn, store.engine().log_end());
    });
}
