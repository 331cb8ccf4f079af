//! A path between clients and their server that can be cut: bytes go nowhere, and no end hears of
//! it.

use std::cell::Cell;
use std::rc::Rc;

use env::sync::Notify;
use env::{Env, Stream};

use bench::{BenchError, Res};

/// Bytes of a read.
const READ: usize = 64 << 10;

#[derive(Default)]
struct Switch {
    cut: Cell<bool>,
    changed: Notify,
}

impl Switch {
    async fn passes(&self) {
        loop {
            let changed = self.changed.notified();
            if !self.cut.get() {
                return;
            }
            changed.await;
        }
    }
}

/// See the module.
pub struct Relay {
    address: String,
    switch: Rc<Switch>,
}

impl Relay {
    /// A path to `server`.
    ///
    /// # Errors
    /// It cannot listen.
    pub async fn start(env: &Env, server: &str) -> Res<Relay> {
        let wrong = |error: std::io::Error| BenchError(format!("making a path: {error}"));
        let listener = env.listen("127.0.0.1:0").await.map_err(wrong)?;
        let (address, switch) = (listener.local_address(), Rc::<Switch>::default());
        let (env, server, shared) = (env.clone(), server.to_owned(), switch.clone());
        env.clone().spawn(async move {
            while let Ok(client) = listener.accept().await {
                env.spawn(path(env.clone(), client, server.clone(), shared.clone()));
            }
        });
        Ok(Relay { address, switch })
    }

    /// Where clients connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Cuts the path, or heals it. What was sent meanwhile arrives then.
    pub fn cut(&self, cut: bool) {
        self.switch.cut.set(cut);
        self.switch.changed.notify_all();
    }
}

async fn path(env: Env, client: Stream, server: String, switch: Rc<Switch>) {
    switch.passes().await;
    let Ok(server) = env.connect(&server).await else {
        client.shutdown();
        return;
    };
    env.spawn(pass(server.clone(), client.clone(), switch.clone()));
    pass(client, server, switch).await;
}

/// Passes bytes on, and then the end.
async fn pass(from: Stream, to: Stream, switch: Rc<Switch>) {
    loop {
        let (read, bytes) = from.read(Vec::with_capacity(READ), READ).await;
        switch.passes().await;
        match read {
            Ok(1..) if to.write_all(bytes).await.0.is_ok() => {}
            _ => break,
        }
    }
    from.shutdown();
    to.shutdown();
}
