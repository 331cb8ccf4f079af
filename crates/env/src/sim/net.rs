//! Simulated connections.
//!
//! Invariants:
//! - bytes of one direction arrive in the order in which they were sent, without gaps:
//!   a cut loses the end of the stream, never its middle;
//! - a partition, of both directions or one, delays traffic and loses nothing: it is delivered
//!   after healing;
//! - a sender has at most [`WINDOW`] bytes that the receiver has not taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;

use types::{Duration, Instant};

use super::state::{EndedPayload, Event, State};
use crate::buffer::IoBuf;
use crate::driver::{NodeId, Part, Payload, Token, rest_of};

/// Upper bound of bytes sent and not yet taken by the receiver.
const WINDOW: usize = 256 << 10;
/// Upper bound of connections that wait to be accepted.
const BACKLOG: usize = 1024;

/// Traffic between two nodes.
pub(crate) enum NetEvent {
    /// Bytes, or the end of the stream, for a socket.
    Deliver { to: u64, bytes: Vec<u8>, end: bool },
    /// Bytes, or the end, that arrived and that the receiver's processor has handled.
    Take { to: u64, bytes: Vec<u8>, end: bool },
    /// A connect request arrives.
    Connect { from: NodeId, token: Token, address: String, since: Instant },
    /// The answer to a connect request arrives.
    Connected { token: Token, socket: u64, address: String },
}

struct Socket {
    node: NodeId,
    peer: u64,
    peer_node: NodeId,
    inbox: VecDeque<u8>,
    /// The peer has closed, or this end has shut down: nothing more arrives.
    ended: bool,
    /// This end has shut down.
    shut: bool,
    reset: bool,
    /// The read that waits, and how many bytes it takes at most.
    reader: Option<(Token, Arriving, usize)>,
    writers: VecDeque<(Token, Vec<u8>, usize)>,
    /// Bytes sent that the peer has not taken.
    untaken: usize,
    /// When the last bytes sent to this end arrive.
    last_arrival: Instant,
    /// When this end's processor has handled the last of them that arrived.
    last_taken: Instant,
    /// The extra latency of this connection.
    detour: Duration,
}

/// Where arrived bytes go.
pub(crate) enum Arriving {
    /// Behind these.
    Bytes(Vec<u8>),
    /// To this place on.
    Buf(IoBuf, usize),
}

impl Arriving {
    /// Takes the first `count` bytes of `inbox`.
    fn fill(&mut self, inbox: &mut VecDeque<u8>, count: usize) {
        let arrived = inbox.drain(..count);
        match self {
            Arriving::Bytes(bytes) => bytes.extend(arrived),
            Arriving::Buf(buf, at) => {
                let room = buf[*at..*at + count].iter_mut();
                room.zip(arrived).for_each(|(byte, arrived)| *byte = arrived);
            }
        }
    }
}

impl From<Arriving> for Payload {
    fn from(into: Arriving) -> Payload {
        match into {
            Arriving::Bytes(bytes) => Payload::Bytes(bytes),
            Arriving::Buf(buf, _) => Payload::Buf(buf),
        }
    }
}

struct Listener {
    object: u64,
    node: NodeId,
    /// Accepted connections: socket and the peer's name.
    backlog: VecDeque<(u64, String)>,
    acceptors: VecDeque<Token>,
}

/// All connections of a world.
#[derive(Default)]
pub(crate) struct Net {
    listeners: BTreeMap<String, Listener>,
    sockets: BTreeMap<u64, Socket>,
    /// The socket at which each read or write waits.
    waits_at: BTreeMap<Token, u64>,
    /// Pairs of node names: nothing passes from the first to the second.
    pub(crate) partitions: BTreeSet<(String, String)>,
    /// Nodes whose listeners take connections that nobody answers.
    pub(crate) mute: BTreeSet<String>,
    /// Traffic that a partition delays, in order.
    delayed: VecDeque<NetEvent>,
    ports: u64,
}

impl Net {
    /// Clears everything but the partitions.
    pub(crate) fn forget_connections(&mut self) {
        let (partitions, mute) =
            (std::mem::take(&mut self.partitions), std::mem::take(&mut self.mute));
        *self = Net { partitions, mute, ..Net::default() };
    }
}

fn refused(kind: io::ErrorKind) -> io::Error {
    io::Error::from(kind)
}

