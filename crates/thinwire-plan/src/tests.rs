//! The model against itself: the simulation against the formula, the formula against what must be.

use crate::advice::{Advice, Pays, advise, pays};
use crate::comparison::Comparison;
use crate::cost::{Estimate, Packing, Place};
use crate::kernels::CodecSpeed;
use crate::methods::{self, Method, Run};
use crate::network::Network;
use crate::simulate::{Chance, Simulated, one};
use crate::steps::StepCost;
use thinwire::options::{Decay, Freeze, Warmup};
use thinwire::{CodecName, Config, LearningRate, LocalAdam, Name, OneBitAdam, ZeroOneAdam};

const PARAMS: usize = 3_000_000;
const STEPS: u64 = 200;

/// All alike, nothing by chance.
const CALM: Chance = Chance { spread: 0.0, slow_host: 1.0, slow_link: 1.0, jitter: 0.0, seed: 1 };

fn network(bandwidth: f64) -> Network {
    Network { bandwidth, framing: 1.0, latency: 50e-6, message: 2e-6 }
}

/// Nanoseconds a value that are about a machine's, so that tests do not measure.
fn packing() -> Packing {
    let codecs = [CodecName::F32, CodecName::Bf16, CodecName::Sign, CodecName::Uniform(4)];
    let step = |optimizer, round: &str, codec, exact, ns_per_value| StepCost {
        optimizer,
        round: round.to_owned(),
        codec_up: codec,
        codec_down: codec,
        exact_codec: exact,
        clip: false,
        workers: 2,
        workers_a_host: 1,
        ns_per_value,
    };
    let (f32, bf16, sign, uniform) =
        (Some(CodecName::F32), Some(CodecName::Bf16), Some(CodecName::Sign), Some(codecs[3]));
    Packing::Measured {
        steps: vec![
            step(Name::ADAM, "exact", None, f32, 5.0),
            step(Name::ADAM, "exact", None, bf16, 4.0),
            step(Name::ONE_BIT_ADAM, "exact", sign, f32, 5.0),
            step(Name::ONE_BIT_ADAM, "coarse", sign, f32, 2.6),
            step(Name::ZERO_ONE_ADAM, "exact", sign, bf16, 4.0),
            step(Name::ZERO_ONE_ADAM, "coarse", sign, bf16, 2.6),
            step(Name::ZERO_ONE_ADAM, "skipped", sign, bf16, 1.8),
            step(Name::EFFICIENT_ADAM, "coarse", uniform, None, 11.0),
            step(Name::LOCAL_ADAM, "coarse", uniform, None, 11.0),
            step(Name::LOCAL_ADAM, "skipped", uniform, None, 2.0),
        ],
        codecs: codecs.map(|codec| CodecSpeed { codec, encode: 1e-9, decode_add: 0.5e-9, cpu_share: 1.0 }).to_vec(),
    }
}

fn run() -> Run {
    let schedule = LearningRate { warmup: 20, decay: Decay::Cosine, steps: STEPS, ..LearningRate::constant(1e-3) };
    // A short run with rounds of every kind.
    let one_bit = OneBitAdam { warmup: Some(Warmup::Steps(100)), ..OneBitAdam::default() };
    let zero_one = ZeroOneAdam {
        kappa: Some(100),
        freeze: Some(Freeze::Step(100)),
        sync_longest: Some(16),
        ..ZeroOneAdam::default()
    };
    Run { given: vec![Config::of(one_bit), Config::of(zero_one)], ..Run::plain(STEPS, schedule, None) }
}

fn place(workers: usize, hosts: usize) -> Place {
    Place { hosts: (0..workers).map(|worker| worker * hosts / workers).collect(), crowding: 1.0 }
}

fn estimates(params: usize, compute: f64, place: &Place) -> Vec<Estimate> {
    let methods = methods::of(&run(), &[CodecName::Uniform(4)]).unwrap();
    let packing = packing();
    methods.into_iter().map(|method| Estimate::new(method, params, STEPS, compute, place, &packing).unwrap()).collect()
}

fn near(left: f64, right: f64, part: f64) -> bool {
    (left - right).abs() <= part * right.abs()
}

