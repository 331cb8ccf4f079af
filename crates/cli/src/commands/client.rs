//! `redbud client`: the clients of a file system, as its server sees them.

use bench::report::Columns;
use proto::mds::Op;
use serde::Serialize;
use serde_json::Value;
use types::ClientId;
use types::limits::BLOCK_U64;
use types::units::human_size;

use crate::args::{ClientArgs, ClientCommand, ClientEvictArgs, ClientListArgs, ClientShowArgs};
use crate::commands::status::problems::{list, number, text};
use crate::commands::status::text::ago;
use crate::control::{self, Ask};
use crate::exit::{Ended, Failure};
use crate::source::Source;
use crate::{admin, output, target};

#[derive(Serialize)]
struct Clients {
    version: u32,
    source: String,
    clients: Vec<Value>,
}

#[derive(Serialize)]
struct Shown {
    version: u32,
    source: String,
    client: Value,
    /// What the client says itself; null if it does not run on this host.
    itself: Value,
}

/// Runs one of them.
pub fn run(args: &ClientArgs) -> Ended {
    match &args.command {
        ClientCommand::List(args) => print_all(args),
        ClientCommand::Show(args) => show(args),
        ClientCommand::Evict(args) => evict(args),
    }
}

/// The clients of all metadata servers. Each server of several gives a client a number of its own.
fn clients(source: &Source) -> Result<Vec<Value>, Failure> {
    let mut all = Vec::new();
    for server in admin::servers(source)? {
        let mut status = admin::status(&server.source)?;
        let Value::Array(mut clients) = status["clients"].take() else { continue };
        if let Some(number) = server.number {
            clients.iter_mut().for_each(|client| client["server"] = number.into());
        }
        all.extend(clients);
    }
    Ok(all)
}

/// The one client that `name` means: its number, or a part of its description.
fn find(clients: &[Value], name: &str) -> Result<Value, Failure> {
    let by_number = name
        .parse()
        .ok()
        .and_then(|id: u64| clients.iter().find(|client| number(&client["id"]) == id));
    if let Some(client) = by_number {
        return Ok(client.clone());
    }
    let named: Vec<&Value> =
        clients.iter().filter(|client| text(&client["description"]).contains(name)).collect();
    match named[..] {
        [client] => Ok(client.clone()),
        [] => Err(Failure::failed("RB-CLIENT-UNKNOWN", format!("no client is called `{name}`"))),
        _ => {
            let ids: Vec<String> = named.iter().map(|client| client["id"].to_string()).collect();
            let text = format!("`{name}` means the clients {}: name one", ids.join(", "));
            Err(Failure::usage(text))
        }
    }
}

fn print_all(args: &ClientListArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let clients = clients(&source)?;
    let report = Clients { version: 1, source: source.to_string(), clients };
    output::print_report(args.output, &report, |report| table(&report.clients).text())?;
    Ok(0)
}

/// The table of clients.
pub fn table<'a>(clients: impl IntoIterator<Item = &'a Value>) -> Columns {
    let head = ["id", "state", "heard", "leases", "locks", "pool", "encrypted", "from", "client"];
    let mut table = Columns::new(&head);
    for client in clients {
        table.row(vec![
            client["id"].to_string(),
            text(&client["state"]).to_owned(),
            format!("{} ago", ago(number(&client["silent_ms"]))),
            client["leases"].to_string(),
            client["locks"].to_string(),
            human_size(number(&client["pool_blocks"]) * BLOCK_U64),
            if client["encrypted"] == true { "yes" } else { "no" }.to_owned(),
            text(&client["address"]).to_owned(),
            text(&client["description"]).to_owned(),
        ]);
    }
    table
}

fn show(args: &ClientShowArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let client = find(&clients(&source)?, &args.name)?;
    let same = |text: &str| Source::parse(text).is_ok_and(|one| one.is_same_as(&source));
    let here = control::mounts_of(|one| same(&one.source)).into_iter();
    let said = here.filter_map(|(_, socket)| control::ask(&socket, Ask::Status).ok());
    let is_it = |said: &Value| said["client"]["client"] == client["id"];
    let itself = said.into_iter().find(is_it).unwrap_or(Value::Null);
    let report = Shown { version: 1, source: source.to_string(), client, itself };
    output::print_report(args.output, &report, describe)?;
    Ok(0)
}

fn describe(shown: &Shown) -> String {
    let client = &shown.client;
    let zones: Vec<String> = list(&client["unreachable"]).map(Value::to_string).collect();
    let unreachable = if zones.is_empty() { "none".to_owned() } else { zones.join(", ") };
    let mut out = format!(
        "client {} of {}: {}\n  state     {}, heard {} ago, {}\n  holds     {} leases, {} locks, \
         pool {}\n  requests  {} answered\n  zones it cannot use: {unreachable}\n",
        client["id"],
        shown.source,
        text(&client["description"]),
        text(&client["state"]),
        ago(number(&client["silent_ms"])),
        match client["local"] == true {
            true => "on the server's host".to_owned(),
            false => format!("from {}", text(&client["address"])),
        },
        client["leases"],
        client["locks"],
        human_size(number(&client["pool_blocks"]) * BLOCK_U64),
        client["requests"],
    );
    if !shown.itself.is_null() {
        crate::commands::status::text::add_client(&mut out, &shown.itself["client"]);
    }
    out
}

fn evict(args: &ClientEvictArgs) -> Ended {
    let source = target::source_or_only(args.target.as_ref())?;
    let client = find(&clients(&source)?, &args.name)?;
    let name = format!("client {} ({})", client["id"], text(&client["description"]));
    if text(&client["state"]) == "quarantined" {
        let text = format!(
            "{name} is evicted already; the server keeps the blocks of its pool apart until it is \
             sure that the client writes no more"
        );
        return Err(Failure::failed("RB-CLIENT-EVICTED", text));
    }
    if !args.yes {
        let text = format!(
            "{name} holds {} leases and {} locks: what it has not committed is lost; add --yes to \
             evict it",
            client["leases"], client["locks"]
        );
        return Err(Failure::usage(text));
    }
    let server = client["server"].as_u64().and_then(|number| u16::try_from(number).ok());
    let source = admin::server(&source, server)?;
    admin::ask(&source, Op::Evict { client: ClientId(number(&client["id"])) })?;
    output::print(&format!("{name} is evicted\n"))?;
    Ok(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::find;

    #[test]
    fn client_is_found_by_number_or_by_a_part_of_its_description_that_is_its_own() {
        let clients = [
            json!({"id": 1, "description": "alpha, pid 12, /mnt"}),
            json!({"id": 12, "description": "beta, pid 7, /mnt"}),
        ];
        let id = |name: &str| find(&clients, name).map(|client| client["id"].clone());
        assert_eq!(id("12"), Ok(json!(12)));
        assert_eq!(id("alpha"), Ok(json!(1)));
        assert_eq!(id("pid 7"), Ok(json!(12)));
        assert_eq!(id("/mnt").unwrap_err().code, 2);
        assert_eq!(id("gamma").unwrap_err().code, 1);
    }
}
