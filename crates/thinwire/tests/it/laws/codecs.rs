//! Every codec there is, every kind of value, and how a law is held against both.

use crate::common::oracle::Quantizer;
use proptest::collection::vec;
use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use thinwire::inside::codec::{Codec, CodecName, Fault, MAX_BLOCK};

/// Every codec, and the slow quantizer it must equal.
pub fn table() -> Vec<(CodecName, Quantizer)> {
    let mut table = vec![
        (CodecName::Sign, Quantizer::Sign),
        (CodecName::Bf16, Quantizer::Bf16),
        (CodecName::F16, Quantizer::F16),
        (CodecName::F32, Quantizer::F32),
        (CodecName::Vote, Quantizer::Vote),
    ];
    let part = |k: u32| (CodecName::TopK(k), Quantizer::TopK(f64::from(k) / 1e6));
    table.extend((2..=8).map(|bits| (CodecName::Uniform(bits), Quantizer::Uniform(bits.into()))));
    table.extend((2..=6).map(|bits| (CodecName::Power2(bits), Quantizer::Power2(bits.into()))));
    table.extend([1, 10_000, 70_000, 500_000, 1_000_000].map(part));
    let sparse = |(millionths, width): (u32, u8)| {
        (CodecName::Sparse { millionths, width }, Quantizer::Sparse(f64::from(millionths) / 1e6, width.into()))
    };
    table.extend([(1, 2), (15_625, 2), (70_000, 8), (200_000, 4), (500_000, 3), (1_000_000, 2)].map(sparse));
    table
}

pub fn is_cast(name: CodecName) -> bool {
    matches!(name, CodecName::Bf16 | CodecName::F16 | CodecName::F32)
}

/// Whether C(c·z) = c·C(z) and ‖z − C(z)‖ ≤ ‖z‖: a vote has no size.
pub fn has_size(name: CodecName) -> bool {
    name != CodecName::Vote
}

pub fn has_scale(name: CodecName) -> bool {
    matches!(name, CodecName::Sign | CodecName::Uniform(_) | CodecName::Power2(_))
}

// The values.

pub fn ordinary() -> impl Strategy<Value = f32> + Clone {
    -1.0f32..1.0
}

pub fn finite() -> impl Strategy<Value = f32> + Clone {
    NORMAL | SUBNORMAL | ZERO | POSITIVE | NEGATIVE
}

/// Also a few steps of the smallest number, where rounding is coarsest.
pub fn denormal() -> impl Strategy<Value = f32> + Clone {
    let smallest = (-9i32..=9).prop_map(|steps| f32::from_bits(1) * steps as f32);
    prop_oneof![smallest, SUBNORMAL | POSITIVE | NEGATIVE]
}

pub fn huge() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![Just(f32::MAX), Just(f32::MIN), 1e38f32..f32::MAX, f32::MIN..-1e38]
}

pub fn zero() -> impl Strategy<Value = f32> + Clone {
    select(&[0.0f32, -0.0][..])
}

pub fn mixed() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![8 => ordinary(), 2 => zero(), 1 => denormal(), 1 => huge(), 1 => finite()]
}

/// Mostly zeros.
pub fn sparse(value: impl Strategy<Value = f32> + Clone) -> impl Strategy<Value = f32> + Clone {
    prop_oneof![9 => zero(), 1 => value]
}

pub fn between_sixteenth_and_sixteen() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![8 => 0.0625f32..16.0, 8 => -16.0f32..-0.0625, 1 => zero()]
}

pub fn not_finite() -> impl Strategy<Value = f32> + Clone {
    let signalling = f32::from_bits(0x7f80_0001);
    select(vec![f32::NAN, -f32::NAN, signalling, f32::INFINITY, f32::NEG_INFINITY])
}

/// Short ones as often as long ones.
pub fn vector_of<T: Strategy + Clone>(value: T) -> impl Strategy<Value = Vec<T::Value>> {
    prop_oneof![vec(value.clone(), 0..=20), vec(value, 0..=5000)]
}

/// Of one kind of value, or of all kinds at once.
pub fn vector() -> impl Strategy<Value = Vec<f32>> {
    prop_oneof![
        vector_of(ordinary()),
        vector_of(finite()),
        vector_of(denormal()),
        vector_of(huge()),
        vector_of(zero()),
        vector_of(mixed()),
        vector_of(sparse(mixed())),
        vector_of(sparse(denormal())),
    ]
}

pub fn block_size() -> impl Strategy<Value = usize> {
    select(&[1, 7, 37, 512, MAX_BLOCK][..])
}

/// The blocks of `x` as the engine cuts them, and an empty one.
pub fn blocks(x: &[f32], size: usize) -> impl Iterator<Item = &[f32]> {
    x.chunks(size).chain([&x[..0]])
}

// The codecs as functions.

/// The bytes of `z`, whatever was in their place.
pub fn encoded(codec: &dyn Codec, z: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xa5; codec.encoded_len(z.len())];
    codec.encode(z, &mut bytes).expect("finite values");
    bytes
}

/// What `bytes` stand for, whatever was in their place.
pub fn decoded(codec: &dyn Codec, bytes: &[u8], count: usize) -> Result<Vec<f32>, Fault> {
    let mut out = vec![7.0; count];
    codec.decode(bytes, &mut out).map(|()| out)
}

/// C(z).
pub fn coded(codec: &dyn Codec, z: &[f32]) -> Vec<f32> {
    decoded(codec, &encoded(codec, z), z.len()).expect("what the codec wrote")
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

pub fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

pub fn zip<T: Copy, U>(a: &[T], b: &[T], f: impl Fn(T, T) -> U) -> Vec<U> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

/// ‖x‖².
pub fn square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}

pub fn times(c: f32, x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| c * x).collect()
}

pub type Holds = Result<(), TestCaseError>;

/// Holds `law` against inputs of every kind: 64 of them, or as many as PROPTEST_CASES says.
pub fn hold<T: Strategy>(inputs: T, law: impl Fn(T::Value) -> Holds) {
    let usual = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { usual.cases } else { 64 };
    let config = ProptestConfig { cases, max_shrink_iters: 10_000, failure_persistence: None, ..usual };
    TestRunner::new(config).run(&inputs, law).unwrap_or_else(|failed| panic!("{failed}"));
}

/// Holds `law` against every codec.
pub fn for_codecs(law: impl Fn(CodecName, &dyn Codec) -> Holds) -> Holds {
    table().into_iter().try_for_each(|(name, _)| law(name, &*name.codec()))
}

/// Holds `law` against every codec and every block of every kind of vector.
pub fn for_blocks(law: impl Fn(CodecName, &dyn Codec, &[f32]) -> Holds) {
    hold((vector(), block_size()), |(x, size)| {
        for_codecs(|name, codec| blocks(&x, size).try_for_each(|z| law(name, codec, z)))
    });
}