#[test]
fn the_simulation_is_the_formula_where_all_are_alike() {
    for (workers, hosts) in [(1, 1), (2, 2), (3, 3), (5, 5), (8, 2), (64, 64)] {
        for params in [1, 700, PARAMS] {
            for estimate in estimates(params, 0.01, &place(workers, hosts)) {
                for bandwidth in [1e7, 1e9, 1e12] {
                    let network = network(bandwidth);
                    let simulated = one(&estimate, &place(workers, hosts).hosts, &network, &CALM).step;
                    let formula = estimate.mean_step(&network);
                    assert!(
                        near(simulated, formula, 1e-9),
                        "{}: {workers} workers on {hosts}, {params} values: {simulated} {formula}",
                        estimate.method.shown
                    );
                }
            }
        }
    }
}

/// Local Adam with a sync every eight steps, and what it takes in a step beyond computing.
fn late(delay: u64, parts: u64, place: &Place, network: &Network, compute: f64) -> (Estimate, f64) {
    let own = LocalAdam { sync_every: Some(8), delay: Some(delay), parts: Some(parts), ..LocalAdam::default() };
    let config = Config { codec: Some(CodecName::Uniform(4)), ..Config::of(own) };
    let method = Method::new(&run().scheduled(config)).unwrap();
    let estimate = Estimate::new(method, PARAMS, STEPS, compute, place, &packing()).unwrap();
    let beyond = estimate.mean_step(network) - compute;
    (estimate, beyond)
}

#[test]
fn late_means_are_simulated_as_the_formula_has_them() {
    for place in [place(1, 1), place(4, 4), place(8, 2)] {
        for (delay, parts) in [(0, 1), (1, 1), (2, 1), (8, 1), (1, 4), (2, 4), (0, 2)] {
            for bandwidth in [1e7, 1e8, 1e9] {
                let (network, compute) = (network(bandwidth), 0.05);
                let (estimate, _) = late(delay, parts, &place, &network, compute);
                let (simulated, formula) =
                    (one(&estimate, &place.hosts, &network, &CALM).step, estimate.mean_step(&network));
                assert!(
                    near(simulated, formula, 0.01),
                    "delay {delay}, {parts} parts, {bandwidth:e}: {simulated} {formula}"
                );
            }
        }
    }
}

/// One step hides the way up, two hide both ways; a part is sooner there than the whole.
#[test]
fn nobody_waits_for_what_computing_hides() {
    let (place, network, compute) = (place(4, 4), network(1e8), 0.5);
    let beyond = |delay, parts| late(delay, parts, &place, &network, compute).1;
    let own = |delay, parts| late(delay, parts, &place, &network, compute).0.packing();
    let [now, half, none] = [beyond(0, 1), beyond(1, 1), beyond(2, 1)];
    assert!(near(none, own(2, 1), 1e-3), "{none} is more than packing, {}", own(2, 1));
    assert!(now > half && half > none + 0.001, "{now} {half} {none}");
    // As much computing as a part's way up takes, and not more.
    let short = |parts| late(1, parts, &place, &network, 0.02).1;
    let [parts, whole] = [short(4), short(1)];
    assert!(parts < 0.95 * whole, "a part {parts}, the whole {whole}");
}

#[test]
fn the_same_seed_is_the_same_chance() {
    let (place, network) = (place(16, 16), network(1e9));
    let chance = |seed| Chance { spread: 0.2, jitter: 1e-4, seed, ..CALM };
    let estimate = &estimates(PARAMS, 0.05, &place)[3];
    let step = |seed| one(estimate, &place.hosts, &network, &chance(seed)).step;
    assert_eq!(step(1), step(1));
    assert_ne!(step(1), step(2));
}

/// Whoever waits for the slowest at every step loses more by chance than who waits now and then.
#[test]
fn stragglers_cost_least_where_rounds_are_skipped() {
    let (place, network) = (place(32, 32), network(1e12));
    let estimates = estimates(PARAMS, 0.05, &place);
    let lost = |estimate: &Estimate| {
        let chance = Chance { spread: 0.2, ..CALM };
        one(estimate, &place.hosts, &network, &chance).step / estimate.mean_step(&network)
    };
    let (adam, zero_one) = (lost(&estimates[0]), lost(&estimates[3]));
    // The largest of 32 with a spread of 20 % is about 1.5 times the mean.
    assert!((1.3..1.7).contains(&adam), "{adam}");
    assert!(zero_one < adam - 0.05, "{zero_one} {adam}");
}

