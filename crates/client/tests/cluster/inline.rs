//! Inline data of small files, between clients and through crashes.

use client::{Handle, NodeSpec, Place, SetAttrRequest};
use mfs::SlotFeatures;
use mfs::{Feature, Features, SlotSize};
use types::{Duration, Fault, FileKind, Ino};

use crate::harness::{Cluster, Mount, RDWR, ROOT, check_with, logged, name};

fn features() -> Features {
    Features::NONE.with_slots(SlotSize::Bytes1024).with(Feature::INLINE_DATA)
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
fn inline_files_are_shared_by_clients_without_the_data_device() {
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
            // One file outgrows its slot by a write of the other client.
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
fn inline_data_survives_crashes_of_server_and_client_whole() {
    for seed in [3, 4] {
        check_with(seed, features(), |cluster| async move {
            let a = cluster.mount("a").await;
            for index in 0..30u8 {
                a.put(&format!("f{index}"), &[index + 1; 300]).await;
            }
            // Committed and answered, but not durable: the client replays it to the next server.
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
            // Synced content survives the client's death.
            let (_, opened) = a.create(Ino::ROOT, "synced", RDWR).await;
            a.write(opened.handle, 0, b"there").await;
            a.client.fsync(opened.handle, false).await.unwrap();
            a.write(opened.handle, 0, &[7; 4096]).await;
            cluster.world.kill("a");
            assert_eq!(b.get("synced").await, b"there");
        });
    }
}

/// Gives a client blocks of the data zone, since a grant needs metadata.
async fn with_space(mount: Mount) -> Mount {
    mount.put("large", &[1; 4096]).await;
    mount
}

/// Uses up all metadata blocks except the reserve for removals.
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

/// Files with 800 bytes of uncommitted inline data, in slots with room for 878, get longer names
/// and attributes. Those are not refused: the inline data goes to the data zone.
#[test]
fn inline_data_whose_room_shrinks_survives_a_full_metadata_zone() {
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
                    // Setting an attribute recalls the right to write, which commits the inline
                    // data first.
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
            assert_eq!(placed, took, "exactly the files that lost their room have a data block");
            assert!(took > 0 && refused > 0, "{took} got room, {refused} did not");
            assert!(accesses(&cluster).1 > before.1, "some files have a data block");
        });
    }
}

/// Checks files that were each written with 800 bytes, on both clients, and that no loss was
/// reported. Returns how many have a data block; the others have inline data.
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
    // The reserve for removals is still there.
    for text in names {
        a.unlink(Ino::ROOT, text).await.unwrap();
    }
    placed
}

/// The server reported the room with a lease that changes of names and attributes do not end.
#[test]
fn inline_data_within_outdated_room_survives_a_full_metadata_zone() {
    for seed in [8, 9] {
        check_with(seed, features(), |cluster| async move {
            let (a, b) = (with_space(cluster.mount("a").await).await, cluster.mount("b").await);
            let mut names: Vec<String> = (0..60).map(|index| format!("f{index}")).collect();
            let mut handles = Vec::new();
            for (index, text) in names.iter_mut().enumerate() {
                let (entry, opened) = a.create(Ino::ROOT, text, RDWR).await;
                // `DATA_X` is recalled for a reader, `DATA_S` stays.
                assert_eq!(b.get(text).await, Vec::<u8>::new());
                let ino = entry.attr.ino;
                match index % 4 {
                    0 => set_xattr(&b, ino, 150).await.unwrap(),
                    1 => {
                        // Makes the inline data move out, and back when the attribute is smaller.
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
                        // Replaces its name by a longer one.
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
            assert_eq!(placed, names.len() / 4, "those whose only name got longer");
            assert!(accesses(&cluster).1 > before.1, "some files have a data block");
        });
    }
}

async fn linked(mount: &Mount, ino: Ino, text: &str) -> Result<(), Fault> {
    let name = name(text);
    mount.client.link(&ROOT, ino, Place { dir: Ino::ROOT, name: &name }).await.map(|_| ())
}

#[test]
fn inline_data_that_a_longer_name_displaces_goes_to_a_blob() {
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
