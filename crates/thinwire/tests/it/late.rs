//! A late mean, through a bare `Exchange`, is the mean: the same bits, residuals and bytes, whatever is between its three calls.

use crate::common::means::{After, Kept, Made, SCALARS, bits, input};
use crate::common::setting::{ONE_BUCKET, PATIENCE, Setting};
use thinwire::inside::codec::Keeping;
use thinwire::inside::exchange::hosts::Hosts;
use thinwire::inside::exchange::{Exchange, Late, RoundLayout, RoundLayouts};
use thinwire::inside::kernel::update::Scalars;
use thinwire::inside::machine::{Groups, Host, Pass, Read, Step, Stripes, Threads, Vector, Write};
use thinwire::inside::state::Share;
use thinwire::options::Precision;
use thinwire::threads::{self, Thread};
use thinwire::{CodecName, Collective, Error, Gradient, Result, Round, Traffic};

const MEANS: usize = 4;

/// When a mean starts and when it is finished, in calls; and what a call does first.
#[derive(Clone, Copy, Debug)]
struct Pace {
    gap: usize,
    delay: usize,
    /// Whether means are received as soon as they have started.
    arrives: bool,
}

const fn pace(gap: usize, delay: usize) -> Pace {
    Pace { gap, delay, arrives: false }
}

const PACES: [Pace; 6] = [
    pace(1, 1),
    pace(3, 1),
    pace(3, 2),
    pace(2, 2),
    Pace { arrives: true, ..pace(3, 2) },
    Pace { arrives: true, ..pace(2, 2) },
];

const ARRIVED: Vector = Vector::own(0);

struct Arrive;

impl Pass for Arrive {
    const NAME: &'static str = "test_arrive";
    const WRITES: &'static [Vector] = &[ARRIVED];
    const STORES: bool = true;

    fn run(_: &Scalars, _: &[f32], _: Read<'_>, _: Write<'_>) -> Option<usize> {
        unreachable!("it is stored")
    }
}

fn exchange(setting: &Setting, hosts: &Hosts, end: impl Collective + 'static) -> Exchange {
    let (shape, [up, down]) = (setting.shape, setting.feedback);
    let keeping = Keeping { precision: setting.residue, block: shape.block, up, down };
    let codecs = [CodecName::F32, setting.up, setting.down];
    let coarse = RoundLayout::on_hosts(shape, codecs, setting.bucket, hosts).keeping(keeping).late(true);
    let codings = RoundLayouts { exact: None, coarse: Some(coarse), parts: Vec::new() };
    let groups = Groups::whole(shape.values).into();
    let threads = Threads::new(setting.threads).unwrap();
    let host = Host::new(shape.values, groups, &[("arrived", Share::Same)], false, threads);
    Exchange::new(shape, codings, Box::new(end), host).unwrap()
}

/// What comes of each mean, and what is left at the end.
type Course = (Vec<(u32, Vec<u32>)>, [Vec<u32>; 3], Traffic, u64);

/// A worker that takes part in means as `contributes` says: by itself and the number of the mean.
struct Part<'a> {
    exchange: Exchange,
    rank: usize,
    contributes: &'a (dyn Fn(usize, usize) -> bool + Sync),
    out: Vec<f32>,
}

impl Part<'_> {
    fn with<T>(&mut self, call: usize, n: usize, work: impl FnOnce(&mut Exchange, &mut Step<'_>) -> T) -> T {
        let x = input(self.out.len(), self.rank, n);
        let groups = Groups::whole(self.out.len());
        let gradient = Some(Gradient::Whole(&x));
        let contributes = (self.contributes)(self.rank, n);
        let mut step = Step { contributes, gradient, ..Step::idle(call as u64, &groups, &[], &mut self.out) };
        step.scalars = vec![SCALARS];
        work(&mut self.exchange, &mut step)
    }

    fn finish(self, means: Vec<(u32, Vec<u32>)>) -> Course {
        let Part { mut exchange, .. } = self;
        let After { e, owner_e, digest, .. } = After::of(&mut exchange);
        let arrived = exchange.machine.sum_of(ARRIVED).unwrap();
        (means, [bits(&e), bits(&owner_e), vec![arrived.to_bits() as u32]], exchange.group.traffic, digest)
    }
}

