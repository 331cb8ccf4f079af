//! Room at a target for bytes that this client has accepted, or will accept soon.
//!
//! A target keeps free blocks for each client (`ost/src/store/promises.rs`). A write takes some of
//! them before it is accepted, for each block that the target may not have yet. They stay with the
//! bytes, as dirty data and in flight, and are spent when the target has answered. What is left is
//! ahead of the next writes, and goes back when it was not used for a while.
//!
//! Invariants:
//! - `taken` is the sum of the [`Room`] that accepted bytes hold. It is within `granted`, but after
//!   a target has forgotten this client;
//! - one request for room is on its way at most. Until it is answered, each statement counts all
//!   that it may bring: a target that has answered it keeps it.

use std::cell::Cell;
use std::rc::Rc;

use env::sync::Notify;
use proto::ost::Statement;
use types::PagId;

/// Blocks that are asked for at once: 4 MiB.
const AHEAD: u64 = 1024;

#[derive(Clone, Copy, Default)]
struct State {
    /// Blocks that the target keeps for this client.
    granted: u64,
    /// Those of them that accepted bytes need.
    taken: u64,
    /// Blocks that a request on its way asks for.
    asked: Option<u64>,
    /// The number of the last statement.
    number: u64,
    /// What the target may count at most, by that statement.
    stated: u64,
    /// Room was taken since the last look.
    used: bool,
    /// The target had not all that was wanted: nothing is asked for ahead.
    scarce: bool,
}

/// The room at one target.
#[derive(Default)]
pub(super) struct TargetRoom {
    state: Cell<State>,
    /// Notified when a request for room has ended.
    pub answered: Notify,
    /// Notified when accepted bytes have less room: it was spent, or is free again. A request that
    /// ends is no such news: those who wait for it would have each other refused in turns.
    pub freed: Notify,
}

/// A request for room; it has ended when the value is dropped.
pub(super) struct Asking {
    of: Rc<TargetRoom>,
    pub said: Statement,
    pub needed: u64,
    pub wanted: u64,
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.of.update(|state| state.asked = None);
        self.of.answered.notify_all();
    }
}

impl Asking {
    /// The target gives so many blocks.
    pub fn granted(&self, blocks: u64) {
        self.of.update(|state| {
            state.granted += blocks;
            state.scarce = blocks < self.wanted;
        });
    }

    /// The target has not so many as are needed.
    pub fn refused(&self) {
        self.of.update(|state| state.scarce = true);
    }
}

impl TargetRoom {
    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.get();
        let result = change(&mut state);
        self.state.set(state);
        result
    }

    /// Takes room for `blocks` blocks of zone `pag`, if so much is granted.
    pub fn take(self: &Rc<Self>, pag: PagId, blocks: u64) -> Option<Room> {
        let taken = self.update(|state| {
            let fits = state.taken + blocks <= state.granted;
            if fits {
                state.taken += blocks;
                state.used = true;
            }
            fits
        });
        taken.then(|| Room { parts: vec![Part { of: self.clone(), pag, blocks }] })
    }

    /// Begins a request for room for `blocks` more blocks; `None` while another one is on its way.
    pub fn ask(self: &Rc<Self>, blocks: u64) -> Option<Asking> {
        self.update(|state| {
            if state.asked.is_some() {
                return None;
            }
            let needed = (state.taken + blocks).saturating_sub(state.granted);
            let wanted = needed.max(AHEAD);
            state.asked = Some(wanted);
            state.number += 1;
            let said = Statement { number: state.number, blocks: state.granted, asked: 0 };
            state.stated = state.granted + wanted;
            Some(Asking { of: self.clone(), said, needed, wanted })
        })
    }

    /// Begins a request ahead of the need, if little is left and the target has enough.
    pub fn ask_ahead(self: &Rc<Self>) -> Option<Asking> {
        let state = self.state.get();
        let left = state.granted.saturating_sub(state.taken);
        if state.scarce || left >= AHEAD / 2 { None } else { self.ask(0) }
    }

    /// What a write says that spends `blocks`.
    pub fn statement(&self, blocks: u64) -> Statement {
        self.update(|state| {
            state.number += 1;
            let left = state.granted.saturating_sub(blocks);
            let asked = state.asked.unwrap_or(0);
            state.stated = left + asked;
            Statement { number: state.number, blocks: left, asked }
        })
    }

    /// The statement to a target that was restarted: it has not answered the request on its way.
    pub fn statement_anew(&self) -> Statement {
        Statement { asked: 0, ..self.statement(0) }
    }

    /// The target has forgotten this client.
    pub fn forget(&self) {
        self.update(|state| state.granted = 0);
    }

    /// Gives up what was not used since the last look; the statement that says so.
    pub fn give_back(&self) -> Option<Statement> {
        let gives = self.update(|state| {
            state.scarce = false;
            let used = std::mem::take(&mut state.used);
            let gives =
                !used && state.asked.is_none() && state.granted.max(state.stated) > state.taken;
            if gives {
                state.granted = state.granted.min(state.taken);
            }
            gives
        });
        gives.then(|| self.statement(0))
    }

    /// Wakes all who wait: the caller of one of them is gone, or the session ends.
    pub fn wake_all(&self) {
        self.answered.notify_all();
        self.freed.notify_all();
    }

    /// The target is short of room: gives up all that accepted bytes do not need, and asks for
    /// nothing ahead for a while. Returns the statement that says so.
    pub fn give_all_back(&self) -> Statement {
        self.update(|state| {
            state.scarce = true;
            state.granted = state.granted.min(state.taken);
        });
        self.statement(0)
    }

    /// Blocks that are granted, and those of them that accepted bytes need.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.get();
        (state.granted, state.taken)
    }
}

