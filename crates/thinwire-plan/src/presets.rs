//! The papers' models and settings.
//!
//! | preset | from |
//! |---|---|
//! | `bert-base`, `bert-large` | 0/1 Adam (arXiv 2202.06009): 118,000 and 152,000 steps, 12,500 of warm-up; 1-bit Adam's own warm-up of 16,000 and 23,000; gaps that double every 32,678 steps, up to 16 |
//! | `gpt2` | the same paper: 117M parameters, 300,000 steps, 3,000 of warm-up, then a cosine |
//! | `resnet18-imagenet` | the same paper: 90 epochs in batches of 256, a tenth of the rate after each 30 of them |
//!
//! The counts of the BERTs are held to the paper's. Of the last two the settings, 1-bit Adam's warm-ups and the numbers of workers
//! are as we remember the paper and were not checked against its text; the gaps are by its rule, that a gap doubles when the
//! learning rate halves.
//! 16 bits for a value of an exact round, as all of them trained. Computing: see [`Preset::compute`].

use crate::methods::Run;
use std::fmt;
use std::str::FromStr;
use thinwire::options::Decay;
use thinwire::options::Warmup;
use thinwire::{CodecName, Config, LearningRate, Name, OneBitAdam, ZeroOneAdam};

/// A paper's model and settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// 110M parameters, 118,000 steps
    BertBase,
    /// 340M parameters, 152,000 steps
    BertLarge,
    /// 117M parameters, 300,000 steps
    Gpt2,
    /// 11.7M parameters, 450,450 steps
    Resnet18Imagenet,
}

/// Its name.
impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Preset {
    type Err = String;

    fn from_str(name: &str) -> Result<Preset, String> {
        let names = Preset::ALL.map(Preset::name).join(", ");
        let found = Preset::ALL.into_iter().find(|preset| preset.name() == name);
        found.ok_or_else(|| format!("expected one of {names}"))
    }
}

/// What [`Preset::compute`] was measured on.
pub const GPU: &str = "v100";

/// Four GPUs a host, as on the papers' Ethernet clusters.
const GPUS_A_HOST: usize = 4;

impl Preset {
    /// Every one.
    pub const ALL: [Preset; 4] = [Preset::BertBase, Preset::BertLarge, Preset::Gpt2, Preset::Resnet18Imagenet];

    /// As flags and keywords have it.
    pub fn name(self) -> &'static str {
        match self {
            Preset::BertBase => "bert-base",
            Preset::BertLarge => "bert-large",
            Preset::Gpt2 => "gpt2",
            Preset::Resnet18Imagenet => "resnet18-imagenet",
        }
    }

    pub(crate) fn params(self) -> usize {
        match self {
            Preset::BertBase => 110_000_000,
            Preset::BertLarge => 340_000_000,
            Preset::Gpt2 => 117_000_000,
            Preset::Resnet18Imagenet => 11_689_512,
        }
    }

    /// Workers and hosts.
    pub(crate) fn workers(self) -> (usize, usize) {
        let workers = match self {
            Preset::BertBase | Preset::BertLarge => 128,
            Preset::Gpt2 => 64,
            Preset::Resnet18Imagenet => 32,
        };
        (workers, workers / GPUS_A_HOST)
    }

    /// Seconds of a step's forward and backward on one GPU, and where they are from.
    ///
    /// 1-bit Adam's paper (arXiv 2102.02888, table 1) measured BERT-Large on V100: 35.71 ms forward and 60.81 ms backward for 16
    /// sequences of 128 tokens. Batches of 4,096 on 128 GPUs are twice that.
    pub(crate) fn compute(self) -> Option<(f64, &'static str)> {
        const BERT_LARGE: f64 = 2.0 * (35.71e-3 + 60.81e-3);
        let scaled = |tokens: f64| BERT_LARGE * self.params() as f64 / 340e6 * tokens / 4096.0;
        match self {
            Preset::BertLarge => Some((BERT_LARGE, "1-bit Adam's paper, table 1, on V100")),
            Preset::BertBase => Some((scaled(4096.0), "BERT-Large's of 1-bit Adam's paper, by parameters")),
            Preset::Gpt2 => Some((scaled(8192.0), "BERT-Large's of 1-bit Adam's paper, by parameters and tokens")),
            Preset::Resnet18Imagenet => None,
        }
    }

    pub(crate) fn run(self) -> Run {
        let (steps, warmup, decay) = match self {
            Preset::BertBase => (118_000, 12_500, Decay::Constant),
            Preset::BertLarge => (152_000, 12_500, Decay::Constant),
            Preset::Gpt2 => (300_000, 3_000, Decay::Cosine),
            Preset::Resnet18Imagenet => (450_450, 0, Decay::Step),
        };
        let schedule = LearningRate {
            warmup,
            decay,
            steps,
            floor: if self == Preset::Gpt2 { 1e-5 / 1.5e-4 } else { 0.0 },
            drop_every: 150_150,
            ..LearningRate::constant(1e-4)
        };
        let (one_bit_warmup, zero_one) = match self {
            Preset::BertBase => (16_000, bert()),
            Preset::BertLarge => (23_000, bert()),
            Preset::Gpt2 => (80_000, by_rule()),
            Preset::Resnet18Imagenet => (50_050, by_rule()),
        };
        Run {
            exact_codec: Some(CodecName::Bf16),
            given: vec![one_bit_adam(one_bit_warmup), zero_one],
            ..Run::plain(steps, schedule, None)
        }
    }
}

