//! The same two-task program on every driver: a server and a client that
//! exchange messages, with timers and disk I/O, end with the same result.
#![allow(clippy::disallowed_methods, reason = "a test of the seam stands on both of its sides")]

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::rc::Rc;

use redbud_env::{self as env, DiskOptions, DriverKind, Env, Part, Stream};
use types::Duration;

const BLOCK: usize = 4096;
const MESSAGES: u64 = 50;

/// Reads exactly `len` bytes.
async fn read_exact(stream: &Stream, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let (result, back) = stream.read(bytes, len - back_len(len)).await;
        assert!(result.expect("the connection holds") > 0, "the peer closed early");
        bytes = back;
    }
    assert_eq!(bytes.len(), len);
    bytes
}

/// Requests reads in pieces, to exercise reassembly.
fn back_len(len: usize) -> usize {
    len - len.min(3)
}

/// Stores each received number in a block of `disk` and answers with the sum so far.
async fn serve(env: Env, stream: Stream, disk: env::Disk) {
    let mut sum = 0u64;
    for index in 0..MESSAGES {
        let message = read_exact(&stream, 8).await;
        let number = u64::from_le_bytes(message[..].try_into().unwrap());
        let mut block = env.buffer(BLOCK);
        block[..8].copy_from_slice(&number.to_le_bytes());
        disk.write(index * BLOCK as u64, block).await.0.unwrap();
        if index % 10 == 0 {
            disk.flush().await.unwrap();
            env.sleep(Duration::from_millis(1)).await;
        }
        sum += number;
        stream.write_all(sum.to_le_bytes().to_vec()).await.0.unwrap();
    }
}

/// Runs the program; returns what the client received last and the sum on the disk.
async fn program(env: Env, address: &str, disk_path: &str) -> (u64, u64) {
    let disk =
        env.open_disk(disk_path, DiskOptions { write: true, exclusive: true }).await.unwrap();
    let listener = env.listen(address).await.unwrap();
    let address = listener.local_address();
    let server = env.spawn_join({
        let (env, disk) = (env.clone(), disk.clone());
        async move {
            let stream = listener.accept().await.unwrap();
            serve(env, stream, disk).await;
        }
    });
    let stream = env.connect(&address).await.unwrap();
    let mut heard = 0;
    for index in 0..MESSAGES {
        stream.write_all((index * index).to_le_bytes().to_vec()).await.0.unwrap();
        heard = u64::from_le_bytes(read_exact(&stream, 8).await[..].try_into().unwrap());
    }
    server.await;
    let mut stored = 0;
    let reads: Vec<_> = (0..MESSAGES)
        .map(|index| {
            let (disk, buf) = (disk.clone(), env.buffer(BLOCK));
            env.spawn_join(async move { disk.read(index * BLOCK as u64, buf).await })
        })
        .collect();
    for read in reads {
        let (result, block) = read.await;
        result.unwrap();
        stored += u64::from_le_bytes(block[..8].try_into().unwrap());
    }
    parts_are_one_piece(&env, &disk).await;
    (heard, stored)
}

/// Writes buffers of different lengths by one request, and reads them as one piece.
async fn parts_are_one_piece(env: &Env, disk: &env::Disk) {
    let offset = MESSAGES * BLOCK as u64;
    let part = |blocks: usize, byte: u8| {
        let mut buf = env.buffer(blocks * BLOCK);
        buf.fill(byte);
        buf
    };
    disk.write_parts(offset, vec![part(1, 1), part(3, 2), part(2, 3)]).await.unwrap();
    let (result, whole) = disk.read(offset, env.buffer(6 * BLOCK)).await;
    result.unwrap();
    let expected = [(1, 1), (3, 2), (2, 3)].map(|(blocks, byte)| vec![byte; blocks * BLOCK]);
    assert!(whole[..] == expected.concat(), "the parts are where they belong");
}

fn expected() -> (u64, u64) {
    let sum = (0..MESSAGES).map(|n| n * n).sum();
    (sum, sum)
}

