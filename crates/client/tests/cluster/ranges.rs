//! Several clients write one file at the same time: each holds the ranges that it writes, and all
//! see one file.

use std::cell::RefCell;
use std::rc::Rc;

use client::{Handle, OpenFlags, SetAttrRequest, WriteFlags};
use types::{Duration, Fault, Ino};

use crate::harness::{Cluster, LEASE, Mount, RDONLY, ROOT, WRONLY, check, logged};

const APPEND: OpenFlags = OpenFlags(OpenFlags::WRITE_ONLY | OpenFlags::APPEND);

/// The bytes that client `who` writes into piece `piece`.
fn fill(who: usize, piece: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (1 + who * 101 + piece * 7 + at % 3) as u8 | 1).collect()
}

/// A file that all clients have open for writing.
async fn shared(mounts: &[Mount], text: &str) -> (Ino, Vec<Handle>) {
    let (entry, opened) = mounts[0].create(Ino::ROOT, text, WRONLY).await;
    let mut handles = vec![opened.handle];
    for mount in &mounts[1..] {
        assert_eq!(mount.ino(text).await, entry.attr.ino);
        handles.push(mount.open(entry.attr.ino, WRONLY).await);
    }
    (entry.attr.ino, handles)
}

/// All clients write at once, each every `n`th piece of `len` bytes. Returns the expected content.
async fn stride(mounts: &[Mount], handles: &[Handle], pieces: usize, len: usize) -> Vec<u8> {
    let mut all = Vec::new();
    let mut writers = Vec::new();
    for piece in 0..pieces {
        all.extend(fill(piece % mounts.len(), piece, len));
    }
    for (who, mount) in mounts.iter().enumerate() {
        let (mount, handle, count) = (mount.clone(), handles[who], mounts.len());
        writers.push(mount.env.clone().spawn_join(async move {
            for piece in (who..pieces).step_by(count) {
                mount.write(handle, (piece * len) as u64, &fill(who, piece, len)).await;
            }
        }));
    }
    for writer in writers {
        writer.await;
    }
    all
}

async fn assert_content(mount: &Mount, ino: Ino, expected: &[u8], why: &str) {
    let (size, handle) =
        (mount.client.getattr(ino).await.unwrap().0.size, mount.open(ino, RDONLY).await);
    assert_eq!(size, expected.len() as u64, "{why}");
    for (at, chunk) in expected.chunks(100_000).enumerate() {
        let read = mount.read(handle, (at * 100_000) as u64, chunk.len() as u32).await;
        let wrong = read.iter().zip(chunk).position(|(a, b)| a != b);
        assert!(
            read.len() == chunk.len() && wrong.is_none(),
            "{why}: {:?}",
            wrong.map(|w| at * 100_000 + w)
        );
    }
    mount.close(handle).await;
}

fn requests(mounts: &[Mount]) -> u64 {
    mounts.iter().map(Mount::requests).sum()
}

fn recalls(mounts: &[Mount]) -> u64 {
    mounts.iter().map(|mount| mount.client.status().recalls).sum()
}

/// SEMANTICS 1.3.
#[test]
fn strided_writers_do_not_take_turns_and_all_clients_read_every_byte() {
    for seed in 0..6 {
        check(seed, |cluster| async move {
            let mounts =
                [cluster.mount("a").await, cluster.mount("b").await, cluster.mount("c").await];
            let (ino, handles) = shared(&mounts, "f").await;
            let before = recalls(&mounts);
            let asked = requests(&mounts);
            let expected = stride(&mounts, &handles, 600, 65_536).await;
            let taken = recalls(&mounts) - before;
            assert!(taken < 60, "{taken} recalls for 600 pieces");
            let asked = requests(&mounts) - asked;
            assert!(asked < 250, "{asked} requests for 600 pieces");
            for (who, mount) in mounts.iter().enumerate() {
                assert_content(mount, ino, &expected, &format!("seed {seed}, client {who}")).await;
            }
        });
    }
}

