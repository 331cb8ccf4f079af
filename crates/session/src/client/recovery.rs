//! Recovery after a restart of the server: reclaim, replay, done.
//!
//! | answered request | what happens |
//! |---|---|
//! | transno at or below `survived` | the server has it durably: dropped |
//! | above, of an earlier epoch | replayed with its results, in transno order |
//!
//! The server may have accepted the end of the recovery although its last reply was lost: it then
//! says that the session is resumed.

use std::ops::Bound;
use std::rc::Rc;

use env::sync::oneshot;
use proto::message::{OBJECT_TARGET, Peer, Principal, Replay, Reply, Request};
use proto::slots::Ticket;
use types::{Bug, Fault, ServerId, Transno, planted};

use super::{Phase, Session, SessionState, done};

/// How often a replay is sent whose content arrives with wrong checksums.
const TRIES: u32 = 3;

/// The connection was lost during the recovery; the next one starts it again.
struct ConnectionLost;

impl<P: Peer> SessionState<P> {
    /// The recovery is done.
    pub(super) fn renumber(&mut self) {
        self.seen = self.seen.max(self.replay.renumber());
    }
}

impl<P: Peer> Session<P> {
    pub(super) async fn recover(self: Rc<Self>, number: u64, survived: Transno) {
        if self.try_recover(number, survived).await.is_ok() {
            let peer = match self.config.expected.server {
                ServerId::ANY => format!("the {}", P::NAME),
                server => format!("{} {server}", P::NAME),
            };
            self.log(&format!("{peer} restarted; everything it had lost was replayed"));
            self.resend();
        }
    }

    async fn try_recover(&self, number: u64, survived: Transno) -> Result<(), ConnectionLost> {
        let unanswered = self.state.borrow_mut().recovery_unanswered.take();
        if let Some(request) = unanswered {
            // From an interrupted recovery with this server: its slot must not skip it.
            let last = request.ops == [P::recovered()];
            self.recovery_request(number, request).await?;
            if last {
                self.state.borrow_mut().renumber();
                return Ok(());
            }
        }
        self.reclaim_held(number).await?;
        let epoch = {
            let mut state = self.state.borrow_mut();
            self.note_committed(&mut state, survived);
            state.epoch
        };
        let (mut after, mut before) = (survived, Bound::Unbounded);
        loop {
            let next = {
                let state = self.state.borrow();
                let mut left = state.replay.between(after, before);
                let next = if planted(Bug::ReplayOutOfOrder) {
                    left.rfind(|(transno, _)| transno.epoch < epoch)
                } else {
                    left.next().filter(|(transno, _)| transno.epoch < epoch)
                };
                next.map(|(transno, entry)| (transno, entry.request.clone(), entry.reply.clone()))
            };
            let skips = planted(Bug::ReplaySkipped)
                || P::ROLE == OBJECT_TARGET && planted(Bug::TargetReplaySkipped);
            let Some((transno, request, reply)) = next.filter(|_| !skips) else { break };
            match planted(Bug::ReplayOutOfOrder) {
                true => before = Bound::Excluded(transno),
                false => after = transno,
            }
            self.replay(number, transno, &request, reply).await?;
        }
        self.recovery_call(number, vec![P::recovered()]).await?;
        self.state.borrow_mut().renumber();
        Ok(())
    }

    async fn reclaim_held(&self, number: u64) -> Result<(), ConnectionLost> {
        let (server, epoch) = {
            let state = self.state.borrow();
            (state.server, state.epoch)
        };
        let reclaims = self.events().map_or_else(Vec::new, |events| events.reclaim(server, epoch));
        for op in reclaims {
            let reply = self.recovery_call(number, vec![op]).await?;
            if let Err(fault) = done(&reply) {
                self.log(&format!("the {} refused a reclaim: {fault}", P::NAME));
            }
        }
        Ok(())
    }