/// A sparse file that is removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, len: u64) -> Scratch {
        let path = std::env::temp_dir().join(format!("redbud-env-{}-{name}", std::process::id()));
        File::create(&path).unwrap().set_len(len).unwrap();
        Scratch(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn on(kind: DriverKind, name: &str) -> (u64, u64) {
    let scratch = Scratch::new(name, 1 << 20);
    let path = scratch.path().to_owned();
    env::run(kind, |env| async move { program(env, "127.0.0.1:0", &path).await }).unwrap()
}

#[test]
fn program_runs_on_io_uring_or_its_fallback() {
    assert_eq!(on(DriverKind::Auto, "auto"), expected());
}

#[test]
fn program_runs_on_epoll_and_threads() {
    assert_eq!(on(DriverKind::Fallback, "fallback"), expected());
}

#[test]
fn program_runs_in_a_simulated_world() {
    let world = env::sim::SimWorld::new(42);
    world.disk("disk", 1 << 20);
    assert_eq!(world.run(|env| program(env, "server:7000", "disk")), expected());
}

#[test]
fn opening_a_disk_in_use_fails_and_names_the_holder() {
    let scratch = Scratch::new("busy", 1 << 20);
    let path = scratch.path().to_owned();
    for kind in [DriverKind::Auto, DriverKind::Fallback] {
        let path = path.clone();
        env::run(kind, |env| async move {
            let options = DiskOptions { write: true, exclusive: true };
            let first = env.open_disk(&path, options).await.unwrap();
            let error = env.open_disk(&path, options).await.err().expect("the second is refused");
            assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
            let text = error.to_string();
            assert!(
                text.contains(&path) && text.contains(&format!("process {}", std::process::id())),
                "{text}"
            );
            drop(first);
            env.open_disk(&path, options).await.expect("it is free again");
        })
        .unwrap();
    }
}

#[test]
fn byte_lock_lasts_until_its_open_file_is_closed() {
    let scratch = Scratch::new("bytes", 1 << 20);
    let path = scratch.path().to_owned();
    env::run(DriverKind::Auto, |env| async move {
        let options = DiskOptions { write: true, exclusive: false };
        let mine = env.open_disk(&path, options).await.unwrap();
        let theirs = env.open_disk(&path, options).await.unwrap();
        mine.lock_byte(7).await.unwrap();
        assert!(!theirs.byte_is_free(7).await.unwrap());
        assert!(theirs.byte_is_free(8).await.unwrap());
        assert!(theirs.lock_byte(7).await.is_err());
        let clone = mine.clone();
        drop(mine);
        assert!(!theirs.byte_is_free(7).await.unwrap());
        drop(clone);
        assert!(theirs.byte_is_free(7).await.unwrap());
    })
    .unwrap();
}

#[test]
fn shared_disk_excludes_only_those_who_want_it_alone() {
    let scratch = Scratch::new("shared", 1 << 20);
    let path = scratch.path().to_owned();
    env::run(DriverKind::Auto, |env| async move {
        let shared = DiskOptions { write: true, exclusive: false };
        let alone = DiskOptions { write: true, exclusive: true };
        let busy = std::io::ErrorKind::ResourceBusy;
        let mine = env.open_disk(&path, shared).await.unwrap();
        let theirs = env.open_disk(&path, shared).await.unwrap();
        mine.share().await.unwrap();
        theirs.share().await.unwrap();
        assert_eq!(env.open_disk(&path, alone).await.err().unwrap().kind(), busy);
        mine.lock_byte(3).await.unwrap();
        assert_eq!(theirs.lock_byte(3).await.unwrap_err().kind(), busy);
        mine.unlock_byte(3).await.unwrap();
        theirs.lock_byte(3).await.unwrap();
        drop(theirs);
        assert_eq!(env.open_disk(&path, alone).await.err().unwrap().kind(), busy);
        drop(mine);
        let owner = env.open_disk(&path, alone).await.expect("nobody shares it");
        let late = env.open_disk(&path, shared).await.unwrap();
        assert_eq!(late.share().await.unwrap_err().kind(), busy);
        drop(owner);
        late.share().await.unwrap();
    })
    .unwrap();
}

#[test]
fn read_past_the_end_is_an_error_with_the_path() {
    let scratch = Scratch::new("end", 6000);
    let path = scratch.path().to_owned();
    for kind in [DriverKind::Auto, DriverKind::Fallback] {
        let path = path.clone();
        env::run(kind, |env| async move {
            let disk = env.open_disk(&path, DiskOptions::default()).await.unwrap();
            assert_eq!(disk.size(), 6000);
            let (result, _) = disk.read(4096, env.buffer(4096)).await;
            assert!(result.unwrap_err().to_string().contains(&path));
            let (result, buf) = disk.read(0, env.buffer(4096)).await;
            result.unwrap();
            assert!(buf.iter().all(|&byte| byte == 0));
        })
        .unwrap();
    }
}

#[test]
fn discard_leaves_the_bytes_outside_its_range() {
    let scratch = Scratch::new("discard", 1 << 20);
    let path = scratch.path().to_owned();
    env::run(DriverKind::Auto, |env| async move {
        let disk =
            env.open_disk(&path, DiskOptions { write: true, exclusive: false }).await.unwrap();
        let mut buf = env.buffer(8192);
        buf.fill(0x5a);
        disk.write(0, buf).await.0.unwrap();
        disk.discard(4096, 4096).await.unwrap();
        let (result, buf) = disk.read(0, env.buffer(4096)).await;
        result.unwrap();
        assert!(buf.iter().all(|&byte| byte == 0x5a));
    })
    .unwrap();
}

#[test]
fn local_peers_connect_by_unix_socket_else_by_tcp() {
    for kind in [DriverKind::Auto, DriverKind::Fallback] {
        env::run(kind, |env| async move {
            for address in ["127.0.0.1:0", "0.0.0.0:0", "[::]:0"] {
                let listener = env.listen(address).await.unwrap();
                let port = listener.local_address().rsplit_once(':').unwrap().1.to_owned();
                let target = format!("127.0.0.1:{port}");
                let near = env.connect(&target).await.unwrap();
                let far = listener.accept().await.unwrap();
                let me = format!("process {} of this host", std::process::id());
                assert_eq!((near.peer(), far.peer()), (me.clone(), me));
                assert_eq!(near.write_now(&[4, 5, 6]), 3);
                assert_eq!(read_exact(&far, 3).await, [4, 5, 6]);
                let taken = near.write_now(&vec![7; 3 << 20]);
                assert!(0 < taken && taken < 3 << 20, "the socket took {taken} bytes");
                assert_eq!(near.write_now(&[7]), 0, "it takes no more");
                let mut left = taken;
                while left > 0 {
                    left -= far.read(Vec::new(), 1 << 20).await.0.unwrap();
                }
                // More than the socket takes at once.
                let sent = env.spawn_join(async move {
                    near.write_all(vec![7; 3 << 20]).await.0.unwrap();
                    near
                });
                let mut left = 3 << 20;
                while left > 0 {
                    left -= far.read(Vec::new(), 1 << 20).await.0.unwrap();
                }
                drop(sent.await);
                assert_eq!(far.read(Vec::new(), 1).await.0.unwrap(), 0);
                // By TCP, as from another host.
                let tcp = std::net::TcpStream::connect(&target).unwrap();
                let far = listener.accept().await.unwrap();
                let port = tcp.local_addr().unwrap().port();
                assert!(far.peer().ends_with(&format!(":{port}")), "{}", far.peer());
            }
            let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = plain.local_addr().unwrap().to_string();
            let near = env.connect(&address).await.unwrap();
            assert_eq!(near.peer(), address);
        })
        .unwrap();
    }
}

#[test]
fn shared_parts_cross_a_socket_into_a_buffer_in_their_order() {
    for kind in [DriverKind::Auto, DriverKind::Fallback] {
        env::run(kind, |env| async move {
            let listener = env.listen("127.0.0.1:0").await.unwrap();
            let near = env.connect(&listener.local_address()).await.unwrap();
            let far = listener.accept().await.unwrap();
            let large: Rc<Vec<u8>> = Rc::new((0..3u32 << 20).map(|at| at as u8 ^ 0x5a).collect());
            let part = |range| Part::new(large.clone(), range);
            let parts = vec![part(1..4), part(7..7), part(100..large.len()), vec![9; 5].into()];
            let expected: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            let len = expected.len();
            let sent = env.spawn_join(async move {
                let mut start = 0;
                while start < len {
                    start += near.write_parts(parts.clone(), start).await.unwrap();
                }
                near
            });
            // A read whose future is dropped loses nothing.
            let none = env.timeout(Duration::ZERO, far.read_into(env.buffer(10), 4..10)).await;
            let (mut buf, mut at) = (env.buffer(len), 0);
            assert!(none.is_none());
            while at < len {
                let read;
                (read, buf) = far.read_into(buf, at..len.min(at + 300_000)).await;
                at += read.unwrap();
            }
            assert!(buf[..len] == expected[..]);
            drop(sent.await);
            assert_eq!(far.read_into(buf, 0..1).await.0.unwrap(), 0);
        })
        .unwrap();
    }
}

#[test]
fn listen_retries_an_address_in_use() {
    for kind in [DriverKind::Auto, DriverKind::Fallback] {
        env::run(kind, |env| async move {
            let first = env.listen("127.0.0.1:0").await.unwrap();
            let address = first.local_address();
            env.spawn({
                let env = env.clone();
                async move {
                    env.sleep(Duration::from_millis(50)).await;
                    drop(first);
                }
            });
            let second = env.listen(&address).await.unwrap();
            let near = env.connect(&address).await.unwrap();
            assert!(near.peer().contains("process"), "the Unix socket is there too");
            second.accept().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn connection_that_arrives_between_accepts_is_not_lost() {
    for kind in [DriverKind::Auto, DriverKind::Fallback] {
        env::run(kind, |env| async move {
            let listener = env.listen("127.0.0.1:0").await.unwrap();
            for _ in 0..3 {
                let none = env.timeout(Duration::from_micros(100), listener.accept()).await;
                assert!(none.is_none(), "nobody has connected yet");
                let near = env.connect(&listener.local_address()).await.unwrap();
                near.write_all(vec![1]).await.0.unwrap();
                env.sleep(Duration::from_millis(1)).await;
                let far = listener.accept().await.unwrap();
                assert_eq!(read_exact(&far, 1).await, [1]);
            }
        })
        .unwrap();
    }
}

#[test]
fn dropped_read_loses_no_bytes() {
    for kind in [DriverKind::Auto, DriverKind::Fallback] {
        env::run(kind, |env| async move {
            let listener = env.listen("127.0.0.1:0").await.unwrap();
            let near = env.connect(&listener.local_address()).await.unwrap();
            let far = listener.accept().await.unwrap();
            for round in 0u8..20 {
                let late = env.timeout(Duration::from_micros(100), far.read(vec![9], 10)).await;
                assert!(late.is_none(), "nothing was sent yet");
                near.write_all(vec![round; 3]).await.0.unwrap();
                assert_eq!(read_exact(&far, 3).await, vec![round; 3]);
            }
            near.shutdown();
            let (result, _) = far.read(Vec::new(), 10).await;
            assert_eq!(result.unwrap(), 0);
        })
        .unwrap();
    }
}

#[test]
fn remaining_tasks_are_dropped_when_main_ends() {
    struct Dropped(Rc<Cell<u32>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let count = Rc::new(Cell::new(0));
    let seen = count.clone();
    env::run(DriverKind::Auto, |env| async move {
        for _ in 0..3 {
            let guard = Dropped(count.clone());
            let inner = env.clone();
            env.spawn(async move {
                inner.sleep(Duration::from_secs(3600)).await;
                drop(guard);
            });
        }
        env.yield_now().await;
    })
    .unwrap();
    assert_eq!(seen.get(), 3);
}