/// κ = 16, the variance frozen and the first gap at the end of the warm-up.
fn bert() -> Config {
    Config::of(ZeroOneAdam {
        var_freeze_step: Some(12_500),
        local_step_scaler: Some(32_678),
        local_step_clipper: Some(16),
        ..ZeroOneAdam::default()
    })
}

fn one_bit_adam(warmup: u64) -> Config {
    Config::of(OneBitAdam { warmup: Some(Warmup::Steps(warmup)), ..OneBitAdam::default() })
}

fn by_rule() -> Config {
    Config { preset: Some("paper".to_owned()), ..Config::new(Name::ZERO_ONE_ADAM) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods;
    use thinwire::Plan;

    /// Exact and coarse rounds, and bits a parameter a step, of 1-bit Adam and of 0/1 Adam.
    fn counts(preset: Preset) -> [(u64, u64, f64); 2] {
        let run = preset.run();
        let methods = methods::of(&run, &[]).unwrap();
        [&methods[2], &methods[3]].map(|method| {
            let plan = Plan::new(&method.config, preset.params(), 128, run.steps).unwrap();
            (plan.rounds.exact, plan.rounds.coarse, plan.bits_per_param_per_step())
        })
    }

    #[test]
    fn berts_rounds_are_the_papers() {
        let [one_bit, zero_one] = counts(Preset::BertLarge);
        assert_eq!((one_bit.0, one_bit.1), (23_000, 129_000));
        assert_eq!((zero_one.0, zero_one.1), (153, 74_168));
        // A bit and a 512th of a scale; the paper counts the bit alone: 3.27 and 0.49 + 153·16/152000.
        assert!((one_bit.2 - 3.27).abs() < 0.06 && (zero_one.2 - 0.504).abs() < 0.035, "{one_bit:?} {zero_one:?}");
        let [one_bit, zero_one] = counts(Preset::BertBase);
        assert_eq!((one_bit.0, one_bit.1), (16_000, 102_000));
        assert_eq!((zero_one.0, zero_one.1), (153, 70_467));
        assert!((one_bit.2 - 3.03).abs() < 0.06, "{one_bit:?}");
    }

    #[test]
    fn every_preset_can_be_planned() {
        for preset in Preset::ALL {
            let run = preset.run();
            for method in methods::of(&run, &[CodecName::Uniform(4)]).unwrap() {
                let plan = Plan::new(&method.config, preset.params(), preset.workers().0, run.steps).unwrap();
                let rounds = plan.rounds;
                assert_eq!(rounds.exact + rounds.coarse + rounds.skipped, run.steps, "{preset:?} {}", method.shown);
            }
        }
    }
}
