//! Small files that lie with their inodes, between clients and through crashes.

use client::{Handle, Place, SetAttrRequest};
use store::{Feature, Features, SlotSize};
use types::{Duration, Fault, Ino};

use crate::harness::{Cluster, Mount, RDWR, ROOT, check_with, logged, name};

fn features() -> Features {
    Features::USUAL.with_slots(SlotSize::Bytes1024).with(Feature::INLINE_DATA)
}

/// Reads, writes and flushes of the data device so far.
fn accesses(cluster: &Cluster) -> (u64, u64, u64) {
    let counts = cluster.data.counts();
    (counts.reads, counts.writes, counts.flushes)
}

async fn shorten(mount: &Mount, text: &str) {
    let set = SetAttrRequest { size: Some(10), ..SetAttrRequest::default() };
    mount.client.setattr(&ROOT, mount.ino(text).await, set).await.unwrap();
}

#[test]
fn small_files_are_synced_and_read_by_another_client_without_the_data_device() {
    for seed in [1, 2] {
        check_with(seed, features(), |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let before = accesses(&cluster);
            for index in 0..20u8 {
                let text = format!("f{index}");
                let (_, opened) = a.create(Ino::ROOT, &text, RDWR).await;
                a.write(opened.handle, 0, &vec![index; 30 * usize::from(index) + 1]).await;
                a.client.fsync(opened.handle, false).await.unwrap();
                a.close(opened.handle).await;
            }
            for index in 0..20u8 {
                assert_eq!(
                    b.get(&format!("f{index}")).await,
                    vec![index; 30 * usize::from(index) + 1]
                );
            }
            assert_eq!(accesses(&cluster), before);
            // One grows out of its slot under the other's hand.
            let handle = b.open(b.ino("f3").await, RDWR).await;
            b.write(handle, 91, &[200; 2000]).await;
            assert_eq!(a.get("f3").await, [vec![3; 91], vec![200; 2000]].concat());
            assert!(accesses(&cluster).1 > before.1);
            shorten(&b, "f3").await;
            assert_eq!(a.get("f3").await, vec![3; 10]);
            shorten(&a, "f4").await;
            assert_eq!(b.get("f4").await, vec![4; 10]);
        });
    }
}

#[test]
fn a_crash_of_the_server_or_the_client_leaves_content_whole() {
    for seed in [3, 4] {
        check_with(seed, features(), |cluster| async move {
            let a = cluster.mount("a").await;
            for index in 0..30u8 {
                a.put(&format!("f{index}"), &[index + 1; 300]).await;
            }
            // Committed, answered, and not durable: replayed to the next server.
            cluster.env.sleep(Duration::from_millis(1500)).await;
            for index in 0..10 {
                let handle = a.open(a.ino(&format!("f{index}")).await, RDWR).await;
                a.write(handle, 300, &[99; 3000]).await;
            }
            cluster.restart_server().await;
            let b = cluster.mount("b").await;
            for index in 0..30u8 {
                let mut want = vec![index + 1; 300];
                if index < 10 {
                    want.extend([99; 3000]);
                }
                assert_eq!(b.get(&format!("f{index}")).await, want, "f{index}");
            }
            // What was synced outlives its client.
            let (_, opened) = a.create(Ino::ROOT, "synced", RDWR).await;
            a.write(opened.handle, 0, b"there").await;
            a.client.fsync(opened.handle, false).await.unwrap();
            a.write(opened.handle, 0, &[7; 4096]).await;
            cluster.world.kill("a");
            assert_eq!(b.get("synced").await, b"there");
        });
    }
}

/// Files that are open and empty, and not one block more of metadata than what is kept for removals.
async fn full_of(mount: &Mount, files: usize) -> Vec<Handle> {
    let mut handles = Vec::new();
    for index in 0..files {
        handles.push(mount.create(Ino::ROOT, &format!("f{index}"), RDWR).await.1.handle);
    }
    for (index, len) in [60_000, 8000, 3000].into_iter().enumerate() {
        for at in 0.. {
            let ino = mount.put(&format!("x{index}.{at}"), b"").await;
            let set = mount.client.setxattr(&ROOT, ino, b"user.x", &vec![7; len], 0, false).await;
            if set.is_err() {
                assert_eq!(set, Err(Fault::NoSpace));
                break;
            }
        }
    }
    handles
}

async fn renamed(mount: &Mount, old: &str, new: &str) -> Result<(), Fault> {
    let (old, new) = (name(old), name(new));
    let place = |name| Place { dir: Ino::ROOT, name };
    mount.client.rename(&ROOT, place(&old), place(&new), 0).await
}

/// Longer names and attributes for files whose content is on its way: 800 bytes, where slots have room for 878.
#[test]
fn with_a_full_metadata_zone_nothing_is_lost_of_content_whose_room_shrinks() {
    for seed in [5, 6] {
        check_with(seed, features(), |cluster| async move {
            let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
            let handles = full_of(&a, 600).await;
            let mut names: Vec<String> = (0..600).map(|index| format!("f{index}")).collect();
            let mut refused = 0;
            for (index, (handle, text)) in handles.iter().zip(&mut names).enumerate() {
                a.write(*handle, 0, &[(index % 250) as u8 + 1; 800]).await;
                let by = if index % 2 == 0 { &a } else { &b };
                if index % 3 == 0 {
                    let set = by.client.setxattr(
                        &ROOT,
                        by.ino(text).await,
                        b"user.y",
                        &[8; 150],
                        0,
                        false,
                    );
                    refused += usize::from(set.await == Err(Fault::NoSpace));
                    continue;
                }
                let longer = format!("{text}{}", "n".repeat(200));
                match renamed(by, text, &longer).await {
                    Ok(()) => *text = longer,
                    Err(fault) => {
                        assert_eq!(fault, Fault::NoSpace);
                        refused += 1;
                    }
                }
            }
            assert!(refused > 400, "{refused} were refused");
            for (index, (handle, text)) in handles.into_iter().zip(&names).enumerate() {
                assert_eq!(a.client.fsync(handle, false).await, Ok(()), "{text}");
                assert!(b.get(text).await == [(index % 250) as u8 + 1; 800], "{text}");
                a.close(handle).await;
            }
            let lost = logged().into_iter().find(|line| line.contains("lost"));
            assert_eq!(lost, None);
            // And there is still what removals need.
            for text in &names {
                a.unlink(Ino::ROOT, text).await.unwrap();
            }
        });
    }
}

/// The room is told again with the next lease.
#[test]
fn a_longer_name_leaves_less_room_for_what_is_written_next() {
    check_with(7, features(), |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, &[1; 600]).await;
        renamed(&a, "f", &"n".repeat(201)).await.unwrap();
        a.write(opened.handle, 600, &[2; 200]).await;
        a.client.fsync(opened.handle, false).await.unwrap();
        let layout = a.client.getxattr(entry.attr.ino, b"user.redbud.layout").await.unwrap();
        let layout = String::from_utf8(layout).unwrap();
        assert!(layout.contains("written") && !layout.contains("inline"), "{layout}");
        assert!(b.get(&"n".repeat(201)).await == [vec![1; 600], vec![2; 200]].concat());
    });
}
