//! Random operations on data space against a table with one state per block.

use std::collections::BTreeMap;

use types::{ClientId, Fault, FileBlock, FileKind, Ino, PagBlock, PagId, Segment, SegmentState};

use crate::format::slot::SlotSize;
use crate::format::space::{PagFormat, PagUse};
use crate::handle::Mfs;
use crate::layouts::LayoutLimits;
use crate::names::NewInode;
use crate::testing::{formatted, formatted_inline_near, now, random};
use crate::txn::Txn;
use engine::cost::Cost;
use engine::error::{Stop, StoreError};

fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    now(mfs.run(Cost::STEP, body)).unwrap().0
}

fn fault<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> Fault {
    match now(mfs.run(Cost::STEP, body)) {
        Err(StoreError::Fault(fault)) => fault,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("no fault"),
    }
}

fn file(mfs: &Mfs) -> Ino {
    let time = types::Timestamp::default();
    let new = NewInode {
        kind: FileKind::Regular,
        mode: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        client: ClientId::NONE,
        symlink: None,
    };
    run(mfs, |txn| txn.names().create_orphan(&new, None))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Owner {
    Pool(ClientId),
    File(Ino),
    Freed(Ino),
}

type Block = (PagId, u64);

/// Everything that is not free.
#[derive(Default)]
struct Model {
    owners: BTreeMap<Block, Owner>,
    files: BTreeMap<Ino, BTreeMap<u64, (Block, bool)>>,
}

impl Model {
    fn blocks_of(&self, owner: Owner) -> Vec<Block> {
        self.owners.iter().filter(|(_, o)| **o == owner).map(|(&block, _)| block).collect()
    }

    fn check(&self, mfs: &Mfs, clients: &[ClientId]) {
        for pag in run(mfs, |txn| txn.space().pags()) {
            let mine = self.owners.iter().filter(|((of, _), _)| *of == pag.id);
            let (freed, used): (Vec<_>, Vec<_>) =
                mine.partition(|(_, owner)| matches!(owner, Owner::Freed(_)));
            assert_eq!(pag.freed, freed.len() as u64);
            assert_eq!(pag.free, pag.total - freed.len() as u64 - used.len() as u64);
        }
        for &client in clients {
            let mut blocks = Vec::new();
            for (pag, start, len) in run(mfs, |txn| txn.space().pool(client)) {
                blocks.extend((start.0..start.0 + len).map(|block| (pag, block)));
            }
            assert_eq!(blocks, self.blocks_of(Owner::Pool(client)));
        }
        for (&ino, wanted) in &self.files {
            let list = run(mfs, |txn| txn.layouts().layout(ino, FileBlock(0), usize::MAX));
            let mut found = BTreeMap::new();
            for pair in list.windows(2) {
                assert!(pair[0].end() <= pair[1].file.0);
            }
            for segment in &list {
                for n in 0..segment.len {
                    let block = (segment.pag, segment.addr.0 + n);
                    let state = segment.state == SegmentState::Written;
                    found.insert(segment.file.0 + n, (block, state));
                }
            }
            assert_eq!(&found, wanted);
            let blocks = run(mfs, |txn| txn.names().attr(ino)).unwrap().blocks;
            assert_eq!(blocks, wanted.len() as u64);
        }
    }

    fn free(&mut self, ino: Ino, from: u64, to: u64) {
        let file = self.files.get_mut(&ino).unwrap();
        let freed: Vec<u64> = file.range(from..to).map(|(&n, _)| n).collect();
        for n in freed {
            let (block, _) = file.remove(&n).unwrap();
            self.owners.insert(block, Owner::Freed(ino));
        }
    }
}

/// One operation, on files of about `blocks` blocks, which maps at most `most` of them.
fn step(
    mfs: &Mfs,
    model: &mut Model,
    clients: &[ClientId],
    seed: &mut u64,
    (blocks, most): (u64, u64),
) {
    let client = clients[random(seed, clients.len() as u64) as usize];
    let inos: Vec<Ino> = model.files.keys().copied().collect();
    let ino = inos[random(seed, inos.len() as u64) as usize];
    let from = random(seed, blocks);
    let to = from + 1 + random(seed, 30);
    match random(seed, 13) {
        0 | 1 => {
            let blocks = 1 + random(seed, 60);
            if model.blocks_of(Owner::Pool(client)).len() > 2000 {
                return;
            }
            for (pag, start, len) in run(mfs, |txn| txn.space().grant(client, None, blocks)) {
                for block in start.0..start.0 + len {
                    let old = model.owners.insert((pag, block), Owner::Pool(client));
                    assert_eq!(old, None);
                }
            }
        }
        2..=6 => {
            let pool = run(mfs, |txn| txn.space().pool(client));
            let Some(&(pag, start, len)) = pool.get(random(seed, 5) as usize) else { return };
            let skip = random(seed, len);
            let len = (len - skip).min(1 + random(seed, most));
            let written = random(seed, 2) == 0;
            let state = if written { SegmentState::Written } else { SegmentState::Unwritten };
            let addr = PagBlock(start.0 + skip);
            let segment = Segment { file: FileBlock(from), len, pag, addr, state };
            run(mfs, |txn| txn.layouts().map(ino, client, segment));
            model.free(ino, from, from + len);
            for n in 0..len {
                let block = (pag, addr.0 + n);
                model.owners.insert(block, Owner::File(ino));
                model.files.get_mut(&ino).unwrap().insert(from + n, (block, written));
            }
        }
        7 => {
            run(mfs, |txn| txn.layouts().mark_written(ino, FileBlock(from), to - from));
            let file = model.files.get_mut(&ino).unwrap();
            file.range_mut(from..to).for_each(|(_, entry)| entry.1 = true);
        }
        8 => {
            while !run(mfs, |txn| txn.layouts().unmap_step(ino, from, to, 3)) {}
            model.free(ino, from, to);
        }
        9 => {
            let pool = run(mfs, |txn| txn.space().pool(client));
            let Some(&(pag, start, len)) = pool.first() else { return };
            let (skip, n) = (len / 3, 1 + len / 3);
            run(mfs, |txn| txn.space().pool_return(client, pag, PagBlock(start.0 + skip), n));
            for block in start.0 + skip..start.0 + skip + n {
                assert_eq!(model.owners.remove(&(pag, block)), Some(Owner::Pool(client)));
            }
        }
        10 => {
            let max = 1 + random(seed, 9) as usize;
            run(mfs, |txn| txn.space().release_freed(max));
            sync_freed(mfs, model);
        }
        11 => {
            let pags = run(mfs, |txn| txn.space().pags());
            let pag = pags[random(seed, pags.len() as u64) as usize].id;
            let runs = exact_runs(mfs, pag, seed);
            let blocks = |&(pag, start, len): &(PagId, PagBlock, u64)| {
                (start.0..start.0 + len).map(move |block| (pag, block))
            };
            let mut all = runs.iter().flat_map(blocks);
            let are_free = all.all(|block| !model.owners.contains_key(&block));
            let taken = run(mfs, |txn| txn.space().grant_exactly(client, &runs));
            assert_eq!(taken, are_free, "{runs:?}");
            for block in runs.iter().flat_map(blocks).filter(|_| taken) {
                model.owners.insert(block, Owner::Pool(client));
            }
        }
        // Larger files live longer.
        _ if random(seed, blocks / 50) == 0 => {
            while !run(mfs, |txn| txn.names().free_inode_step(ino, 2)) {}
            model.free(ino, 0, u64::MAX);
            model.files.remove(&ino);
            model.files.insert(file(mfs), BTreeMap::new());
        }
        _ => {}
    }
}

/// Parts of two free runs of a zone, or of what follows them.
fn exact_runs(mfs: &Mfs, pag: PagId, seed: &mut u64) -> Vec<(PagId, PagBlock, u64)> {
    let range = (random(seed, 100), u64::MAX);
    let runs = run(mfs, |txn| txn.space().free_runs(pag, range, 9));
    let first = random(seed, 9) as usize;
    let chosen = runs.into_iter().skip(first).step_by(2).take(2);
    chosen
        .map(|(pag, start, len)| {
            let skip = random(seed, len.min(20));
            (pag, PagBlock(start.0 + skip), 1 + random(seed, (len - skip).min(8) + 1))
        })
        .collect()
}

/// The store chooses which freed blocks become free: takes that over, and checks that nothing else
/// became free.
fn sync_freed(mfs: &Mfs, model: &mut Model) {
    let freed = run(mfs, freed_blocks);
    model.owners.retain(|block, owner| !matches!(owner, Owner::Freed(_)) || freed.contains(block));
}

fn freed_blocks(txn: &mut Txn<'_>) -> Result<std::collections::BTreeSet<Block>, Stop> {
    let mut out = std::collections::BTreeSet::new();
    crate::trees::FREED.for_each(txn, &[0; 10], |key, value| {
        let (pag, start) = crate::format::space::decode_run_key(key);
        let len = crate::format::space::FreedRun::decode(value).len;
        out.extend((start.0..start.0 + len).map(|block| (pag, block)));
        true
    })?;
    Ok(out)
}

#[test]
fn data_space_operations_equal_a_table_of_blocks() {
    for start in 1..=4u64 {
        let mfs = formatted();
        let mut seed = start * 77;
        let mut model = Model::default();
        let clients: Vec<ClientId> =
            (0..3).map(|_| run(&mfs, |txn| txn.new_client(b"client"))).collect();
        for _ in 0..4 {
            model.files.insert(file(&mfs), BTreeMap::new());
        }
        for round in 0..1200 {
            step(&mfs, &mut model, &clients, &mut seed, (200, 12));
            if round % 40 == 0 {
                model.check(&mfs, &clients);
            }
        }
        model.check(&mfs, &clients);
        for &client in &clients {
            assert_eq!(fault(&mfs, |txn| txn.space().remove_client(client)), Fault::Busy);
            run(&mfs, |txn| txn.space().quarantine(client));
            while !run(&mfs, |txn| txn.space().release_pool(client)) {}
            assert!(run(&mfs, |txn| txn.space().remove_client(client)));
        }
        for ino in model.files.into_keys() {
            while !run(&mfs, |txn| txn.names().free_inode_step(ino, 100)) {}
        }
        while run(&mfs, |txn| txn.space().release_freed(100)) > 0 {}
        for pag in run(&mfs, |txn| txn.space().pags()) {
            assert_eq!((pag.free, pag.freed), (pag.total, 0));
            let whole = run(&mfs, |txn| txn.space().free_run_from(pag.id, 0));
            assert_eq!(whole, Some((1, pag.total)), "everything joined into one run");
        }
    }
}

#[test]
fn fragmented_file_operations_equal_a_table_of_blocks() {
    // Few segments in a layout block, or as many as fit; in small slots and in large ones.
    let few = LayoutLimits { capacity: 5, ..LayoutLimits::USUAL };
    for (start, layouts) in [(1u64, few), (2, few), (3, few), (4, LayoutLimits::USUAL)] {
        let mfs = formatted_inline_near(SlotSize::ALL[start as usize % SlotSize::ALL.len()]);
        mfs.volatile_state_mut().layouts = layouts;
        let mut seed = start * 99;
        let mut model = Model::default();
        let clients: Vec<ClientId> =
            (0..2).map(|_| run(&mfs, |txn| txn.new_client(b"client"))).collect();
        for _ in 0..2 {
            model.files.insert(file(&mfs), BTreeMap::new());
        }
        let mut most = 0;
        for round in 0..5000 {
            step(&mfs, &mut model, &clients, &mut seed, (3000, 2));
            if round % 250 == 0 {
                model.check(&mfs, &clients);
                let report = now(crate::fsck::check(&mfs)).unwrap();
                assert_eq!(report.problems, []);
                most = most.max(report.counts.segments);
            }
        }
        model.check(&mfs, &clients);
        assert!(most > 300, "{most} segments");
    }
}

#[test]
fn blocks_of_another_pool_or_file_cannot_be_mapped() {
    let mfs = formatted();
    let (a, b) = (run(&mfs, |t| t.new_client(b"a")), run(&mfs, |t| t.new_client(b"")));
    let ino = file(&mfs);
    let (pag, addr, len) = run(&mfs, |txn| txn.space().grant(a, None, 8))[0];
    let segment = Segment { file: FileBlock(0), len, pag, addr, state: SegmentState::Written };
    assert_eq!(fault(&mfs, |txn| txn.layouts().map(ino, b, segment)), Fault::Invalid);
    let longer = Segment { len: len + 1, ..segment };
    assert_eq!(fault(&mfs, |txn| txn.layouts().map(ino, a, longer)), Fault::Invalid);
    run(&mfs, |txn| txn.layouts().map(ino, a, segment));
    assert_eq!(
        fault(&mfs, |txn| txn.layouts().map(ino, a, segment)),
        Fault::Invalid,
        "mapped already"
    );
    let nonsense = Segment { file: FileBlock(u64::MAX), ..segment };
    assert_eq!(fault(&mfs, |txn| txn.layouts().map(ino, a, nonsense)), Fault::Invalid);
    assert_eq!(
        fault(&mfs, |txn| txn.space().pool_return(a, pag, PagBlock(u64::MAX), 2)),
        Fault::Invalid
    );
    assert_eq!(fault(&mfs, |txn| txn.space().grant(a, None, 0)), Fault::Invalid);
    assert_eq!(fault(&mfs, |txn| txn.layouts().layout(Ino::ROOT, FileBlock(0), 1)), Fault::Invalid);
}

/// SEMANTICS 3.5.
#[test]
fn held_and_frozen_blocks_do_not_become_free() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let ino = file(&mfs);
    let (pag, addr, len) = run(&mfs, |txn| txn.space().grant(client, None, 8))[0];
    let segment = Segment { file: FileBlock(3), len, pag, addr, state: SegmentState::Written };
    run(&mfs, |txn| txn.layouts().map(ino, client, segment));
    run(&mfs, |txn| txn.space().freeze(client, ino));
    assert_eq!(run(&mfs, |txn| txn.space().frozen(client)), [ino]);
    mfs.hold_freed(ino);
    mfs.hold_freed(ino);
    assert!(run(&mfs, |txn| txn.layouts().unmap(ino, FileBlock(0), FileBlock(u64::MAX))));
    assert_eq!(run(&mfs, |txn| txn.space().release_freed(9)), 0);
    mfs.unhold_freed(ino);
    assert_eq!(run(&mfs, |txn| txn.space().release_freed(9)), 0);
    mfs.unhold_freed(ino);
    assert_eq!(run(&mfs, |txn| txn.space().release_freed(9)), 0, "still frozen");
    run(&mfs, |txn| txn.space().unfreeze(client, ino));
    mfs.hold_freed(Ino::NONE);
    assert_eq!(run(&mfs, |txn| txn.space().release_freed(9)), 0, "a hold on all files");
    mfs.unhold_freed(Ino::NONE);
    assert!(!run(&mfs, |txn| txn.space().is_frozen(ino)));
    assert_eq!(run(&mfs, |txn| txn.space().release_freed(9)), len);
}

