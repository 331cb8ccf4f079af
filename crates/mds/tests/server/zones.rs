//! Data zones that are added, drained and lost while clients are there.

use env::sim::SimDisk;
use proto::mds::*;
use proto::wire::Appended;
use types::*;

use crate::bed::*;

const BYTES: u64 = 32 << 20;

async fn admin(bed: &Bed) -> Client {
    let admin = Client::new(bed.world.node("admin"));
    admin.greet(Hello::new::<Mds>(ADMINISTRATOR, "home", "admin")).await.unwrap().unwrap();
    admin
}

/// A client that agreed to these abilities.
async fn client(bed: &Bed, features: u64) -> (Client, Welcome) {
    let client = Client::new(bed.world.node("a client"));
    let hello = Hello { nonce: 5, features, ..Hello::new::<Mds>(CLIENT, "home", "a client") };
    let welcome = client.greet(hello).await.unwrap().unwrap();
    (client, welcome)
}

async fn text(admin: &Client, op: Op) -> String {
    match admin.call(op).await {
        Ok(OpReply::Text { text }) => text,
        other => panic!("{other:?}"),
    }
}

async fn add(admin: &Client, path: &str) -> String {
    text(admin, Op::AddZone { path: path.into(), overwrite: false, number: Appended(None) }).await
}

fn is_of(runs: &[PagRun], zone: u16) -> bool {
    runs.iter().all(|run| run.pag == PagId(zone))
}

fn ask(hint: u16, unreachable: Vec<PagId>) -> Op {
    Op::Space { hint: Some(PagId(hint)), blocks: 10, unreachable }
}

