//! How a run's clients choose places for data: by the usual ways, or by others that are drawn.

use env::sim::SimRng;
use proto::prealloc::{Allocation, OdOptions, Policy, When, WhileOff};

/// Separates the random numbers of ways to choose places from others.
const PLACING: u64 = 0x706c_6163_0000_0000;

/// A third of the pool's seeds draw other ways than the usual ones; 0: the usual ones.
pub(crate) fn drawn(seed: u64) -> u64 {
    let mut rng = SimRng::new(seed ^ PLACING);
    if rng.one_in(3) { 1 + rng.below(1 << 20) } else { 0 }
}

/// How clients come by blocks.
pub(crate) fn allocation(placing: u64) -> Allocation {
    if placing == 0 {
        return Allocation::default();
    }
    let mut rng = SimRng::new(placing ^ PLACING);
    let how = match rng.below(4) {
        0 => Policy::Reservation,
        1 => Policy::Vanilla,
        2 => Policy::OnDemand(OdOptions { window_max: 16, misses_max: 1, ..OdOptions::default() }),
        _ => Policy::OnDemand(OdOptions {
            while_off: WhileOff::Fixed(4),
            for_empty_files: true,
            ..OdOptions::default()
        }),
    };
    let when = if rng.one_in(2) { When::Write } else { When::Launch };
    let chunk = 64 << rng.below(4);
    // Drawn last, so that what was drawn before stays.
    Allocation { how, when, chunk, delegated: !rng.one_in(3) }
}

/// The layout of the root directory among `zones` zones, which all files inherit. It never names
/// zones: the model does not know yet that such files get ENOSPC while other zones have room.
pub(crate) fn layout(placing: u64, zones: usize) -> Option<String> {
    let mut rng = SimRng::new(placing ^ PLACING.rotate_left(8));
    if placing == 0 || zones < 2 || rng.one_in(3) {
        return None;
    }
    let width = rng.one_in(2).then(|| format!(" width={}", 1 + rng.below(zones as u64)));
    Some("policy=striping part=8K".to_owned() + &width.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proto::placement::Layout;

    use super::*;

    #[test]
    fn drawn_layouts_are_valid_and_differ() {
        assert_eq!((allocation(0), layout(0, 4)), (Allocation::default(), None));
        let mut layouts = std::collections::BTreeSet::new();
        for placing in (0..300).map(drawn).filter(|placing| *placing != 0) {
            for zones in [2, 8] {
                layouts.extend(layout(placing, zones));
            }
        }
        let placings = (0..300).map(drawn).filter(|placing| *placing != 0);
        let undelegated = placings.filter(|placing| !allocation(*placing).delegated).count();
        assert!((20..60).contains(&undelegated), "{undelegated} of about 100");
        assert!(layouts.len() > 6, "{layouts:?}");
        for text in &layouts {
            assert!(text.parse::<Layout>().is_ok(), "{text}");
        }
    }
}
