use types::limits::BLOCK_U64;

use super::*;

const NOW: Instant = Instant(5_000_000_000);
const LEFT_TO_READ: Rights = Rights::DATA_S;
const NONE_LEFT: Rights = Rights::empty();

fn parts(from: u64, to: u64) -> [HeldRange; 1] {
    [HeldRange { range: BlockRange::new(from, to), exclusive: true }]
}

/// A state that holds the whole right to write.
fn writer() -> State {
    let mut state = State::new();
    state.whole_granted(WholeGrant::Write, 1, NOW);
    state
}

#[test]
fn each_legal_row_of_the_tables_holds_over_random_events() {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Kind {
        Nothing,
        Whole,
        Ranges,
    }
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |n: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % n
    };
    let mut state = State::new();
    let (mut held, mut draining) = (Kind::Nothing, None);
    let (mut whole_guards, mut range_guards) = (0, Vec::new());
    let mut met = std::collections::BTreeSet::new();
    for order in 0..40_000 {
        let from = random(64);
        let range = BlockRange::new(from, from + 1 + random(8));
        match (random(9), held, draining) {
            (0, Kind::Nothing | Kind::Whole, None | Some(Kind::Whole)) => {
                let grants = [WholeGrant::Read, WholeGrant::Write, WholeGrant::WriteAgain];
                state.whole_granted(grants[random(3) as usize], order, NOW);
                held = Kind::Whole;
            }
            (1, Kind::Nothing | Kind::Ranges, None | Some(Kind::Ranges)) => {
                state.ranges_granted(&[HeldRange { range, exclusive: random(2) == 0 }], order);
                held = Kind::Ranges;
            }
            (2, Kind::Whole, _) if !state.blocks(BlockRange::ALL) => {
                state.whole_io_begun(NOW);
                whole_guards += 1;
            }
            (3, Kind::Ranges, _) if state.serves_range(range) => {
                range_guards.push((state.range_io_begun(range), range));
            }
            (4, ..) if whole_guards > 0 => {
                whole_guards -= 1;
                state.io_ended(None);
            }
            (5, ..) if !range_guards.is_empty() => {
                let (number, _) = range_guards.swap_remove(0);
                state.io_ended(Some(number));
            }
            (6, Kind::Whole, None) => {
                state.whole_drain_begun();
                draining = Some(Kind::Whole);
            }
            (6, Kind::Ranges, None) => {
                state.range_drain_begun(range);
                draining = Some(Kind::Ranges);
            }
            (7, _, Some(Kind::Whole)) => {
                state.new_requests_blocked();
                if state.guards() == 0 {
                    let left = if random(2) == 0 { LEFT_TO_READ } else { NONE_LEFT };
                    state.whole_given_up(left);
                    state.drain_ended();
                    held = if held == Kind::Whole && left == LEFT_TO_READ {
                        held
                    } else {
                        Kind::Nothing
                    };
                    draining = None;
                }
            }
            (7, _, Some(Kind::Ranges)) => {
                let Drain::Ranges(range) = state.drain else { panic!("{state:?}") };
                if !range_guards.iter().any(|(_, used)| used.overlaps(range)) {
                    held = if state.ranges_given_up(range) { Kind::Ranges } else { Kind::Nothing };
                    state.drain_ended();
                    draining = None;
                }
            }
            (8, ..) if random(8) == 0 => {
                state.forgotten();
                held = Kind::Nothing;
            }
            _ => continue,
        }
        state.validate();
        assert_eq!(state.is_whole(), held == Kind::Whole, "{state:?}");
        assert_eq!(state.ranges().is_some(), held == Kind::Ranges, "{state:?}");
        assert_eq!(state.is_draining(), draining.is_some(), "{state:?}");
        assert_eq!(state.guards(), whole_guards + range_guards.len(), "{state:?}");
        met.insert((held as u8, draining.map(|kind| kind as u8)));
    }
    assert_eq!(met.len(), 7, "every legal combination: {met:?}");
}

#[test]
fn in_the_first_round_all_are_served_and_then_only_those_that_pass() {
    let mut state = writer();
    state.whole_drain_begun();
    assert!(!state.blocks(BlockRange::ALL));
    state.filled((0, BLOCK_U64));
    state.new_requests_blocked();
    assert!(state.blocks(BlockRange::ALL));
    let earlier = state.blocked((0, BLOCK_U64));
    let later = state.next_number();
    state.passing_allowed(&[(0, BLOCK_U64)], later);
    assert!(state.is_passing(Some(earlier), (10, 20)));
    assert!(!state.is_passing(Some(earlier), (BLOCK_U64, BLOCK_U64 + 1)));
    // The invalidation may have passed its page before it came: it would have to begin again.
    assert!(!state.is_passing(Some(later), (10, 20)));
    // A WRITE of a part of a page leaves nothing to invalidate.
    assert!(state.is_passing(None, (10, 20)));
    state.unblocked(earlier);

    let blocked = state.blocked((0, BLOCK_U64));
    state.filled((BLOCK_U64, 2 * BLOCK_U64));
    assert_eq!(state.take_noted(), Some(vec![(BLOCK_U64, 2 * BLOCK_U64)]));
    assert_eq!(state.take_noted(), None);
    state.unblocked(blocked);
    assert!(state.is_whole_drained());
    state.whole_given_up(NONE_LEFT);
    state.drain_ended();
    assert!(!state.is_whole() && state.is_idle());
}

