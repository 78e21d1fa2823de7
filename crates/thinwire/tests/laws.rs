//! The laws of the codecs, held against every codec there is, on every kind of value and every kind of byte.
//!
//! ```text
//! contraction     ‖z − C(z)‖ ≤ ‖z‖                   residue        e ← (x + e) − C(x + e)
//! homogeneity     C(c·z) = c·C(z), c > 0             sum            decode_add(b, s) = s + decode(b)
//! sign            ‖z − C(z)‖² = ‖z‖² − ‖z‖₁²/d,  C(C(z)) = C(z)
//! twin            C(z) is what tests/common/oracle.rs says, in f64
//! ```
//!
//! What is not finite is refused, never sent; bytes decode to finite values or to an error, never to a panic.
//! A new codec joins by one line in [`table`], and `every_codec_is_in_the_table` fails until it has.

#[path = "common/oracle.rs"]
mod oracle;

use oracle::Quantizer;
use proptest::collection::vec;
use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;
use thinwire::codec::{Codec, CodecName, Fault, MAX_BLOCK, Sign, TOGETHER};
use thinwire::kernel::{bf16, streaming};
use thinwire::residue::Owed;
use thinwire::{Floats, codec};

/// Every codec, and the slow quantizer it must equal.
fn table() -> Vec<(CodecName, Quantizer)> {
    let mut table = vec![
        (CodecName::Sign, Quantizer::Sign),
        (CodecName::Bf16, Quantizer::Bf16),
        (CodecName::F16, Quantizer::F16),
        (CodecName::F32, Quantizer::F32),
    ];
    let part = |k: u32| (CodecName::TopK(k), Quantizer::TopK(f64::from(k) / 1e6));
    table.extend((2..=8).map(|bits| (CodecName::Uniform(bits), Quantizer::Uniform(bits.into()))));
    table.extend((2..=6).map(|bits| (CodecName::Power2(bits), Quantizer::Power2(bits.into()))));
    table.extend([1, 10_000, 70_000, 500_000, 1_000_000].map(part));
    table
}

fn is_cast(name: CodecName) -> bool {
    matches!(name, CodecName::Bf16 | CodecName::F16 | CodecName::F32)
}

fn has_scale(name: CodecName) -> bool {
    matches!(name, CodecName::Sign | CodecName::Uniform(_) | CodecName::Power2(_))
}

/// Whichever numbers they have; of topk some parts will do.
#[test]
fn every_codec_is_in_the_table() {
    let settings = |kind: u32| (0..=64).map(move |setting| kind << 24 | setting);
    for name in (0..=255).flat_map(settings).filter_map(CodecName::from_id) {
        let is_it = |(other, _): &(CodecName, _)| match (other, name) {
            (CodecName::TopK(_), CodecName::TopK(_)) => true,
            (other, name) => *other == name,
        };
        assert!(table().iter().any(is_it), "{name} is not");
    }
}

// The values.

fn ordinary() -> impl Strategy<Value = f32> + Clone {
    -1.0f32..1.0
}

fn finite() -> impl Strategy<Value = f32> + Clone {
    NORMAL | SUBNORMAL | ZERO | POSITIVE | NEGATIVE
}

/// Also a few steps of the smallest number, where rounding is coarsest.
fn denormal() -> impl Strategy<Value = f32> + Clone {
    let smallest = (-9i32..=9).prop_map(|steps| f32::from_bits(1) * steps as f32);
    prop_oneof![smallest, SUBNORMAL | POSITIVE | NEGATIVE]
}

fn huge() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![Just(f32::MAX), Just(f32::MIN), 1e38f32..f32::MAX, f32::MIN..-1e38]
}

fn zero() -> impl Strategy<Value = f32> + Clone {
    select(&[0.0f32, -0.0][..])
}

fn mixed() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![8 => ordinary(), 2 => zero(), 1 => denormal(), 1 => huge(), 1 => finite()]
}

/// Mostly zeros.
fn sparse(value: impl Strategy<Value = f32> + Clone) -> impl Strategy<Value = f32> + Clone {
    prop_oneof![9 => zero(), 1 => value]
}

fn between_sixteenth_and_sixteen() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![8 => 0.0625f32..16.0, 8 => -16.0f32..-0.0625, 1 => zero()]
}

