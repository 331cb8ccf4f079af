//! Keys of a simulated cluster.
//!
//! Invariants:
//! - all keys follow from the seed of the run;
//! - a node is allowed when it first connects, and its key stays the same through its restarts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use channel::{Allowed, Entry, Mode, PublicKey, Role, SecretKey, SecretKeys, Squash};
use env::sim::SimRng;
use session::client::{ClientKeys, ReadClientKeys};
use session::server::{KeyFiles, ServerKeys};

use crate::drain_state::{ADMINISTRATOR, MOVER};

/// Separates the keys' random numbers from others.
const KEYS: u64 = 0x6b65_7973_0000_0000;

/// What sessions of this seed of the pool prove: one seed in eight encrypts, one in eight greets
/// with keys alone, and the others use no keys.
pub fn drawn(seed: u64) -> Option<Mode> {
    match SimRng::new(seed ^ KEYS).below(8) {
        0 => Some(Mode::Encrypted),
        1 => Some(Mode::Greeting),
        _ => None,
    }
}

/// The keys of a cluster. Clones are the same.
#[derive(Clone)]
pub struct Keys(Rc<Shared>);

struct Shared {
    mode: Mode,
    rng: RefCell<SimRng>,
    server: SecretKey,
    /// The nodes that the servers allow, which only become more.
    nodes: RefCell<Vec<(String, SecretKey)>>,
}

fn secret(rng: &mut SimRng) -> SecretKey {
    let mut bytes = [0; 32];
    for word in bytes.chunks_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    SecretKey::new(bytes)
}

impl Keys {
    /// The keys of a run.
    pub fn new(mode: Mode, seed: u64) -> Keys {
        let mut rng = SimRng::new(seed ^ KEYS);
        let server = secret(&mut rng);
        let nodes = RefCell::default();
        Keys(Rc::new(Shared { mode, rng: RefCell::new(rng), server, nodes }))
    }

    /// The keys that a starting server asks for.
    pub fn of_server(&self) -> ServerKeys {
        let (shared, seen) = (self.0.clone(), Cell::new(None));
        let read = move || {
            let nodes = shared.nodes.borrow();
            let changed = seen.replace(Some(nodes.len())) != Some(nodes.len());
            changed.then(|| {
                let secrets = Ok(SecretKeys::only(shared.server.clone()));
                KeyFiles { secrets, allowed: allowed(&nodes) }
            })
        };
        let half_open_max = types::limits::HALF_OPEN_MAX;
        ServerKeys { least: self.0.mode, half_open_max, read: Rc::new(read) }
    }

    /// The keys of the client on a node, which the server allows from now on.
    pub fn of_client(&self, node: &str) -> ReadClientKeys {
        let mut nodes = self.0.nodes.borrow_mut();
        let known = nodes.iter().find(|(name, _)| name == node).map(|(_, key)| key.clone());
        let key = known.unwrap_or_else(|| {
            let key = secret(&mut self.0.rng.borrow_mut());
            nodes.push((node.to_owned(), key.clone()));
            key
        });
        let (mode, servers) = (self.0.mode, vec![self.0.server.public()]);
        let keys = ClientKeys { mode, secret: key, servers };
        Rc::new(move || Ok(keys.clone()))
    }
}

fn allowed(nodes: &[(String, SecretKey)]) -> Result<Allowed, String> {
    let line = |key: PublicKey, name: &str| {
        let asks = [ADMINISTRATOR, MOVER].contains(&name);
        let role = if asks { Role::Administrator } else { Role::Client };
        let squash = Squash::Off;
        Entry { key, name: name.to_owned(), role, squash, revoked: false }.to_string()
    };
    let lines: Vec<String> = nodes.iter().map(|(name, key)| line(key.public(), name)).collect();
    Allowed::parse(&lines.join("\n")).map_err(|error| error.to_string())
}
