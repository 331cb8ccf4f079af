//! What the metadata servers of one file system say of each other, after each was checked.
//!
//! Invariants:
//! - servers are compared only if each was checked and its own metadata are sound: what one lost by
//!   damage is no disagreement;
//! - an open joint operation is no damage. What it may have done at one server and not yet at
//!   another is no finding;
//! - nothing is changed here, also with `--repair`: no server alone knows which side is right.

use std::collections::{BTreeMap, BTreeSet};

use commitment::TxnId;
use mfs::fsck::{Disagreement, Repaired, Severity, ShardNames, across};
use serde::Serialize;
use types::Ino;

use super::PROBLEMS_SHOWN;

/// What several servers say of each other.
#[derive(Serialize)]
pub struct Between {
    /// Were they compared?
    pub compared: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Names at one server that lead to another.
    names: u64,
    /// Operations of several servers that are not complete everywhere.
    open_operations: Vec<String>,
    /// In what they do not agree.
    pub problems: Vec<Conflict>,
    problems_omitted: u64,
}

/// A point in which servers do not agree.
#[derive(Serialize)]
pub struct Conflict {
    kind: &'static str,
    severity: &'static str,
    /// The servers that it is about.
    servers: Vec<u8>,
    text: String,
    /// What to do.
    remedy: &'static str,
}

/// What one server's check yields for the comparison; `None`: its own metadata are not sound.
pub fn of_one(outcome: &Repaired) -> Option<ShardNames> {
    let report = &outcome.left;
    let is_error = |problem: &mfs::fsck::Problem| problem.kind.severity() == Severity::Error;
    let is_sound =
        report.features.is_some() && report.omitted == 0 && !report.problems.iter().any(is_error);
    is_sound.then(|| report.shard.clone())
}

/// Compares the servers. `checked`: what each yields, by their numbers.
pub fn compare(checked: Vec<Option<ShardNames>>) -> Between {
    let unsound: Vec<String> = checked
        .iter()
        .enumerate()
        .filter(|(_, one)| one.is_none())
        .map(|(number, _)| number.to_string())
        .collect();
    let shards: Vec<ShardNames> = checked.into_iter().flatten().collect();
    let names = shards.iter().map(|one| one.names.len() as u64).sum();
    let (open, unreadable) = open_operations(&shards);
    let open_operations = open.keys().map(ToString::to_string).collect();
    let mut problems: Vec<Conflict> = unreadable;
    let compared = unsound.is_empty();
    if compared {
        problems.extend(across(&shards, &open).iter().map(conflict));
    }
    let problems_omitted = problems.len().saturating_sub(PROBLEMS_SHOWN) as u64;
    problems.truncate(PROBLEMS_SHOWN);
    let reason = (!compared).then(|| {
        format!("the metadata of server {} are not sound, or were not checked", unsound.join(", "))
    });
    Between { compared, reason, names, open_operations, problems, problems_omitted }
}

/// The operations that are not complete everywhere, with the inodes of which they may change names;
/// and those of which nobody knows what they do.
fn open_operations(shards: &[ShardNames]) -> (BTreeMap<TxnId, BTreeSet<Ino>>, Vec<Conflict>) {
    let (mut open, mut unreadable) = (BTreeMap::<_, BTreeSet<Ino>>::new(), Vec::new());
    for shard in shards {
        for (id, bytes) in &shard.operations {
            match mds::changed_inodes(bytes) {
                Ok(inodes) => open.entry(*id).or_default().extend(inodes),
                Err(error) => unreadable.push(Conflict {
                    kind: UNREADABLE.0,
                    severity: "error",
                    servers: vec![shard.shard.0],
                    text: format!("operation {id} of several servers: {error}"),
                    remedy: UNREADABLE.2,
                }),
            }
        }
    }
    (open, unreadable)
}

/// An operation whose bytes mean nothing, as the catalogue has it.
const UNREADABLE: (&str, &str, &str) = (
    "UnknownOperation",
    "what is kept of an operation of several servers says nothing",
    "no server starts with it: restore the metadata of all servers from backups of one moment",
);

