//! Inline data.

use proto::mds::*;
use proto::wire::Bytes;
use types::*;

use crate::bed::*;

const ROOT: Ino = Ino::ROOT;

fn content(bytes: &[u8]) -> Edit {
    Edit::Content { bytes: Bytes(bytes.to_vec()) }
}

fn map(run: &PagRun) -> Edit {
    let state = SegmentState::Written;
    Edit::Map {
        segment: Segment { file: FileBlock(0), len: 1, pag: run.pag, addr: run.addr, state },
    }
}

/// Block 0 as a client gets it: its inline data, and the number of mapped segments.
async fn block_0(c: &Client, ino: Ino) -> (Vec<u8>, usize) {
    let (_, layout) = c.acquire(ino, Rights::DATA_S | Rights::DATA_X).await.unwrap();
    let layout = layout.unwrap();
    (layout.content.0, layout.segments.len())
}

async fn create(c: &Client, text: &str) -> (Ino, u32) {
    let node = node(FileKind::Regular, 0o666);
    let op = Op::Create { dir: ROOT, name: name(text), node, want: Rights::DATA_X };
    match c.call(op).await {
        Ok(OpReply::Created { leased, inline_max, .. }) => (leased.attr.ino, inline_max),
        other => panic!("{other:?}"),
    }
}

/// PROTOCOLS 6a.1 and 6a.3.
#[test]
fn inline_data_comes_with_the_layout_and_goes_with_a_mapping() {
    with_inline_data(|bed| async move {
        let c = bed.client("c").await;
        let (ino, max) = create(&c, "f").await;
        assert!((300..400).contains(&max), "{max}");
        let attr = c.commit(ino, vec![content(b"hello")], None).await.unwrap();
        assert_eq!(
            (attr.size, attr.blocks),
            (5, 1),
            "inline data raises the size and counts as a block"
        );
        assert_eq!(block_0(&c, ino).await, (b"hello".to_vec(), 0));
        assert_eq!(c.lookup(ROOT, "f").await.unwrap().blocks, 1);
        c.call(Op::Sync {}).await.unwrap();
        bed.restart().await;
        let d = bed.client("d").await;
        assert_eq!(block_0(&d, ino).await, (b"hello".to_vec(), 0), "it is durable");
        let run = d.space(1).await.unwrap().remove(0);
        let attr = d.commit(ino, vec![map(&run)], None).await.unwrap();
        assert_eq!((attr.size, attr.blocks), (5, 1));
        assert_eq!(block_0(&d, ino).await, (Vec::new(), 1));
        let attr = d.commit(ino, vec![content(b"again")], None).await.unwrap();
        assert_eq!((attr.size, attr.blocks), (5, 1), "the mapped block is free");
        assert_eq!(block_0(&d, ino).await, (b"again".to_vec(), 0));
    });
}

/// PROTOCOLS 6a.2.
#[test]
fn commit_size_cuts_what_inline_data_raised_it_to() {
    with_inline_data(|bed| async move {
        let c = bed.client("c").await;
        let (ino, _) = create(&c, "f").await;
        let emptied = vec![content(&[7; 100]), Edit::Unmap { from: FileBlock(0), to: 1 << 40 }];
        assert_eq!(c.commit(ino, emptied, Some(0)).await.unwrap().size, 0);
        assert_eq!(block_0(&c, ino).await, (Vec::new(), 0));
        assert_eq!(c.commit(ino, vec![content(&[8; 100])], Some(40)).await.unwrap().size, 40);
        assert_eq!(block_0(&c, ino).await, (vec![8; 40], 0));
        assert_eq!(c.commit(ino, Vec::new(), Some(10)).await.unwrap().size, 10);
        assert_eq!(c.commit(ino, Vec::new(), Some(20)).await.unwrap().size, 20);
        assert_eq!(
            block_0(&c, ino).await,
            (vec![8; 10], 0),
            "truncated content does not come back"
        );
        // More edits than one transaction takes, with the inline data among the first.
        let mut many = vec![content(&[9; 70])];
        many.extend((0..100).map(|at| Edit::Unmap { from: FileBlock(1 + at), to: 2 + at }));
        assert_eq!(c.commit(ino, many, None).await.unwrap().size, 70);
        assert_eq!(block_0(&c, ino).await, (vec![9; 70], 0));
    });
}

