//! Single behaviours: placement, times, sizes, devices that are refused.

use super::*;

/// SEMANTICS 2.3.
#[test]
fn data_is_committed_within_two_seconds_without_a_sync() {
    run(500, Setup::default(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 10_000]).await.unwrap();
        rig.env.sleep(Duration::from_secs(2)).await;
        assert!(file.is_clean());
        let now = rig.server.now.borrow();
        assert!(Server::content(&now, &rig.server.disks, Ino(1)) == vec![1; 10_000]);
        assert_eq!(rig.server.commits.get(), 1);
    });
}

#[test]
fn large_sequential_file_has_few_segments() {
    let setup = Setup { disks: 1, blocks: 16_384, grant_max: 8192, ..Setup::default() };
    run(501, setup, |rig| async move {
        let (file, other) = (rig.file(1), rig.file(2));
        for index in 0..24u64 {
            rig.write(&file, index << 20, &vec![1; 1 << 20]).await.unwrap();
            rig.write(&other, index << 16, &vec![2; 1 << 16]).await.unwrap();
        }
        rig.ctx.sync_all().await.unwrap();
        let pieces = rig.server.now.borrow().files[&Ino(1)].layout.to_segments().len();
        assert!(pieces <= 6, "{pieces} segments");
        rig.finish(16_384).await;
    });
}

#[test]
fn small_sequential_writes_are_joined() {
    run(502, Setup::default(), |rig| async move {
        let file = rig.file(1);
        for index in 0..512u64 {
            rig.write(&file, index * 4096, &[1; 4096]).await.unwrap();
        }
        file.fsync(false).await.unwrap();
        let writes: u64 = rig.server.disks.iter().map(|disk| disk.counts().writes).sum();
        assert!(writes <= 8, "{writes} writes");
        rig.finish(2048).await;
    });
}

#[test]
fn append_after_an_fsync_needs_no_read() {
    run(503, Setup::default(), |rig| async move {
        let file = rig.file(1);
        let reads =
            |rig: &Rig| -> u64 { rig.server.disks.iter().map(|disk| disk.counts().reads).sum() };
        let before = reads(&rig);
        for _ in 0..50 {
            file.write(None, IoBuf::copy_of(&[3; 100]), 100, None).await.unwrap();
            file.fsync(true).await.unwrap();
        }
        assert_eq!(reads(&rig), before);
        assert_eq!(file.read(0, 9000).await.unwrap().to_vec(), vec![3; 5000]);
        rig.finish(2048).await;
    });
}

#[test]
fn bytes_left_behind_the_size_are_zero_when_the_file_grows() {
    run(504, Setup::default(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 100]).await.unwrap();
        file.fsync(false).await.unwrap();
        file.rights_lost(Rights::empty());
        // A client wrote in place and died before it committed the size.
        let segment = rig.server.now.borrow().files[&Ino(1)].layout.to_segments()[0];
        let disk = &rig.server.disks[usize::from(segment.pag.0) - 1];
        disk.poke(segment.addr.0 * BLOCK_U64 + 100, &[9; 500]);
        for grow in 0..3 {
            rig.acquire(&file);
            match grow {
                0 => file.set_size(2000).await.unwrap(),
                1 => drop(rig.write(&file, 9000, &[2; 10]).await.unwrap()),
                _ => drop(rig.write(&file, 1000, &[2; 10]).await.unwrap()),
            }
            let got = file.read(0, 1000).await.unwrap().to_vec();
            assert!(got[..100].iter().all(|&byte| byte == 1));
            assert!(got[100..].iter().all(|&byte| byte == 0), "way {grow}");
            // Restore the state for the next way to grow.
            file.set_size(100).await.unwrap();
            file.flush().await.unwrap();
            file.rights_lost(Rights::empty());
            disk.poke(segment.addr.0 * BLOCK_U64 + 100, &[9; 500]);
        }
    });
}

