//! Processes of several clients share one page; each has a field of its own in it.
//!
//! Invariants:
//! - a process that writes its field reads it back, at once and later, whatever others do to the
//!   page: see [`Invariant::Own`];
//! - without faults no call takes longer than [`WITHIN`], and every process makes progress: see
//!   [`Invariant::Fair`]. Where disks take their time, each client's turn may take that of a
//!   hand-over longer (`Drawn::hand_over`).
//!
//! The judge does not judge what a kernel returns while another of its processes changes the file.
//! Here that is always so; therefore these two are checked as the calls return.

use client::OpenFlags;
use types::limits::BLOCK_U64;
use types::{Duration, Fault, Ino};

use crate::call::{At, NAMES};
use crate::invariant::Invariant;
use crate::mount::OpenFile;
use crate::workload::Process;

/// The bound of [`Invariant::Fair`] on disks with the latencies of the world.
pub const WITHIN: Duration = Duration::from_millis(50);
/// Bytes of a field.
const FIELD: u64 = 64;
/// Most writes in a row without a pause.
const BURST: u64 = 300;

impl Process {
    /// Uses the field of this process, or those of others.
    pub(crate) async fn use_fields(&mut self) -> Result<(), Fault> {
        let file = self.shared_file().await?;
        let (page, field, len) = (BLOCK_U64 as u32, self.field(), FIELD as u32);
        match self.rng.below(16) {
            0 => self.write_on(file).await,
            1..8 => self.write_field(file).await,
            8..12 => self.in_time(self.mount.read(file, 0, page)).await,
            // Its second field lies in the same page.
            12..14 if self.script.maps => {
                let store = self.mount.store(file, field + BLOCK_U64 / 2, len);
                self.in_time(store).await;
                Ok(())
            }
            _ => self.in_time(self.mount.read(file, field, len)).await,
        }
    }

    /// Runs a call, which must end soon in a run without faults.
    async fn in_time<T>(&self, call: impl Future<Output = T>) -> T {
        let begun = self.mount.env.now();
        let answer = call.await;
        let waited = self.mount.env.now().since(begun);
        if !self.script.has_faults && waited > self.script.page_within {
            let text = format!("{} waited for {waited:?}", self.name_of());
            self.mount.history.stream().broken(Invariant::Fair, &text);
        }
        answer
    }

    fn name_of(&self) -> String {
        format!("process {} of client {}", self.number, self.mount.slot)
    }

    /// The offset of its field.
    fn field(&self) -> u64 {
        (self.mount.slot as u64 * 4 + self.number % 4) * FIELD
    }

    async fn shared_file(&mut self) -> Result<OpenFile, Fault> {
        if let Some(file) = self.files.first() {
            return Ok(*file);
        }
        let at = At { dir: Ino::ROOT, name: *NAMES.start() };
        let file = self.mount.create(at, false, OpenFlags::READ_WRITE).await?;
        self.files.push(file);
        // Makes the first page whole.
        self.mount.write(file, Some(BLOCK_U64 - 1), 1).await?;
        Ok(file)
    }

    /// Writes the field of this process, and reads it back.
    async fn write_field(&mut self, file: OpenFile) -> Result<(), Fault> {
        let at = self.field();
        let evictions = self.mount.client.status().evictions;
        let wrote = self.in_time(self.mount.write_known(file, at, FIELD as u32)).await?;
        let Some(wrote) = wrote else { return Ok(()) };
        let read = self.in_time(self.mount.peek(file, at, FIELD as u32)).await?;
        let sure = !self.script.has_faults && self.mount.client.status().evictions == evictions;
        if sure && read != wrote {
            let text = format!("{} does not find what it wrote at {at}", self.name_of());
            self.mount.history.stream().broken(Invariant::Own, &text);
        }
        Ok(())
    }

    /// Writes a few bytes again and again.
    async fn write_on(&mut self, file: OpenFile) -> Result<(), Fault> {
        let at = self.field();
        for _ in 0..self.rng.below(BURST) {
            self.in_time(self.mount.write(file, Some(at), 8)).await?;
        }
        Ok(())
    }
}
