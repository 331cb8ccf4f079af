//! Joint operations after a restart: the entries that the store keeps, by the table of
//! `commitment`.

use std::collections::BTreeMap;
use std::rc::Rc;

use commitment::{Entry, Kept, Protocol, Site, TxnId};
use mfs::{Cost, StoreError};
use types::{Fault, Ino};

use super::drive::perform;
use super::job::{Job, Open};
use crate::context::Waited;
use crate::server::Server;

/// Takes up what was open when the server ended. Nobody is served yet.
///
/// # Errors
/// The store's; `Corrupt` if an entry is no joint operation.
pub async fn recover(server: &Rc<Server>) -> Result<(), StoreError> {
    let runtime = &server.runtime;
    if server.joint.peers.is_empty() {
        return Ok(());
    }
    let (entries, _) = runtime.mfs.run(Cost::READ, |txn| txn.intents().all()).await?;
    let now = runtime.env.now();
    for (&id, entry) in &entries {
        let (kept, _) = runtime.mfs.run(Cost::READ, |txn| txn.intents().get(id)).await?;
        let bytes = kept.map(|(_, bytes)| bytes).unwrap_or_default();
        let Ok(mut job) = Job::of(&bytes) else {
            runtime.log(&format!(
                "the entry of joint operation {id} is damaged; check the metadata zone by \
                 `redbud fsck`"
            ));
            return Err(StoreError::Fault(Fault::Corrupt));
        };
        if let Job::Coordinates { batch } = &mut job {
            for it in batch {
                // Otherwise it has its link, or is an orphan as others are.
                it.made.take_if(|_| !will_be_decided(entry));
                it.made.iter().for_each(|&ino| server.orphans.hold(ino));
            }
        }
        let mut waited = Waited::default();
        let inos = gates_of(&job, entry);
        if !inos.is_empty() {
            // Nobody else takes gates yet.
            waited.gates = Some(server.leases.enter(inos.clone()).await);
        }
        let open = Open::new(job, waited, now);
        if let Job::Worked { answers } | Job::Works { answers, .. } = &*open.job.borrow() {
            open.own.borrow_mut().clone_from(answers);
        }
        if let Job::Works { made, .. } = &*open.job.borrow() {
            made.iter().for_each(|&ino| server.orphans.hold(ino));
        }
        server.joint.close(&open, &inos);
        open.is_decided.set(!will_be_decided(entry));
        server.joint.open.borrow_mut().insert(id, Rc::new(open));
        runtime.log(&describe(id, entry));
    }
    let (shard, epoch) = (runtime.shard, runtime.identity.epoch);
    let entries: BTreeMap<TxnId, Entry> = entries;
    let (site, actions) = Site::recover(shard, epoch, runtime.config.guards, entries);
    *server.joint.site.borrow_mut() = site;
    perform(server, actions);
    Ok(())
}

/// Is it open whether this shard, as the coordinator, applies it?
fn will_be_decided(entry: &Entry) -> bool {
    match entry.kept {
        // Two phases: a coordinator that had only begun aborts.
        Kept::Started => entry.protocol == Protocol::OnePhase,
        Kept::Prepared => true,
        Kept::Committed | Kept::Aborted => false,
    }
}

/// What it holds until it is decided. Those of two undecided operations are different ones.
fn gates_of(job: &Job, entry: &Entry) -> Vec<Ino> {
    match job {
        Job::Coordinates { batch } if will_be_decided(entry) => {
            batch.iter().flat_map(|it| it.gates.iter().chain(&it.made)).copied().collect()
        }
        Job::Works { gates, made, .. } => gates.iter().chain(made).copied().collect(),
        Job::Coordinates { .. } | Job::Worked { .. } => Vec::new(),
    }
}

fn describe(id: TxnId, entry: &Entry) -> String {
    let protocol: Protocol = entry.protocol;
    format!("joint operation {id} ({}) goes on: {:?}", protocol.name(), entry.kept)
}
