//! The laws of the codecs, held against every codec there is, on every kind of value and every kind of byte.
//!
//! ```text
//! contraction     ‖z − C(z)‖ ≤ ‖z‖                   residue        e ← (x + e) − C(x + e)
//! homogeneity     C(c·z) = c·C(z), c > 0             sum            decode_add(b, s) = s + decode(b)
//! sign            ‖z − C(z)‖² = ‖z‖² − ‖z‖₁²/d,  C(C(z)) = C(z)
//! vote            C(z) = ±1 by the sign of z: in place of the first two C(c·z) = C(z),  and C(C(z)) = C(z)
//! twin            C(z) is what tests/common/oracle.rs says, in f64
//! ```
//!
//! A new codec joins by one line in [`codecs::table`], and `every_codec_is_in_the_table` fails until it has.

mod codecs;
mod hostile;

use codecs::*;
use proptest::prelude::*;
use proptest::sample::Index;
use thinwire::inside::codec;
use thinwire::inside::codec::ResidualSlice;
use thinwire::inside::codec::{Codec, CodecName, Fault, SIGN, TOGETHER};
use thinwire::inside::kernel::{bf16, streaming};
use thinwire::inside::machine::Floats;

/// Whichever numbers they have; of topk some parts will do.
#[test]
fn every_codec_is_in_the_table() {
    let settings = |kind: u32| (0..=64).map(move |setting| kind << 24 | setting);
    for name in (0..=255).flat_map(settings).filter_map(CodecName::from_id) {
        let is_it = |(other, _): &(CodecName, _)| match (other, name) {
            (CodecName::TopK(_), CodecName::TopK(_)) => true,
            (CodecName::Sparse { .. }, CodecName::Sparse { .. }) => true,
            (other, name) => *other == name,
        };
        assert!(table().iter().any(is_it), "{name} is not");
    }
}

#[test]
fn a_codec_is_a_contraction() {
    for_blocks(|name, codec, z| {
        if !has_size(name) {
            return Ok(());
        }
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
            let residues = [ResidualSlice::Wide(&mut left), ResidualSlice::Half(&mut halves), ResidualSlice::Nothing];
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
        let (mut e, mut bytes) = (vec![0.0; len], vec![0xa5; codec::encoded_len(&SIGN, size, len)]);
        let refused = SIGN.encode_blocks(size, &x, ResidualSlice::Wide(&mut e), &mut bytes);
        prop_assert_eq!(refused, Err(Fault::NotFinite));
        let written = codec::encoded_len(&SIGN, size, start);
        let before = x[..start].chunks(size).flat_map(|x| encoded(&SIGN, x)).collect::<Vec<_>>();
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
            let comes_out = if has_size(name) { c } else { 1.0 };
            blocks(&x, size).try_for_each(|z| {
                let want = times(comes_out, &coded(codec, z));
                prop_assert_eq!(coded(codec, &times(c, z)), want, "{} times {}", name, c);
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
            let comes_out = if has_size(name) { c } else { 1.0 };
            for z in blocks(&x, size) {
                let (got, want) = (coded(&*name.codec(), &times(c, z)), times(comes_out, &coded(&*name.codec(), z)));
                let close = zip(&got, &want, |got, want| (got - want).abs() <= 1e-6 * want.abs());
                // Between the points of its grid, which begins anywhere, rounding decides what lies half-way.
                let is_close = match name {
                    CodecName::Sparse { .. } => {
                        other_point(&widen(&times(c, z)), &widen(&got), &widen(&want)).is_none()
                    }
                    _ => close.iter().all(|close| *close),
                };
                prop_assert!(is_close, "{name} of {z:?} times {c} gave {got:?}");
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
fn signs_and_votes_are_idempotent_to_the_bit() {
    hold((vector(), block_size()), |(x, size)| {
        for name in [CodecName::Sign, CodecName::Vote] {
            for z in x.chunks(size) {
                let once = coded(&*name.codec(), z);
                prop_assert_eq!(bits(&coded(&*name.codec(), &once)), bits(&once), "{} of {:?}", name, z);
            }
        }
        Ok(())
    });
}

/// Of any finite value, however large or small, −0 among them; and with the whole of a residual that is not kept.
#[test]
fn a_vote_is_the_sign_and_nothing_else() {
    let codec = CodecName::Vote.codec();
    hold((vector(), block_size()), |(x, size)| {
        let want = x.iter().map(|z| if *z >= 0.0 { 1.0f32 } else { -1.0 }).collect::<Vec<_>>();
        let mut bytes = vec![0xa5; codec::encoded_len(&*codec, size, x.len())];
        codec.encode_blocks(size, &x, ResidualSlice::Nothing, &mut bytes).expect("finite values");
        prop_assert_eq!(bytes.len(), x.chunks(size).map(|block| block.len().div_ceil(8)).sum::<usize>());
        let mut got = vec![7.0; x.len()];
        codec.decode_blocks(size, &bytes, &mut got).expect("what the codec wrote");
        prop_assert_eq!(bits(&got), bits(&want));
        Ok(())
    });
}

/// What fills up the last byte of a block is written as 0, and not looked at: in a message of signs as of votes.
#[test]
fn bits_behind_the_last_value_are_zero_and_do_not_count() {
    for name in [CodecName::Sign, CodecName::Vote] {
        for count in 1..=16 {
            let (codec, x) = (name.codec(), vec![1.0; count]);
            let mut bytes = encoded(&*codec, &x);
            let unused = !(u8::MAX >> (7 - (count - 1) % 8));
            let last = bytes.last_mut().expect("a byte");
            assert_eq!(*last & unused, 0, "{name} of {count}");
            *last |= unused;
            assert_eq!(decoded(&*codec, &bytes, count), Ok(x), "{name} of {count}");
        }
    }
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
    let written =
        ["sign", "uniform4", "power3", "topk0.01", "topk1", "topk0.000001", "topk0.2x4", "bf16", "f16", "f32", "vote"];
    assert!(written.iter().all(|name| name.parse::<CodecName>().expect("a codec").to_string() == *name));
}

#[test]
fn a_part_is_read_as_it_is_written() {
    hold(1u32..=1_000_000, |millionths| {
        names_itself(CodecName::TopK(millionths));
        names_itself(CodecName::Sparse { millionths, width: (2 + millionths % 7) as u8 });
        Ok(())
    });
}

#[test]
fn a_bad_name_is_told_the_good_ones() {
    let bad = "|Sign|sign |sign2|uniform|uniform1|uniform9|uniform+4|uniform4.0|uniform260|power1|power7|power2x|topk|\
               topk0|topk-0.1|topk1.1|topk0.0000001|topknan|topkinf|topk+0.5|topk0.1x|topk0.1x1|topk0.1x9|topkx4|topk0.1x+4|topk0.1x4x4|f64|bf8|none|Vote|vote1";
    for name in bad.split('|') {
        let error = name.parse::<CodecName>().expect_err("no codec").to_string();
        assert!(error.contains(&format!("`{name}`")) && error.contains(CodecName::ACCEPTED), "{error}");
    }
}

#[test]
fn a_number_of_no_codec_has_no_name() {
    let bad = [
        0,
        0x0100_0001,
        0x0200_0001,
        0x0200_0009,
        0x0300_0007,
        0x0400_0000,
        0x040f_4241,
        0x0800_0001,
        0x0900_0000,
        u32::MAX,
    ];
    assert_eq!(bad.map(CodecName::from_id), [None; 10]);
}
