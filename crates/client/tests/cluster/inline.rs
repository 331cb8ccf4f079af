//! Small files that lie with their inodes, between clients and through crashes.

use client::{Handle, NodeSpec, Place, SetAttrRequest};
use store::{Feature, Features, SlotSize};
use types::{Duration, Fault, FileKind, Ino};

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

/// A client that has blocks of the data zone: getting some takes metadata.
async fn with_space(mount: Mount) -> Mount {
    mount.put("large", &[1; 4096]).await;
    mount
}

/// Leaves not one block of metadata but what is kept for removals.
async fn fill_metadata(mount: &Mount) {
    let node = NodeSpec { kind: FileKind::Regular, mode: 0o644, umask: 0, rdev: 0 };
    for (index, len) in [60_000, 8000, 3000].into_iter().enumerate() {
        for at in 0.. {
            let text = name(&format!("x{index}.{at}"));
            let place = Place { dir: Ino::ROOT, name: &text };
            let set = match mount.client.mknod(&ROOT, place, node).await {
                Ok(entry) => set_xattr(mount, entry.attr.ino, len).await,
                Err(fault) => Err(fault),
            };
            if set.is_err() {
                assert_eq!(set, Err(Fault::NoSpace));
                break;
            }
        }
    }
}

async fn renamed(mount: &Mount, old: &str, new: &str) -> Result<(), Fault> {
    let (old, new) = (name(old), name(new));
    let place = |name| Place { dir: Ino::ROOT, name };
    mount.client.rename(&ROOT, place(&old), place(&new), 0).await
}

async fn set_xattr(mount: &Mount, ino: Ino, len: usize) -> Result<(), Fault> {
    mount.client.setxattr(&ROOT, ino, b"user.y", &vec![8; len], 0, false).await
}

/// Longer names and attributes for files whose content is on its way: 800 bytes, where slots have
/// room for 878. Who takes the room is not refused: the content goes to the data zone.
#[test]
fn with_a_full_metadata_zone_nothing_is_lost_of_content_whose_room_shrinks() {
    for seed in [5, 6] {
        check_with(seed, features(), |cluster| async move {
            let (a, b) = (with_space(cluster.mount("a").await).await, cluster.mount("b").await);
            let mut names: Vec<String> = (0..600).map(|index| format!("f{index}")).collect();
            let mut handles = Vec::new();
            for text in &names {
                handles.push(a.create(Ino::ROOT, text, RDWR).await.1.handle);
            }
            fill_metadata(&a).await;
            let (mut took, mut refused) = (0, 0);
            for (index, (handle, text)) in handles.iter().zip(&mut names).enumerate() {
                a.write(*handle, 0, &[(index % 250) as u8 + 1; 800]).await;
                let by = if index % 2 == 0 { &a } else { &b };
                if index % 3 == 0 {
                    // Who sets an attribute takes the right to write: the content is there first.
                    let set = set_xattr(by, by.ino(text).await, 150).await;
                    match set {
                        Ok(()) => took += 1,
                        Err(fault) => {
                            assert_eq!(fault, Fault::NoSpace);
                            refused += 1;
                        }
                    }
                    continue;
                }
                let longer = format!("{text}{}", "n".repeat(200));
                match renamed(by, text, &longer).await {
                    Ok(()) => {
                        *text = longer;
                        took += 1;
                    }
                    Err(fault) => {
                        assert_eq!(fault, Fault::NoSpace);
                        refused += 1;
                    }
                }
            }
            let before = accesses(&cluster);
            let placed = check_all_there(&a, &b, handles, &names).await;
            assert_eq!(
                placed, took,
                "content whose room went has a block of the data zone, all other is where it was"
            );
            assert!(took > 0 && refused > 0, "{took} got room, {refused} did not");
            assert!(accesses(&cluster).1 > before.1, "some content has a block of the data zone");
        });
    }
}

