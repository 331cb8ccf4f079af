//! `redbud ost serve`: runs targets until a signal stops them.

use std::future::{Future, poll_fn};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use env::{DriverKind, Env};
use ost::server::{Config, MEMORY_MIN};
use ost::store::Options;
use types::Duration;
use types::units::human_size;

use super::kept::{Kept, MakeConfig, Opener, Stop};
use super::{DeviceSpec, failed, target_key, view};
use crate::address::{OST_PORT, check_address_or};
use crate::args::OstServeArgs;
use crate::commands::{mds, mkfs};
use crate::config::{LEASE_RANGE, TargetsView};
use crate::control::{Ask, Handler};
use crate::exit::{Ended, Failure};
use crate::keys::{self, KeyOptions};
use crate::registry::{self, Kind, Registered, Registration};
use crate::source::Source;
use crate::{control, log, notify};

/// Pauses between commits: with less each write has a commit of its own, with more much is lost by
/// a crash of target and client.
const COMMIT_INTERVALS: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(60);

/// A target to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Served {
    pub device: PathBuf,
    pub journal: Option<PathBuf>,
    pub listen: String,
}

/// Runs the targets.
pub fn run(args: &OstServeArgs) -> Ended {
    let view = view(args.config.as_ref())?;
    let key = target_key(args.key.as_ref(), view.as_ref())?;
    let served = served(args, view.as_ref())?;
    if (args.memory as usize) < MEMORY_MIN {
        let least = human_size(MEMORY_MIN as u64);
        return Err(Failure::usage(format!("--memory: it must be at least {least}")));
    }
    let lease = args.lease.or(view.as_ref().map(|view| view.lease));
    if lease.is_some_and(|lease| !LEASE_RANGE.contains(&lease)) {
        return Err(Failure::usage("--lease: write a time from 1s to 1h"));
    }
    if !COMMIT_INTERVALS.contains(&args.commit_interval) {
        return Err(Failure::usage("--commit-interval: write a time from 10ms to 1m"));
    }
    if view.as_ref().and_then(|view| view.security).is_none() {
        let text = "no keys are asked for: who reaches the port can ask for the status and for \
                    space; objects need capabilities";
        log::line(text);
    }
    env::raise_open_files();
    if args.until_eof {
        mds::stop_at_end_of_input();
    }
    let lease = lease.unwrap_or(Duration::from_secs(30));
    let ended = env::run(DriverKind::Auto, |env| async move {
        let config = config(args, view.clone(), (lease, key));
        let options =
            Options { cache_bytes: args.cache as usize, commit_interval: args.commit_interval };
        serve(Opener { env, options, view, config }, args, served).await
    });
    ended.map_err(|error| failed(format!("cannot start the I/O driver: {error}"))).flatten()
}

/// How the target that listens on an address is served.
fn config(
    args: &OstServeArgs,
    view: Option<TargetsView>,
    (lease, key): (Duration, [u8; 32]),
) -> MakeConfig {
    let (memory, notices) = (args.memory as usize, args.notices);
    let (scrub_interval, scrub_rate) = (args.scrub_interval, args.scrub_rate);
    Box::new(move |listen| {
        // Each target reads the files itself: who reads them learns of each change once.
        let keys = match &view {
            Some(view) => keys::of_files(&view.file, view.security, (&view.key, &view.allowed))?,
            None => None,
        };
        Ok(Config {
            lease,
            keys,
            memory,
            notices,
            scrub_interval,
            scrub_rate,
            validate: false,
            log: Rc::new(log::line),
            ..Config::new(listen, key)
        })
    })
}

/// The targets that the command line and the cluster's file name.
fn served(args: &OstServeArgs, view: Option<&TargetsView>) -> Result<Vec<Served>, Failure> {
    let specs = args.devices.iter().map(|text| DeviceSpec::parse(text));
    let specs = specs.collect::<Result<Vec<_>, _>>()?;
    match view {
        Some(view) => chosen(&specs, view),
        None => with_addresses(&specs, args.listen.as_deref()),
    }
}

