//! The server of a target: sessions, capabilities, operations, recovery, status (paper 001).
//!
//! | module | what |
//! |---|---|
//! | [`start`] | starts and stops it |
//! | [`greeting`] | the greeting: a client's number and session |
//! | [`sessions`] | sessions and absent clients, and how they end |
//! | [`request`] | a request from its arrival to its answer |
//! | [`access`] | capabilities, epochs of the metadata servers, fences |
//! | [`upkeep`] | what it does again and again |
//! | [`status`] | its state as JSON |
//!
//! There is no grace: clients never have uncommitted bytes in the same place, so a target needs no
//! order between them. After a restart it serves new clients at once. Those that were there before
//! have one lease to come back; each repeats what was lost, and then goes on.
//!
//! Invariants:
//! - there is one thread: no borrow of an owner's state is held across an await;
//! - a request is answered when the device has its data (step 7a of the paper's section 5), or, if
//!   it asks so, when that is durable (step 8).

mod access;
mod config;
mod error;
mod greeting;
mod request;
mod room;
mod runtime;
pub mod scrub;
mod sessions;
mod start;
mod status;
mod upkeep;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use engine::scrubber::Scrubber;
use env::Env;
use env::sync::{Permit, Semaphore};
use proto::frame::Decoder;
use proto::message::Message;
use proto::ost::{IO_BLOCKS_MAX, Ost as OstPeer, Push, PushReply, Reply, Request};
use session::server::{Connection, Door, Service, SessionState};
use types::limits::BLOCK;
use types::{ClientId, ObjectId, Transno};

use access::Access;
pub use config::{Config, MEMORY, MEMORY_MIN, SCRUB_RATE};
pub use error::ServeError;
use runtime::Runtime;
use sessions::{Session, Sessions};
pub use start::{Control, Ost, serve};

use crate::store::ObjectStore;

/// Such a part of the memory is for reads.
const READ_PART: usize = 4;
const _: () = assert!(IO_BLOCKS_MAX as usize * BLOCK * READ_PART <= MEMORY_MIN);
/// Lines about bytes that do not match their checksums, before only every power of two has one.
const CORRUPT_LINES: u64 = 16;

/// See the module.
pub(crate) struct Server {
    runtime: Rc<Runtime>,
    door: Door,
    sessions: Rc<Sessions>,
    access: Rc<Access>,
    scrubber: Rc<Scrubber<Runtime>>,
    /// Memory for what clients write.
    written: Semaphore,
    /// Memory for what clients repeat after a restart. Writes that hold some of the other may wait
    /// for these clients.
    repeated: Semaphore,
    /// Memory for what clients read. After a restart writes may wait for other clients, and for the
    /// metadata server; reads do not wait for them.
    read: Semaphore,
    /// Memory for content that tools send, which is refused.
    tools: Semaphore,
    /// Requests in flight.
    load: Rc<Cell<usize>>,
    /// Writes that came with other bytes than their checksums say.
    corrupt: Cell<u64>,
    address: RefCell<String>,
}

/// A request in flight.
struct Load(Rc<Cell<usize>>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Server {
    fn new(env: Env, store: Rc<ObjectStore>, config: Config) -> Rc<Server> {
        let door = Door::new(env.clone(), config.keys.clone(), config.log.clone());
        let memory = config.memory.max(MEMORY_MIN);
        let read = memory / READ_PART;
        let runtime = Rc::new(Runtime::new(env, store, config));
        let sessions = Rc::new(Sessions::new(runtime.clone()));
        let access = Rc::new(Access::new(runtime.clone()));
        let scrubber = Rc::new(Scrubber::new(runtime.clone()));
        let (load, corrupt) = (Rc::default(), Cell::new(0));
        let address = RefCell::default();
        Rc::new(Server {
            runtime,
            door,
            sessions,
            access,
            scrubber,
            written: Semaphore::new(memory - read),
            repeated: Semaphore::new(MEMORY_MIN),
            read: Semaphore::new(read),
            tools: Semaphore::new(MEMORY_MIN),
            load,
            corrupt,
            address,
        })
    }

    /// Waits for room for so many bytes of a write; it is free when the value is dropped.
    /// `repeats`: a client repeats them after a restart.
    async fn room_for_write(&self, bytes: usize, repeats: bool) -> Permit {
        let memory = if repeats { &self.repeated } else { &self.written };
        memory.acquire(bytes).await
    }

    /// Bytes for which there is room.
    fn memory_free(&self) -> usize {
        self.written.available() + self.read.available()
    }

    /// Counts a request until the value is dropped.
    fn count_load(&self) -> Load {
        self.load.set(self.load.get() + 1);
        Load(self.load.clone())
    }

    fn load_now(&self) -> u16 {
        self.load.get().try_into().unwrap_or(u16::MAX)
    }

    /// A client has sent bytes that do not match their checksums.
    fn note_corrupt(&self, client: ClientId, object: ObjectId, block: u64) {
        let count = self.corrupt.get() + 1;
        self.corrupt.set(count);
        if count <= CORRUPT_LINES || count.is_power_of_two() {
            self.runtime.log(&format!(
                "client {client}: a write of object {object} at block {block} does not match its \
                 checksums, and is refused ({count} so far)"
            ));
        }
    }

    /// A request has been handled: the invariants hold now.
    fn event_ended(&self) {
        if self.runtime.config.validate {
            self.sessions.validate();
            self.access.validate();
            self.scrubber.validate();
        }
    }

    /// Closes all connections and refuses new ones.
    fn begin_stop(&self) {
        self.runtime.begin_stop();
        self.scrubber.stop();
        self.door.close();
        self.sessions.close_connections();
    }
}

impl Service for Server {
    type Peer = OstPeer;
    type Session = Session;

    fn env(&self) -> &Env {
        &self.runtime.env
    }

    fn log(&self, text: &str) {
        self.runtime.log(text);
    }

    fn door(&self) -> &Door {
        &self.door
    }

    fn connected(&self, connection: &Rc<Connection>) {
        self.sessions.add_connection(connection);
    }

    fn last_committed(&self) -> Transno {
        self.runtime.last_committed()
    }

    fn load(&self) -> u16 {
        self.load_now()
    }

    async fn greet(
        &self,
        connection: &Rc<Connection>,
        decoder: &mut Decoder<OstPeer>,
    ) -> Option<Rc<Session>> {
        self.welcome(connection, decoder).await
    }

    async fn room_for_content(&self, session: &Session, bytes: usize) -> Option<Permit> {
        // A tool has nothing to write, and no lease ends its connection.
        if session.client == ClientId(0) {
            return Some(self.tools.acquire(bytes).await);
        }
        Some(self.room_for_write(bytes, session.state() == SessionState::Recovering).await)
    }

    fn say_alive(&self, connection: &Connection) {
        // That nothing is durable is no news to anybody.
        let push = Push::Committed { transno: Transno::ZERO };
        connection.send::<OstPeer>(&Message::Push { push });
    }

    fn execute(
        self: &Rc<Self>,
        session: &Rc<Session>,
        request: Request,
        fresh: bool,
    ) -> impl Future<Output = ()> + 'static {
        request::serve(self.clone(), session.clone(), request, fresh)
    }

    fn refresh(&self, _session: &Session, _reply: &mut Reply) {}

    fn push_answered(&self, _session: &Session, _reply: PushReply) {}
}
