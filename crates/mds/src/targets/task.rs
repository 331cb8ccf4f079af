//! The task of one target: its session, and what it has still to do.
//!
//! Invariants:
//! - fences come first, then the word that all are fenced, then objects to be destroyed;
//! - an entry leaves the store when the target has answered that what it asks for is durable there;
//! - what was lost with a session is asked for again: all of it may be repeated.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use env::sync::first;
use mfs::Cost;
use proto::capability::Capability;
use proto::message::{METADATA_SERVER, Principal, Reply, Request};
use proto::ost::{DESTROY_MAX, Op, OpReply, Ost, Push, PushReply, TargetInfo};
use proto::slots::SlotClass;
use session::client::{Call, Config, ConnectError, Events, ReplayEntry, Session, Shared, result};
use types::{ClientId, Duration, Epoch, Fault, ObjectId, ServerId, Uuid};

use super::{POLLED, Target, Targets};
use crate::runtime::Runtime;

/// How long a greeting, or a question of an administrator, may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// For how long the first greeting is tried before the target counts as away.
const GREETING: Duration = Duration::from_secs(1);
/// Pause between two looks whether there is something to do.
const TICK: Duration = Duration::from_secs(1);
/// Clients of one round of fences, and entries that one transaction removes.
const BATCH: usize = 64;

/// Sees to it that the session is with this target and no other.
struct Guard {
    target: Rc<Target>,
    session: Weak<Session<Ost>>,
    /// Another target has answered.
    is_wrong: Cell<bool>,
    /// The start of the target that has heard that all are fenced.
    admitted: Cell<Epoch>,
}

impl Events<Ost> for Guard {
    fn absorb(&self, _: ServerId, _: &Request<Ost>, _: &Reply<Ost>, _: u64) {}

    fn push(&self, _: ServerId, _: Push) -> Option<PushReply> {
        None
    }

    fn connected(&self, _: ServerId) {
        if let Some(session) = self.session.upgrade()
            && session.offer().1.is_none_or(|info| info.uuid != self.target.uuid)
        {
            // Nothing is sent on this connection, and the task gives the session up.
            self.is_wrong.set(true);
            session.abandon();
            self.target.gone.notify_all();
            return;
        }
        // One that has started anew changes nothing before it is admitted.
        self.target.wake.notify_all();
    }

    fn reclaim(&self, _: ServerId, _: Epoch) -> Vec<Op> {
        Vec::new()
    }

    fn names_lost(&self, _: &Op) -> bool {
        false
    }

    fn evicted(&self, _: ServerId, _: ClientId, _: &[ReplayEntry<Ost>]) {}
}

/// Opens a session with the target at `address`.
pub(super) async fn open(
    runtime: &Runtime,
    address: &str,
    patience: Duration,
) -> Result<Rc<Session<Ost>>, ConnectError> {
    let mut config = Config::new::<Ost>(vec![address.to_owned()], &runtime.identity.name);
    config.role = METADATA_SERVER;
    let which = match runtime.config.servers.is_empty() {
        true => String::new(),
        false => format!(" {}", runtime.shard),
    };
    config.description = format!("metadata server{which}, epoch {}", runtime.identity.epoch);
    config.expected.fs_uuid = runtime.identity.uuid;
    config.connect_timeout = patience;
    config.keys = runtime.config.target_keys.clone();
    let (log, at) = (runtime.config.log.clone(), address.to_owned());
    config.log = Rc::new(move |text| log(&format!("ost:{at}: {text}")));
    Session::open(runtime.env.clone(), config, Rc::new(Shared::default())).await
}

/// Asks what the target is, and shows the server's capability.
pub(super) async fn ask_about(
    session: &Session<Ost>,
    may: Capability,
) -> Result<TargetInfo, Fault> {
    let reply = session.call(call(vec![Op::Destroy { may, objects: Vec::new() }, Op::Statfs {}]));
    let reply = reply.await?;
    result(&reply, 0)?;
    match result(&reply, 1)? {
        OpReply::Target { info } => Ok(info.clone()),
        _ => Err(Fault::Protocol),
    }
}

fn call(ops: Vec<Op>) -> Call<Ost> {
    let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
    Call { ops, principal, sync: true, class: SlotClass::Ordinary }
}

/// Serves a target until the server stops, or the target has moved.
pub(super) async fn run(targets: Rc<Targets>, target: Rc<Target>) {
    let ends = || targets.runtime.is_stopping() || target.replaced.get();
    while let Some((session, guard)) = meet(&targets, &target, &ends).await {
        let mut trouble = String::new();
        loop {
            let (woken, gone) = (target.wake.notified(), target.gone.notified());
            if ends() || guard.is_wrong.get() {
                break;
            }
            if session.is_connected() {
                target.set_there();
                match first(work(&targets, &target, &session, &guard), gone).await {
                    Some(Ok(())) => {
                        trouble.clear();
                        target.refuses.set(false);
                        target.set_there();
                    }
                    Some(Err(fault)) => note(&targets, &target, fault, &mut trouble),
                    None => continue,
                }
            } else {
                target.set_away(targets.runtime.env.now(), "the connection is lost");
                targets.changed.notify_all();
            }
            let _ = targets.runtime.env.timeout(TICK, woken).await;
        }
        session.abandon();
        target.session.borrow_mut().take();
        target.set_away(targets.runtime.env.now(), "the session is over");
    }
}

