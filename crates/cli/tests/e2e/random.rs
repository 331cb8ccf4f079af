//! Random operations: on one file against a model in memory, on names against ext4.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, RenameFlags};

use crate::harness::{Cluster, Ext4, Spec, pattern};

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

const FILE_MAX: u64 = 1 << 20;

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
fn step(random: &mut Random, file: &File, model: &mut Model, number: u64) -> String {
    let offset = random.below(FILE_MAX);
    let length = match random.below(3) {
        0 => 1 + random.below(100),
        1 => 1 + random.below(10_000),
        _ => 1 + random.below(150_000),
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

fn run(cluster: &Cluster, mounts: &[usize], seed: u64, steps: u64, flags: i32) {
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
        done.push(step(&mut random, &files[index], &mut model, number));
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

#[test]
fn random_operations_on_a_file_leave_what_the_model_has() {
    let cluster = Cluster::mounted();
    for seed in [1, 2, 3] {
        run(&cluster, &[0], seed, 700, 0);
    }
    cluster.finish();
}

#[test]
fn random_operations_through_two_clients_leave_what_the_model_has() {
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    for seed in [4, 5] {
        run(&cluster, &[0, 1], seed, 500, 0);
    }
    cluster.finish();
}

#[test]
fn what_random_operations_left_is_there_after_mounting_again() {
    let mut cluster = Cluster::mounted();
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

fn some_path(random: &mut Random, depth: u64) -> String {
    let mut path = format!("n{}", random.below(6));
    for _ in 0..random.below(depth) {
        path += &format!("/n{}", random.below(6));
    }
    path
}

/// One random operation on names; `Err` holds the errno's name.
fn change(random: &mut Random, root: &Path) -> (String, Result<(), String>) {
    let (kind, a, b) = (random.below(12), some_path(random, 3), some_path(random, 3));
    let (first, second) = (root.join(&a), root.join(&b));
    let outcome: io::Result<()> = match kind {
        0 | 1 => fs::create_dir(&first),
        2 | 3 => OpenOptions::new().write(true).create_new(true).open(&first).map(drop),
        4 => fs::remove_file(&first),
        5 => fs::remove_dir(&first),
        6 | 7 => fs::rename(&first, &second),
        8 => fs::hard_link(&first, &second),
        9 => std::os::unix::fs::symlink(&b, &first),
        10 => {
            let flags =
                if random.below(2) == 0 { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
            let here = rustix::fs::CWD;
            rustix::fs::renameat_with(here, &first, here, &second, flags).map_err(Into::into)
        }
        _ => match fs::symlink_metadata(&first) {
            Ok(metadata) if metadata.is_symlink() => Ok(()),
            Ok(_) => fs::set_permissions(
                &first,
                fs::Permissions::from_mode(0o700 + random.below(64) as u32),
            ),
            Err(error) => Err(error),
        },
    };
    let result = outcome.map_err(|error| match error.raw_os_error() {
        Some(number) => format!("{:?}", rustix::io::Errno::from_raw_os_error(number)),
        None => error.to_string(),
    });
    (format!("{kind} {a} {b}"), result)
}

/// Every path below `root` with its type, permissions, links and target.
fn tree(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let target = fs::read_link(&path).unwrap_or_default();
            let text = format!("{:o} {} {}", metadata.mode(), metadata.nlink(), target.display());
            found.insert(path.strip_prefix(root).unwrap().display().to_string(), text);
            if metadata.is_dir() {
                pending.push(path);
            }
        }
    }
    found
}

#[test]
fn random_operations_on_names_do_what_they_do_on_ext4() {
    let ext4 = Ext4::mounted();
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    let (mut ours, mut theirs) = (Random(77), Random(77));
    for number in 0..4000 {
        // Each operation goes through either client.
        let root = cluster.path(number % 3 % 2);
        let expected = change(&mut theirs, &ext4.root());
        let found = change(&mut ours, &root);
        assert_eq!(found, expected, "operation {number}");
        if number % 500 == 499 {
            assert_eq!(tree(&cluster.path(0)), tree(&ext4.root()), "after operation {number}");
            assert_eq!(tree(&cluster.path(1)), tree(&ext4.root()), "after operation {number}");
        }
    }
    cluster.finish();
}