#[test]
fn a_slow_host_and_a_slow_link_slow_everyone() {
    let (place, network) = (place(8, 8), network(1e9));
    let adam = &estimates(PARAMS, 0.05, &place)[0];
    let step = |chance: Chance| one(adam, &place.hosts, &network, &chance).step;
    let calm = step(CALM);
    let computing = step(Chance { slow_host: 2.0, ..CALM });
    assert!(near(computing - calm, 0.05 + PARAMS as f64 * 5e-9, 0.3), "{computing} {calm}");
    let wire = 2.0 * PARAMS as f64 * 32.0 * 7.0 / 8.0 / 1e9;
    let linked = step(Chance { slow_link: 3.0, ..CALM });
    assert!(near(linked - calm, 2.0 * wire, 0.1), "{linked} {calm} {wire}");
    assert!(step(Chance { jitter: 1e-3, ..CALM }) > calm + 1e-3);
}

#[test]
fn four_thousand_workers_can_be_simulated() {
    let place = place(4096, 4096);
    let estimates = estimates(100_000_000, 0.1, &place);
    let chance = Chance { spread: 0.1, slow_host: 1.5, jitter: 1e-4, ..CALM };
    for estimate in &estimates {
        let simulated = one(estimate, &place.hosts, &network(1e10), &chance);
        assert!(simulated.step > estimate.mean_step(&network(1e10)), "{}", estimate.method.shown);
    }
}

/// With no packing, no latency and one bucket a step is computing and its bytes.
#[test]
fn a_step_is_computing_and_its_bytes() {
    let place = place(4, 4);
    let methods = methods::of(&run(), &[]).unwrap();
    let network = Network { bandwidth: 1e6, framing: 0.5, latency: 0.0, message: 0.0 };
    for method in methods {
        let estimate = Estimate::new(method, 4096, STEPS, 0.5, &place, &Packing::Nothing).unwrap();
        let bytes = estimate.plan.bytes_sent(0) as f64;
        let expected = STEPS as f64 * 0.5 + bytes * 8.0 / 0.5e6;
        assert!(near(estimate.run(&network), expected, 1e-9), "{}", estimate.method.shown);
    }
}

#[test]
fn every_method_pays_up_to_where_it_crosses_adam() {
    let place = place(16, 16);
    let estimates = estimates(110_000_000, 0.3, &place);
    let network = network(1e9);
    assert_eq!(pays(&estimates[0], &estimates[0], &network), Pays::Baseline);
    let Pays::Below(rate) = pays(&estimates[4], &estimates[0], &network) else { panic!("efficient-adam packs longer") };
    let run = |at: usize, rate: f64| estimates[at].run(&network.at(rate));
    assert!(run(4, rate / 1.01) < run(0, rate / 1.01) && run(4, rate * 1.01) > run(0, rate * 1.01));
    assert_eq!(pays(&estimates[3], &estimates[0], &network), Pays::Always, "it packs less, too");
}

/// Held to method `base`, on hosts of one worker each.
fn advised(estimates: Vec<Estimate>, base: usize, network: &Network) -> Advice {
    let hosts = estimates[0].plan.workers();
    advise(&Comparison { estimates, base, hosts, memory: None, simulated: None }, network)
}

#[test]
fn advice_depends_on_the_network() {
    let place = place(16, 16);
    let thin = advised(estimates(110_000_000, 0.3, &place), 0, &network(1e9));
    assert_eq!(thin.optimizer, Name::ZERO_ONE_ADAM, "{}", thin.reason);
    assert!(thin.reason.contains("keep your network busy") && thin.reason.contains("times fewer"), "{}", thin.reason);
    let fast = advised(estimates(1_000_000, 0.3, &place), 0, &network(1e11));
    assert_eq!((fast.optimizer, fast.codec), (Name::ADAM, CodecName::F32));
    assert!(fast.reason.starts_with("No: your network is fast enough, stay with AdamW"), "{}", fast.reason);
    let alone = advised(estimates(1_000_000, 0.3, &self::place(1, 1)), 0, &network(1e9));
    assert!(alone.reason.contains("one worker"), "{}", alone.reason);
    let answer = Comparison {
        estimates: estimates(1_000_000, 0.3, &self::place(4, 1)),
        base: 0,
        hosts: 1,
        memory: None,
        simulated: None,
    };
    let together = advise(&answer, &network(1e9));
    assert!(together.reason.contains("there is no network"), "{}", together.reason);
}

