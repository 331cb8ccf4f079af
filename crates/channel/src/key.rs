//! Static keys of nodes, and their texts.
//!
//! A key's text is a prefix and 48 characters of base64 (RFC 4648, section 5): the 32 bytes of
//! X25519, and a CRC32C of prefix and bytes, so that a truncated or mistyped key is not taken for
//! another one.
//!
//! | text | what |
//! |---|---|
//! | `redbud-key-…` | a public key |
//! | `redbud-secret-…` | the secret key that belongs to one |
//!
//! Invariants:
//! - each key has one text, and each text one key;
//! - a secret is never part of a message for people.

use std::fmt;
use std::str::FromStr;

use crc32c::{crc32c, crc32c_append};
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

/// Most secret keys that a file may hold: the one in use, and those that still are or already will
/// be valid while keys are changed.
pub const SECRETS_MAX: usize = 4;

const PUBLIC: &str = "redbud-key-";
const SECRET: &str = "redbud-secret-";
/// Characters after the prefix.
const CHARACTERS: usize = 48;
/// Bytes that they stand for: the key and its checksum.
const BYTES: usize = 36;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Why a text is no key, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyError(pub String);

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KeyError {}

/// A node's public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; 32]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(PUBLIC, &self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        if text.starts_with(SECRET) {
            let text = "this is a secret key, and a public one belongs here: keep it to yourself";
            return Err(KeyError(text.to_owned()));
        }
        bytes(PUBLIC, text).map(PublicKey)
    }
}

/// A node's secret key.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey {
    secret: [u8; 32],
    public: PublicKey,
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the secret key of {}", self.public)
    }
}

impl SecretKey {
    /// The key that `secret` is: 32 random bytes.
    pub fn new(secret: [u8; 32]) -> SecretKey {
        let mut public = [0; 32];
        // The resolver has this curve: it is one of the features that this crate asks for.
        if let Some(mut curve) = DefaultResolver.resolve_dh(&DHChoice::Curve25519) {
            curve.set(&secret);
            public.copy_from_slice(curve.pubkey());
        }
        SecretKey { secret, public: PublicKey(public) }
    }

    /// The public key that belongs to it.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// Its bytes, for the handshake.
    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.secret
    }

    /// Its text, for the file that only its owner reads.
    pub fn reveal(&self) -> String {
        text(SECRET, &self.secret)
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<SecretKey, KeyError> {
        if text.starts_with(PUBLIC) {
            return Err(KeyError("this is a public key, and a secret one belongs here".into()));
        }
        bytes(SECRET, text).map(SecretKey::new)
    }
}

/// The secret keys of a node. The first is the one with which it begins handshakes; it accepts
/// handshakes with each of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SecretKeys(Vec<SecretKey>);

impl SecretKeys {
    /// One key.
    pub fn only(key: SecretKey) -> SecretKeys {
        SecretKeys(vec![key])
    }

    /// Reads a file of secret keys: one a line, with empty lines and comments behind `#`.
    ///
    /// # Errors
    /// A line that is no secret key, with its number from 1 on; no key at all, or more than
    /// [`SECRETS_MAX`].
    pub fn parse(text: &str) -> Result<SecretKeys, KeyError> {
        let mut keys = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let key = line.parse();
            let key = key.map_err(|error| KeyError(format!("line {}: {error}", index + 1)))?;
            if keys.len() == SECRETS_MAX {
                let text = format!("line {}: more than {SECRETS_MAX} secret keys", index + 1);
                return Err(KeyError(text));
            }
            keys.push(key);
        }
        match keys.is_empty() {
            true => Err(KeyError("it holds no secret key: `redbud key new` makes one".into())),
            false => Ok(SecretKeys(keys)),
        }
    }

    /// The one with which the node begins handshakes.
    pub fn first(&self) -> &SecretKey {
        &self.0[0]
    }

    /// All, the first one first.
    pub fn all(&self) -> &[SecretKey] {
        &self.0
    }
}

fn checksum(prefix: &str, key: &[u8]) -> [u8; 4] {
    crc32c_append(crc32c(prefix.as_bytes()), key).to_le_bytes()
}

