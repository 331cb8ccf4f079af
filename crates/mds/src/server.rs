//! The server: its owners of state, each of which knows only those before it.
//!
//! Invariants:
//! - there is one thread: no borrow of an owner's state is held across an await;
//! - after every event each owner's `validate` holds. With many leases the server checks less
//!   often, so that an event's share of the check stays bounded.

use std::cell::Cell;
use std::rc::Rc;

use engine::scrubber::Scrubber;
use env::Env;
use mfs::Mfs;
use session::server::Door;

use crate::config::Config;
use crate::eviction::Evictions;
use crate::homes::Learned;
use crate::joint::Joint;
use crate::leases::Leases;
use crate::locks::Locks;
use crate::orphans::Orphans;
use crate::recovery::Recovery;
use crate::runtime::Runtime;
use crate::sessions::Sessions;
use crate::space::Space;
use crate::targets::Targets;
use crate::uncommitted::Uncommitted;
use crate::workers::Workers;

/// So many leases are checked for each event.
const LEASES_PER_EVENT: usize = 1024;

/// See the module.
pub struct Server {
    /// The seam, the store, the configuration, the log, and the server's end.
    pub runtime: Rc<Runtime>,
    /// Who may come in.
    pub door: Door,
    /// Sessions of clients, and their connections.
    pub sessions: Rc<Sessions>,
    /// Leases, gates and recalls.
    pub leases: Rc<Leases>,
    /// Locks of applications.
    pub locks: Rc<Locks>,
    /// Inodes without a name.
    pub orphans: Rc<Orphans>,
    /// Data zones and their devices, and room for grants.
    pub space: Rc<Space>,
    /// Object targets.
    pub targets: Rc<Targets>,
    /// Changes that are not durable yet.
    pub uncommitted: Uncommitted,
    /// Who works on requests.
    pub workers: Rc<Workers>,
    /// Evictions and quarantines.
    pub evictions: Rc<Evictions>,
    /// The time after a restart.
    pub recovery: Rc<Recovery>,
    /// Scrubs of the metadata device.
    pub scrubber: Rc<Scrubber<Runtime>>,
    /// Operations of several shards.
    pub joint: Joint,
    /// Where other shards said that inodes live.
    pub learned: Learned,
}

impl Server {
    /// A server that does not serve yet.
    pub fn new(env: Env, mfs: Mfs, config: Config) -> Rc<Server> {
        let door = Door::new(env.clone(), config.keys.clone(), config.log.clone());
        let runtime = Rc::new(Runtime::new(env, mfs, config));
        let sessions = Rc::new(Sessions::new(runtime.clone()));
        let leases = Rc::new(Leases::new(runtime.clone(), sessions.clone()));
        let locks = Rc::new(Locks::new(runtime.clone(), sessions.clone()));
        let orphans = Rc::new(Orphans::new(runtime.clone(), leases.clone()));
        let targets = Rc::new(Targets::new(runtime.clone()));
        let with = (orphans.clone(), targets.clone());
        let space = Rc::new(Space::new(runtime.clone(), sessions.clone(), with));
        let clients = || (sessions.clone(), leases.clone(), locks.clone());
        let evictions =
            Rc::new(Evictions::new(runtime.clone(), clients(), (orphans.clone(), space.clone())));
        let recovery = Rc::new(Recovery::new(
            runtime.clone(),
            clients(),
            (orphans.clone(), space.clone(), evictions.clone()),
        ));
        let server = Rc::new(Server {
            scrubber: Rc::new(Scrubber::new(runtime.clone())),
            joint: Joint::new(&runtime),
            learned: Learned::default(),
            uncommitted: Uncommitted::default(),
            workers: Workers::new(runtime.env.clone(), runtime.config.serve),
            door,
            runtime,
            sessions,
            leases,
            locks,
            orphans,
            space,
            targets,
            evictions,
            recovery,
        });
        if server.runtime.config.validate {
            let (weak, skip) = (Rc::downgrade(&server), Cell::new(0_usize));
            server.runtime.check_with(move || {
                if skip.get() > 0 {
                    skip.set(skip.get() - 1);
                } else if let Some(server) = weak.upgrade() {
                    server.validate();
                    skip.set(server.leases.table().len() / LEASES_PER_EVENT);
                }
            });
        }
        server
    }

    /// Closes all connections and refuses new ones.
    pub fn begin_stop(&self) {
        self.runtime.begin_stop();
        self.door.close();
        self.sessions.close_connections();
        self.sessions.announce_change();
        self.orphans.stop();
        self.scrubber.stop();
        self.targets.stop();
        self.joint.stop();
        self.runtime.announce_stop();
    }

    /// Checks the invariants of every owner.
    pub fn validate(&self) {
        self.sessions.validate();
        self.leases.validate();
        self.locks.validate();
        self.orphans.validate();
        self.space.validate();
        self.uncommitted.validate();
        self.evictions.validate();
        self.recovery.validate();
        self.scrubber.validate();
    }
}
