//! Fences of evicted clients, and takeovers, with the fencing epoch of labels.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::{DiskOptions, Env};
use proto::mds::*;
use redbud_mds::fence::{Acting, Answer, Fence, FenceAction, FenceTarget};
use types::*;

use crate::bed::{Bed, Client, LEASE, data_device, run};

const ROOT: Ino = Ino::ROOT;
/// A lease that no quarantine of these tests outlasts.
const LONG: Duration = Duration::from_secs(60);

/// A means whose answers the test chooses. Each action takes a second.
struct Scripted {
    env: Env,
    cut: Answer,
    check: Answer,
    acts: RefCell<Vec<(FenceAction, String)>>,
}

impl Fence for Scripted {
    fn name(&self) -> String {
        "scripted".into()
    }

    fn covers(&self, target: &FenceTarget) -> bool {
        target.host.starts_with("host")
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn act<'a>(&'a self, action: FenceAction, target: &'a FenceTarget) -> Acting<'a> {
        Box::pin(async move {
            self.acts.borrow_mut().push((action, target.host.clone()));
            let answer = if action == FenceAction::Cut { &self.cut } else { &self.check };
            let takes = if *answer == Answer::Late { 3600 } else { 1 };
            self.env.sleep(Duration::from_secs(takes)).await;
            answer.clone()
        })
    }
}

fn scripted(bed: &Bed, cut: Answer, check: Answer) -> Rc<Scripted> {
    let env = bed.env.clone();
    Rc::new(Scripted { env, cut, check, acts: RefCell::default() })
}

fn no() -> Answer {
    Answer::No("scripted".into())
}

/// A client that says that it runs on `host`.
async fn client_on(bed: &Bed, node: &str, host: &str) -> Client {
    let client = Client::new(bed.world.node(node));
    let usual = Hello::new::<Mds>(0, "home", &format!("{host}, pid 1, /mnt"));
    client.greet(Hello { nonce: client.nonce, ..usual }).await.unwrap().unwrap();
    client
}

/// A file that `a` could write when it was evicted, which `b` looks at.
struct Evicted {
    admin: Client,
    a: Client,
    b: Client,
    ino: Ino,
}

async fn evict(bed: &Bed) -> Evicted {
    let admin = Client::new(bed.world.node("admin"));
    let (a, b) = (client_on(bed, "a", "hosta").await, client_on(bed, "b", "other").await);
    admin.connect_as(ClientId(0), 1, 1).await.unwrap();
    let want = Rights::DATA_X | Rights::DATA_S;
    let ino = a.create(ROOT, "f", FileKind::Regular, want).await.unwrap().attr.ino;
    assert!(admin.call(Op::Evict { client: a.id() }).await.is_ok());
    let (_, layout) = b.acquire(ino, Rights::DATA_S).await.unwrap();
    assert!(layout.unwrap().frozen);
    Evicted { admin, a, b, ino }
}

impl Evicted {
    /// Is the file frozen after `time`?
    async fn frozen_after(&self, bed: &Bed, time: Duration) -> bool {
        let until = bed.env.now() + time;
        while bed.env.now() < until {
            bed.sleep((until.since(bed.env.now())).min(Duration::from_secs(1))).await;
            self.b.call(Op::Renew {}).await.unwrap();
        }
        let layout = Op::Layout { ino: self.ino, from: FileBlock(0) };
        let Ok(OpReply::Layout { slice }) = self.b.call(layout).await else { panic!() };
        slice.frozen
    }
}

/// PROTOCOLS 8.5.
#[test]
fn proven_fence_ends_the_quarantine_after_the_settling_time() {
    run(|bed| async move {
        bed.lease_for(LONG);
        let fence = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![fence.clone()]).await;
        let evicted = evict(&bed).await;
        assert!(evicted.frozen_after(&bed, Duration::from_millis(1500)).await, "not checked yet");
        assert!(evicted.frozen_after(&bed, Duration::from_secs(5)).await, "a write may be queued");
        assert!(!evicted.frozen_after(&bed, Duration::from_secs(1)).await, "{:?}", bed.log);
        let host = || "hosta".to_owned();
        let acts = [(FenceAction::Cut, host()), (FenceAction::Check, host())];
        assert_eq!(*fence.acts.borrow(), acts);
        assert!(bed.logged("has been fenced by scripted, in 2000 ms"));
        let again = evicted.a.connect(evicted.a.id()).await;
        assert_eq!(again.unwrap_err().fault, Fault::Evicted);
    });
}

