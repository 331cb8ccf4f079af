//! Runs whose files lie on object storage targets.
#![allow(missing_docs)]

use env::sim::SimDisk;
use redbud_sim::{Fault, Plan, Workload, run};

use crate::seeds::check;

#[test]
fn files_lie_in_objects_on_every_target() {
    let mut objects = [0; 4];
    for seed in 1..=12 {
        let osts = 1 + seed as usize % 3;
        let plan = Plan { osts, faults: Vec::new(), operations: 120, ..Plan::new(seed) };
        let report = check(&plan);
        assert_eq!(run(&plan), report, "{}", plan.command());
        assert_eq!(report.zones, 0, "something lies on a data zone: {}", plan.command());
        objects[osts] += report.objects;
    }
    assert!(objects[1..].iter().all(|count| *count > 3), "{objects:?}");
}

#[test]
fn targets_whose_devices_fail_end_and_start_again_and_nothing_is_lost() {
    let faults = vec![Fault::DataEio, Fault::Stall, Fault::TargetPower];
    let (mut ends, mut failed) = (0, 0);
    for seed in 1..=24 {
        let (workload, faults) = (Workload::Content, faults.clone());
        let plan = Plan { osts: 2, faults, workload, ..Plan::new(seed) };
        let report = check(&plan);
        ends += report.targets.ends;
        failed += report.made.get(&Fault::DataEio).copied().unwrap_or_default();
    }
    assert!(ends > 40 && failed > 20, "{failed} faults ended {ends} targets");
}

#[test]
fn small_targets_refuse_writes_and_have_room_again_after_removals() {
    let faults = vec![Fault::Space, Fault::TargetKill, Fault::ClientKill];
    let (mut refused, mut small) = (0, 0);
    // Those between them take the judge ten times as long.
    for seed in (1..=8).chain(16..=19) {
        let (workload, faults) = (Workload::Content, faults.clone());
        let plan = Plan { osts: 2, faults, workload, ..Plan::new(seed) };
        small += u64::from(!plan.is_short_of_metadata());
        refused += check(&plan).made.get(&Fault::Space).copied().unwrap_or_default();
    }
    assert!(refused > 10, "{refused} writes were refused in {small} runs");
}

#[test]
fn files_move_between_blocks_and_objects_while_they_are_used() {
    let faults = vec![Fault::Migrate, Fault::ServerKill, Fault::TargetKill, Fault::DataEio];
    let (mut moved, mut zones, mut objects) = (0, 0, 0);
    for seed in 1..=24 {
        let plan = Plan { osts: 2, faults: faults.clone(), ..Plan::new(seed) };
        let report = check(&plan);
        moved += report.targets.moved;
        zones += report.zones;
        objects += report.objects;
    }
    assert!(moved > 10 && zones > 4 && objects > 10, "{moved} moves; {zones}, {objects}");
}

/// One target and 300 operations on content, with all faults.
const FAILED: [u64; 4] = [20_045, 20_075, 20_106, 20_280];
/// The same with two targets and all operations.
const FAILED_OF_TWO: [u64; 3] = [50_495, 8_002_832, 8_003_941];

#[test]
fn seeds_that_failed_with_targets_hold() {
    let on_content = FAILED.map(|seed| (seed, 1, Workload::Content));
    let of_two = FAILED_OF_TWO.map(|seed| (seed, 2, Workload::Mixed));
    for (seed, osts, workload) in on_content.into_iter().chain(of_two) {
        let faults = Fault::with_targets(&Fault::of_one_server());
        let report = check(&Plan { osts, workload, faults, ..Plan::new(seed) });
        assert!(Fault::OF_TARGETS.iter().any(|kind| report.made.contains_key(kind)));
    }
}

#[test]
fn run_with_targets_frees_its_world() {
    let plan = |seed| Plan { osts: 2, operations: 60, ..Plan::new(seed) };
    run(&Plan { operations: 1, ..plan(0) });
    (0..20).for_each(|seed| drop(run(&Plan { operations: 1, ..plan(seed) })));
    let before = SimDisk::live_count();
    for seed in 0..20 {
        run(&plan(seed));
        assert_eq!(SimDisk::live_count(), before, "disks are left: {}", plan(seed).command());
    }
}