impl State {
    pub(crate) fn listen(&mut self, node: NodeId, address: &str) -> io::Result<(u64, String)> {
        let address = match address.strip_suffix(":0") {
            Some(host) => {
                self.net.ports += 1;
                format!("{host}:{}", 49151 + self.net.ports)
            }
            None => address.to_owned(),
        };
        if self.net.listeners.contains_key(&address) {
            return Err(refused(io::ErrorKind::AddrInUse));
        }
        let object = self.new_object();
        let listener =
            Listener { object, node, backlog: VecDeque::new(), acceptors: VecDeque::new() };
        self.net.listeners.insert(address.clone(), listener);
        Ok((object, address))
    }

    pub(crate) fn accept(&mut self, token: Token, object: u64) {
        let Some(listener) =
            self.net.listeners.values_mut().find(|listener| listener.object == object)
        else {
            self.end_plain(token, Err(refused(io::ErrorKind::InvalidInput)), Payload::None);
            return;
        };
        match listener.backlog.pop_front() {
            Some((socket, peer)) => self.end(token, Ok(0), EndedPayload::Socket(socket, peer)),
            None => listener.acceptors.push_back(token),
        }
    }

    pub(crate) fn connect(&mut self, from: NodeId, token: Token, address: String) {
        let at = self.arrival(None, 0);
        let since = self.now;
        self.schedule(at, Event::Net(NetEvent::Connect { from, token, address, since }));
    }