#[test]
fn data_space_runs_out_and_is_freed_again() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let mut granted = 0;
    loop {
        match now(mfs.run(Cost::STEP, |txn| txn.space().grant(client, None, 1000))) {
            Ok((pieces, _)) => granted += pieces.iter().map(|piece| piece.2).sum::<u64>(),
            Err(StoreError::Fault(Fault::NoSpace)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(granted, 2 * 9_999);
    let (pag, start, _) = run(&mfs, |txn| txn.space().pool(client))[0];
    run(&mfs, |txn| txn.space().pool_return(client, pag, start, 5));
    assert_eq!(run(&mfs, |txn| txn.space().grant(client, None, 1000)), [(pag, start, 5)]);
}

#[test]
fn added_zone_is_granted_from_once_and_only_in_service() {
    let mfs = formatted();
    let client = ClientId(run(&mfs, |txn| txn.new_client(b"")).0);
    let known = run(&mfs, |txn| txn.space().pags());
    let id = PagId(known.iter().map(|pag| pag.id.0).max().unwrap() + 1);
    let zone = PagFormat::whole(id, types::Uuid([9; 16]), 1000);
    run(&mfs, |txn| txn.space().add_pag(&zone));
    let state = |id| {
        let all = run(&mfs, |txn| txn.space().pags());
        *all.iter().find(|pag| pag.id == id).unwrap()
    };
    assert_eq!((state(id).zone(), state(id).free, state(id).grantable()), (zone, 999, 999));
    let other = PagFormat { id: PagId(id.0 + 1), ..zone };
    for again in [zone, other, PagFormat { uuid: types::Uuid([8; 16]), ..zone }] {
        assert_eq!(fault(&mfs, |txn| txn.space().add_pag(&again)), Fault::Exists);
    }
    let small = PagFormat { id: PagId(77), uuid: types::Uuid([7; 16]), blocks: 1, ..zone };
    assert_eq!(fault(&mfs, |txn| txn.space().add_pag(&small)), Fault::Invalid);
    let without: Vec<PagId> = known.iter().map(|pag| pag.id).collect();
    let grant =
        || now(mfs.run(Cost::STEP, |txn| txn.space().grant_pieces(client, None, 10, &without, 1)));
    assert_eq!(grant().unwrap().0, [(id, PagBlock(1), 10)]);
    for refused in [PagUse::Draining, PagUse::Lost, PagUse::Paused] {
        run(&mfs, |txn| txn.space().set_pag_use(id, refused));
        assert!(matches!(grant(), Err(StoreError::Fault(Fault::NoSpace))), "{refused:?}");
        assert_eq!((state(id).free, state(id).grantable()), (989, 0));
        // What a client returns is counted as in any other state.
        assert_eq!(run(&mfs, |txn| txn.space().set_pag_use(id, PagUse::InService)), refused);
    }
    run(&mfs, |txn| txn.space().set_pag_use(id, PagUse::Lost));
    run(&mfs, |txn| txn.space().pool_return(client, id, PagBlock(1), 10));
    run(&mfs, |txn| txn.space().set_pag_use(id, PagUse::InService));
    assert_eq!((state(id).free, grant().is_ok()), (999, true));
    assert_eq!(
        fault(&mfs, |txn| txn.space().set_pag_use(PagId(999), PagUse::Lost)),
        Fault::NotFound
    );
}

#[test]
fn grants_of_one_client_follow_each_other() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let first = run(&mfs, |txn| txn.space().grant(client, None, 16))[0];
    let second = run(&mfs, |txn| txn.space().grant(client, Some(first.0), 16))[0];
    assert_eq!((second.0, second.1.0), (first.0, first.1.0 + 16));
    assert_eq!(run(&mfs, |txn| txn.space().pool(client)), [(first.0, first.1, 32)]);
}

#[test]
fn grant_begins_at_the_cursor_also_inside_a_free_run() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let pag = run(&mfs, |txn| txn.space().pags())[0].id;
    let granted = |cursor, blocks| {
        run(&mfs, |txn| {
            txn.space().set_cursor(pag, cursor);
            Ok(())
        });
        run(&mfs, |txn| txn.space().grant(client, Some(pag), blocks))
    };
    assert_eq!(granted(40, 8), [(pag, PagBlock(40), 8)], "blocks before it may be in windows");
    assert_eq!(granted(40, 8), [(pag, PagBlock(48), 8)]);
    assert_eq!(granted(10, 40), [(pag, PagBlock(56), 40)], "from 10 on only 30 are free");
    let all = run(&mfs, |txn| txn.space().pags())[0].free;
    let end = run(&mfs, |txn| txn.space().pags())[0].total + 1;
    assert_eq!(granted(end - 4, 8), [(pag, PagBlock(1), 8)]);
    let rest: u64 = granted(end - 4, all).iter().map(|run| run.2).sum();
    assert_eq!(rest, all - 8, "also what lies before the cursor in the run around it");
}

