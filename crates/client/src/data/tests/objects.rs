//! Files whose content lies in objects at targets.

use super::model::{play, play_with};
use super::*;

fn striped(seed: u64) -> Setup {
    let (targets, stripe) = [(3, (2, 3)), (3, (1, 2)), (2, (8, 1)), (1, (4, 1))][seed as usize % 4];
    Setup { disks: 0, targets, stripe, ..Setup::default() }
}

#[test]
fn random_operations_on_objects_agree_with_an_array_of_bytes() {
    for seed in 900..930 {
        play(seed, striped(seed), 250);
    }
}

#[test]
fn random_operations_on_objects_agree_over_restarts_of_targets() {
    for seed in 930..960 {
        play_with(seed, striped(seed), 250, |player| {
            if player.rng.one_in(12) {
                let nth = player.rng.below(player.rig.server.targets.len() as u64) as usize;
                player.rig.server.targets[nth].restart();
            }
        });
    }
}
