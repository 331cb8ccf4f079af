//! Why a server ended.

use std::fmt;

use mfs::StoreError;
use types::Epoch;

/// Why the server ended.
#[derive(Clone, Debug)]
pub enum ServeError {
    /// Its keys, or the list of allowed keys, cannot be read.
    Keys(String),
    /// The server cannot listen on its address.
    Listen(String),
    /// A data device is not what the configuration says.
    Device(String),
    /// Another server has taken over, or the metadata are an older copy.
    Superseded {
        /// The highest fencing epoch that was found.
        fencing: Epoch,
        /// Where.
        text: String,
    },
    /// The metadata store failed.
    Store(StoreError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Keys(text) | ServeError::Listen(text) | ServeError::Device(text) => {
                f.write_str(text)
            }
            ServeError::Superseded { text, .. } => f.write_str(text),
            ServeError::Store(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ServeError {}

impl From<StoreError> for ServeError {
    fn from(error: StoreError) -> ServeError {
        ServeError::Store(error)
    }
}
