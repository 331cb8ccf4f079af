//! Two mounts of one file system see each other's changes at once.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{FallocateFlags, fallocate};

use crate::harness::{Cluster, Content, Spec, as_user, on_blocks_and_objects, pattern};

pub fn two_mounts(content: Content) -> (Cluster, PathBuf, PathBuf) {
    let mut cluster = Cluster::start(&Spec { content, ..Spec::default() });
    cluster.mount();
    cluster.mount();
    let (a, b) = (cluster.path(0), cluster.path(1));
    (cluster, a, b)
}

// The others write a byte at most.
on_blocks_and_objects!(
    written_bytes_and_sizes_are_coherent_without_close_or_fsync,
    clients_alternating_in_one_file_see_each_others_blocks,
    concurrent_appends_of_two_clients_are_all_whole,
    orphan_stays_usable_for_clients_that_have_it_open,
    tree_renamed_by_one_client_is_found_by_the_other,
    writes_of_others_clear_set_id_bits_that_any_client_set,
);

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn names_and_attributes_are_coherent_between_clients() {
    let (cluster, a, b) = two_mounts(Content::Blocks);
    fs::create_dir(a.join("dir")).unwrap();
    for round in 0..50 {
        let (near, far) = if round % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let (near, far) = (near.join("dir"), far.join("dir"));
        assert!(!far.join("x").exists(), "round {round}");
        fs::write(near.join("x"), b"1").unwrap();
        assert_eq!(fs::metadata(far.join("x")).unwrap().len(), 1);
        fs::set_permissions(near.join("x"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(far.join("x")).unwrap().mode() & 0o7777, 0o640);
        fs::rename(near.join("x"), near.join("y")).unwrap();
        assert_eq!(names(&far), ["y"]);
        assert!(!far.join("x").exists());
        fs::hard_link(far.join("y"), far.join("z")).unwrap();
        assert_eq!(fs::metadata(near.join("y")).unwrap().nlink(), 2);
        fs::remove_file(near.join("z")).unwrap();
        fs::remove_file(far.join("y")).unwrap();
        assert_eq!(names(&near), Vec::<String>::new());
    }
    fs::remove_dir(b.join("dir")).unwrap();
    assert!(!a.join("dir").exists());
    cluster.finish();
}

fn written_bytes_and_sizes_are_coherent_without_close_or_fsync(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    let mut writer = OpenOptions::new().create(true).append(true).open(a.join("log")).unwrap();
    let mut reader = File::open(b.join("log")).unwrap();
    let mut expected = Vec::new();
    for round in 0..60u64 {
        let piece = pattern(round, 1 + (round as usize * 911) % 20_000);
        writer.write_all(&piece).unwrap();
        expected.extend_from_slice(&piece);
        assert_eq!(fs::metadata(b.join("log")).unwrap().len(), expected.len() as u64);
        let mut seen = Vec::new();
        reader.seek(SeekFrom::Start(0)).unwrap();
        reader.read_to_end(&mut seen).unwrap();
        assert!(seen == expected, "round {round}");
    }
    drop(writer);
    OpenOptions::new().write(true).open(b.join("log")).unwrap().set_len(100).unwrap();
    assert_eq!(fs::read(a.join("log")).unwrap(), &expected[..100]);
    drop(reader);
    cluster.finish();
}

fn clients_alternating_in_one_file_see_each_others_blocks(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    let open = |root: &Path| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(root.join("shared")).unwrap()
    };
    let files = [open(&a), open(&b)];
    let mut expected = vec![0u8; 1 << 20];
    files[0].set_len(1 << 20).unwrap();
    for turn in 0..80usize {
        let piece = pattern(turn as u64, 1 + turn * 131 % 9000);
        let at = turn * 104_729 % ((1 << 20) - 9000);
        files[turn % 2].write_all_at(&piece, at as u64).unwrap();
        expected[at..at + piece.len()].copy_from_slice(&piece);
        let mut seen = vec![0u8; 1 << 20];
        files[(turn + 1) % 2].read_exact_at(&mut seen, 0).unwrap();
        assert!(seen == expected, "turn {turn}");
    }
    drop(files);
    cluster.finish();
}