/// PROTOCOLS 8.5: what is not proven changes nothing.
#[test]
fn fence_that_fails_leaves_the_quarantine_as_long_as_without_one() {
    let cases = [
        (no(), Answer::Yes),
        (Answer::Late, Answer::Yes),
        (Answer::Yes, no()),
        (Answer::Yes, Answer::Late),
    ];
    for (cut, check) in cases {
        run(|bed| async move {
            let fence = scripted(&bed, cut.clone(), check.clone());
            bed.fence_by(vec![fence]).await;
            let evicted = evict(&bed).await;
            let almost = LEASE + LEASE / 2 - Duration::from_secs(1);
            assert!(evicted.frozen_after(&bed, almost).await, "{cut:?} {check:?}");
            assert!(bed.logged("has NOT been fenced (scripted, "), "{:?}", bed.log);
            let OpReply::Text { text } = evicted.admin.call(Op::Status {}).await.unwrap() else {
                panic!()
            };
            assert!(text.contains(r#""fence":"failed: scripted, "#), "{text}");
            assert!(!evicted.frozen_after(&bed, Duration::from_secs(2)).await);
        });
    }
}

#[test]
fn second_means_is_tried_after_the_first_has_failed() {
    run(|bed| async move {
        bed.lease_for(LONG);
        let first = scripted(&bed, Answer::Yes, no());
        let second = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![first.clone(), second.clone()]).await;
        let evicted = evict(&bed).await;
        assert!(!evicted.frozen_after(&bed, Duration::from_millis(9500)).await, "{:?}", bed.log);
        assert_eq!((first.acts.borrow().len(), second.acts.borrow().len()), (2, 2));
    });
}

/// The server does not know what a device holds that is absent on its host.
#[test]
fn proven_fence_ends_no_quarantine_while_a_device_is_absent() {
    run(|bed| async move {
        bed.lease_for(LONG);
        let data = data_device(&bed.world);
        let fence = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![fence]).await;
        data.fail_from(env::sim::DiskAction::Read, 1, env::sim::DiskFault::Io);
        bed.sleep(Duration::from_secs(12)).await;
        let evicted = evict(&bed).await;
        assert!(evicted.frozen_after(&bed, Duration::from_secs(12)).await);
        data.heal();
        assert!(!evicted.frozen_after(&bed, Duration::from_secs(9)).await);
    });
}

/// A fence says nothing of what a device holds.
#[test]
fn fenced_client_stays_in_quarantine_while_a_device_is_stalled() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        let fence = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![fence]).await;
        data.stall(true);
        let evicted = evict(&bed).await;
        assert!(evicted.frozen_after(&bed, LEASE * 3).await);
        assert!(bed.logged("has been fenced"));
        data.stall(false);
        assert!(evicted.frozen_after(&bed, Duration::from_secs(4)).await);
        assert!(!evicted.frozen_after(&bed, Duration::from_secs(3)).await);
    });
}

#[test]
fn host_with_another_client_that_lives_is_spared() {
    run(|bed| async move {
        let fence = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![fence.clone()]).await;
        let other = client_on(&bed, "c", "hosta").await;
        let evicted = evict(&bed).await;
        assert!(evicted.frozen_after(&bed, Duration::from_secs(1)).await);
        assert!(fence.acts.borrow().is_empty(), "the host was cut off");
        assert!(bed.logged(&format!("hosta has client {}, which lives", other.id())));
    });
}

#[test]
fn restarted_server_fences_clients_that_its_predecessor_evicted() {
    run(|bed| async move {
        let fence = scripted(&bed, no(), Answer::Yes);
        bed.fence_by(vec![fence]).await;
        let evicted = evict(&bed).await;
        let fence = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![fence.clone()]).await;
        evicted.b.connect(evicted.b.id()).await.unwrap();
        evicted.b.call(Op::ReclaimDone {}).await.unwrap();
        bed.sleep(Duration::from_secs(3)).await;
        assert_eq!(fence.acts.borrow().len(), 2);
        assert!(bed.logged(&format!("client {} at host hosta has been fenced", evicted.a.id())));
    });
}

