//! Applications meet names and directories that go while they are used: ENOENT, or the file
//! that they found, and never ESTALE.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, XattrFlags};

use crate::harness::{Cluster, Spec, eventually, pattern, redbud, success};

/// How often a name is replaced in each test.
const ROUNDS: usize = 400;
/// What is replaced: a program, so that it can be run, too.
const PROGRAM: &[u8] = b"#!/bin/true\n";

fn two_mounts() -> (Cluster, PathBuf, PathBuf) {
    let mut cluster = Cluster::start(&Spec::default());
    cluster.mount();
    cluster.mount();
    let (a, b) = (cluster.path(0), cluster.path(1));
    (cluster, a, b)
}

/// Makes a whole program under `name`.
fn put(path: &Path) {
    let mut file = OpenOptions::new();
    let mut file = file.write(true).create(true).truncate(true).mode(0o755).open(path).unwrap();
    io::Write::write_all(&mut file, PROGRAM).unwrap();
}

fn opened(options: &OpenOptions, path: &Path) -> io::Result<()> {
    options.open(path).map(drop)
}

fn read(options: &OpenOptions, path: &Path) -> io::Result<()> {
    let mut bytes = Vec::new();
    options.open(path)?.read_to_end(&mut bytes)?;
    assert!(bytes == PROGRAM || bytes.is_empty(), "{bytes:?}");
    Ok(())
}

/// Finds a path and does something with what it found.
type Use = fn(&Path) -> io::Result<()>;

/// Everything that finds a name and then asks for what it found.
fn uses() -> Vec<(&'static str, Use)> {
    vec![
        ("open", |path| read(OpenOptions::new().read(true), path)),
        ("open to read and write", |path| read(OpenOptions::new().read(true).write(true), path)),
        ("open to append", |path| opened(OpenOptions::new().append(true), path)),
        ("stat", |path| fs::metadata(path).map(drop)),
        ("access", |path| Ok(rustix::fs::access(path, rustix::fs::Access::READ_OK)?)),
        ("getxattr", |path| match rustix::fs::getxattr(path, "user.x", &mut [0; 16]) {
            Ok(_) | Err(rustix::io::Errno::NODATA) => Ok(()),
            Err(error) => Err(error.into()),
        }),
        ("listxattr", |path| Ok(rustix::fs::listxattr(path, &mut [0; 64]).map(drop)?)),
        ("setxattr", |path| Ok(rustix::fs::setxattr(path, "user.y", b"1", XattrFlags::empty())?)),
        ("chmod", |path| fs::set_permissions(path, fs::Permissions::from_mode(0o755))),
        ("exec", |path| match Command::new(path).status() {
            Ok(_) => Ok(()),
            // Its writer has it open still, or it was just made and is empty.
            Err(error) if [Some(26), Some(8)].contains(&error.raw_os_error()) => Ok(()),
            Err(error) => Err(error),
        }),
        ("truncate", |path| OpenOptions::new().write(true).truncate(true).open(path).map(drop)),
    ]
}

/// `change` runs [`ROUNDS`] times at one client while threads at both do everything with the name.
/// None of these may fail but as `may_fail` says.
fn used_while(change: fn(&Path, usize), may_fail: fn(&io::Error) -> bool) {
    let (cluster, a, b) = two_mounts();
    for (what, try_it) in uses() {
        put(&a.join("x"));
        let over = AtomicBool::new(false);
        let use_at = |root: &Path| {
            let (path, mut count) = (root.join("x"), 0u32);
            while !over.load(Ordering::Relaxed) || count == 0 {
                match try_it(&path) {
                    Err(error) if !may_fail(&error) => {
                        over.store(true, Ordering::Relaxed);
                        panic!("{what} at {}, after {count}: {error}", path.display());
                    }
                    _ => count += 1,
                }
            }
        };
        thread::scope(|scope| {
            let users = [&a, &b].map(|root| scope.spawn(move || use_at(root)));
            for round in 0..ROUNDS {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                change(&a, round);
            }
            over.store(true, Ordering::Relaxed);
            users.into_iter().for_each(|user| user.join().unwrap());
        });
    }
    cluster.finish();
}

#[test]
fn name_that_is_being_replaced_always_leads_to_one_of_the_files() {
    let change = |root: &Path, round| {
        let new = root.join(format!("new{}", round % 3));
        put(&new);
        fs::rename(new, root.join("x")).unwrap();
    };
    used_while(change, |_| false);
}

