//! The bits that a short run ends with, for each optimizer: so that nobody changes them without knowing.
//!
//! Other tests compare two runs of one build. Here a build is compared with those before it: a checkpoint and a recorded digest are worth
//! something only if the next version has the same bits. The vector is longer than a tile, so that sums over all values count too.
//!
//! To change bits on purpose: run the test, copy the lines that it prints over those of [`PINNED`], and say in CHANGELOG.md what changed.

use crate::common::runs::{Replica, config, together};
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

const LEN: usize = 5000;
const STEPS: u64 = 40;

/// Options, and the digest of the parameters after 40 steps of two workers and a sync.
const PINNED: [(&str, u64); 18] = [
    ("name = 'adam'", 0xf2be8819f61f6d68),
    ("name = 'adam'; exact_codec = 'bf16'; clip = 5.0", 0x73ce649c1950e6e9),
    ("name = 'one-bit-adam'; warmup = 12", 0x9d6c4c2e4c4dc7e0),
    ("name = 'one-bit-adam'; warmup = 'auto'; betas = [0.9, 0.8]; clip = 30.0", 0x35ee606e66a448cd),
    ("name = 'zero-one-adam'; kappa = 2; sync = 'every'; sync_every = 3", 0x208e315243fd4911),
    (
        "name = 'zero-one-adam'; learning_rate = {peak = 0.05, warmup = 6, decay = 'cosine', steps = 4000}",
        0xecb751e8e62e795c,
    ),
    ("name = 'efficient-adam'", 0xbb10a6eaced5a5bc),
    ("name = 'efficient-adam'; codec = 'sign'; residual = 'bf16'; theta = 'one-minus-over-t'", 0x19d5370a1be7b373),
    ("name = 'local-adam'; sync_every = 3", 0x5d89cada56b06b04),
    ("name = 'local-adam'; outer = 'average'; codec = 'uniform4'", 0x101484e7987b9ba3),
    ("name = 'local-adam'; outer = 'slow-momentum'; sync_every = 5; codec = 'sign'", 0xe5fb21dc0fc40671),
    ("name = 'local-adam'; outer = 'sign'; sync_every = 4; clip = 5.0", 0xb8cd4c34821c68cd),
    ("name = 'lion'", 0x453000545d432371),
    ("name = 'lion'; codec_up = 'sign'; codec_down = 'bf16'; momentum_every = 5; clip = 5.0", 0x83409c081d962916),
    ("name = 'birder'", 0x1f427edc4e5f7667),
    ("name = 'birder'; codec_down = 'bf16'; seed = 3; clip = 5.0", 0x23df3b97ed85c036),
    ("name = 'one-bit-lamb'; warmup = 12", 0x05bf5b15ae9660f6),
    ("name = 'one-bit-lamb'; warmup = 9; tensors = [300, 1, 4699]; codec = 'uniform4'; clip = 5.0", 0x47396457d8dc0296),
];

fn digest(words: &str) -> u64 {
    let config = config(&format!("{words}; block = 512"));
    let ends = together(2, |group| {
        let mut replica = Replica::new(&config, LEN, group)?;
        replica.train(STEPS)?;
        replica.sync()?;
        Ok(xxh3_64(bytemuck::cast_slice(&replica.x)))
    });
    assert_eq!(ends[0], ends[1], "{words}");
    ends[0]
}

#[test]
fn a_short_run_of_each_optimizer_ends_with_the_bits_it_always_had() {
    let now = PINNED.map(|(words, _)| (words, digest(words)));
    let lines = now.map(|(words, digest)| format!("    (\"{words}\", {digest:#018x}),\n")).concat();
    assert!(now == PINNED, "other bits than those of earlier versions (this file says what to do):\n{lines}");
}

/// Or the test above would pin less than it says.
#[test]
fn all_built_in_optimizers_are_pinned() {
    let names = PINNED.iter().map(|(words, _)| config(words).name.as_str()).collect::<BTreeSet<_>>();
    assert_eq!(
        names.into_iter().collect::<Vec<_>>(),
        ["adam", "birder", "efficient-adam", "lion", "local-adam", "one-bit-adam", "one-bit-lamb", "zero-one-adam"]
    );
    assert_eq!(digest(PINNED[0].0), digest(PINNED[0].0));
    assert_ne!(digest(PINNED[2].0), digest("name = 'one-bit-adam'; warmup = 13"), "a step of another kind is seen");
}
