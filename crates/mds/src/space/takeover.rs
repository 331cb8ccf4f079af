//! Takeovers: a server that starts where the last one cannot be seen to have ended.
//!
//! The label of the metadata device says where the last server had that device open: in which start
//! of which kernel, by which device node. A server that opened it there, too, holds the lock that
//! the last one held, so that one has ended. Any other server *takes over*. It writes its own
//! epoch, which is above all earlier ones, into the labels of the data devices as their *fencing
//! epoch*. Who reads it with an earlier server, or is one, writes no more:
//!
//! | who reads a label | its fencing epoch is above | then |
//! |---|---|---|
//! | a server that starts | that of the last opening of its metadata | it refuses to start, before it writes anything |
//! | a server that looks at a device | the server's own | it ends without a checkpoint |
//! | a client that mounts, or looks at a device | that of its session's server | it writes nothing until a server with that epoch has greeted it |
//!
//! A server looks at each device about each 10 s, and sees nothing where its host reaches none. A
//! client looks only after a request to a device has failed, and when a device comes back: this
//! stops none whose devices are sound. So labels are no substitute for making sure that the old
//! server is dead.
//!
//! Invariants:
//! - a fencing epoch rises at takeovers only, and never falls;
//! - the label of the metadata device is written last: until then a crash leaves a server that
//!   takes over again, with a higher epoch;
//! - no device that does not answer keeps a server from starting;
//! - a data device whose label is behind is not forgotten: it is raised at each look until that
//!   succeeds.

use env::{DiskOptions, Env, LockScope};
use types::Epoch;

use super::{Space, zones};
use crate::error::ServeError;
use crate::runtime::Runtime;

/// The highest epoch of the first server of a new file system: `redbud mkfs` opens it twice.
const FIRST: Epoch = Epoch(3);

/// Compares where the last server had the metadata device open with where this one has it.
fn is_takeover(served_at: Option<LockScope>, here: Option<LockScope>, epoch: Epoch) -> bool {
    match served_at {
        None => epoch > FIRST,
        Some(last) => here != Some(last),
    }
}

/// The highest fencing epoch in the labels of the devices at `paths`, as far as they are of the
/// file system on `disks`. To be asked before the metadata are opened, as that raises their epoch.
/// A device that does not answer is left out.
///
/// # Errors
/// `Superseded`: the metadata have a lower epoch, so they are an older copy. The store's.
pub async fn check_epoch(
    env: &Env,
    disks: impl Into<mfs::journal::Disks>,
    paths: &[String],
) -> Result<Epoch, ServeError> {
    let (uuid, stored) = mfs::Mfs::stored_epoch(env, disks).await?;
    let mut highest = Epoch(0);
    for path in paths {
        let (this, path) = (env.clone(), path.clone());
        let asked = env.spawn_join(async move {
            let disk = this.open_disk(&path, DiskOptions::default()).await.ok()?;
            label::read(&disk).await.ok().map(|found| found.label)
        });
        let found = env.timeout(zones::LOOK_MAX, asked).await.flatten();
        let found = found.filter(|label| label.fs_uuid == uuid);
        highest = highest.max(found.map_or(Epoch(0), |label| label.fencing_epoch));
    }
    if stored >= highest {
        return Ok(highest);
    }
    Err(ServeError::Superseded {
        fencing: highest,
        text: format!(
            "the label of a data device has fencing epoch {highest}, these metadata have epoch \
             {stored}: they are an older copy of those that another server has taken over with"
        ),
    })
}

impl Space {
    /// Raises the fencing epoch of the data devices, if this server takes over.
    ///
    /// # Errors
    /// A newer server has taken over, or the label of the metadata device cannot be written.
    pub async fn take_over(&self) -> Result<(), ServeError> {
        let (runtime, own) = (&self.runtime, self.runtime.identity.epoch);
        let Some(device) = runtime.mfs.device() else { return Ok(()) };
        if let Some(text) = self.devices.superseded() {
            let fencing = self.devices.fencing_epoch();
            return Err(ServeError::Superseded { fencing, text });
        }
        let here = device.disk.lock_scope();
        let found = label::read(&device.disk).await.ok();
        let known = found.as_ref().map(|found| (found.label.fencing_epoch, found.label.served_at));
        let (fencing, served_at) = known.unwrap_or_default();
        let served_at = (served_at != [0; 32]).then_some(LockScope(served_at));
        let takes_over = is_takeover(served_at, here, own);
        let fencing = if takes_over { own } else { fencing };
        self.devices.set_fencing_epoch(fencing).await;
        if takes_over {
            runtime.log(&format!(
                "this server has taken over from one that ran elsewhere: fencing epoch {own}"
            ));
        }
        // A server that was killed between the two copies leaves an older one.
        let is_cut = |found: &label::Found| found.damage.as_ref().is_some_and(|d| d.why.is_none());
        let due = |found: &label::Found| takes_over || served_at.is_none() || is_cut(found);
        let Some(found) = found.filter(due) else { return Ok(()) };
        let changed = label::update(&device.disk, &found, |label| {
            label.fencing_epoch = fencing;
            label.served_at = here.map_or([0; 32], |scope| scope.0);
        });
        changed.await.map(drop).map_err(|error| {
            ServeError::Device(format!("{}: writing its label: {error}", device.disk.path()))
        })
    }
}

/// Raises the fencing epoch in a data device's label to `epoch`, unless it is there already.
///
/// # Errors
/// The device cannot be written, or has no label.
pub(super) async fn raise(runtime: &Runtime, path: &str, epoch: Epoch) -> Result<(), String> {
    let options = DiskOptions { write: true, exclusive: false };
    let disk = runtime.env.open_disk(path, options).await.map_err(|error| error.to_string())?;
    let found = label::read(&disk).await.map_err(|none| none.to_string())?;
    if found.label.fencing_epoch >= epoch {
        return Ok(());
    }
    let raised = label::update(&disk, &found, |label| label.fencing_epoch = epoch).await;
    raised.map(drop).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_takes_over_unless_it_sees_the_lock_of_the_last_one() {
        let (one, two) = (Some(LockScope([1; 32])), Some(LockScope([2; 32])));
        let later = Epoch(FIRST.0 + 1);
        // last, here, epoch: takes over?
        let cases = [
            (None, one, FIRST, false),
            (None, one, later, true),
            (None, None, FIRST, false),
            (one, one, later, false),
            (one, two, later, true),
            (one, None, later, true),
        ];
        for (last, here, epoch, expected) in cases {
            assert_eq!(is_takeover(last, here, epoch), expected, "{last:?} {here:?} {epoch}");
        }
    }
}