fn text(prefix: &str, key: &[u8; 32]) -> String {
    let mut text = String::with_capacity(prefix.len() + CHARACTERS);
    text.push_str(prefix);
    let mut all = [0; BYTES];
    all[..32].copy_from_slice(key);
    all[32..].copy_from_slice(&checksum(prefix, key));
    for three in all.chunks(3) {
        let word = three.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        for shift in [18, 12, 6, 0] {
            text.push(char::from(ALPHABET[(word >> shift & 63) as usize]));
        }
    }
    text
}

fn bytes(prefix: &str, text: &str) -> Result<[u8; 32], KeyError> {
    let wrong = |why: &str| {
        // The first characters say which text is meant, and give nothing away.
        let shown: String = text.chars().take(prefix.len() + 4).collect();
        let form = format!("`{prefix}` and {CHARACTERS} characters");
        KeyError(format!("`{shown}…` is no key: {why}; a key is {form}"))
    };
    let code = text.strip_prefix(prefix).ok_or_else(|| wrong("it begins otherwise"))?;
    if code.len() != CHARACTERS {
        return Err(wrong(&format!("{} characters follow", code.chars().count())));
    }
    let mut all = [0; BYTES];
    for (three, four) in all.chunks_mut(3).zip(code.as_bytes().chunks(4)) {
        let mut word = 0_u32;
        for byte in four {
            let value = ALPHABET.iter().position(|one| one == byte);
            word = word << 6 | value.ok_or_else(|| wrong("a character is wrong"))? as u32;
        }
        three.copy_from_slice(&word.to_be_bytes()[1..]);
    }
    let mut key = [0; 32];
    key.copy_from_slice(&all[..32]);
    match checksum(prefix, &key) == all[32..] {
        true => Ok(key),
        false => Err(wrong("its checksum is wrong, so a part of it was changed")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_survives_its_text_and_any_change_of_it_is_noticed() {
        for seed in 0..=255_u8 {
            let key = SecretKey::new([seed; 32]);
            let (public, secret) = (key.public().to_string(), key.reveal());
            assert_eq!(public.parse(), Ok(key.public()));
            assert_eq!(secret.parse::<SecretKey>().unwrap(), key);
            assert_ne!(public[PUBLIC.len()..], secret[SECRET.len()..]);
        }
        let text = SecretKey::new([7; 32]).public().to_string();
        for at in 0..text.len() {
            for other in ["A", "z", "-", "é", ""] {
                let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                assert!(changed == text || changed.parse::<PublicKey>().is_err(), "{changed}");
            }
        }
    }

    /// RFC 7748, section 6.1.
    #[test]
    fn public_key_is_that_of_x25519() {
        let hex = |text: &str| -> [u8; 32] {
            let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
            std::array::from_fn(byte)
        };
        let secret = hex("77076d0a7318a57d3c16c17251b26645\
                          df4c2f87ebc0992ab177fba51db92c2a");
        let public = hex("8520f0098930a754748b7ddcb43ef75a\
                          0dbf3a0d26381af4eba4a98eaa9b4e6a");
        assert_eq!(SecretKey::new(secret).public(), PublicKey(public));
    }

    #[test]
    fn secret_never_shows_in_messages() {
        let key = SecretKey::new([9; 32]);
        let secret = key.reveal();
        let shown = format!("{key:?} {:?}", secret.parse::<PublicKey>().unwrap_err());
        assert!(!shown.contains(&secret[SECRET.len()..]), "{shown}");
        let cut = secret[..secret.len() - 1].parse::<SecretKey>().unwrap_err().to_string();
        assert!(!cut.contains(&secret[SECRET.len()..SECRET.len() + 12]), "{cut}");
    }

    #[test]
    fn file_has_one_to_four_keys_and_errors_name_the_line() {
        let keys: Vec<SecretKey> = (1..=5).map(|seed| SecretKey::new([seed; 32])).collect();
        let lines = |count: usize| {
            let lines = keys[..count].iter().map(SecretKey::reveal).collect::<Vec<_>>();
            format!("# keys\n\n{} # the first\n", lines.join("\n"))
        };
        let read = SecretKeys::parse(&lines(4)).unwrap();
        assert_eq!((read.first(), read.all()), (&keys[0], &keys[..4]));
        let error = |text: &str| SecretKeys::parse(text).unwrap_err().0;
        assert!(error(&lines(5)).starts_with("line 7: more than 4"));
        assert!(error("# nothing\n").contains("redbud key new"));
        assert!(
            error(&format!("\n{}\n", keys[0].public())).starts_with("line 2: this is a public")
        );
    }
}
