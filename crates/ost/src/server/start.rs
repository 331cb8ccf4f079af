//! Starts and stops a target's server.

use std::future::Future;
use std::rc::{Rc, Weak};

use env::sync::first;
use env::{Env, Listener};
use types::{Duration, Epoch};

use super::{Config, ServeError, Server, upkeep};
use crate::store::ObjectStore;

/// How long the server's end waits for changes in flight: each waits for the device only.
const END_PATIENCE: Duration = Duration::from_secs(30);

/// A target that listens.
pub struct Ost {
    server: Rc<Server>,
    listener: Rc<Listener>,
}

/// A target for its administrators, as long as it serves.
pub struct Control {
    server: Weak<Server>,
}

impl Control {
    /// Its state as JSON; nothing once it has ended.
    pub fn status(&self) -> Option<String> {
        Some(self.server.upgrade()?.status())
    }

    /// The address it listens on; nothing once it has ended.
    pub fn address(&self) -> Option<String> {
        Some(self.server.upgrade()?.address.borrow().clone())
    }

    /// Requests a scrub that reads at most so many bytes a second (0: no bound), or stops the
    /// running one.
    pub fn scrub(&self, rate: Option<u64>) {
        let Some(server) = self.server.upgrade() else { return };
        match rate {
            Some(rate) => server.scrubber.request(rate),
            None => server.scrubber.cancel(),
        }
    }
}

impl Ost {
    /// Loads the known clients from the store and begins to listen.
    ///
    /// # Errors
    /// The keys or the address cannot be used; the store failed. The store is closed.
    pub async fn start(
        env: Env,
        store: Rc<ObjectStore>,
        config: Config,
    ) -> Result<Ost, ServeError> {
        let server = Server::new(env, store, config);
        match Ost::listen(&server).await {
            Ok(listener) => Ok(Ost { server, listener: Rc::new(listener) }),
            Err(error) => {
                server.begin_stop();
                // If this fails, the store has: the next opening recovers.
                drop(server.runtime.store.close().await);
                Err(error)
            }
        }
    }

    async fn listen(server: &Rc<Server>) -> Result<Listener, ServeError> {
        server.door.refresh().map_err(ServeError::Keys)?;
        server.access.load().await?;
        server.sessions.load().await?;
        let (env, address) = (&server.runtime.env, &server.runtime.config.listen);
        let listener = env
            .listen(address)
            .await
            .map_err(|error| ServeError::Listen(format!("cannot listen on {address}: {error}")))?;
        *server.address.borrow_mut() = listener.local_address();
        Ok(listener)
    }

    /// The address it listens on, with the port that was chosen.
    pub fn address(&self) -> String {
        self.listener.local_address()
    }

    /// Name of its file system.
    pub fn fs_name(&self) -> String {
        self.server.runtime.fs_name.clone()
    }

    /// The epoch of this start.
    pub fn epoch(&self) -> Epoch {
        self.server.runtime.epoch
    }

    /// The handle for its control socket. It keeps neither the target nor its device open.
    pub fn control(&self) -> Control {
        Control { server: Rc::downgrade(&self.server) }
    }

    /// Serves until `stop` ends, then makes everything durable and closes the store.
    ///
    /// # Errors
    /// The store failed; a restart recovers.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let Ost { server, listener } = self;
        let env = server.runtime.env.clone();
        let (failed, ended) = (server.runtime.stopped(), server.runtime.stopped());
        server.scrubber.begin();
        env.spawn(upkeep::run(server.clone()));
        let counted = server.clone();
        let clients = move || counted.sessions.len();
        env.spawn(session::server::accept(server.clone(), listener.clone(), clients, ended));
        let _ = first(stop, failed).await;
        server.begin_stop();
        drop(listener);
        if let Some(error) = server.runtime.failure() {
            return Err(error.into());
        }
        // A change that takes longer is lost, or not, as in a crash: its client has no answer.
        let _ = env.timeout(END_PATIENCE, server.access.calmed()).await;
        Ok(server.runtime.store.close().await?)
    }
}

/// Runs a target's server until `stop` ends.
///
/// # Errors
/// As [`Ost::start`] and [`Ost::run`].
pub async fn serve(
    env: Env,
    store: Rc<ObjectStore>,
    config: Config,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    Ost::start(env, store, config).await?.run(stop).await
}
