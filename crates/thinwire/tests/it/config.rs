//! Configurations: every word in TOML and JSON, presets written out, DeepSpeed's names, and refusals that say which key,
//! which value, and what is accepted.

use crate::common::runs;

use runs::{cases, config as case};
use serde_json::json;
use thinwire::options::Decay;
use thinwire::options::Group;
use thinwire::options::Precision;
use thinwire::options::Topology;
use thinwire::options::{Freeze, Sync, Theta, Variance, Warmup};
use thinwire::options::{Hierarchy, NonFinite, Outlier};
use thinwire::{CodecName, Config, EfficientAdam, LearningRate, Name, OneBitAdam, Plan, Solo};
use thinwire::{Worker, ZeroOneAdam, threads};

/// One word a line, or with "; " between them.
fn read(words: &str) -> Config {
    Config::from_toml(&words.replace("; ", "\n")).unwrap_or_else(|error| panic!("{words}: {error}"))
}

fn resolved(words: &str) -> Config {
    read(words).resolved().unwrap_or_else(|error| panic!("{words}: {error}"))
}

/// What is wrong with `words`.
fn refusal(words: &str) -> String {
    let resolved = Config::from_toml(&words.replace("; ", "\n")).and_then(|config| config.resolved());
    resolved.err().unwrap_or_else(|| panic!("{words} was accepted")).to_string()
}

/// Every option that optimizers share.
const SHARED: &str = "
preset = 'deepspeed'
betas = [0.8, 0.95]
eps = 1e-6
weight_decay = 0.2
bias_correction = false
clip = 1.0
codec = 'uniform4'
codec_up = 'topk0.01'
codec_down = 'power3'
exact_codec = 'bf16'
residual = 'bf16'
block = 64
topology = 'central'
hierarchy = 'hosts'
host_codec = 'bf16'
non_finite = 'skip'
outlier = 'off'
outlier_factor = 30.0
threads = 2
bucket = 1024
learning_rate = {peak = 0.1, warmup = 3, decay = 'inverse-sqrt', steps = 50, floor = 0.25, drop_every = 4, drop_to = 0.5}
groups = [{length = 3}, {length = 4, lr_scale = 0.5, weight_decay = 0.0}]
";

fn shared(config: Config) -> Config {
    Config {
        preset: Some("deepspeed".to_owned()),
        betas: Some((0.8, 0.95)),
        eps: Some(1e-6),
        weight_decay: Some(0.2),
        bias_correction: Some(false),
        clip: Some(1.0),
        codec: Some(CodecName::Uniform(4)),
        codec_up: Some(CodecName::TopK(10_000)),
        codec_down: Some(CodecName::Power2(3)),
        exact_codec: Some(CodecName::Bf16),
        residual: Some(Precision::Bf16),
        block: Some(64),
        topology: Some(Topology::Central),
        hierarchy: Some(Hierarchy::Hosts),
        host_codec: Some(CodecName::Bf16),
        non_finite: Some(NonFinite::Skip),
        outlier: Some(Outlier::Off),
        outlier_factor: Some(30.0),
        threads: Some(2),
        bucket: Some(1024),
        learning_rate: Some(LearningRate {
            peak: 0.1,
            warmup: 3,
            decay: Decay::InverseSqrt,
            steps: 50,
            floor: 0.25,
            drop_every: 4,
            drop_to: 0.5,
        }),
        groups: vec![
            Group { length: 3, lr_scale: 1.0, weight_decay: None },
            Group { length: 4, lr_scale: 0.5, weight_decay: Some(0.0) },
        ],
        ..config
    }
}

