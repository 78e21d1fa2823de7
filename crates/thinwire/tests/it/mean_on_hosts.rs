//! The two-level form of the means, through a bare [`Exchange`]: exact inside a host, coded between hosts.
//!
//! ```text
//! host h    z = Σ_i x_i + e_h;        q_h = C_up(z);   e_h ← z − q_h          i the workers of h, e_h with one of them
//! owner     z = Σ_h q_h / n + E;      p = C_down(z);   E ← z − p;             everyone gets p
//! so        out = mean_i x_i + (Σ_h e_h / n + E)_before − (Σ_h e_h / n + E)_after
//! ```
//!
//! All workers get the same bits; topology, buckets and threads change none; and a host to each worker is the flat form.

use crate::common::means;
use crate::common::oracle;

use means::{After, Tampered, bits, input, mean, mean_of_those_who, widen};
use oracle::{Quantizer, blocks, zip};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use thinwire::CodecName;
use thinwire::Round;
use thinwire::Traffic;
use thinwire::inside::exchange::header::{HEADER_LEN, Operation};
use thinwire::inside::exchange::hosts::Hosts;
use thinwire::inside::exchange::layout::{Shape, Topology};
use thinwire::inside::exchange::{Exchange, RoundLayout, RoundLayouts};
use thinwire::inside::machine::{Host, Threads};
use thinwire::threads::{self, Thread};
use thinwire::{Collective, Error, Result};

/// Longer than any round here takes, on a busy machine too: a ring of waits ends in an error.
const PATIENCE: Duration = Duration::from_secs(20);
const ONE_BUCKET: usize = usize::MAX;
const ROUNDS: [Round; 4] = [Round::Coarse, Round::Exact, Round::Coarse, Round::Coarse];

/// In a row and in turn, alike and not, alone and many, one host and a host to each.
const PLACES: [&[usize]; 11] = [
    &[0, 0],
    &[0, 0, 1],
    &[0, 1, 1],
    &[0, 1, 0, 1],
    &[0, 0, 1, 1],
    &[0, 0, 0, 1, 2],
    &[2, 0, 1, 1, 0, 1, 2],
    &[0, 1, 1, 1, 1, 1],
    &[0, 0, 0],
    &[0, 1, 2],
    &[0],
];

/// Nothing, fewer values than workers, blocks that divide evenly and that do not.
const LENGTHS: [usize; 6] = [0, 1, 3, 16, 67, 500];

#[derive(Clone, Debug)]
struct Setting {
    hosts: &'static [usize],
    values: usize,
    block: usize,
    topology: Topology,
    inside: CodecName,
    exact: CodecName,
    up: CodecName,
    down: CodecName,
    bucket: usize,
    threads: usize,
}

impl Setting {
    fn new(hosts: &'static [usize], values: usize, block: usize) -> Setting {
        Setting {
            hosts,
            values,
            block,
            topology: Topology::Sharded,
            inside: CodecName::F32,
            exact: CodecName::F32,
            up: CodecName::Sign,
            down: CodecName::Sign,
            bucket: ONE_BUCKET,
            threads: 1,
        }
    }

    fn coded(self, up: CodecName, down: CodecName) -> Setting {
        Setting { up, down, ..self }
    }

    fn exchange(&self, end: impl Collective + 'static) -> Exchange {
        let Setting { values, block, topology, inside, .. } = *self;
        let (workers, hosts) = (self.hosts.len(), Hosts::new(self.hosts));
        let shape = Shape { values, block, workers, topology };
        let coding = |up, down| Some(RoundLayout::on_hosts(shape, [inside, up, down], self.bucket, &hosts));
        let codings = RoundLayouts {
            exact: coding(self.exact, self.exact),
            coarse: coding(self.up, self.down),
            parts: Vec::new(),
        };
        Exchange::new(
            shape,
            codings,
            Box::new(end),
            Host::bare(shape.values, Threads::new(self.threads).expect("threads")),
        )
        .expect("the host has room")
    }