fn concurrent_appends_of_two_clients_are_all_whole(content: Content) {
    const EACH: usize = 150;
    let (cluster, a, b) = two_mounts(content);
    let append = |root: PathBuf, who: char| {
        thread::spawn(move || {
            let mut options = OpenOptions::new();
            let mut file = options.create(true).append(true).open(root.join("log")).unwrap();
            for number in 0..EACH {
                file.write_all(format!("{who}{number:06}\n").as_bytes()).unwrap();
            }
        })
    };
    let writers = [append(a.clone(), 'a'), append(b, 'b')];
    for writer in writers {
        writer.join().unwrap();
    }
    let text = fs::read_to_string(a.join("log")).unwrap();
    for who in ['a', 'b'] {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(who)).collect();
        let expected: Vec<String> = (0..EACH).map(|number| format!("{who}{number:06}")).collect();
        assert_eq!(lines, expected);
    }
    assert_eq!(text.lines().count(), 2 * EACH);
    cluster.finish();
}

#[test]
fn exclusive_create_has_one_winner() {
    let (cluster, a, b) = two_mounts(Content::Blocks);
    for round in 0..40 {
        let create = |root: &Path| {
            let path = root.join(format!("once{round}"));
            thread::spawn(move || {
                OpenOptions::new().write(true).create_new(true).open(path).is_ok()
            })
        };
        let racers = [create(&a), create(&b), create(&a), create(&b)];
        let winners =
            racers.into_iter().map(|racer| racer.join().unwrap()).filter(|won| *won).count();
        assert_eq!(winners, 1, "round {round}");
    }
    cluster.finish();
}

