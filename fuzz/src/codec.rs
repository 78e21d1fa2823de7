//! Codecs: payloads of whoever, and values of whoever. All ways to decode agree, and so do the loops with intrinsics and their
//! portable twins, to the bit.

use crate::Input;
use std::sync::LazyLock;
use thinwire::inside::codec::{self, CodecName, Fault, Precision, ResidualSlice};
use thinwire::inside::kernel::{Level, bf16, streaming, use_level};

const LEVELS: [Level; 3] = [Level::Portable, Level::Avx2, Level::Avx512];

/// Every codec; of those with a width, every width.
pub const CODECS: [CodecName; 25] = [
    CodecName::Sign,
    CodecName::Uniform(2),
    CodecName::Uniform(3),
    CodecName::Uniform(4),
    CodecName::Uniform(5),
    CodecName::Uniform(6),
    CodecName::Uniform(7),
    CodecName::Uniform(8),
    CodecName::Power2(2),
    CodecName::Power2(3),
    CodecName::Power2(4),
    CodecName::Power2(5),
    CodecName::Power2(6),
    CodecName::TopK(1),
    CodecName::TopK(10_000),
    CodecName::TopK(70_000),
    CodecName::TopK(500_000),
    CodecName::TopK(1_000_000),
    CodecName::Sparse { millionths: 15_625, width: 2 },
    CodecName::Sparse { millionths: 200_000, width: 4 },
    CodecName::Sparse { millionths: 1_000_000, width: 8 },
    CodecName::Bf16,
    CodecName::F16,
    CodecName::F32,
    CodecName::Vote,
];

type Codec = dyn codec::Codec;

/// Codecs that do not look at all blocks at once clear a buffer for each, and short blocks would spend all the time there.
const MOST_BLOCKS: usize = 4;
const MOST_VALUES: usize = 640;

fn codec_of(name: CodecName) -> &'static Codec {
    static ALL: LazyLock<[Box<Codec>; CODECS.len()]> = LazyLock::new(|| CODECS.map(CodecName::codec));
    &*ALL[CODECS.iter().position(|other| *other == name).expect("one of them")]
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

fn same(a: &[f32], b: impl IntoIterator<Item = f32>) -> bool {
    a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Values, or why there are none; a fault may hold a NaN, which equals nothing.
type Read<'a> = Result<&'a [f32], String>;

fn read(out: &mut [f32], decode: impl FnOnce(&mut [f32]) -> Result<(), Fault>) -> Read<'_> {
    decode(out).map_err(|fault| format!("{fault:?}"))?;
    Ok(out)
}

/// The level that an input is compared at: one that this CPU has.
fn level(input: &mut Input) -> Level {
    use_level(input.one_of(&LEVELS))
}

/// A payload: finite values, the same in every way and at every level, or refused.
pub fn decode(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (name, block) = (input.one_of(&CODECS), input.one_of(&[1, 7, 8, 37, 64, 512, 4096]));
    let (count, as_it_is) = (usize::from(input.byte()) % 70 * input.one_of(&[1, 1, 1, 9]), input.byte() == 255);
    let count = count.min(MOST_BLOCKS * block - 1);
    let codec = codec_of(name);
    let other = level(&mut input);
    let payload = match as_it_is {
        true => input.rest().to_vec(), // hardly ever of the right length
        false => input.padded(codec::encoded_len(codec, block, count)),
    };
    use_level(Level::Portable);
    let (want, at_once) = (&mut [7.0; MOST_VALUES][..count], &mut [7.0; MOST_VALUES][..count]);
    let want = read(want, |out| codec.decode_blocks(block, &payload, out));
    use_level(other);
    let at_once = read(at_once, |out| codec.decode_blocks(block, &payload, out));
    match (&want, &at_once) {
        (Ok(want), Ok(values)) => assert!(same(want, values.iter().copied()), "{name}: {other:?}"),
        (want, at_once) => assert_eq!(want, at_once, "{name}: {other:?}"),
    }
    past_the_caches(codec, block, &payload, &at_once);
    added_up(codec, block, &payload, &at_once, count);
    if let Ok(values) = at_once {
        assert!(values.iter().all(|value| value.is_finite()), "{name}: not finite: {values:?}");
        one_by_one(codec, block, &payload, values);
        encodes_again(name, codec, block, values);
    }
}

fn past_the_caches(codec: &Codec, block: usize, payload: &[u8], at_once: &Read<'_>) {
    let Ok(values) = at_once else { return };
    let mut out = vec![7.0; values.len()]; // at a multiple of sixteen bytes
    let past = streaming(|stream| codec.decode_streaming(block, payload, &mut out, stream));
    assert!(past.is_ok() && same(values, out), "past the caches: {past:?}");
}

/// Twice the same, halved.
fn added_up(codec: &Codec, block: usize, payload: &[u8], at_once: &Read<'_>, count: usize) {
    let out = &mut [7.0; MOST_VALUES][..count];
    let added = codec.add_up(block, &[payload, payload], true, 2.0, out);
    assert_eq!(added.is_ok(), at_once.is_ok(), "added up: {added:?}, at once: {at_once:?}");
    if let Ok(values) = at_once {
        assert!(same(out, values.iter().map(|value| (0.0 + value + value) / 2.0)), "added up");
    }
}