    /// What every worker has after each of these rounds: `[round][worker]`.
    fn run(&self, rounds: &[Round]) -> Vec<Vec<After>> {
        let by_worker = together(self.hosts, |end| {
            let worker = end.rank();
            After::each(self.exchange(end), worker, self.values, rounds)
        });
        let of_round = |t: usize| by_worker.iter().map(|worker| worker[t].clone()).collect::<Vec<_>>();
        let run = (0..rounds.len()).map(of_round).collect::<Vec<_>>();
        for after in &run {
            let same = |other: &After| (bits(&other.out), other.digest) == (bits(&after[0].out), after[0].digest);
            assert!(after.iter().all(same), "workers differ: {self:?}");
        }
        run
    }
}

fn settings() -> impl Iterator<Item = Setting> {
    let of = |hosts| LENGTHS.into_iter().flat_map(move |values| [1, 4].map(|block| Setting::new(hosts, values, block)));
    PLACES.into_iter().flat_map(of)
}

fn together<T: Send>(hosts: &[usize], work: impl Fn(Thread) -> T + Sync) -> Vec<T> {
    threads::run_group(threads::group_on(hosts, PATIENCE), work)
}

#[test]
fn in_place_is_no_other_mean() {
    for setting in settings().flat_map(|setting| [Setting { bucket: 64, ..setting.clone() }, setting]) {
        let got = together(setting.hosts, |end| {
            let worker = end.rank();
            After::each_in_place(setting.exchange(end), worker, setting.values, &ROUNDS, 0)
        });
        let want = setting.run(&ROUNDS);
        let bits = |after: &After| after.bits_among(setting.hosts.len());
        let same = |t: usize| got.iter().map(|worker| bits(&worker[t])).eq(want[t].iter().map(bits));
        assert!((0..ROUNDS.len()).all(same), "{setting:?}");
    }
}

fn add(sum: Vec<f64>, x: &[f32]) -> Vec<f64> {
    zip(&sum, &widen(x), |sum, x| sum + x)
}

/// Of all workers, or of those on one host.
fn sum<'a>(values: usize, rows: impl Iterator<Item = &'a [f32]>) -> Vec<f64> {
    rows.fold(vec![0.0; values], add)
}

fn assert_close(got: &[f64], want: &[f64], tolerance: f64, context: &str) {
    assert_eq!(got.len(), want.len(), "{context}");
    for (k, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{context}: value {k} is {got}, not {want}");
    }
}

// The slow twin, in f64: the equations above, hosts in one loop.

struct Twin {
    hosts: Hosts,
    block: usize,
    up: Quantizer,
    down: Quantizer,
    e: Vec<Vec<f64>>,
    owner_e: Vec<f64>,
}

impl Twin {
    /// z = x + e;  q = C(z);  e ← z − q.
    fn fed_back(codec: Quantizer, block: usize, x: &[f64], e: &mut Vec<f64>) -> Vec<f64> {
        let z = zip(x, e, |x, e| x + e);
        let q = blocks(z.len(), block).into_iter().flat_map(|block| codec.apply(&z[block])).collect::<Vec<_>>();
        *e = zip(&z, &q, |z, q| z - q);
        q
    }

    fn mean(&mut self, x: &[Vec<f32>]) -> Vec<f64> {
        let mut total = vec![0.0; self.owner_e.len()];
        for host in 0..self.hosts.count() {
            let members = self.hosts.members(host).iter().map(|worker| &x[*worker][..]);
            let q = Twin::fed_back(self.up, self.block, &sum(total.len(), members), &mut self.e[host]);
            total = zip(&total, &q, |total, q| total + q);
        }
        let mean = total.iter().map(|total| total / x.len() as f64).collect::<Vec<_>>();
        Twin::fed_back(self.down, self.block, &mean, &mut self.owner_e)
    }