    /// When `len` bytes sent now arrive; not before earlier bytes to the socket.
    fn arrival(&mut self, to: Option<u64>, len: usize) -> Instant {
        let range = self.options.net_latency.clone();
        let sender = to.and_then(|socket| Some(self.net.sockets.get(&socket)?.peer_node));
        let left = sender.map_or(self.now, |node| self.pay(node, len));
        let at = left + self.latency(&range);
        let pass = self.options.net_bandwidth.map_or(Duration::ZERO, |bandwidth| {
            Duration::from_nanos(len as u64 * 1_000_000_000 / bandwidth.max(1))
        });
        match to.and_then(|socket| self.net.sockets.get_mut(&socket)) {
            Some(socket) => {
                socket.last_arrival = socket.last_arrival.max(at + socket.detour) + pass;
                socket.last_arrival
            }
            None => at,
        }
    }

    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        let name = |node: NodeId| self.nodes[node as usize].clone();
        !self.net.partitions.is_empty() && self.net.partitions.contains(&(name(from), name(to)))
    }

    /// Does this traffic reach its destination now?
    fn passes(&self, event: &NetEvent) -> bool {
        match event {
            NetEvent::Deliver { to, .. } | NetEvent::Connected { socket: to, .. } => {
                let socket = self.net.sockets.get(to);
                socket.is_none_or(|socket| !self.is_cut(socket.peer_node, socket.node))
            }
            NetEvent::Take { .. } => true,
            NetEvent::Connect { from, address, .. } => {
                let listener = self.net.listeners.get(address);
                listener.is_none_or(|listener| !self.is_cut(*from, listener.node))
            }
        }
    }

    pub(crate) fn happen_on_net(&mut self, event: NetEvent) {
        if !self.passes(&event) {
            match event {
                NetEvent::Connect { token, since, .. }
                    if self.now.since(since) >= self.options.connect_timeout =>
                {
                    self.end_plain(token, Err(refused(io::ErrorKind::TimedOut)), Payload::None);
                }
                // A connect is retried from time to time, so that it can time out.
                connect @ NetEvent::Connect { .. } => {
                    self.schedule(self.now + Duration::from_millis(200), Event::Net(connect));
                }
                event => self.net.delayed.push_back(event),
            }
            return;
        }
        match event {
            NetEvent::Deliver { to, bytes, end } if self.options.price.is_some() => {
                self.receive(to, bytes, end);
            }
            NetEvent::Deliver { to, bytes, end } | NetEvent::Take { to, bytes, end } => {
                self.deliver(to, &bytes, end);
            }
            NetEvent::Connect { from, token, address, .. } => self.arrive(from, token, address),
            NetEvent::Connected { token, socket, address } => {
                if self.net.sockets.contains_key(&socket) {
                    self.end(token, Ok(0), EndedPayload::Socket(socket, address));
                } else {
                    self.end_plain(
                        token,
                        Err(refused(io::ErrorKind::ConnectionReset)),
                        Payload::None,
                    );
                }
            }
        }
    }

    /// A connect request arrives at its listener.
    fn arrive(&mut self, from: NodeId, token: Token, address: String) {
        let listener = self.net.listeners.get(&address);
        let Some(node) = listener
            .filter(|listener| listener.backlog.len() < BACKLOG)
            .map(|listener| listener.node)
        else {
            self.end_plain(token, Err(refused(io::ErrorKind::ConnectionRefused)), Payload::None);
            return;
        };
        let (near, far) = (self.new_object(), self.new_object());
        let detour = match self.options.net_detour {
            Duration::ZERO => Duration::ZERO,
            most => self.latency(&(Duration::ZERO..=most)),
        };
        for (object, peer, node, peer_node) in [(near, far, from, node), (far, near, node, from)] {
            let socket = Socket {
                node,
                peer,
                peer_node,
                inbox: VecDeque::new(),
                ended: false,
                shut: false,
                reset: false,
                reader: None,
                writers: VecDeque::new(),
                untaken: 0,
                last_arrival: self.now,
                last_taken: self.now,
                detour,
            };
            self.net.sockets.insert(object, socket);
        }
        let peer = format!("{}:{near}", self.nodes[from as usize]);
        let mute = self.net.mute.contains(&self.nodes[node as usize]);
        let listener = self.net.listeners.get_mut(&address).expect("it was found above");
        let acceptor = if mute { None } else { listener.acceptors.pop_front() };
        match acceptor {
            // Nobody accepts it.
            None if mute => {}
            Some(acceptor) => self.end(acceptor, Ok(0), EndedPayload::Socket(far, peer)),
            None => listener.backlog.push_back((far, peer)),
        }
        let at = self.arrival(Some(near), 0);
        self.schedule(at, Event::Net(NetEvent::Connected { token, socket: near, address }));
    }

    /// Arrived bytes are readable when the receiver's processor has handled them and all earlier
    /// ones.
    fn receive(&mut self, to: u64, bytes: Vec<u8>, end: bool) {
        let Some(node) = self.net.sockets.get(&to).map(|socket| socket.node) else { return };
        let paid = self.pay(node, bytes.len());
        let Some(socket) = self.net.sockets.get_mut(&to) else { return };
        socket.last_taken = socket.last_taken.max(paid);
        let at = socket.last_taken;
        self.schedule(at, Event::Net(NetEvent::Take { to, bytes, end }));
    }

    fn deliver(&mut self, to: u64, bytes: &[u8], end: bool) {
        let Some(socket) = self.net.sockets.get_mut(&to) else { return };
        socket.inbox.extend(bytes);
        socket.ended |= end;
        self.serve_reader(to);
    }

    pub(crate) fn recv(&mut self, token: Token, object: u64, into: Arriving, max: usize) {
        let Some(socket) = self.net.sockets.get_mut(&object) else {
            self.end_plain(token, Err(refused(io::ErrorKind::NotConnected)), into.into());
            return;
        };
        debug_assert!(socket.reader.is_none(), "one read of a stream at a time");
        self.net.waits_at.insert(token, object);
        socket.reader = Some((token, into, max));
        self.serve_reader(object);
    }

    /// Ends a read or write of a socket.
    fn end_at_socket(&mut self, token: Token, result: io::Result<usize>, payload: Payload) {
        self.net.waits_at.remove(&token);
        self.end_plain(token, result, payload);
    }

    /// Completes the waiting read of a socket, if it can.
    fn serve_reader(&mut self, object: u64) {
        let Some(socket) = self.net.sockets.get_mut(&object) else { return };
        let Some((token, mut into, max)) = socket.reader.take() else { return };
        if !socket.inbox.is_empty() && !socket.shut {
            let mut taken = socket.inbox.len().min(max);
            if self.rng.one_in(4) {
                taken = self.rng.between(1, taken as u64) as usize;
            }
            into.fill(&mut socket.inbox, taken);
            let peer = socket.peer;
            self.end_at_socket(token, Ok(taken), into.into());
            if let Some(peer_socket) = self.net.sockets.get_mut(&peer) {
                peer_socket.untaken = peer_socket.untaken.saturating_sub(taken);
                self.serve_writers(peer);
            }
        } else if socket.reset && !socket.shut {
            self.end_at_socket(token, Err(refused(io::ErrorKind::ConnectionReset)), into.into());
        } else if socket.ended || socket.shut {
            self.end_at_socket(token, Ok(0), into.into());
        } else {
            socket.reader = Some((token, into, max));
        }
    }

    pub(crate) fn send(&mut self, token: Token, object: u64, bytes: Vec<u8>, start: usize) {
        let Some(socket) = self.net.sockets.get_mut(&object) else {
            self.end_plain(token, Err(refused(io::ErrorKind::NotConnected)), Payload::Bytes(bytes));
            return;
        };
        socket.writers.push_back((token, bytes, start));
        self.net.waits_at.insert(token, object);
        self.serve_writers(object);
    }

    /// The simulated world has no such operation.
    pub(crate) fn refuse(&mut self, token: Token, payload: Payload) {
        self.end_plain(token, Err(refused(io::ErrorKind::Unsupported)), payload);
    }

    pub(crate) fn send_parts(&mut self, token: Token, object: u64, parts: &[Part], start: usize) {
        self.send(token, object, rest_of(parts, start).collect::<Vec<_>>().concat(), 0);
    }

    fn serve_writers(&mut self, object: u64) {
        loop {
            let Some(socket) = self.net.sockets.get_mut(&object) else { return };
            let room = WINDOW.saturating_sub(socket.untaken);
            let broken = socket.shut || socket.reset;
            if room == 0 && !broken {
                return;
            }
            let Some((token, bytes, start)) = socket.writers.pop_front() else { return };
            if broken {
                let kind = if socket.shut {
                    io::ErrorKind::BrokenPipe
                } else {
                    io::ErrorKind::ConnectionReset
                };
                self.end_at_socket(token, Err(refused(kind)), Payload::Bytes(bytes));
                continue;
            }
            let peer = socket.peer;
            let sent = room.min(bytes.len() - start);
            socket.untaken += sent;
            let piece = bytes[start..start + sent].to_vec();
            self.end_at_socket(token, Ok(sent), Payload::Bytes(bytes));
            if self.net.sockets.contains_key(&peer) {
                let at = self.arrival(Some(peer), sent);
                self.schedule(
                    at,
                    Event::Net(NetEvent::Deliver { to: peer, bytes: piece, end: false }),
                );
            } else if let Some(socket) = self.net.sockets.get_mut(&object) {
                // The peer is gone: the next operation reports it.
                socket.reset = true;
            }
        }
    }

    pub(crate) fn shutdown(&mut self, object: u64) {
        let Some(socket) = self.net.sockets.get_mut(&object) else { return };
        if std::mem::replace(&mut socket.shut, true) {
            return;
        }
        let peer = socket.peer;
        let at = self.arrival(Some(peer), 0);
        self.schedule(at, Event::Net(NetEvent::Deliver { to: peer, bytes: Vec::new(), end: true }));
        self.serve_reader(object);
        self.serve_writers(object);
    }

    pub(crate) fn close_net(&mut self, object: u64) {
        self.shutdown(object);
        self.net.sockets.remove(&object);
        let gone = self.net.listeners.iter().find(|(_, listener)| listener.object == object);
        if let Some(address) = gone.map(|(address, _)| address.clone())
            && let Some(listener) = self.net.listeners.remove(&address)
        {
            for (socket, _) in listener.backlog {
                self.reset(socket);
                self.net.sockets.remove(&socket);
            }
            for token in listener.acceptors {
                self.end_plain(token, Err(refused(io::ErrorKind::InvalidInput)), Payload::None);
            }
        }
    }

    /// Resets a connection at both ends.
    fn reset(&mut self, object: u64) {
        let Some(socket) = self.net.sockets.get(&object) else { return };
        for end in [object, socket.peer] {
            if let Some(socket) = self.net.sockets.get_mut(&end) {
                socket.reset = true;
                socket.inbox.clear();
                self.serve_reader(end);
                self.serve_writers(end);
            }
        }
    }

    pub(crate) fn cut(&mut self, a: &str, b: &str) {
        let of = |node: NodeId, name: &str| self.nodes[node as usize] == name;
        let between: Vec<u64> = self
            .net
            .sockets
            .iter()
            .filter(|(_, socket)| of(socket.node, a) && of(socket.peer_node, b))
            .map(|(object, _)| *object)
            .collect();
        for object in between {
            self.reset(object);
        }
    }

    pub(crate) fn block(&mut self, from: &str, to: &str) {
        self.net.partitions.insert((from.to_owned(), to.to_owned()));
        [from, to].into_iter().for_each(|node| self.held_up.changes(node, self.now));
    }

    pub(crate) fn heal(&mut self) {
        for (from, to) in std::mem::take(&mut self.net.partitions) {
            [from, to].iter().for_each(|node| self.held_up.changes(node, self.now));
        }
        self.net.mute.clear();
        self.deliver_delayed();
    }

    pub(crate) fn heal_between(&mut self, a: &str, b: &str) {
        let one = self.net.partitions.remove(&(a.to_owned(), b.to_owned()));
        let other = self.net.partitions.remove(&(b.to_owned(), a.to_owned()));
        if one || other {
            [a, b].into_iter().for_each(|node| self.held_up.changes(node, self.now));
        }
        self.deliver_delayed();
    }

    fn deliver_delayed(&mut self) {
        let now = self.now;
        let more_comes = |(_, socket): &(&u64, &Socket)| socket.last_arrival > now;
        let busy: BTreeSet<u64> =
            self.net.sockets.iter().filter(more_comes).map(|(object, _)| *object).collect();
        for event in std::mem::take(&mut self.net.delayed) {
            if !self.passes(&event) {
                self.net.delayed.push_back(event);
                continue;
            }
            let to = match &event {
                NetEvent::Deliver { to, .. } | NetEvent::Take { to, .. } => Some(*to),
                NetEvent::Connected { socket, .. } => Some(*socket),
                NetEvent::Connect { .. } => None,
            };
            // Later bytes are in flight and were not delayed by the partition.
            if to.is_some_and(|to| busy.contains(&to)) {
                self.happen_on_net(event);
                continue;
            }
            let at = self.arrival(to, 0);
            self.schedule(at, Event::Net(event));
        }
    }

    pub(crate) fn cancel_net(&mut self, token: Token) {
        let cancelled = || io::Error::from_raw_os_error(libc::ECANCELED);
        for listener in self.net.listeners.values_mut() {
            if let Some(at) = listener.acceptors.iter().position(|acceptor| *acceptor == token) {
                listener.acceptors.remove(at);
                self.end_plain(token, Err(cancelled()), Payload::None);
                return;
            }
        }
        let object = self.net.waits_at.remove(&token);
        let Some(socket) = object.and_then(|object| self.net.sockets.get_mut(&object)) else {
            return;
        };
        if let Some((_, into, _)) = socket.reader.take_if(|(reader, ..)| *reader == token) {
            self.end_plain(token, Err(cancelled()), into.into());
        } else if let Some(at) = socket.writers.iter().position(|(writer, ..)| *writer == token) {
            let bytes = socket.writers.remove(at).map(|(_, bytes, _)| bytes).unwrap_or_default();
            self.end_plain(token, Err(cancelled()), Payload::Bytes(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WINDOW;
    use crate::sim::SimWorld;
    use types::Duration;

    #[test]
    fn dropped_write_that_waits_moves_no_bytes_and_others_go_on() {
        SimWorld::new(1).run(|env| async move {
            let listener = env.listen("server:1").await.unwrap();
            let near = env.connect("server:1").await.unwrap();
            let far = listener.accept().await.unwrap();
            let other = env.connect("server:1").await.unwrap();
            let read = env.spawn_join(async move { other.read(Vec::new(), 9).await.1 });
            near.write_all(vec![1; WINDOW]).await.0.unwrap();
            let late = env.timeout(Duration::from_secs(1), near.write_from(vec![2; 9], 0)).await;
            assert!(late.is_none(), "the window is full");
            let last = env.spawn_join(async move { near.write_from(vec![3; 9], 0).await.0 });
            let mut taken = Vec::new();
            while taken.len() < WINDOW + 9 {
                taken = far.read(taken, 1 << 20).await.1;
            }
            assert_eq!(last.await.unwrap(), 9);
            assert_eq!((&taken[WINDOW - 1..], taken[0]), (&[1, 3, 3, 3, 3, 3, 3, 3, 3, 3][..], 1));
            let far = listener.accept().await.unwrap();
            far.write_all(vec![4; 3]).await.0.unwrap();
            assert!(read.await.starts_with(&[4]));
        });
    }
}