fn not_finite() -> impl Strategy<Value = f32> + Clone {
    let signalling = f32::from_bits(0x7f80_0001);
    select(vec![f32::NAN, -f32::NAN, signalling, f32::INFINITY, f32::NEG_INFINITY])
}

/// Short ones as often as long ones.
fn vector_of<T: Strategy + Clone>(value: T) -> impl Strategy<Value = Vec<T::Value>> {
    prop_oneof![vec(value.clone(), 0..=20), vec(value, 0..=5000)]
}

/// Of one kind of value, or of all kinds at once.
fn vector() -> impl Strategy<Value = Vec<f32>> {
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

fn block_size() -> impl Strategy<Value = usize> {
    select(&[1, 7, 37, 512, MAX_BLOCK][..])
}

/// The blocks of `x` as the engine cuts them, and an empty one.
fn blocks(x: &[f32], size: usize) -> impl Iterator<Item = &[f32]> {
    x.chunks(size).chain([&x[..0]])
}

// The codecs as functions.

/// The bytes of `z`, whatever was in their place.
fn encoded(codec: &dyn Codec, z: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xa5; codec.encoded_len(z.len())];
    codec.encode(z, &mut bytes).expect("finite values");
    bytes
}

/// What `bytes` stand for, whatever was in their place.
fn decoded(codec: &dyn Codec, bytes: &[u8], count: usize) -> Result<Vec<f32>, Fault> {
    let mut out = vec![7.0; count];
    codec.decode(bytes, &mut out).map(|()| out)
}

