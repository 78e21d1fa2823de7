//! The oracle of a configuration: what the words mean, worked out slowly and apart from the engine.

use super::engine::{Run, Snapshot, widen};
use super::oracle::{Algorithm, Oracle, Quantizer, Setup, Theta};
use std::collections::BTreeSet;
use thinwire::options::{Freeze, Sync, Theta as ConfiguredTheta, Variance, Warmup};
use thinwire::{CodecName, Config, Name};
use thinwire::{EfficientAdam, OneBitAdam, ZeroOneAdam};

pub fn quantizer(codec: CodecName) -> Quantizer {
    match codec {
        CodecName::Sign => Quantizer::Sign,
        CodecName::Uniform(bits) => Quantizer::Uniform(bits.into()),
        CodecName::Power2(bits) => Quantizer::Power2(bits.into()),
        CodecName::Sparse { millionths, width } => Quantizer::Sparse(f64::from(millionths) / 1e6, width.into()),
        CodecName::TopK(millionths) => Quantizer::TopK(f64::from(millionths) / 1e6),
        CodecName::Bf16 => Quantizer::Bf16,
        CodecName::F16 => Quantizer::F16,
        CodecName::F32 => Quantizer::F32,
        CodecName::Vote => Quantizer::Vote,
        other => panic!("the oracle does not know {other}"),
    }
}

/// The setup of an oracle that should do what `run` does.
pub fn setup(run: &Run) -> Setup {
    let (config, d) = (run.config.resolved().unwrap(), run.start.len());
    let plain = Setup::plain(algorithm(&config, &run.rates), run.workers, d);
    let coded = |codec: Option<CodecName>| codec.map_or(Quantizer::F32, quantizer);
    Setup {
        block: config.block.unwrap(),
        up: coded(config.codec_up),
        down: coded(config.codec_down),
        feedback: (config.feedback_up.unwrap_or(1.0), config.feedback_down.unwrap_or(1.0)),
        exact: coded(config.exact_codec),
        betas: config.betas.unwrap(),
        eps: config.eps.unwrap(),
        bias_correction: config.bias_correction.unwrap(),
        rate: by_coordinate(&config, d, 1.0, |group| Some(group.lr_scale)),
        weight_decay: by_coordinate(&config, d, config.weight_decay.unwrap(), |group| group.weight_decay),
        ..plain
    }
}

fn by_coordinate(
    config: &Config,
    d: usize,
    usual: f64,
    own: impl Fn(&thinwire::options::Group) -> Option<f64>,
) -> Vec<f64> {
    let of_group = |group| vec![own(group).unwrap_or(usual); group.length];
    if config.groups.is_empty() { vec![usual; d] } else { config.groups.iter().flat_map(of_group).collect() }
}

fn algorithm(config: &Config, rates: &[f32]) -> Algorithm {
    match config.name {
        Name::ADAM if config.codec_up.is_some() => Algorithm::CodedAdam,
        Name::ADAM => Algorithm::Adam,
        Name::ONE_BIT_ADAM => match config.options::<OneBitAdam>().unwrap().warmup.unwrap() {
            Warmup::Steps(warmup) => Algorithm::OneBitAdam { warmup },
            _ => panic!("the oracle must be told when to freeze"),
        },
        Name::ZERO_ONE_ADAM => {
            let sync = sync_steps(config, rates);
            if config.options::<ZeroOneAdam>().unwrap().variance == Some(Variance::Momentum) {
                return Algorithm::zero_one_of_momenta(move |t| sync.contains(&t));
            }
            let variance = variance_steps(config, rates.len() as u64);
            Algorithm::zero_one(move |t| variance.contains(&t), move |t| sync.contains(&t))
        }
        Name::EFFICIENT_ADAM => Algorithm::EfficientAdam {
            theta: match config.options::<EfficientAdam>().unwrap().theta.unwrap() {
                ConfiguredTheta::Constant => Theta::Constant,
                _ => Theta::Harmonic,
            },
        },
        other => panic!("the oracle does not know {other}"),
    }
}

