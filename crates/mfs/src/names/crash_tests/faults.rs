//! A device that fails, or is full, at every call.
//!
//! - Whichever write, flush or read fails (once, or that one and all after it), an error names what
//!   failed. A store opened on a device that works again equals the state after some operation, not
//!   before the newest durable one, and is clean.
//! - Wherever no metadata block is found, the operation fails as a whole, or works without the
//!   block; on a full device everything can be removed.
//!
//! With the first workload every read fails once, and every other write and flush. With the
//! workloads of other slot sizes a sixth as many do. `REDBUD_FAULT_SEEDS` tries every call of so
//! many workloads.
//! Not covered: two faults of different kinds in one run.

use env::sim::{DiskAction, DiskFault};

use super::*;

/// Operations before the faults begin, which recovery redoes, and operations under faults.
const BEFORE: usize = 30;
const STEPS: usize = 110;
const SMALL_LOG: u64 = 128 << 10;
/// An operation of a client in small: it may not take the reserve.
const ORDINARY: Cost = Cost { reserve: Reserve::None, ..COST };

fn more_seeds() -> Option<u64> {
    let more = std::env::var("REDBUD_FAULT_SEEDS").ok();
    more.map(|text| text.parse().expect("a number of seeds"))
}

/// At least one for each size of slots.
fn seeds() -> std::ops::Range<u64> {
    1..1 + more_seeds().unwrap_or(0).max(SlotSize::ALL.len() as u64)
}

/// One of so many calls fails.
fn sparse(seed: u64) -> usize {
    if seed <= more_seeds().unwrap_or(1) { 1 } else { 6 }
}

/// A device that was not closed, the operations on it, and what can be read after each.
struct Course {
    seed: u64,
    disk: SimDisk,
    client: ClientId,
    draws: Vec<Draw>,
    dumps: Vec<String>,
}

impl Course {
    fn new(seed: u64, swept: &mut Swept) -> Course {
        let disk = formatted_with(slots(seed), SIZE, SMALL_LOG);
        // Home writes bridge clean blocks between dirty ones.
        disk.set_rotational(seed % 2 == 1);
        let world = SimWorld::new(seed);
        world.attach("meta", &disk);
        let mut work = Work::new(seed);
        let planted = std::mem::take(&mut work.first);
        let before: Vec<Draw> = (0..BEFORE).map(|_| work.draw()).collect();
        let under = (0..STEPS).map(|_| work.draw());
        let draws: Vec<Draw> = before.into_iter().chain(planted).chain(under).collect();
        let (ops, start) = (draws.clone(), disk.clone());
        let (client, dumps, image) = world.run(|env| async move {
            let mfs = open_with(&env, seed).await;
            let client = first(&mfs).await;
            let mut dumps = vec![dump(&mfs).await];
            let mut image = None;
            for (n, draw) in ops.iter().enumerate() {
                if n == BEFORE {
                    mfs.sync().await.unwrap();
                    image = Some(start.fork());
                    // The runs begin with a store that was just opened, and grants from the
                    // beginning of each zone.
                    let forgotten = mfs.run(Cost::SMALL, |txn| {
                        for pag in txn.space().pags()? {
                            txn.space().set_cursor(pag.id, 0);
                        }
                        Ok(())
                    });
                    forgotten.await.unwrap();
                }
                attempt(&mfs, COST, client, draw, n as u32 + 1).await.unwrap();
                if n > BEFORE && n % LOOK == 0 {
                    swept.look(&mfs).await;
                }
                dumps.push(dump(&mfs).await);
            }
            (client, dumps, image.unwrap())
        });
        Course { seed, disk: image, client, draws, dumps }
    }

    /// Runs the operations while the device fails as planned. Returns the number of operations that
    /// are certainly durable, and the error of the call that failed. After a failed read the
    /// operations go on normally.
    fn run(&self, disk: &SimDisk, plan: impl Fn(&SimDisk)) -> (usize, Option<StoreError>) {
        let world = SimWorld::new(self.seed);
        world.attach("meta", disk);
        let (draws, client) = (&self.draws, self.client);
        let (maps, layouts) = (maps(self.seed), layouts(self.seed));
        plan(disk);
        world.run(|env| async move {
            let device = env.open_disk("meta", WRITE).await.unwrap();
            let options = OpenOptions { cache_bytes: 0, maps, layouts, ..OpenOptions::default() };
            let mfs = match Mfs::open(&env, &device, options).await {
                Ok(mfs) => mfs,
                Err(error) => return (BEFORE, Some(error)),
            };
            let (mut durable, mut failed) = (BEFORE, None);
            for (n, draw) in draws.iter().enumerate().skip(BEFORE) {
                let mut done = attempt(&mfs, COST, client, draw, n as u32 + 1).await;
                if let Err(error @ StoreError::Io { .. }) = done {
                    failed = Some(error);
                    done = attempt(&mfs, COST, client, draw, n as u32 + 1).await;
                }
                let number = match done {
                    Ok(number) => number,
                    Err(error) => return (durable, Some(error)),
                };
                if n % 5 == 0 {
                    match mfs.wait_durable(number).await {
                        Ok(()) => durable = n + 1,
                        Err(error) => return (durable, Some(error)),
                    }
                }
            }
            match mfs.close().await {
                Ok(()) => (draws.len(), failed),
                Err(error) => (durable, Some(error)),
            }
        })
    }

