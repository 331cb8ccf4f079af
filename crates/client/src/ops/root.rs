//! The mounted directory while the server is away.
//!
//! `df`, `mountpoint`, `umount` and `ls -l` of the parent directory query every mount of a host,
//! for any user. A single absent server must not block them all. So once the server has been
//! silent for a second, their queries about the mounted directory are answered with what was last
//! known. The kernel caches none of these answers.

use std::future::Future;
use std::rc::Rc;

use proto::mds::Op;
use types::{Fault, Ino, Rights};

use crate::api::Caller;
use crate::client::Client;
use crate::inode::Inode;
use crate::rpc::Call;

impl Client {
    /// Fetches what is reported about the mounted directory while the server is away. If this
    /// fails, less can be reported then.
    pub(crate) async fn cache_root_info(&self) {
        let ino = self.root();
        let names = Op::ListXattr { ino, want: Rights::ATTR };
        if !self.core.rpc.is_single() {
            let _ = self.core.rpc.call(Call::one(&Caller::default(), names)).await;
            let _ = self.core.statfs_of_servers().await;
            return;
        }
        let ops = vec![Op::Statfs {}, names];
        if let Ok(reply) = self.core.rpc.call(Call::ops(&Caller::default(), ops)).await {
            let _ = self.core.keep_statfs(&reply);
        }
    }

    /// The output of `ask` about the inode. For the mounted directory, while its server is silent:
    /// the answer of `known`, if it has one.
    pub(super) async fn or_last_known<T>(
        &self,
        ino: Ino,
        ask: impl Future<Output = Result<T, Fault>>,
        known: impl FnOnce(&Rc<Inode>) -> Option<Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let core = &self.core;
        let Some(root) = core.inodes.get(ino).filter(|_| ino == self.root()) else {
            return ask.await;
        };
        let mut ask = std::pin::pin!(ask);
        if let Some(answer) = core.rpc.of(ino).unless_silent(ask.as_mut()).await {
            return answer;
        }
        match known(&root) {
            Some(answer) => answer,
            None => ask.await,
        }
    }
}
