//! What the shards of a file system say of each other, compared.
//!
//! Invariants:
//! - each shard was checked alone and is sound: here are only disagreements between two of them;
//! - a shard may have lent data space that the other one has not entered yet: the last loan;
//! - an operation of several shards that is not complete everywhere excuses the inodes that it
//!   names: one shard may be ahead of another;
//! - the result is sorted, and the order of the shards does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use commitment::TxnId;
use types::{FileKind, Ino, ObjectId, PagBlock, PagId, ShardId};

use crate::format::outside::Outside;
use crate::space::GIVEN;

/// A name that leads to another shard.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ForeignName {
    /// The directory.
    pub dir: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// The inode, of another shard than the directory.
    pub ino: Ino,
    /// The type that the name says.
    pub kind: FileKind,
}

/// An inode with names on other shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Guest {
    /// The inode.
    pub ino: Ino,
    /// Its type.
    pub kind: FileKind,
    /// Its names on other shards.
    pub outside: Outside,
}

/// What a shard says of others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ShardNames {
    /// The shard.
    pub shard: ShardId,
    /// Its names that lead to others, in no order.
    pub names: Vec<ForeignName>,
    /// Its inodes with names on others, in order.
    pub guests: Vec<Guest>,
    /// Operations of several shards of which it keeps something, and what it keeps: only the server
    /// knows what these bytes mean. A damaged one has none.
    pub operations: BTreeMap<TxnId, Vec<u8>>,
    /// Data space that it has lent to others, or they to it.
    pub loans: Loans,
    /// The shards of inodes that are not on that of their number, as this shard believes.
    pub homes: BTreeMap<Ino, ShardId>,
    /// The objects of its files.
    pub objects: BTreeMap<ObjectId, Ino>,
    /// Objects that its targets have still to destroy.
    pub doomed: BTreeSet<ObjectId>,
    /// The number, within the shard, of the next object that it issues.
    pub next_object: u64,
}

/// Runs of data blocks, by the other shard, the zone and the first block: blocks, and the sequence
/// of the loan.
pub type LentRuns = BTreeMap<(ShardId, PagId, PagBlock), (u64, u32)>;

/// Data space that a shard has lent to others, or they to it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Loans {
    /// What it has lent.
    pub given: LentRuns,
    /// What it has of others.
    pub had: LentRuns,
    /// The last loan of each that it has had, as far as it has kept that.
    pub last_had: BTreeMap<ShardId, u32>,
}

/// A point in which two shards do not agree.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Disagreement {
    /// A name leads to a shard that is not among those compared.
    UnknownShard(ForeignName),
    /// A name leads to an inode that is not there, or that knows of no name on another shard.
    NameWithoutInode(ForeignName),
    /// A name says another type than its inode, which is of this one.
    WrongKind(ForeignName, FileKind),
    /// A directory has a name in another directory than it says.
    WrongParent {
        /// The name.
        name: ForeignName,
        /// The parent that the directory says.
        parent: Ino,
    },
    /// A directory has a further name; the first one agrees with what the directory says, if any
    /// does.
    SecondName(ForeignName),
    /// A directory has no name in the parent that it says, nor on any other shard.
    DirectoryWithoutName {
        /// The directory.
        ino: Ino,
        /// The parent that it says.
        parent: Ino,
    },
    /// An inode counts other names on other shards than there are.
    WrongCount {
        /// The inode.
        ino: Ino,
        /// The number that it says.
        counted: u32,
        /// The number of names that were found.
        found: u32,
    },
    /// A shard has data blocks of another one, which has not lent it these.
    NotLent(LentBlocks),
    /// A shard has lent data blocks, and the other one does not have them, though it has others of
    /// the same loan, or of a later one.
    NotBorrowed(LentBlocks),
    /// A shard has an inode of another one's number, and from the shard of the number one does not
    /// come to it.
    NotFound {
        /// The inode.
        ino: Ino,
        /// The shard that says that it has it.
        at: ShardId,
        /// The shard where the way ends.
        ends: ShardId,
    },
    /// A shard has a file in an object that another one has, too, or will have.
    SharedObject {
        /// The object.
        object: ObjectId,
        /// The file.
        ino: Ino,
        /// Its shard.
        at: ShardId,
        /// The other one.
        other: ShardId,
        /// What that does with the object.
        claim: Claim,
    },
}

