//! The handshake: `Noise_XK_25519_ChaChaPoly_BLAKE2s`.
//!
//! Each message has a head:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | magic "RBn1" |
//! | 4 | 1 | kind: 1, 2 or 3, the messages of the pattern in their order; 0: refused |
//! | 5 | 1 | mode: 1 all frames are encrypted, 2 frames are clear; of kind 0 the reason |
//! | 6 | 2 | length of the Noise message: 48, 48 and 64; 0 of kind 0 |
//! | 8 | length | the Noise message, without a payload |
//!
//! The client, who knows the server's public key, sends 1 and 3, the server 2. The mode is part of
//! what both prove (the prologue), so nobody in between changes it. Behind message 3 the client
//! sends its hello. The client's key is encrypted: only the server learns who comes.
//!
//! Invariants:
//! - [`Established`] exists only after message 3 has proved the client's key to the server, or
//!   message 2 the server's to the client: a message that was recorded proves nothing to a new
//!   ephemeral key;
//! - neither side keeps more than one message, and the server has no state before message 1.

use snow::params::{CipherChoice, DHChoice, HashChoice, NoiseParams};
use snow::resolvers::{CryptoResolver, DefaultResolver};
use snow::types::{Cipher, Dh, Hash, Random};
use snow::{Builder, HandshakeState};

use crate::{PublicKey, SecretKey, Transport};

/// The first bytes of a handshake.
pub const FIRST_BYTES: [u8; 4] = *b"RBn1";
/// Longest message.
pub const MESSAGE_MAX: usize = HEAD + 64;
const HEAD: usize = 8;
const REFUSED: u8 = 0;
/// Length of each Noise message, by its kind.
const LENGTHS: [usize; 4] = [0, 48, 48, 64];
const PATTERN: &str = "Noise_XK_25519_ChaChaPoly_BLAKE2s";

/// What a session's frames are after the handshake.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Mode {
    /// Clear. Keys were proved, but an active attacker may change frames.
    Greeting,
    /// Encrypted.
    Encrypted,
}

impl Mode {
    fn byte(self) -> u8 {
        match self {
            Mode::Encrypted => 1,
            Mode::Greeting => 2,
        }
    }

    fn of(byte: u8) -> Option<Mode> {
        [Mode::Encrypted, Mode::Greeting].into_iter().find(|mode| mode.byte() == byte)
    }

    fn prologue(self) -> [u8; 8] {
        [b'R', b'e', b'd', b'b', b'u', b'd', 1, self.byte()]
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Encrypted => "encrypted",
            Mode::Greeting => "greeting",
        })
    }
}

/// Why there is no session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Problem {
    /// The bytes are no handshake.
    Malformed,
    /// The client expects a server with another key.
    WrongServer,
    /// The client asks for less than the server allows.
    WrongMode,
    /// The last message proves no key: it was changed, or recorded earlier.
    WrongProof,
    /// The other side says no without a reason that this code knows.
    Unknown,
}

const REASONS: [Problem; 4] =
    [Problem::Malformed, Problem::WrongServer, Problem::WrongMode, Problem::WrongProof];

impl Problem {
    fn byte(self) -> u8 {
        let at = REASONS.iter().position(|reason| *reason == self);
        at.map_or(0, |at| at as u8 + 1)
    }

    fn of(byte: u8) -> Problem {
        let at = usize::from(byte).checked_sub(1);
        at.and_then(|at| REASONS.get(at)).copied().unwrap_or(Problem::Unknown)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Problem::Malformed => "the bytes are no handshake",
            Problem::WrongServer => "the client expects a server with another key",
            Problem::WrongMode => {
                "the client asks for clear frames, the server wants encrypted ones"
            }
            Problem::WrongProof => "the last message of the handshake proves no key",
            Problem::Unknown => "the handshake was refused",
        })
    }
}

