//! What is compared: every optimizer, and Efficient-Adam by every codec.

use crate::report;
use anyhow::Result;
use thinwire::config::Warmup;
use thinwire::{CodecName, Config, LearningRate, Name};

pub struct Method {
    /// For people.
    pub shown: String,
    /// Resolved.
    pub config: Config,
}

impl Method {
    pub fn new(config: &Config) -> Result<Method> {
        let config = config.resolved()?;
        let optimizer = report::shown(&config.name.to_string());
        let shown = match (config.name, config.codec_up, config.codec_down) {
            (Name::Adam, ..) => format!("{optimizer} {}", config.exact_codec.unwrap_or(CodecName::F32)),
            (Name::EfficientAdam, Some(up), Some(down)) if up == down => format!("{optimizer} {up}"),
            (_, Some(up), Some(down)) if up != down => format!("{optimizer} {up}, {down}"),
            (_, Some(up), _) if up != CodecName::Sign => format!("{optimizer} {up}"),
            _ => optimizer,
        };
        Ok(Method { shown, config })
    }

    /// The codec that stands for it: of the coarse rounds, if it has any.
    pub fn codec(&self) -> CodecName {
        self.config.codec_up.or(self.config.exact_codec).unwrap_or(CodecName::F32)
    }
}

/// How long a run is, and what else of it counts here.
#[derive(Clone, Debug)]
pub struct Run {
    pub steps: u64,
    pub learning_rate: LearningRate,
    pub clip: Option<f64>,
    /// Exact rounds of all but Adam itself, where a paper says.
    pub exact_codec: Option<CodecName>,
    /// Exact steps of 1-bit Adam, if they are not the default part of the run.
    pub one_bit_warmup: Option<u64>,
    /// 0/1 Adam's own words, where a paper says.
    pub zero_one: Option<Config>,
}

impl Run {
    pub fn plain(steps: u64, learning_rate: LearningRate, clip: Option<f64>) -> Run {
        Run { steps, learning_rate, clip, exact_codec: None, one_bit_warmup: None, zero_one: None }
    }

    /// `config` on this run's schedule.
    pub fn scheduled(&self, config: Config) -> Config {
        Config { learning_rate: Some(self.learning_rate.clone()), clip: self.clip, ..config }
    }
}

/// The methods to compare on `run`, Adam as it is first.
pub fn of(run: &Run, codecs: &[CodecName]) -> Result<Vec<Method>> {
    let mut configs = every(codecs);
    for config in &mut configs {
        match config.name {
            Name::OneBitAdam => config.warmup = run.one_bit_warmup.map(Warmup::Steps),
            Name::ZeroOneAdam => *config = run.zero_one.clone().unwrap_or_else(|| config.clone()),
            _ => {}
        }
        if matches!(config.name, Name::OneBitAdam | Name::ZeroOneAdam) && config.exact_codec.is_none() {
            config.exact_codec = run.exact_codec;
        }
    }
    configs.into_iter().map(|config| Method::new(&run.scheduled(config))).collect()
}

/// Every optimizer at its defaults, and Efficient-Adam with each of `codecs`.
pub fn every(codecs: &[CodecName]) -> Vec<Config> {
    let adam = |codec| Config { exact_codec: Some(codec), ..Config::new(Name::Adam) };
    let efficient = |codec: &CodecName| Config { codec: Some(*codec), ..Config::new(Name::EfficientAdam) };
    let whole =
        [adam(CodecName::F32), adam(CodecName::Bf16), Config::new(Name::OneBitAdam), Config::new(Name::ZeroOneAdam)];
    whole.into_iter().chain(codecs.iter().map(efficient)).collect()
}
