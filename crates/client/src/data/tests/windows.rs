//! Several writers of one file, and where its blocks go.

use std::cell::Cell;
use std::rc::Rc;

use env::IoBuf;
use proto::prealloc::{Allocation, Policy, Stream, When};
use types::{ClientId, Duration};

use super::{HOME, Rig, Setup, run};
use crate::data::File;

const WRITERS: u64 = 4;
/// Bytes of each writer's part.
const PART: u64 = 8 << 20;
/// Bytes of a request.
const REQUEST: u64 = 64 << 10;

fn setup(allocation: Allocation) -> Setup {
    Setup { disks: 1, blocks: 40_000, grant_max: 40_000, allocation, ..Setup::default() }
}

/// Writes the first `bytes` of each part in turns, a request at a time, by a process for each.
async fn write_parts(rig: &Rig, file: &Rc<File>, bytes: u64) {
    for step in 0..bytes / REQUEST {
        for writer in 0..WRITERS {
            let stream = Stream { client: ClientId(5), handle: 1, process: writer as u32 };
            let data = IoBuf::copy_of(&vec![writer as u8 + 1; REQUEST as usize]);
            let at = writer * PART + step * REQUEST;
            let done = file.write(Some(at), data, REQUEST as usize, Some(stream)).await;
            assert_eq!(done, Ok((at, REQUEST as u32)));
        }
        // As with processes, nobody waits for the devices, and none is always the first.
        rig.env.sleep(Duration::from_micros(100)).await;
    }
}

/// Segments of the file when all parts are written; `zones`: in how many it is striped.
fn segments(allocation: Allocation, zones: u16) -> usize {
    let found = Rc::new(Cell::new(0));
    let segments = found.clone();
    run(811, Setup { disks: zones, ..setup(allocation) }, |rig| async move {
        if zones > 1 {
            *rig.server.placement.borrow_mut() = format!("policy=striping part={PART}");
        }
        let file = rig.file(1);
        write_parts(&rig, &file, PART).await;
        file.fsync(false).await.unwrap();
        let layout = file.layout().await.unwrap();
        assert_eq!(layout.iter().map(|segment| segment.len).sum::<u64>(), WRITERS * PART / 4096);
        segments.set(layout.len());
        file.handle_closed(1);
        file.last_handle_closed();
        rig.finish(40_000).await;
    });
    found.get()
}

#[test]
fn parts_of_different_processes_do_not_mix() {
    for when in [When::Launch, When::Write] {
        let [on_demand, reservation, vanilla] =
            [Policy::default(), Policy::Reservation, Policy::Vanilla]
                .map(|how| segments(Allocation { how, when, ..Allocation::default() }, 1));
        assert!(on_demand * 2 <= reservation, "{when:?}: {on_demand} against {reservation}");
        assert!(reservation <= vanilla, "{when:?}: {reservation} against {vanilla}");
    }
}

/// Windows are at most half of the pool: it has to grow with them.
#[test]
fn streams_get_large_windows_while_they_go_on() {
    const WRITERS: u64 = 8;
    const PART: u64 = 32 << 20;
    let setup = Setup { disks: 1, blocks: 200_000, grant_max: 200_000, ..Setup::default() };
    run(815, setup, |rig| async move {
        let file = rig.file(1);
        for step in 0..PART / REQUEST {
            for writer in 0..WRITERS {
                let stream = Stream { client: ClientId(5), handle: 1, process: writer as u32 };
                let data = IoBuf::copy_of(&[0; REQUEST as usize]);
                let at = writer * PART + step * REQUEST;
                file.write(Some(at), data, REQUEST as usize, Some(stream)).await.unwrap();
            }
            rig.env.sleep(Duration::from_micros(100)).await;
        }
        file.fsync(false).await.unwrap();
        let segments = file.layout().await.unwrap().len() as u64;
        // Windows of one size would be thousands.
        assert!(segments <= 5 * WRITERS, "{segments} segments");
        file.handle_closed(1);
        file.last_handle_closed();
        rig.finish(200_000).await;
    });
}

/// A block for each request is there when it is accepted, on the zone of its part.
#[test]
fn places_in_a_striped_file_are_chosen_at_the_write() {
    let found = [When::Launch, When::Write].map(|when| {
        segments(Allocation { how: Policy::Vanilla, when, ..Allocation::default() }, 2)
    });
    let requests = (WRITERS * PART / REQUEST) as usize;
    assert!(found[0] * 4 < requests && found[1] * 8 > requests * 7, "{found:?} of {requests}");
}

#[test]
fn parts_of_a_striped_file_do_not_mix_either() {
    for when in [When::Launch, When::Write] {
        let [on_demand, reservation] = [Policy::default(), Policy::Reservation]
            .map(|how| segments(Allocation { how, when, ..Allocation::default() }, 2));
        assert!(on_demand * 2 <= reservation, "{when:?}: {on_demand} against {reservation}");
    }
}

#[test]
fn windows_are_free_when_their_handle_is_closed() {
    run(812, setup(Allocation::default()), |rig| async move {
        let file = rig.file(1);
        write_parts(&rig, &file, 2 << 20).await;
        file.fsync(false).await.unwrap();
        assert!(rig.ctx.class(HOME, &[]).pool.in_windows() > 0);
        // Bytes that are launched after the close take part in no window.
        let stream = Some(Stream { client: ClientId(5), handle: 1, process: 2 });
        let data = IoBuf::copy_of(&[9; 4096]);
        file.write(Some(2 * PART + (2 << 20)), data, 4096, stream).await.unwrap();
        file.handle_closed(1);
        assert_eq!(rig.ctx.class(HOME, &[]).pool.in_windows(), 0);
        file.fsync(false).await.unwrap();
        assert_eq!(rig.ctx.class(HOME, &[]).pool.in_windows(), 0);
        let layout = file.layout().await.unwrap();
        let last = layout.iter().find(|segment| segment.file.0 == 2 * PART / 4096).unwrap();
        assert_eq!(last.len, 513, "the bytes follow those before them");
        rig.finish(40_000).await;
    });
}

#[test]
fn late_writes_to_a_closed_file_leave_no_window() {
    run(813, setup(Allocation::default()), |rig| async move {
        let file = rig.file(1);
        rig.server.open.set(false);
        write_parts(&rig, &file, 2 << 20).await;
        file.fsync(false).await.unwrap();
        assert_eq!(rig.ctx.class(HOME, &[]).pool.in_windows(), 0);
        rig.finish(40_000).await;
    });
}

#[test]
fn windows_are_no_reason_for_no_space() {
    let setup = Setup { disks: 1, blocks: 4000, grant_max: 4000, ..Setup::default() };
    run(814, setup, |rig| async move {
        let file = rig.file(1);
        write_parts(&rig, &file, 1 << 20).await;
        file.fsync(false).await.unwrap();
        assert!(rig.ctx.class(HOME, &[]).pool.in_windows() > 0);
        let other = rig.file(2);
        // All that is left, but for the block of the label.
        let blocks = 4000 - 1 - WRITERS * 256;
        for block in 0..blocks {
            rig.write(&other, block * 4096, &[7; 4096]).await.unwrap();
        }
        other.fsync(false).await.unwrap();
        assert_eq!(rig.ctx.class(HOME, &[]).pool.in_windows(), 0);
        rig.finish(4000).await;
    });
}