#[test]
fn layout_edit_of_too_many_segments_is_refused_but_works_in_steps() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let ino = file(&mfs);
    let pieces = run(&mfs, |txn| txn.space().grant(client, None, 3000));
    let (pag, addr, _) = pieces[0];
    for n in 0..1500 {
        let segment = Segment {
            file: FileBlock(2 * n),
            len: 1,
            pag,
            addr: PagBlock(addr.0 + n),
            state: SegmentState::Unwritten,
        };
        run(&mfs, |txn| txn.layouts().map(ino, client, segment));
    }
    let whole = run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(0), usize::MAX));
    assert_eq!(whole.len(), 1500);
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(1001), 3))[0].file.0, 1002);
    let refused = fault(&mfs, |txn| txn.layouts().mark_written(ino, FileBlock(0), 3000));
    assert_eq!(refused, Fault::Overloaded);
    let mut steps = 0;
    while !run(&mfs, |txn| txn.layouts().unmap(ino, FileBlock(0), FileBlock(u64::MAX))) {
        steps += 1;
    }
    assert_eq!(steps, 1500 / crate::layouts::UNMAP_STEP);
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(0), 9)), []);
}

#[test]
fn longer_name_moves_segments_to_the_tree_and_loses_none() {
    use types::Name;
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let ino = file(&mfs);
    let short = Name::new(b"s").unwrap();
    let long = Name::new(&[b'l'; 255]).unwrap();
    run(&mfs, |txn| txn.names().link(Ino::ROOT, &short, ino));
    let (pag, addr, _) = run(&mfs, |txn| txn.space().grant(client, None, 100))[0];
    for n in 0..10 {
        let addr = PagBlock(addr.0 + n);
        let state = SegmentState::Written;
        let segment = Segment { file: FileBlock(2 * n), len: 1, pag, addr, state };
        run(&mfs, |txn| txn.layouts().map(ino, client, segment));
    }
    let before = run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(0), 99));
    run(&mfs, |txn| txn.names().set_xattr(ino, b"user.x", &[1; 100]));
    run(&mfs, |txn| txn.names().rename(Ino::ROOT, &short, Ino::ROOT, &long));
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(0), 99)), before);
    assert_eq!(run(&mfs, |txn| txn.names().xattr(ino, b"user.x")), Some(vec![1; 100]));
    run(&mfs, |txn| txn.names().rename(Ino::ROOT, &long, Ino::ROOT, &short));
    assert_eq!(run(&mfs, |txn| txn.layouts().layout(ino, FileBlock(0), 99)), before);
}

