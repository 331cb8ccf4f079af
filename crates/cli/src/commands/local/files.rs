//! The files of a local cluster: made and formatted at the first start.
//!
//! DIR/cluster.toml is written last, so it stands for a finished format; a file
//! DIR/formatting marks one that was begun, whose remains may be overwritten.

use std::net::TcpListener;
use std::path::Path;

use super::FS_NAME;
use crate::args::LocalArgs;
use crate::commands::mkfs;
use crate::config::Cluster;
use crate::exit::Failure;
use crate::target::LOCAL_CONFIG;

/// Ports that a local server may take: below the range that the kernel hands out.
const PORTS: std::ops::Range<u16> = 10_000..31_000;

/// The cluster in `dir`, ready to be served on a port that is free now.
pub fn open_or_make(dir: &Path, args: &LocalArgs) -> Result<Cluster, Failure> {
    let file = dir.join(LOCAL_CONFIG);
    if !file.is_file() {
        make(dir, args)?;
    }
    let cluster = read(&file)?;
    let lease = args.lease.filter(|lease| *lease != cluster.lease);
    if is_free(&cluster.listen) && lease.is_none() {
        return Ok(cluster);
    }
    let port = if is_free(&cluster.listen) { port_of(&cluster.listen)? } else { free_port()? };
    let text = text(port, lease.unwrap_or(cluster.lease), &sizes(&cluster));
    replace(&file, &text)?;
    read(&file)
}

fn make(dir: &Path, args: &LocalArgs) -> Result<(), Failure> {
    let file = dir.join(LOCAL_CONFIG);
    let marker = dir.join("formatting");
    let begun = marker.exists();
    let sizes =
        Sizes { metadata: args.metadata_size, data: vec![args.disk_size; args.disks.into()] };
    let lease = args.lease.unwrap_or(crate::config::DEFAULT_LEASE);
    let text = text(free_port()?, lease, &sizes);
    let cluster = Cluster::parse(&file, &text).map_err(|error| Failure::usage(error.text))?;
    std::fs::write(&marker, "mkfs was begun here\n").map_err(|error| io(&marker, &error))?;
    mkfs::format(&cluster, begun)?;
    replace(&file, &text)?;
    std::fs::remove_file(&marker).map_err(|error| io(&marker, &error))
}

struct Sizes {
    metadata: u64,
    data: Vec<u64>,
}

fn sizes(cluster: &Cluster) -> Sizes {
    Sizes {
        metadata: cluster.metadata.size.unwrap_or_default(),
        data: cluster.data.iter().map(|(_, zone)| zone.size.unwrap_or_default()).collect(),
    }
}

fn text(port: u16, lease: types::Duration, sizes: &Sizes) -> String {
    let mut text = format!(
        "# Made by `redbud local`, which may change the port.\n\
         name = \"{FS_NAME}\"\n\n\
         [server]\nlisten = \"127.0.0.1:{port}\"\nlease = \"{}ms\"\n\n\
         [metadata]\npath = \"metadata.img\"\nsize = \"{}\"\n",
        lease.as_millis(),
        sizes.metadata
    );
    for (index, size) in sizes.data.iter().enumerate() {
        text += &format!("\n[[data]]\npath = \"data{index}.img\"\nsize = \"{size}\"\n");
    }
    text
}

fn read(file: &Path) -> Result<Cluster, Failure> {
    Cluster::read(file).map_err(|error| Failure::usage(error.to_string()))
}

/// Replaces `file` at once.
fn replace(file: &Path, text: &str) -> Result<(), Failure> {
    let new = file.with_extension("toml.new");
    std::fs::write(&new, text).map_err(|error| io(&new, &error))?;
    std::fs::rename(&new, file).map_err(|error| io(file, &error))
}

fn io(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed("RB-LOCAL", format!("{}: {error}", path.display()))
}

fn is_free(address: &str) -> bool {
    TcpListener::bind(address).is_ok()
}

fn port_of(address: &str) -> Result<u16, Failure> {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.ok_or_else(|| Failure::usage(format!("`{address}` has no port")))
}

/// A free port, searched from a place that differs from process to process.
fn free_port() -> Result<u16, Failure> {
    let count = u32::from(PORTS.end - PORTS.start);
    let start = std::process::id().wrapping_mul(2_654_435_761) % count;
    let candidates = (0..count).map(|step| PORTS.start + ((start + step) % count) as u16);
    let mut free = candidates.filter(|port| is_free(&format!("127.0.0.1:{port}")));
    free.next().ok_or_else(|| {
        let text =
            format!("no port from {} to {} is free on 127.0.0.1", PORTS.start, PORTS.end - 1);
        Failure::failed("RB-NO-PORT", text)
    })
}
