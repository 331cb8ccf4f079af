//! Scarce space is shared: a client returns what it does not need.

use types::{Fault, Ino};

use crate::harness::{LEASE, Mount, Notice, RDONLY, RDWR, ROOT, WRONLY, check};

const MIB: u64 = 1 << 20;

/// Used blocks and inodes, as `df` shows them.
async fn used(mount: &Mount) -> (u64, u64) {
    let space = mount.client.statfs().await.unwrap();
    (space.blocks - space.blocks_free, space.inodes - space.inodes_free)
}

/// SEMANTICS 4.18.
#[test]
fn space_that_another_client_has_synced_counts_at_once() {
    check(5, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (blocks, inodes) = used(&b).await;
        let (_, opened) = a.create(Ino::ROOT, "big", RDWR).await;
        for at in 0..100 {
            a.write(opened.handle, at * MIB, &vec![7; MIB as usize]).await;
        }
        a.client.fsync(opened.handle, false).await.unwrap();
        let (blocks_now, inodes_now) = used(&b).await;
        assert!(blocks_now >= blocks + 100 * MIB / 4096, "{blocks_now} blocks, {blocks} before");
        assert_eq!(inodes_now, inodes + 1);
        a.close(opened.handle).await;
    });
}

/// SEMANTICS 4.18.
#[test]
fn space_that_a_client_uses_itself_counts_at_once_and_exactly() {
    for seed in [2, 3, 4] {
        check(seed, |cluster| async move {
            let a = cluster.mount("a").await;
            let (blocks, inodes) = used(&a).await;
            let (made, opened) = a.create(Ino::ROOT, "big", RDWR).await;
            assert_eq!(used(&a).await, (blocks, inodes + 1), "made");
            for at in 0..100 {
                a.write(opened.handle, at * MIB, &vec![7; MIB as usize]).await;
            }
            assert_eq!(used(&a).await, (blocks + 100 * MIB / 4096, inodes + 1), "written");
            a.client.fsync(opened.handle, false).await.unwrap();
            assert_eq!(used(&a).await, (blocks + 100 * MIB / 4096, inodes + 1), "synced");
            let cut = client::SetAttrRequest { size: Some(60 * MIB), ..Default::default() };
            a.client.setattr(&ROOT, made.attr.ino, cut).await.unwrap();
            assert_eq!(used(&a).await, (blocks + 60 * MIB / 4096, inodes + 1), "cut");
            let (punch, keep_size) = (2, 1);
            let punch = a.client.fallocate(&ROOT, opened.handle, punch | keep_size, 0, 10 * MIB);
            punch.await.unwrap();
            assert_eq!(used(&a).await, (blocks + 50 * MIB / 4096, inodes + 1), "punched");
            a.client.fallocate(&ROOT, opened.handle, keep_size, 60 * MIB, MIB).await.unwrap();
            assert_eq!(used(&a).await, (blocks + 51 * MIB / 4096, inodes + 1), "allocated");
            a.close(opened.handle).await;
            a.unlink(Ino::ROOT, "big").await.unwrap();
            assert_eq!(used(&a).await, (blocks, inodes), "removed");
        });
    }
}

#[test]
fn removed_file_of_many_segments_counts_as_free_at_once() {
    check(8, |cluster| async move {
        let a = cluster.mount("a").await;
        let before = used(&a).await;
        let (_, opened) = a.create(Ino::ROOT, "f", WRONLY).await;
        for at in 0..2000 {
            a.write(opened.handle, at * 8192, &[1; 4096]).await;
        }
        a.client.fsync(opened.handle, false).await.unwrap();
        a.close(opened.handle).await;
        assert_eq!(used(&a).await, (before.0 + 2000, before.1 + 1));
        a.unlink(Ino::ROOT, "f").await.unwrap();
        assert_eq!(used(&a).await, before);
    });
}

/// Allocates 1 MiB at a time until there is no space; returns the number of MiB.
async fn fill(mount: &Mount, text: &str) -> u64 {
    let (_, opened) = mount.create(Ino::ROOT, text, WRONLY).await;
    let mut done = 0;
    loop {
        let step = mount.client.fallocate(&ROOT, opened.handle, 0, done * MIB, MIB).await;
        match step {
            Ok(()) => done += 1,
            Err(Fault::NoSpace) => break,
            Err(other) => panic!("{other}"),
        }
    }
    mount.close(opened.handle).await;
    done
}

#[test]
fn pool_of_an_idle_client_does_not_fill_the_device_for_another() {
    check(1, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let capacity = a.client.statfs().await.unwrap().blocks * 4096 / MIB;
        let (_, opened) = a.create(Ino::ROOT, "of a", WRONLY).await;
        for at in 0..100 {
            a.client.fallocate(&ROOT, opened.handle, 0, at * MIB, MIB).await.unwrap();
        }
        let filled = fill(&b, "of b").await;
        assert!(100 + filled + 2 >= capacity, "{filled} of {} MiB", capacity - 100);
    });
}