    async fn replay(
        &self,
        number: u64,
        transno: Transno,
        request: &Request<P>,
        was: Rc<Reply<P>>,
    ) -> Result<(), ConnectionLost> {
        let replay = Request {
            replay: Some(Replay { transno, results: was.results.clone() }),
            ..request.clone()
        };
        let mut reply = self.recovery_request(number, replay.clone()).await?;
        for _ in 1..TRIES {
            // Content that was right when it was answered has changed on the way.
            if !reply.results.contains(&Err(Fault::Corrupt)) || was.results == reply.results {
                break;
            }
            reply = self.recovery_request(number, replay.clone()).await?;
        }
        let repeated = reply.results.len() == was.results.len()
            && reply.results.iter().zip(&was.results).all(|(new, old)| new.is_ok() == old.is_ok());
        if !repeated {
            self.log(&unrepeatable(transno, request, &was, &reply));
            if let Some(events) = self.events() {
                events.not_repeated(request);
            }
        }
        self.state.borrow_mut().replay.replayed(transno, reply.transno);
        Ok(())
    }

    async fn recovery_call(
        &self,
        number: u64,
        ops: Vec<P::Op>,
    ) -> Result<Reply<P>, ConnectionLost> {
        let ticket = {
            let mut state = self.state.borrow_mut();
            state.recovery_seq = state.recovery_seq.wrapping_add(1);
            Ticket { slot: state.slots.recovery_slot(), seq: state.recovery_seq }
        };
        let request = Request {
            slot: ticket.slot,
            seq: ticket.seq,
            principal: Principal { uid: 0, gid: 0, groups: Vec::new() },
            sync: false,
            replay: None,
            ops,
        };
        self.recovery_request(number, request).await
    }

    async fn recovery_request(
        &self,
        number: u64,
        request: Request<P>,
    ) -> Result<Reply<P>, ConnectionLost> {
        let (sent, receiver) = {
            let mut state = self.state.borrow_mut();
            if state.connection != number || state.phase != Phase::Recovering {
                return Err(ConnectionLost);
            }
            let ticket = Ticket { slot: request.slot, seq: request.seq };
            // The reply may be to the request on the previous connection.
            let before = state.recovery_sent.filter(|(known, _)| *known == ticket);
            let sent = before.map_or(self.env.now(), |(_, sent)| sent);
            state.recovery_sent = Some((ticket, sent));
            let timer = state.liveness.timer(self.env.now());
            state.recovery_timer = Some(timer);
            self.look_at(&mut state, timer.ends());
            let (sender, receiver) = oneshot();
            state.recovery = Some((ticket, sender));
            let request = self.enqueue(&mut state, request);
            // The server recognises a replay by its transno wherever it is resent.
            state.recovery_unanswered = Some(request).filter(|request| request.replay.is_none());
            (sent, receiver)
        };
        let reply = receiver.await.ok_or(ConnectionLost)?;
        let mut state = self.state.borrow_mut();
        // The session may have been lost since the reply came.
        if state.connection != number || state.has_no_session() {
            return Err(ConnectionLost);
        }
        (state.recovery_unanswered, state.recovery_timer) = (None, None);
        state.extend_lease(sent);
        Ok(reply)
    }
}

/// Says which operation of a request could not be repeated, for the log.
fn unrepeatable<P: Peer>(
    transno: Transno,
    request: &Request<P>,
    was: &Reply<P>,
    is: &Reply<P>,
) -> String {
    let new = is.results.iter().map(Some).chain(std::iter::repeat(None));
    for ((op, old), new) in request.ops.iter().zip(&was.results).zip(new) {
        let fault = match new {
            Some(Ok(_)) if old.is_ok() => continue,
            Some(Err(fault)) if old == &Err(*fault) => continue,
            Some(Err(fault)) => fault.text(),
            Some(Ok(_)) => "it succeeded this time",
            None => "it was not executed",
        };
        let mut text = format!("{op:?}");
        text.truncate(text.char_indices().nth(160).map_or(text.len(), |(at, _)| at));
        return format!(
            "after the server's restart, {text} ({transno}) could not be repeated: {fault}"
        );
    }
    format!("after the server's restart, request {transno} could not be repeated")
}
