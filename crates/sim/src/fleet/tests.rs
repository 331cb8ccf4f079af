use super::*;
use crate::cluster::world;

#[test]
fn live_client_must_notice_its_eviction() {
    let (world, disks) = world(1);
    let inner = world.clone();
    world.run(|env| async move {
        let events = Events::default();
        let cluster = Cluster::new(inner, env.clone(), disks, Rc::default(), events.clone());
        cluster.start_server();
        let fleet =
            Fleet::new(&cluster, &History::new(&events), &Rc::new(Script::plain(1)), 1, 1, 0);
        fleet.start().await.expect("a client mounts");
        assert!(fleet.unaware().is_empty());
        let client = fleet.mounts()[0].client.status().client;
        // The server reports the eviction, and the client does not notice it.
        fleet.on_eviction(client, Eviction::Begins);
        assert!(fleet.unaware().is_empty());
        fleet.on_eviction(client, Eviction::Completed);
        assert_eq!(fleet.unaware(), [0]);
        fleet.end();
        assert!(fleet.unaware().is_empty(), "it is dead");
    });
}