/// The result of a handshake.
pub struct Established {
    /// The key that the other side has proved.
    pub key: PublicKey,
    /// Encrypts from now on; `None`: frames are clear.
    pub transport: Option<Transport>,
}

/// Draws the ephemeral key from what the caller gave, once.
struct Given([u8; 32]);

impl Random for Given {
    fn try_fill_bytes(&mut self, into: &mut [u8]) -> Result<(), snow::Error> {
        let given = std::mem::take(&mut self.0);
        match into.len() == given.len() && given != [0; 32] {
            true => into.copy_from_slice(&given),
            false => return Err(snow::Error::Rng),
        }
        Ok(())
    }
}

/// The usual primitives, and randomness from the caller.
struct Resolver([u8; 32]);

impl CryptoResolver for Resolver {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(Given(self.0)))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        DefaultResolver.resolve_dh(choice)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        DefaultResolver.resolve_hash(choice)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        DefaultResolver.resolve_cipher(choice)
    }
}

fn state(
    mode: Mode,
    secret: &SecretKey,
    server: Option<&PublicKey>,
    random: [u8; 32],
) -> Result<HandshakeState, snow::Error> {
    let params: NoiseParams = PATTERN.parse()?;
    let prologue = mode.prologue();
    let builder = Builder::with_resolver(params, Box::new(Resolver(random)))
        .local_private_key(secret.bytes())?
        .prologue(&prologue)?;
    match server {
        Some(server) => builder.remote_public_key(&server.0)?.build_initiator(),
        None => builder.build_responder(),
    }
}

/// Appends the next Noise message, with its head.
fn write(
    state: &mut HandshakeState,
    (kind, mode): (u8, Mode),
    out: &mut Vec<u8>,
) -> Result<(), snow::Error> {
    let len = LENGTHS[usize::from(kind)];
    let mut message = [0; MESSAGE_MAX - HEAD];
    state.write_message(&[], &mut message[..len])?;
    out.extend_from_slice(&FIRST_BYTES);
    out.extend_from_slice(&[kind, mode.byte()]);
    out.extend_from_slice(&(len as u16).to_le_bytes());
    out.extend_from_slice(&message[..len]);
    Ok(())
}

/// Appends a refusal.
pub fn refuse(problem: Problem, out: &mut Vec<u8>) {
    out.extend_from_slice(&FIRST_BYTES);
    out.extend_from_slice(&[REFUSED, problem.byte(), 0, 0]);
}

/// The message at the beginning of `bytes`, if it is complete: its byte behind the kind, and its
/// Noise message. It may be of kind `kind`, or a refusal.
fn next(bytes: &[u8], kind: u8) -> Result<Option<(u8, &[u8])>, Problem> {
    let begun = bytes.len().min(FIRST_BYTES.len());
    if bytes[..begun] != FIRST_BYTES[..begun] {
        return Err(Problem::Malformed);
    }
    let Some(head) = bytes.get(..HEAD) else { return Ok(None) };
    let len = usize::from(u16::from_le_bytes([head[6], head[7]]));
    if head[4] == REFUSED && len == 0 && kind == 2 {
        return Err(Problem::of(head[5]));
    }
    if head[4] != kind || len != LENGTHS[usize::from(kind)] {
        return Err(Problem::Malformed);
    }
    Ok(bytes.get(HEAD..HEAD + len).map(|message| (head[5], message)))
}

fn established(state: HandshakeState, mode: Mode) -> Result<Established, Problem> {
    let key = state.get_remote_static().and_then(|key| key.try_into().ok());
    let key = PublicKey(key.ok_or(Problem::WrongProof)?);
    let state = state.into_transport_mode().map_err(|_| Problem::WrongProof)?;
    let transport = (mode == Mode::Encrypted).then(|| Transport::new(state));
    Ok(Established { key, transport })
}

/// The client's side.
pub struct Initiator {
    /// Until message 3 is made.
    state: Option<Box<HandshakeState>>,
    mode: Mode,
}

