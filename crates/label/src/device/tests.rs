use env::sim::{CrashOptions, DiskAction, DiskFault, SimDisk, SimWorld};
use env::{DiskOptions, Env};
use types::{Epoch, PagId};

use super::*;
use crate::format::{Slice, SliceKind};

const BLOCKS: u64 = 16;
/// Each tears a write elsewhere.
const SEEDS: u64 = 24;

/// Its records of slices lie in two sectors.
fn label() -> Label {
    let slice = |n: u8| {
        let (kind, start) = (SliceKind::Data { pag: PagId(n.into()) }, 2 * u64::from(n));
        Slice { kind, start, blocks: 2, uuid: Uuid([10 + n; 16]) }
    };
    Label::new(Uuid([1; 16]), "a", Uuid([2; 16]), BLOCKS, (0..7).map(slice).collect())
}

/// Runs `body` on a disk that another world may have left.
fn on<T, F: Future<Output = T>>(disk: &SimDisk, body: impl FnOnce(Disk) -> F) -> T {
    let world = SimWorld::new(1);
    world.attach("device", disk);
    world.run(|env: Env| async move {
        let disk = env.open_disk("device", DiskOptions { write: true, exclusive: false });
        body(disk.await.expect("the device is there")).await
    })
}

fn read_from(disk: &SimDisk) -> Result<Found, NoLabel> {
    on(disk, |disk| async move { read(&disk).await })
}

fn labelled() -> SimDisk {
    let disk = SimDisk::new(BLOCKS * BLOCK_U64);
    on(&disk, |disk| async move { write_new(&disk, &label()).await.unwrap() });
    disk.make_all_stable();
    disk
}

fn garbage(disk: &SimDisk, block: u64) {
    disk.poke(block * BLOCK_U64, &[0xa5; BLOCK]);
    disk.make_all_stable();
}

fn raise(label: &mut Label) {
    let epoch = label.fencing_epoch.0 + 1;
    label.fencing_epoch = Epoch(epoch);
    label.slices[6].uuid = Uuid([100 + epoch as u8; 16]);
}

async fn raise_epoch(disk: Disk) {
    let found = read(&disk).await.unwrap();
    update(&disk, &found, raise).await.unwrap();
}

/// Every state that a power cut may leave of `body` on `disk`.
fn cuts<F: Future<Output = ()>>(disk: &SimDisk, body: impl FnOnce(Disk) -> F) -> Vec<SimDisk> {
    disk.record();
    on(disk, body);
    let recording = disk.recording().expect("it was recorded");
    let of_seed = |seed| {
        let images = recording.clone().crash_images(CrashOptions { seed, subsets: 2 });
        images.map(|point| point.disk().fork())
    };
    (0..SEEDS).flat_map(of_seed).collect()
}

#[test]
fn label_is_found_whole_after_a_cut_at_any_moment_of_any_number_of_updates() {
    let damaged_front = labelled();
    garbage(&damaged_front, 0);
    let damaged_end = labelled();
    garbage(&damaged_end, BLOCKS - 1);
    let mut states = 0;
    for begin in [labelled(), damaged_front, damaged_end] {
        let mut level = vec![begin];
        for depth in 0..3 {
            let mut next: Vec<SimDisk> = Vec::new();
            for disk in level {
                let old = read_from(&disk).unwrap().label;
                let mut new = Label { sequence: old.sequence + 1, ..old.clone() };
                raise(&mut new);
                for cut in cuts(&disk, raise_epoch) {
                    states += 1;
                    let found = read_from(&cut).expect("a whole label");
                    assert!(found.label == old || found.label == new, "{depth}: {found:?}");
                    let image = |disk: &SimDisk| disk.peek(0, (BLOCKS * BLOCK_U64) as usize);
                    if next.len() < 40 && next.iter().all(|other| image(other) != image(&cut)) {
                        next.push(cut);
                    }
                }
                assert_eq!(
                    read_from(&disk).map(|found| (found.label, found.damage)),
                    Ok((new, None))
                );
            }
            level = next;
        }
    }
    println!("{states} states");
    assert!(states > 2_000, "{states} states");
}

#[test]
fn label_is_lost_by_a_cut_if_the_copy_that_counts_is_written_first() {
    let disk = labelled();
    garbage(&disk, 0);
    let wrong = |disk: Disk| async move {
        let mut label = Label { sequence: 2, ..label() };
        raise(&mut label);
        write_both(&disk, &label, Place::Front).await.unwrap();
    };
    assert!(cuts(&disk, wrong).iter().any(|cut| read_from(cut).is_err()));
}

