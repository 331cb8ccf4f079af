//! Starts and stops a server.

use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use env::{DiskOptions, Env, Listener};
use mfs::{Cost, Mfs};
use proto::mds::PagInfo;
use types::label::{Label, LabelKind};
use types::limits::BLOCK;
use types::{ClientId, Duration};

use crate::config::{Config, PagPlace};
use crate::devices::DataDevice;
use crate::hello::ClientInfo;
use crate::introspection::Introspection;
use crate::ops::READ;
use crate::server::{ServeError, Server, upkeep, watch_clock};
use crate::status::{self, Status};
use crate::{connection, evict, grace, reaper, scrub};

/// Pause after a failed accept (too many files, for example).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A server that listens.
pub struct Mds {
    server: Rc<Server>,
    listener: Rc<Listener>,
}

impl Mds {
    /// Loads the known clients from the store and begins to listen.
    ///
    /// # Errors
    /// The address or a data device cannot be used; the store failed.
    pub async fn start(env: Env, mfs: Mfs, config: Config) -> Result<Mds, ServeError> {
        let server = Rc::new(Server::new(env.clone(), mfs, config));
        learn_pags(&server).await?;
        let (known, _) = server.mfs.run(READ, |txn| txn.clients()).await?;
        let mut known: BTreeMap<ClientId, ClientInfo> =
            known.into_iter().map(|(client, info)| (client, ClientInfo::decode(&info))).collect();
        evict::reload(&server, &known).await?;
        for client in server.quarantine.clients() {
            known.remove(&client);
            server.log(&format!("client {client} has been evicted, before the restart"));
        }
        if !known.is_empty() {
            server.log(&format!("waiting for {} known clients to come back", known.len()));
            server.mfs.run(Cost::DELETE, |txn| txn.begin_replays()).await?;
            // Clients may replay to the next server what this one creates: that server must not
            // begin to allocate at the same place.
            server.mfs.sync().await?;
        }
        server.grace.set_known(known);
        let listener = env.listen(&server.config.listen).await.map_err(|error| {
            ServeError::Listen(format!("cannot listen on {}: {error}", server.config.listen))
        })?;
        *server.address.borrow_mut() = listener.local_address();
        Ok(Mds { server, listener: Rc::new(listener) })
    }

    /// The address it listens on, with the port that was chosen.
    pub fn address(&self) -> String {
        self.listener.local_address()
    }

    /// Read access to its state, for tests.
    pub fn introspection(&self) -> Introspection {
        Introspection::of(&self.server)
    }

    /// Its state.
    pub async fn status(&self) -> Status {
        status::collect(&self.server).await
    }

    /// Serves until `stop` ends, then checkpoints and closes the store.
    ///
    /// # Errors
    /// The store failed; a restart recovers.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServeError> {
        let server = self.server;
        let env = server.env.clone();
        let failed = server.stop.notified();
        env.spawn(reaper::run(server.clone()));
        if server.config.scrub_interval > Duration::ZERO {
            scrub::begin(&server);
        }
        env.spawn(upkeep(server.clone()));
        env.spawn(watch_clock(server.clone()));
        env.spawn(grace::run(server.clone()));
        env.spawn(accept(server.clone(), self.listener.clone()));
        first(stop, failed).await;
        server.begin_stop();
        match server.failure() {
            Some(error) => Err(error.into()),
            None => Ok(server.mfs.close().await?),
        }
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

/// Waits until one of two futures ends.
async fn first(a: impl Future<Output = ()>, b: impl Future<Output = ()>) {
    let (mut a, mut b) = (Box::pin(a), Box::pin(b));
    std::future::poll_fn(|cx| {
        if a.as_mut().poll(cx).is_ready() || b.as_mut().poll(cx).is_ready() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

async fn accept(server: Rc<Server>, listener: Rc<Listener>) {
    loop {
        let stop = server.stop.notified();
        if server.is_stopping() {
            return;
        }
        let mut accepted = None;
        first(async { accepted = Some(listener.accept().await) }, stop).await;
        let Some(accepted) = accepted else { return };
        match accepted {
            Ok(stream) => server.env.spawn(connection::serve(server.clone(), stream)),
            Err(error) => {
                server.log(&format!("cannot accept a connection: {error}"));
                server.env.sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Joins the store's table of data zones with the configured paths, and opens the devices for their
/// locks.
async fn learn_pags(server: &Rc<Server>) -> Result<(), ServeError> {
    let (states, _) = server.mfs.run(READ, |txn| txn.pags()).await?;
    let mut pags = Vec::new();
    for state in states {
        let place = server.config.pags.iter().find(|place| place.id == state.id);
        if let Some(place) = place {
            if place.uuid != state.uuid {
                let text = format!(
                    "{}: the configuration gives data zone {} the UUID {}, the metadata {}",
                    place.path, place.id, place.uuid, state.uuid
                );
                return Err(ServeError::Device(text));
            }
            open_device(server, place).await?;
        }
        let path = place.map_or_else(String::new, |place| place.path.clone());
        pags.push(PagInfo { id: state.id, uuid: state.uuid, blocks: state.total + 1, path });
    }
    *server.pags.borrow_mut() = pags;
    Ok(())
}

/// Opens a zone's device and checks its label. A device that this host does not have is no error:
/// clients may have it.
async fn open_device(server: &Rc<Server>, place: &PagPlace) -> Result<(), ServeError> {
    if place.path.is_empty() {
        return Ok(());
    }
    let disk = match server.env.open_disk(&place.path, DiskOptions::default()).await {
        Ok(disk) => disk,
        Err(error) => {
            server.log(&format!("data zone {} is not opened here: {error}", place.id));
            return Ok(());
        }
    };
    let (read, block) = disk.read(0, server.env.buffer(BLOCK)).await;
    let label = read
        .map_err(|error| error.to_string())
        .and_then(|()| Label::decode(&block).map_err(|error| error.to_string()));
    let wrong = match label {
        Err(text) => Some(text),
        Ok(label) if label.kind != LabelKind::Data => Some(format!("it holds {}", label.kind)),
        Ok(label) if label.fs_uuid != server.identity.uuid => {
            Some(format!("it belongs to the file system {} ({})", label.fs_name, label.fs_uuid))
        }
        Ok(label) if label.pag != place.id || label.pag_uuid != place.uuid => {
            Some(format!("it is data zone {} ({})", label.pag, label.pag_uuid))
        }
        Ok(_) => None,
    };
    if let Some(text) = wrong {
        let text =
            format!("{}: not data zone {} of this file system: {text}", place.path, place.id);
        return Err(ServeError::Device(text));
    }
    server.disks.borrow_mut().push(Rc::new(DataDevice::new(disk)));
    Ok(())
}
