//! The server's record of which client holds which rights on which inode.
//!
//! Invariants:
//! - two clients never hold conflicting rights on one inode ([`Rights::conflicts`]);
//! - these raise a lease's sequence: every grant that adds a right, every grant of content that
//!   its client asked for, and every recall;
//! - a sequence never repeats, not even over a restart (its upper bits are the epoch);
//! - while a recall of a client's rights on an inode is pending, the server grants the client
//!   nothing more there but `OPEN`. With that grant it repeats the recall: so a return that
//!   names the recall's sequence knows every grant;
//! - a return whose sequence is older than a later grant or recall changes nothing, and the reply
//!   says so;
//! - a holder of `DATA_P` holds at least one range, and no right on the whole content; ranges of
//!   two clients overlap only where both are shared.
//!
//! The table decides and remembers. Its user decides who waits for what, and for how long.

use std::collections::BinaryHeap;

use types::{BlockRange, Bug, ClientId, Epoch, HashMap, Ino, Rights, planted};

use self::ranges::RangeHolding;

mod ranges;

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
    /// Of `DATA_P`, only these blocks.
    pub range: Option<BlockRange>,
}

/// A client's lease as replies report it. It includes rights whose recall is pending: the client
/// knows by the sequence which of them it has given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LeaseState {
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
    recalled: Rights,
    /// The client answered a recall of `OPEN` by "still open", and returns `OPEN` after its last
    /// close.
    still_open: bool,
}

impl Holder {
    /// Rights that exclude conflicting rights of other clients, including those being recalled.
    fn excluding(&self) -> Rights {
        if planted(Bug::RightsGivenTwice) { self.rights - self.recalled } else { self.rights }
    }
}

/// Nearly every inode has one holder, which is stored in the map itself.
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

/// The sequence of reclaimed leases once `epoch` has begun: above all sequences of earlier epochs,
/// below every grant of this one. An epoch has 2^40 sequences (four months at 100,000 grants a
/// second), and there may be 2^24 epochs.
pub fn first_seq(epoch: Epoch) -> u64 {
    u64::from(epoch.0) << 40
}

/// All leases of one server.
#[derive(Clone, Debug)]
pub struct LeaseTable {
    /// The value of [`first_seq`] for this epoch.
    first_seq: u64,
    inodes: HashMap<Ino, Holders>,
    /// The clients that hold ranges of an inode, with their ranges.
    ranges: HashMap<Ino, Vec<RangeHolding>>,
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
            ranges: HashMap::default(),
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

    /// Does no client hold a lease?
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Leases of `client`.
    pub fn count(&self, client: ClientId) -> usize {
        self.counts.get(&client).copied().unwrap_or(0)
    }

    /// Rights of `client` on `ino` in the server's record, including those being recalled.
    pub fn rights(&self, client: ClientId, ino: Ino) -> Rights {
        self.holder(client, ino).map_or(Rights::empty(), |holder| holder.rights)
    }

    /// The lease of `client` as replies report it.
    pub fn held(&self, client: ClientId, ino: Ino) -> LeaseState {
        self.holder(client, ino).map_or(LeaseState::default(), |holder| LeaseState {
            rights: holder.rights,
            seq: holder.seq,
        })
    }

    /// Everything that clients other than `client` hold on `ino`.
    pub fn others(&self, client: ClientId, ino: Ino) -> Rights {
        let Some(holders) = self.inodes.get(&ino) else { return Rights::empty() };
        let others = holders.iter().filter(|holder| holder.client != client);
        others.fold(Rights::empty(), |all, holder| all | holder.excluding())
    }

