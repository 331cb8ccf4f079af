//! Full devices: an honest ENOSPC, nothing lost, and room again after removing.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use crate::harness::{Cluster, Spec, eventually, pattern};

/// Writes `path` in pieces until there is no room; gives the bytes that were accepted.
fn fill(path: &Path, seed: u64) -> io::Result<u64> {
    let piece = pattern(seed, 1 << 20);
    let mut file = File::create(path)?;
    let mut written = 0;
    loop {
        match file.write(&piece) {
            Ok(length) => written += length as u64,
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                file.sync_all()?;
                return Ok(written);
            }
            Err(error) => return Err(error),
        }
    }
}

fn free_bytes(root: &Path) -> u64 {
    let stat = rustix::fs::statvfs(root).unwrap();
    stat.f_bfree * stat.f_frsize
}

#[test]
fn full_data_device_gives_enospc_and_has_room_after_unlink() {
    let mut cluster = Cluster::start(&Spec { data: vec![128 << 20, 64 << 20], ..Spec::default() });
    cluster.mount();
    let root = cluster.root();
    fs::write(root.join("before"), pattern(99, 3 << 20)).unwrap();
    let empty = free_bytes(&root);
    for round in 0..3 {
        let written = fill(&root.join("big"), round).unwrap();
        assert!(written > (150 << 20), "only {written} bytes were accepted");
        let content = fs::read(root.join("big")).unwrap();
        assert_eq!(content.len() as u64, written);
        let piece = pattern(round, 1 << 20);
        assert!(content.chunks(1 << 20).all(|chunk| chunk == &piece[..chunk.len()]));
        // Names need no data space.
        fs::create_dir(root.join("dir")).unwrap();
        fs::rename(root.join("big"), root.join("dir/big")).unwrap();
        fs::remove_file(root.join("dir/big")).unwrap();
        fs::remove_dir(root.join("dir")).unwrap();
        eventually("the space comes back", || free_bytes(&root) + (8 << 20) >= empty);
    }
    assert!(fs::read(root.join("before")).unwrap() == pattern(99, 3 << 20));
    cluster.finish();
}

#[test]
fn two_clients_share_the_last_space_without_loss() {
    let mut cluster = Cluster::start(&Spec { data: vec![128 << 20], ..Spec::default() });
    cluster.mount();
    cluster.mount();
    let writers: Vec<_> = [cluster.path(0), cluster.path(1)]
        .into_iter()
        .enumerate()
        .map(|(index, root)| {
            std::thread::spawn(move || fill(&root.join(format!("f{index}")), index as u64).unwrap())
        })
        .collect();
    let written: Vec<u64> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    for (index, length) in written.iter().enumerate() {
        // Each is read through the other client.
        let content = fs::read(cluster.path(1 - index).join(format!("f{index}"))).unwrap();
        assert_eq!(content.len() as u64, *length);
        let piece = pattern(index as u64, 1 << 20);
        assert!(content.chunks(1 << 20).all(|chunk| chunk == &piece[..chunk.len()]));
    }
    cluster.finish();
}

#[test]
fn client_gets_space_from_unused_pools_before_enospc() {
    let mut cluster = Cluster::start(&Spec { data: vec![192 << 20; 2], ..Spec::default() });
    cluster.mount();
    cluster.mount();
    let capacity = free_bytes(&cluster.root());
    let accepted = Arc::new(AtomicU64::new(0));
    let at_first_refusal = Arc::new(OnceLock::new());
    let writers: Vec<_> = (0..6)
        .map(|index| {
            let path = cluster.path(index % 2).join(format!("f{index}"));
            let (accepted, refused) = (accepted.clone(), at_first_refusal.clone());
            std::thread::spawn(move || {
                let piece = pattern(index as u64, 1 << 20);
                let mut file = File::create(path).unwrap();
                loop {
                    match file.write(&piece) {
                        Ok(length) => accepted.fetch_add(length as u64, SeqCst),
                        Err(error) => {
                            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
                            let _ = refused.set(accepted.load(SeqCst));
                            return file.sync_all().unwrap();
                        }
                    };
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let first = *at_first_refusal.get().unwrap();
    let all = accepted.load(SeqCst);
    println!("{first} bytes at the first refusal, {all} in the end, of {capacity}");
    // Six writes are under way, and each client waits for room for one with less than that in hand.
    assert!(first + (8 << 20) >= capacity, "{first} of {capacity} bytes at the first refusal");
    assert!(all + (3 << 20) >= capacity, "{all} of {capacity} bytes in the end");
    cluster.finish();
}

#[test]
fn full_metadata_zone_refuses_creates_and_allows_unlinks() {
    let mut cluster = Cluster::start(&Spec { metadata: 64 << 20, ..Spec::default() });
    cluster.mount();
    let root = cluster.root();
    // Long symbolic links fill blocks quickly.
    let target = "t".repeat(4000);
    let mut made = 0;
    let error = loop {
        let dir = root.join(format!("d{}", made / 500));
        let result = match made % 500 {
            0 => fs::create_dir(&dir),
            _ => std::os::unix::fs::symlink(&target, dir.join(format!("l{made}"))),
        };
        match result {
            Ok(()) => made += 1,
            Err(error) => break error,
        }
        assert!(made < 100_000, "64 MiB of metadata took {made} links");
    };
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    assert!(made > 2000, "only {made} names fit");
    for entry in fs::read_dir(&root).unwrap() {
        fs::remove_dir_all(entry.unwrap().path()).unwrap();
    }
    eventually("names fit again", || fs::write(root.join("again"), b"x").is_ok());
    cluster.finish();
}
