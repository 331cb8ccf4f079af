//! Starts and stops a server.

use std::future::Future;
use std::rc::Rc;

use env::sync::first;
use env::{Env, Listener, LocalFuture};
use mfs::Mfs;
use types::Epoch;

use crate::administration::Control;
use crate::config::Config;
use crate::error::ServeError;
use crate::introspection::Introspection;
use crate::server::Server;
use crate::status::{self, Status};
use crate::{joint, orphans, upkeep};

/// A server that listens.
pub struct Mds {
    server: Rc<Server>,
    listener: Rc<Listener>,
}

impl Mds {
    /// Loads the known clients from the store and begins to listen.
    ///
    /// # Errors
    /// The address or a data device cannot be used; the store failed. The store is closed, unless
    /// another server has replaced this one: then nothing more is written.
    pub fn start(
        env: Env,
        mfs: Mfs,
        config: Config,
    ) -> LocalFuture<'static, Result<Mds, ServeError>> {
        Box::pin(async move {
            let server = Server::new(env, mfs, config);
            match Mds::listen(&server).await {
                Ok(listener) => Ok(Mds { server, listener: Rc::new(listener) }),
                Err(error) => {
                    server.begin_stop();
                    if !matches!(error, ServeError::Superseded { .. }) {
                        // If this fails, the store has: the next opening recovers.
                        drop(server.runtime.mfs.close().await);
                    }
                    Err(error)
                }
            }
        })
    }

    async fn listen(server: &Rc<Server>) -> Result<Listener, ServeError> {
        server.door.refresh().map_err(ServeError::Keys)?;
        server.space.learn_zones().await?;
        server.space.take_over().await?;
        server.runtime.mfs.load_homes().await?;
        server.recovery.load().await?;
        joint::recover(server).await?;
        let env = &server.runtime.env;
        let listener = env.listen(&server.runtime.config.listen).await.map_err(|error| {
            let address = &server.runtime.config.listen;
            ServeError::Listen(format!("cannot listen on {address}: {error}"))
        })?;
        server.sessions.set_address(listener.local_address());
        Ok(listener)
    }

    /// The address it listens on, with the port that was chosen.
    pub fn address(&self) -> String {
        self.listener.local_address()
    }

    /// Name of its file system.
    pub fn fs_name(&self) -> String {
        self.server.runtime.identity.name.clone()
    }

    /// Read access to its state, for tests.
    pub fn introspection(&self) -> Introspection {
        Introspection::of(&self.server)
    }

    /// What its control socket asks.
    pub fn control(&self) -> Control {
        Control::of(&self.server)
    }

    /// The epoch of this start.
    pub fn epoch(&self) -> Epoch {
        self.server.runtime.identity.epoch
    }

    /// Its state.
    pub fn status(&self) -> LocalFuture<'_, Status> {
        Box::pin(async move { status::collect(&self.server, &session::server::Who::Anybody).await })
    }

    /// Serves until `stop` ends, then checkpoints and closes the store.
    ///
    /// # Errors
    /// The store failed; a restart recovers.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        self.run_until(Box::pin(stop)).await
    }

    fn run_until(self, stop: LocalFuture<'_, ()>) -> LocalFuture<'_, Result<(), ServeError>> {
        Box::pin(async move {
            let Mds { server, listener } = self;
            let env = server.runtime.env.clone();
            let failed = server.runtime.stopped();
            env.spawn(orphans::run(server.orphans.clone(), server.evictions.clone()));
            server.scrubber.begin();
            env.spawn(upkeep::run(server.clone()));
            joint::run(&server);
            env.spawn(server.sessions.clone().watch_clock());
            env.spawn(server.recovery.clone().run());
            let (counted, ended) = (server.clone(), server.runtime.stopped());
            let clients = move || counted.sessions.len();
            env.spawn(session::server::accept(server.clone(), listener.clone(), clients, ended));
            let _ = first(stop, failed).await;
            server.begin_stop();
            // A client that connects from now on is refused at once, and tries another address.
            drop(listener);
            if let Some(text) = server.space.superseded() {
                return Err(ServeError::Superseded { fencing: server.space.fencing_epoch(), text });
            }
            match server.runtime.failure() {
                Some(error) => Err(error.into()),
                None => Ok(server.runtime.mfs.close().await?),
            }
        })
    }
}

/// Runs a server until `stop` ends.
///
/// # Errors
/// As [`Mds::start`] and [`Mds::run`].
pub async fn serve(
    env: Env,
    mfs: Mfs,
    config: Config,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    Mds::start(env, mfs, config).await?.run(stop).await
}