#[test]
fn cut_of_a_new_label_leaves_the_old_one_none_or_the_new_one() {
    let new = Label { device_uuid: Uuid([9; 16]), ..label() };
    let written = new.clone();
    let mut seen = [0; 3];
    let body = |disk: Disk| async move {
        erase(&disk).await.unwrap();
        write_new(&disk, &written).await.unwrap();
    };
    for cut in cuts(&labelled(), body) {
        let kind = match read_from(&cut) {
            Ok(found) if found.label == label() => 0,
            Err(NoLabel { why: Why::Foreign | Why::Damaged(_), .. }) => 1,
            Ok(found) if found.label == new => 2,
            other => panic!("{other:?}"),
        };
        seen[kind] += 1;
    }
    assert!(seen.iter().all(|&states| states > 0), "{seen:?}");
}

#[test]
fn one_damaged_copy_is_reported_and_written_anew() {
    for (block, place) in [(0, Place::Front), (BLOCKS - 1, Place::End)] {
        let disk = labelled();
        garbage(&disk, block);
        let found = read_from(&disk).unwrap();
        let damage = found.damage.clone().expect("a damaged copy");
        assert_eq!((found.label, damage.place), (label(), place));
        on(&disk, |disk| async move {
            let found = read(&disk).await.unwrap();
            update(&disk, &found, |_| {}).await.unwrap();
        });
        let found = read_from(&disk).unwrap();
        assert_eq!((found.label.sequence, found.damage), (2, None));
    }
    let disk = labelled();
    disk.make_unreadable(0..BLOCK_U64);
    assert_eq!(read_from(&disk).unwrap().damage.unwrap().place, Place::Front);
}

#[test]
fn failed_write_leaves_the_label_that_counted() {
    for (action, nth) in [(DiskAction::Write, 1), (DiskAction::Flush, 1), (DiskAction::Write, 2)] {
        let disk = labelled();
        disk.fail(action, nth, DiskFault::Io);
        let result = on(&disk, |disk| async move {
            let found = read(&disk).await.unwrap();
            update(&disk, &found, raise).await
        });
        assert!(result.is_err(), "{action:?} {nth}");
        assert!(read_from(&disk).is_ok(), "{action:?} {nth}");
    }
}

#[test]
fn device_without_a_whole_copy_says_what_is_left() {
    let disk = labelled();
    garbage(&disk, BLOCKS - 1);
    disk.flip_bit(3000, 1);
    let error = read_from(&disk).unwrap_err();
    assert!(matches!(error.why, Why::Damaged(_)), "{error:?}");
    assert_eq!((error.uuids, error.zeros), ([Some(Uuid([2; 16])), Some(Uuid([0xa5; 16]))], false));
    let error = read_from(&SimDisk::new(BLOCKS * BLOCK_U64)).unwrap_err();
    assert_eq!((error.why, error.uuids, error.zeros), (Why::Foreign, [None; 2], true));
    let error = read_from(&SimDisk::new(2 * BLOCK_U64)).unwrap_err();
    assert!(matches!(error.why, Why::Damaged(CopyError::Bytes(LabelError::Short))));
}

#[test]
fn resized_device_is_known_by_its_first_block_alone() {
    let larger = SimDisk::new(2 * BLOCKS * BLOCK_U64);
    larger.poke(0, &labelled().peek(0, (BLOCKS * BLOCK_U64) as usize));
    assert_eq!(read_from(&larger).map(|found| (found.label, found.damage)), Ok((label(), None)));
    garbage(&larger, 0);
    assert_eq!(read_from(&larger).unwrap_err().why, Why::Foreign);
    let smaller = SimDisk::new((BLOCKS - 1) * BLOCK_U64);
    smaller.poke(0, &labelled().peek(0, BLOCK));
    let found = read_from(&smaller).unwrap();
    assert_eq!(found.damage.unwrap().place, Place::End);
    // The copy of another device's end at the end of this one.
    let moved = SimDisk::new((BLOCKS - 1) * BLOCK_U64);
    moved.poke((BLOCKS - 2) * BLOCK_U64, &labelled().peek(0, BLOCK));
    assert_eq!(read_from(&moved).unwrap_err().why, Why::Foreign);
    // A label larger than its device is not written.
    let label = Label { blocks: BLOCKS + 1, ..label() };
    let result = on(&labelled(), |disk| async move { write_new(&disk, &label).await });
    assert!(result.is_err());
}

#[test]
fn labels_of_other_builds_are_told_apart() {
    let disk = labelled();
    disk.poke(0, b"REDBUDLB");
    let error = read_from(&disk).unwrap_err();
    assert_eq!(error.why, Why::Unreleased);
    assert!(error.to_string().contains("mkfs --force"), "{error}");
    let disk = labelled();
    let mut newer = disk.peek(0, BLOCK);
    newer[12] = 2;
    newer[8..12].fill(0);
    let crc = types::crc32c(&newer);
    newer[8..12].copy_from_slice(&crc.to_le_bytes());
    disk.poke((BLOCKS - 1) * BLOCK_U64, &newer);
    assert_eq!(read_from(&disk).unwrap_err().why, Why::Version(2));
}
