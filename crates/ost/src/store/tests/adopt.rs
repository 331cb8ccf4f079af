//! A target is adopted by another file system, with power cuts at every write and flush.

use engine::cost::Cost;
use env::sim::{CrashOptions, SimDisk, crash_images};
use types::{ClientId, Epoch, ShardId, Uuid};

use super::super::format::epoch_setting;
use super::{Disks, look, open, write};

/// Clients that the former file system has evicted.
const FENCED: u64 = 20;
/// The new owner; its name is as long as a name may be.
const OWNER: Uuid = Uuid([9; 16]);
const NAME: &str = "a-file-system-with-a-name-of-sixty-three-bytes-as-long-as-it-is";

#[test]
fn power_cut_leaves_the_former_owner_with_its_fences_or_the_new_one() {
    let disks = Disks::formatted(300, 256 << 10, true, true);
    let recorded = disks.all();
    disks.world(1).run(|env| async move {
        let store = open(&env).await;
        write(&store, 1, 0, 20, 1).await.unwrap();
        let made = store.engine().run(Cost::SMALL, |txn| {
            txn.set_setting(epoch_setting(ShardId(2)), &Epoch(7).0.to_le_bytes())?;
            (0..3).try_for_each(|_| txn.new_client(b"a client").map(drop))
        });
        made.await.unwrap();
        for client in 1..=FENCED {
            store.fence(ClientId(client)).await.unwrap();
        }
        recorded.iter().for_each(SimDisk::record);
        store.adopt(OWNER, NAME).await.unwrap();
        store.close().await.unwrap();
    });
    let recordings = disks.all().into_iter().map(|disk| disk.recording().unwrap()).collect();
    let (mut images, mut former) = (0, 0);
    for point in crash_images(recordings, CrashOptions { seed: 1, subsets: 2 }) {
        images += 1;
        let mut all = point.disks.into_iter();
        let disks = Disks { device: all.next().unwrap(), journal: all.next() };
        let at = point.description;
        former += disks.world(2).run(|env| async move {
            let store = open(&env).await;
            let (fs, name, _) = store.identity();
            let is_former = fs == Uuid([1; 16]);
            if is_former {
                let all = (1..=FENCED).all(|client| store.is_fenced(ClientId(client)));
                assert!(all && name == "home", "{at}: the former owner's fences are gone");
            } else {
                assert_eq!((fs, name.as_str()), (OWNER, NAME), "{at}");
            }
            store.adopt(OWNER, NAME).await.unwrap();
            store.close().await.unwrap();
            let store = open(&env).await;
            let (fs, name, _) = store.identity();
            assert_eq!((fs, name.as_str()), (OWNER, NAME), "{at}");
            assert!(!(1..=FENCED).any(|client| store.is_fenced(ClientId(client))), "{at}");
            let known = store.engine().run(Cost::READ, |txn| {
                Ok((txn.clients()?.len(), txn.setting(epoch_setting(ShardId(2)))?))
            });
            assert_eq!(known.await.unwrap().0, (0, Some(vec![0; 4])), "{at}");
            assert_eq!(look(&store, 1, 40, |_| vec![1]).await.unwrap().len(), 20, "{at}");
            u64::from(is_former)
        });
    }
    assert!(images > 20 && former > 0 && former < images, "{former} of {images}");
}
