//! The client's slot table: which request each slot carries, exactly once.
//!
//! Invariants:
//! - a slot carries at most one request at a time;
//! - a slot's sequence rises by one with each new request, and only then; a resend keeps it;
//! - ordinary slots are those below the number that the server granted; the client never uses
//!   the reserved ones above them for a request that a recall could have to wait for;
//! - the last reserved slot is not in the table: recovery uses it.

use types::limits::RESERVED_SLOTS;

/// Reserved slots of the table.
pub const TABLE_RESERVED: u16 = RESERVED_SLOTS - 1;

/// The kind of request that a slot is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SlotClass {
    /// Any request.
    Ordinary,
    /// Requests that complete a recall: commits, returns, space, layouts.
    Reserved,
}

/// A slot and the sequence of the request in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Ticket {
    /// Slot.
    pub slot: u16,
    /// Sequence.
    pub seq: u32,
}

#[derive(Clone, Copy, Default, Debug)]
struct Slot {
    seq: u32,
    busy: bool,
}

/// All slots of one session.
#[derive(Debug)]
pub struct SlotTable {
    ordinary: u16,
    slots: Vec<Slot>,
    free_ordinary: Vec<u16>,
    free_reserved: Vec<u16>,
}

impl SlotTable {
    /// The table of a new session with `ordinary` ordinary slots (at least one).
    pub fn new(ordinary: u16) -> SlotTable {
        let ordinary = ordinary.clamp(1, u16::MAX - RESERVED_SLOTS - 1);
        let total = ordinary + TABLE_RESERVED;
        SlotTable {
            ordinary,
            slots: vec![Slot::default(); usize::from(total)],
            free_ordinary: (0..ordinary).rev().collect(),
            free_reserved: (ordinary..total).rev().collect(),
        }
    }

    /// Ordinary slots.
    pub fn ordinary(&self) -> u16 {
        self.ordinary
    }

    /// The slot of recovery traffic, outside the table.
    pub fn recovery_slot(&self) -> u16 {
        self.ordinary + TABLE_RESERVED
    }

    /// Takes a free slot for a new request; `None`: all are busy. The slot freed last comes first,
    /// so that a server keeps few replies for a quiet client.
    pub fn take(&mut self, class: SlotClass) -> Option<Ticket> {
        let slot = match class {
            SlotClass::Ordinary => self.free_ordinary.pop()?,
            SlotClass::Reserved => self.free_reserved.pop()?,
        };
        let entry = &mut self.slots[usize::from(slot)];
        entry.busy = true;
        entry.seq = entry.seq.wrapping_add(1);
        Some(Ticket { slot, seq: entry.seq })
    }

    /// Cancels the request with this ticket. It must never have been sent.
    pub fn withdraw(&mut self, ticket: Ticket) {
        if self.answered(ticket) {
            let entry = &mut self.slots[usize::from(ticket.slot)];
            entry.seq = entry.seq.wrapping_sub(1);
        }
    }

    /// A reply with this ticket came. True if it answers the slot's current request: the slot is
    /// free then. False if it answers an older one (a reply to a resend).
    pub fn answered(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.slots.get_mut(usize::from(ticket.slot)) else { return false };
        if !entry.busy || entry.seq != ticket.seq {
            return false;
        }
        entry.busy = false;
        if ticket.slot < self.ordinary {
            self.free_ordinary.push(ticket.slot);
        } else {
            self.free_reserved.push(ticket.slot);
        }
        true
    }

    /// Requests that are not answered yet.
    pub fn busy(&self) -> usize {
        self.slots.len() - self.free_ordinary.len() - self.free_reserved.len()
    }

    /// Checks the invariants.
    pub fn validate(&self) {
        let busy = self.slots.iter().filter(|slot| slot.busy).count();
        assert_eq!(busy, self.busy());
        assert!(self.free_ordinary.iter().all(|&slot| slot < self.ordinary));
        assert!(self.free_reserved.iter().all(|&slot| slot >= self.ordinary));
        for &slot in self.free_ordinary.iter().chain(&self.free_reserved) {
            assert!(!self.slots[usize::from(slot)].busy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_freed_only_by_the_answer_to_its_own_request() {
        let mut table = SlotTable::new(2);
        let first = table.take(SlotClass::Ordinary).unwrap();
        assert!(table.answered(first));
        assert!(!table.answered(first), "an answer counts once");
        let again = table.take(SlotClass::Ordinary).unwrap();
        assert_eq!(again, Ticket { slot: first.slot, seq: first.seq + 1 });
        assert!(!table.answered(first), "an older answer frees no slot");
        assert!(!table.answered(Ticket { slot: 900, seq: 1 }));
        table.validate();
    }

    #[test]
    fn withdrawn_request_leaves_no_gap_in_the_sequence() {
        let mut table = SlotTable::new(1);
        let first = table.take(SlotClass::Ordinary).unwrap();
        table.withdraw(first);
        table.validate();
        assert_eq!(table.take(SlotClass::Ordinary), Some(first));
        assert!(table.answered(first));
        table.withdraw(first);
        let next = table.take(SlotClass::Ordinary).unwrap();
        assert_eq!(next.seq, first.seq + 1, "an answered request cannot be withdrawn");
    }

    #[test]
    fn ordinary_requests_never_take_reserved_slots() {
        let mut table = SlotTable::new(3);
        for _ in 0..3 {
            assert!(table.take(SlotClass::Ordinary).unwrap().slot < 3);
        }
        assert_eq!(table.take(SlotClass::Ordinary), None);
        for _ in 0..TABLE_RESERVED {
            let slot = table.take(SlotClass::Reserved).unwrap().slot;
            assert!(slot >= 3 && slot < table.recovery_slot());
        }
        assert_eq!(table.take(SlotClass::Reserved), None);
        table.validate();
    }

    #[test]
    fn slot_table_has_one_ordinary_slot_if_the_server_grants_none() {
        let mut table = SlotTable::new(0);
        assert!(table.take(SlotClass::Ordinary).is_some());
        table.validate();
    }
}