    /// Takes the engine's own residues, so that rounding does not add up.
    fn take(&mut self, after: &[After]) {
        for host in 0..self.hosts.count() {
            let members = self.hosts.members(host).iter().map(|worker| &after[*worker].e[..]);
            self.e[host] = sum(self.owner_e.len(), members);
        }
        self.owner_e = after.iter().flat_map(|after| widen(&after.owner_e)).collect();
    }

    /// Σ e / n + E: what the means so far still owe.
    fn owed(&self) -> Vec<f64> {
        let (n, add) = (self.hosts.of_all().len() as f64, |sum: Vec<f64>, e: &Vec<f64>| zip(&sum, e, |sum, e| sum + e));
        let e = self.e.iter().fold(vec![0.0; self.owner_e.len()], add);
        zip(&e, &self.owner_e, |e, owner_e| e / n + owner_e)
    }
}

fn check_coarse(setting: &Setting, up: Quantizer, down: Quantizer) {
    let (hosts, values, block) = (Hosts::new(setting.hosts), setting.values, setting.block);
    let e = vec![vec![0.0; values]; hosts.count()];
    let mut twin = Twin { hosts, block, up, down, e, owner_e: vec![0.0; values] };
    for (t, after) in setting.run(&[Round::Coarse; 3]).iter().enumerate() {
        let context = format!("round {t} of {setting:?}");
        let x = (0..setting.hosts.len()).map(|worker| input(values, worker, t)).collect::<Vec<_>>();
        let (before, want, out) = (twin.owed(), twin.mean(&x), widen(&after[0].out));
        twin.take(after);
        assert_close(&out, &want, 1e-5, &context);
        let mean_x = true_mean(&x, values);
        let (told, had) = (zip(&out, &twin.owed(), |a, b| a + b), zip(&mean_x, &before, |a, b| a + b));
        assert_close(&told, &had, 2e-6, &format!("lost: {context}"));
        check_relays(setting, after, &context);
    }
}

fn true_mean(x: &[Vec<f32>], values: usize) -> Vec<f64> {
    sum(values, x.iter().map(|x| &x[..])).iter().map(|total| total / x.len() as f64).collect()
}

/// A host's residue is with one worker, the relay of the block's owner; on the owner's host that is the owner.
fn check_relays(setting: &Setting, after: &[After], context: &str) {
    let hosts = Hosts::new(setting.hosts);
    for k in 0..setting.values {
        for host in 0..hosts.count() {
            let holds = hosts.members(host).iter().filter(|worker| after[**worker].e[k] != 0.0).count();
            assert!(holds <= 1, "value {k} is with {holds} workers of host {host}, {context}");
        }
    }
}

const CODECS: [(CodecName, Quantizer); 4] = [
    (CodecName::F32, Quantizer::F32),
    (CodecName::Sign, Quantizer::Sign),
    (CodecName::Uniform(4), Quantizer::Uniform(4)),
    (CodecName::TopK(300_000), Quantizer::TopK(0.3)),
];

#[test]
fn the_coarse_mean_on_hosts_is_the_twins_and_owes_what_it_did_not_say() {
    for setting in settings() {
        for (i, up) in CODECS.into_iter().enumerate() {
            let down = CODECS[(i + 1) % CODECS.len()];
            let setting = setting.clone().coded(up.0, down.0);
            check_coarse(&setting, up.1, down.1);
            check_coarse(&Setting { topology: Topology::Central, bucket: 40, ..setting }, up.1, down.1);
        }
    }
}

/// Where nothing is coded away, both means are the mean, to the rounding of sums and, under bf16, of what is summed.
#[test]
fn without_codecs_both_means_are_the_mean() {
    for setting in settings() {
        for (inside, tolerance) in [(CodecName::F32, 1e-6), (CodecName::Bf16, 2f64.powi(-8))] {
            let setting = Setting { inside, ..setting.clone().coded(CodecName::F32, CodecName::F32) };
            for (t, after) in setting.run(&ROUNDS).iter().enumerate() {
                let x = (0..setting.hosts.len()).map(|worker| input(setting.values, worker, t)).collect::<Vec<_>>();
                let mean = true_mean(&x, setting.values);
                assert_close(&widen(&after[0].out), &mean, tolerance, &format!("round {t} of {setting:?}"));
            }
        }
    }
}

