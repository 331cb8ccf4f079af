use std::collections::BTreeMap;

use super::*;
use crate::cost::Cost;
use crate::format::block::HEADER;
use crate::store::Store;
use crate::testing::now;

const TREE: Tree<8, 24> = Tree::at(RootId(60));

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn change<T>(mfs: &Store, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
    now(mfs.run(Cost::DELETE, body)).unwrap().0
}

fn value(key: u64, round: u64) -> [u8; 24] {
    let mut value = [0; 24];
    value[..8].copy_from_slice(&key.to_le_bytes());
    value[16..].copy_from_slice(&round.to_le_bytes());
    value
}

fn check_all(mfs: &Store, model: &BTreeMap<u64, [u8; 24]>) {
    change(mfs, |txn| {
        let mut nodes = 0;
        TREE.nodes(txn, |_, _| nodes += 1)?;
        let (all, free) = txn.meta_space();
        assert_eq!(all - free, nodes + 5);
        let entries = TREE.range(txn, &[0; 8], usize::MAX)?;
        let expected: Vec<_> = model.iter().map(|(k, v)| (k.to_be_bytes(), *v)).collect();
        assert!(entries == expected);
        assert_eq!(TREE.is_empty(txn)?, model.is_empty());
        Ok(())
    });
}

#[test]
fn tree_agrees_with_a_map_under_random_changes() {
    for seed in 1..4 {
        let mfs = Store::volatile(4000);
        let mut random = Random(seed * 77);
        let mut model = BTreeMap::new();
        for round in 0..12_000 {
            let key = random.below(if round % 5000 < 2500 { 4000 } else { 60_000 });
            let grow = (round / 3000) % 2 == 0;
            if random.below(10) < if grow { 8 } else { 2 } {
                let value = value(key, round);
                let former = change(&mfs, |txn| TREE.insert(txn, &key.to_be_bytes(), &value));
                assert_eq!(former, model.insert(key, value));
            } else {
                let key = model.range(key..).next().map_or(key, |(&key, _)| key);
                let former = change(&mfs, |txn| TREE.remove(txn, &key.to_be_bytes()));
                assert_eq!(former, model.remove(&key));
            }
            if round % 50 == 0 {
                let probe = random.below(60_000);
                let bytes = probe.to_be_bytes();
                let next = model.range(probe..).next().map(|(k, v)| (k.to_be_bytes(), *v));
                let prev = model.range(..=probe).next_back().map(|(k, v)| (k.to_be_bytes(), *v));
                change(&mfs, |txn| {
                    assert_eq!(TREE.next(txn, &bytes)?, next);
                    assert_eq!(TREE.prev(txn, &bytes)?, prev);
                    assert_eq!(TREE.get(txn, &bytes)?, model.get(&probe).copied());
                    Ok(())
                });
            }
            if round % 3000 == 2999 {
                check_all(&mfs, &model);
            }
        }
        for key in std::mem::take(&mut model).into_keys() {
            change(&mfs, |txn| TREE.remove(txn, &key.to_be_bytes()));
        }
        check_all(&mfs, &model);
    }
}