    /// Checks that a store on this device has the state after an operation not older than the
    /// `durable`-th, and is clean.
    fn holds(&self, disk: &SimDisk, durable: usize, what: &str) {
        let world = SimWorld::new(self.seed);
        world.attach("meta", disk);
        world.run(|env| async move {
            let mfs = open_with(&env, self.seed).await;
            let count = count_of(&mfs).await as usize;
            assert!(count >= durable, "{what}: {durable} were durable, {count} are there");
            assert_eq!(dump(&mfs).await, self.dumps[count], "{what}: operation {count}");
            assert_eq!(check(&mfs).await.unwrap().problems, [], "{what}");
        });
    }
}

/// Checks that the error says what failed, and on which device.
fn names_what_failed(error: &StoreError, action: DiskAction, what: &str) {
    let text = error.to_string();
    assert!(matches!(error, StoreError::Io { .. } | StoreError::Poisoned(_)), "{what}: {text}");
    let verbs: &[&str] = match action {
        DiskAction::Read => &["read"],
        DiskAction::Write => &["writ"],
        _ => &["flush"],
    };
    assert!(text.contains("meta"), "{what}: {text}");
    assert!(verbs.iter().any(|verb| text.contains(verb)), "{what}: {text}");
}

#[test]
fn durable_state_survives_any_failed_write_flush_or_read() {
    let plans = [
        (DiskAction::Write, DiskFault::Io, false, 1),
        (DiskAction::Write, DiskFault::NoSpace, true, 3),
        (DiskAction::Flush, DiskFault::Io, false, 1),
        (DiskAction::Flush, DiskFault::Io, true, 3),
        (DiskAction::Read, DiskFault::Io, false, 1),
    ];
    let mut swept = Swept::default();
    for seed in seeds() {
        let course = Course::new(seed, &mut swept);
        let sparse = sparse(seed);
        for (action, fault, lasting, step) in plans {
            let (mut points, mut healed) = (0, 0);
            let whole = course.disk.fork();
            assert!(course.run(&whole, |_| {}).1.is_none());
            let counts = whole.counts();
            let calls = match action {
                DiskAction::Read => counts.reads,
                DiskAction::Write => counts.writes,
                _ => counts.flushes,
            };
            // There are few reads, so each of them fails.
            let each = match action {
                DiskAction::Read => 1,
                _ if more_seeds().is_some() => step * sparse,
                _ => 2 * step * sparse,
            };
            for nth in (1..=calls).step_by(each) {
                let disk = course.disk.fork();
                let (durable, error) = course.run(&disk, |disk| match lasting {
                    true => disk.fail_from(action, nth, fault),
                    false => disk.fail(action, nth, fault),
                });
                let what = format!("seed {seed}: {action:?} {nth} fails, {fault:?}");
                points += 1;
                match error {
                    Some(error) => names_what_failed(&error, action, &what),
                    // There was another copy of what could not be read, or a second read of it
                    // alone succeeded.
                    None if action == DiskAction::Read => healed += 1,
                    None => panic!("{what}, and no error reported it"),
                }
                disk.heal();
                course.holds(&disk.stable_only(), durable, &what);
                course.holds(&disk, durable, &what);
            }
            println!(
                "seed {seed}: {points} of {calls} points, {healed} without an error: {action:?} {fault:?}"
            );
            assert!(points > 15 / sparse && healed * 2 < points, "{action:?}: {points}, {healed}");
        }
    }
    swept.met_all();
}

/// Makes searches for metadata blocks fail from the `nth` on; 0: none.
fn fail_searches(mfs: &Mfs, nth: u64) {
    mfs.fail_searches(nth);
}