/// The targets of the cluster's file that `specs` name; without any all on this host.
fn chosen(specs: &[DeviceSpec], view: &TargetsView) -> Result<Vec<Served>, Failure> {
    let file = view.file.display();
    if let Some(spec) = specs.iter().find(|spec| spec.journal.is_some() || spec.listen.is_some()) {
        let device = spec.device.display();
        let text = format!("{device}: its journal and address are those of {file}: leave them out");
        return Err(Failure::usage(text));
    }
    let is_named = |device: &PathBuf| {
        specs.iter().any(|spec| spec.device == *device || mkfs::is_same(&spec.device, device))
    };
    let is_here = |device: &PathBuf| match specs.is_empty() {
        true => is_here_or_said(device),
        false => is_named(device),
    };
    let chosen: Vec<Served> = view
        .osts
        .iter()
        .filter(|ost| is_here(&ost.device))
        .map(|ost| Served {
            device: ost.device.clone(),
            journal: ost.journal.clone(),
            listen: ost.address.clone(),
        })
        .collect();
    let is_missing = |spec: &&DeviceSpec| {
        !view
            .osts
            .iter()
            .any(|ost| spec.device == ost.device || mkfs::is_same(&spec.device, &ost.device))
    };
    if let Some(spec) = specs.iter().find(is_missing) {
        let device = spec.device.display();
        let text = format!("{device}: {file} has no table [[ost]] with this device");
        return Err(Failure::usage(text));
    }
    match chosen.is_empty() {
        false => Ok(chosen),
        true => Err(Failure::usage(format!(
            "{file}: no table [[ost]] has a device that is on this host"
        ))),
    }
}

/// Is the device on this host? If not, the log says so: it may be one of another host, or missing.
fn is_here_or_said(device: &Path) -> bool {
    let is_here = device.exists();
    if !is_here {
        log::line(&format!("{}: not on this host: not served", device.display()));
    }
    is_here
}

/// Each device with its address.
fn with_addresses(specs: &[DeviceSpec], listen: Option<&str>) -> Result<Vec<Served>, Failure> {
    let usual = format!("127.0.0.1:{OST_PORT}");
    let base = check_address_or(listen.unwrap_or(&usual), OST_PORT).map_err(Failure::usage)?;
    let (host, port) = base.rsplit_once(':').unwrap_or((&base, ""));
    let port: u16 = port.parse().unwrap_or(OST_PORT);
    let mut all = Vec::with_capacity(specs.len());
    for (spec, index) in specs.iter().zip(0u16..) {
        let listen = match &spec.listen {
            Some(address) => check_address_or(address, OST_PORT).map_err(Failure::usage)?,
            // A port that the system chooses has none that follow it.
            None if port == 0 => base.clone(),
            None => match port.checked_add(index) {
                Some(port) => format!("{host}:{port}"),
                None => return Err(Failure::usage(format!("{base}: there are too few ports"))),
            },
        };
        let (device, journal) = (spec.device.clone(), spec.journal.clone());
        all.push(Served { device, journal, listen });
    }
    Ok(all)
}

/// Opens the targets, serves them, and waits for their end.
async fn serve(opener: Opener, args: &OstServeArgs, served: Vec<Served>) -> Ended {
    let (env, opener, stop) = (opener.env.clone(), Rc::new(opener), Rc::new(Stop::default()));
    let all = open_all(&opener, served).await?;
    let addresses: Vec<String> = all.iter().map(|one| one.address().0).collect();
    let registered = register(&env, args, &all);
    let mut signal = pin!(env.stop_signal());
    // Polled once first, so that a signal right after the notification stops the targets.
    let early = poll_fn(|cx| Poll::Ready(signal.as_mut().poll(cx))).await;
    notify::send(&format!("READY=1\nSTATUS=serving at {}\n", addresses.join(", ")));
    let count = all.len();
    let running: Vec<_> =
        all.into_iter().map(|one| env.spawn_join(one.run(opener.clone(), stop.clone()))).collect();
    let number = match early {
        Poll::Ready(number) => number,
        Poll::Pending => signal.await,
    };
    log::line(&format!("stopping (signal {number})"));
    notify::send("STOPPING=1\n");
    stop.ask();
    let mut failures = 0;
    for one in running {
        failures += u32::from(one.await.is_err());
    }
    drop(registered.map(|registered| registered.end(None)));
    match failures {
        0 => Ok(0),
        // The log has each reason.
        _ => Err(failed(format!("{failures} of {count} targets were not served in the end"))),
    }
}

