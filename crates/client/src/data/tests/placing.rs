//! Places that the server chooses.

use super::*;
use proto::prealloc::Policy;

/// Bytes of a request: as many blocks as one answer of the server has.
const REQUEST: u64 = 64 << 10;

fn setup(disks: u16) -> Setup {
    let how = Policy::Vanilla;
    let allocation = Allocation { how, delegated: false, ..Allocation::default() };
    Setup { disks, blocks: 4000, allocation, ..Setup::default() }
}

/// Blocks in the pool: all, reserved ones, those that wait for files.
fn pool(rig: &Rig) -> (u64, u64, u64) {
    let pool = &rig.ctx.class(HOME, &[]).pool;
    (pool.blocks(), pool.blocks() - pool.available(), pool.in_windows())
}

async fn write(file: &Rc<File>, at: u64, len: u64, handle: u64) {
    let stream = Some(Stream { client: ClientId(5), handle, process: 1 });
    let data = IoBuf::copy_of(&vec![7; len as usize]);
    assert_eq!(file.write(Some(at), data, len as usize, stream).await, Ok((at, len as u32)));
}

/// Does every block of the file lie where the server said?
async fn check_places(rig: &Rig, file: &Rc<File>) -> u64 {
    let layout = file.layout().await.unwrap();
    let placed = rig.server.placed.borrow();
    for segment in &layout {
        for at in 0..segment.len {
            let there = (segment.pag, PagBlock(segment.addr.0 + at));
            let block = segment.file.0 + at;
            assert_eq!(placed.get(&(file.ino, block)), Some(&there), "block {block}");
        }
    }
    layout.iter().map(|segment| segment.len).sum()
}

#[test]
fn writes_lie_exactly_where_the_server_said_and_no_block_is_kept() {
    for (seed, disks) in [(950, 1), (951, 1), (952, 3), (953, 3)] {
        run(seed, setup(disks), |rig| async move {
            let files = [rig.file(1), rig.file(2)];
            // Out of order, over the ends of blocks, over one another, and larger than an answer.
            let requests = [(3, 2), (0, 1), (9, 5), (4, 3), (30, 1), (11, 9), (2, 1)]
                .map(|(at, n)| (at * REQUEST, n * REQUEST));
            for (at, len) in requests {
                for file in &files {
                    write(file, at + 1000, len, 1).await;
                    assert_eq!(pool(&rig), (0, 0, 0), "{at}");
                }
            }
            for file in &files {
                file.fsync(false).await.unwrap();
                // Of requests 0, 2..=6, 9..=19 and 30, each part in one block more.
                assert_eq!(check_places(&rig, file).await, 16 * (1 + 5 + 11 + 1) + 4);
            }
            rig.finish(4000).await;
        });
    }
}

#[test]
fn writers_of_the_same_blocks_leave_no_block_behind() {
    for seed in 960..980 {
        run(seed, setup(2), |rig| async move {
            let rig = Rc::new(rig);
            let file = rig.file(1);
            let mut tasks = Vec::new();
            for writer in 0..4 {
                let (rig, file) = (rig.clone(), file.clone());
                tasks.push(rig.env.clone().spawn_join(async move {
                    let mut rng = SimRng::new(seed * 10 + writer);
                    for _ in 0..20 {
                        write(&file, rng.below(400_000), 1 + rng.below(100_000), writer).await;
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
            file.fsync(false).await.unwrap();
            let (blocks, reserved, waiting) = pool(&rig);
            assert_eq!((reserved, waiting), (0, 0), "{blocks} in the pool");
            file.handle_closed(1);
            rig.server.open.set(false);
            file.last_handle_closed();
            while rig.server.ended.borrow().len() < 2 {
                rig.env.sleep(Duration::from_millis(1)).await;
            }
            assert_eq!(*rig.server.ended.borrow(), [(file.ino, Some(1)), (file.ino, None)]);
            assert_eq!(pool(&rig), (0, 0, 0));
            assert_eq!(rig.server.now.borrow().pool.len(), 0);
            rig.finish(4000).await;
        });
    }
}

#[test]
fn block_that_a_small_file_does_not_need_goes_back_when_it_is_closed() {
    let setup = Setup { inline_max: 3000, ..setup(1) };
    run(955, setup, |rig| async move {
        let file = rig.file(1);
        write(&file, 0, 100, 1).await;
        assert_eq!(pool(&rig), (1, 1, 1), "the server may have no room for inline data");
        file.fsync(false).await.unwrap();
        assert_eq!(file.layout().await.unwrap(), []);
        rig.server.open.set(false);
        file.handle_closed(1);
        file.last_handle_closed();
        while rig.server.ended.borrow().is_empty() {
            rig.env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(*rig.server.ended.borrow(), [(file.ino, None)]);
        assert_eq!((pool(&rig), rig.server.now.borrow().pool.len()), ((0, 0, 0), 0));
        rig.finish(4000).await;
    });
}

#[test]
fn file_that_nobody_has_open_any_more_is_closed_at_the_server_after_its_last_write() {
    run(956, setup(1), |rig| async move {
        let file = rig.file(1);
        rig.server.open.set(false);
        write(&file, 0, 3 * REQUEST, 1).await;
        file.fsync(false).await.unwrap();
        assert!(rig.server.ended.borrow().contains(&(file.ino, None)));
        rig.finish(4000).await;
    });
}

#[test]
fn writer_gets_no_space_only_when_there_is_none() {
    let setup = Setup { blocks: 101, ..setup(1) };
    run(957, setup, |rig| async move {
        let file = rig.file(1);
        write(&file, 0, 100 * 4096, 1).await;
        let more = rig.write(&file, 100 * 4096, &[1]).await;
        assert_eq!(more, Err(Fault::NoSpace));
        file.set_size(50 * 4096).await.unwrap();
        file.fsync(false).await.unwrap();
        write(&file, 200 * 4096, 50 * 4096, 1).await;
        file.fsync(false).await.unwrap();
        assert_eq!(check_places(&rig, &file).await, 100);
        rig.finish(101).await;
    });
}

#[test]
fn places_of_a_write_that_failed_keep_no_other_file_from_space() {
    let setup = Setup { blocks: 101, ..setup(1) };
    run(958, setup, |rig| async move {
        let (a, b) = (rig.file(1), rig.file(2));
        write(&a, 0, 60 * 4096, 1).await;
        let more = rig.write(&a, 60 * 4096, &[1; 50 * 4096]).await;
        assert_eq!(more, Err(Fault::NoSpace));
        rig.env.sleep(Duration::from_secs(1)).await;
        write(&b, 0, 40 * 4096, 2).await;
        for file in [&a, &b] {
            file.fsync(false).await.unwrap();
        }
        assert_eq!((a.size(), b.size()), (60 * 4096, 40 * 4096));
        rig.finish(101).await;
    });
}
