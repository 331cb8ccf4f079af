//! Where directories lie (002 §3.2 against 004 §V.A): users make trees at the same time, and each
//! tree is walked, with nothing cached.
//!
//! Invariants:
//! - all placements get the same calls in the same order, on the papers' disk in virtual time;
//! - where the server starts anew in the middle, the first half of each user's directories was made
//!   before, and the rest after;
//! - a walk opens every directory of one user's tree by name, in the order in which they were made,
//!   and lists it with attributes; the trees are walked one after the other, each on a store just
//!   opened.

use std::future::Future;

use mfs::{DirPlacement, StoreError};
use serde::Serialize;
use types::Ino;

use crate::layouts::bed::{dir_name, file_name};
use crate::layouts::virtual_disk::Virtual;
use crate::layouts::{Caller, Contender, Measured, Settings, Workload};
use bench::Res;
use bench::report::Columns;

/// Numbers of users, directories and files.
#[derive(Clone, Copy, Serialize, Debug)]
pub struct Shape {
    /// Users, who work in turns.
    pub users: u64,
    /// Directories of each, and directories in each of those.
    pub dirs: u64,
    /// Files of each directory.
    pub files: u64,
}

/// Whose directories the trees lie in.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Debug)]
#[serde(rename_all = "kebab-case")]
pub enum Where {
    /// Each user's in a directory of his own.
    Own,
    /// All in one directory.
    Shared,
}

/// The result of one placement.
#[derive(Clone, Serialize, Debug)]
pub struct Row {
    /// Where the trees are.
    pub trees: Where,
    /// The placement.
    pub placement: &'static str,
    /// The store was opened anew when half of the directories were there.
    pub restarted: bool,
    /// Making all trees.
    pub make: Measured,
    /// Walking all of them; operations are entries.
    pub walk: Measured,
    /// Of the walks: accesses that did not begin where the one before had ended.
    pub seeks: u64,
    /// Bytes between those.
    pub distance: u64,
    /// Requests of making that the elevator joined with a neighbour.
    pub merged: u64,
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct Found {
    /// Numbers of users, directories and files.
    pub shape: Shape,
    /// A row for each placement.
    pub rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// The directories of these numbers, and those in them.
    Make(u64, u64),
    /// The tree of one user.
    Walk(u64),
}

#[derive(Clone, Copy, Debug)]
struct Trees {
    shape: Shape,
    trees: Where,
}

impl Workload for Trees {
    type Stage = Stage;

    fn processes(&self) -> u64 {
        self.shape.users
    }