/// Opens the targets. One that cannot be opened is tried again later if another one could.
async fn open_all(opener: &Opener, served: Vec<Served>) -> Result<Vec<Rc<Kept>>, Failure> {
    let mut failures = Vec::new();
    let mut all = Vec::with_capacity(served.len());
    for one in served {
        let (kept, failure) = Kept::open(opener, one).await;
        failures.extend(failure);
        all.push(kept);
    }
    match failures.len() == all.len() {
        true => Err(failures.swap_remove(0)),
        false => Ok(all),
    }
}

/// Makes the targets known on this host, and opens their control socket. Without either they work,
/// and administrators ask them over the network.
fn register(env: &Env, args: &OstServeArgs, targets: &[Rc<Kept>]) -> Option<Registered> {
    let pid = std::process::id();
    let socket = args.control.clone().unwrap_or_else(|| registry::usual_socket(Kind::Ost, pid, 0));
    let socket = std::path::absolute(&socket).unwrap_or(socket);
    let (servers, names): (Vec<_>, Vec<_>) = targets.iter().map(|one| one.address()).unzip();
    let source = Source {
        servers,
        fs_name: names.into_iter().flatten().next().unwrap_or_default(),
        dir: Vec::new(),
        cluster: None,
        server: None,
    };
    let registered = registry::register(&Registration {
        kind: Kind::Ost,
        pid,
        station: 0,
        source: source.to_string(),
        server: None,
        mount: PathBuf::new(),
        socket: Some(socket.clone()),
        log: None,
        keys: KeyOptions::default(),
        lost: None,
    });
    match control::listen(env, &socket, handler(targets)) {
        Ok(()) => {
            if let Ok(registered) = &registered {
                registered.made_socket().note(&socket);
            }
        }
        Err(error) => log::line(&format!("no control socket: {}: {error}", socket.display())),
    }
    registered.map_err(|failure| log::line(&failure.to_string())).ok()
}

/// Answers for all targets.
fn handler(targets: &[Rc<Kept>]) -> Handler {
    let all: Rc<[Rc<Kept>]> = targets.into();
    Rc::new(move |ask| {
        let all = all.clone();
        Box::pin(async move {
            match ask {
                Ask::Status => {
                    let each: Vec<String> = all.iter().map(|one| one.status()).collect();
                    Ok(format!("[{}]", each.join(",")))
                }
                Ask::Scrub { rate, only } => {
                    let asked = |one: &&Rc<Kept>| one.is_at(only.as_deref());
                    all.iter().filter(asked).for_each(|one| one.scrub(rate));
                    Ok("null".into())
                }
                _ => Err("these are object targets: they tell their status, and scrub".into()),
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs(texts: &[&str]) -> Vec<DeviceSpec> {
        texts.iter().map(|text| DeviceSpec::parse(text).unwrap()).collect()
    }

    #[test]
    fn ports_of_several_devices_follow_each_other() {
        let listen = |texts: &[&str], listen| {
            let all = with_addresses(&specs(texts), listen).unwrap();
            all.into_iter().map(|one| one.listen).collect::<Vec<_>>()
        };
        assert_eq!(listen(&["a"], None), ["127.0.0.1:10822"]);
        assert_eq!(listen(&["a", "b"], Some("[::1]:7")), ["[::1]:7", "[::1]:8"]);
        assert_eq!(listen(&["a", "b,listen=h", "c"], Some("g:0")), ["g:0", "h:10822", "g:0"]);
        assert!(with_addresses(&specs(&["a", "b"]), Some("h:65535")).is_err());
        assert!(with_addresses(&specs(&["a"]), Some("a b")).is_err());
    }

    #[test]
    fn named_devices_choose_among_those_of_the_file() {
        let text = "name='h'\nost=[{device='/x/a',address='h:1'},{device='/x/b',journal='/x/j',\
                    address='h:2'}]\n";
        let view = TargetsView::parse(Path::new("/h.toml"), text).unwrap();
        let all = chosen(&specs(&["/x/b"]), &view).unwrap();
        let journal = Some("/x/j".into());
        assert_eq!(all, [Served { device: "/x/b".into(), journal, listen: "h:2".into() }]);
        let error = |texts: &[&str]| chosen(&specs(texts), &view).unwrap_err().text;
        assert!(error(&["/x/c"]).contains("/h.toml has no table [[ost]]"), "{}", error(&["/x/c"]));
        assert!(error(&["/x/a,journal=/x/j"]).contains("leave them out"));
        assert!(error(&[]).contains("on this host"), "neither is there");
    }
}