    /// Clients other than `client` that must answer before `take` on `ino` is free. A recall of
    /// `OPEN` ends with any answer, including "still open".
    pub fn awaited(&self, client: ClientId, ino: Ino, take: Rights) -> Vec<ClientId> {
        let Some(holders) = self.inodes.get(&ino) else { return Vec::new() };
        let others = holders.iter().filter(|h| {
            let open = h.recalled & take & Rights::OPEN;
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

    /// May some client know more of size and times of `ino` than the server does? `client` itself
    /// under `DATA_X` does not count.
    pub fn written_elsewhere(&self, client: ClientId, ino: Ino) -> bool {
        let Some(holders) = self.inodes.get(&ino) else { return false };
        holders.iter().any(|holder| {
            let mine = holder.client == client;
            holder.rights.intersects(if mine { Rights::DATA_P } else { Rights::WRITES })
        })
    }

    /// Does any client hold one of `rights` on `ino`?
    pub fn any_holder(&self, ino: Ino, rights: Rights) -> bool {
        self.inodes
            .get(&ino)
            .is_some_and(|holders| holders.iter().any(|h| h.rights.intersects(rights)))
    }

    /// Who holds any of the rights.
    pub fn holders_of(&self, ino: Ino, rights: Rights) -> Vec<ClientId> {
        let holders = self.inodes.get(&ino).into_iter().flat_map(|holders| holders.iter());
        holders.filter(|it| it.rights.intersects(rights)).map(|it| it.client).collect()
    }

    /// The rights of `want` that `client` can get without a recall.
    pub fn grantable(&self, client: ClientId, ino: Ino, want: Rights) -> Rights {
        let Some(holders) = self.inodes.get(&ino) else { return want.closed() };
        let mut out = want.closed();
        for holder in holders.iter() {
            if holder.client == client {
                if !holder.recalled.is_empty() {
                    return Rights::empty();
                }
            } else {
                out = out.difference(holder.excluding().conflicts());
            }
        }
        if out.contains(Rights::DATA_X) { out } else { out.difference(Rights::DATA_X) }
    }

    /// Grants `rights` on `ino` to `client`. They must be grantable. A right on the whole content
    /// replaces the ranges held.
    pub fn grant(&mut self, client: ClientId, ino: Ino, rights: Rights) {
        let rights = rights.closed();
        assert!(self.grantable(client, ino, rights).contains(rights), "a grant conflicts");
        if rights.is_empty() {
            return;
        }
        let seq = self.last_seq + 1;
        let fresh = Holder { client, seq, rights, recalled: Rights::empty(), still_open: false };
        match self.inodes.get_mut(&ino) {
            None => {
                self.inodes.insert(ino, Holders { first: fresh, more: Vec::new() });
            }
            Some(holders) => match holders.get_mut(client) {
                Some(holder) if holder.rights.contains(rights) => return,
                Some(holder) => {
                    let whole = rights.intersects(Rights::WHOLE);
                    let replaces_ranges = whole && holder.rights.contains(Rights::DATA_P);
                    holder.still_open &= holder.rights.contains(Rights::OPEN);
                    holder.rights |= rights;
                    holder.seq = seq;
                    self.last_seq = seq;
                    if replaces_ranges {
                        holder.rights -= Rights::DATA_P;
                        self.drop_ranges(client, ino);
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

    /// As [`LeaseTable::grant`], for a client that asks for `rights` because it does not hold them.
    /// The table may record rights that the client does not know of, or that it gave up by a
    /// return which the server refused. The reply then carries a new sequence, because under the
    /// last one the client may disregard them.
    pub fn grant_requested(&mut self, client: ClientId, ino: Ino, rights: Rights) {
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

    /// `client` has looked up `ino` by name and may open it next: grants `OPEN`, even while other
    /// rights of the client are being recalled. In that case returns a repeated recall, which the
    /// caller pushes: a return that names the previous recall's sequence does not know this grant.
    /// True if the right is new.
    pub fn grant_open_on_lookup(&mut self, client: ClientId, ino: Ino) -> (bool, Option<Recall>) {
        if self.rights(client, ino).contains(Rights::OPEN) {
            return (false, None);
        }
        let recalled = self.holder(client, ino).map_or(Rights::empty(), |holder| holder.recalled);
        if recalled.is_empty() {
            self.grant(client, ino, Rights::OPEN);
            return (true, None);
        }
        let range = self.recalled_range(client, ino);
        let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) else {
            return (false, None);
        };
        // One for the grant, one for the recall.
        self.last_seq += 2;
        holder.rights |= Rights::OPEN;
        holder.still_open = false;
        holder.seq = self.last_seq;
        (true, Some(Recall { client, ino, seq: holder.seq, take: recalled, range }))
    }

    /// Recalls `take` on `ino` from every client but `except`. Returns the recalls to push: none
    /// for rights whose recall is already pending.
    pub fn recall(&mut self, except: ClientId, ino: Ino, take: Rights) -> Vec<Recall> {
        let Some(holders) = self.inodes.get_mut(&ino) else { return Vec::new() };
        let mut out = Vec::new();
        let mut ranges = self.ranges.get_mut(&ino);
        for holder in std::iter::once(&mut holders.first).chain(&mut holders.more) {
            let wanted = holder.rights & take;
            if holder.client == except {
                continue;
            }
            let mut range = None;
            let mut more = false;
            if let Some(holding) =
                ranges::of(ranges.as_deref_mut().map(Vec::as_mut_slice), holder.client)
            {
                if wanted.contains(Rights::DATA_P) {
                    more = holding.recalled != Some(BlockRange::ALL);
                    holding.recalled = Some(BlockRange::ALL);
                }
                range = holding.recalled.filter(|&recalled| recalled != BlockRange::ALL);
            }
            if holder.recalled.contains(wanted) && !more {
                continue;
            }
            self.last_seq += 1;
            holder.seq = self.last_seq;
            holder.recalled |= wanted;
            let (client, seq, take) = (holder.client, holder.seq, holder.recalled);
            out.push(Recall { client, ino, seq, take, range });
        }
        out
    }

    /// Pending recalls of `client`, to be pushed again on a new connection.
    pub fn unanswered(&self, client: ClientId) -> Vec<Recall> {
        let mut out: Vec<Recall> = Vec::new();
        // A client that greets a restarted server holds nothing yet.
        let some = if self.count(client) == 0 { None } else { Some(&self.inodes) };
        for (&ino, holders) in some.into_iter().flatten() {
            if let Some(h) = holders.get(client).filter(|h| !h.recalled.is_empty()) {
                let range = self.recalled_range(client, ino);
                out.push(Recall { client, ino, seq: h.seq, take: h.recalled, range });
            }
        }
        out.sort_by_key(|recall| recall.seq);
        out
    }

    /// Is this recall still pending?
    pub fn is_pending(&self, recall: &Recall) -> bool {
        self.holder(recall.client, recall.ino)
            .is_some_and(|h| h.seq == recall.seq && !h.recalled.is_empty())
    }

    /// The clients that owe an answer to a recall of rights on `ino`, and these rights.
    pub fn recalled(&self, ino: Ino) -> Vec<(ClientId, Rights)> {
        let holders = self.inodes.get(&ino).into_iter().flat_map(|holders| holders.iter());
        let asked = holders.filter(|holder| !holder.recalled.is_empty());
        asked.map(|holder| (holder.client, holder.recalled)).collect()
    }

    /// `client` gives up `give` on `ino`, knowing the lease up to `seq`; of `DATA_P` only `range`,
    /// if given. `still_open` answers a recall of `OPEN` and keeps `OPEN`. Returns whether anything
    /// changed.
    pub fn give_back(
        &mut self,
        client: ClientId,
        ino: Ino,
        seq: u64,
        give: Rights,
        still_open: bool,
        range: Option<BlockRange>,
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
            holder.recalled = holder.recalled.difference(Rights::OPEN);
            holder.still_open = true;
        }
        if give.contains(Rights::DATA_S) {
            give |= Rights::DATA_X;
        }
        if give.contains(Rights::DATA_P)
            && let Some(holding) =
                ranges::of(self.ranges.get_mut(&ino).map(Vec::as_mut_slice), client)
        {
            let (left, recalled) = holding.give(range);
            if !recalled {
                holder.recalled -= Rights::DATA_P;
            }
            if left {
                give -= Rights::DATA_P;
            } else {
                self.drop_ranges(client, ino);
            }
        }
        let Some(holder) = self.inodes.get_mut(&ino).and_then(|h| h.get_mut(client)) else {
            return false;
        };
        holder.rights = holder.rights.difference(give);
        holder.recalled = holder.recalled.difference(give);
        if holder.rights.is_empty() {
            self.remove(client, ino);
        }
        true
    }

    /// The sequence of the lease of `client` on `ino`, if it is newer than the `seq` that a return
    /// names.
    pub fn newer_seq(&self, client: ClientId, ino: Ino, seq: u64) -> Option<u64> {
        self.holder(client, ino).map(|holder| holder.seq).filter(|&last| seq < last)
    }

    /// The client with the most leases, and their number.
    pub fn largest(&self) -> Option<(ClientId, usize)> {
        let all = self.counts.iter().map(|(&client, &count)| (client, count));
        all.max_by_key(|&(client, count)| (count, client))
    }

    /// At most `max` leases of `client` without a pending recall: those whose last grant is the
    /// oldest, the oldest first. Scans all leases.
    pub fn coldest(&self, client: ClientId, max: usize) -> Vec<Ino> {
        let mut heap: BinaryHeap<(u64, Ino)> = BinaryHeap::with_capacity(max + 1);
        let holders = self.inodes.iter().filter_map(|(&ino, h)| Some((ino, h.get(client)?)));
        for (ino, holder) in holders.filter(|(_, holder)| holder.recalled.is_empty()) {
            heap.push((holder.seq, ino));
            if heap.len() > max {
                heap.pop();
            }
        }
        heap.into_sorted_vec().into_iter().map(|(_, ino)| ino).collect()
    }

    /// Recalls from `client` alone the rights of `take` that it holds on `ino`, except `DATA_P`.
    /// `None`: their recall is already pending.
    pub fn recall_of(&mut self, client: ClientId, ino: Ino, take: Rights) -> Option<Recall> {
        let range = self.recalled_range(client, ino);
        let holder = self.inodes.get_mut(&ino)?.get_mut(client)?;
        let wanted = holder.rights & take.difference(Rights::DATA_P);
        if holder.recalled.contains(wanted) {
            return None;
        }
        self.last_seq += 1;
        holder.seq = self.last_seq;
        holder.recalled |= wanted;
        Some(Recall { client, ino, seq: holder.seq, take: holder.recalled, range })
    }

    /// Recalls `OPEN` on `ino` from all holders but `except` that do not know yet that the server
    /// wants it back.
    pub fn recall_open(&mut self, except: ClientId, ino: Ino) -> Vec<Recall> {
        let Some(holders) = self.inodes.get(&ino) else { return Vec::new() };
        let unaware = holders.iter().filter(|h| !h.still_open && h.client != except);
        let clients: Vec<ClientId> = unaware.map(|holder| holder.client).collect();
        let recalled =
            clients.into_iter().filter_map(|client| self.recall_of(client, ino, Rights::OPEN));
        recalled.collect()
    }

    /// Recalls from `client` everything that it holds on `ino`.
    pub fn recall_all(&mut self, client: ClientId, ino: Ino) -> Option<Recall> {
        let holder = self.inodes.get_mut(&ino)?.get_mut(client)?;
        if holder.recalled == holder.rights {
            return None;
        }
        self.last_seq += 1;
        holder.seq = self.last_seq;
        holder.recalled = holder.rights;
        if let Some(holding) = ranges::of(self.ranges.get_mut(&ino).map(Vec::as_mut_slice), client)
        {
            holding.recalled = Some(BlockRange::ALL);
        }
        Some(Recall { client, ino, seq: holder.seq, take: holder.recalled, range: None })
    }

    /// Ends the lease of `client` on `ino`; returns what it held.
    pub fn drop_lease(&mut self, client: ClientId, ino: Ino) -> Rights {
        let rights = self.rights(client, ino);
        if !rights.is_empty() {
            self.remove(client, ino);
        }
        rights
    }

    /// Ends all leases on `ino`: the inode is gone.
    pub fn drop_inode(&mut self, ino: Ino) {
        self.ranges.remove(&ino);
        if let Some(holders) = self.inodes.remove(&ino) {
            for holder in holders.iter() {
                self.uncount(holder.client);
            }
        }
    }

    /// Ends all leases of `client`; returns what it held, in order of inodes.
    pub fn drop_client(&mut self, client: ClientId) -> Vec<(Ino, Rights)> {
        let mut out: Vec<(Ino, Rights)> = self.of_client(client);
        out.sort_unstable_by_key(|(ino, _)| *ino);
        for &(ino, _) in &out {
            self.remove(client, ino);
        }
        out
    }

    /// What `client` holds, in arbitrary order.
    pub fn of_client(&self, client: ClientId) -> Vec<(Ino, Rights)> {
        if self.count(client) == 0 {
            return Vec::new();
        }
        let holders = self.inodes.iter();
        holders.filter_map(|(&ino, h)| h.get(client).map(|h| (ino, h.rights))).collect()
    }

    /// Every lease with the rights on record, including those being recalled, in arbitrary order.
    pub fn all(&self) -> impl Iterator<Item = (Ino, ClientId, Rights)> {
        self.inodes.iter().flat_map(|(&ino, holders)| {
            holders.iter().map(move |holder| (ino, holder.client, holder.rights))
        })
    }

    /// Restores a lease that `client` held before the server's restart, without its ranges. Returns
    /// the rights that conflict with an earlier claim of another client; the others are granted.
    /// The client knows their sequence ([`first_seq`]): a return that it made under an earlier
    /// epoch changes nothing.
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
                assert!(!holder.rights.is_empty(), "the table keeps an empty lease");
                assert_eq!(holder.rights, holder.rights.closed());
                assert!(
                    holder.rights.contains(holder.recalled),
                    "a recall is pending for a right that is not held"
                );
                assert!(holder.seq <= self.last_seq);
                let has_ranges = holder.rights.contains(Rights::DATA_P);
                assert!(!has_ranges || !holder.rights.intersects(Rights::WHOLE), "{holders:?}");
                for other in holders.iter().skip(index + 1) {
                    assert_ne!(holder.client, other.client);
                    assert!(!holder.rights.conflicts().intersects(other.rights), "{holders:?}");
                }
            }
        }
        assert_eq!(total, self.total);
        assert_eq!(counts, self.counts);
        self.validate_ranges();
    }

    fn holder(&self, client: ClientId, ino: Ino) -> Option<&Holder> {
        self.inodes.get(&ino)?.get(client)
    }

    fn remove(&mut self, client: ClientId, ino: Ino) {
        self.drop_ranges(client, ino);
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
