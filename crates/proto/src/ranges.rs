//! The ranges of one file that one client holds, as the server and the client record them.
//!
//! Invariants:
//! - ranges are never empty and never overlap; adjacent ranges of one mode are merged;
//! - a shared grant does not weaken a range that is held exclusively.

use std::collections::BTreeMap;

use types::{BlockRange, HeldRange};

/// See the module.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HeldRanges {
    /// By first block: one past the last, and whether exclusive.
    map: BTreeMap<u64, (u64, bool)>,
}

fn held(from: u64, to: u64, exclusive: bool) -> HeldRange {
    HeldRange { range: BlockRange::new(from, to), exclusive }
}

impl HeldRanges {
    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Is nothing held?
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.map.clear();
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = HeldRange> {
        self.map.iter().map(|(&from, &(to, exclusive))| held(from, to, exclusive))
    }

    /// Those that have a block in `range`, whole, in order.
    pub fn within(&self, range: BlockRange) -> impl Iterator<Item = HeldRange> {
        let first = self.map.range(..=range.from.0).next_back().map_or(range.from.0, |(&at, _)| at);
        let last = range.to.0.max(first);
        self.map
            .range(first..last)
            .map(|(&from, &(to, exclusive))| held(from, to, exclusive))
            .filter(move |held| held.range.overlaps(range))
    }

    /// Is every block of `wanted` held, and exclusively if `wanted` is exclusive?
    pub fn covers(&self, wanted: HeldRange) -> bool {
        let mut at = wanted.range.from;
        for held in self.within(wanted.range) {
            if held.range.from > at || wanted.exclusive && !held.exclusive {
                return false;
            }
            at = held.range.to;
        }
        at >= wanted.range.to
    }

    /// Does a held block conflict with another client's `wanted`?
    pub fn conflicts(&self, wanted: HeldRange) -> bool {
        self.within(wanted.range).any(|held| held.exclusive || wanted.exclusive)
    }

    /// The blocks of `range` that are not held.
    pub fn missing(&self, range: BlockRange) -> Vec<BlockRange> {
        let mut out = Vec::new();
        let mut at = range.from;
        for held in self.within(range) {
            if held.range.from > at {
                out.push(BlockRange { from: at, to: held.range.from });
            }
            at = held.range.to;
        }
        if at < range.to {
            out.push(BlockRange { from: at, to: range.to });
        }
        out
    }

    /// Extends `range`, of which nothing is held, over the gap around it within `limit`.
    pub fn gap_around(&self, range: BlockRange, limit: BlockRange) -> BlockRange {
        let before = self.map.range(..=range.from.0).next_back().map(|(_, &(to, _))| to);
        let after = self.map.range(range.to.0..).next().map(|(&from, _)| from);
        let gap = BlockRange::new(before.unwrap_or(0), after.unwrap_or(u64::MAX));
        gap.common(limit).hull(range)
    }

    /// Adds `new`. Returns whether that holds more than before.
    pub fn insert(&mut self, new: HeldRange) -> bool {
        if new.range.is_empty() || self.covers(new) {
            return false;
        }
        let kept: Vec<HeldRange> =
            self.within(new.range).filter(|held| held.exclusive && !new.exclusive).collect();
        self.remove(new.range);
        self.put(new);
        for held in kept {
            let again = held.range.common(new.range);
            self.remove(again);
            self.put(HeldRange { range: again, exclusive: true });
        }
        true
    }

    /// Removes every block of `range`.
    pub fn remove(&mut self, range: BlockRange) {
        if range.is_empty() {
            return;
        }
        let touched: Vec<HeldRange> = self.within(range).collect();
        for held in touched {
            self.map.remove(&held.range.from.0);
            let head = BlockRange { to: range.from, ..held.range };
            let tail = BlockRange { from: range.to, ..held.range };
            for rest in [head, tail].into_iter().filter(|rest| !rest.is_empty()) {
                self.map.insert(rest.from.0, (rest.to.0, held.exclusive));
            }
        }
    }

    /// Inserts a range that overlaps no held one, and merges it with its neighbours.
    fn put(&mut self, new: HeldRange) {
        let (mut from, mut to) = (new.range.from.0, new.range.to.0);
        if let Some((&left, &(end, exclusive))) = self.map.range(..from).next_back()
            && end == from
            && exclusive == new.exclusive
        {
            self.map.remove(&left);
            from = left;
        }
        if let Some(&(end, exclusive)) = self.map.get(&to)
            && exclusive == new.exclusive
        {
            self.map.remove(&to);
            to = end;
        }
        self.map.insert(from, (to, new.exclusive));
    }

    /// Panics if an invariant does not hold.
    pub fn validate(&self) {
        let mut last: Option<HeldRange> = None;
        for held in self.iter() {
            assert!(!held.range.is_empty(), "{self:?}");
            if let Some(last) = last {
                assert!(last.range.to <= held.range.from, "{self:?}");
                let joined = last.range.to == held.range.from && last.exclusive == held.exclusive;
                assert!(!joined, "{self:?}");
            }
            last = Some(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_ranges_agree_with_a_plain_array_over_random_changes() {
        const N: u64 = 48;
        let mut ranges = HeldRanges::default();
        let mut model = [0u8; N as usize];
        let mut state = 0x2545_f491_4f6c_dd1du64;
        let mut random = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        for _ in 0..40_000 {
            let from = random(N);
            let to = from + random(N - from + 1);
            let range = BlockRange::new(from, to);
            let blocks = from as usize..to as usize;
            let exclusive = random(2) == 0;
            let level = if exclusive { 2 } else { 1 };
            let wanted = HeldRange { range, exclusive };
            match random(3) {
                0 => {
                    let news = model[blocks.clone()].iter().any(|&held| held < level);
                    assert_eq!(ranges.insert(wanted), news);
                    for held in &mut model[blocks] {
                        *held = level.max(*held);
                    }
                }
                1 => {
                    ranges.remove(range);
                    model[blocks].fill(0);
                }
                _ => {
                    let held = &model[blocks];
                    assert_eq!(ranges.covers(wanted), held.iter().all(|&held| held >= level));
                    let conflict = held.iter().any(|&held| held + level > 2);
                    assert_eq!(ranges.conflicts(wanted), conflict);
                    let free = held.iter().filter(|&&held| held == 0).count() as u64;
                    let missing = ranges.missing(range);
                    assert_eq!(missing.iter().map(|range| range.len()).sum::<u64>(), free);
                    if free == range.len() && free > 0 {
                        let limit = BlockRange::new(from.saturating_sub(5), (to + 5).min(N));
                        let grown = ranges.gap_around(range, limit);
                        let free = |at: u64| model[at as usize] == 0;
                        assert!((grown.from.0..grown.to.0).all(free) && grown.contains(range));
                        assert!(limit.contains(grown));
                        assert!(grown.from == limit.from || !free(grown.from.0 - 1));
                        assert!(grown.to == limit.to || !free(grown.to.0));
                    }
                }
            }
            ranges.validate();
            let mut seen = [0u8; N as usize];
            for held in ranges.iter() {
                let level = if held.exclusive { 2 } else { 1 };
                seen[held.range.from.0 as usize..held.range.to.0 as usize].fill(level);
            }
            assert_eq!(seen, model);
        }
    }
}
