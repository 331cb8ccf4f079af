//! Every kind of request, decoded from bytes; and bytes that are not a request.

use super::*;
use crate::abi::Abi;

const ALICE: Caller = Caller { uid: 1000, gid: 100, pid: 4242 };

fn header(opcode: u32) -> Header {
    Header { unique: 7, opcode, ino: Ino(99), caller: ALICE }
}

fn bytes<T: Abi>(value: &T) -> Vec<u8> {
    let mut out = Vec::new();
    value.write(&mut out);
    out
}

fn decoded(opcode: Opcode, args: &[u8]) -> Result<Operation, Errno> {
    decode(&header(opcode as u32), args, true)
}

fn named(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

/// A legal request of each kind, with its decoded operation.
fn examples() -> Vec<(Opcode, Vec<u8>, Operation)> {
    let open = OpenFlags(libc::O_RDWR as u32);
    let create = abi::CreateIn { flags: open.0, mode: 0o100640, umask: 0o22, open_flags: 0 };
    let rename = abi::Rename2In { newdir: 5, flags: 2, padding: 0 };
    let read = abi::ReadIn { fh: 3, offset: 4096, size: 100, ..Default::default() };
    let write = abi::WriteIn {
        fh: 3,
        offset: 10,
        size: 4,
        write_flags: abi::WRITE_KILL_SUIDGID,
        flags: (libc::O_WRONLY | libc::O_APPEND | libc::O_SYNC) as u32,
        ..Default::default()
    };
    let flags =
        WriteFlags { write_back_cache: false, kill_suidgid: true, append: true, sync: true };
    let release = abi::ReleaseIn {
        fh: 3,
        release_flags: abi::RELEASE_FLOCK_UNLOCK,
        lock_owner: 8,
        ..Default::default()
    };
    let fsync = abi::FsyncIn { fh: 3, fsync_flags: abi::FSYNC_FDATASYNC, padding: 0 };
    let setxattr = abi::SetxattrIn {
        size: 3,
        flags: 1,
        setxattr_flags: abi::SETXATTR_ACL_KILL_SGID,
        padding: 0,
    };
    let getxattr = abi::GetxattrIn { size: 20, padding: 0 };
    let lk = abi::LkIn {
        fh: 3,
        owner: 8,
        lk: abi::FileLock { start: 1, end: 2, kind: libc::F_WRLCK as u32, pid: 6 },
        lk_flags: abi::LK_FLOCK,
        padding: 0,
    };
    let lock = LockRequest {
        flock: true,
        owner: LockOwner(8),
        pid: 6,
        exclusive: Some(true),
        start: 1,
        end: 2,
    };
    let setattr = abi::SetattrIn {
        valid: abi::FATTR_MODE
            | abi::FATTR_SIZE
            | abi::FATTR_ATIME
            | abi::FATTR_MTIME
            | abi::FATTR_MTIME_NOW
            | abi::FATTR_FH
            | abi::FATTR_KILL_SUIDGID,
        fh: 3,
        size: 77,
        atime: -1i64 as u64,
        atimensec: 5,
        mode: 0o104755,
        ..Default::default()
    };
    let set = SetAttrRequest {
        mode: Some(0o4755),
        size: Some(77),
        atime: Some(TimeSpec::At(Timestamp { seconds: -1, nanos: 5 })),
        mtime: Some(TimeSpec::Now),
        handle: Some(Handle(3)),
        kill_suidgid: true,
        ..Default::default()
    };
    let node = |kind, mode, rdev| NodeSpec { kind, mode, umask: 0o22, rdev };
    let fallocate = abi::FallocateIn { fh: 3, offset: 1, length: 2, mode: 3, padding: 0 };
    let lseek = abi::LseekIn { fh: 3, offset: 9, whence: libc::SEEK_HOLE as u32, padding: 0 };
    let copy = abi::CopyFileRangeIn {
        fh_in: 1,
        off_in: 2,
        nodeid_out: 3,
        fh_out: 4,
        off_out: 5,
        len: 1 << 40,
        flags: 0,
    };
    let range =
        |len| CopyRange { from: Handle(1), from_offset: 2, to: Handle(4), to_offset: 5, len };
    let forgets =
        [bytes(&abi::BatchForgetIn { count: 2, dummy: 0 }), bytes(&[11u64, 1, 12, 2])].concat();
    vec![
        (Opcode::Lookup, b"abc\0".to_vec(), Operation::Lookup { name: named("abc") }),
        (Opcode::Forget, bytes(&5u64), Operation::Forget { count: 5 }),
        (
            Opcode::BatchForget,
            forgets,
            Operation::BatchForget { inodes: vec![(Ino(11), 1), (Ino(12), 2)] },
        ),
        (Opcode::Getattr, bytes(&abi::GetattrIn::default()), Operation::Getattr { handle: None }),
        (
            Opcode::Getattr,
            bytes(&abi::GetattrIn { getattr_flags: abi::GETATTR_FH, dummy: 0, fh: 9 }),
            Operation::Getattr { handle: Some(Handle(9)) },
        ),
        (Opcode::Statx, bytes(&abi::StatxIn::default()), Operation::Statx),
        (Opcode::Setattr, bytes(&setattr), Operation::Setattr { set }),
        (Opcode::Readlink, vec![], Operation::Readlink),
        (
            Opcode::Symlink,
            b"l\0to/there\0".to_vec(),
            Operation::Symlink { name: named("l"), target: b"to/there".to_vec() },
        ),
        (
            Opcode::Mknod,
            [bytes(&[0o060640u32, 0x103, 0o22, 0]), b"dev\0".to_vec()].concat(),
            Operation::Mknod {
                name: named("dev"),
                node: node(FileKind::BlockDevice, 0o640, 0x103),
            },
        ),
        (
            Opcode::Mkdir,
            [bytes(&[0o1777u32, 0o22]), b"d\0".to_vec()].concat(),
            Operation::Mknod { name: named("d"), node: node(FileKind::Directory, 0o1777, 0) },
        ),
        (Opcode::Unlink, b"x\0".to_vec(), Operation::Unlink { name: named("x") }),
        (Opcode::Rmdir, b"x\0".to_vec(), Operation::Rmdir { name: named("x") }),
        (
            Opcode::Rename,
            [bytes(&5u64), b"a\0b\0".to_vec()].concat(),
            Operation::Rename { name: named("a"), to: Ino(5), new_name: named("b"), flags: 0 },
        ),
        (
            Opcode::Rename2,
            [bytes(&rename), b"a\0b\0".to_vec()].concat(),
            Operation::Rename { name: named("a"), to: Ino(5), new_name: named("b"), flags: 2 },
        ),
        (
            Opcode::Link,
            [bytes(&5u64), b"b\0".to_vec()].concat(),
            Operation::Link { ino: Ino(5), name: named("b") },
        ),
        (Opcode::Open, bytes(&[open.0, 0]), Operation::Open { flags: open }),
        (
            Opcode::Create,
            [bytes(&create), b"n\0".to_vec()].concat(),
            Operation::Create { name: named("n"), mode: 0o640, umask: 0o22, flags: open },
        ),
        (
            Opcode::Tmpfile,
            [bytes(&create), b"/\0".to_vec()].concat(),
            Operation::Tmpfile { mode: 0o640, umask: 0o22, flags: open },
        ),
        (
            Opcode::Read,
            bytes(&read),
            Operation::Read { handle: Handle(3), offset: 4096, len: 100, page_filling: true },
        ),
        (
            Opcode::Read,
            bytes(&abi::ReadIn { read_flags: abi::READ_LOCKOWNER, ..read }),
            Operation::Read { handle: Handle(3), offset: 4096, len: 100, page_filling: false },
        ),
        (
            Opcode::Write,
            bytes(&write),
            Operation::Write { handle: Handle(3), offset: 10, len: 4, flags },
        ),
        (
            Opcode::Write,
            bytes(&abi::WriteIn { write_flags: abi::WRITE_CACHE, ..write }),
            Operation::Write {
                handle: Handle(3),
                offset: 10,
                len: 4,
                flags: WriteFlags { write_back_cache: true, ..WriteFlags::default() },
            },
        ),
        (Opcode::Statfs, vec![], Operation::Statfs),
        (
            Opcode::Release,
            bytes(&release),
            Operation::Release { handle: Handle(3), flock_owner: Some(LockOwner(8)) },
        ),
        (Opcode::Fsync, bytes(&fsync), Operation::Fsync { handle: Handle(3), datasync: true }),
        (
            Opcode::Setxattr,
            [bytes(&setxattr), b"user.a\0xyz".to_vec()].concat(),
            Operation::Setxattr {
                name: b"user.a".to_vec(),
                value: b"xyz".to_vec(),
                flags: 1,
                kill_setgid: true,
            },
        ),
        (
            Opcode::Getxattr,
            [bytes(&getxattr), b"user.a\0".to_vec()].concat(),
            Operation::Getxattr { name: b"user.a".to_vec(), size: 20 },
        ),
        (Opcode::Listxattr, bytes(&getxattr), Operation::Listxattr { size: 20 }),
        (
            Opcode::Removexattr,
            b"user.a\0".to_vec(),
            Operation::Removexattr { name: b"user.a".to_vec() },
        ),
        (
            Opcode::Flush,
            bytes(&abi::FlushIn { fh: 3, lock_owner: 8, ..Default::default() }),
            Operation::Flush { handle: Handle(3), owner: LockOwner(8) },
        ),
        (Opcode::Init, vec![0; 64], Operation::Init),
        (Opcode::Opendir, bytes(&[0u32, 0]), Operation::Opendir),
        (
            Opcode::Readdir,
            bytes(&read),
            Operation::Readdir { handle: Handle(3), cookie: 4096, size: 100, plus: false },
        ),
        (
            Opcode::Readdirplus,
            bytes(&read),
            Operation::Readdir { handle: Handle(3), cookie: 4096, size: 100, plus: true },
        ),
        (Opcode::Releasedir, bytes(&release), Operation::Releasedir { handle: Handle(3) }),
        (Opcode::Fsyncdir, bytes(&fsync), Operation::Fsyncdir { handle: Handle(3) }),
        (Opcode::Getlk, bytes(&lk), Operation::Getlk { handle: Handle(3), lock }),
        (Opcode::Setlk, bytes(&lk), Operation::Setlk { handle: Handle(3), lock, wait: false }),
        (Opcode::Setlkw, bytes(&lk), Operation::Setlk { handle: Handle(3), lock, wait: true }),
        (Opcode::Interrupt, bytes(&44u64), Operation::Interrupt { unique: 44 }),
        (
            Opcode::Fallocate,
            bytes(&fallocate),
            Operation::Fallocate { handle: Handle(3), mode: 3, offset: 1, len: 2 },
        ),
        (
            Opcode::Lseek,
            bytes(&lseek),
            Operation::Lseek { handle: Handle(3), offset: 9, whence: Whence::Hole },
        ),
        (
            Opcode::CopyFileRange,
            bytes(&copy),
            Operation::CopyRange { range: range(0xffff_f000), wide: false },
        ),
        (
            Opcode::CopyFileRange64,
            bytes(&copy),
            Operation::CopyRange { range: range(1 << 40), wide: true },
        ),
        (Opcode::Syncfs, bytes(&0u64), Operation::Syncfs),
        (Opcode::Destroy, vec![], Operation::Destroy),
    ]
}

#[test]
fn every_kind_of_request_is_decoded_or_refused() {
    let examples = examples();
    for (opcode, args, operation) in &examples {
        assert_eq!(decoded(*opcode, args).as_ref(), Ok(operation), "{opcode:?}");
    }
    let refused: Vec<Opcode> = Opcode::ALL
        .iter()
        .copied()
        .filter(|opcode| !examples.iter().any(|(known, ..)| known == opcode))
        .collect();
    for opcode in refused {
        let Errno(errno) = decoded(opcode, &[0; 80]).unwrap_err();
        let expected = if opcode == Opcode::Ioctl { libc::ENOTTY } else { libc::ENOSYS };
        assert_eq!(errno, expected, "{opcode:?}");
    }
    assert_eq!(decode(&header(4096), &[0; 80], true), Err(Errno(libc::ENOSYS)));
}

#[test]
fn truncated_request_is_refused() {
    for (opcode, args, operation) in examples() {
        for len in 0..args.len() {
            match decoded(opcode, &args[..len]) {
                Err(Errno(errno)) => assert_eq!(errno, libc::EINVAL, "{opcode:?} of {len} bytes"),
                // The missing arguments, or their end, are unused.
                Ok(shorter) => assert_eq!(shorter, operation, "{opcode:?} of {len} bytes"),
            }
        }
    }
}

#[test]
fn any_bytes_give_an_operation_or_an_errno() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let examples = examples();
    for round in 0..200_000 {
        let (opcode, args, _) = &examples[random() as usize % examples.len()];
        let mut args = args.clone();
        for _ in 0..random() % 5 {
            if args.is_empty() {
                break;
            }
            let at = random() as usize % args.len();
            args[at] = random() as u8;
        }
        if round % 3 == 0 {
            args.truncate(random() as usize % (args.len() + 1));
        }
        let opcode = if round % 7 == 0 { random() as u32 % 64 } else { *opcode as u32 };
        if let Err(Errno(errno)) = decode(&header(opcode), &args, round % 2 == 0) {
            assert!((1..200).contains(&errno));
        }
        let _ = Header::decode(&args);
    }
}