#[test]
fn a_refused_write_back_is_reported_once_for_each_loss() {
    let mut state = State::new();
    assert!(!state.is_stale((0, 1)));
    state.pages_are_stale();
    state.refilled((0, BLOCK_U64));
    assert!(!state.is_stale((0, 1)) && state.is_stale((BLOCK_U64, BLOCK_U64 + 1)));
    assert!(state.write_back_refused() && !state.write_back_refused());
    state.pages_are_stale();
    assert!(state.is_stale((0, 1)), "filled under the second session, which is lost too");
    assert!(state.write_back_refused() && !state.write_back_refused());
    state.pages_dropped();
    assert!(state.is_stale((0, 1)) && !state.is_idle());
    state.pages_dropped();
    assert!(!state.is_stale((0, 1)) && state.is_idle());
}

#[test]
fn absence_of_the_capability_is_known_only_under_a_right_to_write() {
    let mut state = State::new();
    state.capability_reply(true, 9, true);
    assert!(!state.lacks_capability());
    state.whole_granted(WholeGrant::Write, 10, NOW);
    state.capability_reply(true, 9, false);
    assert!(!state.lacks_capability(), "the request was made before the right was held");
    state.capability_reply(true, 9, true);
    assert!(state.lacks_capability(), "the request acquired the right");
    state.whole_granted(WholeGrant::WriteAgain, 11, NOW);
    assert!(state.lacks_capability());
    state.capability_was_set(12);
    state.capability_reply(true, 11, false);
    assert!(!state.lacks_capability(), "it was set after the request");
    state.capability_reply(true, 12, false);
    assert!(state.lacks_capability());

    state.whole_drain_begun();
    state.new_requests_blocked();
    state.whole_given_up(LEFT_TO_READ);
    state.drain_ended();
    assert!(state.is_whole() && !state.lacks_capability());
}

#[test]
fn a_repeated_stride_asks_for_more_ranges_ahead() {
    let mut state = State::new();
    let mut from = 100;
    let mut ahead = Vec::new();
    for _ in 0..5 {
        let next = state.ahead(from);
        ahead.push((next.stride, next.count));
        from += 10 * (u64::from(next.count) + 1);
    }
    assert_eq!(ahead[0], (0, 0), "one range is no stride");
    assert!(ahead[1..].is_sorted_by_key(|&(_, count)| count), "{ahead:?}");
    assert!(ahead[4].1 > 0, "{ahead:?}");
    assert_eq!(state.ahead(3), Ahead::default());
}

#[test]
fn a_right_in_use_is_kept_for_a_moment() {
    let mut state = writer();
    state.whole_io_begun(NOW);
    assert_eq!(state.keep_until(NOW), Some(NOW + IDLE_GAP));
    let late = NOW + MIN_HOLD;
    assert_eq!(state.keep_until(late), None);
    state.io_ended(None);
    assert_eq!(state.keep_until(NOW + IDLE_GAP), None);
}

#[test]
fn first_request_under_a_right_ends_before_it_is_given_up() {
    let mut state = writer();
    assert!(!state.waits_for_first_use(), "nobody uses it");
    state.whole_io_begun(NOW);
    state.whole_io_begun(NOW);
    assert!(state.waits_for_first_use());
    assert!(state.io_ended(None), "a recall may wait for it");
    assert!(!state.waits_for_first_use());
    assert!(state.io_ended(None));
    state.whole_granted(WholeGrant::WriteAgain, 9, NOW);
    state.whole_io_begun(NOW);
    assert!(state.waits_for_first_use(), "the right is a new one");
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "not drained")]
fn a_right_in_use_is_not_given_up() {
    let mut state = writer();
    state.whole_io_begun(NOW);
    state.whole_drain_begun();
    state.new_requests_blocked();
    state.whole_given_up(NONE_LEFT);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "nothing to serve from")]
fn a_request_in_a_range_that_drains_is_not_served() {
    let mut state = State::new();
    state.ranges_granted(&parts(0, 8), 1);
    state.range_drain_begun(BlockRange::new(4, 8));
    assert!(state.serves_range(BlockRange::new(0, 4)));
    state.range_io_begun(BlockRange::new(3, 5));
}
