//! Data zones that come, or are lost, while the client is there.

use super::devices::{logged, place, setup, state};
use super::*;

/// A client that knows the first two of three zones.
async fn rig_of_two(world: &SimWorld, env: Env, seed: u64) -> Rig {
    let rig = Rig::new(world, env.clone(), seed, Setup { disks: 3, ..setup() }).await;
    let config = DataConfig {
        devices: Vec::new(),
        dirty_max: 1 << 20,
        read_only: false,
        on_edit: None,
        allocation: Default::default(),
        commit: Default::default(),
        waits: Rc::default(),
        targets: Default::default(),
    };
    let pags = [info(1, 512), info(2, 512)];
    let server = rig.server.clone();
    let opened = DataContext::open(env, config, FS, offer(ClientId(9), &pags), server).await;
    Rig { ctx: opened.expect("the devices are in order"), ..rig }
}

fn list(ids: &[u16], lost: &[u16]) -> ZoneList {
    let zones = ids.iter().map(|&id| info(id, 512)).collect();
    let lost = lost.iter().map(|&id| PagId(id)).collect();
    ZoneList { zones, lost, leaving: Vec::new() }
}

async fn first_block(file: &Rc<File>) -> Result<Vec<u8>, Fault> {
    file.read(0, 4096).await.map(|data| data.to_vec())
}

#[test]
fn segment_in_a_zone_that_the_client_does_not_know_waits_for_the_list() {
    for seed in 760..768 {
        let world = SimWorld::new(seed);
        let inner = world.clone();
        world.run(|env| async move {
            let rig = rig_of_two(&inner, env, seed).await;
            let file = place(&rig, 1, 3);
            assert_eq!(first_block(&file).await, Err(Fault::Corrupt), "it cannot be asked");
            *rig.server.zones.borrow_mut() = Some(list(&[1, 2], &[]));
            assert_eq!(first_block(&file).await, Err(Fault::Corrupt), "there is no such zone");
            *rig.server.zones.borrow_mut() = Some(list(&[1, 2, 3], &[]));
            // Several at once; the push comes as well, twice.
            let asks: Vec<_> = (0..3)
                .map(|_| {
                    let file = file.clone();
                    rig.env.spawn_join(async move { first_block(&file).await })
                })
                .collect();
            rig.ctx.zones_reported(HOME, &list(&[1, 2, 3], &[]));
            rig.ctx.zones_reported(HOME, &list(&[1, 2, 3], &[]));
            for read in asks {
                assert_eq!(read.await, Ok(vec![1; 4096]));
            }
            assert_eq!(logged(&rig, "data zone 3 has been added, at data3"), 1);
            assert_eq!((rig.ctx.devices().len(), state(&rig, 3)), (3, "present"));
            assert!(rig.server.disks[2].counts().reads > 0);
        });
    }
}

#[test]
fn grant_in_a_zone_that_the_client_does_not_know_is_written_there() {
    for seed in 770..774 {
        let world = SimWorld::new(seed);
        let inner = world.clone();
        world.run(|env| async move {
            let rig = rig_of_two(&inner, env, seed).await;
            *rig.server.zones.borrow_mut() = Some(list(&[1, 2, 3], &[]));
            rig.server.now.borrow_mut().free.retain(|(pag, _)| *pag == 3);
            let file = rig.file(7);
            rig.write(&file, 0, &[5; 3 * BLOCK]).await.unwrap();
            assert_eq!(file.fsync(false).await, Ok(true));
            let now = rig.server.now.borrow().clone();
            assert!(Server::content(&now, &rig.server.disks, Ino(7)) == vec![5; 3 * BLOCK]);
            let placed = now.files[&Ino(7)].layout.to_segments();
            assert!(placed.iter().all(|segment| segment.pag == PagId(3)), "{placed:?}");
        });
    }
}

/// SEMANTICS 3.12.
#[test]
fn lost_zone_fails_its_files_at_once_and_no_others_until_it_is_found() {
    for seed in 780..784 {
        run(seed, setup(), |rig| async move {
            let (on_lost, other) = (place(&rig, 1, 1), place(&rig, 11, 2));
            rig.ctx.zones_reported(HOME, &list(&[1, 2], &[1]));
            assert_eq!((state(&rig, 1), state(&rig, 2)), ("lost", "present"));
            let (begun, before) = (rig.env.now(), rig.server.disks[0].counts().reads);
            assert_eq!(first_block(&on_lost).await, Err(Fault::Io));
            assert_eq!(rig.write(&on_lost, 0, &[4; 4096]).await, Err(Fault::Io));
            assert_eq!(rig.env.now(), begun, "at once");
            assert_eq!(rig.server.disks[0].counts().reads, before, "nothing goes there");
            assert_eq!(first_block(&other).await, Ok(vec![1; 4096]));
            assert_eq!(rig.ctx.class(HOME, &[]).pool.avoided(), [PagId(1)]);
            let new = rig.file(30);
            rig.write(&new, 0, &[5; 4 * BLOCK]).await.unwrap();
            assert_eq!(new.fsync(false).await, Ok(true));
            let placed = rig.server.now.borrow().files[&Ino(30)].layout.to_segments();
            assert!(placed.iter().all(|segment| segment.pag == PagId(2)));

            rig.ctx.zones_reported(HOME, &list(&[1, 2], &[]));
            assert_eq!((state(&rig, 1), logged(&rig, "is not lost")), ("present", 1));
            assert_eq!(first_block(&on_lost).await, Ok(vec![1; 4096]));
            rig.write(&on_lost, 0, &[6; 4096]).await.unwrap();
            assert_eq!(on_lost.fsync(false).await, Ok(true));
            rig.finish(512).await;
        });
    }
}
