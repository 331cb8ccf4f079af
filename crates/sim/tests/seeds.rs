//! Seeds of the gate.
#![allow(missing_docs)]

use redbud_sim::{Fault, Plan, Report, run};

fn check(plan: &Plan) -> Report {
    let report = run(plan);
    if let Some(violation) = &report.violation {
        for line in &violation.log {
            eprintln!("log: {line}");
        }
        panic!("{}: {}\n{}", violation.invariant, violation.text, plan.command());
    }
    assert!(report.operations > 0, "nothing was done: {}", plan.command());
    report
}

#[test]
fn one_client_without_faults_sees_what_the_model_says() {
    for seed in 0..20 {
        check(&Plan { clients: 1, processes: 1, faults: Vec::new(), ..Plan::new(seed) });
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..5 {
        let plan = Plan::new(seed);
        assert_eq!(run(&plan).trace, run(&plan).trace, "{}", plan.command());
    }
}

#[test]
fn clients_see_one_file_system_under_all_faults() {
    let (mut faults, mut restarts, mut unjudged) = (0, 0, 0);
    for seed in 1000..1150 {
        let report = check(&Plan::new(seed));
        faults += report.faults;
        restarts += report.restarts;
        unjudged += report.unjudged;
    }
    // A run that meets no faults, or whose answers nobody explains, shows nothing.
    assert!(faults > 150 && restarts > 50, "{faults} faults, {restarts} restarts");
    assert!(unjudged < 15, "{unjudged} searches were given up");
}

/// Seeds that once showed a fault of the product, which is mended.
#[test]
fn what_once_failed_holds() {
    let all = [Fault::Cut, Fault::Partition, Fault::ServerKill, Fault::ServerPower, Fault::Stall];
    let plan = |seed, clients, processes, faults: &[Fault]| Plan {
        seed,
        clients,
        processes,
        faults: faults.to_vec(),
        ..Plan::new(seed)
    };
    // A rename between two names of one file made the client forget the old name.
    check(&plan(6, 2, 2, &[]));
    // A recovery that broke off with one server was ended, before it began, with the next.
    check(&plan(72, 3, 1, &all));
    check(&plan(84, 3, 1, &all));
}