/// Says once why a target does not do what it is asked for. Until it does it counts as away: new
/// files lie elsewhere.
fn note(targets: &Targets, target: &Target, fault: Fault, trouble: &mut String) {
    let text = format!("object target {}: {}", target.id, fault.text());
    if *trouble != text {
        targets.runtime.log(&text);
        trouble.clone_from(&text);
    }
    target.refuses.set(true);
    target.set_away(targets.runtime.env.now(), &text);
    targets.changed.notify_all();
}

/// Greets the target until it answers.
async fn meet(
    targets: &Targets,
    target: &Rc<Target>,
    ends: &impl Fn() -> bool,
) -> Option<(Rc<Session<Ost>>, Rc<Guard>)> {
    let runtime = &targets.runtime;
    loop {
        let woken = target.wake.notified();
        let address = target.address.borrow().clone();
        let text = match open(runtime, &address, GREETING).await {
            Ok(session) => {
                let uuid = session.offer().1.map_or(Uuid::default(), |info| info.uuid);
                if uuid == target.uuid && !ends() {
                    let (target, is_wrong) = (target.clone(), Cell::new(false));
                    let admitted = Cell::default();
                    let weak = Rc::downgrade(&session);
                    let guard = Rc::new(Guard {
                        target: target.clone(),
                        session: weak,
                        is_wrong,
                        admitted,
                    });
                    let events: Weak<dyn Events<Ost>> = Rc::downgrade(&guard) as _;
                    session.set_events(events);
                    *target.session.borrow_mut() = Some(session.clone());
                    target.set_there();
                    return Some((session, guard));
                }
                session.close().await;
                format!("what answers is target {uuid}, not {}", target.uuid)
            }
            Err(ConnectError { text }) => text,
        };
        if ends() {
            return None;
        }
        if target.away.get().is_none() || *target.why.borrow() != text {
            runtime.log(&format!("object target {} (ost:{address}) is away: {text}", target.id));
        }
        target.set_away(runtime.env.now(), &text);
        targets.changed.notify_all();
        let _ = runtime.env.timeout(TICK, woken).await;
    }
}

/// Everything that is to do now.
async fn work(
    targets: &Targets,
    target: &Target,
    session: &Session<Ost>,
    guard: &Guard,
) -> Result<(), Fault> {
    // If the target starts again meanwhile, it refuses this epoch.
    let epoch = session.epoch();
    fence(targets, target, session).await?;
    if guard.admitted.get() != epoch {
        let may = targets.own_capability().ok_or(Fault::AccessDenied)?;
        let reply = session.call(call(vec![Op::Admit { may, epoch }])).await?;
        result(&reply, 0)?;
        guard.admitted.set(epoch);
    }
    destroy(targets, target, session).await?;
    let now = targets.runtime.env.now();
    let asked = target.asked.get().is_some_and(|at| now.since(at) < POLLED);
    if asked || target.free.get().is_none() {
        let reply = session.call(call(vec![Op::Statfs {}])).await?;
        if let OpReply::Target { info } = result(&reply, 0)? {
            target.free.set(Some(info.free));
        }
    }
    Ok(())
}

/// Has the target refuse the clients that it must.
async fn fence(targets: &Targets, target: &Target, session: &Session<Ost>) -> Result<(), Fault> {
    let (runtime, id) = (&targets.runtime, target.id);
    loop {
        let owed = runtime.mfs.run(Cost::READ, |txn| txn.space().owed_fences(id, BATCH)).await;
        let owed = runtime.checked(owed, "reading the owed fences").ok_or(Fault::Io)?.0;
        if owed.is_empty() {
            target.waited.borrow_mut().clear();
            targets.changed.notify_all();
            return Ok(());
        }
        // The evictions are durable before anybody acts on them.
        runtime.checked(runtime.mfs.sync().await, "before a fence").ok_or(Fault::Io)?;
        for &client in &owed {
            let may = targets.own_capability().ok_or(Fault::AccessDenied)?;
            let reply = session.call(call(vec![Op::Fence { may, client }])).await?;
            result(&reply, 0)?;
            target.waited.borrow_mut().remove(&client);
            targets.changed.notify_all();
        }
        let paid = runtime.mfs.run(Cost::STEP, |txn| txn.space().fenced(id, &owed)).await;
        runtime.checked(paid, "after a fence").ok_or(Fault::Io)?;
        runtime.log(&format!("object target {id} refuses {} evicted clients", owed.len()));
    }
}

/// Has the target destroy the objects of files that are gone.
async fn destroy(targets: &Targets, target: &Target, session: &Session<Ost>) -> Result<(), Fault> {
    let (runtime, id) = (&targets.runtime, target.id);
    loop {
        let doomed = runtime.mfs.run(Cost::READ, |txn| txn.space().doomed(id, DESTROY_MAX)).await;
        let doomed: Vec<ObjectId> =
            runtime.checked(doomed, "reading the doomed objects").ok_or(Fault::Io)?.0;
        if doomed.is_empty() {
            return Ok(());
        }
        // A crash must not bring back a file whose object is gone.
        runtime
            .checked(runtime.mfs.sync().await, "before objects are destroyed")
            .ok_or(Fault::Io)?;
        let may = targets.own_capability().ok_or(Fault::AccessDenied)?;
        let reply = session.call(call(vec![Op::Destroy { may, objects: doomed.clone() }])).await?;
        match result(&reply, 0) {
            // Its clients have to come back first: it is asked again.
            Err(Fault::Busy) => return Ok(()),
            answer => _ = answer?,
        }
        for part in doomed.chunks(BATCH) {
            let gone = runtime.mfs.run(Cost::STEP, |txn| txn.space().destroyed(id, part)).await;
            runtime.checked(gone, "after objects were destroyed").ok_or(Fault::Io)?;
        }
    }
}
