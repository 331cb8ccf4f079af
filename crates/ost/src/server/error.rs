//! Why a target's server ended.

use std::fmt;

use engine::error::StoreError;

/// See the module.
#[derive(Clone, Debug)]
pub enum ServeError {
    /// Its keys, or the list of allowed keys, cannot be read.
    Keys(String),
    /// It cannot listen on its address.
    Listen(String),
    /// The store failed.
    Store(StoreError),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::Keys(text) | ServeError::Listen(text) => f.write_str(text),
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
