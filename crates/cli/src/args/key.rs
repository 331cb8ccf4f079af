//! Arguments of `key`.

use std::path::PathBuf;

use channel::{Role, Squash};
use clap::{Args, Subcommand};

use super::Output;
use crate::keys::CLIENT_KEY;

/// Arguments of `key`.
#[derive(Args, Debug)]
#[command(after_help = "\
Once on the server's host:

  redbud key new /etc/redbud/home.toml          prints the server's public key; write it to the
                                                table [server], key public_keys, of that file

For each client's host:

  redbud key new                                on that host; prints its public key
  redbud key allow /etc/redbud/home.toml KEY NAME   on the server's host

A running server notices changes by itself. See docs/cluster.md.")]
pub struct KeyArgs {
    /// What to do
    #[command(subcommand)]
    pub verb: KeyCommand,
}

/// What `key` does.
#[derive(Subcommand, Debug)]
pub enum KeyCommand {
    /// Make a secret key, and print the public key that belongs to it
    New(KeyNewArgs),
    /// Print the public keys that belong to the secret keys of a file
    Show(KeyShowArgs),
    /// Let the server accept a public key
    Allow(KeyAllowArgs),
    /// Let the server refuse a key or a node: its sessions end, and what it had not committed is
    /// lost
    Revoke(KeyRevokeArgs),
    /// List the keys that the server accepts or has revoked
    List(KeyListArgs),
}

/// Arguments of `key new`.
#[derive(Args, Debug)]
pub struct KeyNewArgs {
    /// The file to write, mode 0600; or a cluster's file (.toml), or a directory of `redbud local`:
    /// its server's key
    #[arg(default_value = CLIENT_KEY)]
    pub file: PathBuf,
    /// Write the new key before those that the file has; a server accepts handshakes for each of
    /// them, a client uses the first
    #[arg(long)]
    pub add: bool,
}

/// Arguments of `key show`.
#[derive(Args, Debug)]
pub struct KeyShowArgs {
    /// The file; or a cluster's file (.toml), or a directory of `redbud local`: its server's key
    #[arg(default_value = CLIENT_KEY)]
    pub file: PathBuf,
}

/// Arguments of `key allow`.
#[derive(Args, Debug)]
pub struct KeyAllowArgs {
    /// The cluster's file, or the directory of `redbud local`
    pub cluster: PathBuf,
    /// The public key, redbud-key-…
    #[arg(value_parser = parse_key)]
    pub key: channel::PublicKey,
    /// Name of its node; two keys with one name are two keys of one node
    pub name: String,
    /// client (mounts), administrator (the same, and evicts, scrubs, sees all), server or target
    #[arg(long, default_value = "client", value_parser = parse_role)]
    pub role: Role,
    /// Whose requests count as those of user and group 65534: root, all or off
    #[arg(long, default_value = "off", value_parser = parse_squash)]
    pub squash: Squash,
}

/// Arguments of `key revoke`.
#[derive(Args, Debug)]
pub struct KeyRevokeArgs {
    /// The cluster's file, or the directory of `redbud local`
    pub cluster: PathBuf,
    /// The name of a node (all its keys), or a public key
    pub which: String,
}

/// Arguments of `key list`.
#[derive(Args, Debug)]
pub struct KeyListArgs {
    /// The cluster's file, or the directory of `redbud local`
    pub cluster: PathBuf,
    /// How to print it
    #[command(flatten)]
    pub output: Output,
}

fn parse_key(text: &str) -> Result<channel::PublicKey, channel::KeyError> {
    text.parse()
}

fn parse_role(text: &str) -> Result<Role, String> {
    text.parse()
}

fn parse_squash(text: &str) -> Result<Squash, String> {
    text.parse()
}