#[test]
fn name_that_is_removed_and_created_exists_or_gives_enoent() {
    let change = |root: &Path, _| {
        fs::remove_file(root.join("x")).unwrap();
        put(&root.join("x"));
    };
    used_while(change, |error| error.kind() == ErrorKind::NotFound);
}

fn path_descriptor(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn of_descriptor(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// How many orphans the server keeps.
fn orphans(root: &Path) -> u64 {
    let status = success(redbud().arg("status").arg(root).arg("--json"));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let server = &status["filesystems"][0]["server"];
    server["orphans"].as_u64().expect("a status says how many there are")
}

#[test]
fn path_descriptor_opens_its_file_after_another_client_unlinked_it() {
    let (cluster, a, b) = two_mounts();
    let bytes = pattern(3, 300_000);
    for (opener, remover) in [(&a, &b), (&b, &a)] {
        fs::write(a.join("f"), &bytes).unwrap();
        let fd = path_descriptor(&opener.join("f"));
        fs::remove_file(remover.join("f")).unwrap();
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_nlink, 0);
        // Longer than a client keeps what is only on its way to be opened.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2500) {
            assert!(fs::read(of_descriptor(&fd)).unwrap() == bytes);
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(orphans(&a), 1, "it is kept for the descriptor");
        drop(fd);
        eventually("what was removed is freed", || orphans(&a) == 0);
    }
    cluster.finish();
}

#[test]
fn orphan_that_another_client_only_looked_up_is_freed() {
    let (cluster, a, b) = two_mounts();
    for round in 0..20 {
        let name = format!("f{round}");
        fs::write(a.join(&name), pattern(round, 100_000)).unwrap();
        assert!(fs::read(b.join(&name)).unwrap() == pattern(round, 100_000));
        assert_eq!(fs::metadata(b.join(&name)).unwrap().nlink(), 1);
    }
    for round in 0..20 {
        fs::remove_file(a.join(format!("f{round}"))).unwrap();
    }
    eventually("what was removed is freed", || orphans(&a) == 0);
    cluster.finish();
}

#[test]
fn directory_removed_by_another_client_is_empty_and_refuses_names() {
    let (cluster, a, b) = two_mounts();
    fs::create_dir(a.join("d")).unwrap();
    fs::write(a.join("f"), b"1").unwrap();
    let dir = File::open(b.join("d")).unwrap();
    let gone = path_descriptor(&b.join("d"));
    fs::remove_dir(a.join("d")).unwrap();
    let at = of_descriptor(&gone);
    let names: Vec<_> = rustix::fs::Dir::read_from(&dir).unwrap().collect();
    assert!(names.is_empty(), "{names:?}");
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    let file = b.join("f");
    let refused = [
        ("lookup", fs::metadata(at.join("x")).err()),
        ("create", File::create(at.join("x")).err()),
        ("mkdir", fs::create_dir(at.join("x")).err()),
        ("symlink", std::os::unix::fs::symlink("t", at.join("x")).err()),
        ("link", fs::hard_link(&file, at.join("x")).err()),
        ("rename into", fs::rename(&file, at.join("x")).err()),
        ("rename out of", fs::rename(at.join("x"), &file).err()),
        ("unlink", fs::remove_file(at.join("x")).err()),
        ("rmdir", fs::remove_dir(at.join("x")).err()),
    ];
    for (what, error) in refused {
        let error = error.unwrap_or_else(|| panic!("{what} in a removed directory"));
        assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {error}");
    }
    assert_eq!(rustix::fs::fstat(&dir).unwrap().st_nlink, 0);
    assert_eq!(fs::metadata(&file).unwrap().nlink(), 1);
    drop((dir, gone));
    cluster.finish();
}

#[test]
fn two_clients_removing_one_tree_both_succeed() {
    let (cluster, a, b) = two_mounts();
    for round in 0..6 {
        for dir in 0..20 {
            let dir = a.join(format!("tree/d{dir}/x/y"));
            fs::create_dir_all(&dir).unwrap();
            for file in 0..20 {
                fs::write(dir.join(format!("f{file}")), pattern(file, file as usize * 50)).unwrap();
            }
        }
        let remove = |root: &Path| Command::new("rm").arg("-rf").arg(root.join("tree")).output();
        let (one, two) = thread::scope(|scope| {
            let one = scope.spawn(|| remove(&a).unwrap());
            let two = remove(&b).unwrap();
            (one.join().unwrap(), two)
        });
        for output in [one, two] {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "round {round}: {text}");
        }
        assert!(!a.join("tree").exists() && !b.join("tree").exists());
    }
    cluster.finish();
}
