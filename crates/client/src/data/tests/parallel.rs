//! Several writers and readers of one file at once.

use super::*;

#[test]
fn writers_of_adjacent_bytes_do_not_lose_each_others_data() {
    for seed in 300..318 {
        let setup = Setup { dirty_max: 256 << 10, ..Setup::default() };
        let setup = if seed < 312 { setup } else { setup.undelegated() };
        run(seed, setup, |rig| async move {
            let rig = Rc::new(rig);
            let file = rig.file(1);
            const REGION: u64 = 21_000;
            let mut tasks = Vec::new();
            for part in 0..6u64 {
                let (rig, file) = (rig.clone(), file.clone());
                tasks.push(rig.env.clone().spawn_join(async move {
                    let mut rng = SimRng::new(seed * 100 + part);
                    let mut own = vec![0u8; REGION as usize];
                    let base = part * REGION;
                    for round in 0..60 {
                        let from = rng.below(REGION - 1);
                        let len = 1 + rng.below((REGION - from).min(9000));
                        let bytes = vec![(1 + (part * 7 + round) % 60) as u8; len as usize];
                        rig.write(&file, base + from, &bytes).await.expect("writes");
                        own[from as usize..(from + len) as usize].copy_from_slice(&bytes);
                        if rng.one_in(4) {
                            rig.env.sleep(Duration::from_micros(rng.below(4000))).await;
                        }
                        if rng.one_in(10) {
                            file.fsync(false).await.expect("syncs");
                        }
                        if rng.one_in(3) {
                            let got =
                                file.read(base, REGION as usize).await.expect("reads").to_vec();
                            assert!(got[..] == own[..got.len()], "writer {part} round {round}");
                            assert!(own[got.len()..].iter().all(|&byte| byte == 0));
                        }
                    }
                    own
                }));
            }
            let mut want = Vec::new();
            for task in tasks {
                want.extend(task.await);
            }
            let got = file.read(0, want.len()).await.expect("reads").to_vec();
            assert!(got[..] == want[..got.len()]);
            rig.finish(setup.blocks).await;
            let now = rig.server.now.borrow();
            let seen = Server::content(&now, &rig.server.disks, file.ino);
            assert!(seen[..] == want[..seen.len()]);
        });
    }
}

#[test]
fn concurrent_writes_truncations_and_punches_show_no_garbage() {
    for seed in 320..330 {
        run(seed, Setup::default(), |rig| async move {
            let rig = Rc::new(rig);
            let file = rig.file(1);
            let mut tasks = Vec::new();
            for part in 0..4u64 {
                let (rig, file) = (rig.clone(), file.clone());
                tasks.push(rig.env.clone().spawn_join(async move {
                    let mut rng = SimRng::new(seed * 100 + part);
                    for _ in 0..60 {
                        let at = rng.below(200_000);
                        match part {
                            0 => file.set_size(at).await.expect("truncates"),
                            1 => file.fallocate(3, at, 30_000).await.expect("punches"),
                            2 => {
                                let got = file.read(at, 50_000).await.expect("reads").to_vec();
                                assert!(got.iter().all(|&byte| byte == 0 || byte == 9));
                            }
                            _ => {
                                let bytes = vec![9; 1 + rng.below(40_000) as usize];
                                rig.write(&file, at, &bytes).await.expect("writes");
                            }
                        }
                        rig.env.sleep(Duration::from_micros(rng.below(2000))).await;
                    }
                }));
            }
            for task in tasks {
                task.await;
            }
            let whole = file.read(0, 1 << 20).await.expect("reads").to_vec();
            rig.finish(2048).await;
            let now = rig.server.now.borrow();
            assert!(Server::content(&now, &rig.server.disks, file.ino) == whole);
        });
    }
}