/// What a shard does with an object in which a file of another one lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Claim {
    /// A file of its own lies there.
    File,
    /// It has it destroyed.
    Doomed,
    /// The number is its, and it has not issued that yet.
    NotIssued,
}

/// Data blocks that one of two shards says were lent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LentBlocks {
    /// The shard of their zone.
    pub lender: ShardId,
    /// The shard that has them, or should.
    pub borrower: ShardId,
    /// Their zone.
    pub pag: PagId,
    /// The first of them.
    pub start: PagBlock,
    /// How many they are.
    pub blocks: u64,
}

impl Disagreement {
    /// One of each kind says what it is: its name, what is wrong, and what to do.
    pub const CATALOGUE: [(&'static str, &'static str, &'static str); 11] = [
        (
            "UnknownShard",
            "a name leads to a metadata server that there is none of",
            "name all servers of the file system in the cluster's file",
        ),
        (
            "NameWithoutInode",
            "a name leads to an inode that its own server does not have, or not under such a name",
            "the metadata of that server are older, or those of the name's: restore both from \
             backups of one moment",
        ),
        (
            "WrongKindElsewhere",
            "a name says another type than the inode of another server that it leads to",
            "move what can be read to another place, and remove the name",
        ),
        (
            "WrongParent",
            "a directory says that its name is in another directory than where it is",
            "move what is in it to a new directory, and remove it",
        ),
        (
            "SecondName",
            "a directory has a second name",
            "move what is in it to a new directory, and remove it",
        ),
        (
            "DirectoryWithoutName",
            "a directory of one server has lost the name that it had at another one",
            "the metadata of the server with the name are older, or those of the directory's: restore \
             both from backups of one moment",
        ),
        (
            "WrongNamesElsewhere",
            "an inode counts other names at other servers than there are",
            "copy the file, and remove all its names",
        ),
        (
            "NotLent",
            "a server has data blocks of another one, which has not lent it these: both may write \
             there",
            "the metadata of one of both servers are older: restore both from backups of one moment",
        ),
        (
            "NotBorrowed",
            "a server has lent data blocks to another one, which does not have them",
            "the metadata of one of both servers are older: restore both from backups of one \
             moment; until then the blocks are not used",
        ),
        (
            "NotFound",
            "a server has an inode that came from another one, and no server says that it is there",
            "the metadata of one of both servers are older: restore both from backups of one moment",
        ),
        (
            "SharedObject",
            "a file lies in an object that another server uses, too, destroys, or has not issued yet",
            "the metadata of one of both servers are older: restore both from backups of one moment; \
             until then start neither",
        ),
    ];

    /// Its place in [`Disagreement::CATALOGUE`].
    fn kind(&self) -> (&'static str, &'static str, &'static str) {
        Disagreement::CATALOGUE[match self {
            Disagreement::UnknownShard(_) => 0,
            Disagreement::NameWithoutInode(_) => 1,
            Disagreement::WrongKind(..) => 2,
            Disagreement::WrongParent { .. } => 3,
            Disagreement::SecondName(_) => 4,
            Disagreement::DirectoryWithoutName { .. } => 5,
            Disagreement::WrongCount { .. } => 6,
            Disagreement::NotLent(_) => 7,
            Disagreement::NotBorrowed(_) => 8,
            Disagreement::NotFound { .. } => 9,
            Disagreement::SharedObject { .. } => 10,
        }]
    }

    /// Stable name of its kind.
    pub fn name(&self) -> &'static str {
        self.kind().0
    }

