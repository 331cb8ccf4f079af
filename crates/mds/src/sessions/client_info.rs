//! What the store keeps of a client, beside its pool and its kept results.

use env::LockScope;
use proto::wire::Bytes;
use proto::{Malformed, Reader, Wire};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientInfo {
    /// Random number of the client's process.
    pub nonce: u64,
    /// Where the server has seen the client's lock on a data device. Only a server that looks there
    /// may take the lock's absence for the death of the client's process.
    pub seen_at: Option<LockScope>,
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
        out
    }

    /// Decodes the bytes; yields an empty description and nonce 0 if they are malformed.
    pub fn decode(bytes: &[u8]) -> ClientInfo {
        let mut reader = Reader::new(bytes);
        let mut read = || -> Result<ClientInfo, Malformed> {
            let nonce = Wire::get(&mut reader)?;
            let seen_at: Bytes = Wire::get(&mut reader)?;
            let seen_at = seen_at.0.try_into().ok().map(LockScope);
            Ok(ClientInfo { nonce, seen_at, description: Wire::get(&mut reader)? })
        };
        read().unwrap_or(ClientInfo { nonce: 0, seen_at: None, description: String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_info_survives_its_encoding() {
        for seen_at in [None, Some(LockScope([7; 32]))] {
            let info = ClientInfo { nonce: 5, seen_at, description: "host".into() };
            assert_eq!(ClientInfo::decode(&info.encode()), info);
        }
        assert_eq!(ClientInfo::decode(&[1, 2]).nonce, 0);
    }
}