#[test]
fn finger_search_agrees_with_a_search_from_the_root() {
    let mfs = Store::volatile(4000);
    let mut random = Random(4711);
    let mut model: BTreeMap<u64, [u8; 24]> = BTreeMap::new();
    let mut finger = Finger::default();
    let (mut here, mut near, mut all) = (0, 0, 0);
    for round in 0..20_000 {
        let around = if round % 8 == 0 { random.below(60_000) } else { round % 1000 * 60 };
        let key = around + random.below(60);
        let bytes = key.to_be_bytes();
        all += change(&mfs, |txn| TREE.seek(txn, &mut finger, &bytes));
        near += 1;
        change(&mfs, |txn| {
            let next = TREE.leaf_range(txn, &finger, &bytes, 1)?.first().copied();
            let expected = model.range(key..).next().map(|(k, v)| (k.to_be_bytes(), *v));
            let within = |k: &[u8; 8]| finger.upper_bound().is_none_or(|behind| *k < behind);
            assert_eq!(next, expected.filter(|(k, _)| within(k)));
            let before = TREE.leaf_prev(txn, &finger, &bytes)?;
            let expected = model.range(..key).next_back().map(|(k, v)| (k.to_be_bytes(), *v));
            let within = |k: &[u8; 8]| finger.lower_bound().is_none_or(|least| *k >= least);
            assert_eq!(before, expected.filter(|(k, _)| within(k)));
            Ok(())
        });
        if random.below(10) < if (round / 5000) % 2 == 0 { 8 } else { 2 } {
            let value = value(key, round);
            if change(&mfs, |txn| TREE.leaf_insert(txn, &finger, &bytes, &value)) {
                here += 1;
            } else {
                finger = Finger::default();
                change(&mfs, |txn| TREE.insert(txn, &bytes, &value));
            }
            model.insert(key, value);
        } else if model.contains_key(&key) {
            if !change(&mfs, |txn| TREE.leaf_remove(txn, &finger, &bytes)) {
                finger = Finger::default();
                change(&mfs, |txn| TREE.remove(txn, &bytes));
            }
            model.remove(&key);
        }
        if round % 2500 == 2499 {
            check_all(&mfs, &model);
        }
    }
    assert!(here > 5000, "{here} inserts into the leaf at the finger");
    assert!(all < near * 3 / 2, "{all} nodes read in {near} searches");
}

#[test]
fn nodes_are_nearly_full_after_inserts_in_key_order() {
    let mfs = Store::volatile(4000);
    let mut model = BTreeMap::new();
    for key in 0..20_000u64 {
        change(&mfs, |txn| TREE.insert(txn, &key.to_be_bytes(), &value(key, 0)));
        model.insert(key, value(key, 0));
    }
    check_all(&mfs, &model);
    let mut nodes = 0;
    change(&mfs, |txn| TREE.nodes(txn, |_, _| nodes += 1));
    assert!(nodes < 20_000 / 126 * 4 / 3, "{nodes}");
    for key in (0..20_000u64).rev() {
        change(&mfs, |txn| TREE.remove(txn, &key.to_be_bytes()));
    }
    check_all(&mfs, &BTreeMap::new());
}

#[test]
fn damaged_node_is_reported_and_never_panics() {
    let mfs = Store::volatile(4000);
    for key in 0..2000u64 {
        change(&mfs, |txn| TREE.insert(txn, &(key * 7919 % 2000).to_be_bytes(), &value(key, 0)));
    }
    let mut nodes = Vec::new();
    change(&mfs, |txn| {
        nodes.clear();
        TREE.nodes(txn, |block, _| nodes.push(block))
    });
    let mut random = Random(5);
    for round in 0..3000 {
        let node = nodes[random.below(nodes.len() as u64) as usize];
        let at = HEADER + random.below(if round % 2 == 0 { 8 } else { 4000 }) as usize;
        let byte = random.below(256) as u8;
        let key = random.below(2000).to_be_bytes();
        let _ = now(mfs.run(Cost::DELETE, |txn| {
            txn.write(node)?[at] = byte;
            TREE.nodes(txn, |_, _| ())?;
            TREE.get(txn, &key)?;
            TREE.prev(txn, &key)?;
            TREE.remove(txn, &key)?;
            TREE.insert(txn, &key, &[0; 24])?;
            Err::<(), _>(Stop::Fault(types::Fault::Invalid))
        }));
    }
}

#[test]
fn tree_root_may_be_in_any_block() {
    let mfs = Store::volatile(1000);
    let tree = change(&mfs, |txn| {
        let block = txn.alloc_meta(1, None)?;
        txn.init(block, BlockType::Table)?;
        let tree = Tree::<4, 0>::new(RootLocation::Block(block, 200));
        for key in 0..3000u32 {
            assert_eq!(tree.insert(txn, &key.to_be_bytes(), &[])?, None);
        }
        Ok(tree)
    });
    let last = change(&mfs, |txn| tree.last(txn));
    assert_eq!(last, Some((2999u32.to_be_bytes(), [])));
    assert_eq!(change(&mfs, |txn| tree.first(txn)), Some(([0; 4], [])));
}