    /// What an administrator can do about it.
    pub fn remedy(&self) -> &'static str {
        self.kind().2
    }

    /// The shards that it is about, in order: where the name is or should be, and where the inode.
    pub fn shards(&self) -> BTreeSet<ShardId> {
        match self {
            Disagreement::UnknownShard(name)
            | Disagreement::NameWithoutInode(name)
            | Disagreement::WrongKind(name, _)
            | Disagreement::WrongParent { name, .. }
            | Disagreement::SecondName(name) => [name.dir.shard(), name.ino.shard()].into(),
            Disagreement::DirectoryWithoutName { ino, parent } => {
                [ino.shard(), parent.shard()].into()
            }
            Disagreement::WrongCount { ino, .. } => [ino.shard()].into(),
            Disagreement::NotLent(it) | Disagreement::NotBorrowed(it) => {
                [it.lender, it.borrower].into()
            }
            Disagreement::NotFound { at, ends, .. } => [*at, *ends].into(),
            Disagreement::SharedObject { at, other, .. } => [*at, *other].into(),
        }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Disagreement::UnknownShard(name) => {
                write!(f, "{name}, and nothing is known of shard {}", name.ino.shard())
            }
            Disagreement::NameWithoutInode(name) => {
                write!(f, "{name}, which has no name on another shard, or is not there")
            }
            Disagreement::WrongKind(name, kind) => {
                write!(f, "{name}, as a {:?}, and it is a {kind:?}", name.kind)
            }
            Disagreement::WrongParent { name, parent } => {
                write!(f, "{name}, which says that it is in directory {parent}")
            }
            Disagreement::SecondName(name) => {
                write!(f, "{name}, a directory that has another name")
            }
            Disagreement::DirectoryWithoutName { ino, parent } => {
                write!(f, "directory {ino} has no name in directory {parent}, as it says")
            }
            Disagreement::WrongCount { ino, counted, found } => {
                write!(
                    f,
                    "inode {ino} counts {counted} names on other shards, and {found} are there"
                )
            }
            Disagreement::NotLent(it) => {
                write!(f, "shard {} has {it}, which has not lent it these", it.borrower)
            }
            Disagreement::NotBorrowed(it) => {
                write!(f, "shard {} does not have {it}, which has lent it these", it.borrower)
            }
            Disagreement::NotFound { ino, at, ends } => {
                write!(f, "shard {at} has inode {ino}, which one looks for at shard {ends}")
            }
            Disagreement::SharedObject { object, ino, at, other, claim } => {
                let claim = match claim {
                    Claim::File => "has a file in",
                    Claim::Doomed => "destroys",
                    Claim::NotIssued => "has not issued",
                };
                write!(
                    f,
                    "inode {ino} of shard {at} lies in object {object}, which shard {other} {claim}"
                )
            }
        }
    }
}

impl fmt::Display for LentBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LentBlocks { lender, pag, start, blocks, .. } = self;
        write!(f, "{blocks} blocks from {start} on of data zone {pag} of shard {lender}")
    }
}

impl fmt::Display for ForeignName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        write!(f, "the name {name:?} in directory {} leads to inode {}", self.dir, self.ino)
    }
}