/// T_v up to `last`: k_0 = 0, k_(j+1) = k_j + gap·2^⌊j/κ⌋, at most the longest gap, and all below `gap`; none from `freeze` on.
pub fn variance_steps(config: &Config, last: u64) -> BTreeSet<u64> {
    let own = config.options::<ZeroOneAdam>().unwrap();
    if let Some(listed) = &own.variance_steps {
        return listed.iter().copied().collect();
    }
    let frozen = match own.freeze.unwrap() {
        Freeze::Step(step) => step,
        _ => u64::MAX,
    };
    let gap = own.variance_gap.unwrap();
    let (mut steps, mut k, mut j) = (BTreeSet::new(), 0, 0);
    while k <= last && k < frozen {
        steps.insert(k);
        let next = gap << (j / own.kappa.unwrap()).min(40);
        let longest = own.variance_longest.unwrap_or(u64::MAX).max(gap);
        k += if next <= longest { next } else { gap << (longest / gap).ilog2() };
        j += 1;
    }
    let dense = own.variance_dense.unwrap_or(0).max(gap);
    steps.extend((0..dense).filter(|&t| t <= last && t < frozen));
    steps
}

/// T_u: every step before the start, then those whose number, counted from 1, the gap divides.
pub fn sync_steps(config: &Config, rates: &[f32]) -> BTreeSet<u64> {
    let own = config.options::<ZeroOneAdam>().unwrap();
    if let Some(listed) = &own.sync_steps {
        return listed.iter().copied().collect();
    }
    let start = own.sync_start.unwrap();
    let doubled = |times: u64| own.sync_longest.unwrap().min(2u64.saturating_pow(times as u32));
    let gap = |t: u64| match own.sync.unwrap() {
        Sync::FollowLr => doubled(halvings(config.learning_rate.as_ref().unwrap().peak, rates[t as usize])),
        Sync::Doubling => doubled((t - start) / own.sync_every.unwrap()),
        Sync::Every => own.sync_every.unwrap(),
        _ => unreachable!("its steps are listed"),
    };
    (0..rates.len() as u64).filter(|&t| t < start || (t + 1) % gap(t) == 0).collect()
}

/// How often `peak`, as an f32, has been halved at `rate`, which counts a little before: at 5/9 for the first time.
fn halvings(peak: f64, rate: f32) -> u64 {
    (f64::from(peak as f32) / f64::from(rate) * 10.0 / 9.0).log2().floor().clamp(0.0, 60.0) as u64
}

/// What the oracle holds, where [`Run::histories`] has the engine's: `[worker][moment]`.
pub struct Expected {
    pub histories: Vec<Vec<Snapshot>>,
    /// See [`Seen`](super::oracle::Seen).
    pub closest_call: f64,
    /// The largest value that a coarse mean coded.
    pub largest_coded: f64,
}

/// Takes the gradients to be the same wherever x is.
pub fn expected(run: &Run) -> Expected {
    let mut oracle = Oracle::new(setup(run), &widen(&run.start));
    let mut histories = vec![Vec::new(); run.workers];
    for (t, rate) in (0..).zip(&run.rates) {
        let gradient = |i| widen(&(run.gradient)(i, t, &run.start));
        oracle.step(f64::from(*rate), &(0..run.workers).map(gradient).collect::<Vec<_>>());
        watch(&oracle, &mut histories);
        if run.syncs.contains(&t) {
            oracle.sync();
            watch(&oracle, &mut histories);
        }
    }
    let seen = oracle.seen();
    Expected { histories, closest_call: seen.closest_call, largest_coded: seen.largest }
}

fn watch(oracle: &Oracle, histories: &mut [Vec<Snapshot>]) {
    for (i, history) in histories.iter_mut().enumerate() {
        let named = [
            ("x", oracle.params(i)),
            ("m", oracle.m(i)),
            ("v", oracle.v(i)),
            ("u", oracle.u(i)),
            ("up_residue", oracle.e(i)),
            ("down_residue", oracle.owner_e()),
        ];
        history.push(named.map(|(name, values)| (name, values.to_vec())).into());
    }
}