/// Packing decides nothing where the network is fast, and latency is called latency.
#[test]
fn the_reason_is_where_the_time_goes() {
    let place = place(16, 16);
    let fast = advised(estimates(110_000_000, 0.3, &place), 0, &Network { message: 0.0, ..network(1e12) });
    assert!(fast.reason.starts_with("No: your network is fast enough, stay with AdamW"), "{}", fast.reason);
    assert!(fast.reason.contains("packing, as measured on a CPU"), "{}", fast.reason);
    let far = advised(estimates(10_000, 0.01, &place), 0, &Network { latency: 0.1, ..network(1e10) });
    assert_eq!(far.optimizer, Name::ZERO_ONE_ADAM, "{}", far.reason);
    assert!(far.reason.contains("latency takes") && far.reason.contains("of the rounds"), "{}", far.reason);
}

#[test]
fn the_parts_of_a_step_are_all_of_it() {
    for estimate in estimates(PARAMS, 0.05, &place(8, 4)) {
        let network = network(1e9);
        let parts = estimate.parts(&network);
        let sum = estimate.compute + parts.sending() + parts.packing;
        assert!(near(sum, estimate.mean_step(&network), 1e-12), "{}", estimate.method.shown);
        assert!(parts.wire > 0.0 && parts.latency > 0.0 && parts.packing > 0.0, "{parts:?}");
    }
}

/// Whatever is advised saves a twentieth, and more than a twentieth is not left.
#[test]
fn what_is_advised_is_worth_it() {
    for rate in (0..60).map(|at| 1e8 * 1.15_f64.powi(at)) {
        for base in [0, 1] {
            let (place, network) = (place(4, 4), network(rate));
            let answer = Comparison {
                estimates: estimates(1_230_000, 0.1, &place),
                base,
                hosts: 4,
                memory: None,
                simulated: None,
            };
            let advice = advise(&answer, &network);
            let name = |estimate: &Estimate| (estimate.method.config.name, estimate.method.codec());
            let at = answer.estimates.iter().position(|estimate| name(estimate) == (advice.optimizer, advice.codec));
            let (step, own) = (answer.step(at.unwrap(), &network), answer.step(base, &network));
            assert!(at == Some(base) || step <= 0.95 * own, "{rate:e}: {}", advice.reason);
            let fast = answer.parts(0, &network).sending() < 0.05 * answer.step(0, &network);
            let best = (0..5).map(|at| answer.step(at, &network)).fold(f64::INFINITY, f64::min);
            assert!(fast || step <= best / 0.949, "{rate:e}: {}", advice.reason);
        }
    }
}

/// A method that compresses is what the others are held to: they are faster above a rate, not below.
#[test]
fn others_are_held_to_what_the_user_has() {
    let estimates = estimates(110_000_000, 0.3, &place(16, 16));
    let network = network(1e9);
    let Pays::Above(rate) = pays(&estimates[0], &estimates[4], &network) else { panic!("efficient-adam packs longer") };
    assert_eq!(pays(&estimates[4], &estimates[0], &network), Pays::Below(rate));
    let times = |base: usize| estimates[base].mean_step(&network) / estimates[3].mean_step(&network);
    let expected = format!("{:.1} times faster", times(1));
    assert_ne!(expected, format!("{:.1} times faster", times(0)));
    let advice = advised(estimates, 1, &network);
    assert!(advice.reason.contains(&expected), "{}", advice.reason);
}