fn orphan_stays_usable_for_clients_that_have_it_open(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    fs::write(a.join("f"), pattern(1, 50_000)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(b.join("f")).unwrap();
    fs::remove_file(a.join("f")).unwrap();
    assert!(!b.join("f").exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all_at(b"still here", 10).unwrap();
    let mut seen = vec![0u8; 50_000];
    file.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen[10..20], b"still here");
    assert!(seen[20..] == pattern(1, 50_000)[20..]);
    drop(file);
    cluster.finish();
}

fn tree_renamed_by_one_client_is_found_by_the_other(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    for dir in 0..5 {
        fs::create_dir_all(a.join(format!("tree/d{dir}/deep"))).unwrap();
        for file in 0..20 {
            fs::write(a.join(format!("tree/d{dir}/deep/f{file}")), pattern(file, 3000)).unwrap();
        }
    }
    assert_eq!(names(&b.join("tree/d3/deep")).len(), 20);
    fs::rename(b.join("tree"), b.join("moved")).unwrap();
    assert!(!a.join("tree").exists());
    for dir in 0..5 {
        for file in 0..20 {
            for root in [&a, &b] {
                let path = root.join(format!("moved/d{dir}/deep/f{file}"));
                assert!(fs::read(path).unwrap() == pattern(file, 3000));
            }
        }
    }
    fs::remove_dir_all(a.join("moved")).unwrap();
    assert_eq!(names(&b), Vec::<String>::new());
    cluster.finish();
}

/// A kernel that has not heard of the new owner lets the former one pass: the server does not.
#[test]
fn former_owner_of_an_open_file_may_not_change_its_mode() {
    let (cluster, a, b) = two_mounts(Content::Blocks);
    let mode = |bits| rustix::fs::Mode::from_raw_mode(bits);
    std::fs::set_permissions(&a, std::fs::Permissions::from_mode(0o777)).unwrap();
    let file = as_user(1000, || File::create(a.join("file")).unwrap());
    as_user(1000, || rustix::fs::fchmod(&file, mode(0o640))).unwrap();
    std::os::unix::fs::chown(b.join("file"), Some(1001), None).unwrap();
    let refused = as_user(1000, || rustix::fs::fchmod(&file, mode(0o666)));
    assert_eq!(refused, Err(rustix::io::Errno::PERM));
    assert_eq!(std::fs::metadata(b.join("file")).unwrap().mode() & 0o7777, 0o640);
    // Once the host has looked, the new owner may.
    assert_eq!(std::fs::metadata(a.join("file")).unwrap().uid(), 1001);
    as_user(1001, || rustix::fs::chmod(a.join("file"), mode(0o600))).unwrap();
    drop(file);
    cluster.finish();
}

/// The ways in which a stranger changes the content of a file that it has open.
const CHANGES: [(&str, Change); 10] = [
    ("write", |file, _| file.write_all_at(b"evil", 0).unwrap()),
    ("append", |mut file, _| {
        file.seek(SeekFrom::End(0)).unwrap();
        file.write_all(b"evil").unwrap();
    }),
    ("O_APPEND", |_, path| {
        OpenOptions::new().append(true).open(path).unwrap().write_all(b"evil").unwrap();
    }),
    ("O_WRONLY", |_, path| {
        OpenOptions::new().write(true).open(path).unwrap().write_all(b"evil").unwrap();
    }),
    ("ftruncate", |file, _| file.set_len(3).unwrap()),
    ("O_TRUNC", |_, path| drop(File::create(path).unwrap())),
    ("fallocate", |file, _| fallocate(file, FallocateFlags::empty(), 0, 100_000).unwrap()),
    ("punch", |file, _| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, flags, 0, 4).unwrap();
    }),
    ("sendfile", |file, _| {
        let from = File::open("/proc/self/exe").unwrap();
        rustix::fs::sendfile(file, &from, None, 10).unwrap();
    }),
    ("copy_file_range", |file, path| {
        let from = File::open(path).unwrap();
        rustix::fs::copy_file_range(&from, None, file, Some(&mut 20), 10).unwrap();
    }),
];

type Change = fn(&File, &Path);

/// Mode, and is there a capability?
fn privileges(path: &Path) -> (u32, bool) {
    let mut names = [0; 1024];
    let len = rustix::fs::listxattr(path, &mut names).unwrap();
    let capability =
        names[..len].split(|byte| *byte == 0).any(|name| name == b"security.capability");
    (fs::metadata(path).unwrap().mode() & 0o7777, capability)
}

fn add_privileges(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o6777)).unwrap();
    let capability: Vec<u8> =
        [0x0200_0001u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, "security.capability", &capability, flags).unwrap();
    assert_eq!(privileges(path), (0o6777, true));
}

/// Also where that client's kernel remembers that it had nothing to take away.
fn writes_of_others_clear_set_id_bits_that_any_client_set(content: Content) {
    let (cluster, a, b) = two_mounts(content);
    for (setter, who) in [(&a, "own"), (&b, "other")] {
        for first in [true, false] {
            for (how, change) in CHANGES {
                let name = format!("{how}-{who}-{first}");
                fs::write(a.join(&name), b"#!/bin/sh\n".repeat(10)).unwrap();
                fs::set_permissions(a.join(&name), fs::Permissions::from_mode(0o777)).unwrap();
                let file = as_user(4321, || {
                    let file = File::options().read(true).write(true).open(a.join(&name)).unwrap();
                    if !first {
                        file.write_all_at(b"nice", 0).unwrap();
                    }
                    file
                });
                add_privileges(&setter.join(&name));
                as_user(4321, || change(&file, &a.join(&name)));
                for root in [&a, &b] {
                    assert_eq!(privileges(&root.join(&name)), (0o777, false), "{name}");
                }
            }
        }
    }
    cluster.finish();
}
