//! What is not finite is refused, never sent; bytes of whoever decode to finite values or to an error, never to a panic.

use super::codecs::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use thinwire::inside::codec;
use thinwire::inside::codec::{Codec, CodecName, Fault};
use thinwire::inside::kernel::streaming;
use thinwire::inside::machine::Floats;

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

/// A bit of the bitmap is turned over, so there is a place too many or too few; or a number is made to be no place of the block.
#[test]
fn sparse_values_have_as_many_places_as_they_should() {
    let bitmap = CodecName::Sparse { millionths: 500_000, width: 4 };
    hold((vec(between_sixteenth_and_sixteen(), 2..200), any::<Index>()), |(z, at)| {
        let (codec, count) = (bitmap.codec(), z.len());
        let mut bytes = encoded(&*codec, &z);
        let place = at.index(count);
        bytes[8 + place / 8] ^= 1 << (place % 8);
        let refused = decoded(&*codec, &bytes, count);
        prop_assert!(matches!(refused, Err(Fault::Index { .. })), "{count} values, bit {place}: {refused:?}");
        Ok(())
    });
    let (numbers, z) = (CodecName::Sparse { millionths: 15_625, width: 2 }.codec(), vec![1.0; 300]);
    let mut bytes = encoded(&*numbers, &z);
    assert!(decoded(&*numbers, &bytes, 300).is_ok());
    bytes[8] |= 0xff; // the first of nine bits each: 255 and more, and the next is 1
    bytes[9] |= 1;
    assert!(matches!(decoded(&*numbers, &bytes, 300), Err(Fault::Index { .. })));
}

#[test]
fn sparse_values_lie_between_two_sizes() {
    let codec = CodecName::Sparse { millionths: 250_000, width: 3 }.codec();
    for (low, high) in [(f32::NAN, 1.0), (0.0, f32::INFINITY), (-1.0, 1.0), (2.0, 1.0), (-0.0, 1.0)] {
        let mut bytes = encoded(&*codec, &[1.0; 40]);
        bytes[..4].copy_from_slice(&low.to_le_bytes());
        bytes[4..8].copy_from_slice(&high.to_le_bytes());
        let refused = decoded(&*codec, &bytes, 40);
        assert!(matches!(refused, Err(Fault::Scale(_))), "{low} to {high}: {refused:?}");
    }
}