struct Part {
    of: Rc<TargetRoom>,
    pag: PagId,
    blocks: u64,
}

/// Room for accepted bytes, at any targets; given back when dropped.
#[derive(Default)]
pub(super) struct Room {
    parts: Vec<Part>,
}

impl Drop for Part {
    fn drop(&mut self) {
        let blocks = self.blocks;
        if blocks > 0 {
            self.of.update(|state| state.taken -= blocks);
            self.of.freed.notify_all();
        }
    }
}

impl Room {
    /// Blocks at the target that is zone `pag`.
    pub fn at(&self, pag: PagId) -> u64 {
        self.parts.iter().filter(|part| part.pag == pag).map(|part| part.blocks).sum()
    }

    /// Is it no room at all?
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(|part| part.blocks == 0)
    }

    /// How much more is needed at which target.
    pub fn lacks(&self, needs: &Needs) -> Needs {
        let lack = |&(pag, blocks): &(PagId, u64)| (pag, blocks.saturating_sub(self.at(pag)));
        Needs(needs.0.iter().map(lack).filter(|(_, blocks)| *blocks > 0).collect())
    }

    /// Splits off what is needed, as far as it is there.
    pub fn split(&mut self, needs: &Needs) -> Room {
        let mut parts = Vec::new();
        for &(pag, needed) in &needs.0 {
            let mut left = needed;
            for part in self.parts.iter_mut().filter(|part| part.pag == pag) {
                let blocks = left.min(part.blocks);
                if blocks > 0 {
                    part.blocks -= blocks;
                    left -= blocks;
                    parts.push(Part { of: part.of.clone(), pag, blocks });
                }
            }
        }
        self.parts.retain(|part| part.blocks > 0);
        Room { parts }
    }

    /// Adds `other`.
    pub fn merge(&mut self, other: Room) {
        for mut part in other.parts {
            let same = |own: &&mut Part| own.pag == part.pag && Rc::ptr_eq(&own.of, &part.of);
            match self.parts.iter_mut().find(same) {
                Some(own) => own.blocks += std::mem::take(&mut part.blocks),
                None => self.parts.push(part),
            }
        }
    }

    /// The target has answered the write: the room is spent. If the write has failed, the target
    /// may keep more than this client counts, until the next statement.
    pub fn spend(self) {
        for part in &self.parts {
            part.of.update(|state| state.granted = state.granted.saturating_sub(part.blocks));
        }
    }
}

/// Blocks that a write needs at targets.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Needs(pub Vec<(PagId, u64)>);