#[test]
fn operation_without_a_metadata_block_fails_as_a_whole() {
    let (mut failed, mut without) = (0, 0);
    let mut swept = Swept::default();
    for seed in seeds() {
        let disk = formatted_with(slots(seed), SIZE, LOG);
        let world = SimWorld::new(seed);
        world.attach("meta", &disk);
        let swept = &mut swept;
        let (more_failed, more_without) = world.run(|env| async move {
            let mfs = open_with(&env, seed).await;
            let client = first(&mfs).await;
            let mut work = Work::new(seed);
            let (mut failed, mut without) = (0, 0);
            // Without a free block files get no layout blocks, so one gets its own before.
            for draw in &work.first {
                attempt(&mfs, COST, client, draw, 0).await.unwrap();
            }
            swept.look(&mfs).await;
            let mut before = dump(&mfs).await;
            for count in 1..200 {
                if (count as usize).is_multiple_of(LOOK) {
                    swept.look(&mfs).await;
                }
                let draw = work.draw();
                // Operations that work without a block hide the searches after them: every other
                // run begins after them.
                for nth in 1 + work.rng.below(3).. {
                    fail_searches(&mfs, nth);
                    let done = attempt(&mfs, COST, client, &draw, count).await;
                    let unused = mfs.failing_search() > 1;
                    fail_searches(&mfs, 0);
                    let what = format!("seed {seed}: {count}: {draw:?}, search {nth}");
                    let after = dump(&mfs).await;
                    match done {
                        Ok(_) => {
                            without += u32::from(!unused);
                            before = after;
                            break;
                        }
                        Err(StoreError::Fault(Fault::NoSpace)) => failed += 1,
                        Err(error) => panic!("{what}: {error}"),
                    }
                    assert_eq!(after, before, "{what}");
                    assert_eq!(check(&mfs).await.unwrap().problems, [], "{what}");
                }
            }
            mfs.close().await.unwrap();
            let mfs = open_with(&env, seed).await;
            assert_eq!(dump(&mfs).await, before, "seed {seed}");
            assert_eq!(check(&mfs).await.unwrap().problems, [], "seed {seed}");
            (failed, without)
        });
        failed += more_failed;
        without += more_without;
    }
    println!("{failed} operations failed, {without} did without");
    assert!(failed > 100 && without > 10, "{failed}, {without}");
    swept.met_all();
}

/// Removes every name, and frees all orphans.
async fn remove_everything(mfs: &Mfs, what: &str) {
    loop {
        let removed = mfs.run(Cost { reserve: Reserve::ToFree, ..COST }, |txn| {
            let dirs = directories(txn)?;
            for dir in dirs.into_iter().rev() {
                let Some(entry) = txn.names().readdir(dir, 0, 1)?.into_iter().next() else {
                    continue;
                };
                let directory = entry.kind == FileKind::Directory;
                let far = outside::is_far(txn, entry.ino)?;
                if directory && !far && !txn.names().is_empty(entry.ino)? {
                    continue;
                }
                txn.names().remove_name(dir, &entry.name)?;
                if !far {
                    links(txn, entry.ino, if directory { -2 } else { -1 })?;
                }
                if directory {
                    links(txn, dir, -1)?;
                }
                return Ok(true);
            }
            outside::remove_one(txn)
        });
        let removed = removed.await.unwrap_or_else(|error| panic!("{what}: {error}")).0;
        let freed = mfs.run(COST, |txn| {
            let orphans = txn.names().orphans(Ino(0), 1)?;
            orphans.iter().try_for_each(|&ino| txn.names().free_inode_step(ino, 50).map(drop))?;
            Ok(!orphans.is_empty())
        });
        let freed = freed.await.unwrap_or_else(|error| panic!("{what}: {error}")).0;
        if !removed && !freed {
            return;
        }
    }
}

#[test]
fn full_metadata_zone_fails_whole_operations_and_allows_removal() {
    let (mut sizes, mut failed) = (0, 0);
    let mut swept = Swept::default();
    for (seed, blocks) in (1..).zip((88..260).step_by(4).chain(110..130)) {
        let disk = formatted_with(slots(seed), blocks * BLOCK as u64, 64 << 10);
        let world = SimWorld::new(seed);
        world.attach("meta", &disk);
        sizes += 1;
        let swept = &mut swept;
        failed += world.run(|env| async move {
            let mfs = open_with(&env, seed).await;
            let client = first(&mfs).await;
            let mut work = Work::new(seed);
            let (mut failed, mut before) = (0, dump(&mfs).await);
            for count in 1..160 {
                if (count as usize).is_multiple_of(LOOK) {
                    swept.look(&mfs).await;
                }
                let draw = work.draw();
                let what = format!("{blocks} blocks: {count}: {draw:?}");
                let small = Cost { log_bytes: 10 << 10, ..ORDINARY };
                let done = attempt(&mfs, small, client, &draw, count).await;
                let after = dump(&mfs).await;
                match done {
                    Ok(_) => {}
                    Err(StoreError::Fault(Fault::NoSpace)) => {
                        failed += 1;
                        assert_eq!(after, before, "{what}");
                    }
                    Err(error) => panic!("{what}: {error}"),
                }
                before = after;
            }
            let what = format!("{blocks} blocks");
            assert_eq!(check(&mfs).await.unwrap().problems, [], "{what}");
            remove_everything(&mfs, &what).await;
            let counts = check(&mfs).await.unwrap();
            assert_eq!(counts.problems, [], "{what}, emptied");
            mfs.close().await.unwrap();
            let report = {
                let disk = env.open_disk("meta", DiskOptions::default()).await.unwrap();
                fsck(&env, &disk, FsckOptions { cache_bytes: 0, jobs: 2, ..FsckOptions::USUAL })
                    .await
                    .unwrap()
            };
            assert_eq!(report.problems, [], "{what}, closed");
            failed
        });
    }
    println!("{sizes} sizes, {failed} operations refused");
    assert!(failed > 100, "{failed}");
    swept.met_all();
}