// What changes no bit.

/// One round of a run: what everyone gets, and what is owed by each host, and by the owners.
type Outcome = (Vec<u32>, Vec<Vec<f64>>, Vec<u32>);

/// Without regard to which worker of a host holds what the host owes.
fn outcomes(setting: &Setting) -> Vec<Outcome> {
    let hosts = Hosts::new(setting.hosts);
    let of = |after: &Vec<After>| {
        let on = |host| sum(setting.values, hosts.members(host).iter().map(|worker| &after[*worker].e[..]));
        let owner_e = after.iter().flat_map(|after| bits(&after.owner_e)).collect();
        (bits(&after[0].out), (0..hosts.count()).map(on).collect(), owner_e)
    };
    setting.run(&ROUNDS).iter().map(of).collect()
}

#[test]
fn topology_and_buckets_change_no_bit() {
    for setting in settings() {
        for (inside, codec) in [(CodecName::F32, CodecName::Sign), (CodecName::Bf16, CodecName::Uniform(3))] {
            let setting = Setting { inside, ..setting.clone().coded(codec, codec) };
            let usual = outcomes(&setting);
            let central = Setting { topology: Topology::Central, ..setting.clone() };
            assert!(usual == outcomes(&central), "{central:?}");
            for bucket in [1, 100] {
                for setting in [&setting, &central] {
                    let cut = Setting { bucket, ..setting.clone() };
                    assert!(usual == outcomes(&cut), "{cut:?}");
                }
            }
        }
    }
}

#[test]
fn threads_change_no_bit() {
    let setting = Setting::new(&[0, 0, 1], 200_001, 512).coded(CodecName::Uniform(5), CodecName::Sign);
    assert!(outcomes(&setting) == outcomes(&Setting { threads: 2, ..setting.clone() }));
}

/// The same bits, the same digest, the same bytes as the form that knows of no hosts.
#[test]
fn a_host_to_each_worker_is_the_flat_form() {
    for (values, topology) in
        [3, 67].into_iter().flat_map(|len| [Topology::Sharded, Topology::Central].map(|t| (len, t)))
    {
        let setting = Setting { topology, bucket: 40, ..Setting::new(&[3, 1, 2, 0], values, 4) };
        let ends = |flat: bool| {
            together(setting.hosts, |end| {
                let worker = end.rank();
                let mut exchange = if flat { flat_exchange(&setting, end) } else { setting.exchange(end) };
                let outs = ROUNDS.iter().enumerate().map(|(t, round)| {
                    bits(&mean(&mut exchange, *round, t as u64, &input(values, worker, t)).expect("a mean"))
                });
                let outs = outs.collect::<Vec<_>>();
                let Traffic { bytes_sent, bytes_between_hosts, messages_sent, .. } = exchange.group.traffic;
                assert_eq!(bytes_sent, bytes_between_hosts);
                (outs, bits(&After::of(&mut exchange).e), exchange.digest(), bytes_sent, messages_sent)
            })
        };
        assert!(ends(true) == ends(false), "{setting:?}");
    }
}

fn flat_exchange(setting: &Setting, end: Thread) -> Exchange {
    let Setting { values, block, topology, bucket, exact, up, down, .. } = *setting;
    let shape = Shape { values, block, workers: setting.hosts.len(), topology };
    let coding = |up, down| Some(RoundLayout::new(shape, up, down, bucket));
    let codings = RoundLayouts { exact: coding(exact, exact), coarse: coding(up, down), parts: Vec::new() };
    Exchange::new(shape, codings, Box::new(end), Host::bare(shape.values, Threads::new(1).expect("a thread")))
        .expect("the host has room")
}