#[test]
fn concurrent_fsyncs_of_many_files_share_flushes() {
    run(340, Setup::default(), |rig| async move {
        let rig = Rc::new(rig);
        let before: u64 = rig.server.disks.iter().map(|disk| disk.counts().flushes).sum();
        let mut tasks = Vec::new();
        for ino in 0..64u64 {
            let rig = rig.clone();
            tasks.push(rig.env.clone().spawn_join(async move {
                let file = rig.file(100 + ino);
                rig.write(&file, 0, &[5; 32 << 10]).await.expect("writes");
                assert!(file.fsync(false).await.expect("syncs"));
            }));
        }
        for task in tasks {
            task.await;
        }
        let after: u64 = rig.server.disks.iter().map(|disk| disk.counts().flushes).sum();
        assert!(after - before <= 8, "{} flushes", after - before);
        assert!(rig.server.commits.get() <= 4, "{} compounds", rig.server.commits.get());
        assert_eq!(rig.server.durable.borrow().files.len(), 64);
    });
}

#[test]
fn write_is_launched_at_once_if_each_recent_one_had_its_own_fsync() {
    run(342, Setup::default(), |rig| async move {
        let writes =
            |rig: &Rig| rig.server.disks.iter().map(|disk| disk.counts().writes).sum::<u64>();
        for ino in 0..3 {
            let file = rig.file(100 + ino);
            rig.write(&file, 0, &[5; 32 << 10]).await.unwrap();
            file.fsync(false).await.unwrap();
        }
        let file = rig.file(1);
        let before = writes(&rig);
        rig.write(&file, 0, &[6; 5000]).await.unwrap();
        rig.env.sleep(Duration::from_micros(1)).await;
        assert_eq!(writes(&rig) - before, 1);
        // A second write waits, so that more of them go out together.
        rig.write(&file, 5000, &[7; 5000]).await.unwrap();
        rig.write(&file, 100_000, &[8; 5000]).await.unwrap();
        rig.env.sleep(Duration::from_micros(1)).await;
        assert_eq!(writes(&rig) - before, 1);
        file.fsync(false).await.unwrap();
        // Several writes had one fsync: the client expects none any more.
        let file = rig.file(2);
        let before = writes(&rig);
        rig.write(&file, 0, &[9; 5000]).await.unwrap();
        rig.env.sleep(Duration::from_micros(1)).await;
        assert_eq!(writes(&rig), before);
        rig.finish(2048).await;
        let now = rig.server.now.borrow();
        let content = Server::content(&now, &rig.server.disks, Ino(1));
        let mut whole = vec![0; 105_000];
        whole[..5000].fill(6);
        whole[5000..10_000].fill(7);
        whole[100_000..].fill(8);
        assert!(content == whole);
    });
}

#[test]
fn append_during_the_zeroing_of_the_tail_stays() {
    const SIZE: u64 = 5000;
    let kinds = [
        "tail zeroed",
        "extended",
        "allocated",
        "punched",
        "punched inside the last block",
        "zeroed inside the last block",
        "zeroed and allocated inside the last block",
    ];
    for (kind, seed) in (0..kinds.len()).flat_map(|kind| (340..350).map(move |seed| (kind, seed))) {
        run(seed, Setup::default(), |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[1; SIZE as usize]).await.unwrap();
            file.fsync(false).await.unwrap();
            // The client no longer knows what lies behind the size, so it must read the block.
            file.rights_lost(Rights::empty());
            rig.acquire(&file);
            let other = file.clone();
            let zeroing = rig.env.spawn_join(async move {
                match kind {
                    0 => other.zero_tail().await,
                    1 => other.set_size(SIZE + 100).await,
                    2 => other.fallocate(0, SIZE, 100).await,
                    3 => other.fallocate(3, 4096, SIZE - 4096).await,
                    4 => other.fallocate(3, 4196, SIZE - 4196).await,
                    5 => other.fallocate(17, 4196, SIZE - 4196).await,
                    _ => other.fallocate(16, 4196, SIZE - 4196).await,
                }
            });
            let data = IoBuf::copy_of(&[2; 8000]);
            let (at, len) = file.write(None, data, 8000, None).await.expect("appends");
            zeroing.await.expect("zeroes");
            let got = file.read(at, len as usize).await.expect("reads").to_vec();
            let whole = got.iter().filter(|&&byte| byte == 2).count();
            assert_eq!(whole, 8000, "{}, {seed}: of what was appended at {at}", kinds[kind]);
        });
    }
}

