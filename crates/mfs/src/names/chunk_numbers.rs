//! Which chunk numbers of a shard were issued.
//!
//! Invariants:
//! - no inode number is issued twice, as long as anybody may present it. It is composed of the
//!   number of its home chunk, so that is numbered once as well;
//! - a restart of the server uses up no number: only chunks that are made do.
//!
//! There are two counters, roots 14 and 18. A transaction that makes a chunk raises one of them, so
//! what is durable is above every chunk that is durable. A crash undoes the newest transactions,
//! with the numbers of their chunks. Let D be what root 14 says after it. Lost numbers are at D or
//! above. Nobody knows those that were lost before their answer left, and of the others:
//!
//! | who may present a lost number | why it is not issued meanwhile, nor afterwards |
//! |---|---|
//! | the client that got it, as a replay | Replays end before anything new is numbered. Each raises root 14 above its number, also if it fails ([`Replays::presented`]). |
//! | another client | An answer waits until the changes of others that it depends on are durable (the reply gate): no other client got the number. |
//! | a client that did not come back | It is evicted, durably, before the replays end. From then on the server takes no number from its session. The client knows which of its inodes were lost, and refuses them itself until its kernel has a new inode of the number. |
//! | a kept reply, a frozen file, a record of any tree | It is younger than the inode in the log, so it is lost with it. |
//! | a write to a data device | It names a block, not an inode. Until the quarantine of the evicted client ends, all files count as frozen. |
//!
//! So after the replays the counter goes on at the highest of D and what was presented. The same
//! holds for the free slots of chunks that are durable: a lost creation there leaves its slot free,
//! with the reuse number that it had.
//!
//! While clients replay, some operations take a slot without a number: a link, a rename, the move
//! of an orphan. Such a slot must not be one that a later replay names, and the server cannot know
//! which these are. So these operations use *annexes*: chunks in which no inode has its home, ever.
//! No replay names a slot there, whatever was lost, so a directory uses its annexes again at the
//! next restart. An annex that is lost was known to nobody. Outside of replays names use free
//! slots of any chunk. Name maps are numbered as annexes, for they issue no inode number either,
//! and a replay may make one.

use types::{DirNo, Fault};

use super::view::Names;
use crate::format::number::{ANNEX_FIRST, is_annex};
use crate::trees::{ANNEXES, NEXT_CHUNK};
use engine::error::Stop;

/// Most chunks whose creation a crash can undo: more than fit in the part of the log that is not
/// durable. A replay that names a chunk further ahead names one that was never issued.
const LOST_CHUNKS_MAX: u64 = 1 << 17;

/// The numbers of a shard that were issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkNumbers {
    /// The next number of an ordinary chunk (root 14).
    pub next: u64,
    /// How many annexes were numbered (root 18).
    pub annexes: u64,
}

impl ChunkNumbers {
    /// Issues the number of an ordinary chunk.
    ///
    /// # Errors
    /// `NoNumbers` if they are used up.
    pub fn ordinary(&mut self) -> Result<u32, Fault> {
        let number = u32::try_from(self.next).ok().filter(|&number| number < ANNEX_FIRST);
        let number = number.ok_or(Fault::NoNumbers)?;
        self.next += 1;
        Ok(number)
    }

    /// Issues the number of an annex.
    ///
    /// # Errors
    /// `NoNumbers` if they are used up.
    pub fn annex(&mut self) -> Result<u32, Fault> {
        let number = self.annexes.saturating_add(u64::from(ANNEX_FIRST));
        let number = u32::try_from(number).map_err(|_| Fault::NoNumbers)?;
        self.annexes += 1;
        Ok(number)
    }

    /// A replay presents the number of an ordinary chunk.
    ///
    /// # Errors
    /// `Stale` if no server can have issued it.
    pub fn present(&mut self, number: u32) -> Result<(), Fault> {
        let ahead = u64::from(number).saturating_sub(self.next);
        if number == 0 || number >= ANNEX_FIRST || ahead >= LOST_CHUNKS_MAX {
            return Err(Fault::Stale);
        }
        self.note(number);
        Ok(())
    }

    /// Was this number issued?
    pub fn has(&self, number: u32) -> bool {
        match number.checked_sub(ANNEX_FIRST) {
            Some(annex) => u64::from(annex) < self.annexes,
            None => u64::from(number) < self.next,
        }
    }

    /// There is a chunk of this number.
    pub fn note(&mut self, number: u32) {
        match number.checked_sub(ANNEX_FIRST) {
            Some(annex) => self.annexes = self.annexes.max(u64::from(annex) + 1),
            None => self.next = self.next.max(u64::from(number) + 1),
        }
    }
}