impl Needs {
    /// Is nothing needed?
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, blocks)| *blocks == 0)
    }

    /// So many blocks more at this target.
    pub fn add(&mut self, pag: PagId, blocks: u64) {
        match self.0.iter_mut().find(|(at, _)| *at == pag) {
            Some((_, sum)) => *sum += blocks,
            None => self.0.push((pag, blocks)),
        }
    }

    /// All of `others` more.
    pub fn add_all(&mut self, others: &Needs) {
        others.0.iter().for_each(|&(pag, blocks)| self.add(pag, blocks));
    }

    /// All of `others` less; they are contained.
    pub fn remove_all(&mut self, others: &Needs) {
        for &(pag, blocks) in &others.0 {
            if let Some((_, sum)) = self.0.iter_mut().find(|(at, _)| *at == pag) {
                *sum -= blocks;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PagId = PagId(1);
    const B: PagId = PagId(2);

    fn granted(blocks: u64) -> Rc<TargetRoom> {
        let room = Rc::new(TargetRoom::default());
        room.ask(blocks).unwrap().granted(blocks);
        room
    }

    #[test]
    fn room_that_is_dropped_is_free_again_and_room_that_is_spent_is_not() {
        let target = granted(10);
        let mut room = target.take(A, 8).unwrap();
        assert!(target.take(A, 3).is_none());
        let part = room.split(&Needs(vec![(A, 5), (B, 2)]));
        assert_eq!((room.at(A), part.at(A), part.at(B)), (3, 5, 0));
        drop(room);
        assert_eq!(target.counts(), (10, 5));
        assert_eq!(target.statement(5).blocks, 5);
        part.spend();
        assert_eq!(target.counts(), (5, 0));
    }

    #[test]
    fn merged_room_knows_what_it_lacks_at_each_target() {
        let (a, b) = (granted(10), granted(10));
        let mut room = a.take(A, 2).unwrap();
        room.merge(a.take(A, 1).unwrap());
        room.merge(b.take(B, 4).unwrap());
        let mut needs = Needs(vec![(A, 5)]);
        needs.add(B, 3);
        assert_eq!(room.lacks(&needs), Needs(vec![(A, 2)]));
        needs.remove_all(&Needs(vec![(A, 2)]));
        assert!(room.lacks(&needs).is_empty());
        drop(room);
        assert_eq!((a.counts(), b.counts()), ((10, 0), (10, 0)));
    }

    #[test]
    fn statement_counts_what_is_asked_for_until_the_answer_is_there() {
        let target = granted(4);
        let asking = target.ask(10).unwrap();
        assert_eq!((asking.needed, asking.wanted), (6, AHEAD));
        assert!(target.ask(1).is_none());
        let said = target.statement(1);
        assert_eq!((said.blocks, said.asked), (3, AHEAD));
        let anew = target.statement_anew();
        assert_eq!((anew.blocks, anew.asked, anew.number), (4, 0, said.number + 1));
        asking.refused();
        drop(asking);
        assert_eq!(target.statement(1).asked, 0);
        assert!(target.ask_ahead().is_none(), "the target has little");
    }

    #[test]
    fn what_the_last_statements_left_too_high_is_corrected_when_the_client_is_idle() {
        let target = granted(10);
        let mut room = target.take(A, 10).unwrap();
        let (first, second) = (room.split(&Needs(vec![(A, 5)])), room);
        target.statement(first.at(A));
        let last = target.statement(second.at(A));
        first.spend();
        second.spend();
        assert_eq!((last.blocks, target.counts()), (5, (0, 0)), "each counts the other one");
        assert!(target.give_back().is_none(), "it was used");
        assert_eq!(target.give_back().unwrap().blocks, 0);
        assert!(target.give_back().is_none());
    }

    #[test]
    fn room_ahead_is_given_back_at_once_to_a_target_that_is_short() {
        let target = granted(10);
        let room = target.take(A, 4).unwrap();
        assert_eq!(target.give_all_back().blocks, 4);
        assert_eq!(target.counts(), (4, 4));
        assert!(target.take(A, 1).is_none() && target.ask_ahead().is_none());
        drop(room);
        // A request on its way may bring what it asks for.
        let asking = target.ask(6).unwrap();
        assert_eq!((asking.needed, target.give_all_back().blocks), (2, 0));
        asking.granted(2);
        drop(asking);
        assert_eq!(target.counts(), (2, 0));
        assert_eq!(target.ask(6).unwrap().needed, 4, "it asks for the rest");
    }

    #[test]
    fn unused_room_is_given_back_at_the_second_look() {
        let target = granted(10);
        let room = target.take(A, 4).unwrap();
        assert!(target.give_back().is_none());
        assert_eq!(target.give_back().unwrap().blocks, 4);
        assert!(target.give_back().is_none());
        target.forget();
        drop(room);
        assert_eq!(target.counts(), (0, 0));
        assert_eq!(target.ask(3).unwrap().needed, 3);
    }
}
