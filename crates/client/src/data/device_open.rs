//! Opens a data device: checks that it is the zone, and locks this client's byte.

use std::cell::Cell;
use std::fmt;
use std::io;
use std::rc::Rc;

use env::{Disk, DiskOptions, Env};
use label::{Contents, CopyError, Label, Why};
use proto::mds::{BORROWED_ZONE, PagInfo};
use types::limits::BLOCK_U64;
use types::{ClientId, Duration, Epoch, Uuid};

/// A device that does not answer a look within this time counts as absent at the mount. If it was
/// absent already, it is opened anew. A stop of the client does not count as the device's.
pub(super) const LOOK_MAX: Duration = Duration::from_secs(5);

/// Why a device is not the zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Problem {
    /// It is not there, cannot be read, or does not answer.
    Missing(String),
    /// It is not the expected zone.
    Other(String),
    /// Its label says that it does not hold data.
    Metadata(String),
    /// The byte of this client cannot be locked. `busy`: an open file has it.
    Lock { text: String, busy: bool },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing(text) | Problem::Other(text) | Problem::Metadata(text) => {
                f.write_str(text)
            }
            Problem::Lock { text, .. } => f.write_str(text),
        }
    }
}

impl Problem {
    /// Does it refuse the mount? A missing device does not. Another device does if the path was
    /// given for this zone (`is_given`), and one that holds metadata always does.
    pub fn refuses_mount(&self, is_given: bool) -> bool {
        match self {
            Problem::Missing(_) => false,
            Problem::Other(_) => is_given,
            Problem::Metadata(_) | Problem::Lock { .. } => true,
        }
    }
}

/// A device that was opened.
pub(super) struct Opened {
    /// The open file.
    pub disk: Disk,
    /// First block of the slice of each zone.
    pub starts: Vec<u64>,
    /// What is wrong with one copy of its label.
    pub damage: Option<String>,
}

/// The zones, for messages.
pub(super) fn zone_names(zones: &[PagInfo]) -> String {
    let numbers: Vec<String> = zones.iter().map(|zone| zone.id.to_string()).collect();
    let word = if zones.len() == 1 { "data zone" } else { "data zones" };
    format!("{word} {}", numbers.join(", "))
}

/// How devices of one metadata server are opened.
#[derive(Clone)]
pub(super) struct Opening {
    pub env: Env,
    fs: Uuid,
    /// The number whose byte is locked.
    client: Rc<Cell<ClientId>>,
    /// The highest fencing epoch of the labels read so far.
    fencing_epoch: Rc<Cell<Epoch>>,
    read_only: bool,
}

impl Opening {
    /// For the client with this number.
    pub fn new(env: &Env, fs: Uuid, client: ClientId, read_only: bool) -> Opening {
        let (client, fencing_epoch) = (Rc::new(Cell::new(client)), Rc::default());
        Opening { env: env.clone(), fs, client, fencing_epoch, read_only }
    }

    /// The client's number.
    pub fn client(&self) -> ClientId {
        self.client.get()
    }

    /// The client has a new number.
    pub fn set_client(&self, client: ClientId) {
        self.client.set(client);
    }

    /// Servers of earlier epochs have been replaced.
    pub fn fencing_epoch(&self) -> Epoch {
        self.fencing_epoch.get()
    }

    /// Opens the device at `path`, checks that it has the zones, and locks the client's byte.
    pub async fn open(&self, zones: &[PagInfo], path: &str) -> Result<Opened, Problem> {
        let missing = |error: io::Error| Problem::Missing(error.to_string());
        let options = DiskOptions { write: !self.read_only, exclusive: false };
        let disk = self.env.open_disk(path, options).await.map_err(missing)?;
        let (starts, damage) = self.check(&disk, zones).await?;
        // Until it has the number that the client has at that moment.
        let mut locked = None;
        while !self.read_only && locked != Some(self.client.get()) {
            let client = self.client.get();
            lock_client(&disk, client).await.map_err(|error| Problem::Lock {
                text: error.to_string(),
                busy: error.kind() == io::ErrorKind::ResourceBusy,
            })?;
            locked = Some(client);
        }
        Ok(Opened { disk, starts, damage })
    }

    /// Does the device have the zones? The first block of each, and what is wrong with one copy of
    /// its label.
    pub async fn check(
        &self,
        disk: &Disk,
        zones: &[PagInfo],
    ) -> Result<(Vec<u64>, Option<String>), Problem> {
        let unreadable = |none: label::NoLabel| match &none.why {
            Why::Damaged(CopyError::Unreadable(_)) => Problem::Missing(none.to_string()),
            _ => Problem::Other(none.to_string()),
        };
        let found = label::read(disk).await.map_err(unreadable)?;
        let label = &found.label;
        let starts = zones.iter().map(|zone| slice_of(label, disk, self.fs, zone));
        let starts = starts.collect::<Result<Vec<u64>, String>>();
        let wrong = |text: String| match label.contents() {
            Contents::Data => Problem::Other(text),
            _ => Problem::Metadata(text),
        };
        let starts = starts.map_err(wrong)?;
        // That of a device with zones of other servers only is theirs.
        if zones.iter().any(|zone| zone.kind != BORROWED_ZONE) {
            self.fencing_epoch.set(self.fencing_epoch.get().max(label.fencing_epoch));
        }
        Ok((starts, found.damage.map(|damage| damage.to_string())))
    }

    /// As [`Opening::open`], for at most [`LOOK_MAX`].
    pub async fn open_in_time(&self, zones: &[PagInfo], path: &str) -> Result<Opened, Problem> {
        let (this, zones, path) = (self.clone(), zones.to_vec(), path.to_owned());
        let opened = self.env.spawn_join(async move { this.open(&zones, &path).await });
        self.env.timeout_awake(LOOK_MAX, opened).await.unwrap_or_else(no_answer)
    }
}

/// The device has not answered a look.
pub(super) fn no_answer<T>() -> Result<T, Problem> {
    let seconds = LOOK_MAX.as_nanos() / 1_000_000_000;
    Err(Problem::Missing(format!("it has not answered for {seconds} s")))
}

/// Shows other processes of this host that `client` is alive and may write.
pub(super) async fn lock_client(disk: &Disk, client: ClientId) -> std::io::Result<()> {
    let text = |error: std::io::Error| {
        let text = format!("{}: cannot lock this client's byte: {error}", disk.path());
        std::io::Error::new(error.kind(), text)
    };
    disk.lock_byte(client.0).await.map_err(text)
}

/// Where the slice of this zone begins on the device.
fn slice_of(label: &Label, disk: &Disk, fs: Uuid, pag: &PagInfo) -> Result<u64, String> {
    let slice = label.expect_data(fs, pag.id, Some(pag.uuid))?;
    let end = slice.start.saturating_add(pag.blocks);
    if pag.blocks > slice.blocks || end.saturating_mul(BLOCK_U64) > disk.size() {
        return Err(format!(
            "its label gives the zone {} blocks from block {} on, the device has {}, and the metadata \
             say {} blocks: run `redbud fsck`",
            slice.blocks,
            slice.start,
            disk.size() / BLOCK_U64,
            pag.blocks
        ));
    }
    Ok(slice.start)
}
