//! The mounted directory while the server is away.
//!
//! `df`, `mountpoint`, `umount` and `ls -l` of the directory above ask every mount of a host,
//! whoever runs them. So that one server that is away does not stop them all, what they ask of the
//! mounted directory is answered as it was last known once the server has been silent for a second.
//! The kernel keeps none of these answers.

use std::future::Future;
use std::rc::Rc;

use proto::mds::{InoRef, Op};
use types::{Fault, Ino, Rights};

use crate::api::Caller;
use crate::client::Client;
use crate::inode::Inode;
use crate::rpc::Call;

impl Client {
    /// Learns what is told of the mounted directory if the server is away. Without it there is just
    /// less to tell.
    pub(crate) async fn cache_root_info(&self) {
        let ino = InoRef::Is { ino: self.root() };
        let ops = vec![Op::Statfs {}, Op::ListXattr { ino, want: Rights::ATTR }];
        if let Ok(reply) = self.core.session.call(Call::ops(&Caller::default(), ops)).await {
            let _ = self.core.keep_statfs(&reply);
        }
    }

    /// The answer of `ask` about the inode. If it is the mounted directory and the server is
    /// silent: what `known` tells of it, if anything.
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
        if let Some(answer) = core.session.unless_silent(ask.as_mut()).await {
            return answer;
        }
        match known(&root) {
            Some(answer) => answer,
            None => ask.await,
        }
    }
}