#[test]
fn illegal_names_never_reach_the_file_system() {
    let lookup = |name: &[u8]| decoded(Opcode::Lookup, &[name, b"\0"].concat());
    assert_eq!(lookup(&[b'x'; 256]), Err(Errno(libc::ENAMETOOLONG)));
    assert!(lookup(&[b'x'; 255]).is_ok());
    for bad in [&b""[..], b".", b"..", b"a/b"] {
        assert_eq!(lookup(bad), Err(EINVAL));
    }
}

#[test]
fn batch_that_claims_more_than_it_holds_is_refused() {
    let claim = bytes(&abi::BatchForgetIn { count: u32::MAX, dummy: 0 });
    assert_eq!(decoded(Opcode::BatchForget, &claim), Err(EINVAL));
}

#[test]
fn short_form_of_setxattr_is_decoded_if_negotiated() {
    let args = [bytes(&[3u32, 2]), b"user.a\0xyz".to_vec()].concat();
    let long = decode(&header(Opcode::Setxattr as u32), &args, false);
    let expected = Operation::Setxattr {
        name: b"user.a".to_vec(),
        value: b"xyz".to_vec(),
        flags: 2,
        kill_setgid: false,
    };
    assert_eq!(long, Ok(expected));
}

#[test]
fn only_creating_requests_need_a_known_caller() {
    let unknown = Caller { uid: Caller::UNKNOWN, gid: Caller::UNKNOWN, pid: 4242 };
    assert_eq!(Caller::UNKNOWN, abi::INVALID_ID);
    let makes = [Opcode::Mknod, Opcode::Mkdir, Opcode::Symlink, Opcode::Create, Opcode::Tmpfile];
    for caller in [unknown, Caller { gid: 100, ..unknown }, Caller { uid: 1000, ..unknown }] {
        for (opcode, args, expected) in examples() {
            let found = decode(&Header { caller, ..header(opcode as u32) }, &args, true);
            let makes = makes.contains(&opcode);
            let expected = if makes { Err(Errno(libc::EOVERFLOW)) } else { Ok(expected) };
            assert_eq!(found, expected, "{opcode:?}");
        }
        let rename = abi::Rename2In { newdir: 5, flags: libc::RENAME_WHITEOUT, padding: 0 };
        let args = [bytes(&rename), b"a\0b\0".to_vec()].concat();
        let found = decode(&Header { caller, ..header(Opcode::Rename2 as u32) }, &args, true);
        assert_eq!(found, Err(Errno(libc::EOVERFLOW)));
    }
}
