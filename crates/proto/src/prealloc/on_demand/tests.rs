use types::Ino;

use super::super::tests::{Writers, stream};
use super::*;

type Range = Option<(u64, u64)>;

fn writers(options: OdOptions) -> Writers<OnDemand> {
    Writers::new(Box::new(OnDemand::new(options)), 100_000)
}

/// The file ranges of a stream's current and sequential window.
fn windows(writers: &Writers<OnDemand>, process: u32) -> (Range, Range) {
    let stream = &writers.preallocator.streams[&(Ino(1), stream(process).expect("one"))];
    let range = |window: &Option<Window>| window.as_ref().map(|window| (window.from, window.to));
    (range(&stream.current), range(&stream.sequential))
}

fn state(writers: &Writers<OnDemand>, process: u32) -> (u64, u32, bool) {
    let stream = &writers.preallocator.streams[&(Ino(1), stream(process).expect("one"))];
    (stream.size, stream.misses, stream.off)
}

/// 002 Fig. 3b with Algorithm 1: the first window begins at the write. At T3 the block is in the
/// current window only if the scale is 4.
#[test]
fn figure_3b_with_windows_from_the_write_on() {
    let mut writers = writers(OdOptions::default());
    for process in 1..=3 {
        writers.write(process, u64::from(process) * 100, 1);
    }
    assert_eq!(windows(&writers, 1), (None, Some((100, 104))));
    assert_eq!(windows(&writers, 3), (None, Some((300, 304))));
    writers.write(1, 101, 1);
    writers.write(2, 201, 1);
    assert_eq!(windows(&writers, 1), (Some((100, 104)), Some((104, 120))));
    assert_eq!(windows(&writers, 2), (Some((200, 204)), Some((204, 220))));
    writers.write(1, 102, 1);
    writers.write(2, 202, 1);
    assert_eq!(windows(&writers, 1), (Some((100, 104)), Some((104, 120))), "neither trigger");
    assert_eq!(state(&writers, 2), (16, 0, false));
    assert_eq!(windows(&writers, 3), (None, Some((300, 304))));
    assert_eq!(writers.segments(), 3);
    writers.check();
}

/// The same with 004 §III.B: the first window lies behind the write, and scale 2 suffices.
#[test]
fn figure_3b_with_windows_behind_the_write() {
    let first = FirstWindow::BehindWrite;
    let mut writers = writers(OdOptions { first, scale: 2, ..OdOptions::default() });
    for process in 1..=3 {
        writers.write(process, u64::from(process) * 100, 1);
    }
    assert_eq!(windows(&writers, 1), (None, Some((101, 103))));
    writers.write(1, 101, 1);
    writers.write(2, 201, 1);
    assert_eq!(windows(&writers, 1), (Some((101, 103)), Some((103, 107))));
    writers.write(1, 102, 1);
    writers.write(2, 202, 1);
    assert_eq!(windows(&writers, 2), (Some((201, 203)), Some((203, 207))), "neither trigger");
    assert_eq!(writers.segments(), 3);
    writers.check();
}

#[test]
fn windows_ramp_up_to_the_maximum() {
    let mut writers = writers(OdOptions { window_max: 300, ..OdOptions::default() });
    let mut lengths = Vec::new();
    for block in 1000..2500 {
        writers.write(1, block, 1);
        let Some((from, to)) = windows(&writers, 1).1 else { panic!("no sequential window") };
        if lengths.last() != Some(&(from, to - from)) {
            lengths.push((from, to - from));
        }
    }
    let expected = [(1000, 4), (1004, 16), (1020, 64), (1084, 256), (1340, 300), (1640, 300)];
    assert_eq!(lengths[..6], expected);
    assert_eq!(writers.segments(), 1, "alone, a stream goes on behind its own window");
    writers.check();
}

#[test]
fn a_miss_moves_and_shrinks_the_windows() {
    let mut writers = writers(OdOptions::default());
    for block in 1000..1030 {
        writers.write(1, block, 1);
    }
    assert_eq!(state(&writers, 1), (256, 0, false));
    writers.write(1, 5000, 1);
    assert_eq!(windows(&writers, 1), (None, Some((5000, 5064))));
    assert_eq!(state(&writers, 1), (64, 1, false));
    assert_eq!(writers.preallocator.held(), 63, "the old windows are given back");
    writers.write(1, 9000, 1);
    assert_eq!((windows(&writers, 1).1, state(&writers, 1).0), (Some((9000, 9016)), 16));
    writers.check();
}

#[test]
fn a_random_stream_is_turned_off_and_a_sequential_run_arms_it_again() {
    for while_off in [WhileOff::NoWindow, WhileOff::Fixed(8)] {
        let mut writers = writers(OdOptions { while_off, misses_max: 3, ..OdOptions::default() });
        // The other stream is not concerned.
        writers.write(2, 90_000, 1);
        writers.write(2, 90_001, 1);
        let others = writers.preallocator.held();
        for jump in 0..=4 {
            writers.write(1, 1000 + 1000 * jump, 2);
        }
        assert_eq!((state(&writers, 1).1, state(&writers, 1).2), (4, true));
        let expected = match while_off {
            WhileOff::NoWindow => (0, None),
            WhileOff::Fixed(_) => (6, Some((5000, 5008))),
        };
        assert_eq!((writers.preallocator.held() - others, windows(&writers, 1).1), expected);
        for (nth, block) in (5002..).step_by(2).take(4).enumerate() {
            assert!(state(&writers, 1).2, "{nth}");
            writers.write(1, block, 2);
        }
        assert_eq!(state(&writers, 1), (8, 0, false), "{while_off:?}");
        assert_eq!(windows(&writers, 1), (None, Some((5008, 5016))));
        writers.write(1, 5010, 2);
        assert_eq!(windows(&writers, 1), (Some((5008, 5016)), Some((5016, 5048))));
        assert_eq!(windows(&writers, 2).0, Some((90_000, 90_004)));
        writers.check();
    }
}