/// What the shards do not agree on. `open` has the operations that are not complete on every
/// shard, each with the inodes of which it may still change names: nothing is said of these.
pub fn across(
    shards: &[ShardNames],
    open: &BTreeMap<TxnId, BTreeSet<Ino>>,
) -> BTreeSet<Disagreement> {
    let unsettled = |ino: Ino| open.values().any(|inodes| inodes.contains(&ino));
    let known: BTreeSet<ShardId> = shards.iter().map(|it| it.shard).collect();
    let mut names: BTreeMap<Ino, Vec<&ForeignName>> = BTreeMap::new();
    for name in shards.iter().flat_map(|it| &it.names).filter(|name| !unsettled(name.ino)) {
        names.entry(name.ino).or_default().push(name);
    }
    let mut out = BTreeSet::new();
    for guest in shards.iter().flat_map(|it| &it.guests).filter(|guest| !unsettled(guest.ino)) {
        let names = names.remove(&guest.ino).unwrap_or_default();
        compare(guest, names, &mut out);
    }
    for name in names.into_values().flatten().cloned() {
        out.insert(match known.contains(&home(shards, name.ino)) {
            true => Disagreement::NameWithoutInode(name),
            false => Disagreement::UnknownShard(name),
        });
    }
    for (lender, borrower) in shards.iter().flat_map(|one| shards.iter().map(move |it| (one, it))) {
        let of_them = |id: &TxnId| [lender.shard, borrower.shard].contains(&id.coordinator);
        let is_settled = !open.keys().any(of_them);
        // An operation that concerns no inode takes lent blocks back.
        let goes_back = |(id, inodes): (&TxnId, &BTreeSet<Ino>)| of_them(id) && inodes.is_empty();
        let stays = !open.iter().any(goes_back);
        compare_loans((lender, borrower), (is_settled, stays), &mut out);
    }
    // An entry stays when its inode is removed, on all of the way.
    let all = shards.iter().flat_map(|it| it.homes.iter().map(|(&ino, &to)| (it.shard, ino, to)));
    for (at, ino, _) in all.filter(|&(at, _, to)| at == to) {
        let ends = home(shards, ino);
        if ends != at && known.contains(&ino.shard()) && known.contains(&ends) && !unsettled(ino) {
            out.insert(Disagreement::NotFound { ino, at, ends });
        }
    }
    for (one, other) in shards.iter().flat_map(|one| shards.iter().map(move |it| (one, it))) {
        compare_objects(one, other, &unsettled, &mut out);
    }
    out
}

/// Looks for files of one shard in objects of which another one believes that they are its own.
fn compare_objects(
    one: &ShardNames,
    other: &ShardNames,
    unsettled: &impl Fn(Ino) -> bool,
    out: &mut BTreeSet<Disagreement>,
) {
    if one.shard == other.shard {
        return;
    }
    for (&object, &ino) in one.objects.iter().filter(|(_, ino)| !unsettled(**ino)) {
        let is_issued = object.shard() != other.shard || object.number() < other.next_object;
        let claim = match () {
            // The first of both says it.
            () if other.objects.contains_key(&object) && one.shard < other.shard => Claim::File,
            () if other.doomed.contains(&object) => Claim::Doomed,
            () if !is_issued => Claim::NotIssued,
            () => continue,
        };
        let (at, other) = (one.shard, other.shard);
        out.insert(Disagreement::SharedObject { object, ino, at, other, claim });
    }
}

/// The shard that has an inode: from that of its number one goes where each shard says that it
/// went.
fn home(shards: &[ShardNames], ino: Ino) -> ShardId {
    let mut at = ino.shard();
    for _ in shards {
        let of = shards.iter().find(|it| it.shard == at);
        match of.and_then(|it| it.homes.get(&ino)) {
            Some(&next) if next != at => at = next,
            _ => break,
        }
    }
    at
}

/// Compares what one shard has lent to another with what that has of it. The borrower may not have
/// entered the last loan yet. Unless all that the two agree on is settled, a file may be on its way
/// with its blocks; and unless what was lent stays, so may blocks of loans.
fn compare_loans(
    (lender, borrower): (&ShardNames, &ShardNames),
    (is_settled, stays): (bool, bool),
    out: &mut BTreeSet<Disagreement>,
) {
    let of = |runs: &LentRuns, other: ShardId| -> LentRuns {
        let meant = runs.iter().filter(|((shard, ..), _)| *shard == other);
        meant.map(|(&(_, pag, start), &run)| ((other, pag, start), run)).collect()
    };
    let given = of(&lender.loans.given, borrower.shard);
    let had = of(&borrower.loans.had, lender.shard);
    let kept = borrower.loans.last_had.get(&lender.shard).copied().unwrap_or(0);
    let last = had.values().map(|(_, sequence)| *sequence).max().unwrap_or(0).max(kept);
    let blocks = |pag, start, blocks| LentBlocks {
        lender: lender.shard,
        borrower: borrower.shard,
        pag,
        start,
        blocks,
    };
    for (&(_, pag, start), &run) in &given {
        let is_had = had.get(&(lender.shard, pag, start)) == Some(&run);
        let on_its_way = run.1 == GIVEN && !is_settled || !stays;
        if !is_had && !on_its_way && run.1 != last.saturating_add(1) {
            out.insert(Disagreement::NotBorrowed(blocks(pag, start, run.0)));
        }
    }
    for (&(_, pag, start), &run) in &had {
        let on_its_way = run.1 == GIVEN && !is_settled || !stays;
        if !on_its_way && given.get(&(borrower.shard, pag, start)) != Some(&run) {
            out.insert(Disagreement::NotLent(blocks(pag, start, run.0)));
        }
    }
}