/// A client that is let in would be cut off with its host, and one that wakes shows that the host
/// lives.
#[test]
fn host_that_is_being_fenced_is_let_in_later_and_spared_when_a_client_wakes() {
    run(|bed| async move {
        let fence = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![fence.clone()]).await;
        let asleep = client_on(&bed, "c", "hosta").await;
        bed.sleep(LEASE + Duration::from_secs(1)).await;
        let evicted = evict(&bed).await;
        bed.sleep(Duration::from_millis(500)).await;
        let late = Client::new(bed.world.node("d"));
        let usual = Hello::new::<Mds>(0, "home", "hosta, pid 2, /mnt");
        let hello = || Hello { nonce: late.nonce, ..usual.clone() };
        let refused = late.greet(hello()).await.unwrap().unwrap_err();
        assert_eq!(refused.fault, Fault::Busy);
        asleep.call(Op::Renew {}).await.unwrap();
        bed.sleep(Duration::from_secs(2)).await;
        assert_eq!(fence.acts.borrow().len(), 1, "{:?}", bed.log);
        assert!(bed.logged(&format!("hosta has client {}, which lives", asleep.id())));
        late.greet(hello()).await.unwrap().unwrap();
        assert!(evicted.frozen_after(&bed, Duration::from_secs(1)).await);
    });
}

/// Until they are back, the server does not know that other clients of that host live.
#[test]
fn restarted_server_spares_a_host_whose_other_client_comes_back() {
    run(|bed| async move {
        let other = client_on(&bed, "c", "hosta").await;
        let evicted = evict(&bed).await;
        let fence = scripted(&bed, Answer::Yes, Answer::Yes);
        bed.fence_by(vec![fence.clone()]).await;
        bed.sleep(Duration::from_secs(1)).await;
        for (client, host) in [(&evicted.b, "other"), (&other, "hosta")] {
            let usual = Hello::new::<Mds>(0, "home", &format!("{host}, pid 1, /mnt"));
            let hello = Hello { client: client.id(), nonce: client.nonce, ..usual };
            client.greet(hello).await.unwrap().unwrap();
            client.call(Op::ReclaimDone {}).await.unwrap();
        }
        bed.sleep(Duration::from_secs(3)).await;
        assert!(fence.acts.borrow().is_empty(), "the host was cut off");
    });
}

async fn fencing_epoch(bed: &Bed) -> Epoch {
    let disk = bed.env.open_disk("data", DiskOptions::default()).await.unwrap();
    label::read(&disk).await.unwrap().label.fencing_epoch
}

/// FORMAT 1.1.
#[test]
fn fencing_epoch_rises_when_a_server_starts_on_another_host_and_only_then() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        for _ in 0..2 {
            bed.restart().await;
            assert_eq!(fencing_epoch(&bed).await, Epoch(0));
        }
        bed.world.set_host("mds", "elsewhere");
        bed.restart().await;
        let epoch = fencing_epoch(&bed).await;
        assert!(epoch > Epoch(3) && bed.logged(&format!("fencing epoch {epoch}")), "{epoch}");
        bed.restart().await;
        assert_eq!(fencing_epoch(&bed).await, epoch, "no takeover");
        // A device that is away during a takeover gets it when it is back, also from the next
        // server.
        data.fail_from(env::sim::DiskAction::Read, 1, env::sim::DiskFault::Io);
        bed.world.set_host("mds", "here");
        bed.restart().await;
        bed.restart().await;
        data.heal();
        assert_eq!(fencing_epoch(&bed).await, epoch);
        bed.sleep(Duration::from_secs(3)).await;
        assert_eq!(fencing_epoch(&bed).await, Epoch(epoch.0 + 2));
    });
}

#[test]
fn device_that_does_not_answer_keeps_no_server_from_taking_over() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        bed.world.set_host("mds", "elsewhere");
        bed.world.kill("mds");
        // It stops behind the reads of its label that come before the one of the takeover.
        let (before, disk, env) = (data.counts().reads, data.clone(), bed.env.clone());
        bed.env.spawn(async move {
            while disk.counts().reads <= before + 4 {
                env.sleep(Duration::from_micros(1)).await;
            }
            disk.stall(true);
        });
        let begun = bed.env.now();
        bed.start().await;
        assert!(bed.env.now().since(begun) < Duration::from_secs(6));
        assert!(bed.logged("it has not answered for 5 s; clients of an earlier"), "{:?}", bed.log);
        data.stall(false);
        bed.sleep(Duration::from_secs(12)).await;
        assert!(fencing_epoch(&bed).await > Epoch(3), "a later look raises it");
    });
}

