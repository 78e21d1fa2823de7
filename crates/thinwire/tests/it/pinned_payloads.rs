//! The bits that each codec writes, keeps and reads: so that faster loops change none of them without anybody knowing.
//!
//! A payload is read by workers of other versions and by devices, which have loops of their own. Here all that a codec makes of the same
//! vectors is compared with what earlier versions made of them. What to do about other bits is in `pinned.rs`.

use thinwire::CodecName;
use thinwire::inside::codec::{self, ResidualSlice};
use thinwire::inside::kernel::bf16;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const LEN: usize = 5000;

const PINNED: [(&str, u64); 20] = [
    ("sign", 0x782d0b770c274533),
    ("uniform2", 0xb018dd9ab0f2dd75),
    ("uniform3", 0x091bc4db4c9813d3),
    ("uniform4", 0x6357b0b4492e296f),
    ("uniform5", 0x0a4dc523bcef66c7),
    ("uniform6", 0x8135b8026c8fad86),
    ("uniform7", 0xf7387cca8c94be8a),
    ("uniform8", 0xb1749510e1601ad7),
    ("power2", 0x18e8d47374d177fc),
    ("power3", 0x2ff9460753f76cc3),
    ("power4", 0x408182b945ba9f39),
    ("power5", 0x98806f68a28d22b7),
    ("power6", 0x4fcd468f0604ab15),
    ("topk0.01", 0x6590c13ca68ab508),
    ("topk0.1", 0x2e8175792332eb23),
    ("topk1", 0x02defb270e04c810),
    ("bf16", 0xf0605c5aab672266),
    ("f16", 0x3548f1892abda8bd),
    ("f32", 0x1a205f2c8b6664f3),
    ("vote", 0x8a2bbe2c592decc9),
];

/// Of many kinds, without a call of libm: the same on every machine.
fn vectors() -> Vec<Vec<f32>> {
    let mut state = 1u32;
    let mut random = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state ^ state >> 15
    };
    let mut vector = |value: fn(u32) -> f32| (0..LEN).map(|_| value(random())).collect::<Vec<_>>();
    let ordinary = |bits: u32| bits as i32 as f32 / 2f32.powi(31);
    let all_exponents_below_one = |bits: u32| f32::from_bits(bits & 0xbfff_ffff);
    let huge = |bits: u32| bits as i32 as f32 / 2f32.powi(31) * 1.6e38;
    let denormal = |bits: u32| f32::from_bits(bits & 0x8000_001f);
    let half_way = |bits: u32| (bits % 65) as f32 / 32.0 - 1.0;
    let sparse = |bits: u32| if bits.is_multiple_of(16) { bits as i32 as f32 } else { -0.0 * (bits % 3) as f32 };
    let for_halves = |bits: u32| bits as i32 as f32 / 2f32.powi(31) * 2f32.powi((bits >> 7 & 31) as i32 - 26);
    let kinds = [ordinary, all_exponents_below_one, huge, denormal, half_way, sparse, for_halves];
    // With a residual of the same kind.
    kinds.into_iter().flat_map(|kind| [vector(kind), vector(kind)]).chain([vec![0.0; LEN], vec![-0.0; LEN]]).collect()
}

/// Of payloads, residuals and decoded values.
fn digest(name: CodecName, vectors: &[Vec<f32>]) -> u64 {
    let (codec, mut digest) = (&*name.codec(), 0);
    let mut hash = |bytes: &[u8]| digest = xxh3_64_with_seed(bytes, digest);
    for (pair, block) in
        vectors.as_chunks::<2>().0.iter().flat_map(|pair| [1, 37, 512, 4096].map(|block| (pair, block)))
    {
        let [x, e] = pair;
        let (mut wide, mut halves) = (e.clone(), vec![[0; 2]; LEN]);
        bf16::write(e, &mut halves);
        let mut bytes = [(); 3].map(|()| vec![0xa5; codec::encoded_len(codec, block, LEN)]);
        let residuals = [ResidualSlice::Wide(&mut wide), ResidualSlice::Half(&mut halves), ResidualSlice::Nothing];
        for (residual, bytes) in residuals.into_iter().zip(&mut bytes) {
            codec.encode_blocks(block, x, residual, bytes).expect("finite values");
            hash(bytes);
        }
        let (mut out, mut sum) = (vec![7.0; LEN], x.clone());
        codec.decode_blocks(block, &bytes[0], &mut out).expect("what the codec wrote");
        codec.add_up(block, &bytes.each_ref().map(|bytes| &bytes[..]), false, 3.0, &mut sum).expect("the same");
        hash(halves.as_flattened());
        [wide, out, sum].iter().for_each(|values| hash(bytemuck::cast_slice(values)));
    }
    digest
}

/// Every codec, whichever numbers they have; of topk some parts will do.
fn codecs() -> impl Iterator<Item = CodecName> {
    let settings = |kind: u32| (0..=8).chain([10_000, 100_000, 1_000_000]).map(move |setting| kind << 24 | setting);
    let names = (0..=255).flat_map(settings).filter_map(CodecName::from_id);
    names.filter(|name| !matches!(name, CodecName::TopK(..10_000)))
}

#[test]
fn every_codec_writes_the_bits_it_always_wrote() {
    let vectors = vectors();
    let now = codecs().map(|name| (name.to_string(), digest(name, &vectors))).collect::<Vec<_>>();
    let lines = now.iter().map(|(name, digest)| format!("    (\"{name}\", {digest:#018x}),\n")).collect::<String>();
    let same = now.iter().map(|(name, digest)| (&**name, *digest)).eq(PINNED);
    assert!(same, "other bits than those of earlier versions (pinned.rs says what to do):\n{lines}");
}