/// Compares an inode with its names.
fn compare(guest: &Guest, mut names: Vec<&ForeignName>, out: &mut BTreeSet<Disagreement>) {
    let wrong = names.iter().filter(|name| name.kind != guest.kind);
    out.extend(wrong.map(|&name| Disagreement::WrongKind(name.clone(), guest.kind)));
    match guest.outside {
        Outside::Parent(parent) => {
            names.sort_by_key(|name| (name.dir != parent, *name));
            match names.first() {
                None => {
                    out.insert(Disagreement::DirectoryWithoutName { ino: guest.ino, parent });
                }
                Some(&name) if name.dir != parent => {
                    out.insert(Disagreement::WrongParent { name: name.clone(), parent });
                }
                Some(_) => {}
            }
            let further = names.into_iter().skip(1);
            out.extend(further.map(|name| Disagreement::SecondName(name.clone())));
        }
        Outside::Names(counted) => {
            let found = u32::try_from(names.len()).unwrap_or(u32::MAX);
            if found != counted {
                out.insert(Disagreement::WrongCount { ino: guest.ino, counted, found });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use types::{DirNo, Epoch};

    use super::*;
    use crate::format::number::{SlotPlace, ino_of, root_dir};

    const DIR: FileKind = FileKind::Directory;
    const FILE: FileKind = FileKind::Regular;

    /// The `n`-th inode of a shard.
    fn ino(shard: u8, n: u32) -> Ino {
        ino_of(SlotPlace { chunk: DirNo::of(ShardId(shard), 1), slot: n }, 0)
    }

    fn root() -> Ino {
        root_dir(ShardId(0))
    }

    fn name(dir: Ino, text: &str, ino: Ino, kind: FileKind) -> ForeignName {
        ForeignName { dir, name: text.into(), ino, kind }
    }

    fn guest(ino: Ino, kind: FileKind, outside: Outside) -> Guest {
        Guest { ino, kind, outside }
    }

    /// Two shards that agree: a directory and a file of shard 1 have names on shard 0, and a
    /// directory of shard 0 is below the former.
    fn sound() -> [ShardNames; 2] {
        let zero = ShardNames {
            shard: ShardId(0),
            names: vec![
                name(root(), "there", ino(1, 1), DIR),
                name(root(), "file", ino(1, 2), FILE),
                name(ino(0, 9), "more", ino(1, 2), FILE),
            ],
            guests: vec![guest(ino(0, 9), DIR, Outside::Parent(ino(1, 1)))],
            ..ShardNames::default()
        };
        let one = ShardNames {
            shard: ShardId(1),
            names: vec![name(ino(1, 1), "back", ino(0, 9), DIR)],
            guests: vec![
                guest(ino(1, 1), DIR, Outside::Parent(root())),
                guest(ino(1, 2), FILE, Outside::Names(2)),
            ],
            ..ShardNames::default()
        };
        [zero, one]
    }

    /// Changes the sound shards, and expects exactly these disagreements about the inode, unless
    /// an operation is open that may change its names.
    fn check(subject: Ino, change: impl Fn(&mut [ShardNames; 2]), wanted: &[Disagreement]) {
        let mut shards = sound();
        change(&mut shards);
        let found: Vec<_> = across(&shards, &BTreeMap::new()).into_iter().collect();
        assert_eq!(found, wanted);
        shards.reverse();
        assert!(across(&shards, &BTreeMap::new()).into_iter().eq(found), "in another order");
        let id = TxnId { coordinator: ShardId(1), epoch: Epoch(1), number: 1 };
        let open = |ino| BTreeMap::from([(id, BTreeSet::from([ino]))]);
        assert_eq!(across(&shards, &open(subject)), BTreeSet::new());
        assert_eq!(across(&shards, &open(ino(3, 3))).len(), wanted.len());
    }

    #[test]
    fn shards_that_agree_have_no_findings() {
        assert_eq!(across(&sound(), &BTreeMap::new()), BTreeSet::new());
        assert_eq!(across(&[], &BTreeMap::new()), BTreeSet::new());
    }

    #[test]
    fn name_without_inode_is_found() {
        let lost = name(root(), "there", ino(1, 1), DIR);
        let wanted = [Disagreement::NameWithoutInode(lost)];
        check(ino(1, 1), |shards| shards[1].guests.retain(|it| it.kind != DIR), &wanted);
    }

    #[test]
    fn name_of_an_unknown_shard_is_found() {
        let far = name(root(), "far", ino(7, 1), FILE);
        let wanted = [Disagreement::UnknownShard(far.clone())];
        check(ino(7, 1), |shards| shards[0].names.push(far.clone()), &wanted);
    }

    #[test]
    fn directory_without_a_name_is_found() {
        let wanted = [Disagreement::DirectoryWithoutName { ino: ino(1, 1), parent: root() }];
        check(ino(1, 1), |shards| drop(shards[0].names.remove(0)), &wanted);
    }

    #[test]
    fn directory_in_another_parent_is_found() {
        let there = name(ino(0, 5), "there", ino(1, 1), DIR);
        let wanted = [Disagreement::WrongParent { name: there.clone(), parent: root() }];
        check(ino(1, 1), |shards| shards[0].names[0] = there.clone(), &wanted);
    }

    #[test]
    fn second_name_of_a_directory_is_found_and_the_right_one_counts_as_first() {
        // It sorts before the right one.
        let second = name(ino(0, 0), "a", ino(1, 1), DIR);
        let wanted = [Disagreement::SecondName(second.clone())];
        check(ino(1, 1), |shards| shards[0].names.push(second.clone()), &wanted);
        let twice = name(root(), "zz", ino(1, 1), DIR);
        let wanted = [Disagreement::SecondName(twice.clone())];
        check(ino(1, 1), |shards| shards[0].names.push(twice.clone()), &wanted);
    }

    #[test]
    fn wrong_type_is_found() {
        let there = name(root(), "there", ino(1, 1), FILE);
        let wanted = [Disagreement::WrongKind(there.clone(), DIR)];
        check(ino(1, 1), |shards| shards[0].names[0] = there.clone(), &wanted);
    }

    #[test]
    fn wrong_number_of_names_is_found() {
        let wrong = |counted, found| [Disagreement::WrongCount { ino: ino(1, 2), counted, found }];
        check(ino(1, 2), |shards| drop(shards[0].names.pop()), &wrong(2, 1));
        let third = name(root(), "third", ino(1, 2), FILE);
        check(ino(1, 2), |shards| shards[0].names.push(third.clone()), &wrong(2, 3));
        let none = |shards: &mut [ShardNames; 2]| shards[0].names.truncate(1);
        check(ino(1, 2), none, &wrong(2, 0));
    }

    /// The sound shards; shard 0 has lent what is given, and shard 1 has what is had.
    fn with_loans(given: &[(u64, u64, u32)], had: &[(u64, u64, u32)]) -> [ShardNames; 2] {
        let mut shards = sound();
        let run = |other: u8, &(start, len, sequence): &(u64, u64, u32)| {
            ((ShardId(other), PagId(4), PagBlock(start)), (len, sequence))
        };
        shards[0].loans.given = given.iter().map(|it| run(1, it)).collect();
        shards[1].loans.had = had.iter().map(|it| run(0, it)).collect();
        shards
    }

    #[test]
    fn only_the_last_loan_may_be_missing_at_its_borrower() {
        let found = |given: &[(u64, u64, u32)], had: &[(u64, u64, u32)]| {
            across(&with_loans(given, had), &BTreeMap::new()).into_iter().collect::<Vec<_>>()
        };
        let blocks = |start, blocks| LentBlocks {
            lender: ShardId(0),
            borrower: ShardId(1),
            pag: PagId(4),
            start: PagBlock(start),
            blocks,
        };
        let both = [(1, 5, 1), (9, 2, 1), (20, 7, 2)];
        assert_eq!(found(&both, &both), []);
        assert_eq!(found(&both, &both[..2]), [], "the last one is not entered yet");
        assert_eq!(found(&both[..2], &[]), []);
        let lost = [Disagreement::NotBorrowed(blocks(9, 2))];
        assert_eq!(found(&both, &[both[0], both[2]]), lost);
        assert_eq!(found(&both[..2], &both[..1]), lost, "a part of the last one");
        assert_eq!(found(&both, &[]), [Disagreement::NotBorrowed(blocks(20, 7))]);
        assert_eq!(found(&both[..2], &both), [Disagreement::NotLent(blocks(20, 7))]);
        // Nothing is left of what the borrower had.
        let mut kept = with_loans(&both[2..], &[]);
        kept[1].loans.last_had = BTreeMap::from([(ShardId(0), 1)]);
        assert_eq!(across(&kept, &BTreeMap::new()), BTreeSet::new());
        let longer = [(1, 6, 1)];
        let wanted = [Disagreement::NotLent(blocks(1, 6)), Disagreement::NotBorrowed(blocks(1, 5))];
        assert_eq!(found(&both[..1], &longer), wanted);
        assert_eq!(
            wanted[0].to_string(),
            "shard 1 has 6 blocks from 1 on of data zone 4 of shard 0, which has not lent it these"
        );
    }

    #[test]
    fn blocks_of_a_file_on_its_way_are_excused_and_others_are_not() {
        let (file, all) = ([(1, 5, GIVEN)], [(1, 5, GIVEN), (9, 2, 1)]);
        let id = TxnId { coordinator: ShardId(0), epoch: Epoch(1), number: 1 };
        let open = BTreeMap::from([(id, BTreeSet::from([ino(0, 5)]))]);
        for (given, had) in [(&file[..], &[][..]), (&[], &file)] {
            assert_eq!(across(&with_loans(given, had), &open), BTreeSet::new());
            assert_eq!(across(&with_loans(given, had), &BTreeMap::new()).len(), 1);
        }
        assert_eq!(across(&with_loans(&all, &all), &BTreeMap::new()), BTreeSet::new());
        assert_eq!(across(&with_loans(&all[..1], &all), &open).len(), 1, "a loan");
        // Of no inode: lent blocks go back.
        let back = BTreeMap::from([(id, BTreeSet::new())]);
        for (given, had) in [(&all[..1], &all[..]), (&all, &all[..1])] {
            assert_eq!(across(&with_loans(given, had), &back), BTreeSet::new());
        }
    }

    #[test]
    fn inode_that_one_does_not_find_at_its_shard_is_named() {
        let (moved, zero, one) = (ino(0, 7), ShardId(0), ShardId(1));
        let found = |homes: [&[(Ino, ShardId)]; 2]| {
            let mut shards = sound();
            for (shard, homes) in shards.iter_mut().zip(homes) {
                shard.homes = homes.iter().copied().collect();
            }
            across(&shards, &BTreeMap::new()).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(found([&[(moved, one)], &[(moved, one)]]), []);
        assert_eq!(found([&[(moved, one)], &[]]), [], "what was removed there is found nowhere");
        let lost = Disagreement::NotFound { ino: moved, at: one, ends: zero };
        assert_eq!(found([&[], &[(moved, one)]]), [lost]);
    }

    #[test]
    fn object_that_two_shards_believe_to_be_theirs_is_named() {
        let (object, zero, one) = (ObjectId::of(ShardId(1), 5), ShardId(0), ShardId(1));
        let found = |own: &[Ino], doomed: &[ObjectId], next, open: &[Ino]| {
            let mut shards = sound();
            shards[0].objects = BTreeMap::from([(object, ino(1, 7))]);
            shards[1].objects = own.iter().map(|&ino| (object, ino)).collect();
            shards[1].doomed = doomed.iter().copied().collect();
            shards[1].next_object = next;
            let id = TxnId { coordinator: one, epoch: Epoch(1), number: 1 };
            let open = BTreeMap::from([(id, open.iter().copied().collect())]);
            across(&shards, &open).into_iter().collect::<Vec<_>>()
        };
        let is = |claim| {
            let (ino, at, other) = (ino(1, 7), zero, one);
            [Disagreement::SharedObject { object, ino, at, other, claim }]
        };
        assert_eq!(found(&[], &[], 6, &[]), []);
        assert_eq!(found(&[], &[], 5, &[]), is(Claim::NotIssued));
        assert_eq!(found(&[], &[object], 6, &[]), is(Claim::Doomed));
        assert_eq!(found(&[ino(1, 7)], &[], 6, &[]), is(Claim::File));
        assert_eq!(found(&[ino(1, 7)], &[], 6, &[ino(1, 7)]), [], "it is on its way");
        assert!(is(Claim::File)[0].to_string().ends_with("which shard 1 has a file in"));
    }

    #[test]
    fn disagreement_names_its_kind_and_both_shards() {
        let name = name(root(), "there", ino(1, 1), DIR);
        let parent = ino(2, 5);
        let lent = LentBlocks {
            lender: ShardId(3),
            borrower: ShardId(2),
            pag: PagId(4),
            start: PagBlock(1),
            blocks: 5,
        };
        let all = [
            (Disagreement::UnknownShard(name.clone()), "UnknownShard", &[0, 1][..]),
            (Disagreement::NameWithoutInode(name.clone()), "NameWithoutInode", &[0, 1]),
            (Disagreement::WrongKind(name.clone(), FILE), "WrongKindElsewhere", &[0, 1]),
            (Disagreement::WrongParent { name: name.clone(), parent }, "WrongParent", &[0, 1]),
            (Disagreement::SecondName(name), "SecondName", &[0, 1]),
            (
                Disagreement::DirectoryWithoutName { ino: ino(1, 1), parent },
                "DirectoryWithoutName",
                &[1, 2],
            ),
            (
                Disagreement::WrongCount { ino: ino(1, 2), counted: 1, found: 2 },
                "WrongNamesElsewhere",
                &[1],
            ),
            (Disagreement::NotLent(lent), "NotLent", &[2, 3]),
            (Disagreement::NotBorrowed(lent), "NotBorrowed", &[2, 3]),
            (
                Disagreement::NotFound { ino: ino(1, 2), at: ShardId(0), ends: ShardId(1) },
                "NotFound",
                &[0, 1],
            ),
            (
                Disagreement::SharedObject {
                    object: ObjectId(5),
                    ino: ino(1, 2),
                    at: ShardId(1),
                    other: ShardId(0),
                    claim: Claim::File,
                },
                "SharedObject",
                &[0, 1],
            ),
        ];
        for (place, (one, kind, shards)) in all.iter().enumerate() {
            let named: Vec<u8> = one.shards().into_iter().map(|shard| shard.0).collect();
            assert_eq!((one.name(), &named[..]), (*kind, *shards));
            assert_eq!(Disagreement::CATALOGUE[place].0, *kind);
        }
    }

    #[test]
    fn disagreement_says_who_is_meant() {
        let there = name(root(), "there", ino(1, 1), DIR);
        let text = Disagreement::WrongParent { name: there, parent: ino(0, 5) }.to_string();
        let wanted = format!(
            "the name \"there\" in directory 1 leads to inode {}, which says that it is in directory {}",
            ino(1, 1),
            ino(0, 5)
        );
        assert_eq!(text, wanted);
    }
}
