//! Web content as Polygraph makes it (002 §6.3): directories eight deep, eight in each, one or sixteen
//! files in a directory, which are made and then read.
//!
//! The paper's shape leaves open what "8*8*16" and "depth of directory was 8 with 8 subdirectories in each
//! directory" mean together: all directories of such a tree would be 19 million. Here one of the eight
//! directories of each level goes on to the next, so a *web* has 64 directories, each with its files; a
//! client makes several.

use std::future::Future;

use env::sim::SimRng;
use store::StoreError;
use types::Ino;

use crate::layouts::bed::dir_name;
use crate::layouts::{Caller, Workload};

/// Levels of a web, and directories of a level.
const DEPTH: u64 = 8;
const WIDTH: u64 = 8;
/// Bytes of a file.
const SIZES: std::ops::Range<u64> = 10_000..1_000_000;

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Web {
    /// It is made.
    Make,
    /// Every file is opened and read, with nothing cached.
    Read,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Polygraph {
    /// Clients.
    pub clients: u64,
    /// Webs of each.
    pub webs: u64,
    /// Files of a directory.
    pub files: u64,
}

impl Workload for Polygraph {
    type Stage = Web;

    fn processes(&self) -> u64 {
        self.clients
    }

    fn work(
        &self,
        stage: Web,
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let plan = *self;
        async move {
            let top = caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?;
            let mut rng = SimRng::new(caller.number);
            let mut ops = 0;
            for web in 0..plan.webs {
                let mut level = enter(&caller, stage, top, &format!("web{web:04}")).await?;
                for _ in 0..DEPTH {
                    let mut next = level;
                    for number in 0..WIDTH {
                        let dir = enter(&caller, stage, level, &format!("d{number}")).await?;
                        ops += plan.files(&caller, stage, dir, &mut rng).await?;
                        next = dir;
                    }
                    level = next;
                }
            }
            Ok(ops)
        }
    }
}

impl Polygraph {
    async fn files(
        &self,
        caller: &Caller,
        stage: Web,
        dir: Ino,
        rng: &mut SimRng,
    ) -> Result<u64, StoreError> {
        for number in 0..self.files {
            let file = format!("object{number:02}.html");
            caller.message().await;
            match stage {
                Web::Make => {
                    let bytes = SIZES.start + rng.below(SIZES.end - SIZES.start);
                    caller.create(dir, &file).await?;
                    caller.append(dir, &file, bytes).await?;
                }
                Web::Read => drop(caller.read(dir, &file).await?),
            }
        }
        Ok(self.files)
    }
}

async fn enter(caller: &Caller, stage: Web, dir: Ino, name: &str) -> Result<Ino, StoreError> {
    caller.message().await;
    match stage {
        Web::Make => caller.mkdir(dir, name).await,
        Web::Read => caller.lookup(dir, name).await,
    }
}
