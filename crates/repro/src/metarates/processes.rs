//! What the processes of Metarates do.

use std::future::Future;
use std::path::PathBuf;

use mfs::StoreError;
use types::Ino;

use super::{Shape, Work};
use crate::layouts::bed::{Bed, broken, dir_name, file_name};
use crate::layouts::{Caller, Played, Workload};
use bench::Res;
use bench::worker::{Job, Names};

/// Files that are made at most to fill a log.
const FILES_MAX: u64 = 9_999_999;
/// How full it is then: the checkpoint begins at 40.
const LOG_PERCENT: u64 = 38;

/// All processes, each in a directory of its own.
#[derive(Clone, Copy, Debug)]
pub struct Processes(pub Shape);

impl Workload for Processes {
    type Stage = Work;

    fn processes(&self) -> u64 {
        self.0.tasks()
    }

    fn work(
        &self,
        work: Work,
        caller: Caller,
    ) -> impl Future<Output = Result<u64, StoreError>> + 'static {
        let files = self.0.files;
        async move {
            let dir = caller.lookup(Ino::ROOT, &dir_name(caller.number)).await?;
            match work {
                Work::Readdir => return caller.list(dir, false).await,
                Work::ReaddirStat => return caller.list(dir, true).await,
                Work::Create | Work::Utime | Work::Delete => {}
            }
            for file in 0..files {
                caller.message().await;
                let text = file_name(file);
                match work {
                    Work::Create => caller.create(dir, &text).await?,
                    Work::Utime => caller.utime(dir, &text).await?,
                    _ => caller.delete(dir, &text).await?,
                }
            }
            Ok(files)
        }
    }
}

impl Played for Processes {
    fn job(&self, work: Work, _number: u64, dir: PathBuf) -> Job {
        let names = Names { dir: dir.clone(), prefix: "file.".into(), count: self.0.files };
        match work {
            Work::Create => Job::Create(names),
            Work::Utime => Job::Utime(names),
            Work::Readdir => Job::ListNames(dir),
            Work::ReaddirStat => Job::List(dir),
            Work::Delete => Job::Unlink(names),
        }
    }
}

/// Creates files until the log is as full as it gets before the checkpoint begins, and leaves the
/// store as a crash would; gives the bytes of the log that recovery has to read.
pub async fn fill_log(bed: &Bed, env: &env::Env) -> Res<u64> {
    let wrong = |error: StoreError| broken("filling the log", &error);
    let mfs = bed.open(env).await?;
    let layout = bed.layout(&mfs).await?;
    let caller = bed.caller(env, &mfs, &layout, 0);
    let dir = caller.lookup(Ino::ROOT, &dir_name(0)).await.map_err(wrong)?;
    for file in 0..FILES_MAX {
        let usage = mfs.usage();
        if usage.log_used * 100 >= usage.log_bytes * LOG_PERCENT {
            break;
        }
        caller.create(dir, &format!("redo.{file:07}")).await.map_err(wrong)?;
    }
    mfs.sync().await.map_err(wrong)?;
    Ok(mfs.usage().log_used)
}