/// PROTOCOLS 6.7.
#[test]
fn added_zone_reaches_clients_that_can_use_it_and_is_granted_to_no_others() {
    run(|bed| async move {
        let more = bed.world.disk("more", BYTES);
        let (admin, (new, _), (old, _)) =
            (admin(&bed).await, client(&bed, ZONE_PUSHES).await, client(&bed, 0).await);
        assert_eq!(add(&admin, "more").await, "{\"added\":1}");
        assert!(label::Label::decode(&more.peek(0, 4096)).is_ok());
        let push = new.push(|push| matches!(push, Push::Zones { .. })).await;
        let Push::Zones { list } = push else { panic!("{push:?}") };
        assert_eq!(list.zones.iter().map(|zone| zone.id.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((list.zones[1].path.as_str(), list.lost.len()), ("more", 0));
        assert_eq!(new.call(Op::Zones {}).await, Ok(OpReply::Zones { list }));
        let granted = new.call(ask(1, vec![PagId(0)])).await;
        assert!(
            matches!(&granted, Ok(OpReply::Space { runs, .. }) if is_of(runs, 1)),
            "{granted:?}"
        );
        // An older client does not know the zone, and gets no push.
        assert_eq!(old.call(Op::Zones {}).await, Err(Fault::Unsupported));
        let granted = old.call(ask(1, Vec::new())).await;
        assert!(
            matches!(&granted, Ok(OpReply::Space { runs, .. }) if is_of(runs, 0)),
            "{granted:?}"
        );
        assert_eq!(old.call(ask(1, vec![PagId(0)])).await, Err(Fault::NoSpace));
        assert!(!old.pushes().iter().any(|push| matches!(push, Push::Zones { .. })));
        // Clients may not do this, and nobody twice.
        let op = Op::AddZone { path: "more".into(), overwrite: true, number: Appended(None) };
        assert_eq!(new.call(op).await, Err(Fault::NotPermitted));
        assert!(add(&admin, "more").await.contains("data zone 1 of this file system already"));
        assert!(add(&admin, "none").await.contains("none: "));
    });
}

/// A label that `AddZone` wrote, as a cut leaves the device: with both copies, or the last alone.
fn cut_off(bed: &Bed, name: &str, zone: u16, front: bool) -> SimDisk {
    let disk = bed.world.disk(name, BYTES);
    let kind = label::SliceKind::Data { pag: PagId(zone) };
    let uuid = Uuid([0x40 + zone as u8; 16]);
    label::put(&disk, &label::Label::single(Uuid([9; 16]), "home", uuid, BYTES / 4096, kind));
    if !front {
        disk.poke(0, &[0; 4096]);
    }
    disk
}

#[test]
fn addition_that_was_cut_off_is_completed_by_the_same_request() {
    run(|bed| async move {
        let admin = admin(&bed).await;
        for (zone, name, front) in [(1, "one", true), (2, "two", false)] {
            let disk = cut_off(&bed, name, zone, front);
            assert_eq!(add(&admin, name).await, format!("{{\"added\":{zone}}}"));
            assert!(label::Label::decode(&disk.peek(0, 4096)).is_ok(), "both copies are whole");
        }
        // Its number was given to another device meanwhile.
        cut_off(&bed, "late", 2, true);
        let late = cut_off(&bed, "later", 2, true);
        let kind = label::SliceKind::Data { pag: PagId(2) };
        let other = Uuid([0x77; 16]);
        label::put(&late, &label::Label::single(Uuid([9; 16]), "home", other, BYTES / 4096, kind));
        assert!(add(&admin, "later").await.contains("which is another device; --force"));
        let forced = Op::AddZone { path: "later".into(), overwrite: true, number: Appended(None) };
        assert_eq!(text(&admin, forced).await, "{\"added\":3}");
    });
}

#[test]
fn lost_zone_grants_nothing_and_new_clients_learn_of_it_also_after_a_restart() {
    with_zones(2, |bed| async move {
        let (admin_of, (first, _)) = (admin(&bed).await, client(&bed, ZONE_PUSHES).await);
        let set = |state| Op::SetZoneState { pag: PagId(1), state, only_from: Vec::new() };
        assert_eq!(text(&admin_of, set(2)).await, "{\"before\":\"in service\"}");
        let lost = |push: &Push| match push {
            Push::Zones { list } => list.lost == [PagId(1)],
            _ => false,
        };
        first.push(lost).await;
        assert_eq!(first.call(ask(1, vec![PagId(0)])).await, Err(Fault::NoSpace));
        let granted = first.call(ask(1, Vec::new())).await;
        assert!(
            matches!(&granted, Ok(OpReply::Space { runs, .. }) if is_of(runs, 0)),
            "{granted:?}"
        );
        assert!(text(&admin_of, set(9)).await.contains("no state 9"));
        let unknown = Op::SetZoneState { pag: PagId(7), state: 1, only_from: vec![0] };
        assert!(text(&admin_of, unknown).await.contains("no data zone 7"));
        first.call(Op::Goodbye {}).await.unwrap();
        bed.restart().await;
        let (second, _) = client(&bed, ZONE_PUSHES).await;
        second.push(lost).await;
        let admin_of = admin(&bed).await;
        assert_eq!(text(&admin_of, set(0)).await, "{\"before\":\"lost\"}");
        second.push(|push| matches!(push, Push::Zones { list } if list.lost.is_empty())).await;
        let granted = second.call(ask(1, vec![PagId(0)])).await;
        assert!(
            matches!(&granted, Ok(OpReply::Space { runs, .. }) if is_of(runs, 1)),
            "{granted:?}"
        );
    });
}

/// PROTOCOLS 6.7.
#[test]
fn change_that_names_the_states_it_ends_leaves_a_zone_in_any_other_one() {
    with_zones(2, |bed| async move {
        let (mover, admin, (other, _)) =
            (admin(&bed).await, admin(&bed).await, client(&bed, ZONE_PUSHES).await);
        let set = |state, only_from: &[u16]| Op::SetZoneState {
            pag: PagId(1),
            state,
            only_from: only_from.into(),
        };
        assert_eq!(text(&mover, set(1, &[0])).await, "{\"before\":\"in service\"}");
        assert_eq!(text(&mover, set(1, &[1])).await, "{\"before\":\"draining\"}");
        assert_eq!(text(&admin, set(3, &[])).await, "{\"before\":\"draining\"}");
        // The mover has looked before the pause, and asks for pools again.
        assert_eq!(text(&mover, set(1, &[1])).await, "{\"kept\":\"drain paused\"}");
        assert_eq!(text(&mover, set(1, &[0, 1, 2])).await, "{\"kept\":\"drain paused\"}");
        let is_leaving = |push: &Push| match push {
            Push::Zones { list } => list.leaving == [PagId(1)],
            _ => false,
        };
        other.push(is_leaving).await;
        assert_eq!(text(&admin, set(0, &[1, 3])).await, "{\"before\":\"drain paused\"}");
        assert_eq!(text(&mover, set(1, &[1])).await, "{\"kept\":\"in service\"}");
        let granted = other.call(ask(1, vec![PagId(0)])).await;
        assert!(
            matches!(&granted, Ok(OpReply::Space { runs, .. }) if is_of(runs, 1)),
            "{granted:?}"
        );
        assert!(text(&admin, set(1, &[0; 5])).await.contains("at most 4 states"));
        // What was kept is durable when it is said.
        assert_eq!(text(&admin, set(3, &[0])).await, "{\"before\":\"in service\"}");
        assert_eq!(text(&mover, set(1, &[1])).await, "{\"kept\":\"drain paused\"}");
        bed.restart().await;
        let mover = self::admin(&bed).await;
        assert_eq!(text(&mover, set(1, &[1])).await, "{\"kept\":\"drain paused\"}");
    });
}