/// Every optimizer with every option of its own.
fn all_options() -> [(&'static str, Config); 4] {
    let zero_one = "name = 'zero-one-adam'
variance_dense = 2
kappa = 4
variance_gap = 3
variance_longest = 4
freeze = 'never'
variance_steps = [0, 3]
variance = 'gradient'
sync = 'follow-lr'
sync_start = 5
sync_every = 6
sync_longest = 7
sync_steps = [1, 2]
delay = 3
delay_start = 4
var_freeze_step = 8
var_update_scaler = 9
local_step_scaler = 10
local_step_clipper = 11";
    [
        ("name = 'adam'", Config::new(Name::ADAM)),
        (
            "name = 'one-bit-adam'\nwarmup = 'auto'\nfreeze_step = 12",
            Config::of(OneBitAdam { warmup: Some(Warmup::Auto), freeze_step: Some(12) }),
        ),
        (
            zero_one,
            Config::of(ZeroOneAdam {
                variance_dense: Some(2),
                kappa: Some(4),
                variance_gap: Some(3),
                variance_longest: Some(4),
                freeze: Some(Freeze::Never),
                variance_steps: Some(vec![0, 3]),
                variance: Some(Variance::Gradient),
                sync: Some(Sync::FollowLr),
                sync_start: Some(5),
                sync_every: Some(6),
                sync_longest: Some(7),
                sync_steps: Some(vec![1, 2]),
                delay: Some(3),
                delay_start: Some(4),
                var_freeze_step: Some(8),
                var_update_scaler: Some(9),
                local_step_scaler: Some(10),
                local_step_clipper: Some(11),
            }),
        ),
        (
            "name = 'efficient-adam'\ntheta = 'one-minus-over-t'",
            Config::of(EfficientAdam { theta: Some(Theta::OneMinusOverT) }),
        ),
    ]
}

#[test]
fn every_option_is_read_from_toml_and_json() {
    for (text, config) in all_options() {
        let (text, config) = (format!("{text}\n{SHARED}"), shared(config));
        assert_eq!(read(&text), config);
        let as_json = toml::from_str::<serde_json::Value>(&text).unwrap().to_string();
        assert_eq!(Config::from_json(&as_json).unwrap(), config);
    }
}

/// `residual` was called `residue` until 0.1; older files and checkpoints still load.
#[test]
fn residue_is_another_name_of_residual() {
    assert_eq!(
        resolved("name = 'one-bit-adam'; residue = 'bf16'"),
        resolved("name = 'one-bit-adam'; residual = 'bf16'")
    );
    assert_refused("name = 'adam'; residue = 'bf16'", &["residual", "bf16", "codec = \"uniform4\""]);
}

#[test]
fn every_value_of_a_word_is_read() {
    let zero_one = |own: ZeroOneAdam| Config::of(own);
    let sync = |sync| zero_one(ZeroOneAdam { sync: Some(sync), ..ZeroOneAdam::default() });
    let usual = || Config::new(Name::ZERO_ONE_ADAM);
    for (words, config) in [
        ("freeze = 7", zero_one(ZeroOneAdam { freeze: Some(Freeze::Step(7)), ..ZeroOneAdam::default() })),
        ("sync = 'doubling'", sync(Sync::Doubling)),
        ("sync = 'every'", sync(Sync::Every)),
        ("sync = 'custom'", sync(Sync::Custom)),
        ("hierarchy = 'auto'", Config { hierarchy: Some(Hierarchy::Auto), ..usual() }),
        ("hierarchy = 'flat'", Config { hierarchy: Some(Hierarchy::Flat), ..usual() }),
        ("topology = 'sharded'", Config { topology: Some(Topology::Sharded), ..usual() }),
        ("non_finite = 'error'", Config { non_finite: Some(NonFinite::Error), ..usual() }),
        ("preset = 'paper'", Config { preset: Some("paper".to_owned()), ..usual() }),
    ] {
        assert_eq!(read(&format!("name = 'zero-one-adam'; {words}")), config, "{words}");
    }
    for codec in ["sign", "uniform2", "uniform8", "power2", "power6", "topk0.01", "topk1", "bf16", "f16", "f32"] {
        assert_eq!(read(&format!("name = 'zero-one-adam'; codec = '{codec}'")).codec.unwrap().to_string(), codec);
    }
    for decay in ["constant", "linear", "cosine", "step", "inverse-sqrt"] {
        let schedule = read(&format!("name = 'adam'; learning_rate = {{peak = 1.0, decay = '{decay}'}}")).learning_rate;
        assert_eq!(serde_json::to_value(schedule.unwrap().decay).unwrap(), decay);
    }
}

/// The defaults that all share; each optimizer's file has its own.
#[test]
fn defaults_are_written_out() {
    let shared = resolved("name = 'adam'");
    assert_eq!((shared.betas, shared.eps, shared.block), (Some((0.9, 0.999)), Some(1e-8), Some(512)));
    assert_eq!((shared.weight_decay, shared.bias_correction), (Some(0.01), Some(true)));
    assert_eq!((shared.topology, shared.non_finite), (Some(Topology::Sharded), Some(NonFinite::Error)));
    assert_eq!((shared.outlier, shared.outlier_factor), (Some(Outlier::Clip), Some(100.0)));
    assert_eq!((shared.threads, shared.bucket), (Some(1), Some(4 << 20)));
    assert_eq!((shared.hierarchy, shared.host_codec), (Some(Hierarchy::Auto), Some(CodecName::F32)));
    for coded in ["one-bit-adam", "zero-one-adam", "efficient-adam"] {
        assert_eq!(resolved(&format!("name = '{coded}'")).residual, Some(Precision::F32));
    }
}

#[test]
fn what_is_given_goes_before_the_preset() {
    let config = resolved("name = 'zero-one-adam'; preset = 'deepspeed'; bias_correction = true");
    assert_eq!(config.bias_correction, Some(true));
}

/// Each with a few that are easy to get wrong.
fn accepted() -> Vec<Config> {
    let more = [
        "name = 'zero-one-adam'; preset = 'deepspeed'; variance_steps = [0, 5]",
        "name = 'zero-one-adam'; preset = 'deepspeed'; sync = 'custom'; sync_steps = [5]",
        "name = 'zero-one-adam'; preset = 'deepspeed'; freeze = 'never'",
        "name = 'zero-one-adam'; preset = 'paper'; variance_steps = [0]; learning_rate = {peak = 0.1}",
        "name = 'zero-one-adam'; var_freeze_step = 3; sync = 'custom'; sync_steps = [5]",
        "name = 'zero-one-adam'; var_freeze_step = 3; local_step_scaler = 5; local_step_clipper = 6",
        "name = 'zero-one-adam'; sync_steps = [5]; sync = 'custom'; codec_up = 'topk0.001'",
        "name = 'one-bit-adam'; preset = 'paper'; codec = 'f16'; codec_up = 'sign'",
        "name = 'efficient-adam'; preset = 'paper'; codec_down = 'f32'",
        "name = 'adam'; preset = 'deepspeed'; groups = [{length = 1}, {length = 0, weight_decay = 0.5}]",
    ];
    cases().iter().map(|words| case(words)).chain(more.iter().map(|words| read(words))).collect()
}

#[test]
fn resolving_twice_is_resolving_once() {
    for config in accepted() {
        let once = config.resolved().unwrap_or_else(|error| panic!("{config:?}: {error}"));
        let twice = once.resolved().unwrap_or_else(|error| panic!("{config:?} again: {error}"));
        assert_eq!(once, twice);
    }
}

#[test]
fn configurations_pass_through_toml_and_json() {
    for config in accepted()
        .into_iter()
        .flat_map(|config| [config.resolved().unwrap(), config])
        .chain(all_options().map(|(_, config)| shared(config)))
    {
        let (as_toml, as_json) = (toml::to_string(&config).unwrap(), serde_json::to_string(&config).unwrap());
        assert_eq!(Config::from_toml(&as_toml).unwrap(), config, "{as_toml}");
        assert_eq!(Config::from_json(&as_json).unwrap(), config, "{as_json}");
    }
}

/// A worker records what it runs.
#[test]
fn a_worker_shows_the_resolved_configuration() {
    let config = read("name = 'zero-one-adam'; var_freeze_step = 3; codec = 'bf16'");
    let worker = Worker::new(&config, &[0.0; 4], Box::new(Solo)).unwrap();
    assert_eq!(worker.config(), &config.resolved().unwrap());
}

/// The text of a refusal has all these words.
fn assert_refused(words: &str, expected: &[&str]) {
    let text = refusal(words);
    for expected in expected {
        assert!(text.contains(expected), "{words}: {text:?} does not say {expected:?}");
    }
}

#[test]
fn a_key_that_is_unknown_is_named_and_the_known_ones_listed() {
    assert_refused("name = 'adam'; kapa = 3", &["kapa", "`kappa`", "`weight_decay`"]);
    assert_refused("name = 'adam'; learning_rate = {peak = 0.1, wormup = 3}", &["learning_rate.wormup", "`warmup`"]);
    assert_refused("name = 'adam'; groups = [{length = 3}, {lenght = 3}]", &["groups[1].lenght", "`length`"]);
    let text = Config::from_json(r#"{"name": "adam", "kapa": 3}"#).unwrap_err().to_string();
    assert!(text.contains("kapa") && text.contains("`kappa`"), "{text}");
}

#[test]
fn a_key_that_is_missing_is_named() {
    assert_refused("block = 8", &["name"]);
    assert_refused("name = 'adam'; learning_rate = {warmup = 3}", &["learning_rate", "peak"]);
    assert_refused("name = 'adam'; groups = [{lr_scale = 1.0}]", &["groups[0]", "length"]);
}

#[test]
fn a_value_that_is_misspelt_is_named_and_the_accepted_ones_listed() {
    for (words, expected) in [
        ("name = 'adamw'", &["name", "adamw", "adam", "one-bit-adam", "zero-one-adam", "efficient-adam"][..]),
        ("name = 'adam'; preset = 'papers'", &["preset", "papers", "paper", "deepspeed"]),
        ("name = 'adam'; topology = 'ring'", &["topology", "ring", "sharded", "central"]),
        ("name = 'adam'; hierarchy = 'racks'", &["hierarchy", "racks", "auto", "flat", "hosts"]),
        ("name = 'adam'; non_finite = 'ignore'", &["non_finite", "ignore", "error", "skip"]),
        ("name = 'adam'; outlier = 'error'", &["outlier", "error", "clip", "skip", "off"]),
        ("name = 'adam'; outlier_factor = 1.0", &["outlier_factor", "1.0", "above 1"]),
        ("name = 'one-bit-adam'; codec = 'sgn'", &["codec", "sgn", "sign", "uniform2 to uniform8", "topk0.01", "f32"]),
        ("name = 'one-bit-adam'; codec_up = 'uniform1'", &["codec_up", "uniform1", "uniform2 to uniform8"]),
        ("name = 'one-bit-adam'; codec_down = 'topk2'", &["codec_down", "topk2", "topk0.01"]),
        (
            "name = 'adam'; learning_rate = {peak = 0.1, decay = 'exp'}",
            &["learning_rate.decay", "exp", "cosine", "linear"],
        ),
    ] {
        assert_refused(words, expected);
    }
}

#[test]
fn a_value_of_another_type_is_named_with_its_key() {
    for (words, expected) in [
        ("name = 'adam'; betas = [0.9]", &["betas", "0.9", "two numbers"][..]),
        ("name = 'adam'; betas = [0.9, 0.99, 0.999]", &["betas", "0.999", "two numbers"]),
        ("name = 'adam'; bias_correction = 'yes'", &["bias_correction", "yes", "boolean"]),
        ("name = 'one-bit-adam'; codec = 1", &["codec", "1"]),
    ] {
        assert_refused(words, expected);
    }
}

#[test]
fn a_value_that_cannot_be_is_named_with_what_is_accepted() {
    for (words, expected) in [
        ("name = 'adam'; betas = [1.0, 0.9]", &["betas = [1.0, 0.9]", "at least 0 and below 1"][..]),
        ("name = 'adam'; betas = [0.9, -0.1]", &["betas = [0.9, -0.1]", "at least 0 and below 1"]),
        ("name = 'adam'; eps = 0.0", &["eps = 0", "above 0"]),
        ("name = 'adam'; eps = nan", &["eps = NaN", "above 0"]),
        ("name = 'adam'; weight_decay = -1.0", &["weight_decay = -1", "at least 0"]),
        ("name = 'adam'; weight_decay = inf", &["weight_decay = inf", "at least 0"]),
        ("name = 'adam'; block = 0", &["block = 0", "1 to 4096"]),
        ("name = 'adam'; block = 4097", &["block = 4097", "1 to 4096"]),
        ("name = 'adam'; exact_codec = 'sign'", &["exact_codec", "sign", "f32", "bf16"]),
        ("name = 'adam'; exact_codec = 'uniform8'", &["exact_codec", "uniform8", "power6"]),
        ("name = 'adam'; host_codec = 'power6'", &["host_codec", "power6", "f32", "bf16"]),
        ("name = 'adam'; host_codec = 'sign'", &["host_codec", "sign", "f32", "bf16"]),
        ("name = 'adam'; host_codec = 'f16'", &["host_codec", "f16", "f32", "bf16"]),
        ("name = 'adam'; threads = 0", &["threads = 0", "1 to 1024"]),
        ("name = 'adam'; threads = 100000", &["threads = 100000", "1 to 1024"]),
        ("name = 'adam'; eps = 1e-46", &["eps = 1e-46", "above 0"]),
        ("name = 'adam'; weight_decay = 1e300", &["weight_decay", "at least 0"]),
        ("name = 'adam'; learning_rate = 0.1", &["learning_rate", "peak = 1e-3"]),
        ("name = 'adam'; bucket = 0", &["bucket = 0", "at least 1"]),
        ("name = 'adam'; learning_rate = {peak = -1.0}", &["learning_rate.peak = -1", "at least 0"]),
        ("name = 'adam'; learning_rate = {peak = 1.0, floor = 2.0}", &["learning_rate.floor = 2", "0 to 1"]),
        ("name = 'adam'; learning_rate = {peak = 1.0, drop_to = -1.0}", &["learning_rate.drop_to = -1", "0 to 1"]),
        (
            "name = 'adam'; learning_rate = {peak = 1.0, drop_every = 0}",
            &["learning_rate.drop_every = 0", "at least 1"],
        ),
        (
            "name = 'adam'; learning_rate = {peak = 1.0, decay = 'cosine', warmup = 5, steps = 5}",
            &["learning_rate.steps = 5", "learning_rate.warmup"],
        ),
        ("name = 'adam'; groups = [{length = 1, lr_scale = -1.0}]", &["groups", "lr_scale = -1", "at least 0"]),
        ("name = 'adam'; groups = [{length = 1, weight_decay = nan}]", &["groups", "weight_decay = NaN", "at least 0"]),
    ] {
        assert_refused(words, expected);
    }
}

#[test]
fn a_word_of_another_optimizer_is_refused_with_its_owners() {
    for (words, expected) in [
        ("name = 'adam'; kappa = 3", &["kappa = 3", "adam", "zero-one-adam"][..]),
        ("name = 'one-bit-adam'; freeze = 3", &["freeze = 3", "one-bit-adam", "zero-one-adam"]),
        ("name = 'one-bit-adam'; var_freeze_step = 3", &["var_freeze_step = 3", "zero-one-adam"]),
        ("name = 'zero-one-adam'; warmup = 3", &["warmup = 3", "zero-one-adam", "one-bit-adam"]),
        ("name = 'zero-one-adam'; freeze_step = 3", &["freeze_step = 3", "one-bit-adam"]),
        ("name = 'zero-one-adam'; theta = 'constant'", &["theta", "constant", "efficient-adam"]),
        ("name = 'efficient-adam'; exact_codec = 'f32'", &["exact_codec", "f32", "adam, one-bit-adam, zero-one-adam"]),
        ("name = 'efficient-adam'; sync_steps = [3]", &["sync_steps = [3]", "zero-one-adam"]),
    ] {
        assert_refused(words, expected);
    }
}

#[test]
fn a_codec_that_cannot_say_what_is_sent_is_refused() {
    for (words, expected) in [
        (
            "name = 'efficient-adam'; codec = 'vote'; feedback = 0",
            &["codec_up = vote", "no size", "efficient-adam"][..],
        ),
        ("name = 'local-adam'; codec_down = 'vote'; feedback = 0", &["codec_down = vote", "no size", "local-adam"]),
        ("name = 'lion'; feedback = 0.5", &["feedback_up", "0.5", "vote", "expected 0"]),
        ("name = 'adam'; codec_up = 'f16'; weighted = true", &["codec_up = f16", "weight", "bf16"]),
        ("name = 'lion'; exact_codec = 'bf16'", &["exact_codec = bf16", "no exact rounds"]),
        (
            "name = 'zero-one-adam'; variance = 'momentum'; exact_codec = 'f32'",
            &["exact_codec = f32", "no exact rounds"],
        ),
        ("name = 'adam'; codec = 'sign'; feedback_up = 1e-60", &["feedback_up = 1e-60", "0 (forget) to 1"]),
    ] {
        assert_refused(words, expected);
    }
}

#[test]
fn codecs_that_exclude_each_other_are_both_named() {
    let options = "name = 'one-bit-adam'; codec = 'sign'; codec_up = 'f16'; codec_down = 'f16'";
    assert_refused(options, &["codec", "sign", "codec_up"]);
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    for text in ["name = ", "name = 'adam'\nname = 'adam'", "[optimizer]\nname = 'adam'", "{}", "\u{0}"] {
        assert!(Config::from_toml(text).is_err(), "{text:?}");
    }
    for text in ["", "{", "[]", "3", "null", r#"{"name": "adam"} x"#, r#"{"name": "adam", "name": "adam"}"#] {
        assert!(Config::from_json(text).is_err(), "{text:?}");
    }
}

#[test]
fn groups_must_cover_the_model() {
    let refusal = |lengths: &[u64], parameters: usize| {
        let groups = lengths.iter().map(|length| json!({ "length": length })).collect::<Vec<_>>();
        let config = Config::from_json(&json!({ "name": "adam", "groups": groups }).to_string()).unwrap();
        Worker::new(&config, &vec![0.0; parameters], Box::new(Solo)).err().map(|error| error.to_string())
    };
    assert_eq!(refusal(&[3, 0, 4], 7), None);
    for (lengths, parameters) in [(&[3, 4][..], 8), (&[3, 4], 6), (&[1 << 63, 1 << 63, 5], 5), (&[0], 1)] {
        let text = refusal(lengths, parameters).expect("an error");
        assert!(text.contains("groups") && text.contains(&format!("{parameters} parameters")), "{text}");
    }
}

/// A worker compares its words with those that come back as JSON, also those that decimals hold badly.
#[test]
fn a_configuration_survives_its_own_json() {
    let schedule = LearningRate::constant(f64::from(0.03_f32));
    let config = Config { learning_rate: Some(schedule), ..Config::new(Name::ZERO_ONE_ADAM) };
    Worker::new(&config, &[0.0; 8], Box::new(Solo)).expect("a worker that agrees with itself");
}

/// Settings that only a program can write, past the parser.
#[test]
fn a_codec_that_cannot_be_is_refused_and_does_not_panic() {
    for codec in [
        CodecName::Uniform(9),
        CodecName::Uniform(1),
        CodecName::Power2(7),
        CodecName::TopK(0),
        CodecName::TopK(2_000_000),
    ] {
        let refused = Config { codec: Some(codec), ..Config::new(Name::ONE_BIT_ADAM) }.resolved();
        assert!(refused.is_err_and(|error| error.to_string().contains("codec_up")), "{codec:?}");
    }
}

/// What the hosts of a group decide: a form with nothing between hosts is refused before anyone waits.
#[test]
fn two_levels_on_one_host_are_refused() {
    let config = read("name = 'efficient-adam'; hierarchy = 'hosts'");
    let expected = ["hierarchy = hosts", "one host", "auto or flat"];
    let says_all = |text: String| assert!(expected.iter().all(|word| text.contains(word)), "{text}");
    for end in threads::run(2, |group| Worker::new(&config, &[0.0; 10], Box::new(group))) {
        says_all(end.err().expect("an error").to_string());
    }
    says_all(Plan::new(&config, 10, 2, 1).err().expect("an error").to_string());
    for hosts in [&[0][..], &[0, 1], &[0, 0, 1]] {
        let ends = threads::run_on(hosts, |group| Worker::new(&config, &[0.0; 10], Box::new(group)).is_ok());
        assert!(ends.into_iter().all(|accepted| accepted), "{hosts:?}");
        assert!(Plan::on_hosts(&config, 10, hosts, 1).is_ok(), "{hosts:?}");
    }
}