// Workers that are left out.

/// A round on hosts {0, 1}, {2, 3}, {4} in which only some take part: how many each counts, and what it has.
fn partial(round: Round, takes_part: fn(usize) -> bool) -> Vec<(u32, Vec<f32>)> {
    let setting = Setting::new(&[0, 0, 1, 1, 2], 30, 4).coded(CodecName::F32, CodecName::F32);
    together(setting.hosts, |end| {
        let (worker, mut exchange, mut out) = (end.rank(), setting.exchange(end), vec![7.0; 30]);
        let x = [worker as f32; 30];
        let taken = mean_of_those_who(takes_part(worker), &mut exchange, round, 0, &x, &mut out);
        (taken.expect("a mean"), out)
    })
}

#[test]
fn the_mean_is_of_those_who_take_part() {
    for round in [Round::Exact, Round::Coarse] {
        assert_eq!(partial(round, |worker| worker != 1), vec![(4, vec![2.25; 30]); 5]); // (0 + 2 + 3 + 4) / 4
        assert_eq!(partial(round, |worker| worker < 2 || worker == 4), vec![(3, vec![5.0 / 3.0; 30]); 5]);
        assert_eq!(partial(round, |worker| worker == 3), vec![(1, vec![3.0; 30]); 5]);
        assert_eq!(partial(round, |_| false), vec![(0, vec![7.0; 30]); 5]); // nothing is applied
    }
}

/// A host's residue is paid when one of its workers takes part, and kept when none does.
#[test]
fn a_host_that_is_left_out_keeps_its_residue() {
    let setting = Setting::new(&[0, 0, 1, 1], 64, 4);
    let kept = |takes_part: fn(usize) -> bool| {
        let ends = together(setting.hosts, |end| {
            let (worker, mut exchange, mut out) = (end.rank(), setting.exchange(end), vec![0.0; 64]);
            let x = input(64, worker, 0);
            mean(&mut exchange, Round::Coarse, 0, &x).expect("a mean");
            let before = After::of(&mut exchange).e;
            mean_of_those_who(takes_part(worker), &mut exchange, Round::Coarse, 1, &x, &mut out).expect("a mean");
            (before, After::of(&mut exchange).e)
        });
        ends.iter().map(|(before, after)| before == after).collect::<Vec<_>>()
    };
    assert_eq!(kept(|worker| worker > 1), [true, true, false, false]);
    assert_eq!(kept(|worker| worker > 0), [false; 4]);
}

// Messages that are none.

/// On hosts {0, 1} and {2, 3} every way that a message goes: inside, up, down to another host, down inside one.
const WAYS: [(usize, usize, Operation, Operation); 4] = [
    (1, 0, Operation::CoarseInside, Operation::ExactInside),
    (2, 0, Operation::CoarseUp, Operation::ExactUp),
    (0, 2, Operation::CoarseDown, Operation::ExactDown),
    (2, 3, Operation::CoarseDown, Operation::ExactDown),
];

