//! The optimizers of the shared tests, in one table. A row joins the battery, the runs that are saved, resumed, regrouped and compared, the
//! bytes, the memory, and the server: so a new optimizer is one line.

use super::toy;

/// An optimizer, and options for the tests.
pub struct Tested {
    /// As configurations have it.
    pub name: &'static str,
    /// Options with which eight steps have every kind of its rounds.
    pub short: &'static str,
    /// More options for small runs; each is a case of its own.
    pub more: &'static [&'static str],
    /// Options for the battery, which has problems to solve; at first its defaults.
    pub learns: &'static [&'static str],
}

const fn tested(name: &'static str, short: &'static str) -> Tested {
    Tested { name, short, more: &[], learns: &[""] }
}

/// Between them they have every optimizer, schedule, kind of codec and group.
pub const OPTIMIZERS: &[Tested] = &[
    Tested {
        more: &[
            "exact_codec = 'bf16'; groups = [{length = 20, lr_scale = 0.5}, {length = 25, weight_decay = 0.2}]",
            "preset = 'loco'",
            "codec = 'sign'; feedback = 0.5; residual = 'bf16'; \
             groups = [{length = 20, lr_scale = 0.0}, {length = 25, weight_decay = 0.2}]",
            "codec = 'power3'; feedback = 0",
            "codec_up = 'uniform4'",
            "weighted = true; exact_codec = 'bf16'",
        ],
        learns: &["", "preset = 'loco'"],
        ..tested("adam", "")
    },
    Tested {
        more: &[
            "warmup = 'auto'; betas = [0.9, 0.8]",
            "warmup = 9; codec_up = 'topk0.2'; codec_down = 'uniform4'; exact_codec = 'bf16'",
        ],
        ..tested("one-bit-adam", "warmup = 6")
    },
    Tested {
        more: &[
            "kappa = 2; sync = 'every'; sync_every = 5",
            "kappa = 2; freeze = 9; sync = 'doubling'; sync_start = 12; sync_every = 8; sync_longest = 6",
            "kappa = 4; sync_longest = 16; learning_rate = {peak = 0.05, warmup = 6, decay = 'cosine', steps = 40}",
            "variance_steps = [0, 1, 2, 3, 20]; sync = 'custom'; sync_steps = [7, 8, 15, 33]",
            "kappa = 3; sync = 'every'; sync_every = 4; codec_up = 'sign'; codec_down = 'f16'; bias_correction = false; \
             groups = [{length = 7, weight_decay = 0.3}, {length = 11, lr_scale = 0.0}, {length = 27, lr_scale = 2.0}]",
            "kappa = 2; sync = 'every'; sync_every = 3; residue = 'bf16'",
            "kappa = 2; sync = 'every'; sync_every = 3; residual = 'i8'; feedback_up = 0.3",
            "kappa = 2; sync = 'every'; sync_every = 3; weighted = true",
            "variance = 'momentum'; sync = 'every'; sync_every = 4",
            "kappa = 2; sync = 'every'; sync_every = 3; exact_codec = 'power6'; feedback = 0.8",
            "variance_steps = [0, 1, 2, 3, 4]; sync = 'every'; sync_every = 5; delay = 3",
            "kappa = 2; freeze = 9; sync = 'every'; sync_every = 3; delay = 7; residual = 'bf16'; weighted = true",
            "kappa = 2; freeze = 6; sync = 'doubling'; sync_start = 12; sync_every = 8; sync_longest = 6; delay = 2; delay_start = 15; \
             groups = [{length = 7, weight_decay = 0.3}, {length = 11, lr_scale = 0.0}, {length = 27, lr_scale = 2.0}]",
        ],
        learns: &["", "sync_longest = 16", "sync_longest = 16; delay = 2", "exact_codec = 'power6'"],
        ..tested("zero-one-adam", "kappa = 2; sync = 'every'; sync_every = 3")
    },
    Tested {
        more: &[
            "codec = 'uniform4'; residue = 'bf16'",
            "codec = 'sign'; weighted = true",
            "theta = 'one-minus-over-t'; codec_up = 'power3'; codec_down = 'sign'; \
             groups = [{length = 20, lr_scale = 0.5}, {length = 25, weight_decay = 0.2}]",
        ],
        learns: &["codec = 'uniform4'", "codec = 'power3'"],
        ..tested("efficient-adam", "")
    },
    Tested {
        more: &[
            "outer = 'average'; sync_every = 5; codec_up = 'uniform4'; codec_down = 'sign'; bias_correction = false",
            "outer = 'slow-momentum'; sync_every = 4; codec = 'sign'; \
             groups = [{length = 7, weight_decay = 0.3}, {length = 11, lr_scale = 0.0}, {length = 27, lr_scale = 2.0}]",
            "outer = 'sign'; sync_every = 3; codec = 'uniform4'; residue = 'bf16'",
            "sync = 'follow-lr'; sync_longest = 8; codec = 'sign'; outer_rate = 0.5; outer_momentum = 0.4; \
             learning_rate = {peak = 0.05, warmup = 6, decay = 'cosine', steps = 40}",
            "outer = 'average'; outer_rate = 0.8; sync_every = 4; codec = 'power4'; feedback = 0",
            "preset = 'co2'; sync_every = 4; codec = 'sign'; outer_penalty = 1.5; outer_clip = 2.0",
            "outer = 'average'; sync_every = 5; delay = 2; codec = 'uniform4'; \
             groups = [{length = 7, weight_decay = 0.3}, {length = 11, lr_scale = 0.0}, {length = 27, lr_scale = 2.0}]",
            "sync_every = 6; delay = 4; mix = 0.5; sync_start = 7; weighted = true; residual = 'bf16'; codec = 'sign'",
            "outer = 'sign'; sync_every = 3; delay = 3; codec = 'power4'; feedback = 0",
            "parts = 3; sync_every = 6; codec = 'sign'; \
             groups = [{length = 7, weight_decay = 0.3}, {length = 11, lr_scale = 0.0}, {length = 27, lr_scale = 2.0}]",
            "preset = 'streaming-diloco'; sync_every = 16",
            "parts = 2; outer = 'slow-momentum'; sync_every = 8; delay = 4; sync_start = 3; codec_up = 'topk0.3x3'; codec_down = 'sign'",
            "preset = 'sparseloco'; sync_every = 5; residual = 'bf16'",
            "preset = 'fedavg'; sync_every = 7; sync_start = 3; \
             groups = [{length = 30, lr_scale = 0.0}, {length = 15, lr_scale = 0.5}]",
        ],
        learns: &[
            "outer = 'average'; sync_every = 8",
            "preset = 'slowmo'; sync_every = 8",
            "outer_momentum = 0.5; sync_every = 8",
            "outer = 'average'; codec = 'sign'; sync_every = 4",
            "outer_rate = 1.0; outer_momentum = 0.3; codec = 'uniform4'; sync_every = 4",
            "outer = 'average'; sync_every = 8; delay = 2",
            "outer = 'average'; sync_every = 8; delay = 2; mix = 0.5; codec = 'uniform4'",
            "outer = 'average'; sync_every = 8; parts = 4",
        ],
        ..tested("local-adam", "sync_every = 3")
    },
    Tested {
        more: &[
            "",
            "codec_down = 'bf16'",
            "codec_up = 'sign'; codec_down = 'vote'; momentum_every = 5; exact_codec = 'bf16'",
            "codec_up = 'uniform4'; codec_down = 'sign'; feedback_up = 0.5",
            "groups = [{length = 7, weight_decay = 0.3}, {length = 11, lr_scale = 0.0}, {length = 27, lr_scale = 2.0}]",
        ],
        learns: &["", "codec_down = 'bf16'", "preset = 'lion-cub'"],
        ..tested("lion", "momentum_every = 3")
    },
    Tested {
        more: &[
            "beta = 0.9; codec_down = 'bf16'; seed = 9",
            "codec_down = 'sign'; groups = [{length = 20, lr_scale = 0.0}, {length = 25, weight_decay = 0.2}]",
        ],
        learns: &["", "codec_down = 'bf16'"],
        ..tested("birder", "")
    },
    Tested {
        more: &[
            "warmup = 12; tensors = [5, 26, 14]",
            "warmup = 9; tensors = [44, 1]; codec_up = 'topk0.2'; codec_down = 'uniform4'; exact_codec = 'bf16'",
            "warmup = 7; tensors = [3, 20, 1, 21]; factor_threshold = 0.3; coeff_max = 0.3; residual = 'bf16'; \
             groups = [{length = 7, weight_decay = 0.3}, {length = 11, lr_scale = 0.0}, {length = 27, lr_scale = 2.0}]",
            "warmup = 6; tensors = [9, 9, 9, 9, 9]; weighted = true",
        ],
        // Some of the problems start at 0, where a step in proportion to ‖x‖ is next to nothing.
        learns: &["coeff_min = 1.0", "coeff_min = 0.3; coeff_max = 1.0"],
        ..tested("one-bit-lamb", "warmup = 6")
    },
    tested(toy::NAME, "start = 3"),
];

impl Tested {
    /// Its name and these options, one a line of TOML or with "; " between them.
    pub fn with(&self, options: &str) -> String {
        let between = if options.is_empty() { "" } else { "; " };
        format!("name = '{}'{between}{options}", self.name)
    }
}

/// All cases of small runs, for 45 values and 40 steps.
pub fn cases() -> Vec<String> {
    let of = |tested: &Tested| {
        [&[tested.short], tested.more].concat().into_iter().map(|options| tested.with(options)).collect::<Vec<_>>()
    };
    OPTIMIZERS.iter().flat_map(of).collect()
}

/// One case of each: the bytes and rounds of eight steps.
pub fn short_cases() -> impl Iterator<Item = String> {
    OPTIMIZERS.iter().map(|tested| tested.with(tested.short))
}
