use types::{Ahead, BlockRange, Epoch, HeldRange, ObjectId, PagBlock, PagId};
use types::{Attr, ClientId, Fault, FileBlock, FileKind, Ino, Name, Segment, SegmentState};
use types::{Rights, Timestamp, Transno, Uuid};

use super::*;
use crate::capability::Capability;
use crate::mds::{Message, *};
use crate::wire::{Appended, Bytes};

fn attr() -> Attr {
    let time = Timestamp { seconds: -5, nanos: 7 };
    Attr {
        ino: Ino(77),
        kind: FileKind::Regular,
        mode: 0o644,
        nlink: 1,
        uid: 5,
        gid: 6,
        rdev: 0,
        size: 4097,
        blocks: 2,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        spread: false,
        version: 9,
    }
}

#[test]
fn only_directories_are_spread() {
    let spread = Attr { kind: FileKind::Directory, spread: true, ..attr() };
    let mut bytes = Vec::new();
    spread.put(&mut bytes);
    assert_eq!(Attr::get(&mut Reader::new(&bytes)), Ok(spread));
    bytes[8] = FileKind::Regular as u8 | 0x80;
    assert!(Attr::get(&mut Reader::new(&bytes)).is_err());
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

fn samples() -> Vec<Message> {
    let leased = Leased { attr: attr(), rights: Rights::ATTR | Rights::OPEN, seq: 3 };
    let segment = Segment {
        file: FileBlock(3),
        len: 9,
        pag: PagId(2),
        addr: PagBlock(100),
        state: SegmentState::Unwritten,
    };
    let range = HeldRange { range: BlockRange::new(7, 9), exclusive: true };
    let dir = Ino::ROOT;
    let lock =
        Lock { flock: true, owner: types::LockOwner(4), pid: 1, exclusive: true, start: 0, end: 9 };
    let node = NewNode {
        kind: FileKind::Symlink,
        mode: 0o777,
        umask: 0o22,
        rdev: 0,
        symlink: Bytes(b"../x".to_vec()),
    };
    let ops = vec![
        Op::Lookup { dir, name: name("a"), want: Rights::ATTR, want_dir: Rights::NAMES },
        Op::Create { dir, name: name("b"), node, want: Rights::all() },
        Op::Rename {
            from: dir,
            name: name("b"),
            to: dir,
            new_name: name("c"),
            flags: 2,
            unused: Some(Ino(9)),
        },
        Op::Commit {
            ino: Ino(77),
            edits: vec![
                Edit::Map { segment },
                Edit::Unmap { from: FileBlock(0), to: 3 },
                Edit::Written { from: FileBlock(3), len: 2 },
                Edit::Content { bytes: Bytes(vec![5; 3]) },
            ],
            size: Some(1),
            mtime: None,
            ctime: Some(Timestamp::default()),
            merge: true,
            tail_zero: false,
        },
        Op::Acquire {
            ino: dir,
            rights: Rights::DATA_X,
            from: FileBlock(1),
            range: Some(range.range),
            ahead: Ahead { stride: 5, count: 2 },
        },
        Op::Reclaim {
            leases: vec![HeldLease {
                ino: Ino(5),
                rights: Rights::OPEN | Rights::DATA_P,
                open: true,
                ranges: vec![range],
            }],
            locks: vec![(Ino(5), lock.clone())],
        },
        Op::Lock { ino: Ino(5), lock: lock.clone(), wait: true },
    ];
    let results = vec![
        Ok(OpReply::Entry { entry: Some(leased.clone()), dir: leased.clone() }),
        Ok(OpReply::Acquired {
            leased: leased.clone(),
            layout: Some(LayoutSlice {
                from: FileBlock(0),
                to: u64::MAX,
                segments: vec![segment],
                frozen: false,
                content: Bytes(b"abc".to_vec()),
                inline_max: 120,
                placement: Bytes(b"policy=striping".to_vec()),
                object: Some(ObjectLayout {
                    object: ObjectId(77),
                    part: 256,
                    targets: vec![PagId(3), PagId(4)],
                    may: Capability {
                        object: ObjectId(77),
                        client: ClientId(8),
                        rights: 3,
                        epoch: Epoch(5),
                        mac: [9; 16],
                    },
                }),
            }),
            ranges: vec![range],
            uncontended: false,
            tail_unknown: true,
        }),
        Ok(OpReply::Entries {
            entries: vec![DirEntry {
                cookie: 5,
                name: name("z"),
                ino: Ino(6),
                kind: FileKind::Fifo,
                leased: None,
            }],
            end: true,
            dir: leased,
        }),
        Ok(OpReply::Locked { lock: Some(lock) }),
        Err(Fault::NoSpace),
    ];
    vec![
        Message::Hello {
            hello: Hello {
                version_min: 1,
                version_max: 1,
                features: 0,
                fs_name: "home".into(),
                role: 0,
                client: ClientId(0),
                nonce: 88,
                seen: Transno::ZERO,
                description: "test".into(),
                auth: Bytes::default(),
                lease_ms: 0,
                expected: Appended(Some(Expected {
                    server: types::ServerId(1),
                    role: METADATA_SERVER,
                    fs_uuid: Uuid([1; 16]),
                    map: 1,
                })),
            },
        },
        Message::Welcome {
            welcome: Welcome {
                version: 1,
                features: 0,
                server: types::ServerId(1),
                role: METADATA_SERVER,
                map: 1,
                fs_uuid: Uuid([1; 16]),
                client: ClientId(3),
                epoch: types::Epoch(2),
                state: NEW,
                survived: Transno::ZERO,
                lease_ms: 30_000,
                slots: 64,
                offer: vec![PagInfo {
                    device: Uuid([6; 16]),
                    id: PagId(0),
                    uuid: Uuid([2; 16]),
                    blocks: 99,
                    kind: crate::mds::BLOCK_ZONE,
                    path: "/d".into(),
                }],
                time: Timestamp::default(),
            },
        },
        Message::Request {
            request: Request {
                slot: 3,
                seq: 9,
                principal: Principal { uid: 0, gid: 0, groups: vec![1, 2] },
                sync: true,
                replay: Some(Replay { transno: Transno::ZERO, results: results.clone() }),
                ops,
            },
        },
        Message::Reply {
            reply: Reply {
                slot: 3,
                seq: 9,
                transno: Transno::ZERO,
                last_committed: Transno::ZERO,
                waited: 1_500_000,
                load: 3,
                results,
            },
        },
        Message::Push {
            push: Push::Recall {
                ino: Ino(4),
                seq: 8,
                take: Rights::DATA_P,
                range: Some(BlockRange::new(1, 2)),
            },
        },
        Message::Refused { refused: Refused { fault: Fault::Evicted, text: "gone".into() } },
        Message::PushReply {
            reply: PushReply {
                id: 4,
                data: Some(DataAttr {
                    size: 1,
                    blocks: 1,
                    mtime: Timestamp::default(),
                    ctime: Timestamp::default(),
                }),
            },
        },
    ]
}

fn stream() -> Vec<u8> {
    let mut out = Vec::new();
    for message in samples() {
        encode(&message, &mut out);
    }
    out
}

pub(super) fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn messages_survive_the_stream_however_it_is_split() {
    let bytes = stream();
    let expected: Vec<Received> = samples().into_iter().map(Received::Message).collect();
    for step in [1, 2, 7, 13, 100, bytes.len()] {
        let mut decoder = Decoder::<Mds>::new();
        let mut got = Vec::new();
        for chunk in bytes.chunks(step) {
            let mut buffer = decoder.lend();
            buffer.extend_from_slice(chunk);
            decoder.restore(buffer);
            while let Some(message) = decoder.next().unwrap() {
                got.push(message);
            }
        }
        assert_eq!(got, expected, "in steps of {step}");
    }
}

#[test]
fn flipped_bit_anywhere_is_detected_before_the_message_is_used() {
    let bytes = stream();
    let expected = samples();
    for bit in (0..bytes.len() * 8).step_by(3) {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let mut decoder = Decoder::<Mds>::new();
        decoder.push(&flipped);
        let mut count = 0;
        while let Ok(Some(received)) = decoder.next() {
            assert_eq!(received, Received::Message(expected[count].clone()), "bit {bit}");
            count += 1;
        }
        assert!(count < expected.len(), "bit {bit} went undetected");
    }
}

#[test]
fn any_payload_gives_a_message_or_an_error() {
    let mut state = 0x1234_5678_9abc_def1;
    let payloads: Vec<Vec<u8>> = samples().iter().map(Wire::to_bytes).collect();
    for round in 0..40_000 {
        let mut payload = payloads[round % payloads.len()].clone();
        for _ in 0..1 + next_random(&mut state) % 4 {
            let at = next_random(&mut state) as usize % payload.len();
            match next_random(&mut state) % 4 {
                0 => payload[at] = next_random(&mut state) as u8,
                1 => payload.truncate(at.max(1)),
                2 => payload[at] = 0xff,
                _ => payload.insert(at, next_random(&mut state) as u8),
            }
        }
        if let Ok(message) = Message::get(&mut Reader::new(&payload)) {
            let again = message.to_bytes();
            assert_eq!(Message::get(&mut Reader::new(&again)), Ok(message));
        }
    }
    for _ in 0..40_000 {
        let len = next_random(&mut state) as usize % 80;
        let payload: Vec<u8> = (0..len).map(|_| next_random(&mut state) as u8).collect();
        let _ = Message::get(&mut Reader::new(&payload));
    }
}

#[test]
fn count_beyond_the_message_allocates_nothing() {
    let mut payload = Vec::new();
    5u16.put(&mut payload);
    100u32.put(&mut payload);
    payload.extend_from_slice(&[0; 34]);
    u32::MAX.put(&mut payload);
    payload.resize(106, 0);
    assert!(Message::get(&mut Reader::new(&payload)).is_err());
}

#[test]
fn frame_longer_than_the_limit_ends_the_stream() {
    let mut decoder = Decoder::<Mds>::new();
    let mut header = MAGIC.to_le_bytes().to_vec();
    header.extend_from_slice(&u32::MAX.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    decoder.push(&header);
    assert!(decoder.next().is_err());
    decoder.push(&stream());
    assert!(decoder.next().is_err());
}

#[test]
fn request_with_an_unknown_operation_reveals_its_slot() {
    let request = Request {
        slot: 6,
        seq: 11,
        principal: Principal { uid: 0, gid: 0, groups: vec![] },
        sync: false,
        replay: None,
        ops: vec![Op::Renew {}],
    };
    let mut payload = Message::Request { request }.to_bytes();
    let at = payload.len() - 6;
    payload[at..at + 2].copy_from_slice(&9999u16.to_le_bytes());
    let mut frame = MAGIC.to_le_bytes().to_vec();
    let len = (payload.len() as u32).to_le_bytes();
    frame.extend_from_slice(&len);
    frame.extend_from_slice(&crc32c_append(crc32c(&len), &payload).to_le_bytes());
    frame.extend_from_slice(&payload);
    let mut decoder = Decoder::<Mds>::new();
    decoder.push(&frame);
    assert_eq!(decoder.next(), Ok(Some(Received::Unknown { slot: 6, seq: 11 })));
}

/// PROTOCOLS 2.2.
#[test]
fn bytes_of_a_request_are_those_of_version_4() {
    let request = Request {
        slot: 3,
        seq: 9,
        principal: Principal { uid: 5, gid: 6, groups: vec![7] },
        sync: true,
        replay: None,
        ops: vec![Op::GetAttr { ino: Ino(0x0102), want: Rights::ATTR }],
    };
    let head =
        [4, 0, 50, 0, 0, 0, 3, 0, 9, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0];
    let flags = [1, 0, 0, 1, 0, 0, 0];
    let op = [2, 0, 15, 0, 0, 0, 1, 0, 8, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, Rights::ATTR.bits()];
    let bytes = [&head[..], &flags, &op].concat();
    assert_eq!(Message::Request { request }.to_bytes(), bytes);
    // A byte that is not 0 behind `sync`, and an inode that is not named by its number: both were
    // defined once, and no client sent them.
    for at in [head.len() + 1, head.len() + flags.len() + 6] {
        let mut other = bytes.clone();
        other[at] += 1;
        let len = (other.len() as u32).to_le_bytes();
        let crc = crc32c_append(crc32c(&len), &other).to_le_bytes();
        let mut decoder = Decoder::<Mds>::new();
        decoder.push(&[&MAGIC.to_le_bytes()[..], &len, &crc, &other].concat());
        assert_eq!(decoder.next(), Ok(Some(Received::Unknown { slot: 3, seq: 9 })));
    }
}

/// A write of whole blocks to an object.
pub(super) fn content_request(seq: u32, blocks: usize) -> crate::ost::Message {
    let may = Capability {
        object: ObjectId(7),
        client: ClientId(1),
        rights: 3,
        epoch: Epoch(1),
        mac: [0; 16],
    };
    let data: Vec<u8> = (0..blocks * 4096).map(|at| (at / 4096 + at) as u8).collect();
    let room = crate::ost::Statement::default();
    let op =
        crate::ost::Op::Write { may, block: 3, data: data.into(), sums: vec![5; blocks], room };
    let principal = crate::message::Principal { uid: 0, gid: 0, groups: Vec::new() };
    let request =
        crate::ost::Request { slot: 1, seq, principal, sync: false, replay: None, ops: vec![op] };
    crate::ost::Message::Request { request }
}

#[test]
fn content_of_a_large_frame_is_not_copied_and_what_follows_is_decoded() {
    let sent: Vec<_> =
        [64, 1, 256, 17].map(|blocks| content_request(blocks, blocks as usize)).into();
    let mut bytes = Vec::new();
    sent.iter().for_each(|message| encode(message, &mut bytes));
    for step in [1 << 20, 70_000, 4096, 999] {
        let mut decoder = Decoder::<crate::ost::Ost>::new();
        let mut found = Vec::new();
        for part in bytes.chunks(step) {
            let mut lent = decoder.lend();
            lent.extend_from_slice(part);
            decoder.restore(lent);
            while let Some(received) = decoder.next().unwrap() {
                let Received::Message(message) = received else { panic!("{received:?}") };
                found.push(message);
            }
        }
        assert!(found == sent, "in steps of {step}");
    }
    bytes.truncate(bytes.len() - 1);
    bytes[300_000] ^= 4;
    let mut decoder = Decoder::<crate::ost::Ost>::new();
    decoder.push(&bytes);
    let intact =
        std::iter::from_fn(|| decoder.next().transpose()).take_while(Result::is_ok).count();
    assert_eq!(intact, 2, "the damaged frame and all behind it are refused");
}

#[test]
fn clone_of_content_is_the_same_memory() {
    let crate::ost::Message::Request { request } = content_request(1, 4) else { panic!() };
    let at = |request: &crate::ost::Request| match &request.ops[0] {
        crate::ost::Op::Write { data, .. } => data.as_ptr(),
        _ => panic!(),
    };
    assert_eq!(at(&request), at(&request.clone()));
}
