//! A device alone: what the layers above it cannot exceed.

use env::{Disk, IoBuf};
use types::Fault;

/// Writes a range, and makes it stable if `sync` says so.
pub(super) async fn write(
    disk: &Disk,
    (offset, _): (u64, usize),
    data: &[u8],
    sync: bool,
) -> Result<(), Fault> {
    disk.write(offset, IoBuf::copy_of(data)).await.0.map_err(|_| Fault::Io)?;
    if sync { flush(disk).await } else { Ok(()) }
}

/// Reads a range.
pub(super) async fn read(disk: &Disk, (offset, len): (u64, usize)) -> Result<IoBuf, Fault> {
    let (read, bytes) = disk.read(offset, IoBuf::unspecified(len)).await;
    read.map(|()| bytes).map_err(|_| Fault::Io)
}

/// Makes stable what was written.
pub(super) async fn flush(disk: &Disk) -> Result<(), Fault> {
    disk.flush().await.map_err(|_| Fault::Io)
}
