//! The processor time of processes and the like, as the kernel counts it.

use std::collections::BTreeMap;
use std::path::Path;

/// What a process has used since it started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Nanoseconds on a processor, of all threads.
    pub cpu: u64,
    /// How often a thread gave its processor away.
    pub switches: u64,
}

impl Usage {
    /// Of a process; zeros if it is gone.
    pub fn of(pid: u32) -> Usage {
        let mut usage = Usage::default();
        let tasks = format!("/proc/{pid}/task");
        for task in std::fs::read_dir(tasks).into_iter().flatten().flatten() {
            let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
            let cpu =
                read("schedstat").split(' ').next().and_then(|field| field.parse::<u64>().ok());
            usage.cpu += cpu.unwrap_or_default();
            usage.switches += field(&read("status"), "voluntary_ctxt_switches:");
        }
        usage
    }

    /// What was used after `before`.
    pub fn since(self, before: Usage) -> Usage {
        Usage {
            cpu: self.cpu.saturating_sub(before.cpu),
            switches: self.switches.saturating_sub(before.switches),
        }
    }
}

/// Memory of a process, in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Memory {
    /// Resident now.
    pub resident: u64,
    /// Resident at most.
    pub peak: u64,
}

impl Memory {
    /// Of a process; zeros if it is gone.
    pub fn of(pid: u32) -> Memory {
        let path = Path::new("/proc").join(pid.to_string()).join("status");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        Memory { resident: field(&text, "VmRSS:") << 10, peak: field(&text, "VmHWM:") << 10 }
    }
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// Requests of a mount by kind.
pub type Requests = BTreeMap<String, u64>;

/// Requests by kind that came between two readings, as JSON; that of a reading itself is left out.
pub fn requests_between(before: &str, after: &str) -> Requests {
    let parse = |text| serde_json::from_str::<Requests>(text).unwrap_or_default();
    let before = parse(before);
    let mut between = parse(after);
    for (kind, count) in &mut between {
        *count = count.saturating_sub(before.get(kind).copied().unwrap_or_default());
    }
    between.retain(|kind, count| *count > 0 && kind != "getxattr");
    between
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_between_two_readings() {
        let between = requests_between(
            r#"{"lookup":3,"getxattr":1}"#,
            r#"{"lookup":5,"create":2,"getxattr":2}"#,
        );
        assert_eq!(
            between.into_iter().collect::<Vec<_>>(),
            [("create".into(), 2), ("lookup".into(), 2)]
        );
    }

    #[test]
    fn this_process_uses_memory_and_time() {
        let memory = Memory::of(std::process::id());
        assert!(memory.resident > 0 && memory.peak >= memory.resident);
        assert!(Usage::of(std::process::id()).cpu > 0);
        assert_eq!(Usage::of(u32::MAX), Usage::default());
    }
}
