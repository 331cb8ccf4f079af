//! A target that this process keeps serving: what failed is opened again.
//!
//! Invariants:
//! - targets depend on each other in nothing: one that fails, or cannot be opened, leaves the
//!   others alone;
//! - a target that has ended keeps nothing of its device, so that this or another process can open
//!   it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use env::Env;
use env::sync::{Notify, first};
use ost::server::{Config, Control, Ost};
use ost::store::{ObjectStore, Options};
use types::json::Json;
use types::limits::BLOCK_U64;
use types::units::human_size;
use types::{Duration, Epoch};

use super::failed;
use super::serve::Served;
use crate::config::TargetsView;
use crate::devices::{open_exclusive, open_journal, with_path};
use crate::exit::Failure;
use crate::log;

/// Pause before a target is opened again; it doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How a target that listens on this address is served.
pub type MakeConfig = Box<dyn Fn(&str) -> Result<Config, Failure>>;

/// Opens targets.
pub struct Opener {
    pub env: Env,
    pub options: Options,
    pub view: Option<TargetsView>,
    pub config: MakeConfig,
}

impl Opener {
    /// Opens a target and begins to serve it.
    async fn open(&self, served: &Served) -> Result<Ost, Failure> {
        let config = (self.config)(&served.listen)?;
        let path = served.device.display().to_string();
        let at = |error: std::io::Error| failed(error.to_string());
        let disk = open_exclusive(&self.env, &path, true).await.map_err(at)?;
        let journal = match &served.journal {
            Some(journal) => {
                let journal = journal.display().to_string();
                Some(open_journal(&self.env, &journal, &disk).await.map_err(at)?)
            }
            None => None,
        };
        let store = ObjectStore::open(&self.env, &disk, journal.as_ref(), self.options).await;
        let store = store.map_err(|error| failed(with_path(&path, &error)))?;
        let (_, name, epoch) = store.identity();
        if let Some(view) = self.view.as_ref().filter(|view| view.name != name) {
            // Nothing was changed but by the opening.
            drop(store.close().await);
            let (file, wanted) = (view.file.display(), &view.name);
            let text = format!("{path}: it is a target of `{name}`, but {file} is of `{wanted}`");
            return Err(failed(text));
        }
        let info = store.info();
        let target = Ost::start(self.env.clone(), store, config).await;
        let target = target.map_err(|error| failed(format!("{path}: {error}")))?;
        log_start(&path, &target, epoch, (info.free * BLOCK_U64, info.blocks * BLOCK_U64));
        Ok(target)
    }
}

fn log_start(path: &str, target: &Ost, epoch: Epoch, (free, all): (u64, u64)) {
    log::line(&format!(
        "{path}: serving a target of `{}` at {}, epoch {epoch}; {} of {} are free",
        target.fs_name(),
        target.address(),
        human_size(free),
        human_size(all)
    ));
}

/// The end of the process, which targets wait for.
#[derive(Default)]
pub struct Stop {
    asked: Cell<bool>,
    notify: Notify,
}

impl Stop {
    pub fn ask(&self) {
        self.asked.set(true);
        self.notify.notify_all();
    }

    async fn asked(&self) {
        let notified = self.notify.notified();
        if !self.asked.get() {
            notified.await;
        }
    }
}

/// See the module.
pub struct Kept {
    served: Served,
    /// Opened and not yet run.
    opened: RefCell<Option<Ost>>,
    state: RefCell<State>,
}

enum State {
    /// The handle through which administrators ask the target.
    Serving(Control),
    /// Why it is not served.
    Down(String),
}

impl Kept {
    /// Opens it once; returns why it could not be opened, too.
    pub async fn open(opener: &Opener, served: Served) -> (Rc<Kept>, Option<Failure>) {
        let state = RefCell::new(State::Down(String::new()));
        let kept = Kept { served, opened: RefCell::new(None), state };
        let failure = kept.try_open(opener).await.err();
        (Rc::new(kept), failure)
    }

    async fn try_open(&self, opener: &Opener) -> Result<(), Failure> {
        match opener.open(&self.served).await {
            Ok(target) => {
                *self.state.borrow_mut() = State::Serving(target.control());
                *self.opened.borrow_mut() = Some(target);
                Ok(())
            }
            Err(failure) => {
                *self.state.borrow_mut() = State::Down(failure.text.clone());
                Err(failure)
            }
        }
    }

    /// The address it listens on, and the name of its file system if it is open.
    pub fn address(&self) -> (String, Option<String>) {
        match &*self.opened.borrow() {
            Some(target) => (target.address(), Some(target.fs_name())),
            None => (self.served.listen.clone(), None),
        }
    }

    /// Its state as JSON.
    pub fn status(&self) -> String {
        let why = match &*self.state.borrow() {
            State::Serving(target) => match target.status() {
                Some(text) => return text,
                None => "it ends".to_owned(),
            },
            State::Down(why) => why.clone(),
        };
        let mut out = Json::default();
        out.open('{');
        out.number("version", 1);
        out.text("device", &self.served.device.display().to_string());
        out.text("address", &self.served.listen);
        out.text("state", "stopped");
        out.text("error", &why);
        out.close('}');
        out.into_text()
    }

    /// Does it listen at this address? At any, if none is given.
    pub fn is_at(&self, address: Option<&str>) -> bool {
        let state = self.state.borrow();
        let State::Serving(target) = &*state else { return address.is_none() };
        address.is_none_or(|address| target.address().as_deref() == Some(address))
    }

    /// Starts a scrub of a target that is served, or stops the running one.
    pub fn scrub(&self, rate: Option<u64>) {
        if let State::Serving(target) = &*self.state.borrow() {
            target.scrub(rate);
        }
    }

    /// Serves it until the process ends; opens it again after a failure. Closes it if it has been
    /// opened, and is not to run.
    ///
    /// # Errors
    /// It was not served when the process ended. The log has the reason.
    pub async fn run(self: Rc<Self>, opener: Rc<Opener>, stop: Rc<Stop>) -> Result<(), ()> {
        let device = self.served.device.display().to_string();
        let mut pause = PAUSE;
        let mut said = String::new();
        loop {
            let target = self.opened.borrow_mut().take();
            if let Some(target) = target {
                let begun = opener.env.now();
                match target.run(stop.asked()).await {
                    Ok(()) => {
                        log::line(&format!("{device}: stopped; everything is durable"));
                        return Ok(());
                    }
                    Err(error) => {
                        let text = format!("{device}: its target has stopped: {error}");
                        *self.state.borrow_mut() = State::Down(text);
                    }
                }
                if opener.env.now().since(begun) > LONGEST_PAUSE {
                    (pause, said) = (PAUSE, String::new());
                }
            }
            self.log_reason(&mut said);
            if first(opener.env.sleep(pause), stop.asked()).await.is_none() {
                return Err(());
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            // The log has the reason if it is another one than before.
            let _ = self.try_open(&opener).await;
        }
    }

    /// Says once why it is not served.
    fn log_reason(&self, said: &mut String) {
        if let State::Down(why) = &*self.state.borrow()
            && why != said
        {
            let again = LONGEST_PAUSE.as_secs();
            log::line(&format!("{why}; it is opened again after at most {again} s"));
            said.clone_from(why);
        }
    }
}
