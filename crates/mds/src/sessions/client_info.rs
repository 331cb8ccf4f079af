//! What the store keeps of a client, beside its pool and its kept results.

use env::LockScope;
use proto::wire::{Appended, Bytes};
use proto::{Malformed, Reader, Wire};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientInfo {
    /// Random number of the client's process.
    pub nonce: u64,
    /// Where the server has seen the client's lock on a data device. Only a server that looks there
    /// may take the lock's absence for the death of the client's process.
    pub seen_at: Option<LockScope>,
    /// Name of its node, by its key; empty if it had none.
    pub node: String,
    /// Description of the client for administrators.
    pub description: String,
}

impl ClientInfo {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.nonce.put(&mut out);
        Bytes(self.seen_at.map_or_else(Vec::new, |scope| scope.0.to_vec())).put(&mut out);
        self.description.put(&mut out);
        let node = Some(self.node.clone()).filter(|node| !node.is_empty());
        Appended(node).put(&mut out);
        out
    }

    /// Decodes the bytes; yields empty texts and nonce 0 if they are malformed.
    pub fn decode(bytes: &[u8]) -> ClientInfo {
        let mut reader = Reader::new(bytes);
        let mut read = || -> Result<ClientInfo, Malformed> {
            let nonce = Wire::get(&mut reader)?;
            let seen_at: Bytes = Wire::get(&mut reader)?;
            let seen_at = seen_at.0.try_into().ok().map(LockScope);
            let description = Wire::get(&mut reader)?;
            let Appended(node) = Wire::get(&mut reader)?;
            Ok(ClientInfo { nonce, seen_at, node: node.unwrap_or_default(), description })
        };
        let (node, description) = Default::default();
        read().unwrap_or(ClientInfo { nonce: 0, seen_at: None, node, description })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_info_survives_its_encoding() {
        for seen_at in [None, Some(LockScope([7; 32]))] {
            let (node, description) = ("alpha".into(), "host".into());
            let info = ClientInfo { nonce: 5, seen_at, node, description };
            assert_eq!(ClientInfo::decode(&info.encode()), info);
        }
        assert_eq!(ClientInfo::decode(&[1, 2]).nonce, 0);
    }
}
