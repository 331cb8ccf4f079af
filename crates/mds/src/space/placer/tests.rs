use super::*;

const ZONE: PagId = PagId(1);
const MOST: usize = 16;

fn run(addr: u64, len: u64) -> PagRun {
    PagRun { pag: ZONE, addr: PagBlock(addr), len }
}

fn free(runs: &[(u64, u64)]) -> Vec<(PagId, PagBlock, u64)> {
    runs.iter().map(|&(addr, len)| (ZONE, PagBlock(addr), len)).collect()
}

/// A placer that knows these free runs, and no others are there.
fn knowing(runs: &[(u64, u64)]) -> Placer {
    let mut placer = Placer::new(0);
    assert_eq!(placer.wants(1), Some((0, u64::MAX)));
    placer.learn(&free(runs), 100);
    assert_eq!(placer.wants(1 << 40), None);
    placer
}

fn piece(block: u64, len: u64, before: Option<Behind>) -> UnplacedPiece {
    UnplacedPiece { block: FileBlock(block), len, before, part: None }
}

/// A file that clients write through a placer, and where its blocks are.
struct Written {
    placer: Placer,
    policy: Policy,
    ino: Ino,
    places: BTreeMap<u64, u64>,
}

impl Written {
    fn new(placer: Placer, policy: Policy) -> Written {
        Written { placer, policy, ino: Ino(5), places: BTreeMap::new() }
    }

    fn write(&mut self, client: u64, process: u32, at: u64, len: u64) -> u64 {
        let before = self.places.range(..at).next_back().map(|(&block, &addr)| Behind {
            block: FileBlock(block + 1),
            pag: ZONE,
            addr: PagBlock(addr + 1),
        });
        let pieces = [piece(at, len, before)];
        let (client, writer) = (ClientId(client), Some((u64::from(process), process)));
        let (ino, policy) = (self.ino, self.policy);
        let runs = self.placer.place(&Asked { client, ino, pieces: &pieces, writer, policy }, MOST);
        let addrs = runs.iter().flat_map(|run| run.addr.0..run.addr.0 + run.len);
        let placed: Vec<(u64, u64)> = (at..).zip(addrs).collect();
        for &(block, addr) in &placed {
            assert!(
                self.places.values().all(|other| *other != addr),
                "{addr} was handed out twice"
            );
            self.places.insert(block, addr);
        }
        placed.len() as u64
    }

    /// Two processes on each of two clients extend a part each, in turns.
    fn write_parts(&mut self) -> usize {
        for at in 0..64 {
            for writer in 0..4 {
                let (client, process) = (1 + writer / 2, 1 + (writer % 2) as u32);
                assert_eq!(self.write(client, process, writer * 4096 + at * 4, 4), 4);
            }
        }
        let next =
            |(&block, &addr): (&u64, &u64)| self.places.get(&(block + 1)) != Some(&(addr + 1));
        self.places.iter().filter(|place| next(*place)).count()
    }
}

#[test]
fn streams_of_several_clients_stay_together_on_demand_only() {
    let segments = |policy| Written::new(knowing(&[(1, 1 << 20)]), policy).write_parts();
    assert_eq!(segments(Policy::Vanilla), 4 * 64);
    let (on_demand, reservation) = (segments(Policy::default()), segments(Policy::Reservation));
    assert!(on_demand <= 20 && reservation >= 100, "{on_demand} against {reservation}");
}

#[test]
fn vanilla_takes_blocks_in_the_order_of_arrival_from_the_cursor_on() {
    let mut placer = Placer::new(100);
    assert_eq!(placer.wants(8), Some((100, u64::MAX)));
    placer.learn(&free(&[(100, 10), (200, 5)]), 2);
    assert_eq!(placer.wants(8), Some((205, u64::MAX)), "there may be more");
    placer.learn(&free(&[(300, 1)]), 2);
    assert_eq!(placer.wants(8), Some((0, 100)));
    placer.learn(&free(&[]), 2);
    assert_eq!(placer.wants(8), None);
    let mut file = Written::new(placer, Policy::Vanilla);
    for (client, at) in [(1, 50), (2, 0), (1, 80), (2, 7)] {
        assert_eq!(file.write(client, 1, at, 3), 3);
    }
    let places = [50, 0, 80, 7].map(|block| file.places[&block]);
    assert_eq!(places, [100, 103, 106, 200], "a run of 1 is too short for 3");
    assert_eq!(file.placer.end(), 203);
}

#[test]
fn learned_range_is_left_when_enough_is_known() {
    let mut placer = Placer::new(0);
    placer.learn(&free(&[(1, KNOWN_MIN)]), 1);
    assert_eq!(placer.wants(KNOWN_MIN), None);
    assert_eq!(placer.wants(KNOWN_MIN + 1), Some((KNOWN_MIN + 1, u64::MAX)));
}