#[test]
fn two_clients_that_fill_the_device_together_use_all_of_it() {
    for seed in [1, 2, 3] {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let capacity = a.client.statfs().await.unwrap().blocks * 4096 / MIB;
            let mut tasks = Vec::new();
            for (index, mount) in [&a, &b, &a, &b, &a, &b].into_iter().enumerate() {
                let mount = mount.clone();
                let fill = async move { fill(&mount, &format!("f{index}")).await };
                tasks.push(cluster.env.spawn_join(fill));
            }
            let mut filled = 0;
            for task in tasks {
                let ended = cluster.env.timeout(types::Duration::from_secs(300), task).await;
                filled += ended.expect("a writer is stuck");
            }
            assert!(filled + 3 >= capacity, "{filled} of {capacity} MiB");
        });
    }
}

#[test]
fn kernel_drops_the_pages_of_a_range_that_was_only_partly_zeroed() {
    check(6, |cluster| async move {
        let a = cluster.mount("a").await;
        let capacity = a.client.statfs().await.unwrap().blocks * 4096;
        let (made, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        let (ino, handle) = (made.attr.ino, opened.handle);
        a.write(handle, 0, &[1; 8192]).await;
        a.client.fsync(handle, false).await.unwrap();
        assert_eq!(a.read_page(ino, handle, 0).await, [1; 4096]);
        a.kernel.notices.borrow_mut().clear();
        let zero_keeping_size = 16 | 1;
        let zeroed = a.client.fallocate(&ROOT, handle, zero_keeping_size, 0, 2 * capacity).await;
        assert_eq!(zeroed, Err(Fault::NoSpace));
        let notices = [Notice::Attr(ino), Notice::Pages(ino, 0, 2 * capacity)];
        assert_eq!(*a.kernel.notices.borrow(), notices);
        assert_eq!(a.read_page(ino, handle, 0).await, [0; 4096]);
        // An unknown mode changes nothing.
        a.kernel.notices.borrow_mut().clear();
        assert_eq!(a.client.fallocate(&ROOT, handle, 8, 0, 4096).await, Err(Fault::NotSupported));
        assert_eq!(*a.kernel.notices.borrow(), []);
    });
}

#[test]
fn orphan_that_only_a_silent_client_has_open_does_not_fill_the_device() {
    check(5, |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let capacity = a.client.statfs().await.unwrap().blocks * 4096 / MIB;
        let (made, opened) = a.create(Ino::ROOT, "f", WRONLY).await;
        for at in 0..100 {
            a.client.fallocate(&ROOT, opened.handle, 0, at * MIB, MIB).await.unwrap();
        }
        a.close(opened.handle).await;
        assert_eq!(b.ino("f").await, made.attr.ino);
        b.open(made.attr.ino, RDONLY).await;
        a.unlink(Ino::ROOT, "f").await.unwrap();
        cluster.world.isolate("b");
        cluster.env.sleep(LEASE * 2).await;
        fill(&a, "first").await;
        a.unlink(Ino::ROOT, "first").await.unwrap();
        // The quarantine of the evicted client.
        cluster.env.sleep(LEASE * 2).await;
        let filled = fill(&a, "second").await;
        assert!(filled + 3 >= capacity, "{filled} of {capacity} MiB");
    });
}

/// PROTOCOLS 3.8.
#[test]
fn removals_and_commits_in_all_slots_go_on_in_a_full_metadata_zone() {
    for seed in [6, 7] {
        check(seed, |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let mut open = Vec::new();
            for n in 0..100 {
                let (made, opened) = a.create(Ino::ROOT, &format!("{n}"), RDWR).await;
                a.write(opened.handle, 0, &[1; 4096]).await;
                a.client.fsync(opened.handle, false).await.unwrap();
                open.push((made.attr.ino, opened.handle));
            }
            let mut filled = 0;
            let full = loop {
                let (made, opened) = b.create(Ino::ROOT, &format!("fill{filled}"), RDWR).await;
                b.close(opened.handle).await;
                filled += 1;
                let (ino, value) = (made.attr.ino, vec![7; 60_000]);
                if let Err(fault) = b.client.setxattr(&ROOT, ino, b"user.a", &value, 0, false).await
                {
                    break fault;
                }
            };
            assert_eq!(full, Fault::NoSpace);
            // In place: no new block is mapped.
            let mut tasks = Vec::new();
            for (n, &(ino, handle)) in open.iter().enumerate() {
                let (a, b) = (a.clone(), b.clone());
                tasks.push(cluster.env.spawn_join(async move {
                    a.write(handle, 0, &[2; 4096]).await;
                    a.client.fsync(handle, false).await.unwrap();
                    a.close(handle).await;
                    let mode = client::SetAttrRequest { mode: Some(0o600), ..Default::default() };
                    b.client.setattr(&ROOT, ino, mode).await.unwrap();
                    if n % 2 == 0 {
                        b.unlink(Ino::ROOT, &format!("{n}")).await.unwrap();
                    }
                }));
            }
            cluster.restart_server().await;
            for task in tasks {
                task.await;
            }
            cluster.restart_server().await;
            for n in 0..100 {
                let there = a.find(Ino::ROOT, &format!("{n}")).await;
                assert_eq!(there.is_some(), n % 2 == 1, "{n}");
                if there.is_some() {
                    assert_eq!(a.get(&format!("{n}")).await, [2; 4096]);
                }
            }
        });
    }
}