/// What was simulated is what is advised on.
#[test]
fn a_simulation_reaches_the_advice() {
    let network = network(1e11);
    let estimates = estimates(1_000_000, 0.3, &place(16, 16));
    let calm = estimates.iter().map(|estimate| estimate.mean_step(&network)).collect::<Vec<_>>();
    let simulated = |at: usize| Simulated { step: calm[at] * if at == 3 { 1.0 } else { 2.0 }, steps: 1 };
    let simulated = Some((0..calm.len()).map(simulated).collect());
    let advice = advise(&Comparison { estimates, base: 0, hosts: 16, memory: None, simulated }, &network);
    assert_eq!(advice.optimizer, Name::ZERO_ONE_ADAM);
    assert!(advice.reason.contains("waiting for slow workers"), "{}", advice.reason);
}

/// So many buckets that most of them are counted like the others.
#[test]
fn buckets_without_end_are_simulated_too() {
    let (place, network) = (place(64, 64), network(1e11));
    for estimate in estimates(4_000_000_000, 1.0, &place) {
        let buckets = [estimate.round(thinwire::Round::Exact), estimate.round(thinwire::Round::Coarse)];
        let simulated = one(&estimate, &place.hosts, &network, &CALM).step;
        assert!(buckets.iter().flatten().any(|cost| cost.load.buckets > 64), "{}", estimate.method.shown);
        assert!(near(simulated, estimate.mean_step(&network), 1e-9), "{}", estimate.method.shown);
    }
}

/// Four workers of a host share its link: all that they send by it takes as long as if one did.
#[test]
fn workers_of_a_host_share_its_link() {
    let network = network(1e8);
    let step = |workers, hosts| estimates(PARAMS, 0.0, &place(workers, hosts))[0].mean_step(&network);
    let (alone, shared) = (step(4, 4), step(16, 4));
    assert!(near(alone, shared, 0.1), "{alone} {shared}");
}

#[test]
fn parts_that_exceed_their_whole_are_doubted() {
    let Packing::Measured { steps, mut codecs } = packing() else { panic!("it is measured") };
    assert_eq!(crate::cost::doubt(&steps, &codecs), None);
    codecs[2].cpu_share = 0.5;
    let doubt = crate::cost::doubt(&steps, &codecs).expect("a core was shared");
    assert!(doubt.contains("for 50 % of the time"), "{doubt}");
    codecs[0].encode = 40e-9;
    let doubt = crate::cost::doubt(&steps, &codecs).expect("eight times the whole");
    assert!(doubt.contains("times as long as the whole exact step of"), "{doubt}");
}

/// DDP hides sending behind backward; what it cannot hide is what another method can save.
#[test]
fn others_are_held_to_ddp() {
    let (place, compute) = (place(16, 16), 0.3);
    let with_ddp = |params| {
        let mut all = estimates(params, compute, &place);
        let mut ddp = estimates(params, compute, &place);
        ddp.truncate(2);
        all.extend(ddp.into_iter().map(|estimate| estimate.under_ddp(&place, &packing())));
        all
    };
    let all = with_ddp(110_000_000);
    for rate in [1e8, 1e9, 1e10, 1e11] {
        let step = |at: usize| all[at].mean_step(&network(rate));
        assert!(step(5) < step(0) && step(6) < step(1) && step(6) < step(5), "{rate:e}");
    }
    let advised = |params, memory, rate| {
        let answer = Comparison { estimates: with_ddp(params), base: 5, hosts: 16, memory, simulated: None };
        advise(&answer, &network(rate))
    };
    let cramped = advised(110_000_000, Some(1), 1e9);
    assert!(
        cramped.reason.starts_with("No method") && cramped.reason.contains("nothing in the table"),
        "{}",
        cramped.reason
    );
    let thin = advised(110_000_000, None, 1e9);
    assert_eq!(thin.optimizer, Name::ZERO_ONE_ADAM, "{}", thin.reason);
    assert!(thin.reason.contains("of DDP f32") && thin.reason.contains("beyond backward"), "{}", thin.reason);
    let fast = advised(1_000_000, None, 1e11);
    assert!(fast.reason.starts_with("No: your network is fast enough, stay with AdamW under DDP"), "{}", fast.reason);
    let zero_one = all[3].memory().total();
    let small = advised(110_000_000, Some(zero_one - 1), 1e9);
    assert_ne!(small.optimizer, Name::ZERO_ONE_ADAM, "{}", small.reason);
}
