//! Random operations on one file against a model in memory.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, OFlags};

use crate::harness::{Cluster, Content, Spec, on_blocks_and_objects, pattern};

/// xorshift: the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Largest offset of an operation.
const FILE_MAX: u64 = 1 << 20;
/// Likewise, of a file that comes to lie beside its inode and leaves it all the time.
const SMALL_FILE_MAX: u64 = 3000;

/// A file as POSIX describes it.
#[derive(Default)]
struct Model(Vec<u8>);

impl Model {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.0.resize(self.0.len().max(offset + bytes.len()), 0);
        self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn zero(&mut self, offset: usize, end: usize) {
        let end = end.min(self.0.len());
        if offset < end {
            self.0[offset..end].fill(0);
        }
    }

    fn read(&self, offset: usize, length: usize) -> &[u8] {
        let end = (offset + length).min(self.0.len());
        self.0.get(offset..end).unwrap_or_default()
    }
}

fn read_at(file: &File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let mut done = 0;
    while done < length {
        match file.read_at(&mut bytes[done..], offset + done as u64).unwrap() {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    bytes
}

/// One random operation on `file` and the model; gives its description.
fn step(random: &mut Random, file: &File, model: &mut Model, (max, number): (u64, u64)) -> String {
    let offset = if random.below(8) == 0 { 0 } else { random.below(max) };
    let length = match random.below(3) {
        0 => 1 + random.below(100),
        1 => 1 + random.below(max / 100),
        _ => 1 + random.below(max / 7),
    };
    let end = offset + length;
    let (from, to) = (offset as usize, end as usize);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match random.below(10) {
        0..=3 => {
            file.write_all_at(&pattern(number, length as usize), offset).unwrap();
            model.write(from, &pattern(number, length as usize));
            format!("write {offset}+{length}")
        }
        4 => {
            file.set_len(offset).unwrap();
            model.0.resize(from, 0);
            format!("truncate {offset}")
        }
        5 => {
            rustix::fs::fallocate(file, punch, offset, length).unwrap();
            model.zero(from, to);
            format!("punch {offset}+{length}")
        }
        6 => {
            rustix::fs::fallocate(file, FallocateFlags::ZERO_RANGE, offset, length).unwrap();
            model.zero(from, to);
            model.0.resize(model.0.len().max(to), 0);
            format!("zero {offset}+{length}")
        }
        7 => {
            rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length).unwrap();
            model.0.resize(model.0.len().max(to), 0);
            format!("allocate {offset}+{length}")
        }
        8 => {
            file.sync_data().unwrap();
            "sync".into()
        }
        _ => {
            assert!(read_at(file, offset, length as usize) == model.read(from, length as usize));
            format!("read {offset}+{length}")
        }
    }
}

/// The flag of files that pass the kernel's pages.
fn direct() -> i32 {
    OFlags::DIRECT.bits().cast_signed()
}

fn run(cluster: &Cluster, mounts: &[usize], seed: u64, steps: u64, flags: i32) {
    run_below(FILE_MAX, cluster, mounts, (seed, steps, flags));
}

fn run_below(max: u64, cluster: &Cluster, mounts: &[usize], (seed, steps, flags): (u64, u64, i32)) {
    let name = format!("file-{seed}");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).custom_flags(flags);
    let files: Vec<File> = mounts
        .iter()
        .map(|&mount| options.open(cluster.path(mount).join(&name)).unwrap())
        .collect();
    let mut random = Random(seed);
    let mut model = Model::default();
    let mut done = Vec::new();
    for number in 0..steps {
        let index = random.below(files.len() as u64) as usize;
        done.push(step(&mut random, &files[index], &mut model, (max, number)));
        let recent = &done[done.len().saturating_sub(12)..];
        assert_eq!(files[index].metadata().unwrap().len(), model.0.len() as u64, "{recent:?}");
        if number % 16 == 0 {
            let other = &files[(index + 1) % files.len()];
            let seen = read_at(other, 0, 2 * FILE_MAX as usize);
            let wrong = seen.iter().zip(&model.0).position(|(a, b)| a != b);
            assert!(seen == model.0, "step {number}: first wrong byte {wrong:?}, after {recent:?}");
        }
    }
}

on_blocks_and_objects!(
    random_operations_on_a_file_agree_with_the_model,
    random_operations_through_two_clients_agree_with_the_model,
    random_operations_are_still_there_after_a_remount,
    random_operations_on_small_files_outside_inodes_agree_with_the_model,
);

fn random_operations_on_a_file_agree_with_the_model(content: Content) {
    let cluster = Cluster::mounted_with(content);
    for seed in [1, 2, 3] {
        run(&cluster, &[0], seed, 700, 0);
    }
    cluster.finish();
}

fn random_operations_through_two_clients_agree_with_the_model(content: Content) {
    let mut cluster = Cluster::start(&Spec { content, ..Spec::default() });
    cluster.mount();
    cluster.mount();
    for (seed, flags) in [(4, 0), (5, 0), (11, direct())] {
        run(&cluster, &[0, 1], seed, 500, flags);
    }
    cluster.finish();
}

fn random_operations_are_still_there_after_a_remount(content: Content) {
    let mut cluster = Cluster::mounted_with(content);
    run(&cluster, &[0], 6, 400, 0);
    let before = fs::read(cluster.root().join("file-6")).unwrap();
    cluster.unmount(0);
    cluster.stop_server();
    cluster.assert_clean();
    cluster.start_server();
    cluster.remount(0, &[]);
    assert!(fs::read(cluster.root().join("file-6")).unwrap() == before);
    cluster.finish();
}

/// Files in objects have no inline data.
#[test]
fn random_operations_on_inline_files_agree_with_the_model() {
    leaves_what_the_model_has(&Spec { slot: "1K", ..Spec::default() });
}

fn random_operations_on_small_files_outside_inodes_agree_with_the_model(content: Content) {
    leaves_what_the_model_has(&Spec { inline_data: false, content, ..Spec::default() });
}

fn leaves_what_the_model_has(spec: &Spec) {
    let mut cluster = Cluster::start(spec);
    cluster.mount();
    cluster.mount();
    for (seed, mounts, flags) in
        [(7, &[0][..], 0), (8, &[0, 1], 0), (9, &[0], direct()), (10, &[0, 1], direct())]
    {
        run_below(SMALL_FILE_MAX, &cluster, mounts, (seed, 500, flags));
    }
    let names = [7, 8, 9, 10].map(|seed| format!("file-{seed}"));
    let read =
        |mount| names.each_ref().map(|name| fs::read(cluster.path(mount).join(name)).unwrap());
    let before = read(0);
    assert!(read(1) == before);
    cluster.unmount(0);
    cluster.unmount(1);
    cluster.stop_server();
    cluster.assert_clean();
    cluster.start_server();
    cluster.remount(0, &[]);
    for (name, before) in names.iter().zip(before) {
        assert!(fs::read(cluster.root().join(name)).unwrap() == before, "{name}");
    }
    cluster.finish();
}
