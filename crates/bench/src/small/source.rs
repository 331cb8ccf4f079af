//! A source tree that is unpacked, compiled and cleaned, as the papers do with Linux 2.6.30 (002 §6.3,
//! 004 §V.D.3): the shape of that tree, not its content.
//!
//! Invariants:
//! - directories hang below earlier ones, at most eight deep, with 1 to 31 files each;
//! - every second file is compiled: it is read, with headers that its client has not read yet, the processor
//!   works on it for [`COMPILE`], and an object file comes to lie beside it.

use std::collections::BTreeSet;
use std::future::Future;

use env::sim::SimRng;
use store::StoreError;
use types::{Duration, Ino};

use crate::layouts::bed::dir_name;
use crate::layouts::{Caller, Workload};

/// Files of a directory, at most.
const FILES_MAX: u64 = 31;
/// Directories on the way to one, at most.
const DEPTH_MAX: u32 = 8;
/// Bytes of a file: mean of an even distribution from one byte on.
const MEAN: u64 = 12 << 10;
/// Headers of a compilation.
const HEADERS: u64 = 8;
/// Processor time of a compilation.
const COMPILE: Duration = Duration::from_millis(100);

/// What is done with the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// tar
    Unpack,
    /// make
    Compile,
    /// make clean
    Clean,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    clients: u64,
    files: u64,
}

/// A directory of the tree.
struct Dir {
    parent: usize,
    depth: u32,
    files: u64,
}

impl Source {
    /// A tree of about so many files for each client.
    pub fn new(clients: u64, files: u64) -> Source {
        Source { clients, files }
    }

    /// The tree: the first directory is the client's own. It is the same for every client.
    fn dirs(&self) -> Vec<Dir> {
        let mut rng = SimRng::new(self.files);
        let mut dirs = vec![Dir { parent: 0, depth: 0, files: 1 + rng.below(FILES_MAX) }];
        let mut files = dirs[0].files;
        while files < self.files {
            let parent = rng.below(dirs.len() as u64) as usize;
            let depth = dirs[parent].depth + 1;
            if depth > DEPTH_MAX {
                continue;
            }
            let new = Dir { parent, depth, files: 1 + rng.below(FILES_MAX) };
            files += new.files;
            dirs.push(new);
        }
        dirs
    }
}

impl Workload for Source {
    type Stage = Step;

    fn processes(&self) -> u64 {
        self.clients
    }

    fn work(
        &self,
        step: Step,
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let dirs = self.dirs();
        async move {
            let top = caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?;
            match step {
                Step::Unpack => unpack(&caller, top, &dirs).await,
                Step::Compile => compile(&caller, top, &dirs).await,
                Step::Clean => clean(&caller, top, &dirs).await,
            }
        }
    }
}

fn sub(number: usize) -> String {
    format!("dir{number:04}")
}

fn source(number: u64) -> String {
    format!("source{number:03}.c")
}

fn object(number: u64) -> String {
    format!("source{number:03}.o")
}

/// Finds all directories below `top`.
async fn find(caller: &Caller, top: Ino, dirs: &[Dir]) -> Result<Vec<Ino>, StoreError> {
    let mut inos = vec![top];
    for (number, dir) in dirs.iter().enumerate().skip(1) {
        caller.message().await;
        inos.push(caller.lookup(inos[dir.parent], &sub(number)).await?);
    }
    Ok(inos)
}

async fn unpack(caller: &Caller, top: Ino, dirs: &[Dir]) -> Result<u64, StoreError> {
    let mut rng = SimRng::new(caller.number);
    let mut inos = vec![top];
    let mut ops = 0;
    for (number, dir) in dirs.iter().enumerate() {
        if number > 0 {
            caller.message().await;
            inos.push(caller.mkdir(inos[dir.parent], &sub(number)).await?);
        }
        for file in 0..dir.files {
            caller.message().await;
            caller.create(inos[number], &source(file)).await?;
            caller.append(inos[number], &source(file), 1 + rng.below(2 * MEAN)).await?;
            // tar gives it its mode, owner and times.
            caller.utime(inos[number], &source(file)).await?;
        }
        ops += dir.files;
    }
    Ok(ops)
}

async fn compile(caller: &Caller, top: Ino, dirs: &[Dir]) -> Result<u64, StoreError> {
    let mut rng = SimRng::new(caller.number);
    let inos = find(caller, top, dirs).await?;
    let mut read = BTreeSet::new();
    let mut ops = 0;
    for (number, dir) in dirs.iter().enumerate() {
        for file in (0..dir.files).step_by(2) {
            caller.message().await;
            caller.read(inos[number], &source(file)).await?;
            for _ in 0..HEADERS {
                let header = rng.below(dirs.len() as u64) as usize;
                let which = rng.below(dirs[header].files);
                if read.insert((header, which)) {
                    caller.message().await;
                    caller.read(inos[header], &source(which)).await?;
                }
            }
            caller.env.sleep(COMPILE).await;
            caller.create(inos[number], &object(file)).await?;
            caller.append(inos[number], &object(file), 1 + rng.below(2 * MEAN)).await?;
            ops += 1;
        }
    }
    Ok(ops)
}

async fn clean(caller: &Caller, top: Ino, dirs: &[Dir]) -> Result<u64, StoreError> {
    let inos = find(caller, top, dirs).await?;
    let mut ops = 0;
    for (number, dir) in dirs.iter().enumerate() {
        caller.list(inos[number], false).await?;
        for file in (0..dir.files).step_by(2) {
            caller.message().await;
            caller.delete(inos[number], &object(file)).await?;
            ops += 1;
        }
    }
    Ok(ops)
}