/// The replays after a restart.
#[derive(Default, Debug)]
pub struct Replays {
    /// Clients replay what the server lost, each in its own order.
    pub running: bool,
    /// The highest ordinary number that one of them presented, whether it succeeded or not.
    pub presented: u32,
}

impl Names<'_, '_> {
    /// The chunk numbers of this shard that were issued.
    pub(crate) fn chunk_numbers(&self) -> Result<ChunkNumbers, Stop> {
        Ok(ChunkNumbers { next: self.txn.root(NEXT_CHUNK)?, annexes: self.txn.root(ANNEXES)? })
    }

    /// Sets them.
    pub(crate) fn set_chunk_numbers(&mut self, numbers: ChunkNumbers) -> Result<(), Stop> {
        let before = self.chunk_numbers()?;
        if numbers.next != before.next {
            self.txn.set_root(NEXT_CHUNK, numbers.next)?;
        }
        if numbers.annexes != before.annexes {
            self.txn.set_root(ANNEXES, numbers.annexes)?;
        }
        Ok(())
    }

    /// Issues the number of an ordinary chunk, or of an annex.
    ///
    /// # Errors
    /// `NoNumbers` if they are used up.
    pub(crate) fn new_chunk_number(&mut self, annex: bool) -> Result<DirNo, Stop> {
        let mut numbers = self.chunk_numbers()?;
        let number = if annex { numbers.annex() } else { numbers.ordinary() };
        let number = DirNo::of(self.txn.shard(), number.map_err(Stop::Fault)?);
        self.set_chunk_numbers(numbers)?;
        Ok(number)
    }

    /// A replay names a slot of this ordinary chunk, which is not there.
    ///
    /// # Errors
    /// `Stale` if this shard cannot have issued the number.
    pub(crate) fn present_chunk(&mut self, chunk: DirNo) -> Result<(), Stop> {
        let mut numbers = self.chunk_numbers()?;
        if chunk.shard() != self.txn.shard() || is_annex(chunk) {
            return Err(Stop::Fault(Fault::Stale));
        }
        numbers.present(chunk.number()).map_err(Stop::Fault)?;
        let replays = &mut self.txn.volatile_mut().replays;
        replays.presented = replays.presented.max(chunk.number());
        self.set_chunk_numbers(numbers)
    }

    /// Clients will replay what the server lost. Until [`Names::end_replays`], an operation that
    /// takes a slot without naming it takes one of an annex. Nothing may be created anew.
    pub fn begin_replays(&mut self) {
        self.txn.on_commit(|volatile, _| volatile.replays.running = true);
    }

    /// All replays are done, and those that did not come are evicted durably.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn end_replays(&mut self) -> Result<(), Stop> {
        let mut numbers = self.chunk_numbers()?;
        numbers.note(self.txn.volatile().replays.presented);
        self.set_chunk_numbers(numbers)?;
        self.txn.on_commit(|volatile, _| volatile.replays = Replays::default());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use env::sim::SimRng;

    use super::*;

    const RESTARTS: u64 = 1_000_000;

