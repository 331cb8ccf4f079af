//! Webs on the layouts: their script by the store as a library, or by a worker on a mount.

use std::future::Future;
use std::path::PathBuf;

use bench::scripts::polygraph::{Deed, script};
use bench::worker::Job;
use mfs::StoreError;
use types::Ino;

use crate::layouts::bed::dir_name;
use crate::layouts::{Caller, Played, Workload};

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Web {
    /// It is made.
    Make,
    /// Every file is opened and read, with nothing cached.
    Read,
}

/// Web content of several clients.
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
        let deeds = script(caller.number, self.webs, self.files);
        async move {
            let mut dirs = vec![caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?];
            let mut ops = 0;
            for deed in deeds {
                caller.message().await;
                match (deed, stage) {
                    (Deed::Dir { within, name }, Web::Make) => {
                        dirs.push(caller.mkdir(dirs[within], &name).await?);
                    }
                    (Deed::Dir { within, name }, Web::Read) => {
                        dirs.push(caller.lookup(dirs[within], &name).await?);
                    }
                    (Deed::File { within, name, bytes }, Web::Make) => {
                        caller.create(dirs[within], &name).await?;
                        caller.append(dirs[within], &name, bytes).await?;
                        ops += 1;
                    }
                    (Deed::File { within, name, .. }, Web::Read) => {
                        caller.read(dirs[within], &name).await?;
                        ops += 1;
                    }
                }
            }
            Ok(ops)
        }
    }
}

impl Played for Polygraph {
    fn job(&self, stage: Web, number: u64, dir: PathBuf) -> Job {
        let Polygraph { webs, files, .. } = *self;
        Job::Web { dir, number, webs, files, read: stage == Web::Read, content: false }
    }
}
