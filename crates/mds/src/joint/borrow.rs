//! Free space of other servers, for a server that has none left.
//!
//! Invariants:
//! - one loan is asked for at a time, and a server that has not answered is not asked again before
//!   it has;
//! - nobody waits for a server that is away, and for no answer longer than [`PATIENCE`];
//! - a loan that was granted and not heard of is the next one that is asked for.

use std::rc::Rc;

use proto::mds::{LENDING, Mds, Op, OpReply};
use proto::message::Principal;
use proto::slots::SlotClass;
use session::client::{Call, Session};
use types::{Duration, Fault};

use super::Joint;
use super::peer::Peer;
use crate::runtime::Runtime;
use crate::server::Server;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Another request may ask for a loan once this is dropped.
struct Borrowing<'a>(&'a Joint);

impl Drop for Borrowing<'_> {
    fn drop(&mut self) {
        self.0.borrowing.set(false);
        self.0.borrowed.notify_all();
    }
}

/// Asks the other servers for about `blocks` free blocks, the one with most free space first, until
/// one lends some. Waits instead if another request does so.
pub async fn borrow(server: &Rc<Server>, blocks: u64) {
    let joint = &server.joint;
    let borrowed = joint.borrowed.notified();
    if joint.borrowing.replace(true) {
        return borrowed.await;
    }
    let _borrowing = Borrowing(joint);
    for peer in lenders(server).await {
        match borrow_from(server, &peer, blocks).await {
            Ok(_) => return,
            Err(Fault::NoSpace) => {}
            Err(Fault::Invalid) => server.runtime.log(&format!(
                "no loan of the metadata server of shard {} can be entered: one of the two has \
                 older metadata than the other. Run `redbud fsck` of all servers before anything \
                 is written",
                peer.shard()
            )),
            Err(fault) => server.runtime.log(&format!(
                "the metadata server of shard {} has lent no space: {}",
                peer.shard(),
                fault.text()
            )),
        }
    }
}

/// The servers that may be asked, the one with most free space first.
async fn lenders(server: &Rc<Server>) -> Vec<Rc<Peer>> {
    let env = &server.runtime.env;
    let mut asked = Vec::new();
    for peer in server.joint.peers.values().filter(|peer| peer.may_be_asked_for_space()) {
        let (this, runtime) = (peer.clone(), server.runtime.clone());
        let free = env.spawn_join(async move { this.ask(&runtime, Op::Statfs {}).await });
        asked.push((peer.clone(), free));
    }
    let mut found = Vec::new();
    for (peer, free) in asked {
        if let Ok(OpReply::Statfs { statfs }) = free.await {
            found.push((statfs.blocks_free, peer));
        }
    }
    found.sort_by_key(|(free, peer)| (u64::MAX - free, peer.shard()));
    found.into_iter().map(|(_, peer)| peer).collect()
}

/// Gets a loan of a server, and enters it. Returns how many blocks it has.
async fn borrow_from(server: &Rc<Server>, peer: &Rc<Peer>, blocks: u64) -> Result<u64, Fault> {
    let (runtime, space, joint) = (&server.runtime, &server.space, &server.joint);
    // Until that is done nobody knows of which loans this server has heard.
    joint.none_goes_back(&runtime.env).await;
    if joint.takes_back() {
        return Err(Fault::Busy);
    }
    let sequence = space.next_loan(peer.shard()).await?;
    let ask = Op::Lend { shard: runtime.shard.0, sequence, blocks };
    match peer.ask(runtime, ask).await? {
        OpReply::Lent { zone, start, runs } => {
            let goes_back = || joint.takes_back();
            space.enter_loan(peer.shard(), sequence, (zone, start, runs), goes_back).await
        }
        _ => Err(Fault::Protocol),
    }
}

impl Peer {
    /// Is it reached, does it know loans, and has it answered the last question?
    fn may_be_asked_for_space(&self) -> bool {
        let knows =
            |session: &Rc<Session<Mds>>| session.is_connected() && session.agreed().0 >= LENDING;
        !self.is_asked.get() && self.session.borrow().as_ref().is_some_and(knows)
    }

    /// Asks the other server.
    ///
    /// # Errors
    /// `Busy`: it is away, or does not answer in time. Else its own.
    async fn ask(self: &Rc<Peer>, runtime: &Runtime, op: Op) -> Result<OpReply, Fault> {
        let session = self.session.borrow().clone().filter(|session| session.is_connected());
        let session = session.ok_or(Fault::Busy)?;
        self.is_asked.set(true);
        let this = self.clone();
        let answer = runtime.env.spawn_join(async move {
            let principal = Principal { uid: 0, gid: 0, groups: Vec::new() };
            let call = Call { ops: vec![op], principal, sync: false, class: SlotClass::Ordinary };
            let answer = session.call(call).await;
            this.is_asked.set(false);
            answer?.results.first().cloned().unwrap_or(Err(Fault::Protocol))
        });
        runtime.env.timeout(PATIENCE, answer).await.unwrap_or(Err(Fault::Busy))
    }
}
