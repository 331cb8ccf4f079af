//! Clients, the replies stored for them, and small durable settings.
//!
//! Invariants:
//! - a client number is issued once, and names the shard that issued it: no other server issues it;
//! - the transaction of an operation also stores its reply, so that a resent request
//!   gets the original result;
//! - a client has a block with room for a short reply in every slot from its enrolment on, so a
//!   request with such a reply never lacks space for it. A long reply takes a block when it is
//!   needed, from what is free for everybody;
//! - the store can enrol each client that it expects ([`crate::alloc::reservation`]).

use types::{ClientId, Fault, MetaBlock};

use crate::btree::Tree;
use crate::error::Stop;
use crate::format::blob::BlobOwner;
use crate::format::block::BlockType;
use crate::format::reply::{
    REPLY_KEY, REPLY_MAX, REPLY_SLOTS, SETTING_MAX, SETTING_VALUE, SHORT_REPLY_MAX, ShortReply,
    decode_setting, encode_setting, get_long, get_short, long_key, put_long, put_short,
    reply_owner, short_key,
};
use crate::format::roots::{ROOTS_BLOCK, RootId};
use crate::txn::Txn;

/// Clients: number → the first block of the description, 0 if it is empty.
pub const CLIENTS: Tree<8, 8> = Tree::at(RootId(11));
/// Replies stored for clients: client and number of the block → the block.
pub const REPLIES: Tree<{ REPLY_KEY }, 8> = Tree::at(RootId(12));
/// Small durable settings.
pub const SETTINGS: Tree<4, { SETTING_VALUE }> = Tree::at(RootId(13));
/// Number, within the shard, of the next client.
pub const NEXT_CLIENT: RootId = RootId(15);

/// Bytes of a client's description at most.
pub const CLIENT_INFO_MAX: usize = 4096;
/// Reply blocks that one call of [`Txn::drop_client`] frees.
const STEP: usize = 16;

impl Txn<'_> {
    /// Issues a number to a client with this description, and gives it its block of replies.
    ///
    /// # Errors
    /// `TooBig` for a description of more than [`CLIENT_INFO_MAX`] bytes; `NoSpace` if the client
    /// is not an expected one and would need the reserve; `NoNumbers`.
    pub fn new_client(&mut self, info: &[u8]) -> Result<ClientId, Stop> {
        let count = self.root(NEXT_CLIENT)?;
        if count >= ClientId::PER_SHARD {
            return Err(Fault::NoNumbers.into());
        }
        let id = ClientId::of(self.shard(), count);
        self.set_root(NEXT_CLIENT, count + 1)?;
        self.space_change.clients += 1;
        self.with_client_reservation(|txn| {
            txn.put_info(id, None, info)?;
            txn.add_reply_block(&short_key(id))
        })?;
        if self.client_reservation().exceeds_expected()
            && self.meta_space().1 < self.state.space.reserve + self.client_reservation().blocks()
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
        self.clients_from(ClientId(0), usize::MAX)
    }

    /// At most `max` clients with their descriptions, by number, from `first` on.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn clients_from(
        &mut self,
        first: ClientId,
        max: usize,
    ) -> Result<Vec<(ClientId, Vec<u8>)>, Stop> {
        let all = CLIENTS.range(self, &first.0.to_be_bytes(), max)?;
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

    /// Removes a client, and the replies stored for it. `false`: replies remain, call again.
    ///
    /// # Errors
    /// `NotFound` if there is no such client.
    pub fn drop_client(&mut self, client: ClientId) -> Result<bool, Stop> {
        let key = client.0.to_be_bytes();
        let info = CLIENTS.get(self, &key)?.ok_or(Stop::Fault(Fault::NotFound))?;
        let mut found = REPLIES.range(self, &short_key(client), STEP)?;
        found.retain(|(key, _)| reply_owner(key) == client);
        for (key, value) in &found {
            REPLIES.remove(self, key)?;
            self.free_meta(MetaBlock(u64::from_le_bytes(*value)), 1)?;
        }
        if found.len() == STEP {
            return Ok(false);
        }
        let blob = u64::from_le_bytes(info);
        if blob != 0 {
            self.free_blob(MetaBlock(blob), BlobOwner::client(client))?;
        }
        CLIENTS.remove(self, &key)?;
        self.space_change.clients -= 1;
        Ok(true)
    }

    /// The reply stored for a slot of a client: its sequence number and bytes.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn reply(&mut self, client: ClientId, slot: u32) -> Result<Option<(u32, Vec<u8>)>, Stop> {
        let Some(at) = self.reply_block(&short_key(client))? else { return Ok(None) };
        if slot >= REPLY_SLOTS {
            return Ok(None);
        }
        let corrupt = |at, what| Stop::Corrupt(at, what);
        let block = self.read_as(at, BlockType::Reply)?;
        match get_short(block, slot).map_err(|what| corrupt(at, what))? {
            ShortReply::None => return Ok(None),
            ShortReply::Short(seq, bytes) => return Ok(Some((seq, bytes))),
            ShortReply::Long(_) => {}
        }
        let Some(at) = self.reply_block(&long_key(client, slot))? else { return Ok(None) };
        let block = self.read_as(at, BlockType::Reply)?;
        get_long(block, slot).map_err(|what| corrupt(at, what))
    }

    /// The slots of a client for which a reply is stored.
    ///
    /// # Errors
    /// `Stop` of the blocks read.
    pub fn replied_slots(&mut self, client: ClientId) -> Result<Vec<u32>, Stop> {
        let Some(at) = self.reply_block(&short_key(client))? else { return Ok(Vec::new()) };
        let block = self.read_as(at, BlockType::Reply)?;
        let is_kept = |slot: &u32| get_short(block, *slot) != Ok(ShortReply::None);
        Ok((0..REPLY_SLOTS).filter(is_kept).collect())
    }

    fn reply_block(&self, key: &[u8; REPLY_KEY]) -> Result<Option<MetaBlock>, Stop> {
        let value = REPLIES.get(self, key)?;
        Ok(value.map(|value| MetaBlock(u64::from_le_bytes(value))))
    }

    /// Stores a reply of at most [`REPLY_MAX`] bytes, in place of the slot's last reply. One of at
    /// most [`SHORT_REPLY_MAX`] bytes takes no space.
    ///
    /// # Errors
    /// `TooBig` if it is longer; `Invalid` for a slot that no client has; `NoSpace` if a long reply
    /// needs a block, and none but the reserve is free.
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
        if bytes.len() > SHORT_REPLY_MAX {
            let key = long_key(client, slot);
            let at = match self.reply_block(&key)? {
                Some(at) => at,
                None => self.without_reserve(|txn| txn.add_reply_block(&key))?,
            };
            put_long(self.write_as(at, BlockType::Reply)?, slot, seq, bytes);
        }
        let key = short_key(client);
        let at = match self.reply_block(&key)? {
            Some(at) => at,
            // A repair dropped it.
            None => self.with_client_reservation(|txn| txn.add_reply_block(&key))?,
        };
        put_short(self.write_as(at, BlockType::Reply)?, slot, seq, bytes);
        Ok(())
    }

    fn add_reply_block(&mut self, key: &[u8; REPLY_KEY]) -> Result<MetaBlock, Stop> {
        let at = self.alloc_meta(1, None)?;
        self.init(at, BlockType::Reply)?;
        REPLIES.insert(self, key, &at.0.to_le_bytes())?;
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
