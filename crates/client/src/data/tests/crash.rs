//! Power cuts at random moments: what fsync acknowledged is there, and every byte that is there was
//! written to this file at some time since.

use super::model::{Model, Player};
use super::*;

fn check_after_cut(player: &mut Player) {
    let server = player.rig.server.clone();
    let seed = player.rng.next_u64();
    let disks: Vec<SimDisk> =
        server.disks.iter().map(|disk| disk.after_power_cut(&mut SimRng::new(seed))).collect();
    // The server's later changes may or may not have reached its log.
    for state in [&server.durable, &server.now] {
        let state = state.borrow();
        for (file, model) in &player.files {
            let left = Server::content(&state, &disks, file.ino);
            Model::check_crashed(model, &left);
        }
    }
}

/// SEMANTICS 2.1 and 2.4.
#[test]
fn fsynced_content_survives_a_power_cut_and_nothing_foreign_appears() {
    for seed in 200..250 {
        let inline_max = if seed < 225 { 0 } else { 3000 };
        let setup = Setup { inline_max, ..Setup::default() };
        let setup = if seed < 240 { setup } else { setup.undelegated() };
        run(seed, setup, |rig| async move {
            let mut player = Player::new(rig, seed, 2);
            for _ in 0..120 {
                player.step().await;
                check_after_cut(&mut player);
            }
        });
    }
}

/// A background commit of bytes written in place carries only times.
#[test]
fn bytes_written_in_place_are_stable_after_sync_all_a_recall_or_a_while() {
    for seed in 230..236 {
        run(seed, Setup { disks: 1, ..Setup::default() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[1; 10_000]).await.unwrap();
            file.fsync(false).await.unwrap();
            rig.write(&file, 5000, &[2; 10]).await.unwrap();
            while !file.is_clean() {
                rig.env.sleep(Duration::from_millis(10)).await;
            }
            match seed % 3 {
                0 => rig.ctx.sync_all().await.unwrap(),
                1 => file.flush().await.unwrap(),
                _ => rig.env.sleep(Duration::from_secs(4)).await,
            }
            let left = [rig.server.disks[0].stable_only()];
            let content = Server::content(&rig.server.now.borrow(), &left, Ino(1));
            assert!(content[5000..5010] == [2; 10], "the bytes are lost");
        });
    }
}

#[test]
fn bytes_written_in_place_get_stable_though_their_writer_never_pauses() {
    for seed in 240..244 {
        run(seed, Setup { disks: 1, ..Setup::default() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[0; 8192]).await.unwrap();
            file.fsync(false).await.unwrap();
            let stable = || {
                let left = [rig.server.disks[0].stable_only()];
                Server::content(&rig.server.now.borrow(), &left, Ino(1))[5000]
            };
            let begin = rig.env.now();
            let mut written = Vec::new();
            for round in 1..=100u8 {
                rig.write(&file, 5000, &[round]).await.unwrap();
                written.push(rig.env.now());
                rig.env.sleep(Duration::from_millis(70)).await;
                let lacking = written.get(usize::from(stable()));
                let age = lacking.map_or(Duration::ZERO, |since| rig.env.now().since(*since));
                assert!(age <= Duration::from_millis(2500), "round {round}: {age:?}");
            }
            assert!(rig.env.now().since(begin) > Duration::from_secs(6));
        });
    }
}

/// What the end of a session loses is named: the bytes, and the size that is left.
#[test]
fn lost_bytes_are_named_and_no_others() {
    run(256, Setup { disks: 1, ..Setup::default() }, |rig| async move {
        let file = rig.file(1);
        rig.write(&file, 0, &[1; 20_000]).await.unwrap();
        file.fsync(false).await.unwrap();
        rig.write(&file, 4096, &[2; 10]).await.unwrap();
        rig.write(&file, 40_960, &[3; 5000]).await.unwrap();
        file.drop_all(true);
        let log = rig.server.log.borrow();
        let said = log.last().expect("it is reported");
        assert!(said.contains("is lost: bytes 4096 to 8192, "), "{said}");
        assert!(
            said.ends_with("bytes 40960 to 49152; its size is 20000 again, not 45960"),
            "{said}"
        );
    });
}

/// A dead client left bytes behind the end. The client overwrites them with zeros in place, and
/// must not commit a size that relies on zeros which are not stable.
#[test]
fn grown_file_shows_no_stale_bytes_behind_its_old_end_after_a_power_cut() {
    for seed in 250..256 {
        run(seed, Setup { disks: 1, ..Setup::default() }, |rig| async move {
            let file = rig.file(1);
            rig.write(&file, 0, &[1; 63]).await.unwrap();
            file.fsync(false).await.unwrap();
            rig.write(&file, 0, &[1; 4096]).await.unwrap();
            file.launch_all();
            while rig.ctx.writes_in_flight() > 0 {
                rig.env.sleep(Duration::from_millis(10)).await;
            }
            file.drop_all(true);
            rig.server.disks[0].make_all_stable();
            let file = rig.file(1);
            assert_eq!(file.size(), 63);
            match seed % 3 {
                0 => file.set_size(10_000).await.unwrap(),
                1 => file.fallocate(0, 4096, 4096).await.unwrap(),
                _ => drop(rig.write(&file, 1000, &[2; 10]).await.unwrap()),
            }
            while rig.server.attr(Ino(1)).size == 63 {
                rig.env.sleep(Duration::from_millis(10)).await;
            }
            let left = [rig.server.disks[0].stable_only()];
            let content = Server::content(&rig.server.now.borrow(), &left, Ino(1));
            assert!(content[..63] == [1; 63]);
            assert!(!content[63..].contains(&1), "stale bytes in the file");
        });
    }
}