#[test]
fn free_runs_of_a_range_are_cut_at_its_ends_and_exact_grants_need_a_zone_in_service() {
    let mfs = formatted();
    let client = run(&mfs, |txn| txn.new_client(b"c"));
    let zone = run(&mfs, |txn| txn.space().pags())[0];
    let (pag, end) = (zone.id, zone.total + 1);
    let exact = |start, len| vec![(pag, PagBlock(start), len)];
    assert!(run(&mfs, |txn| txn.space().grant_exactly(client, &exact(20, 10))));
    assert_eq!(run(&mfs, |txn| txn.space().pool(client)), exact(20, 10));
    let runs = |range, most| run(&mfs, |txn| txn.space().free_runs(pag, range, most));
    let both = [exact(5, 15), exact(30, end - 30)].concat();
    assert_eq!(runs((5, u64::MAX), 9), both);
    assert_eq!(runs((5, u64::MAX), 1), both[..1]);
    assert_eq!(runs((25, 40), 9), exact(30, 10));
    assert_eq!(runs((20, 30), 9), []);
    let taken = |start, len| run(&mfs, |txn| txn.space().grant_exactly(client, &exact(start, len)));
    assert!(!taken(29, 2) && !taken(19, 2) && !taken(end - 1, 2) && !taken(40, 0));
    run(&mfs, |txn| txn.space().set_pag_use(pag, PagUse::Draining));
    assert!(!taken(40, 2));
    run(&mfs, |txn| txn.space().set_pag_use(pag, PagUse::InService));
    assert!(taken(40, 2));
}