    fn work(
        &self,
        stage: Stage,
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let Trees { shape, trees } = *self;
        async move {
            let user = caller.number;
            let top = match trees {
                Where::Own => dir_name(user),
                Where::Shared => dir_name(0),
            };
            match stage {
                Stage::Walk(of) if of != user => return Ok(0),
                _ => {}
            }
            let top = caller.lookup(Ino::ROOT, &top).await?;
            let mut ops = 0;
            let (from, to) = match stage {
                Stage::Make(from, to) => (from, to),
                Stage::Walk(_) => (0, shape.dirs),
            };
            for n in from..to {
                let name = format!("user{user}-{n}");
                let (dir, done) = step(stage, &caller, top, &name, shape.files).await?;
                ops += done;
                for m in 0..shape.dirs {
                    let name = format!("directory{m}");
                    ops += step(stage, &caller, dir, &name, shape.files).await?.1;
                }
            }
            Ok(ops)
        }
    }
}

/// Makes a directory with its files, or opens and lists it.
async fn step(
    stage: Stage,
    caller: &Caller,
    within: Ino,
    name: &str,
    files: u64,
) -> Result<(Ino, u64), StoreError> {
    caller.message().await;
    if let Stage::Walk(_) = stage {
        let dir = caller.lookup(within, name).await?;
        return Ok((dir, caller.list(dir, true).await?));
    }
    let dir = caller.mkdir(within, name).await?;
    for file in 0..files {
        caller.message().await;
        caller.create(dir, &file_name(file)).await?;
    }
    Ok((dir, 1 + files))
}

const PLACEMENTS: [(DirPlacement, &str); 3] = [
    (DirPlacement::Together, "together (002)"),
    (DirPlacement::InOrder, "in order"),
    (DirPlacement::Spread, "spread (004)"),
];

/// Makes and walks trees with every placement.
///
/// # Errors
/// The store.
pub fn measure(shape: Shape, settings: Settings, progress: &mut dyn FnMut(&str)) -> Res<Found> {
    let mut rows = Vec::new();
    for trees in [Where::Own, Where::Shared] {
        for (restarted, (placement, name)) in
            [false, true].into_iter().flat_map(|restarted| PLACEMENTS.map(|p| (restarted, p)))
        {
            let settings = Settings { placement, ..settings };
            let disk = Virtual::new(Contender::Embedded, settings, shape.users)?;
            let work = Trees { shape, trees };
            let half = if restarted { shape.dirs / 2 } else { shape.dirs };
            let mut make = disk.stage(&work, Stage::Make(0, half))?;
            if restarted {
                make.add(&disk.stage(&work, Stage::Make(half, shape.dirs))?);
            }
            let mut walk = Measured::default();
            for user in 0..shape.users {
                walk.add(&disk.stage(&work, Stage::Walk(user))?);
            }
            let (seeks, distance) = (walk.counts.seeks, walk.counts.distance);
            progress(&format!("{trees:?}, {name}, restarted {restarted}: {seeks} seeks"));
            let merged = make.counts.merged;
            rows.push(Row {
                trees,
                placement: name,
                restarted,
                make,
                walk,
                seeks,
                distance,
                merged,
            });
        }
    }
    Ok(Found { shape, rows })
}

impl Found {
    /// For programs.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// For people.
    pub fn text(&self) -> String {
        let Shape { users, dirs, files } = self.shape;
        let head = [
            "trees",
            "directories",
            "restart",
            "make s",
            "writes",
            "merged",
            "KiB each",
            "walk s",
            "reads",
            "KiB each",
            "seeks",
            "GiB between",
        ];
        let mut table = Columns::new(&head);
        for row in &self.rows {
            let trees = match row.trees {
                Where::Own => "each in a directory of its own",
                Where::Shared => "all in one directory",
            };
            let seconds = |nanos: u64| format!("{:.2}", nanos as f64 / 1e9);
            let each = |bytes: u64, requests: u64| {
                format!("{:.0}", bytes as f64 / 1024.0 / requests.max(1) as f64)
            };
            let (make, walk) = (&row.make.counts, &row.walk.counts);
            table.row(vec![
                trees.into(),
                row.placement.into(),
                if row.restarted { "in the middle" } else { "no" }.into(),
                seconds(row.make.settled),
                make.home.to_string(),
                row.merged.to_string(),
                each(make.home_bytes, make.home),
                seconds(row.walk.answered),
                walk.reads.to_string(),
                each(walk.read_bytes, walk.reads),
                row.seeks.to_string(),
                format!("{:.2}", row.distance as f64 / f64::from(1 << 30)),
            ]);
        }
        let each = dirs + dirs * dirs;
        format!(
            "{users} users at once, {each} directories of {files} files each; then every tree is walked\n\n{}",
            table.text()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_heads_move_further_for_scattered_trees() {
        let shape = Shape { users: 8, dirs: 12, files: 20 };
        let settings = Settings { durable: false, ..Settings::PAPERS };
        let found = measure(shape, settings, &mut |_| {}).unwrap();
        for rows in found.rows.chunks(PLACEMENTS.len()) {
            let [together, in_order, spread] = rows else { panic!("three placements") };
            let entries = shape.users * (156 * shape.files + 144);
            assert!(rows.iter().all(|row| row.walk.ops == entries));
            assert!(20 * together.distance < spread.distance, "{}", found.text());
            assert!(20 * in_order.distance < spread.distance, "{}", found.text());
        }
    }
}