/// All kinds of findings: name, what is wrong, and what to do.
pub fn catalogue() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    Disagreement::CATALOGUE.into_iter().chain([UNREADABLE])
}

fn conflict(found: &Disagreement) -> Conflict {
    Conflict {
        kind: found.name(),
        severity: "error",
        servers: found.shards().into_iter().map(|shard| shard.0).collect(),
        text: found.to_string(),
        remedy: found.remedy(),
    }
}

impl Between {
    /// Do the servers agree, as far as they were compared?
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

/// The text of it, for the servers of the file system `name`.
pub fn describe(name: &str, between: &Between) -> String {
    let mut text = String::new();
    let mut remedies = BTreeMap::new();
    for one in &between.problems {
        text += &format!("{}: {}: {} ({})\n", one.severity, who(&one.servers), one.text, one.kind);
        remedies.insert(one.kind, one.remedy);
    }
    if between.problems_omitted > 0 {
        text += &format!("and {} more problems between servers\n", between.problems_omitted);
    }
    for (kind, remedy) in remedies {
        text += &format!("{kind}: {remedy}\n");
    }
    if !between.open_operations.is_empty() {
        text += &format!(
            "{} operations of several servers are open ({}): the servers complete them when they \
             run; what such an operation has done at one server only is no damage\n",
            between.open_operations.len(),
            between.open_operations.join(", ")
        );
    }
    if let Some(reason) = &between.reason {
        return text
            + &format!("{name}: the servers were not compared with each other: {reason}\n");
    }
    if !between.is_clean() {
        text += "repair changes nothing in which servers do not agree\n";
    }
    let verdict = if between.is_clean() { "agree" } else { "DO NOT AGREE" };
    text + &format!(
        "{name}: the servers {verdict}: {} names lead to other servers\n",
        between.names
    )
}

fn who(servers: &[u8]) -> String {
    let numbers: Vec<String> = servers.iter().map(u8::to_string).collect();
    match numbers.len() {
        1 => format!("server {}", numbers[0]),
        _ => format!("servers {}", numbers.join(" and ")),
    }
}

#[cfg(test)]
mod tests {
    use mfs::fsck::ForeignName;
    use types::{Epoch, FileKind, ShardId};

    use super::*;

    /// A name at server 0 that leads to an inode which server 1 does not have.
    fn one_name() -> Vec<Option<ShardNames>> {
        let ino = Ino(1 << 56 | 77 << 24);
        let name = ForeignName { dir: Ino(1), name: b"x".into(), ino, kind: FileKind::Directory };
        let zero = ShardNames { names: vec![name], ..ShardNames::default() };
        let one = ShardNames { shard: ShardId(1), ..ShardNames::default() };
        vec![Some(zero), Some(one)]
    }

    #[test]
    fn disagreement_names_the_servers_and_what_to_do() {
        let between = compare(one_name());
        assert!(!between.is_clean());
        let text = describe("home", &between);
        assert!(
            text.starts_with("error: servers 0 and 1: the name \"x\" in directory 1"),
            "{text}"
        );
        assert!(text.contains("(NameWithoutInode)\n") && text.contains("backups"), "{text}");
        assert!(text.ends_with("home: the servers DO NOT AGREE: 1 names lead to other servers\n"));
    }

    #[test]
    fn servers_are_not_compared_with_one_that_is_not_sound() {
        let mut checked = one_name();
        checked[1] = None;
        let between = compare(checked);
        let text = describe("home", &between);
        assert!(!between.compared && between.is_clean(), "{text}");
        assert!(text.contains("not compared") && text.contains("of server 1 are not"), "{text}");
    }

    #[test]
    fn operation_that_says_nothing_is_found_and_excuses_nothing() {
        let mut checked = one_name();
        let id = TxnId { coordinator: ShardId(1), epoch: Epoch(3), number: 9 };
        checked[1].as_mut().unwrap().operations.insert(id, vec![0xff; 7]);
        let kinds = compare(checked).problems.iter().map(|one| one.kind).collect::<Vec<_>>();
        assert_eq!(kinds, ["UnknownOperation", "NameWithoutInode"]);
    }
}