#[test]
fn blocks_shared_by_writers_keep_the_bytes_of_all() {
    for seed in 0..6 {
        check(seed, |cluster| async move {
            let mounts = [cluster.mount("a").await, cluster.mount("b").await];
            let (ino, handles) = shared(&mounts, "f").await;
            for (round, len) in [1000, 4096, 5000, 47_008].into_iter().enumerate() {
                let expected = stride(&mounts, &handles, 60, len).await;
                let why = format!("seed {seed}, pieces of {len}");
                assert_content(&mounts[round % 2], ino, &expected, &why).await;
            }
        });
    }
}

#[test]
fn size_of_a_shared_file_never_goes_back_for_any_client() {
    for seed in 0..8 {
        check(seed, |cluster| async move {
            let mounts =
                [cluster.mount("a").await, cluster.mount("b").await, cluster.mount("c").await];
            let (ino, handles) = shared(&mounts, "f").await;
            let done = Rc::new(RefCell::new(vec![0u64; 2]));
            let mut writers = Vec::new();
            for who in 0..2 {
                let (mount, handle, done) = (mounts[who].clone(), handles[who], done.clone());
                writers.push(cluster.env.spawn_join(async move {
                    for piece in 0..150u64 {
                        let offset = (2 * piece + who as u64) * 8192;
                        mount.write(handle, offset, &[7; 8192]).await;
                        done.borrow_mut()[who] = offset + 8192;
                    }
                }));
            }
            let mut last = 0;
            for look in 0..100 {
                let least = done.borrow().iter().copied().max().unwrap();
                let size = mounts[look % 3].client.getattr(ino).await.unwrap().0.size;
                assert!(
                    size >= least && size >= last,
                    "seed {seed}: {size}, written {least}, seen {last}"
                );
                last = size;
                cluster.env.sleep(Duration::from_micros(300)).await;
            }
            for writer in writers {
                writer.await;
            }
            assert_eq!(mounts[2].client.getattr(ino).await.unwrap().0.size, 300 * 8192);
        });
    }
}

#[test]
fn held_and_dirty_ranges_survive_server_restarts() {
    for seed in 0..10 {
        check(seed, |cluster| async move {
            let mounts = [cluster.mount("a").await, cluster.mount("b").await];
            let (ino, handles) = shared(&mounts, "f").await;
            let restarts = {
                let cluster = cluster.clone();
                cluster.env.clone().spawn_join(async move {
                    for _ in 0..3 {
                        cluster.env.sleep(Duration::from_millis(15 + 7 * seed)).await;
                        cluster.restart_server().await;
                    }
                })
            };
            let mut expected = Vec::new();
            for _ in 0..3 {
                expected = stride(&mounts, &handles, 120, 65_536).await;
                mounts[0].client.fsync(handles[0], false).await.unwrap();
            }
            restarts.await;
            for mount in &mounts {
                assert_eq!(mount.client.status().evictions, 0);
                assert_content(mount, ino, &expected, &format!("seed {seed}")).await;
            }
            let refused: Vec<_> = logged()
                .into_iter()
                .filter(|line| line.contains("claims") || line.contains("lost:"))
                .collect();
            assert!(refused.is_empty(), "{refused:?}");
        });
    }
}

#[test]
fn silent_holder_of_ranges_blocks_others_for_its_lease_at_most() {
    check(3, |cluster| async move {
        let mounts = [cluster.mount("a").await, cluster.mount("b").await];
        let (ino, handles) = shared(&mounts, "f").await;
        let mut expected = stride(&mounts, &handles, 40, 65_536).await;
        // From here on, this client holds the first piece.
        mounts[0].write(handles[0], 0, &fill(0, 0, 65_536)).await;
        mounts[0].client.fsync(handles[0], false).await.unwrap();
        cluster.world.isolate("a");
        mounts[0].write(handles[0], 0, &[0xee; 65_536]).await;
        let begun = cluster.env.now();
        mounts[1].write(handles[1], 0, &[9; 3000]).await;
        expected[..3000].fill(9);
        assert!(cluster.env.now().since(begun) <= LEASE * 2);
        mounts[1].client.fsync(handles[1], false).await.unwrap();
        cluster.world.heal();
        cluster.env.sleep(LEASE).await;
        assert_eq!(mounts[0].client.status().evictions, 1);
        assert_eq!(mounts[0].client.fsync(handles[0], false).await, Err(Fault::Io));
        // Bytes that it wrote in place before the eviction may be there.
        let handle = mounts[1].open(ino, RDONLY).await;
        let start = mounts[1].read(handle, 0, 65_536).await;
        let theirs = |at: usize| at >= 3000 && start[at] == 0xee;
        assert!((0..65_536).all(|at| start[at] == expected[at] || theirs(at)));
        expected[..65_536].copy_from_slice(&start);
        assert_content(&mounts[1], ino, &expected, "survivor").await;
        assert_content(&mounts[0], ino, &expected, "evicted").await;
    });
}

