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
        more: &["exact_codec = 'bf16'; groups = [{length = 20, lr_scale = 0.5}, {length = 25, weight_decay = 0.2}]"],
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
        ],
        learns: &["", "sync_longest = 16"],
        ..tested("zero-one-adam", "kappa = 2; sync = 'every'; sync_every = 3")
    },
    Tested {
        more: &[
            "codec = 'uniform4'; residue = 'bf16'",
            "theta = 'one-minus-over-t'; codec_up = 'power3'; codec_down = 'sign'; \
             groups = [{length = 20, lr_scale = 0.5}, {length = 25, weight_decay = 0.2}]",
        ],
        learns: &["codec = 'uniform4'", "codec = 'power3'"],
        ..tested("efficient-adam", "")
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
