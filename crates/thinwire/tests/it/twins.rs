//! Every kernel gives the same bits at every instruction set: AVX2 and AVX-512 against the portable twin.
//!
//! A kernel is a function of a [`Case`] that returns all it wrote, as bits; NaN is one value here, for which NaN an
//! operation returns is left open. The level is one switch for the whole process, hence a single test. The kernels
//! inside the codecs are compared through them, found by their numbers: a new codec joins by itself, a new kernel by
//! one line in [`KERNELS`].

use proptest::collection::vec;
use proptest::num::f32::{ANY, NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use thinwire::CodecName;
use thinwire::inside::codec::{self, MAX_BLOCK, ResidualSlice};
use thinwire::inside::kernel::bf16::Half;
use thinwire::inside::kernel::blocks::{Scale, Unit};
use thinwire::inside::kernel::residual_value::{Forgotten, ResidualValue};
use thinwire::inside::kernel::update::{OuterStep, Scalars, Sent, Since};
use thinwire::inside::kernel::{Level, bf16, bits, blocks, chance, lamb, reduce, streaming, update, use_level};
use thinwire::inside::machine::Floats;

const LENGTHS: [usize; 17] = [0, 1, 7, 8, 9, 15, 16, 17, 31, 64, 100, 511, 512, 513, 4095, MAX_BLOCK, 5000];

/// What the kernels work on; the letters are those of the optimizers.
#[derive(Clone, Debug)]
struct Case {
    k: Scalars,
    g: Vec<f32>,
    m: Vec<f32>,
    v: Vec<f32>,
    u: Vec<f32>,
    a: Vec<f32>,
    x: Vec<f32>,
    bytes: Vec<u8>,
}

type Bits = Vec<u64>;
type Kernel = fn(Case) -> Bits;

const KERNELS: &[(&str, Kernel)] = &[
    ("reduce::all_finite", |c| vec![reduce::all_finite(&c.g).into()]),
    ("reduce::sum", |c| double(reduce::sum(&c.g))),
    ("reduce::sum_of_squares", |c| double(reduce::sum_of_squares(&c.g))),
    ("reduce::digest", |c| vec![reduce::digest(c.bytes.len(), &c.g)]),
    ("reduce::add_max_abs", |mut c| words([vec![reduce::add_max_abs(&c.g, &mut c.m)], c.m])),
    ("blocks::pack", |c| {
        BLOCKS.into_iter().flat_map(|block| packed_blocks(block, &c.g, c.m.clone(), |m| words([m]))).collect()
    }),
    ("blocks::pack, residue in bf16", |c| {
        let octets = |e: Vec<Half>| octets(e.as_flattened());
        BLOCKS.into_iter().flat_map(|block| packed_blocks(block, &c.g, halves(&c.m), octets)).collect()
    }),
    ("bf16", |c| {
        let (halves, mut wide) = (halves(&c.g), vec![0.0; c.g.len()]);
        bf16::read(&halves, &mut wide);
        let mut rounded = c.g.clone();
        bf16::round(&mut rounded);
        assert!(words([rounded]) == words([wide.clone()]));
        for (x, wide) in c.g.iter().zip(&wide).filter(|(x, _)| x.is_finite()) {
            let nearest = half::bf16::from_f32(*x);
            let finite = if nearest.is_finite() { nearest } else { half::bf16::MAX.copysign(nearest) };
            assert_eq!(wide.to_bits(), finite.to_f32().to_bits(), "{x:e}");
        }
        [octets(halves.as_flattened()), words([wide])].concat()
    }),
    ("blocks::unpack", |c| {
        let unpacked = |block: usize| {
            let mut out = c.x.clone();
            blocks::unpack::<Scale>(block, &in_blocks(block, &c, 0), &mut out).expect("scales");
            words([out])
        };
        BLOCKS.into_iter().flat_map(unpacked).collect()
    }),
    ("blocks::unpack_streaming", |c| {
        let mut out = Floats::zeroed(c.x.len() + 1);
        let unpack = |block: usize, out: &mut [f32]| {
            let message = in_blocks(block, &c, 0);
            streaming(|stream| blocks::unpack_streaming::<Scale>(block, &message, out, stream)).expect("scales");
            out.to_vec()
        };
        // Where a line begins, and where none does.
        BLOCKS
            .into_iter()
            .flat_map(|block| words([unpack(block, &mut out[..c.x.len()]), unpack(block, &mut out[1..])]))
            .collect()
    }),
    ("blocks::add_up", |c| {
        let sum = |(block, count, fresh, divisor)| {
            let messages = [0, 1, 2, 3].map(|i| in_blocks(block, &c, i));
            let some = messages.each_ref().map(|message| &message[..]);
            let mut sum = c.x.clone();
            blocks::add_up::<Scale>(block, &some[..count], fresh, divisor, &mut sum).expect("scales");
            words([sum])
        };
        let cases = BLOCKS.into_iter().flat_map(|block| (0..=4).map(move |count| (block, count)));
        cases.flat_map(|(block, count)| [(block, count, true, 4.0), (block, count, false, 3.0)]).flat_map(sum).collect()
    }),
    ("blocks of votes, pack", |c| {
        BLOCKS.into_iter().flat_map(|block| packed_votes(block, &c.g, c.m.clone(), |m| words([m]))).collect()
    }),
    ("blocks of votes, pack, nothing kept", |c| {
        let nothing = |block| packed_votes(block, &c.g, vec![Forgotten; c.g.len()], |_| Vec::new());
        BLOCKS.into_iter().flat_map(nothing).collect()
    }),
    ("blocks of votes, unpack, votes::unpack_streaming", |c| {
        let mut out = Floats::zeroed(c.x.len() + 1);
        let mut unpack = |block: usize| {
            let message = votes_of(block, &c, 0);
            // Where a line begins, and where none does.
            streaming(|stream| blocks::unpack_streaming::<Unit>(block, &message, &mut out[..c.x.len()], stream))
                .expect("votes");
            let aligned = out[..c.x.len()].to_vec();
            streaming(|stream| blocks::unpack_streaming::<Unit>(block, &message, &mut out[1..], stream))
                .expect("votes");
            let mut plain = c.x.clone();
            blocks::unpack::<Unit>(block, &message, &mut plain).expect("votes");
            words([aligned, out[1..].to_vec(), plain])
        };
        BLOCKS.into_iter().flat_map(&mut unpack).collect()
    }),
    ("blocks of votes, add_up", |c| {
        let sum = |(block, count, fresh, divisor)| {
            let messages = [0, 1, 2, 3].map(|i| votes_of(block, &c, i));
            let some = messages.each_ref().map(|message| &message[..]);
            let mut sum = c.x.clone();
            blocks::add_up::<Unit>(block, &some[..count], fresh, divisor, &mut sum).expect("votes");
            words([sum])
        };
        let cases = BLOCKS.into_iter().flat_map(|block| (0..=4).map(move |count| (block, count)));
        cases.flat_map(|(block, count)| [(block, count, true, 4.0), (block, count, false, 3.0)]).flat_map(sum).collect()
    }),
    ("bits::pack", |c| WIDTHS.flat_map(|width| packed(width, &c)).collect()),
    ("bits::unpack", |c| WIDTHS.flat_map(|width| unpacked(width, &c)).collect()),
    ("reduce::divide", |c| {
        // A power of two is multiplied with its inverse: no other bits than dividing gives.
        let by = |divisor: f32| {
            let (mut x, want) = (c.x.clone(), c.x.iter().map(|x| x / divisor).collect());
            reduce::divide(divisor, &mut x);
            let got = words([x]);
            assert!(got == words([want]), "by {divisor}");
            got
        };
        [1.0, 2.0, 3.0, 4.0, 5.0, 64.0, 1000.0, 2f32.powi(126), 2f32.powi(127)].into_iter().flat_map(by).collect()
    }),
    ("update::adam", |mut c| {
        let jumped = update::adam(&c.k, &c.g, &mut c.m, &mut c.v, &mut c.x);
        assert_eq!(jumped, c.k.jumped(&c.m, &c.v).is_some());
        words([c.m, c.v, c.x])
    }),
    ("update::adam_after_coarse", |mut c| {
        let jumped = update::adam_after_coarse(&c.k, &c.g, &mut c.m, &mut c.v, &mut c.x);
        assert_eq!(jumped, c.k.jumped(&c.m, &c.v).is_some());
        words([c.m, c.v, c.x])
    }),
    ("update::blend", |mut c| {
        update::blend(&c.k, &c.g, &c.m, &mut c.x);
        words([c.x])
    }),
    ("update::descend", |mut c| {
        update::descend(&c.k, &c.g, &c.v, &mut c.m, &mut c.x);
        words([c.m, c.x])
    }),
    ("update::local", |mut c| {
        update::local(&c.k, &c.g, &c.v, &mut c.m, &mut c.u, &mut c.x);
        words([c.m, c.u, c.x])
    }),
    ("update::progress", |mut c| {
        update::progress(&c.k, &c.g, &c.m, &c.u, &mut c.x);
        words([c.x])
    }),
    ("update::first_progress", |mut c| {
        update::first_progress(&c.k, &c.g, &c.m, &mut c.x);
        words([c.x])
    }),
    ("update::rebase", |mut c| {
        update::rebase(&c.k, &c.g, &c.v, &c.a, &mut c.m, &mut c.u, &mut c.x);
        words([c.m, c.u, c.x])
    }),
    ("update::first_rebase", |mut c| {
        update::first_rebase(&c.k, &c.g, &c.v, &mut c.m, &mut c.x);
        words([c.m, c.x])
    }),
    ("update::own_update", |mut c| {
        update::own_update(&c.k, &c.g, &mut c.m, &mut c.v, &mut c.x);
        words([c.m, c.v, c.x])
    }),
    ("update::subtract", |mut c| {
        update::subtract(&c.k, &c.g, &mut c.x);
        words([c.x])
    }),
    ("update::own_progress", |mut c| {
        let (mut m, mut v, mut x) = (c.m.clone(), c.v.clone(), c.x.clone());
        update::own_progress(&c.k, &c.g, &c.a, &c.x, &mut c.m, &mut c.v, &mut c.u);
        // A step, and then how far it is from the anchor.
        update::adam(&c.k, &c.g, &mut m, &mut v, &mut x);
        let mut z = x.clone();
        update::difference(&c.a, &x, &mut z);
        let got = words([c.m, c.v, c.u]);
        assert!(got == words([m, v, z]));
        got
    }),
    ("update::depart", |mut c| {
        update::depart(&c.k, &c.v, &c.a, &mut c.m, &mut c.u, &mut c.x, &mut c.g);
        words([c.m, c.u, c.x, c.g])
    }),
    ("update::abstain", |mut c| {
        update::abstain(&c.k, &c.m, &mut c.g);
        words([c.g])
    }),
    ("update::correct", |mut c| {
        let sent = c.x.iter().map(|x| 0.5 * x).collect::<Vec<_>>();
        update::correct(&c.k, &c.g, &c.v, &sent, &mut c.m, &mut c.u, &mut c.a, &mut c.x);
        words([c.m, c.u, c.a, c.x])
    }),
    ("update::correct, at once", |mut c| {
        let (k, sent) = (Scalars { sent: Sent { fade: 1.0, ..c.k.sent }, ..c.k }, c.x.clone());
        update::correct(&k, &c.g, &c.v, &sent, &mut c.m, &mut c.u, &mut c.a, &mut c.x);
        words([c.m, c.u, c.a, c.x])
    }),
    ("update::mix", |mut c| {
        update::mix(&mixing(&c.k), &c.a, &mut c.x);
        words([c.x])
    }),
    ("update::outer_average", |mut c| {
        update::outer_average(&c.k, &c.g, &mut c.a, &mut c.x);
        words([c.a, c.x])
    }),
    ("update::outer_slow_momentum", |mut c| {
        update::outer_slow_momentum(&c.k, &c.g, &mut c.a, &mut c.m, &mut c.x);
        words([c.a, c.m, c.x])
    }),
    ("update::outer_slow_momentum, mixed and limited", |mut c| {
        update::outer_slow_momentum(&mixing(&c.k), &c.g, &mut c.a, &mut c.m, &mut c.x);
        words([c.a, c.m, c.x])
    }),
    ("update::outer_nesterov", |mut c| {
        update::outer_nesterov(&c.k, &c.g, &mut c.a, &mut c.m, &mut c.x);
        words([c.a, c.m, c.x])
    }),
    ("update::outer_sign", |mut c| {
        update::outer_sign(&c.k, &c.g, &mut c.a, &mut c.m, &mut c.x);
        words([c.a, c.m, c.x])
    }),
    ("update::lion", |mut c| {
        update::lion(&c.k, &c.g, &mut c.m, &mut c.x);
        words([c.m, c.x])
    }),
    ("update::ratio", |mut c| {
        update::ratio(&c.k, &c.g, &mut c.m, &mut c.v, &mut c.x);
        words([c.m, c.v, c.x])
    }),
    ("update::stride", |mut c| {
        update::stride(&c.k, &c.g, &mut c.x);
        words([c.x])
    }),
    ("update::stride_by_sign", |mut c| {
        update::stride_by_sign(&c.k, &c.g, &mut c.x);
        words([c.x])
    }),
    ("lamb::moments", |mut c| {
        lamb::moments(&c.k, &c.g, &mut c.m, &mut c.v, &mut c.u);
        words([c.m, c.v, c.u])
    }),
    ("lamb::momentum", |mut c| {
        lamb::momentum(&c.k, &c.g, &mut c.m, &mut c.v);
        words([c.m, c.v])
    }),
    ("lamb::squares_of_params, lamb::squares_of_ratio, lamb::largest_growth", |c| {
        let sums = [lamb::squares_of_params(&c.k, &c.m, &c.v, &c.x), lamb::squares_of_ratio(&c.k, &c.m, &c.v, &c.x)];
        let fresh = c.u.iter().map(|u| u.abs()).collect::<Vec<_>>();
        let growth = lamb::largest_growth(&c.k, &c.v, &fresh);
        [sums.into_iter().flatten().flat_map(double).collect(), words([vec![growth]])].concat()
    }),
    ("lamb::stride", |mut c| {
        let jumps = lamb::stride(&c.k, &c.m, &c.v, &mut c.x);
        [words([c.x]), vec![jumps.into()]].concat()
    }),
    ("chance::fill", |mut c| {
        chance::fill(chance::stream(c.bytes.len() as u64, 1, 2), u64::from(u32::MAX), &mut c.x);
        words([c.x])
    }),
    ("codec", |c| codecs().flat_map(|name| recoded(name, &c)).collect()),
    ("codec, many blocks", |c| codecs().flat_map(|name| recoded_blocks(name, &c)).collect()),
];

fn halves(x: &[f32]) -> Vec<Half> {
    let mut halves = vec![[0xa5; 2]; x.len()];
    bf16::write(x, &mut halves);
    halves
}

/// Of signs: ones that vectors and lines divide, and ones that they do not.
const BLOCKS: [usize; 7] = [1, 7, 12, 37, 301, 512, MAX_BLOCK];

/// Whether all of g + e was finite, the bytes of its blocks, and what is left.
fn packed_blocks<E: ResidualValue>(block: usize, g: &[f32], mut e: Vec<E>, bits: impl Fn(Vec<E>) -> Bits) -> Bits {
    let mut message = vec![0xa5; blocks::total_len::<Scale>(block, g.len())];
    let finite = blocks::pack::<Scale, _>(block, g, &mut e, &mut message).is_some();
    // Of a block that is refused, and those behind it, nothing is written: that is held here too.
    [vec![finite.into()], octets(&message), bits(e)].concat()
}

/// The same of votes.
fn packed_votes<E: ResidualValue>(block: usize, g: &[f32], mut e: Vec<E>, bits: impl Fn(Vec<E>) -> Bits) -> Bits {
    let mut message = vec![0xa5; blocks::total_len::<Unit>(block, g.len())];
    let finite = blocks::pack::<Unit, _>(block, g, &mut e, &mut message).is_some();
    [vec![finite.into()], octets(&message), bits(e)].concat()
}

/// The votes of worker `i`.
fn votes_of(block: usize, c: &Case, i: usize) -> Vec<u8> {
    (0..blocks::total_len::<Unit>(block, c.x.len()))
        .map(|at| c.bytes[at % c.bytes.len()].rotate_left(i as u32))
        .collect()
}

/// Blocks of signs out of the case's bytes, with scales of all kinds, zeros among them: the message of worker `i`.
fn in_blocks(block: usize, c: &Case, i: usize) -> Vec<u8> {
    let scales = [c.k.rate, 0.0, f32::MIN_POSITIVE, 0.3];
    let mut message = (0..blocks::total_len::<Scale>(block, c.x.len()))
        .map(|at| c.bytes[at % c.bytes.len()].rotate_left(i as u32))
        .collect::<Vec<_>>();
    for (n, block) in message.chunks_mut(blocks::encoded_len::<Scale>(block)).enumerate() {
        block[..4].copy_from_slice(&scales[(n + i) % 4].to_le_bytes());
    }
    message
}

const WIDTHS: std::ops::RangeInclusive<u32> = 1..=8;

fn packed(width: u32, c: &Case) -> Bits {
    let codes = c.bytes.iter().map(|byte| byte >> (8 - width)).collect::<Vec<_>>();
    let mut out = vec![0xa5; bits::packed_len(codes.len(), width)];
    bits::pack(width, &codes, &mut out);
    octets(&out)
}

fn unpacked(width: u32, c: &Case) -> Bits {
    let mut codes = vec![0xa5; c.bytes.len()];
    bits::unpack(width, &c.bytes[..bits::packed_len(codes.len(), width)], &mut codes);
    octets(&codes)
}

/// Every codec, whichever numbers they have.
fn codecs() -> impl Iterator<Item = CodecName> {
    let settings = |kind: u32| (0..=8).chain([100_000]).map(move |setting| kind << 24 | setting);
    (0..=255).flat_map(settings).filter_map(CodecName::from_id)
}

/// What a codec writes for each block of g + m, what it keeps back, and what its bytes stand for.
fn recoded(name: CodecName, c: &Case) -> Bits {
    let codec = name.codec();
    let block = |(x, e): (&[f32], &[f32])| {
        let (mut e, mut q, mut bytes) = (e.to_vec(), vec![0.0; x.len()], vec![0; codec.encoded_len(x.len())]);
        match codec.encode_with(x, &mut e, &mut bytes) {
            Ok(()) => codec.decode(&bytes, &mut q).expect("what the codec wrote"),
            Err(_) => return vec![u64::MAX],
        }
        [octets(&bytes), words([e, q])].concat()
    };
    c.g.chunks(MAX_BLOCK).zip(c.m.chunks(MAX_BLOCK)).flat_map(block).collect()
}

/// The same of many blocks at once, with each kind of residual, and added to others.
fn recoded_blocks(name: CodecName, c: &Case) -> Bits {
    let codec = &*name.codec();
    let blocks = |block: usize| {
        let (mut wide, mut halves, count) = (c.m.clone(), halves(&c.m), c.g.len());
        let residuals = [ResidualSlice::Wide(&mut wide), ResidualSlice::Half(&mut halves), ResidualSlice::Nothing];
        let mut all = Bits::new();
        for residual in residuals {
            let mut bytes = vec![0xa5; codec::encoded_len(codec, block, count)];
            if codec.encode_blocks(block, &c.g, residual, &mut bytes).is_err() {
                return vec![u64::MAX];
            }
            let (mut sum, mut out, mut past) = (c.x.clone(), c.x.clone(), c.x.clone());
            codec.decode_blocks(block, &bytes, &mut out).expect("what the codec wrote");
            streaming(|stream| codec.decode_streaming(block, &bytes, &mut past, stream)).expect("the same");
            codec.add_up(block, &[&bytes, &bytes], false, 3.0, &mut sum).expect("the same");
            all.extend([octets(&bytes), words([sum, out, past])].concat());
        }
        [all, words([wide]), octets(halves.as_flattened())].concat()
    };
    [7, 37, 512].into_iter().flat_map(blocks).collect()
}

/// The bits of f32 vectors, one after the other.
fn words<const N: usize>(vectors: [Vec<f32>; N]) -> Bits {
    let word = |x: f32| if x.is_nan() { f32::NAN } else { x }.to_bits().into();
    vectors.into_iter().flatten().map(word).collect()
}

fn double(x: f64) -> Bits {
    vec![if x.is_nan() { f64::NAN } else { x }.to_bits()]
}

fn octets(bytes: &[u8]) -> Bits {
    bytes.iter().map(|byte| u64::from(*byte)).collect()
}

/// The same scalars with a view of one's own, and a momentum that is limited.
fn mixing(k: &Scalars) -> Scalars {
    Scalars { outer: OuterStep { mix: (0.25, 0.75), most: 0.5, ..k.outer }, ..*k }
}

/// Values as they come in training, zeros and the smallest among them.
fn ordinary() -> impl Strategy<Value = f32> {
    prop_oneof![12 => -1.0f32..1.0, 1 => Just(0.0), 1 => Just(-0.0), 1 => SUBNORMAL | POSITIVE | NEGATIVE]
}

/// A case of this length whose values are `value`s.
fn case(length: usize, value: impl Strategy<Value = f32> + 'static) -> impl Strategy<Value = Case> {
    let value = value.boxed();
    let vector = || vec(value.clone(), length);
    let vectors = (vector(), vector(), vector(), vector(), vector(), vector());
    let limit = prop_oneof![Just(1.0), Just(0.25), Just(1e6)];
    let since = prop_oneof![Just(0.0), 0.001f32..1.0].prop_map(|rates| Since { rates, decays: 0.99 });
    (vectors, limit, since, 0.0f32..1.0, vec(any::<u8>(), length)).prop_map(
        |((g, m, v, u, a, x), limit, since, rate, bytes)| {
            let (beta1, beta2) = ((0.9, 0.1), (0.999, 0.001));
            let (decay, correction, eps, shrink) = (0.999, 1.5, 1e-8, 0.75);
            let outer = OuterStep {
                unit: rate,
                rate: 0.7 * rate,
                momentum: 0.9,
                beta1: (0.95, 0.05),
                beta2: (0.98, 0.02),
                decay: 0.99,
                ..OuterStep::NOTHING
            };
            let k = Scalars {
                beta1,
                beta2,
                rate,
                decay,
                weight_decay: 0.3,
                correction,
                eps,
                shrink,
                limit,
                jump: 10.0 * rate,
                moves: true,
                since,
                sent: Sent { since: Since { rates: 0.5 * rate, decays: 0.9 }, fade: 0.9, carried: 0.3 * rate },
                outer,
            };
            let v = v.iter().map(|v| v.abs()).collect(); // of squares
            Case { k, g, m, v, u, a, x, bytes }
        },
    )
}

/// Cases of every length: of ordinary values, of finite ones, of anything, infinities and NaN too.
fn cases() -> Vec<Case> {
    let mut runner = TestRunner::deterministic();
    let strategies = LENGTHS.into_iter().flat_map(|length| {
        let ordinary = || case(length, ordinary()).boxed();
        let finite = case(length, NORMAL | SUBNORMAL | ZERO | POSITIVE | NEGATIVE).boxed();
        [ordinary(), ordinary(), finite, case(length, ANY).boxed()]
    });
    strategies.map(|strategy| strategy.new_tree(&mut runner).expect("a case").current()).collect()
}

/// What all kernels write at this level, in order; nothing when the CPU has no such level.
fn results(level: Level, cases: &[Case]) -> Option<Vec<Bits>> {
    let runs = cases.iter().flat_map(|case| KERNELS.iter().map(|(_, kernel)| kernel(case.clone())));
    (use_level(level) == level).then(|| runs.collect())
}

#[test]
fn all_levels_give_the_same_bits() {
    let cases = cases();
    let portable = results(Level::Portable, &cases).expect("every CPU has this level");
    for level in [Level::Avx2, Level::Avx512] {
        for (i, got) in results(level, &cases).into_iter().flatten().enumerate() {
            let (case, (name, _)) = (&cases[i / KERNELS.len()], KERNELS[i % KERNELS.len()]);
            let differs = || got.iter().zip(&portable[i]).position(|(got, want)| got != want);
            assert!(got == portable[i], "{name} at {level:?} differs at {:?} of {}", differs(), case.g.len());
        }
    }
}