struct SharedFileRun {
    cluster: Cluster,
    mounts: Vec<Mount>,
    handles: Vec<Handle>,
    ino: Ino,
    content: Vec<u8>,
}

impl SharedFileRun {
    fn below(&self, n: u64) -> u64 {
        self.cluster.env.random_u64() % n
    }

    /// One operation of one client, checked against the expected bytes.
    async fn step(&mut self, number: usize) {
        let who = self.below(3) as usize;
        let mount = self.mounts[who].clone();
        let offset =
            self.below(if self.below(4) == 0 { 120_000 } else { 1 + self.content.len() as u64 });
        let len = 1 + self.below([100, 4096, 20_000][self.below(3) as usize]) as usize;
        let end = offset as usize + len;
        match self.below(16) {
            0..7 => {
                mount.write(self.handles[who], offset, &fill(who, number, len)).await;
                if self.content.len() < end {
                    self.content.resize(end, 0);
                }
                self.content[offset as usize..end].copy_from_slice(&fill(who, number, len));
            }
            7..11 => {
                let handle = mount.open(self.ino, RDONLY).await;
                let read = mount.read(handle, offset, len as u32).await;
                let from = self.content.len().min(offset as usize);
                assert!(
                    read == self.content[from..end.min(self.content.len()).max(from)],
                    "step {number}"
                );
                mount.close(handle).await;
            }
            11 => {
                let size = mount.client.getattr(self.ino).await.unwrap().0.size;
                assert_eq!(size, self.content.len() as u64, "step {number}");
            }
            12 if self.below(3) == 0 => {
                let set = SetAttrRequest { size: Some(offset), ..SetAttrRequest::default() };
                mount.client.setattr(&ROOT, self.ino, set).await.unwrap();
                self.content.resize(offset as usize, 0);
            }
            13 if self.below(3) == 0 => {
                let handle = mount.open(self.ino, APPEND).await;
                let mut data = mount.env.buffer(len);
                data.copy_from_slice(&fill(who, number, len));
                let flags = WriteFlags { append: true, ..WriteFlags::default() };
                mount.client.write(&ROOT, handle, 0, data, len, flags).await.unwrap();
                self.content.extend(fill(who, number, len));
                mount.close(handle).await;
            }
            14 => mount.client.fsync(self.handles[who], false).await.unwrap(),
            15 if self.below(2) == 0 => {
                let set = SetAttrRequest {
                    mode: Some(0o600 + self.below(8) as u16),
                    ..SetAttrRequest::default()
                };
                let attr = mount.client.setattr(&ROOT, self.ino, set).await.unwrap().0;
                assert_eq!(attr.size, self.content.len() as u64, "step {number}");
            }
            _ => self.cluster.env.sleep(Duration::from_micros(self.below(3000))).await,
        }
    }
}

#[test]
fn random_operations_of_three_clients_on_one_file_agree_with_its_bytes() {
    for seed in 0..12u64 {
        check(seed, |cluster| async move {
            let mut mounts = Vec::new();
            for node in ["a", "b", "c"] {
                mounts.push(cluster.mount(node).await);
            }
            let (ino, handles) = shared(&mounts, "f").await;
            let mut run = SharedFileRun {
                cluster: cluster.clone(),
                mounts,
                handles,
                ino,
                content: Vec::new(),
            };
            for number in 0..500 {
                run.step(number).await;
                match run.below(60) {
                    0 => cluster.world.cut("a", "mds"),
                    1 if seed % 2 == 0 => cluster.restart_server().await,
                    _ => {}
                }
            }
            for mount in &run.mounts {
                assert_content(mount, ino, &run.content, &format!("seed {seed}")).await;
            }
        });
    }
}
