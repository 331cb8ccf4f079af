//! The server's account of who holds which rights on which inode.
//!
//! Invariants:
//! - two clients never hold conflicting rights on one inode ([`Rights::conflicts`]);
//! - a lease's sequence is raised by every grant that adds a right, by every grant of content that
//!   its client asked for, and by every recall, and never repeats, not even over a restart (the
//!   epoch stands above it);
//! - while rights of a client on an inode are asked back, it is granted nothing
//!   more there but `OPEN`, with which the recall is made anew: so a return that names the recall's
//!   sequence knows every grant;
//! - a return made in ignorance of a later grant or recall changes nothing, and says so;
//! - who holds `DATA_P` holds at least one part, and no right on the whole content; parts of two
//!   clients overlap only where both are shared.
//!
//! The table decides and remembers; who waits for what, and for how long, is its
//! user's business.

use std::collections::BinaryHeap;

use types::{BlockRange, Bug, ClientId, Epoch, HashMap, Ino, Rights, planted};

use self::parts::Holding;

mod parts;

/// A recall to be pushed to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recall {
    /// Whose lease.
    pub client: ClientId,
    /// On what.
    pub ino: Ino,
    /// The lease's sequence, raised by this recall.
    pub seq: u64,
    /// Rights to give up.
    pub take: Rights,
    /// Of `DATA_P` only these blocks.
    pub part: Option<BlockRange>,
}

/// What replies tell a client of its lease. Rights that are asked back are among
/// them until they are returned: the client knows by the sequence what it gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Rights.
    pub rights: Rights,
    /// Sequence of the lease.
    pub seq: u64,
}

#[derive(Clone, Copy, Debug)]
struct Holder {
    client: ClientId,
    seq: u64,
    rights: Rights,
    asked: Rights,
    /// It has answered a recall of `OPEN` that it has the inode open, and gives it back when it has
    /// not.
    owes_open: bool,
}

impl Holder {
    /// Rights that others must do without what conflicts with: also those that are asked back.
    fn excluding(&self) -> Rights {
        if planted(Bug::RightsGivenTwice) { self.rights - self.asked } else { self.rights }
    }
}

/// Nearly every inode has one holder; it lies in the map itself.
#[derive(Clone, Debug)]
struct Holders {
    first: Holder,
    more: Vec<Holder>,
}

impl Holders {
    fn iter(&self) -> impl Iterator<Item = &Holder> {
        std::iter::once(&self.first).chain(&self.more)
    }

    fn get(&self, client: ClientId) -> Option<&Holder> {
        self.iter().find(|holder| holder.client == client)
    }

    fn get_mut(&mut self, client: ClientId) -> Option<&mut Holder> {
        std::iter::once(&mut self.first).chain(&mut self.more).find(|h| h.client == client)
    }
}

/// The sequence of what is reclaimed when `epoch` has begun: above all of earlier epochs, below
/// every grant. An epoch has 2^40 sequences (four months at 100,000 grants a second), and there may
/// be 2^24 epochs.
pub fn first_seq(epoch: Epoch) -> u64 {
    u64::from(epoch.0) << 40
}

/// All leases of one server.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    /// See [`first_seq`].
    first_seq: u64,
    inodes: HashMap<Ino, Holders>,
    /// Who holds parts of an inode, and which.
    parts: HashMap<Ino, Vec<Holding>>,
    /// Leases by client; no entry means none.
    counts: HashMap<ClientId, usize>,
    total: usize,
    last_seq: u64,
}

impl LeaseTable {
    /// An empty table; sequences start above those of all earlier epochs.
    pub fn new(epoch: Epoch) -> LeaseTable {
        LeaseTable {
            inodes: HashMap::default(),
            parts: HashMap::default(),
            counts: HashMap::default(),
            total: 0,
            first_seq: first_seq(epoch),
            last_seq: first_seq(epoch),
        }
    }

    /// Leases in the table.
    pub fn len(&self) -> usize {
        self.total
    }

