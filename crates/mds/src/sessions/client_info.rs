//! What the store keeps of a client, beside its pool and its kept results.

use proto::{Malformed, Reader, Wire};

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientInfo {
    /// Random number of the client's process.
    pub nonce: u64,
    /// See [`super::Session::is_local`].
    pub local: bool,
    /// Description of the client for administrators.
    pub description: String,
}

impl ClientInfo {
    /// Its bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.nonce.put(&mut out);
        self.local.put(&mut out);
        self.description.put(&mut out);
        out
    }

    /// Decodes the bytes; yields an empty description and nonce 0 if they are malformed.
    pub fn decode(bytes: &[u8]) -> ClientInfo {
        let mut reader = Reader::new(bytes);
        let mut read = || -> Result<ClientInfo, Malformed> {
            Ok(ClientInfo {
                nonce: Wire::get(&mut reader)?,
                local: Wire::get(&mut reader)?,
                description: Wire::get(&mut reader)?,
            })
        };
        read().unwrap_or(ClientInfo { nonce: 0, local: false, description: String::new() })
    }
}