fn run(mut part: Part<'_>, pace: Option<Pace>) -> Result<Course> {
    let mut means = Vec::new();
    let Some(Pace { gap, delay, arrives }) = pace else {
        for n in 0..MEANS {
            let count = part.with(n, n, |exchange, step| exchange.mean(Round::Coarse, step, Made, Kept))?;
            means.push((count, bits(&part.out)));
        }
        return Ok(part.finish(means));
    };
    let mut lates: Vec<Late> = Vec::new();
    for call in 0..MEANS * gap + delay {
        part.with(call, 0, |exchange, step| exchange.turn(step))?;
        part.exchange.agree_on(&call.to_le_bytes());
        if call.is_multiple_of(gap) && call / gap < MEANS {
            part.with(call, call / gap, |exchange, step| exchange.start(step, Made))?;
            let mut late = Late::default();
            late.due = (call + delay) as u64;
            lates.push(late);
        }
        if lates.first().is_some_and(|late| late.due == call as u64) {
            let mut late = lates.remove(0);
            let count =
                part.with(call, 0, |exchange, step| exchange.finish(&mut late, step, Kept, (Stripes::WHOLE, ARRIVED)))?;
            assert!(!late.is_under_way());
            means.push((count, bits(&part.out)));
        }
        if let (Some(late), true) = (lates.last_mut(), arrives) {
            part.with(call, 0, |exchange, step| exchange.arrive(late, step, Arrive))?;
        }
    }
    Ok(part.finish(means))
}

fn together(
    setting: &Setting,
    places: &[usize],
    pace: Option<Pace>,
    contributes: &(dyn Fn(usize, usize) -> bool + Sync),
) -> Vec<Course> {
    let hosts = Hosts::new(places);
    let work = |end: Thread| {
        let (rank, out) = (end.rank(), vec![0.0; setting.shape.values]);
        run(Part { exchange: exchange(setting, &hosts, end), rank, contributes, out }, pace).unwrap()
    };
    threads::run_group(threads::group_on(places, PATIENCE), work)
}

fn check(setting: &Setting, places: &[usize], contributes: &(dyn Fn(usize, usize) -> bool + Sync)) {
    let want = together(setting, places, None, contributes);
    let mut digests = Vec::new();
    for pace in PACES {
        let got = together(setting, places, Some(pace), contributes);
        for (rank, (want, got)) in want.iter().zip(&got).enumerate() {
            let what = format!("{setting:?} on {places:?}, {pace:?}, rank {rank}");
            assert!(want.0 == got.0, "{what}: the means differ");
            assert!(want.1 == got.1, "{what}: what is left differs");
            let sent = |traffic: &Traffic| (traffic.bytes_sent, traffic.bytes_between_hosts, traffic.messages_sent);
            assert_eq!((sent(&want.2), want.2.rounds), (sent(&got.2), got.2.rounds), "{what}");
        }
        assert!(
            got.iter().all(|(.., digest)| *digest == got[0].3),
            "{setting:?}, {pace:?}: digests differ between workers"
        );
        digests.push((pace.gap, pace.delay, got[0].3));
    }
    // It does not matter when a mean was received.
    assert!(digests[2] == digests[4] && digests[3] == digests[5], "{digests:?}");
}

fn settings(workers: usize) -> impl Iterator<Item = Setting> {
    let codecs = [
        (CodecName::Sign, CodecName::Sign),
        (CodecName::F32, CodecName::F32),
        (CodecName::Uniform(4), CodecName::Sign),
    ];
    let of = move |values: usize| {
        [ONE_BUCKET, 24].into_iter().flat_map(move |bucket| {
            codecs.into_iter().flat_map(move |(up, down)| {
                let setting = Setting { up, down, bucket, ..Setting::new(workers, values, 4) };
                let half = Setting { residue: Precision::Bf16, ..setting };
                [setting, setting.central(), half]
            })
        })
    };
    [0, 1, 17, 200].into_iter().flat_map(of)
}

#[test]
fn a_late_mean_is_the_mean() {
    for workers in [1, 2, 3, 5] {
        settings(workers).for_each(|setting| check(&setting, &(0..workers).collect::<Vec<_>>(), &|_, _| true));
    }
}

#[test]
fn a_late_mean_on_hosts_is_the_mean() {
    for places in [&[0, 0, 1][..], &[0, 1, 0, 1], &[0, 1, 1, 1, 2]] {
        settings(places.len()).for_each(|setting| check(&setting, places, &|_, _| true));
    }
}

#[test]
fn a_late_mean_is_of_those_who_take_part() {
    for setting in settings(3) {
        check(&setting, &[0, 1, 2], &|rank, n| rank != n % 3);
        check(&setting, &[0, 1, 2], &|_, n| n % 2 == 0);
        check(&setting, &[0, 0, 1], &|rank, n| rank != n % 3);
    }
}

#[test]
fn who_disagrees_is_named_at_the_turn() {
    let setting = Setting::new(3, 40, 4);
    let ends = threads::run_within(3, PATIENCE, |end| {
        let (rank, out) = (end.rank(), vec![0.0; 40]);
        let mut part =
            Part { exchange: exchange(&setting, &Hosts::apart(3), end), rank, contributes: &|_, _| true, out };
        if rank == 1 {
            part.exchange.agree_on(b"something else");
        }
        run(part, Some(pace(3, 2)))
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let error = end.expect_err("they disagree");
        let named = matches!(&error, Error::Disagreement { worker, .. } if *worker == 1 || rank == 1);
        assert!(named || matches!(error, Error::Gone { .. } | Error::Timeout { .. }), "{error}");
    }
}