    /// Has nobody a lease?
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Leases of `client`.
    pub fn count(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// Rights of `client` on `ino` as the server counts: also those that are asked back.
    pub fn rights(&self, client: ClientId, ino: Ino) -> Rights {
        self.holder(client, ino).map_or(Rights::empty(), |holder| holder.rights)
    }

    /// The lease of `client` as replies tell it.
    pub fn held(&self, client: ClientId, ino: Ino) -> Held {
        self.holder(client, ino)
            .map_or(Held::default(), |holder| Held { rights: holder.rights, seq: holder.seq })
    }

    /// Everything that clients other than `client` hold on `ino`.
    pub fn others(&self, client: ClientId, ino: Ino) -> Rights {
        let Some(holders) = self.inodes.get(&ino) else { return Rights::empty() };
        let others = holders.iter().filter(|holder| holder.client != client);
        others.fold(Rights::empty(), |all, holder| all | holder.excluding())
    }

    /// Clients other than `client` whose answers are awaited before `take` on `ino` is free. A
    /// recall of `OPEN` is over when it is answered, also by "still open".
    pub fn awaited(&self, client: ClientId, ino: Ino, take: Rights) -> Vec<ClientId> {
        let Some(holders) = self.inodes.get(&ino) else { return Vec::new() };
        let others = holders.iter().filter(|h| {
            let open = h.asked & take & Rights::OPEN;
            let rest = (h.excluding() & take).difference(Rights::OPEN);
            h.client != client && !(open | rest).is_empty()
        });
        others.map(|holder| holder.client).collect()
    }

    /// Who holds `DATA_X` on `ino`.
    pub fn writer(&self, ino: Ino) -> Option<ClientId> {
        let holders = self.inodes.get(&ino)?;
        holders.iter().find(|h| h.rights.contains(Rights::DATA_X)).map(|h| h.client)
    }

    /// May someone know more of size and times of `ino` than the server does, `client` under
    /// `DATA_X` excepted?
    pub fn written_elsewhere(&self, client: ClientId, ino: Ino) -> bool {
        let Some(holders) = self.inodes.get(&ino) else { return false };
        holders.iter().any(|holder| {
            let mine = holder.client == client;
            holder.rights.intersects(if mine { Rights::DATA_P } else { Rights::WRITES })
        })
    }

    /// Does anyone hold one of `rights` on `ino`?
    pub fn anyone(&self, ino: Ino, rights: Rights) -> bool {
        self.inodes
            .get(&ino)
            .is_some_and(|holders| holders.iter().any(|h| h.rights.intersects(rights)))
    }

    /// The part of `want` that `client` can be given without a recall.
    pub fn grantable(&self, client: ClientId, ino: Ino, want: Rights) -> Rights {
        let Some(holders) = self.inodes.get(&ino) else { return want.closed() };
        let mut out = want.closed();
        for holder in holders.iter() {
            if holder.client == client {
                if !holder.asked.is_empty() {
                    return Rights::empty();
                }
            } else {
                out = out.difference(holder.excluding().conflicts());
            }
        }
        if out.contains(Rights::DATA_X) { out } else { out.difference(Rights::DATA_X) }
    }

    /// Gives `client` `rights` on `ino`. They must be grantable. A right on the whole content takes
    /// the place of the parts held.
    pub fn grant(&mut self, client: ClientId, ino: Ino, rights: Rights) {
        let rights = rights.closed();
        assert!(self.grantable(client, ino, rights).contains(rights), "a grant conflicts");
        if rights.is_empty() {
            return;
        }
        let seq = self.last_seq + 1;
        let fresh = Holder { client, seq, rights, asked: Rights::empty(), owes_open: false };
        match self.inodes.get_mut(&ino) {
            None => {
                self.inodes.insert(ino, Holders { first: fresh, more: Vec::new() });
            }
            Some(holders) => match holders.get_mut(client) {
                Some(holder) if holder.rights.contains(rights) => return,
                Some(holder) => {
                    let whole = rights.intersects(Rights::WHOLE);
                    let parts = whole && holder.rights.contains(Rights::DATA_P);
                    holder.owes_open &= holder.rights.contains(Rights::OPEN);
                    holder.rights |= rights;
                    holder.seq = seq;
                    self.last_seq = seq;
                    if parts {
                        holder.rights -= Rights::DATA_P;
                        self.drop_parts(client, ino);
                    }
                    return;
                }
                None => holders.more.push(fresh),
            },
        }
        self.last_seq = seq;
        self.total += 1;
        *self.counts.entry(client).or_insert(0) += 1;
    }

    /// As [`LeaseTable::grant`], to a client that asks for `rights` because it does not hold them.
    /// What it is counted to hold all the same it has not heard of, or has given up by a return
    /// that the server did not take: it is told under a new sequence, for under the last one the
    /// client may believe nothing of it.
    pub fn grant_asked(&mut self, client: ClientId, ino: Ino, rights: Rights) {
        let counted = self.rights(client, ino).contains(rights.closed());
        self.grant(client, ino, rights);
        if counted
            && !rights.is_empty()
            && let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client))
        {
            self.last_seq += 1;
            holder.seq = self.last_seq;
        }
    }

    /// `client` has found `ino` by name, and may open it next: it gets `OPEN`, also while other
    /// rights are asked back from it. These are then asked back anew: that recall is to be pushed,
    /// for a return that names the sequence of the one before does not know this grant. True if the
    /// right is new.
    pub fn grant_found(&mut self, client: ClientId, ino: Ino) -> (bool, Option<Recall>) {
        if self.rights(client, ino).contains(Rights::OPEN) {
            return (false, None);
        }
        let asked = self.holder(client, ino).map_or(Rights::empty(), |holder| holder.asked);
        if asked.is_empty() {
            self.grant(client, ino, Rights::OPEN);
            return (true, None);
        }
        let part = self.asked_part(client, ino);
        let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) else {
            return (false, None);
        };
        // One for the grant, one for the recall.
        self.last_seq += 2;
        holder.rights |= Rights::OPEN;
        holder.owes_open = false;
        holder.seq = self.last_seq;
        (true, Some(Recall { client, ino, seq: holder.seq, take: asked, part }))
    }

    /// Asks every client but `except` for `take` on `ino`. Yields the recalls to
    /// push: none for what is asked back already.
    pub fn recall(&mut self, except: ClientId, ino: Ino, take: Rights) -> Vec<Recall> {
        let Some(holders) = self.inodes.get_mut(&ino) else { return Vec::new() };
        let mut out = Vec::new();
        let mut parts = self.parts.get_mut(&ino);
        for holder in std::iter::once(&mut holders.first).chain(&mut holders.more) {
            let wanted = holder.rights & take;
            if holder.client == except {
                continue;
            }
            let mut part = None;
            let mut more = false;
            if let Some(holding) =
                parts::of(parts.as_deref_mut().map(Vec::as_mut_slice), holder.client)
            {
                if wanted.contains(Rights::DATA_P) {
                    more = holding.asked != Some(BlockRange::ALL);
                    holding.asked = Some(BlockRange::ALL);
                }
                part = holding.asked.filter(|&asked| asked != BlockRange::ALL);
            }
            if holder.asked.contains(wanted) && !more {
                continue;
            }
            self.last_seq += 1;
            holder.seq = self.last_seq;
            holder.asked |= wanted;
            let (client, seq, take) = (holder.client, holder.seq, holder.asked);
            out.push(Recall { client, ino, seq, take, part });
        }
        out
    }

    /// Recalls that `client` has not answered, to be pushed again on a new connection.
    pub fn unanswered(&self, client: ClientId) -> Vec<Recall> {
        let mut out: Vec<Recall> = Vec::new();
        for (&ino, holders) in &self.inodes {
            if let Some(h) = holders.get(client).filter(|h| !h.asked.is_empty()) {
                let part = self.asked_part(client, ino);
                out.push(Recall { client, ino, seq: h.seq, take: h.asked, part });
            }
        }
        out.sort_by_key(|recall| recall.seq);
        out
    }

    /// Is this recall still waiting for its answer?
    pub fn is_asked(&self, recall: &Recall) -> bool {
        self.holder(recall.client, recall.ino)
            .is_some_and(|h| h.seq == recall.seq && !h.asked.is_empty())
    }

    /// `client` gives up `give` on `ino`, knowing the lease up to `seq`; of `DATA_P` only `part`,
    /// if it says one. With `still_open` a recall of `OPEN` is answered and `OPEN` stays. Says
    /// whether anything changed.
    pub fn give_back(
        &mut self,
        client: ClientId,
        ino: Ino,
        seq: u64,
        give: Rights,
        still_open: bool,
        part: Option<BlockRange>,
    ) -> bool {
        let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) else {
            return false;
        };
        if seq < holder.seq && !planted(Bug::UnawareReturnTaken) {
            return false;
        }
        let mut give = give;
        if still_open {
            give = give.difference(Rights::OPEN);
            holder.asked = holder.asked.difference(Rights::OPEN);
            holder.owes_open = true;
        }
        if give.contains(Rights::DATA_S) {
            give |= Rights::DATA_X;
        }
        if give.contains(Rights::DATA_P)
            && let Some(holding) =
                parts::of(self.parts.get_mut(&ino).map(Vec::as_mut_slice), client)
        {
            let (left, asked) = holding.give(part);
            if !asked {
                holder.asked -= Rights::DATA_P;
            }
            if left {
                give -= Rights::DATA_P;
            } else {
                self.drop_parts(client, ino);
            }
        }
        let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) else {
            return false;
        };
        holder.rights = holder.rights.difference(give);
        holder.asked = holder.asked.difference(give);
        if holder.rights.is_empty() {
            self.remove(client, ino);
        }
        true
    }

    /// The sequence of the lease of `client` on `ino`, if a return that names `seq` does not know
    /// it.
    pub fn unknown_to(&self, client: ClientId, ino: Ino, seq: u64) -> Option<u64> {
        self.holder(client, ino).map(|holder| holder.seq).filter(|&last| seq < last)
    }

    /// The client with the most leases, and how many these are.
    pub fn largest(&self) -> Option<(ClientId, usize)> {
        let all = self.counts.iter().map(|(&client, &count)| (client, count));
        all.max_by_key(|&(client, count)| (count, client))
    }

    /// At most `max` leases of `client` that are not asked back: those that nothing was granted to
    /// for longest, the oldest first. Looks at all leases.
    pub fn coldest(&self, client: ClientId, max: usize) -> Vec<Ino> {
        let mut heap: BinaryHeap<(u64, Ino)> = BinaryHeap::with_capacity(max + 1);
        let holders = self.inodes.iter().filter_map(|(&ino, h)| Some((ino, h.get(client)?)));
        for (ino, holder) in holders.filter(|(_, holder)| holder.asked.is_empty()) {
            heap.push((holder.seq, ino));
            if heap.len() > max {
                heap.pop();
            }
        }
        heap.into_sorted_vec().into_iter().map(|(_, ino)| ino).collect()
    }

    /// Asks `client` alone for the part of `take` that it holds on `ino`, which is no part of the
    /// content. `None`: that is asked back already.
    pub fn recall_of(&mut self, client: ClientId, ino: Ino, take: Rights) -> Option<Recall> {
        let part = self.asked_part(client, ino);
        let holder = self.inodes.get_mut(&ino)?.get_mut(client)?;
        let wanted = holder.rights & take.difference(Rights::DATA_P);
        if holder.asked.contains(wanted) {
            return None;
        }
        self.last_seq += 1;
        holder.seq = self.last_seq;
        holder.asked |= wanted;
        Some(Recall { client, ino, seq: holder.seq, take: holder.asked, part })
    }

    /// Asks all but `except` who hold `OPEN` on `ino` for it and do not know yet that it is wanted
    /// back.
    pub fn recall_open(&mut self, except: ClientId, ino: Ino) -> Vec<Recall> {
        let Some(holders) = self.inodes.get(&ino) else { return Vec::new() };
        let unasked = holders.iter().filter(|h| !h.owes_open && h.client != except);
        let clients: Vec<ClientId> = unasked.map(|holder| holder.client).collect();
        let asked =
            clients.into_iter().filter_map(|client| self.recall_of(client, ino, Rights::OPEN));
        asked.collect()
    }

    /// Asks `client` for everything that it holds on `ino`.
    pub fn recall_all(&mut self, client: ClientId, ino: Ino) -> Option<Recall> {
        let holder = self.inodes.get_mut(&ino)?.get_mut(client)?;
        if holder.asked == holder.rights {
            return None;
        }
        self.last_seq += 1;
        holder.seq = self.last_seq;
        holder.asked = holder.rights;
        if let Some(holding) = parts::of(self.parts.get_mut(&ino).map(Vec::as_mut_slice), client) {
            holding.asked = Some(BlockRange::ALL);
        }
        Some(Recall { client, ino, seq: holder.seq, take: holder.asked, part: None })
    }

    /// Ends the lease of `client` on `ino`; yields what it held.
    pub fn drop_lease(&mut self, client: ClientId, ino: Ino) -> Rights {
        let rights = self.rights(client, ino);
        if !rights.is_empty() {
            self.remove(client, ino);
        }
        rights
    }

    /// Ends all leases on `ino`: the inode is gone.
    pub fn drop_inode(&mut self, ino: Ino) {
        self.parts.remove(&ino);
        if let Some(holders) = self.inodes.remove(&ino) {
            for holder in holders.iter() {
                self.uncount(holder.client);
            }
        }
    }

    /// Ends all leases of `client`; yields what it held, in order of inodes.
    pub fn drop_client(&mut self, client: ClientId) -> Vec<(Ino, Rights)> {
        let mut out: Vec<(Ino, Rights)> = self.of_client(client);
        out.sort_unstable_by_key(|(ino, _)| *ino);
        for &(ino, _) in &out {
            self.remove(client, ino);
        }
        out
    }

    /// What `client` holds, in no order.
    pub fn of_client(&self, client: ClientId) -> Vec<(Ino, Rights)> {
        if self.count(client) == 0 {
            return Vec::new();
        }
        let holders = self.inodes.iter();
        holders.filter_map(|(&ino, h)| h.get(client).map(|h| (ino, h.rights))).collect()
    }

    /// Every lease: what its client counts as holding, also what is asked back, in no order.
    pub fn all(&self) -> impl Iterator<Item = (Ino, ClientId, Rights)> {
        self.inodes.iter().flat_map(|(&ino, holders)| {
            holders.iter().map(move |holder| (ino, holder.client, holder.rights))
        })
    }

    /// Puts a lease back that `client` held before the server's restart, without its parts. Yields
    /// the rights that another client has claimed first; the others are given. The client knows
    /// their sequence ([`first_seq`]): a return that it made under an earlier epoch changes
    /// nothing.
    pub fn reclaim(&mut self, client: ClientId, ino: Ino, rights: Rights) -> Rights {
        let rights = rights - Rights::DATA_P;
        let given = self.grantable(client, ino, rights);
        self.grant(client, ino, given);
        if let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) {
            holder.seq = self.first_seq;
        }
        rights.closed().difference(given)
    }

    /// Panics if an invariant does not hold.
    pub fn validate(&self) {
        let mut total = 0;
        let mut counts: HashMap<ClientId, usize> = HashMap::default();
        for holders in self.inodes.values() {
            for (index, holder) in holders.iter().enumerate() {
                total += 1;
                *counts.entry(holder.client).or_insert(0) += 1;
                assert!(!holder.rights.is_empty(), "an empty lease is kept");
                assert_eq!(holder.rights, holder.rights.closed());
                assert!(holder.rights.contains(holder.asked), "what is not held is asked back");
                assert!(holder.seq <= self.last_seq);
                let parts = holder.rights.contains(Rights::DATA_P);
                assert!(!parts || !holder.rights.intersects(Rights::WHOLE), "{holders:?}");
                for other in holders.iter().skip(index + 1) {
                    assert_ne!(holder.client, other.client);
                    assert!(!holder.rights.conflicts().intersects(other.rights), "{holders:?}");
                }
            }
        }
        assert_eq!(total, self.total);
        assert_eq!(counts, self.counts);
        self.validate_parts();
    }

    fn holder(&self, client: ClientId, ino: Ino) -> Option<&Holder> {
        self.inodes.get(&ino)?.get(client)
    }

    fn remove(&mut self, client: ClientId, ino: Ino) {
        self.drop_parts(client, ino);
        let Some(holders) = self.inodes.get_mut(&ino) else { return };
        if holders.first.client == client {
            match holders.more.pop() {
                Some(last) => holders.first = last,
                None => {
                    self.inodes.remove(&ino);
                }
            }
        } else {
            holders.more.retain(|holder| holder.client != client);
        }
        self.uncount(client);
    }

    fn uncount(&mut self, client: ClientId) {
        self.total -= 1;
        let count = self.counts.get_mut(&client).expect("a counted client");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests;
