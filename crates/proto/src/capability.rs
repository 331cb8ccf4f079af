//! What a metadata server allows a client to do with an object, as a target believes it.
//!
//! Metadata servers and targets share a key. A capability carries a keyed BLAKE3 hash of what it
//! says, so a client can show it to a target, and cannot make or change one.
//!
//! A capability is of one shard, that of its client: the server of that shard has issued it, and
//! its epoch is that server's. Clients have different numbers in different shards. The object may
//! have its number from another shard: a file keeps its object when it moves to another server.
//!
//! Invariants:
//! - a capability counts for one object, one client of the metadata server and the rights in it;
//! - a target refuses one of an epoch before the oldest that it still accepts of that shard;
//! - the hash covers every other field, the file system and a word that no other use has.

use types::{ClientId, Epoch, ObjectId, ShardId, Uuid};

use crate::wire::Wire;
use crate::wire_struct;

/// The object may be read.
pub const READ: u8 = 1;
/// The object may be written, and made by that.
pub const WRITE: u8 = 2;
/// The bearer is the metadata server of a shard: it destroys objects, and fences clients of that
/// shard. The object is 0, the client is number 0 of the shard.
pub const SERVE: u8 = 4;

wire_struct! {
    /// See the module.
    #[derive(Copy)]
    pub struct Capability {
        /// The object.
        pub object: ObjectId,
        /// The client, as the metadata server knows it.
        pub client: ClientId,
        /// [`READ`], [`WRITE`], [`SERVE`].
        pub rights: u8,
        /// The metadata server's epoch.
        pub epoch: Epoch,
        /// Over all of this.
        pub mac: [u8; 16],
    }
}

impl Capability {
    /// The shard whose server has issued it.
    pub fn shard(&self) -> ShardId {
        self.client.shard()
    }
}

/// The key that a file system's metadata servers and targets share.
#[derive(Clone, PartialEq, Eq)]
pub struct TargetKey {
    key: [u8; 32],
    fs: Uuid,
}

impl std::fmt::Debug for TargetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetKey").field("fs", &self.fs).finish_non_exhaustive()
    }
}

impl TargetKey {
    /// The key of the file system `fs`.
    pub fn new(key: [u8; 32], fs: Uuid) -> TargetKey {
        TargetKey { key, fs }
    }

    /// A capability.
    pub fn issue(
        &self,
        object: ObjectId,
        client: ClientId,
        rights: u8,
        epoch: Epoch,
    ) -> Capability {
        let unsigned = Capability { object, client, rights, epoch, mac: [0; 16] };
        Capability { mac: self.mac(&unsigned), ..unsigned }
    }

    /// What the metadata server of `shard` shows to targets.
    pub fn issue_to_server(&self, shard: ShardId, epoch: Epoch) -> Capability {
        self.issue(ObjectId(0), ClientId::of(shard, 0), SERVE, epoch)
    }

    /// Did the holder of the key issue it? What it allows, the caller looks at.
    pub fn is_genuine(&self, capability: &Capability) -> bool {
        // All bytes are compared, so the time says nothing about the first that differs.
        let expected = self.mac(capability);
        let differs = expected.iter().zip(&capability.mac).fold(0, |all, (a, b)| all | (a ^ b));
        differs == 0
    }

    fn mac(&self, capability: &Capability) -> [u8; 16] {
        let said = Capability { mac: [0; 16], ..*capability };
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(b"redbud capability 1");
        hasher.update(&self.fs.0);
        hasher.update(&said.to_bytes());
        let mut mac = [0; 16];
        mac.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_counts_only_as_it_was_issued() {
        let key = TargetKey::new([7; 32], Uuid([1; 16]));
        let issued = key.issue(ObjectId(5), ClientId(9), READ | WRITE, Epoch(3));
        assert!(key.is_genuine(&issued));
        for changed in [
            Capability { object: ObjectId(6), ..issued },
            Capability { client: ClientId(8), ..issued },
            Capability { rights: READ | WRITE | SERVE, ..issued },
            Capability { epoch: Epoch(4), ..issued },
            Capability { mac: [0; 16], ..issued },
        ] {
            assert!(!key.is_genuine(&changed), "{changed:?}");
        }
        let server = key.issue_to_server(ShardId(3), Epoch(3));
        assert_eq!((server.shard(), server.rights), (ShardId(3), SERVE));
        assert!(!key.is_genuine(&Capability { client: ClientId(0), ..server }), "another shard");
        let far = key.issue(ObjectId::of(ShardId(3), 5), ClientId(9), READ, Epoch(3));
        assert_eq!(far.shard(), ShardId(0), "the shard of the client has issued it");
        assert!(!TargetKey::new([7; 32], Uuid([2; 16])).is_genuine(&issued), "another file system");
        assert!(!TargetKey::new([8; 32], Uuid([1; 16])).is_genuine(&issued), "another key");
    }
}
