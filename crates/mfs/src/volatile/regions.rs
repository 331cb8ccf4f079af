//! How often content of each region of the device was read.

use types::HashMap;

use engine::error::Readahead;

/// Blocks of a region.
const REGION: u64 = 256;
/// Most regions with a read count; above that all counts are dropped.
const REGIONS_MAX: usize = 4096;
/// Blocks that are read together: first the small window, then four times as many with each read of
/// the region.
pub(crate) const WINDOW_FIRST: u64 = 16;
/// The largest window.
pub(crate) const WINDOW_MAX: u64 = 128;

/// How often content of each region was read.
#[derive(Default, Debug)]
pub(crate) struct RegionReads {
    reads: HashMap<u64, u32>,
}

impl RegionReads {
    /// The blocks before and after `first..end` up to the ends of an aligned window; none at the
    /// first read of a region.
    pub(crate) fn window(&mut self, first: u64, end: u64) -> Readahead {
        if self.reads.len() >= REGIONS_MAX {
            self.reads.clear();
        }
        let reads = self.reads.entry(first / REGION).or_insert(0);
        let before = *reads;
        *reads = before.saturating_add(1);
        if before == 0 {
            return Readahead::NONE;
        }
        let window = (WINDOW_FIRST << (2 * (before - 1)).min(8)).min(WINDOW_MAX);
        let (start, stop) = (first / window * window, end.next_multiple_of(window));
        Readahead { before: (first - start) as u32, behind: (stop - end) as u32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_around_begins_with_the_second_read_of_a_region_and_grows() {
        let mut nearby = RegionReads::default();
        let mut window = |first: u64, count: u64| {
            let Readahead { before, behind } = nearby.window(first, first + count);
            (first - u64::from(before), first + count + u64::from(behind))
        };
        assert_eq!(window(1030, 4), (1030, 1034));
        assert_eq!(window(1050, 4), (1040, 1056));
        assert_eq!(window(1100, 4), (1088, 1152));
        assert_eq!(window(1200, 4), (1152, 1280));
        assert_eq!(window(1030, 4), (1024, 1152));
        assert_eq!(window(5000, 1), (5000, 5001), "another region");
        for region in 0..2 * REGIONS_MAX as u64 {
            window(region * REGION, 1);
        }
        assert!(nearby.reads.len() <= REGIONS_MAX);
    }
}