#[test]
fn append_comes_before_the_zeroing_of_a_range_or_behind_it() {
    const END: u64 = 40_000;
    let mut behind = 0;
    for (size, turns) in [0, 5000].into_iter().flat_map(|size| (0..40).map(move |n| (size, n))) {
        let behind = &mut behind;
        run(370, Setup::default(), move |rig| async move {
            let file = rig.file(1);
            if size > 0 {
                rig.write(&file, 0, &vec![1; size as usize]).await.unwrap();
            }
            let other = file.clone();
            let zeroing = rig.env.spawn_join(async move { other.fallocate(16, 0, END).await });
            for _ in 0..turns {
                rig.env.yield_now().await;
            }
            let (at, _) =
                file.write(None, IoBuf::copy_of(&[2; 68]), 68, None).await.expect("appends");
            zeroing.await.expect("zeroes");
            let got = file.read(0, 2 * END as usize).await.expect("reads").to_vec();
            let mut want = vec![0; END as usize];
            if at >= END {
                want.extend([2; 68]);
                *behind += 1;
            }
            assert!(at == size || at == END, "{at}");
            assert!(got == want, "{size}, {turns}: appended at {at}");
        });
    }
    assert!((1..80).contains(&behind), "{behind} of 80 behind it");
}

#[test]
fn zeroing_a_range_and_setting_the_size_are_one_step_to_readers() {
    const END: u64 = 4 << 20;
    const OLD: u64 = 9_000;
    let mut early = 0;
    for (from, time) in [0, 100].into_iter().flat_map(|from| (0..40).map(move |n| (from, n))) {
        let early = &mut early;
        run(380, Setup::default(), move |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[1; OLD as usize]).await.unwrap();
            let other = file.clone();
            // The client has to ask for blocks in between.
            let zeroing =
                rig.env.spawn_join(async move { other.fallocate(16, from, END - from).await });
            rig.env.sleep(Duration::from_micros(10 * time)).await;
            let got = file.read(0, 2 * OLD as usize).await.expect("reads").to_vec();
            zeroing.await.expect("zeroes");
            let before = vec![1; OLD as usize];
            let after: Vec<u8> = (0..2 * OLD).map(|at| u8::from(at < from)).collect();
            assert!(got == before || got == after, "{from}, {time}: {} bytes", got.len());
            *early += u64::from(got == before);
        });
    }
    assert!((1..80).contains(&early), "{early} of 80 before it");
}

#[test]
fn waiting_append_goes_to_the_end_that_a_truncation_left() {
    const SIZE: u64 = 5000;
    const DIRTY_MAX: usize = 64 << 10;
    let mut waited = 0;
    for (size, seed) in
        [0, 100, 4096, SIZE + 9000].into_iter().flat_map(|size| (360..365).map(move |n| (size, n)))
    {
        let waited = &mut waited;
        let setup = Setup { dirty_max: DIRTY_MAX, ..Setup::default() };
        run(seed, setup, |rig| async move {
            let (file, other) = (rig.file(1), rig.file(2));
            rig.write(&file, 0, &[1; SIZE as usize]).await.unwrap();
            file.fsync(false).await.unwrap();
            // No other byte can become dirty until this is on the device.
            rig.write(&other, 0, &[3; DIRTY_MAX]).await.unwrap();
            let appended = {
                let file = file.clone();
                rig.env.spawn_join(async move {
                    file.write(None, IoBuf::copy_of(&[2; 8000]), 8000, None).await
                })
            };
            while !rig.ctx.budget.has_waiters() {
                rig.env.yield_now().await;
            }
            file.set_size(size).await.expect("truncates");
            if !rig.ctx.budget.has_waiters() {
                return;
            }
            *waited += 1;
            let (at, len) = appended.await.expect("appends");
            assert_eq!((at, u64::from(len)), (size, 8000));
            assert_eq!(file.size(), size + 8000);
            let got = file.read(0, (size + 8000) as usize).await.expect("reads").to_vec();
            let mut want = vec![1; SIZE as usize];
            want.resize(size as usize, 0);
            want.resize(size as usize + 8000, 2);
            assert!(got == want);
        });
    }
    assert!(waited > 10, "the append waited longer than the truncation in {waited} of 20 runs");
}