/// What files hold that were each written with 800 bytes, here and for another client; and that
/// nothing was told as lost. How many have a block of the data zone, the others being content.
async fn check_all_there(a: &Mount, b: &Mount, handles: Vec<Handle>, names: &[String]) -> usize {
    let mut placed = 0;
    for (index, (handle, text)) in handles.into_iter().zip(names).enumerate() {
        assert_eq!(a.client.fsync(handle, false).await, Ok(()), "{text}");
        assert!(b.get(text).await == [(index % 250) as u8 + 1; 800], "{text}");
        let layout = a.client.getxattr(a.ino(text).await, b"user.redbud.layout").await.unwrap();
        let layout = String::from_utf8(layout).unwrap();
        assert!(layout.contains("written") != layout.contains("inline"), "{layout}");
        placed += usize::from(layout.contains("written"));
        a.close(handle).await;
    }
    let lost = logged().into_iter().find(|line| line.contains("lost"));
    assert_eq!(lost, None);
    // And there is still what removals need.
    for text in names {
        a.unlink(Ino::ROOT, text).await.unwrap();
    }
    placed
}

/// The room was told with a lease that the names and attributes that take it do not end.
#[test]
fn with_a_full_metadata_zone_room_that_was_told_long_ago_is_counted_on_and_nothing_lost() {
    for seed in [8, 9] {
        check_with(seed, features(), |cluster| async move {
            let (a, b) = (with_space(cluster.mount("a").await).await, cluster.mount("b").await);
            let mut names: Vec<String> = (0..60).map(|index| format!("f{index}")).collect();
            let mut handles = Vec::new();
            for (index, text) in names.iter_mut().enumerate() {
                let (entry, opened) = a.create(Ino::ROOT, text, RDWR).await;
                // The right to write goes to a reader, that to read stays.
                assert_eq!(b.get(text).await, Vec::<u8>::new());
                let ino = entry.attr.ino;
                match index % 4 {
                    0 => set_xattr(&b, ino, 150).await.unwrap(),
                    1 => {
                        // Out of the way for now, and back with an attribute less.
                        set_xattr(&b, ino, 3000).await.unwrap();
                        a.get(text).await;
                        set_xattr(&b, ino, 150).await.unwrap();
                    }
                    2 => {
                        let longer = format!("{text}{}", "n".repeat(200));
                        renamed(&b, text, &longer).await.unwrap();
                        *text = longer;
                    }
                    _ => {
                        // Its first name goes, and a longer one comes.
                        let longer = format!("{text}{}", "l".repeat(200));
                        linked(&b, ino, &longer).await.unwrap();
                        b.unlink(Ino::ROOT, text).await.unwrap();
                        *text = longer;
                    }
                }
                handles.push(opened.handle);
            }
            fill_metadata(&b).await;
            for (index, handle) in handles.iter().enumerate() {
                a.write(*handle, 0, &[index as u8 + 1; 800]).await;
            }
            let before = accesses(&cluster);
            let placed = check_all_there(&a, &b, handles, &names).await;
            assert_eq!(placed, names.len() / 4, "that whose only name got longer");
            assert!(accesses(&cluster).1 > before.1, "some content has a block of the data zone");
        });
    }
}

async fn linked(mount: &Mount, ino: Ino, text: &str) -> Result<(), Fault> {
    let name = name(text);
    mount.client.link(&ROOT, ino, Place { dir: Ino::ROOT, name: &name }).await.map(|_| ())
}

#[test]
fn content_that_a_longer_name_leaves_no_room_for_lies_apart() {
    check_with(7, features(), |cluster| async move {
        let (a, b) = (cluster.mount("a").await, cluster.mount("b").await);
        let (entry, opened) = a.create(Ino::ROOT, "f", RDWR).await;
        a.write(opened.handle, 0, &[1; 600]).await;
        renamed(&a, "f", &"n".repeat(201)).await.unwrap();
        a.write(opened.handle, 600, &[2; 200]).await;
        a.client.fsync(opened.handle, false).await.unwrap();
        let layout = a.client.getxattr(entry.attr.ino, b"user.redbud.layout").await.unwrap();
        let layout = String::from_utf8(layout).unwrap();
        assert!(!layout.contains("written") && layout.contains("inline"), "{layout}");
        assert!(b.get(&"n".repeat(201)).await == [vec![1; 600], vec![2; 200]].concat());
    });
}
