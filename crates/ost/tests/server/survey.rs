//! Surveys of a target, of its store, and of a device.

use env::DiskOptions;
use redbud_ost::store::{ObjectStore, Options};
use redbud_ost::survey::{Measured, Pass, Place, Plan, Survey, Target, Targets};
use types::{Duration, Fault};

use super::bed::{Bed, key, run};

const PASSES: [Pass; 3] = [Pass::Write, Pass::Rewrite, Pass::Read];
const PLAN: Plan = Plan { threads: 6, objects: 3, record: 32, records: 20, sync: false };

fn assert_whole(measured: &Measured) {
    assert_eq!(measured.latencies.len(), 60, "{:?}", measured.pass);
    assert_eq!(measured.bytes, PLAN.bytes());
    assert_eq!(measured.bytes, 60 * 32 * 4096);
    assert!(measured.answered <= measured.durable);
}

#[test]
fn survey_measures_and_leaves_nothing() {
    for sync in [false, true] {
        run(5, |bed| async move {
            let client = bed.client("a", 7).await;
            let free = bed.status("free").await;
            let sessions = vec![client.session.clone()];
            let target = Target { key: key(), sessions };
            let place = Place::Targets(Targets::new(vec![target], 1));
            let survey = Survey::new(bed.env.clone(), Plan { sync, ..PLAN }, place).unwrap();
            for pass in PASSES {
                assert_whole(&survey.run(pass).await.unwrap());
            }
            assert_eq!(bed.status("free").await, free - 60 * 32);
            survey.clean().await.unwrap();
            assert_eq!(bed.status("free").await, free);
            survey.close().await.unwrap();
            assert!(client.session.is_closed());
        });
    }
}

async fn open(bed: &Bed) -> std::rc::Rc<ObjectStore> {
    let exclusive = DiskOptions { write: true, exclusive: false };
    let device = bed.env.open_disk("device", exclusive).await.unwrap();
    let options = Options { cache_bytes: 8 << 20, commit_interval: Duration::from_secs(1) };
    ObjectStore::open(&bed.env, &device, None, options).await.unwrap()
}

#[test]
fn survey_of_a_store_needs_no_server_and_leaves_nothing() {
    for sync in [false, true] {
        run(6, |bed| async move {
            bed.stop().await;
            let store = open(&bed).await;
            let free = store.info().free;
            let place = Place::Store(store);
            let survey = Survey::new(bed.env.clone(), Plan { sync, ..PLAN }, place).unwrap();
            for pass in PASSES {
                assert_whole(&survey.run(pass).await.unwrap());
            }
            survey.clean().await.unwrap();
            survey.close().await.unwrap();
            drop(survey);
            let store = open(&bed).await;
            assert_eq!(store.info().free, free);
            store.close().await.unwrap();
        });
    }
}

#[test]
fn survey_of_a_device_reads_what_it_wrote_and_nothing_else() {
    run(7, |bed| async move {
        let disk = bed.world.disk("raw", PLAN.bytes());
        let options = DiskOptions { write: true, exclusive: true };
        let device = bed.env.open_disk("raw", options).await.unwrap();
        let larger = Plan { records: PLAN.records + 1, ..PLAN };
        let refused = Survey::new(bed.env.clone(), larger, Place::Device(device.clone()));
        assert_eq!(refused.err(), Some(Fault::NoSpace));
        let survey = Survey::new(bed.env.clone(), PLAN, Place::Device(device.clone())).unwrap();
        assert_eq!(survey.run(Pass::Read).await, Err(Fault::Corrupt), "nothing was written");
        for pass in PASSES {
            assert_whole(&survey.run(pass).await.unwrap());
        }
        // Every record has its own place: the last one is at the end.
        let zeros = env::IoBuf::zeroed(4096);
        device.write(PLAN.bytes() - 4096, zeros).await.0.unwrap();
        assert_eq!(survey.run(Pass::Read).await, Err(Fault::Corrupt));
        drop(disk);
    });
}
