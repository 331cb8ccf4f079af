//! Power cuts at random moments: what fsync promised is there, and what is there
//! was written, by this file, at some time since.

use super::model::{Model, Player};
use super::*;

fn check_after_cut(player: &mut Player) {
    let server = player.rig.server.clone();
    let seed = player.rng.next_u64();
    let disks: Vec<SimDisk> =
        server.disks.iter().map(|disk| disk.after_power_cut(&mut SimRng::new(seed))).collect();
    // The server may or may not have got the rest to its log.
    for state in [&server.durable, &server.now] {
        let state = state.borrow();
        for (file, model) in &player.files {
            let left = Server::content(&state, &disks, file.ino());
            Model::check_crashed(model, &left);
        }
    }
}

#[test]
fn a_power_cut_leaves_what_was_promised_and_nothing_foreign() {
    for seed in 200..225 {
        run(seed, Setup::default(), |rig| async move {
            let mut player = Player::new(rig, seed, 2);
            for _ in 0..120 {
                player.step().await;
                check_after_cut(&mut player);
            }
        });
    }
}
