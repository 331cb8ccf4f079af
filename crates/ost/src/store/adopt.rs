//! The file system that a target belongs to. At first that is the one it was formatted for, whose
//! UUID each block of its metadata has. One that is adopted by another, into which a dump of the
//! first was loaded, keeps these blocks, and has settings that name the other ([`super::format`]).

use engine::cost::Cost;
use engine::error::{Stop, StoreError};
use engine::store::Store;
use engine::txn::Txn;
use types::{ClientId, Epoch, ShardId, Uuid};

use super::ObjectStore;
use super::format::{FENCED, epoch_setting};

/// The setting with the UUID and the beginning of the name.
const ADOPTED: u32 = 0x6f73_6661;
/// The setting with the rest of the name.
const REST: u32 = 0x6f73_6662;
/// Fenced clients that are forgotten in one transaction.
const AT_ONCE: usize = 8;
/// Bytes of the name in the first of them.
const BEGINNING: usize = 46;

/// The file system that has adopted the target; `None`: it belongs to that of its format.
///
/// # Errors
/// The store's; `Corrupt` if the settings are damaged.
pub(super) async fn load(engine: &Store) -> Result<Option<(Uuid, String)>, StoreError> {
    let read = engine.run(Cost::READ, |txn| Ok((txn.setting(ADOPTED)?, txn.setting(REST)?)));
    let (Some(mut first), rest) = read.await?.0 else { return Ok(None) };
    first.extend(rest.unwrap_or_default());
    let read = first.split_first_chunk().and_then(|(uuid, name)| {
        let name = String::from_utf8(name.to_vec()).ok()?;
        types::check_fs_name(&name).then_some((Uuid(*uuid), name))
    });
    let text = "the settings that name the file system are damaged";
    let damaged = || StoreError::corrupt(engine::format::roots::ROOTS_BLOCK, text);
    read.map(Some).ok_or_else(damaged)
}

impl ObjectStore {
    /// Makes the target one of the file system `fs` with this name, into which a dump of its former
    /// one was loaded: the objects stay, and what is known of metadata servers and of clients is
    /// forgotten. Call it again after a crash or an error: until it has succeeded, the target may
    /// refuse clients that have the number of one that the former file system has evicted.
    ///
    /// # Errors
    /// The store's.
    pub async fn adopt(&self, fs: Uuid, name: &str) -> Result<(), StoreError> {
        // The owner first, and durably: a target that still belongs to the former file system
        // keeps refusing the clients that this one has evicted.
        self.engine.run(Cost::DELETE, |txn| enter(txn, fs, name)).await?;
        self.engine.sync().await?;
        *self.adopted.borrow_mut() = Some((fs, name.to_owned()));
        while self.engine.run(Cost::DELETE, forget).await?.0 > 0 {}
        self.fenced.borrow_mut().clear();
        Ok(())
    }
}

/// Forgets some of the clients, and of those that are fenced. Returns how many it has met.
fn forget(txn: &mut Txn<'_>) -> Result<usize, Stop> {
    // The replies of one client may take several transactions.
    let clients = txn.clients_from(ClientId(0), 1)?;
    for (client, _) in &clients {
        txn.drop_client(*client)?;
    }
    let fenced = FENCED.range(txn, &[0; 8], AT_ONCE)?;
    for (client, _) in &fenced {
        FENCED.remove(txn, client)?;
    }
    Ok(clients.len() + fenced.len())
}

/// Enters the owner, and forgets the epochs of the former one's servers.
fn enter(txn: &mut Txn<'_>, fs: Uuid, name: &str) -> Result<(), Stop> {
    for shard in (0..=u8::MAX).map(ShardId) {
        if txn.setting(epoch_setting(shard))?.is_some() {
            txn.set_setting(epoch_setting(shard), &Epoch(0).0.to_le_bytes())?;
        }
    }
    let (begin, rest) = name.as_bytes().split_at(name.len().min(BEGINNING));
    txn.set_setting(ADOPTED, &[&fs.0[..], begin].concat())?;
    txn.set_setting(REST, rest)
}