#[test]
fn sequential_runs_between_jumps_keep_a_stream_armed() {
    let mut writers = writers(OdOptions { misses_max: 3, ..OdOptions::default() });
    for jump in 0..20 {
        for step in 0..6 {
            writers.write(1, 1000 + 1000 * jump + step, 1);
        }
    }
    assert!(!state(&writers, 1).2);
    assert_eq!(writers.segments(), 20);
}

#[test]
fn a_request_may_reach_over_the_windows() {
    let mut writers = writers(OdOptions::default());
    writers.write(1, 1000, 2);
    assert_eq!(windows(&writers, 1), (None, Some((1000, 1008))));
    // Over both.
    writers.write(1, 1002, 100);
    assert_eq!(windows(&writers, 1), (Some((1040, 1168)), Some((1168, 1680))));
    // The last window is used up: the next one begins with the write.
    writers.preallocator.reclaim(&mut writers.zone, u64::MAX);
    writers.write(1, 1102, 1);
    assert_eq!(windows(&writers, 1).0.map(|(from, _)| from), Some(1102));
    assert_eq!((writers.segments(), state(&writers, 1).1), (1, 0));
    writers.check();
}

#[test]
fn windows_hold_at_most_half_and_idle_ones_are_given_back() {
    let mut writers: Writers<OnDemand> =
        Writers::new(Box::new(OnDemand::new(OdOptions::default())), 10_000);
    for process in 1..=8 {
        writers.write(process, 10_000 * u64::from(process), 256);
    }
    let (free, held) = (writers.zone.free(), writers.preallocator.held());
    assert!(held <= (free + held) / 2 && held > 3000, "{held} of {free}");
    let last = windows(&writers, 8).1.map_or(0, |(from, to)| to - from);
    assert!(last < 600, "little room is left: {last}");
    // Only one goes on: it gets what the others hold.
    for round in 0..250 {
        writers.write(8, 80_256 + round * 8, 8);
    }
    let own = windows(&writers, 8);
    let length = |range: Range| range.map_or(0, |(from, to)| to - from);
    assert!(length(own.0) + length(own.1) > 1000, "{own:?}");
    writers.check();
}

#[test]
fn first_blocks_of_small_files_lie_side_by_side() {
    let mut writers = writers(OdOptions::default());
    for ino in 1..=10 {
        assert!(writers.write_to(ino, 1, 0, 3));
    }
    assert_eq!(writers.preallocator.held(), 0);
    for ino in 1..=10 {
        assert_eq!(writers.files[&Ino(ino)][&0], (ino - 1) * 3);
    }
}

#[test]
fn a_closed_handle_gives_back_its_windows_only() {
    let mut writers = writers(OdOptions::default());
    writers.write(1, 1000, 1);
    let other = Request {
        ino: Ino(1),
        stream: stream(1).map(|stream| Stream { handle: 2, ..stream }),
        block: types::FileBlock(5000),
        len: 1,
        before: None,
        part: None,
    };
    let place = writers.preallocator.place(&mut writers.zone, &other);
    assert_eq!((place.len(), writers.preallocator.held()), (1, 6));
    writers.preallocator.close_streams(&mut writers.zone, Ino(1), &|s| s.handle == 1);
    assert_eq!((writers.preallocator.held(), writers.preallocator.streams.len()), (3, 1));
}

#[test]
fn threads_that_share_a_sequential_file_are_one_stream() {
    let mut writers = writers(OdOptions::default());
    for step in 0..400 {
        writers.write(1 + step as u32 % 3, 1000 + step * 4, 4);
    }
    assert_eq!(writers.segments(), 1);
    writers.check();
}

#[test]
fn windows_of_a_striped_file_end_with_its_parts() {
    let mut writers = writers(OdOptions::default());
    writers.part_len = Some(32);
    for block in 1000..1064 {
        writers.write(1, block, 1);
        let (current, sequential) = windows(&writers, 1);
        let end = (block / 32 + 1) * 32;
        for (from, to) in current.into_iter().chain(sequential) {
            assert!(from < to && to <= end, "{block}: {from}..{to}");
        }
    }
    assert_eq!(
        windows(&writers, 1),
        (Some((1056, 1088)), None),
        "a part needs no window behind it"
    );
    assert_eq!((state(&writers, 1).1, writers.preallocator.held()), (0, 24));
    writers.check();
}

/// What BTIO does: rows of many processes lie side by side, and come in any order.
#[test]
fn windows_of_streams_do_not_overlap_and_neighbours_share_them() {
    let mut writers = writers(OdOptions::default());
    writers.write(1, 1000, 2);
    writers.write(2, 1012, 2);
    // Ahead of the first stream, the second has blocks from 1012 on.
    assert_eq!(
        (windows(&writers, 1).1, windows(&writers, 2).1),
        (Some((1000, 1008)), Some((1012, 1020)))
    );
    writers.write(1, 1002, 2);
    assert_eq!(windows(&writers, 1), (Some((1000, 1008)), Some((1008, 1012))));
    for block in (1004..1012).step_by(2) {
        writers.write(1 + block as u32 % 3, block, 2);
    }
    // The first stream goes on in the second's window.
    writers.write(1, 1014, 2);
    assert_eq!(windows(&writers, 2).0, Some((1012, 1020)));
    assert_eq!(writers.segments(), 3, "one of each window");
    writers.check();
}
