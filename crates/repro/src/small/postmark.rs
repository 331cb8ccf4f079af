//! PostMark on the layouts: its script by the store as a library, or by a worker on a mount.

use std::future::Future;
use std::path::PathBuf;

use bench::scripts::postmark::{Deed, Script, name};
use bench::worker::Job;
use mfs::StoreError;
use types::Ino;

use super::Shape;
use crate::layouts::bed::dir_name;
use crate::layouts::{Caller, Played, Workload};

/// PostMark of several clients.
#[derive(Clone, Copy, Debug)]
pub struct PostMark {
    clients: u64,
    files: u64,
    transactions: u64,
}

impl PostMark {
    /// Of each client's shape.
    pub fn new(shape: &Shape) -> PostMark {
        let Shape { clients, files, transactions, .. } = *shape;
        PostMark { clients, files, transactions }
    }
}

impl Workload for PostMark {
    type Stage = ();

    fn processes(&self) -> u64 {
        self.clients
    }

    fn work(
        &self,
        (): (),
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let plan = *self;
        async move {
            let dir = caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?;
            for deed in Script::new(caller.number, plan.files, plan.transactions) {
                caller.message().await;
                match deed {
                    Deed::Make { file, bytes } => {
                        caller.create(dir, &name(file)).await?;
                        caller.append(dir, &name(file), bytes).await?;
                    }
                    Deed::Read { file } => drop(caller.read(dir, &name(file)).await?),
                    Deed::Append { file, bytes } => caller.append(dir, &name(file), bytes).await?,
                    Deed::Delete { file } => caller.delete(dir, &name(file)).await?,
                }
            }
            Ok(plan.files + plan.transactions)
        }
    }
}

impl Played for PostMark {
    fn job(&self, (): (), number: u64, dir: PathBuf) -> Job {
        let PostMark { files, transactions, .. } = *self;
        Job::PostMark { dir, number, files, transactions, content: false }
    }
}
