//! Clients, the replies stored for them, and small durable settings.
//!
//! Invariants:
//! - a client number is issued once;
//! - the transaction of an operation also stores its reply, so that a resent request
//!   gets the original result;
//! - the store has room for every reply of every client ([`crate::engine::alloc::reservation`]).

use types::{ClientId, Fault, MetaBlock};

use crate::engine::alloc::reservation::REPLY_SLOTS;
use crate::engine::error::Stop;
use crate::engine::format::blob::BlobOwner;
use crate::engine::format::block::BlockType;
use crate::engine::format::reply::{
    REPLY_KEY, REPLY_MAX, SETTING_MAX, decode_setting, encode_setting, get_reply, put_reply,
    reply_key, reply_owner,
};
use crate::engine::format::roots::ROOTS_BLOCK;
use crate::engine::txn::Txn;
use crate::mfs::trees::{CLIENTS, NEXT_CLIENT, POOLS, QUARANTINES, REPLIES, SETTINGS};

/// Bytes of a client's description at most.
pub const CLIENT_INFO_MAX: usize = 4096;
/// Reply blocks that one call of [`Txn::remove_client`] frees.
const STEP: usize = 16;

impl Txn<'_> {
    /// Issues a number to a client with this description.
    ///
    /// # Errors
    /// `TooBig` for a description of more than [`CLIENT_INFO_MAX`] bytes; `NoSpace`, also if too
    /// little space would remain for the client's replies.
    pub fn new_client(&mut self, info: &[u8]) -> Result<ClientId, Stop> {
        let id = ClientId(self.root(NEXT_CLIENT)?);
        self.set_root(NEXT_CLIENT, id.0 + 1)?;
        self.space_change.add_clients(1, 0);
        self.put_info(id, None, info)?;
        if self.reply_reservation().exceeds_expected()
            && self.meta_space().1 < self.state.space.reserve + self.reply_reservation().blocks()
        {
            return Err(Fault::NoSpace.into());
        }
        Ok(id)
    }

    /// Every client with its description, by number.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn clients(&mut self) -> Result<Vec<(ClientId, Vec<u8>)>, Stop> {
        let all = CLIENTS.range(self, &[0; 8], usize::MAX)?;
        all.into_iter()
            .map(|(key, value)| {
                let client = ClientId(u64::from_be_bytes(key));
                let info = self.read_info(client, u64::from_le_bytes(value))?;
                Ok((client, info))
            })
            .collect()
    }

    /// Changes the description of a client.
    ///
    /// # Errors
    /// `NotFound` if there is no such client; as [`Txn::new_client`].
    pub fn set_client(&mut self, client: ClientId, info: &[u8]) -> Result<(), Stop> {
        let old = CLIENTS.get(self, &client.0.to_be_bytes())?;
        let old = old.ok_or(Stop::Fault(Fault::NotFound))?;
        self.put_info(client, Some(u64::from_le_bytes(old)), info)
    }

    /// Removes a client, whose pool must be empty, and the replies stored for it. Removes its
    /// quarantine in the same transaction as the client. `false`: replies remain, call again.
    ///
    /// # Errors
    /// `NotFound` if there is no such client; `Busy` if its pool is not empty.
    pub fn remove_client(&mut self, client: ClientId) -> Result<bool, Stop> {
        let key = client.0.to_be_bytes();
        let info = CLIENTS.get(self, &key)?.ok_or(Stop::Fault(Fault::NotFound))?;
        let pool =
            POOLS.next(self, &crate::mfs::format::space::pool_key(client, types::PagId(0), 0))?;
        let has_pool = pool.is_some_and(|(pool_key, _)| pool_key[..8] == key);
        if has_pool {
            return Err(Stop::Fault(Fault::Busy));
        }
        let mut found = REPLIES.range(self, &reply_key(client, 0), STEP)?;
        found.retain(|(key, _)| reply_owner(key) == client);
        for (key, value) in &found {
            REPLIES.remove(self, key)?;
            self.space_change.add_clients(0, -1);
            self.free_meta(MetaBlock(u64::from_le_bytes(*value)), 1)?;
        }
        if found.len() == STEP {
            return Ok(false);
        }
        let blob = u64::from_le_bytes(info);
        if blob != 0 {
            self.free_blob(MetaBlock(blob), BlobOwner::client(client))?;
        }
        QUARANTINES.remove(self, &key)?;
        CLIENTS.remove(self, &key)?;
        self.space_change.add_clients(-1, 0);
        Ok(true)
    }

    /// The reply stored for a slot of a client: its sequence number and bytes.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn reply(&mut self, client: ClientId, slot: u32) -> Result<Option<(u32, Vec<u8>)>, Stop> {
        let Some(value) = REPLIES.get(self, &reply_key(client, slot))? else { return Ok(None) };
        let at = MetaBlock(u64::from_le_bytes(value));
        let block = self.read_as(at, BlockType::Reply)?;
        get_reply(block, slot).map_err(|what| Stop::Corrupt(at, what))
    }

    /// Stores a reply of at most [`REPLY_MAX`] bytes, in place of the slot's last reply.
    ///
    /// # Errors
    /// `TooBig` if it is longer; `Invalid` for a slot that no client has.
    pub fn set_reply(
        &mut self,
        client: ClientId,
        slot: u32,
        seq: u32,
        bytes: &[u8],
    ) -> Result<(), Stop> {
        if bytes.len() > REPLY_MAX {
            return Err(Stop::Fault(Fault::TooBig));
        }
        if slot >= REPLY_SLOTS {
            return Err(Stop::Fault(Fault::Invalid));
        }
        let key = reply_key(client, slot);
        let at = match REPLIES.get(self, &key)? {
            Some(value) => MetaBlock(u64::from_le_bytes(value)),
            None => self.with_reply_reservation(|txn| txn.add_reply_block(&key))?,
        };
        put_reply(self.write_as(at, BlockType::Reply)?, slot, seq, bytes);
        Ok(())
    }

    fn add_reply_block(&mut self, key: &[u8; REPLY_KEY]) -> Result<MetaBlock, Stop> {
        let at = self.alloc_meta(1, None)?;
        self.init(at, BlockType::Reply)?;
        REPLIES.insert(self, key, &at.0.to_le_bytes())?;
        self.space_change.add_clients(0, 1);
        Ok(at)
    }

    /// A small durable setting.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn setting(&mut self, key: u32) -> Result<Option<Vec<u8>>, Stop> {
        let Some(value) = SETTINGS.get(self, &key.to_be_bytes())? else { return Ok(None) };
        let bytes = decode_setting(&value);
        bytes.map(Some).ok_or_else(|| SETTINGS.corrupt(self, "a setting has an impossible length"))
    }

    /// Sets it, to at most [`SETTING_MAX`] bytes.
    ///
    /// # Errors
    /// `TooBig` if there are more.
    pub fn set_setting(&mut self, key: u32, bytes: &[u8]) -> Result<(), Stop> {
        if bytes.len() > SETTING_MAX {
            return Err(Stop::Fault(Fault::TooBig));
        }
        SETTINGS.insert(self, &key.to_be_bytes(), &encode_setting(bytes))?;
        Ok(())
    }

    fn read_info(&self, client: ClientId, blob: u64) -> Result<Vec<u8>, Stop> {
        match blob {
            0 => Ok(Vec::new()),
            block => self.read_blob(MetaBlock(block), CLIENT_INFO_MAX, BlobOwner::client(client)),
        }
    }

    fn put_info(&mut self, client: ClientId, old: Option<u64>, info: &[u8]) -> Result<(), Stop> {
        if info.len() > CLIENT_INFO_MAX {
            return Err(Stop::Fault(Fault::TooBig));
        }
        let old = old.filter(|&block| block != 0).map(MetaBlock);
        let whose = BlobOwner::client(client);
        let blob = match (info.is_empty(), old) {
            (true, Some(block)) => {
                self.free_blob(block, whose)?;
                MetaBlock(0)
            }
            (true, None) => MetaBlock(0),
            (false, old) => self.write_blob(old, info, whose, ROOTS_BLOCK)?,
        };
        CLIENTS.insert(self, &client.0.to_be_bytes(), &blob.0.to_le_bytes())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::store::{Cost, Mfs};
    use crate::mfs::testing::{formatted, now};

    fn run<T>(mfs: &Mfs, body: impl FnMut(&mut Txn<'_>) -> Result<T, Stop>) -> T {
        now(mfs.run(Cost::STEP, body)).unwrap().0
    }

    #[test]
    fn client_numbers_are_issued_once_and_descriptions_can_change() {
        let mfs = formatted();
        let a = run(&mfs, |txn| txn.new_client(b"a"));
        let b = run(&mfs, |txn| txn.new_client(&[9; CLIENT_INFO_MAX]));
        run(&mfs, |txn| txn.set_client(a, &[1; 4090]));
        run(&mfs, |txn| txn.set_client(b, b""));
        assert_eq!(run(&mfs, |txn| txn.clients()), [(a, vec![1; 4090]), (b, vec![])]);
        assert!(run(&mfs, |txn| txn.remove_client(a)));
        let c = run(&mfs, |txn| txn.new_client(b"c"));
        assert!(a < b && b < c);
        let gone = now(mfs.run(Cost::SMALL, |txn| txn.set_client(a, b"x")));
        assert_eq!(gone.unwrap_err().fault(), Fault::NotFound);
    }

    #[test]
    fn replies_are_stored_per_slot_until_the_client_is_removed() {
        let mfs = formatted();
        let before = run(&mfs, |txn| Ok(txn.meta_space().1));
        let client = run(&mfs, |txn| txn.new_client(b"a"));
        let other = run(&mfs, |txn| txn.new_client(b"b"));
        for slot in 0..REPLY_SLOTS {
            run(&mfs, |txn| txn.set_reply(client, slot, slot + 1, &slot.to_le_bytes()));
        }
        run(&mfs, |txn| txn.set_reply(other, 5, 6, &[7; REPLY_MAX]));
        run(&mfs, |txn| txn.set_reply(client, 4, 99, b""));
        assert_eq!(run(&mfs, |txn| txn.reply(client, 4)), Some((99, vec![])));
        let bytes = 5u32.to_le_bytes().to_vec();
        assert_eq!(run(&mfs, |txn| txn.reply(client, 5)), Some((6, bytes)));
        assert_eq!(run(&mfs, |txn| txn.reply(client, REPLY_SLOTS)), None);
        let too_big = now(mfs.run(Cost::SMALL, |txn| txn.set_reply(other, 1, 1, &[0; 1025])));
        assert_eq!(too_big.unwrap_err().fault(), Fault::TooBig);
        while !run(&mfs, |txn| txn.remove_client(client)) {}
        assert_eq!(run(&mfs, |txn| txn.reply(client, 5)), None);
        assert_eq!(run(&mfs, |txn| txn.reply(other, 5)), Some((6, vec![7; REPLY_MAX])));
        assert!(run(&mfs, |txn| txn.remove_client(other)));
        let left = run(&mfs, |txn| Ok(txn.meta_space().1));
        assert!(before - left <= 4, "{} blocks are not freed", before - left);
    }

    #[test]
    fn quarantine_lasts_until_its_client_is_removed() {
        let mfs = formatted();
        let client = run(&mfs, |txn| txn.new_client(b"a"));
        for slot in 0..REPLY_SLOTS {
            run(&mfs, |txn| txn.set_reply(client, slot, 1, b""));
        }
        run(&mfs, |txn| txn.quarantine(client));
        while !run(&mfs, |txn| txn.release_pool(client)) {}
        let mut steps = 0;
        while !run(&mfs, |txn| txn.clients()).is_empty() {
            assert_eq!(run(&mfs, |txn| txn.quarantines()), [client], "step {steps}");
            run(&mfs, |txn| txn.remove_client(client));
            steps += 1;
        }
        assert!(steps > 1 && run(&mfs, |txn| txn.quarantines()).is_empty());
    }

    #[test]
    fn setting_returns_the_value_set_last() {
        let mfs = formatted();
        assert_eq!(run(&mfs, |txn| txn.setting(7)), None);
        run(&mfs, |txn| txn.set_setting(7, &[1; SETTING_MAX]));
        run(&mfs, |txn| txn.set_setting(7, b"x"));
        assert_eq!(run(&mfs, |txn| txn.setting(7)), Some(b"x".to_vec()));
    }
}