#[test]
fn server_ends_when_a_label_shows_that_another_one_has_taken_over() {
    run(|bed| async move {
        data_device(&bed.world);
        bed.restart().await;
        let options = DiskOptions { write: true, exclusive: false };
        let disk = bed.env.open_disk("data", options).await.unwrap();
        let found = label::read(&disk).await.unwrap();
        let raise = |label: &mut label::Label| label.fencing_epoch = Epoch(20);
        label::update(&disk, &found, raise).await.unwrap();
        bed.sleep(Duration::from_secs(12)).await;
        assert!(bed.ended_with_error() && bed.logged("another server has taken over"));
        let stored = mfs::Mfs::stored_epoch(&bed.env, &bed.open_meta().await).await.unwrap();
        // However often it is started again.
        for _ in 0..30 {
            let refused = bed.try_start().await.unwrap_err();
            assert!(refused.contains("has fencing epoch 20"), "{refused}");
        }
        let again = mfs::Mfs::stored_epoch(&bed.env, &bed.open_meta().await).await.unwrap();
        assert_eq!(again, stored, "a start that was refused has written");
        bed.try_start_from(true).await.unwrap();
        let (_, above) = mfs::Mfs::stored_epoch(&bed.env, &bed.open_meta().await).await.unwrap();
        assert_eq!(above, Epoch(21));
        bed.restart().await;
    });
}

#[test]
fn look_at_a_device_that_does_not_answer_ends_and_later_ones_read_its_label() {
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        let options = DiskOptions { write: true, exclusive: false };
        let disk = bed.env.open_disk("data", options).await.unwrap();
        let found = label::read(&disk).await.unwrap();
        data.stall(true);
        bed.sleep(Duration::from_secs(16)).await;
        assert!(bed.logged("its label has not answered for 5 s"), "{:?}", bed.log);
        data.stall(false);
        let raise = |label: &mut label::Label| label.fencing_epoch = Epoch(20);
        label::update(&disk, &found, raise).await.unwrap();
        bed.sleep(Duration::from_secs(25)).await;
        assert!(bed.ended_with_error() && bed.logged("another server has taken over"));
    });
}

/// Lets a server take over and kills it at write `at` of its start; `false`: it made fewer. Then
/// another one starts.
fn break_off_takeover(at: u64) -> bool {
    let broken = Rc::new(Cell::new(false));
    let result = broken.clone();
    run(|bed| async move {
        let data = data_device(&bed.world);
        bed.restart().await;
        bed.world.set_host("mds", "elsewhere");
        bed.world.kill("mds");
        let (_, old) = mfs::Mfs::stored_epoch(&bed.env, &bed.open_meta().await).await.unwrap();
        let writes = {
            let (data, meta) = (data.clone(), bed.meta());
            move || data.counts().writes + meta.counts().writes
        };
        let (until, started) = (writes() + at, Rc::new(Cell::new(false)));
        let (killer, ended) = (bed.clone(), started.clone());
        bed.env.spawn(async move {
            while !ended.get() && writes() < until {
                killer.sleep(Duration::from_micros(1)).await;
            }
            killer.world.kill("mds");
        });
        broken.set(bed.try_start().await.is_err());
        started.set(true);
        bed.sleep(Duration::from_millis(1)).await;
        let before = fencing_epoch(&bed).await;
        bed.restart().await;
        let after = fencing_epoch(&bed).await;
        assert!(after > old && after >= before, "write {at}: {old}, {before}, {after}");
        let label = label::read(&bed.open_meta().await).await.unwrap().label;
        assert_eq!(label.fencing_epoch, after, "write {at}");
        bed.restart().await;
        assert_eq!(fencing_epoch(&bed).await, after, "write {at}: that was no takeover");
    });
    result.get()
}

#[test]
fn takeover_that_breaks_off_is_done_again_by_the_next_server() {
    let broken = (1..).take_while(|&at| break_off_takeover(at)).count();
    // The labels of both devices have two copies.
    assert!(broken >= 4, "only {broken} writes");
}

#[test]
fn label_that_cannot_be_written_in_a_takeover_is_written_by_the_next_server() {
    for writes in 1..=3 {
        run(|bed| async move {
            let data = data_device(&bed.world);
            bed.restart().await;
            bed.world.set_host("mds", "elsewhere");
            bed.world.kill("mds");
            data.fail_from(env::sim::DiskAction::Write, writes, env::sim::DiskFault::Io);
            bed.start().await;
            // Each label has two copies.
            let failed = bed.logged("its label cannot get fencing epoch");
            assert_eq!(failed, writes <= 2, "write {writes}: {:?}", bed.log);
            let before = fencing_epoch(&bed).await;
            data.heal();
            bed.restart().await;
            bed.sleep(Duration::from_secs(1)).await;
            let after = fencing_epoch(&bed).await;
            assert!(after > Epoch(3) && after >= before, "{before} {after}");
        });
    }
}
