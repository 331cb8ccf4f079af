//! The client: one object whose methods are the operations of a mounted file system.

use std::rc::Rc;

use env::Env;
use types::{Duration, Fault, Ino};

use crate::api::{ClientConfig, ClientStatus, ConnectError, Kernel};
use crate::core::Core;
use crate::data::{DataConfig, DataContext};
use crate::rpc::{ContentRpc, Events, Session};

/// How often the inode table's bound is looked after.
const TRIM: Duration = Duration::from_secs(1);
/// How long an unmount waits for a server that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client of one file system. Clones are the same client; it lives on one executor.
#[derive(Clone)]
pub struct Client {
    pub(crate) core: Rc<Core>,
}

impl Client {
    /// Opens a session and the data devices. Fails within `connect_timeout` with what is
    /// wrong and what to do.
    pub async fn connect(
        env: Env,
        config: ClientConfig,
        kernel: Rc<dyn Kernel>,
    ) -> Result<Client, ConnectError> {
        let session = Session::open(env.clone(), config.clone()).await?;
        let core = Core::new(env.clone(), config.clone(), kernel, session.clone());
        let events: Rc<dyn Events> = core.clone();
        session.set_events(Rc::downgrade(&events));
        let data = DataConfig {
            devices: config.devices.clone(),
            dirty_max: config.dirty_max,
            read_only: config.read_only,
        };
        let (fs, pags) = session.volume();
        let rpc = Rc::new(ContentRpc(Rc::downgrade(&core)));
        match DataContext::open(env.clone(), data, session.client(), fs, &pags, rpc).await {
            Ok(data) => core.set_data(data),
            Err(text) => {
                session.close().await;
                return Err(ConnectError { text });
            }
        }
        if let Err(fault) = core.fetch_attr(Ino::ROOT).await {
            session.close().await;
            return Err(ConnectError { text: format!("cannot read the root directory: {fault}") });
        }
        let weak = Rc::downgrade(&core);
        env.clone().spawn(async move {
            loop {
                env.sleep(TRIM).await;
                match weak.upgrade() {
                    Some(core) if !core.session.is_closed() => core.trim().await,
                    _ => return,
                }
            }
        });
        Ok(Client { core })
    }

    /// Everything is written, the pool given back, the session ended. What could not be
    /// written is said in the log.
    pub async fn unmount(&self) {
        let core = &self.core;
        let text = match core.env.timeout(PATIENCE, self.syncfs()).await {
            Some(Ok(())) => None,
            Some(Err(fault)) => Some(fault.text()),
            None => Some(Fault::Unreachable.text()),
        };
        if let Some(text) = text {
            core.session.log(&format!("not everything could be written at unmount: {text}"));
        }
        let _ = core.env.timeout(PATIENCE, core.data().return_pool()).await;
        core.session.close().await;
    }

    /// What it is doing.
    pub fn status(&self) -> ClientStatus {
        let core = &self.core;
        let mut status = ClientStatus {
            inodes: core.inodes.len(),
            names: core.inodes.names(),
            handles: core.handles.len(),
            dirty_bytes: core.data().dirty_bytes(),
            recalls: core.recalls.get(),
            ..ClientStatus::default()
        };
        core.session.status(&mut status);
        status
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.session.abandon();
    }
}