/// C(z).
fn coded(codec: &dyn Codec, z: &[f32]) -> Vec<f32> {
    decoded(codec, &encoded(codec, z), z.len()).expect("what the codec wrote")
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

fn zip<T: Copy, U>(a: &[T], b: &[T], f: impl Fn(T, T) -> U) -> Vec<U> {
    a.iter().zip(b).map(|(a, b)| f(*a, *b)).collect()
}

/// ‖x‖².
fn square(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum()
}

fn times(c: f32, x: &[f32]) -> Vec<f32> {
    x.iter().map(|x| c * x).collect()
}

type Holds = Result<(), TestCaseError>;

/// Holds `law` against inputs of every kind.
fn hold<T: Strategy>(inputs: T, law: impl Fn(T::Value) -> Holds) {
    let config =
        ProptestConfig { cases: 64, max_shrink_iters: 10_000, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(&inputs, law).unwrap_or_else(|failed| panic!("{failed}"));
}

/// Holds `law` against every codec.
fn for_codecs(law: impl Fn(CodecName, &dyn Codec) -> Holds) -> Holds {
    table().into_iter().try_for_each(|(name, _)| law(name, &*name.codec()))
}

/// Holds `law` against every codec and every block of every kind of vector.
fn for_blocks(law: impl Fn(CodecName, &dyn Codec, &[f32]) -> Holds) {
    hold((vector(), block_size()), |(x, size)| {
        for_codecs(|name, codec| blocks(&x, size).try_for_each(|z| law(name, codec, z)))
    });
}

#[test]
fn a_codec_is_a_contraction() {
    for_blocks(|name, codec, z| {
        let (q, z) = (widen(&coded(codec, z)), widen(z));
        let (lost, whole) = (square(&zip(&z, &q, |z, q| z - q)).sqrt(), square(&z).sqrt());
        prop_assert!(lost <= whole * (1.0 + 1e-6), "{name} loses {lost:e} of {whole:e}: {z:?} became {q:?}");
        Ok(())
    });
}

#[test]
fn the_residue_is_what_was_lost() {
    let half = || mixed().prop_map(|x| x / 2.0); // so that x + e is finite
    hold((vector_of((half(), half())), block_size()), |(pairs, size)| {
        for_codecs(|name, codec| {
            pairs.chunks(size).try_for_each(|pairs| {
                let (x, mut e): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
                let (z, mut bytes) = (zip(&x, &e, |x, e| x + e), vec![0xa5; codec.encoded_len(x.len())]);
                codec.encode_with(&x, &mut e, &mut bytes).expect("finite values");
                let q = decoded(codec, &bytes, x.len()).expect("what the codec wrote");
                prop_assert_eq!(&e, &zip(&z, &q, |z, q| z - q), "{} of {:?}", name, z);
                prop_assert_eq!(q, coded(codec, &z), "{} says something else with a residue", name);
                Ok(())
            })
        })
    });
}

#[test]
fn the_number_of_bytes_depends_on_the_count_alone() {
    hold((vector(), block_size()), |(x, size)| {
        for_codecs(|name, codec| {
            let total = blocks(&x, size).map(|z| encoded(codec, z).len()).sum::<usize>();
            prop_assert_eq!(total, codec::encoded_len(codec, size, x.len()), "{}", name);
            Ok(())
        })
    });
}

#[test]
fn every_byte_is_written() {
    for_blocks(|name, codec, z| {
        let mut bytes = vec![0x5a; codec.encoded_len(z.len())];
        codec.encode(z, &mut bytes).expect("finite values");
        prop_assert_eq!(bytes, encoded(codec, z), "{} of {:?}", name, z);
        Ok(())
    });
}

#[test]
fn decode_add_adds_what_decode_gives() {
    for_blocks(|name, codec, z| {
        let before = (0..z.len()).map(|k| (k as f32).sin()).collect::<Vec<_>>();
        let mut sum = before.clone();
        codec.decode_add(&encoded(codec, z), &mut sum).expect("what the codec wrote");
        prop_assert_eq!(sum, zip(&before, &coded(codec, z), |s, q| s + q), "{}", name);
        Ok(())
    });
}

#[test]
fn several_are_added_one_after_the_other() {
    for_blocks(|name, codec, z| {
        let four = [0, 1, 2, 3].map(|by| encoded(codec, &z.iter().map(|z| z / (1 << by) as f32).collect::<Vec<_>>()));
        let four = four.each_ref().map(|bytes| &bytes[..]);
        let before = (0..z.len()).map(|k| (k as f32).sin()).collect::<Vec<_>>();
        for (count, fresh, divisor) in (0..=TOGETHER).flat_map(|count| [(count, true, 4.0), (count, false, 3.0)]) {
            let mut sum = before.clone();
            codec.add_up(z.len().max(1), &four[..count], fresh, divisor, &mut sum).expect("what the codec wrote");
            let mut want = if fresh { vec![0.0; z.len()] } else { before.clone() };
            four[..count].iter().for_each(|bytes| codec.decode_add(bytes, &mut want).expect("what the codec wrote"));
            want.iter_mut().for_each(|want| *want /= divisor);
            prop_assert_eq!(sum, want, "{} of {}", count, name);
        }
        Ok(())
    });
}

#[test]
fn many_blocks_at_once_are_the_blocks_one_by_one() {
    let strategy = (vector(), vector(), block_size());
    hold(strategy, |(x, e, size)| {
        // Quarters, so that x + e is finite, with e rounded too.
        let len = x.len().min(e.len());
        let (x, e) = (times(0.25, &x[..len]), times(0.25, &e[..len]));
        for_codecs(|name, codec| {
            let mut halves = vec![[0; 2]; len];
            bf16::write(&e, &mut halves);
            let want = one_by_one(codec, size, &x, &e, &halves);
            let (mut left, mut bytes) = (e.clone(), [(); 3].map(|()| vec![0xa5; want.bytes.len()]));
            let residues = [Owed::Wide(&mut left), Owed::Half(&mut halves), Owed::Nothing];
            for (residue, bytes) in residues.into_iter().zip(&mut bytes) {
                codec.encode_blocks(size, &x, residue, bytes).expect("finite values");
            }
            let [bytes, of_halves, of_nothing] = bytes;
            prop_assert_eq!(&bytes, &want.bytes, "{}", name);
            prop_assert_eq!(&of_halves, &want.of_halves, "{}", name);
            prop_assert_eq!(&of_nothing, &want.of_nothing, "{}", name);
            prop_assert_eq!(bits(&left), bits(&want.left), "{}", name);
            prop_assert_eq!(&halves, &want.halves, "{}", name);
            let mut out = Floats::copied(&vec![7.0; len]);
            codec.decode_blocks(size, &bytes, &mut out).expect("what the codec wrote");
            prop_assert_eq!(bits(&out), bits(&want.values), "{}", name);
            out.fill(7.0);
            streaming(|stream| codec.decode_streaming(size, &bytes, &mut out, stream)).expect("what the codec wrote");
            prop_assert_eq!(bits(&out), bits(&want.values), "{}, past the caches", name);
            let mut sum = e.clone();
            codec.add_up(size, &[&bytes, &of_halves, &bytes], false, 3.0, &mut sum).expect("what the codec wrote");
            prop_assert_eq!(bits(&sum), bits(&want.third_of_all), "{}, added up", name);
            Ok(())
        })
    });
}

/// What many blocks at once have to come to.
struct OneByOne {
    bytes: Vec<u8>,
    of_halves: Vec<u8>,
    of_nothing: Vec<u8>,
    left: Vec<f32>,
    halves: Vec<bf16::Half>,
    values: Vec<f32>,
    /// (e + the bytes + those of halves + the bytes again) / 3.
    third_of_all: Vec<f32>,
}

fn one_by_one(codec: &dyn Codec, size: usize, x: &[f32], e: &[f32], halves: &[bf16::Half]) -> OneByOne {
    let (left, halves, third_of_all) = (e.to_vec(), halves.to_vec(), e.to_vec());
    let [bytes, of_halves, of_nothing] = [(); 3].map(|()| Vec::new());
    let mut all = OneByOne { bytes, of_halves, of_nothing, left, halves, values: Vec::new(), third_of_all };
    for (i, x) in x.chunks(size).enumerate() {
        let part = i * size..i * size + x.len();
        let (mut bytes, mut of_halves) = (vec![0; codec.encoded_len(x.len())], vec![0; codec.encoded_len(x.len())]);
        codec.encode_with(x, &mut all.left[part.clone()], &mut bytes).expect("finite values");
        codec.encode_with_half(x, &mut all.halves[part.clone()], &mut of_halves).expect("finite values");
        let sum = &mut all.third_of_all[part];
        for bytes in [&bytes, &of_halves, &bytes] {
            codec.decode_add(bytes, sum).expect("what the codec wrote");
        }
        sum.iter_mut().for_each(|sum| *sum /= 3.0);
        all.of_nothing.extend(encoded(codec, x));
        all.values.extend(decoded(codec, &bytes, x.len()).expect("what the codec wrote"));
        all.bytes.extend(bytes);
        all.of_halves.extend(of_halves);
    }
    all
}

#[test]
fn before_a_value_that_is_not_finite_blocks_are_written_and_behind_it_none() {
    hold((vector(), block_size(), any::<Index>(), not_finite()), |(x, size, at, bad)| {
        let mut x = times(0.5, &x);
        if x.is_empty() {
            return Ok(());
        }
        let at = at.index(x.len());
        x[at] = bad;
        let (start, len) = (at / size * size, x.len());
        let (mut e, mut bytes) = (vec![0.0; len], vec![0xa5; codec::encoded_len(&Sign, size, len)]);
        let refused = Sign.encode_blocks(size, &x, Owed::Wide(&mut e), &mut bytes);
        prop_assert_eq!(refused, Err(Fault::NotFinite));
        let written = codec::encoded_len(&Sign, size, start);
        let before = x[..start].chunks(size).flat_map(|x| encoded(&Sign, x)).collect::<Vec<_>>();
        prop_assert_eq!(&bytes[..written], &before[..]);
        prop_assert!(bytes[written..].iter().all(|byte| *byte == 0xa5), "the bytes of what was refused");
        prop_assert!(e[start..].iter().all(|e| *e == 0.0), "the residue of what was refused");
        Ok(())
    });
}

#[test]
fn of_several_the_faulty_one_is_named() {
    for (name, _) in table() {
        let codec = name.codec();
        let (good, bad) = (encoded(&*codec, &[1.0; 9]), vec![0; codec.encoded_len(9) + 1]);
        for place in 0..TOGETHER {
            let some: [&[u8]; TOGETHER] = std::array::from_fn(|i| if i == place { &bad[..] } else { &good[..] });
            let (which, fault) = codec.add_up(9, &some, true, 1.0, &mut [0.0; 9]).expect_err("a wrong length");
            assert!(which == place && matches!(fault, Fault::Length { .. }), "{name}: {which}, {fault}");
        }
    }
}

#[test]
fn a_power_of_two_passes_through() {
    hold((vector_of(between_sixteenth_and_sixteen()), block_size(), -8i32..=8), |(x, size, power)| {
        for_codecs(|name, codec| {
            // Halves have few exponents; the others may go far.
            let c = 2f32.powi(if name == CodecName::F16 { power } else { 10 * power });
            blocks(&x, size).try_for_each(|z| {
                prop_assert_eq!(coded(codec, &times(c, z)), times(c, &coded(codec, z)), "{} times {}", name, c);
                Ok(())
            })
        })
    });
}

/// With so few bits in z and in c, c·z is exact: no value moves to the other side of a threshold. The casts round.
#[test]
fn a_factor_passes_through() {
    let few_bits = (-1023i32..=1023).prop_map(|x| x as f32 / 1024.0);
    let factor = (1u16..4096).prop_map(|c| f32::from(c) / 64.0);
    hold((vector_of(few_bits), block_size(), factor), |(x, size, c)| {
        for (name, _) in table().into_iter().filter(|(name, _)| !is_cast(*name)) {
            for z in blocks(&x, size) {
                let (got, want) = (coded(&*name.codec(), &times(c, z)), times(c, &coded(&*name.codec(), z)));
                let close = zip(&got, &want, |got, want| (got - want).abs() <= 1e-6 * want.abs());
                prop_assert!(close.iter().all(|close| *close), "{name} of {z:?} times {c} gave {got:?}");
            }
        }
        Ok(())
    });
}

#[test]
fn a_codec_equals_its_slow_twin() {
    hold((vector_of(ordinary()), block_size(), -20i32..=12), |(x, size, power)| {
        let x = times(2f32.powi(power), &x);
        for (name, twin) in table() {
            for z in blocks(&x, size) {
                let (got, z) = (widen(&coded(&*name.codec(), z)), widen(z));
                let other = other_point(&z, &got, &twin.apply(&z));
                prop_assert!(other.is_none(), "{name}: value {other:?} of {z:?} became {got:?}");
            }
        }
        Ok(())
    });
}

/// Where `got` is not `want`, to rounding. Half-way between two points of a grid rounding may choose either.
fn other_point(z: &[f64], got: &[f64], want: &[f64]) -> Option<usize> {
    let s = z.iter().fold(0.0, |s: f64, z| s.max(z.abs()));
    let same = |k: usize| (got[k] - want[k]).abs() <= 1e-6 * want[k].abs();
    let half_way = |k: usize| ((z[k] - got[k]).abs() - (z[k] - want[k]).abs()).abs() <= 1e-6 * s;
    (0..z.len()).find(|k| !same(*k) && !half_way(*k))
}

#[test]
fn sign_loses_exactly_what_one_scale_must() {
    hold((vector(), block_size()), |(x, size)| {
        for z in x.chunks(size) {
            let (q, z) = (widen(&coded(&*CodecName::Sign.codec(), z)), widen(z));
            let (d, norm1) = (z.len() as f64, z.iter().map(|z| z.abs()).sum::<f64>());
            let (lost, must) = (square(&zip(&z, &q, |z, q| z - q)), square(&z) - norm1 * norm1 / d);
            // Rounding the scale by r adds d·r²; half a step of the smallest number is the least r.
            let r = (norm1 / d * 2f64.powi(-24)).max(2f64.powi(-150));
            prop_assert!((lost - must).abs() <= 1e-12 * square(&z) + d * r * r, "{lost:e}, not {must:e}: {z:?}");
        }
        Ok(())
    });
}

#[test]
fn sign_is_idempotent_to_the_bit() {
    let codec = CodecName::Sign.codec();
    hold((vector(), block_size()), |(x, size)| {
        for z in x.chunks(size) {
            let once = coded(&*codec, z);
            prop_assert_eq!(bits(&coded(&*codec, &once)), bits(&once), "{:?}", z);
        }
        Ok(())
    });
}

// What is not finite.

#[test]
fn what_is_not_finite_is_refused() {
    hold((vec(ordinary(), 1..600), any::<Index>(), not_finite()), |(x, place, poison)| {
        let place = place.index(x.len());
        let with = |value| x.iter().enumerate().map(|(k, x)| if k == place { value } else { *x }).collect::<Vec<_>>();
        for_codecs(|name, codec| {
            let bytes = &mut vec![0; codec.encoded_len(x.len())];
            prop_assert_eq!(codec.encode(&with(poison), bytes), Err(Fault::NotFinite), "{}", name);
            for (x, e) in [(poison, 0.0), (0.0, poison), (f32::MAX, f32::MAX), (f32::MIN, f32::MIN)] {
                let refused = codec.encode_with(&with(x), &mut with(e), bytes);
                prop_assert_eq!(refused, Err(Fault::NotFinite), "{}: {} + {} at {}", name, x, e, place);
            }
            Ok(())
        })
    });
}

// Hostile bytes.

/// Decoding ends in finite values or in an error, the same both ways.
fn decodes_or_not(name: CodecName, codec: &dyn Codec, bytes: &[u8], count: usize) -> Holds {
    let (values, mut sum) = (decoded(codec, bytes, count), vec![0.0; count]);
    let added = codec.decode_add(bytes, &mut sum);
    prop_assert_eq!(added.is_ok(), values.is_ok(), "{} reads {:?} in two ways", name, bytes);
    let finite = values.unwrap_or_default().iter().all(|value| value.is_finite());
    prop_assert!(finite, "{name} reads {bytes:?} as a value that is not finite");
    Ok(())
}

#[test]
fn any_bytes_decode_to_finite_values_or_not_at_all() {
    const MOST: usize = 600;
    hold((vec(any::<u8>(), 6 * MOST), 0..=MOST), |(bytes, count)| {
        for_codecs(|name, codec| decodes_or_not(name, codec, &bytes[..codec.encoded_len(count)], count))
    });
}

#[test]
fn any_bytes_of_many_blocks_decode_as_they_do_one_by_one_or_not_at_all() {
    const MOST: usize = 600;
    hold((vec(any::<u8>(), 16 * MOST), 0..=MOST, block_size()), |(bytes, count, size)| {
        for_codecs(|name, codec| {
            let bytes = &bytes[..codec::encoded_len(codec, size, count)];
            let blocks = bytes.chunks(codec.encoded_len(size));
            let counts = (0..count).step_by(size).map(|from| size.min(count - from));
            let want =
                blocks.zip(counts).map(|(bytes, count)| decoded(codec, bytes, count)).collect::<Result<Vec<_>, _>>();
            let want = want.map(|blocks| bits(&blocks.concat()));
            let read = |decode: &dyn Fn(&mut Floats) -> Result<(), Fault>| {
                let mut out = Floats::copied(&vec![7.0; count]);
                decode(&mut out).map(|()| bits(&out))
            };
            let at_once = read(&|out| codec.decode_blocks(size, bytes, out));
            let past_the_caches = read(&|out| streaming(|stream| codec.decode_streaming(size, bytes, out, stream)));
            prop_assert_eq!(format!("{:?}", at_once), format!("{:?}", want), "{}", name);
            prop_assert_eq!(format!("{:?}", past_the_caches), format!("{:?}", want), "{}, past the caches", name);
            let added = read(&|out| codec.add_up(size, &[bytes], true, 1.0, out).map_err(|(_, fault)| fault));
            prop_assert_eq!(added.is_ok(), want.is_ok(), "{}, added", name);
            Ok(())
        })
    });
}

#[test]
fn a_changed_byte_decodes_to_finite_values_or_not_at_all() {
    hold((vec(mixed(), 1..80), 1u8..), |(z, flip)| {
        for_codecs(|name, codec| {
            let mut bytes = encoded(codec, &z);
            (0..bytes.len()).try_for_each(|place| {
                bytes[place] ^= flip;
                decodes_or_not(name, codec, &bytes, z.len())?;
                bytes[place] ^= flip;
                Ok(())
            })
        })
    });
}

#[test]
fn a_wrong_length_is_refused() {
    hold((vec(ordinary(), 0..100), 1..20usize), |(z, longer)| {
        for_codecs(|name, codec| {
            let (count, expected) = (z.len(), codec.encoded_len(z.len()));
            let bytes = [encoded(codec, &z), vec![0; longer]].concat();
            (0..=bytes.len()).filter(|got| *got != expected).try_for_each(|got| {
                let (fault, room) = (Err(Fault::Length { count, expected, got }), &mut vec![0.0; count]);
                prop_assert_eq!(codec.decode(&bytes[..got], room), fault, "{}", name);
                prop_assert_eq!(codec.decode_add(&bytes[..got], room), fault, "{}", name);
                Ok(())
            })
        })
    });
}

#[test]
fn a_scale_is_finite_and_not_negative() {
    let bad_scale = prop_oneof![not_finite(), f32::MIN..-1e-45, Just(-0.0)];
    hold((vec(ordinary(), 1..100), bad_scale), |(z, scale)| {
        for (name, _) in table().into_iter().filter(|(name, _)| has_scale(*name)) {
            let mut bytes = encoded(&*name.codec(), &z);
            bytes[..4].copy_from_slice(&scale.to_le_bytes());
            let refused = decoded(&*name.codec(), &bytes, z.len());
            prop_assert!(matches!(refused, Err(Fault::Scale(_))), "{name} takes the scale {scale}: {refused:?}");
        }
        Ok(())
    });
}

/// Of the places 0, 2, 4 … one is replaced.
#[test]
fn topk_takes_rising_places_inside_its_block() {
    let codec = CodecName::TopK(500_000).codec();
    hold((2..=200usize, any::<Index>(), prop_oneof![0..300u16, any::<u16>()]), |(count, at, place)| {
        let mut places = (0..count as u16).step_by(2).collect::<Vec<_>>();
        *at.get_mut(&mut places) = place;
        let fits = places.is_sorted_by(|a, b| a < b) && places.iter().all(|place| usize::from(*place) < count);
        let indices = places.iter().flat_map(|place| place.to_le_bytes());
        let bytes = indices.chain(vec![0; 4 * places.len()]).collect::<Vec<_>>();
        match decoded(&*codec, &bytes, count) {
            Ok(_) => prop_assert!(fits, "{places:?} are places of {count}"),
            Err(fault) => prop_assert!(!fits && matches!(fault, Fault::Index { .. }), "{places:?} of {count}: {fault}"),
        }
        Ok(())
    });
}

#[test]
fn uniform_has_no_code_past_its_grid() {
    hold((vec(ordinary(), 1..100), 2u8..=8, any::<Index>()), |(z, width, place)| {
        let codec = CodecName::Uniform(width).codec();
        let (mut bytes, first) = (encoded(&*codec, &z), place.index(z.len()) * usize::from(width));
        for bit in first..first + usize::from(width) {
            bytes[4 + bit / 8] |= 1 << (bit % 8);
        }
        let code = u8::MAX >> (8 - width); // all ones
        prop_assert_eq!(decoded(&*codec, &bytes, z.len()), Err(Fault::Code { code, largest: code - 1 }));
        Ok(())
    });
}

// Names.

fn names_itself(name: CodecName) {
    assert_eq!(name.to_string().parse(), Ok(name));
    assert_eq!(CodecName::from_id(name.id()), Some(name));
    let json = serde_json::to_string(&name).expect("a word");
    assert_eq!(json, format!("\"{name}\""));
    assert_eq!(serde_json::from_str::<CodecName>(&json).expect("its own word"), name);
}

#[test]
fn a_codec_is_read_as_it_is_written() {
    table().into_iter().for_each(|(name, _)| names_itself(name));
    let written = ["sign", "uniform4", "power3", "topk0.01", "topk1", "topk0.000001", "bf16", "f16", "f32"];
    assert!(written.iter().all(|name| name.parse::<CodecName>().expect("a codec").to_string() == *name));
}

#[test]
fn a_part_is_read_as_it_is_written() {
    hold(1u32..=1_000_000, |millionths| {
        names_itself(CodecName::TopK(millionths));
        Ok(())
    });
}

#[test]
fn a_bad_name_is_told_the_good_ones() {
    let bad = "|Sign|sign |sign2|uniform|uniform1|uniform9|uniform+4|uniform4.0|uniform260|power1|power7|power2x|topk|\
               topk0|topk-0.1|topk1.1|topk0.0000001|topknan|topkinf|topk+0.5|f64|bf8|none";
    for name in bad.split('|') {
        let error = name.parse::<CodecName>().expect_err("no codec").to_string();
        assert!(error.contains(&format!("`{name}`")) && error.contains(CodecName::ACCEPTED), "{error}");
    }
}

#[test]
fn a_number_of_no_codec_has_no_name() {
    let bad = [0, 0x0100_0001, 0x0200_0001, 0x0200_0009, 0x0300_0007, 0x0400_0000, 0x040f_4241, 0x0800_0000, u32::MAX];
    assert_eq!(bad.map(CodecName::from_id), [None; 9]);
}