#[test]
fn windows_of_one_way_are_no_reason_to_refuse_a_request_of_another() {
    let mut file = Written::new(knowing(&[(1, 64)]), Policy::default());
    assert_eq!(file.write(1, 1, 100, 4), 4);
    let held = file.placer.held();
    assert!(held > 0);
    file.policy = Policy::Vanilla;
    assert_eq!(file.write(2, 1, 500, 60), 60, "{held} were in windows");
    assert_eq!((file.placer.held(), file.write(1, 1, 900, 1)), (0, 0));
}

#[test]
fn windows_end_with_handle_and_client_and_those_of_all_with_the_last_client() {
    for policy in [Policy::default(), Policy::Reservation] {
        let mut file = Written::new(knowing(&[(1, 1 << 20)]), policy);
        for (client, process, at) in [(1, 1, 10), (1, 2, 500), (2, 1, 900)] {
            file.write(client, process, at, 4);
            file.write(client, process, at + 4, 4);
        }
        let mut held = vec![file.placer.held()];
        let ino = file.ino;
        for (client, handle) in [(1, Some(1)), (2, Some(3)), (1, None), (3, None)] {
            file.placer.close(ClientId(client), ino, handle);
            held.push(file.placer.held());
        }
        assert!(held[0] > 0 && held.is_sorted_by(|a, b| a >= b), "{held:?}");
        if policy == Policy::Reservation {
            assert_eq!(held[4], held[0], "client 2 goes on");
        } else {
            assert!(held[1] < held[0] && held[2] == held[1] && held[3] < held[2], "{held:?}");
        }
        assert!(held[4] > 0, "client 2 goes on");
        file.placer.end_client(ClientId(2));
        assert_eq!((file.placer.held(), file.placer.files.len()), (0, 0));
        let free = file.placer.free.take_zone(ZONE).iter().map(|run| run.len).sum::<u64>();
        assert_eq!(free, (1 << 20) - 24);
    }
}

#[test]
fn blocks_that_others_got_are_known_no_more_unless_they_are_in_windows() {
    let mut file = Written::new(knowing(&[(1, 1000)]), Policy::default());
    file.write(1, 1, 100, 4);
    let place = file.places[&100];
    assert!(!file.placer.granted(&run(place, 1)), "handed out");
    assert!(!file.placer.granted(&run(place + 4, 1)), "in a window");
    assert!(file.placer.granted(&run(500, 20)));
    let before = file.placer.free.free();
    assert!(!file.placer.granted(&run(500, 20)), "it is gone");
    file.placer.give_back(vec![run(500, 20)]);
    assert_eq!(file.placer.free.free(), before + 20);
    let mut partly = Placer::new(50);
    partly.learn(&free(&[(60, 5)]), 1);
    assert!(partly.granted(&run(10, 40)) && partly.granted(&run(70, 5)), "not known yet");
    assert!(!partly.granted(&run(64, 2)));
}

#[test]
fn answer_has_no_more_runs_than_it_may_and_the_rest_stays_free() {
    let scattered: Vec<(u64, u64)> = (1..=40).map(|at| (at * 10, 2)).collect();
    for policy in [Policy::default(), Policy::Reservation, Policy::Vanilla, Policy::Static] {
        let mut placer = knowing(&scattered);
        let pieces = [piece(0, 3, None), piece(10, 60, None)];
        let (client, ino) = (ClientId(1), Ino(9));
        let asked = Asked { client, ino, pieces: &pieces, writer: Some((1, 1)), policy };
        assert_eq!(asked.blocks(), 63);
        let runs = placer.place(&asked, 5);
        assert!(runs.len() <= 5, "{runs:?}");
        let placed: u64 = runs.iter().map(|run| run.len).sum();
        assert!(placed > 0);
        assert_eq!(placed + placer.free.free() + placer.held(), 80, "{policy:?}");
    }
}

#[test]
fn silent_files_and_ways_make_room() {
    let mut file = Written::new(knowing(&[(1, 1 << 24)]), Policy::default());
    for ino in 0..FILES_MAX as u64 + 10 {
        file.ino = Ino(100 + ino);
        file.write(1, 1, 1000 * ino, 1);
    }
    assert_eq!(file.placer.files.len(), FILES_MAX);
    assert!(
        !file.placer.files.contains_key(&Ino(109)) && file.placer.files.contains_key(&Ino(110))
    );
    for scale in 2..20 {
        file.policy = Policy::OnDemand(proto::prealloc::OdOptions { scale, ..Default::default() });
        file.write(1, 1, (1 << 30) + scale * 1000, 1);
    }
    assert_eq!(file.placer.ways.len(), WAYS_MAX);
    file.placer.end_client(ClientId(1));
    assert_eq!(file.placer.held(), 0);
}