    /// Who may present a number.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Owner {
        Nobody,
        /// Its chunk is durable.
        Everybody,
        /// Its chunk was lost, and this client has a number of an inode in it.
        Client(u8),
    }

    /// What a server numbered since the last flush of the log.
    struct Undurable {
        durable: ChunkNumbers,
        made: Vec<(u32, u8)>,
    }

    struct Shard {
        numbers: ChunkNumbers,
        owners: Vec<Owner>,
        undurable: Undurable,
    }

    impl Shard {
        fn new() -> Shard {
            let numbers = ChunkNumbers { next: 1, annexes: 0 };
            let undurable = Undurable { durable: numbers, made: Vec::new() };
            Shard { numbers, owners: vec![Owner::Everybody], undurable }
        }

        /// A client makes a chunk, and an inode in it.
        fn make(&mut self, client: u8) {
            let number = self.numbers.ordinary().unwrap();
            self.own(number, client);
        }

        fn own(&mut self, number: u32, client: u8) {
            let at = number as usize;
            if self.owners.len() <= at {
                self.owners.resize(at + 1, Owner::Nobody);
            }
            let free = [Owner::Nobody, Owner::Client(client)].contains(&self.owners[at]);
            assert!(
                free,
                "{number} is given to client {client}, {:?} may present it",
                self.owners[at]
            );
            self.owners[at] = Owner::Client(client);
            self.undurable.made.push((number, client));
        }

        fn flush(&mut self) {
            for (number, _) in self.undurable.made.drain(..) {
                self.owners[number as usize] = Owner::Everybody;
            }
            self.undurable.durable = self.numbers;
        }

        /// The server ends; returns the lost chunks.
        fn crash(&mut self) -> Vec<(u32, u8)> {
            self.numbers = self.undurable.durable;
            std::mem::take(&mut self.undurable.made)
        }
    }

    #[test]
    fn million_restarts_with_replays_leave_ninety_nine_percent_of_the_numbers() {
        let mut rng = SimRng::new(27);
        let mut shard = Shard::new();
        // What each client replays, in the order in which it was answered.
        let mut kept: [Vec<u32>; 3] = Default::default();
        let (mut given, mut annexed) = (0, 0);
        for _ in 0..RESTARTS {
            for (number, client) in shard.crash() {
                let list = &mut kept[usize::from(client)];
                if !list.contains(&number) {
                    list.push(number);
                }
            }
            let mut replays = Replays { running: true, presented: 0 };
            let cut_off = rng.one_in(4);
            let dead = rng.below(12) as usize;
            let mut order: Vec<usize> = (0..3).filter(|&client| client != dead).collect();
            if rng.one_in(2) {
                order.reverse();
            }
            for client in order {
                for &number in &kept[client] {
                    replays.presented = replays.presented.max(number);
                    // Some fail: there is no space, or what they need was lost with its client.
                    if !rng.one_in(5) {
                        shard.numbers.present(number).expect("it was issued");
                        shard.own(number, client as u8);
                        given += 1;
                    }
                }
                // A new directory gets a link or a renamed inode now and then.
                if rng.one_in(3) {
                    shard.numbers.annex().unwrap();
                    annexed += 1;
                }
            }
            if cut_off {
                // The next server gets all replays again.
                continue;
            }
            if dead < kept.len() {
                // It is evicted, which is durable, and has no session any more.
                shard.flush();
                for number in kept[dead].drain(..) {
                    let owner = &mut shard.owners[number as usize];
                    if *owner == Owner::Client(dead as u8) {
                        *owner = Owner::Nobody;
                    }
                }
                for list in &mut kept {
                    list.retain(|&number| shard.owners[number as usize] != Owner::Everybody);
                }
            }
            shard.numbers.note(replays.presented);
            for _ in 0..rng.below(4) {
                shard.make(rng.below(3) as u8);
            }
            if rng.one_in(2) {
                shard.flush();
                kept.iter_mut().for_each(Vec::clear);
                shard.make(rng.below(3) as u8);
            }
        }
        assert!(given > RESTARTS && annexed > RESTARTS / 3, "{given} {annexed}");
        let all = 1u64 << 32;
        let used = shard.numbers.next + shard.numbers.annexes;
        assert!(all - used >= all / 100 * 99, "{used} of {all} numbers are used");
    }

    #[test]
    fn numbers_that_are_used_up_are_refused_and_never_start_over() {
        let mut numbers = ChunkNumbers { next: u64::from(ANNEX_FIRST) - 1, annexes: 0x3fff_ffff };
        assert_eq!((numbers.ordinary(), numbers.annex()), (Ok(ANNEX_FIRST - 1), Ok(u32::MAX)));
        let last = numbers;
        assert_eq!(numbers.ordinary(), Err(Fault::NoNumbers));
        assert_eq!(numbers.annex(), Err(Fault::NoNumbers));
        assert_eq!(numbers, last);
        assert!(numbers.has(ANNEX_FIRST - 1) && numbers.has(u32::MAX));
        // Counters that a damaged block could hold.
        let mut numbers = ChunkNumbers { next: u64::MAX, annexes: u64::MAX };
        assert_eq!(numbers.ordinary(), Err(Fault::NoNumbers));
        assert_eq!(numbers.annex(), Err(Fault::NoNumbers));
    }

    #[test]
    fn replay_may_not_present_a_number_that_cannot_have_been_issued() {
        let mut numbers = ChunkNumbers { next: 10, annexes: 3 };
        let far = 10 + LOST_CHUNKS_MAX as u32;
        for number in [0, far, ANNEX_FIRST, ANNEX_FIRST + 1, u32::MAX] {
            assert_eq!(numbers.present(number), Err(Fault::Stale), "{number}");
        }
        assert_eq!(numbers, ChunkNumbers { next: 10, annexes: 3 });
        assert_eq!(numbers.present(12), Ok(()));
        assert_eq!(numbers.present(5), Ok(()));
        assert_eq!(numbers, ChunkNumbers { next: 13, annexes: 3 });
    }
}
