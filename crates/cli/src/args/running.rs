//! Arguments of the commands that ask running processes: `client`, `durable`, `why`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Output;

/// Arguments of `client`.
#[derive(Args, Debug)]
pub struct ClientArgs {
    /// What to do
    #[command(subcommand)]
    pub command: ClientCommand,
}

/// What to do with clients.
#[derive(Subcommand, Debug)]
pub enum ClientCommand {
    /// List the clients of a file system
    List(ClientListArgs),
    /// Show one client: what the server knows, and, on its own host, what it holds and owes
    Show(ClientShowArgs),
    /// End a client's session: what it has not committed is lost, and others get what it holds
    Evict(ClientEvictArgs),
}

/// Arguments of `client list`.
#[derive(Args, Debug)]
pub struct ClientListArgs {
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `client show`.
#[derive(Args, Debug)]
pub struct ClientShowArgs {
    /// Number of the client, or a part of its description (host, pid, mount point) that no other
    /// client has
    pub name: String,
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `client evict`.
#[derive(Args, Debug)]
#[command(after_help = "\
A client that lives gets a new session at once, and reports EIO for the files with lost data.
Blocks that it may still write stay in quarantine until it certainly writes no more.")]
pub struct ClientEvictArgs {
    /// Number of the client, or a part of its description (host, pid, mount point) that no other
    /// client has
    pub name: String,
    /// File system, as of `status`; default: the only one of this host
    pub target: Option<String>,
    /// Do it: data that the client has not committed is lost
    #[arg(long)]
    pub yes: bool,
}

/// Arguments of `sync`.
#[derive(Args, Debug)]
#[command(after_help = "\
sync(1) and syncfs(2) do not reach a FUSE file system. Stores into mappings that the kernel has not
written back are left out: programs use msync. Exit status: 0 all is durable; else what is not, and
why.")]
pub struct SyncArgs {
    /// Mount points
    #[arg(required = true, value_name = "MOUNT")]
    pub mounts: Vec<PathBuf>,
}

/// Arguments of `durable`.
#[derive(Args, Debug)]
#[command(after_help = "\
Of what this host's mount has changed; what other clients have not made durable only they know.
Stores into mappings count once the kernel has written them back. Exit status: 0 all is
durable, 3 something is not, or is lost. The attribute redbud.durable says the same
(getfattr -n).")]
pub struct DurableArgs {
    /// Files and directories in a mount
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

/// Arguments of `why`.
#[derive(Args, Debug)]
#[command(after_help = "\
For a process: what its threads wait for in the mounts of this host. For a path: what requests
on it wait for, and what others hold there; for a mount point: all that wait. Each wait has what
it is for, who holds it, since when, and until when at most. Exit status: 0 something waits, 1
nothing does, 3 nothing is known to, but a mount could not be asked.")]
pub struct WhyArgs {
    /// A process, by its number, or a path in a mount
    #[arg(value_name = "PID|PATH")]
    pub subject: String,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}