/// PROTOCOLS 6a.2.
#[test]
fn inline_data_may_outgrow_its_slot_but_not_its_limit() {
    with_inline_data(|bed| async move {
        let c = bed.client("c").await;
        let (ino, max) = create(&c, "f").await;
        let long = vec![5; max as usize + 1];
        c.commit(ino, vec![content(&long)], None).await.unwrap();
        assert_eq!(block_0(&c, ino).await, (long.clone(), 0));
        let more = content(&[5; limits::CONTENT_MAX + 1]);
        assert_eq!(c.commit(ino, vec![more], None).await, Err(Fault::Invalid));
        assert_eq!(block_0(&c, ino).await, (long, 0), "as it was");
        let dir = c.dir(ROOT, "d").await;
        assert_eq!(c.commit(dir, vec![content(b"x")], None).await, Err(Fault::Invalid));
        let merged = Op::Commit {
            ino,
            edits: vec![content(b"x")],
            size: None,
            mtime: None,
            ctime: None,
            merge: true,
            tail_zero: false,
        };
        assert_eq!(
            c.call(merged).await.err(),
            Some(Fault::Invalid),
            "a commit of ranges carries no inline data"
        );
        let d = bed.client("d").await;
        assert_eq!(d.commit(ino, vec![content(b"x")], None).await, Err(Fault::NotHeld));
    });
}

#[test]
fn inline_data_is_refused_without_the_feature() {
    run(|bed| async move {
        let c = bed.client("c").await;
        let (ino, max) = create(&c, "f").await;
        assert_eq!(max, 0);
        assert_eq!(c.commit(ino, vec![content(b"x")], None).await, Err(Fault::Invalid));
        assert_eq!(block_0(&c, ino).await, (Vec::new(), 0));
    });
}

/// PROTOCOLS 6a.2.
#[test]
fn commit_with_too_much_inline_data_is_refused_whole() {
    with_inline_data(|bed| async move {
        let c = bed.client("c").await;
        let (ino, _) = create(&c, "f").await;
        let contents = |count| (0..count).map(|at| content(&[at as u8; 10])).collect::<Vec<_>>();
        let most = limits::CONTENTS_MAX;
        c.commit(ino, contents(most), None).await.unwrap();
        assert_eq!(c.commit(ino, contents(most + 1), Some(3)).await, Err(Fault::TooBig));
        assert_eq!(block_0(&c, ino).await, (vec![most as u8 - 1; 10], 0));
    });
}

#[test]
fn rename_to_a_longer_name_recalls_nothing_from_the_writer() {
    with_inline_data(|bed| async move {
        let (a, b) = (bed.client("a").await, bed.client("b").await);
        let (ino, max) = create(&a, "name").await;
        b.rename((ROOT, "name"), (ROOT, "longer"), 0).await.unwrap();
        // Content of the size that once fitted into the slot now lies outside it.
        let full = vec![7; max as usize];
        a.commit(ino, vec![content(&full)], None).await.unwrap();
        assert_eq!(block_0(&b, ino).await, (full, 0));
    });
}

/// The client has a block of the data zone for the content. Mapping it needs none of the metadata
/// blocks reserved for removals.
/// PROTOCOLS 6a.2.
#[test]
fn inline_data_is_refused_and_a_mapping_taken_if_metadata_is_full() {
    let features = mfs::Features::NONE.with(mfs::Feature::INLINE_DATA);
    with_features(7, (10 << 20, 2000), features, |bed| async move {
        let c = bed.client("c").await;
        let mut files = Vec::new();
        for index in 0..200 {
            files.push(create(&c, &format!("g{index}")).await);
        }
        for index in 0.. {
            let ino = c.file(ROOT, &format!("f{index}")).await;
            let (name, value) = (Bytes(b"user.a".to_vec()), Bytes(vec![7; 60_000]));
            let set = Op::SetXattr { ino, name, value, flags: 0, kill_setgid: false };
            if let Err(fault) = c.call(set).await {
                assert_eq!(fault, Fault::NoSpace);
                break;
            }
        }
        let run = c.space(1).await.unwrap().remove(0);
        // Each is longer than its slot has room for.
        let long = |max: u32| vec![9; max as usize + 1];
        let (ino, max) = loop {
            let (ino, max) = files.pop().expect("there are fewer blocks than files");
            match c.commit(ino, vec![content(&long(max))], None).await {
                Ok(_) => {}
                Err(fault) => {
                    assert_eq!(fault, Fault::NoSpace);
                    break (ino, max);
                }
            }
        };
        assert_eq!(block_0(&c, ino).await, (Vec::new(), 0), "as it was");
        // The same holds while an orphan is being freed: the reaper may wait for a recall, and the
        // recall for the commit.
        let unlink = Op::Unlink { dir: ROOT, name: name("f0"), unused: None };
        let commit = Op::Commit {
            ino,
            edits: vec![content(&long(max))],
            size: None,
            mtime: None,
            ctime: None,
            merge: false,
            tail_zero: false,
        };
        let before = bed.env.now();
        let done = c.compound(vec![unlink, commit]).await;
        assert_eq!(done[1], Err(Fault::NoSpace));
        assert!(bed.env.now().since(before) < Duration::from_millis(100));
        let size = Some(u64::from(max) + 1);
        assert_eq!(c.commit(ino, vec![map(&run)], size).await.map(|attr| attr.blocks), Ok(1));
        assert_eq!(block_0(&c, ino).await, (Vec::new(), 1));
    });
}
