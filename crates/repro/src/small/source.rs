//! A source tree on the layouts: its script by the store as a library, or by a worker on a mount.

use std::future::Future;
use std::path::PathBuf;

use bench::scripts::source::{COMPILE, Deed, Source, Step};
use bench::worker::Job;
use mfs::StoreError;
use types::Ino;

use crate::layouts::bed::dir_name;
use crate::layouts::{Caller, Played, Workload};

/// A source tree of each of several clients.
#[derive(Clone, Copy, Debug)]
pub struct SourceTree {
    /// Clients.
    pub clients: u64,
    /// Files of each tree, about.
    pub files: u64,
}

impl Workload for SourceTree {
    type Stage = Step;

    fn processes(&self) -> u64 {
        self.clients
    }

    fn work(
        &self,
        step: Step,
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let deeds = Source::new(self.files).script(caller.number, step);
        async move {
            let mut dirs = vec![caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?];
            let mut ops = 0;
            for deed in deeds {
                if deed.begins() {
                    caller.message().await;
                }
                ops += u64::from(deed.counts());
                match deed {
                    Deed::NewDir { within, name } => {
                        dirs.push(caller.mkdir(dirs[within], &name).await?);
                    }
                    Deed::Dir { within, name } => {
                        dirs.push(caller.lookup(dirs[within], &name).await?);
                    }
                    Deed::Unpack { within, name, bytes } => {
                        caller.create(dirs[within], &name).await?;
                        caller.append(dirs[within], &name, bytes).await?;
                        caller.utime(dirs[within], &name).await?;
                    }
                    Deed::Read { within, name } => drop(caller.read(dirs[within], &name).await?),
                    Deed::Compile => caller.env.sleep(COMPILE).await,
                    Deed::Object { within, name, bytes } => {
                        caller.create(dirs[within], &name).await?;
                        caller.append(dirs[within], &name, bytes).await?;
                    }
                    Deed::List { within } => drop(caller.list(dirs[within], false).await?),
                    Deed::Delete { within, name } => caller.delete(dirs[within], &name).await?,
                }
            }
            Ok(ops)
        }
    }
}

impl Played for SourceTree {
    fn job(&self, step: Step, number: u64, dir: PathBuf) -> Job {
        Job::Source { dir, number, files: self.files, step }
    }
}