impl Initiator {
    /// Begins: appends message 1 to `out`. `random`: 32 fresh random bytes.
    ///
    /// # Errors
    /// The primitives refuse a key, or the random bytes.
    pub fn begin(
        mode: Mode,
        (secret, server): (&SecretKey, &PublicKey),
        random: [u8; 32],
        out: &mut Vec<u8>,
    ) -> Result<Initiator, Problem> {
        let begun = state(mode, secret, Some(server), random);
        let mut state = Box::new(begun.map_err(|_| Problem::Unknown)?);
        write(&mut state, (1, mode), out).map_err(|_| Problem::Unknown)?;
        Ok(Initiator { state: Some(state), mode })
    }

    /// Takes what has come from the server. When message 2 is there, it takes that from `input`,
    /// and appends message 3 to `out`. `None`: more has to come.
    ///
    /// # Errors
    /// The server refuses, or is not the one with the key.
    pub fn receive(
        &mut self,
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Established>, Problem> {
        let Some((mode, message)) = next(input, 2)? else { return Ok(None) };
        if mode != self.mode.byte() {
            return Err(Problem::Malformed);
        }
        let len = message.len();
        let mut state = self.state.take().ok_or(Problem::Malformed)?;
        state.read_message(message, &mut []).map_err(|_| Problem::WrongServer)?;
        input.drain(..HEAD + len);
        write(&mut state, (3, self.mode), out).map_err(|_| Problem::Unknown)?;
        established(*state, self.mode).map(Some)
    }
}

/// The server's side of one connection.
pub struct Responder {
    /// The least that the server allows.
    least: Mode,
    /// After message 1.
    state: Option<(Box<HandshakeState>, Mode)>,
}

impl Responder {
    /// Nothing has come yet.
    pub fn new(least: Mode) -> Responder {
        Responder { least, state: None }
    }

    /// Takes what has come from the client, and removes it from `input`; appends its answer to
    /// `out`. `None`: more has to come. What follows message 3 stays in `input`. `random` draws 32
    /// fresh random bytes.
    ///
    /// # Errors
    /// The handshake has failed; the caller may tell the client by [`refuse`].
    pub fn receive(
        &mut self,
        secrets: &[SecretKey],
        random: impl FnMut() -> [u8; 32],
        input: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Established>, Problem> {
        if self.state.is_none() {
            let Some((mode, message)) = next(input, 1)? else { return Ok(None) };
            let mode = Mode::of(mode).ok_or(Problem::Malformed)?;
            if mode < self.least {
                return Err(Problem::WrongMode);
            }
            let len = message.len();
            let mut state = read_first(secrets, random, mode, message)?;
            write(&mut state, (2, mode), out).map_err(|_| Problem::Malformed)?;
            self.state = Some((state, mode));
            input.drain(..HEAD + len);
        }
        let Some((asked, message)) = next(input, 3)? else { return Ok(None) };
        let len = message.len();
        let Some((mut state, mode)) = self.state.take() else { return Err(Problem::Malformed) };
        if asked != mode.byte() {
            return Err(Problem::Malformed);
        }
        state.read_message(message, &mut []).map_err(|_| Problem::WrongProof)?;
        input.drain(..HEAD + len);
        established(*state, mode).map(Some)
    }
}

/// Reads message 1 with the secret key for which it was made.
fn read_first(
    secrets: &[SecretKey],
    mut random: impl FnMut() -> [u8; 32],
    mode: Mode,
    message: &[u8],
) -> Result<Box<HandshakeState>, Problem> {
    for secret in secrets {
        let begun = state(mode, secret, None, random());
        let mut state = Box::new(begun.map_err(|_| Problem::Unknown)?);
        if state.read_message(message, &mut []).is_ok() {
            return Ok(state);
        }
    }
    Err(Problem::WrongServer)
}

#[cfg(test)]
pub(crate) mod tests;
