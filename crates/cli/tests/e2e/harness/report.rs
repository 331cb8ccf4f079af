//! What `redbud status` says of the metadata servers of a file system, by their numbers.

use std::path::Path;

use serde_json::Value;

use super::{describe, redbud};

/// See the module.
pub struct Report(pub Value);

impl Report {
    /// What it says of the cluster or the mount at this place; null if it says nothing.
    pub fn of(place: &Path) -> Report {
        let output = redbud().args(["status", "--json"]).arg(place).output().unwrap();
        let report = serde_json::from_slice(&output.stdout);
        Report(report.unwrap_or_else(|error| {
            eprintln!("{error}: {}", describe(&output));
            Value::Null
        }))
    }

    /// What each server says; null if it does not answer.
    pub fn servers(&self) -> Vec<Value> {
        let systems = self.0["filesystems"].as_array().cloned().unwrap_or_default();
        systems.into_iter().map(|mut system| system["server"].take()).collect()
    }

    /// The process that serves as this server.
    pub fn owner(&self, server: usize) -> i32 {
        let owner = &self.0["filesystems"][server]["server"]["membership"]["owner"];
        owner["member"]["pid"].as_i64().unwrap_or_else(|| panic!("{owner}")) as i32
    }

    /// Processes that stand by for this server.
    pub fn standbys(&self, server: usize) -> Vec<i32> {
        let membership = &self.0["filesystems"][server]["server"]["membership"];
        let all = membership["standbys"].as_array().cloned().unwrap_or_default();
        all.iter().filter_map(|one| Some(one["pid"].as_i64()? as i32)).collect()
    }

    /// The takeovers of a server.
    pub fn history(&self, server: usize) -> Vec<Value> {
        let said = self.servers().get(server).cloned().unwrap_or_default();
        said["membership"]["history"].as_array().cloned().unwrap_or_default()
    }
}