/// Each block by itself gives the same values, and adds them to what is there.
fn one_by_one(codec: &Codec, block: usize, payload: &[u8], values: &[f32]) {
    for (bytes, values) in payload.chunks(codec.encoded_len(block).max(1)).zip(values.chunks(block)) {
        let out = &mut [7.0; MOST_VALUES][..values.len()];
        let alone = read(out, |out| codec.decode(bytes, out)).expect("what is taken with others");
        assert!(same(alone, values.iter().copied()), "decode");
        let before = |k: usize| (k % 17) as f32 - 8.5;
        (0..values.len()).for_each(|k| out[k] = before(k));
        codec.decode_add(bytes, out).expect("what `decode` takes");
        assert!(same(out, values.iter().enumerate().map(|(k, value)| before(k) + value)), "decode_add");
    }
}

/// What was decoded can be coded; of signs and votes it comes back as it was.
fn encodes_again(name: CodecName, codec: &Codec, block: usize, values: &[f32]) {
    let mut bytes = vec![0xa5; codec::encoded_len(codec, block, values.len())];
    codec.encode_blocks(block, values, ResidualSlice::Nothing, &mut bytes).expect("finite values");
    let out = &mut [7.0; MOST_VALUES][..values.len()];
    let again = read(out, |out| codec.decode_blocks(block, &bytes, out)).expect("what the codec wrote");
    assert!(
        !matches!(name, CodecName::Sign | CodecName::Vote) || same(again, values.iter().copied()),
        "not idempotent"
    );
}

/// Values with a residual: refused if one is not finite; otherwise the same bytes at every level, and what they lose stays in e.
pub fn encode(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (name, block) = (input.one_of(&CODECS), input.one_of(&[1, 7, 8, 37, 64, 512, 4096]));
    let residual = if input.flag() { Precision::Bf16 } else { Precision::F32 };
    let (repeat, other) = (input.one_of(&[1, 1, 3, 40]), level(&mut input));
    let floats = |bytes: &[u8]| bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
    let mut pairs = floats(input.rest()).repeat(repeat);
    pairs.truncate(2 * MOST_BLOCKS * block);
    let (x, e): (Vec<f32>, Vec<f32>) = pairs.as_chunks::<2>().0.iter().map(|[x, e]| (*x, *e)).unzip();
    let mut halves = vec![[0; 2]; e.len()];
    bf16::write(&e, &mut halves);
    let e = if residual == Precision::Bf16 { halves.iter().map(|half| bf16::widen(*half)).collect() } else { e };
    let codec = codec_of(name);
    let [coded, again] = [other, Level::Portable].map(|level| {
        use_level(level);
        match residual {
            Precision::Bf16 => encode_half(codec, block, &x, &halves),
            _ => encode_wide(codec, block, &x, &e),
        }
    });
    assert_eq!(coded, again, "{name}: {other:?}");
    let z = x.iter().zip(&e).map(|(x, e)| x + e).collect::<Vec<_>>();
    match coded {
        Ok((bytes, left)) => says_what_it_kept(name, block, &z, &bytes, &left, residual),
        Err(fault) => assert!(z.iter().any(|z| !z.is_finite()), "{name} refuses {z:?}: {fault}"),
    }
}

/// A payload, and the bits of the residual.
type Coded = Result<(Vec<u8>, Vec<u32>), String>;

fn encode_wide(codec: &Codec, block: usize, x: &[f32], e: &[f32]) -> Coded {
    let (mut e, mut bytes) = (e.to_vec(), vec![0xa5; codec::encoded_len(codec, block, x.len())]);
    let done = codec.encode_blocks(block, x, ResidualSlice::Wide(&mut e), &mut bytes);
    done.map(|()| (bytes, bits(&e))).map_err(|fault| format!("{fault:?}"))
}

fn encode_half(codec: &Codec, block: usize, x: &[f32], e: &[bf16::Half]) -> Coded {
    let (mut e, mut bytes) = (e.to_vec(), vec![0xa5; codec::encoded_len(codec, block, x.len())]);
    let done = codec.encode_blocks(block, x, ResidualSlice::Half(&mut e), &mut bytes);
    let left = e.iter().map(|half| bf16::widen(*half).to_bits()).collect();
    done.map(|()| (bytes, left)).map_err(|fault| format!("{fault:?}"))
}

fn says_what_it_kept(name: CodecName, block: usize, z: &[f32], bytes: &[u8], left: &[u32], residual: Precision) {
    assert!(z.iter().all(|z| z.is_finite()), "{name} takes {z:?}");
    let mut q = vec![7.0; z.len()];
    codec_of(name).decode_blocks(block, bytes, &mut q).expect("what the codec wrote");
    let mut lost = z.iter().zip(&q).map(|(z, q)| z - q).collect::<Vec<_>>();
    let square = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    for (lost, z) in lost.chunks(block).zip(z.chunks(block)) {
        let (lost, whole) = (square(lost).sqrt(), square(z).sqrt());
        // A vote has no size, so it is no contraction.
        assert!(name == CodecName::Vote || lost <= whole * (1.0 + 1e-6), "{name} loses {lost:e} of {whole:e}: {z:?}");
    }
    if residual == Precision::Bf16 {
        bf16::round(&mut lost);
    }
    // A zero may have either sign here.
    let same = lost.iter().zip(left).all(|(lost, left)| *lost == f32::from_bits(*left));
    assert!(same, "{name}: the residual is not what was lost of {z:?}");
}