fn assert_refused(what: &str, change: impl Fn(&mut Vec<u8>) + Copy + Send + Sync + 'static) {
    let setting = Setting::new(&[0, 0, 1, 1], 100, 4);
    for (from, to, coarse, exact) in WAYS {
        for (round, operation) in [(Round::Coarse, coarse), (Round::Exact, exact)] {
            let mut got = together(setting.hosts, |end| {
                let x = input(100, end.rank(), 0);
                let mut exchange = setting.exchange(Tampered { end, place: (from, to, operation), change });
                mean(&mut exchange, round, 0, &x)
            });
            use Error::{Disagreement, Malformed, Payload};
            match got.swap_remove(to) {
                Err(Malformed { worker, .. } | Payload { worker, .. } | Disagreement { worker, .. }) => {
                    assert_eq!(worker, from, "{operation} from {from} to {to}, {what}");
                }
                other => panic!("{operation} from {from} to {to}, {what}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_message_that_cannot_be_is_refused_on_every_way() {
    for length in [0, 1, HEADER_LEN - 1, HEADER_LEN, HEADER_LEN + 1, 10_000] {
        assert_refused(&format!("{length} bytes"), move |message| message.resize(length, 0));
    }
    for byte in [0, 2, 3, 4, 8, 16, 24, 28, 32, 37, 40] {
        assert_refused(&format!("byte {byte} of the header"), move |message| message[byte] ^= 0x10);
    }
    assert_refused("too many workers", |message| message[36] = 5);
    assert_refused("a payload of nobody", |message| message[36] = 0);
    assert_refused("no number", |message| message[HEADER_LEN..HEADER_LEN + 4].fill(0xff));
}

// How much is under way.

/// Messages from each worker to each that were sent and not yet received.
type UnderWay = Arc<Vec<AtomicUsize>>;

/// A transport that holds the engine to what it announced, with one worker slower than the others.
struct Watched {
    end: Thread,
    under_way: UnderWay,
    announced: usize,
    most: usize,
    slow: bool,
}

impl Watched {
    fn count(&self, from: usize, to: usize) -> &AtomicUsize {
        &self.under_way[from * self.size() + to]
    }
}

impl Collective for Watched {
    fn rank(&self) -> usize {
        self.end.rank()
    }

    fn size(&self) -> usize {
        self.end.size()
    }

    fn hosts(&self) -> Vec<usize> {
        self.end.hosts()
    }

    fn reserve(&mut self, longest: usize, under_way: usize) {
        self.announced = under_way;
        self.end.reserve(longest, under_way);
    }

    fn send(&mut self, to: usize, message: &[u8], during: &'static str) -> Result<()> {
        let sent = self.count(self.rank(), to).fetch_add(1, Ordering::SeqCst) + 1;
        self.most = self.most.max(sent);
        assert!(self.most <= self.announced, "{} messages under way, {} announced", self.most, self.announced);
        self.end.send(to, message, during)
    }

    fn receive(&mut self, from: usize, message: &mut Vec<u8>, during: &'static str) -> Result<()> {
        if self.slow {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.end.receive(from, message, during)?;
        self.count(from, self.rank()).fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

/// A transport may have as many buffers as it was told to have, and no more. On two hosts of two and six, a worker of the first
/// is the relay of four owners.
#[test]
fn no_more_messages_are_under_way_than_were_announced() {
    let places: [&'static [usize]; 3] = [&[0, 0, 1, 1, 1, 1, 1, 1], &[0, 1, 2], &[0, 0, 1]];
    for hosts in places {
        let topologies = [Topology::Sharded, Topology::Central];
        let cases = (0..hosts.len()).flat_map(|slow| topologies.map(|topology| (slow, topology)));
        // In many buckets, and in one.
        for ((slow, topology), bucket) in cases.flat_map(|case| [(case, 1), (case, 1 << 20)]) {
            let under_way = UnderWay::new((0..hosts.len() * hosts.len()).map(|_| AtomicUsize::new(0)).collect());
            together(hosts, |end| {
                let (worker, slow, under_way) = (end.rank(), end.rank() == slow, under_way.clone());
                let setting = Setting { topology, bucket, ..Setting::new(hosts, 3 * hosts.len(), 1) };
                let watched = Watched { end, under_way, announced: 0, most: 0, slow };
                let mut exchange = setting.exchange(watched);
                let rounds = [Round::Coarse, Round::Coarse, Round::Exact, Round::Exact, Round::Coarse];
                for (t, round) in (0..).zip(rounds) {
                    mean(&mut exchange, round, t, &input(setting.values, worker, 0)).expect("a mean");
                    exchange.gather(Operation::Note, t, b"in between").expect("notes");
                }
            });
        }
    }
}