/// SEMANTICS 4.4.
#[test]
fn file_sizes_up_to_the_limit_are_possible_and_none_beyond() {
    run(505, Setup::default(), |rig| async move {
        let file = rig.file(1);
        let max = i64::MAX as u64;
        file.set_size(max).await.unwrap();
        assert_eq!(file.set_size(max + 1).await, Err(Fault::FileTooBig));
        assert_eq!(rig.write(&file, max - 10, &[1; 100]).await, Ok(10));
        assert_eq!(rig.write(&file, max, &[1; 100]).await, Err(Fault::FileTooBig));
        assert_eq!(file.read(max - 20, 100).await.unwrap().to_vec(), [[0; 10], [1; 10]].concat());
        assert_eq!(file.fallocate(0, max - 1, 2).await, Err(Fault::FileTooBig));
        file.flush().await.unwrap();
        file.set_size(5).await.unwrap();
        rig.finish(2048).await;
        assert_eq!(rig.server.now.borrow().files[&Ino(1)].size, 5);
    });
}

#[test]
fn explicit_times_are_not_overwritten_by_earlier_writes() {
    run(506, Setup::default(), |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 100]).await.unwrap();
        file.before_times_set().await;
        file.flush().await.unwrap();
        assert_eq!(rig.server.attr(Ino(1)).mtime, Timestamp::default());
        rig.write(&file, 0, &[1; 100]).await.unwrap();
        file.flush().await.unwrap();
        assert_ne!(rig.server.attr(Ino(1)).mtime, Timestamp::default());
    });
}

#[test]
fn idle_client_keeps_a_small_pool() {
    let setup = Setup { blocks: 20_000, grant_max: 20_000, ..Setup::default() };
    run(507, setup, |rig| async move {
        let file = rig.file(1);
        for index in 0..30u64 {
            rig.write(&file, index << 20, &vec![1; 1 << 20]).await.unwrap();
        }
        file.fsync(false).await.unwrap();
        file.last_handle_closed();
        rig.env.sleep(Duration::from_secs(60)).await;
        let pool = rig.server.now.borrow().pool.len() as u64;
        assert!(pool <= types::limits::GRANT_BLOCKS, "{pool}");
        rig.finish(20_000).await;
    });
}

async fn refused(world: &SimWorld, env: Env, block: &[u8], blocks: u64) -> String {
    let rig = Rig::new(world, env.clone(), 1, Setup::default()).await;
    let disk = world.disk("other", 64 * BLOCK_U64);
    disk.poke(0, block);
    let config = DataConfig {
        devices: vec![(PagId(1), "other".into())],
        dirty_max: 1,
        read_only: false,
        allocation: Default::default(),
        commit: Default::default(),
        on_edit: None,
        waits: Rc::default(),
        targets: Default::default(),
    };
    let opened = DataContext::open(
        env,
        config,
        FS,
        offer(ClientId(5), &[info(1, blocks)]),
        rig.server.clone(),
    )
    .await;
    opened.expect_err("it is refused")
}

#[test]
fn device_that_is_not_the_expected_zone_is_refused_with_the_reason() {
    let good = label(1, 64);
    let metadata = SliceKind::Metadata { shard: 0, journal: None };
    let other = SliceKind::Data { pag: PagId(2) };
    let mixture = |label: &mut Label| {
        label.slices[0].blocks = 9;
        let slice = label::Slice { kind: metadata, start: 9, blocks: 9, uuid: Uuid([7; 16]) };
        label.slices.push(slice);
    };
    let changed = |change: &dyn Fn(&mut Label)| {
        let mut label = good.clone();
        change(&mut label);
        label.encode().to_vec()
    };
    let cases = [
        (vec![0; BLOCK], 64, "label"),
        (changed(&|label: &mut Label| label.slices[0].kind = metadata), 64, "metadata"),
        (changed(&|label: &mut Label| label.fs_uuid = Uuid([1; 16])), 64, "belongs to"),
        (changed(&|label: &mut Label| label.slices[0].uuid = Uuid([9; 16])), 64, "expected zone"),
        (changed(&|label: &mut Label| label.slices[0].kind = other), 64, "expected zone"),
        (changed(&mixture), 64, "data beside metadata"),
        (good.encode().to_vec(), 65, "blocks"),
    ];
    for (block, blocks, word) in cases {
        let world = SimWorld::new(1);
        let inner = world.clone();
        let text = world.run(|env| async move { refused(&inner, env, &block, blocks).await });
        assert!(text.contains(word) && text.contains("other"), "{text}");
    }
}
