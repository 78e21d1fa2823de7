//! What is compared: every optimizer, and Efficient-Adam by every codec.

use crate::report;
use anyhow::Result;
use std::sync::Arc;
use thinwire::inside::{Algorithm, Optimizers};
use thinwire::{CodecName, Config, LearningRate};

#[derive(Clone)]
pub struct Method {
    /// For people.
    pub shown: String,
    /// With every option written out.
    pub config: Config,
    pub algorithm: Arc<dyn Algorithm>,
}

impl Method {
    pub fn new(config: &Config) -> Result<Method> {
        let settings = config.decide()?;
        let (config, algorithm) = (settings.config(), settings.algorithm);
        let optimizer = report::shown(&config.name.to_string());
        let shown = match (config.exact_codec, config.codec_up, config.codec_down) {
            (exact, None, _) | (exact, _, None) => format!("{optimizer} {}", exact.unwrap_or(CodecName::F32)),
            (_, Some(up), Some(down)) if up != down => format!("{optimizer} {up}, {down}"),
            (exact, Some(up), _) if exact.is_none() || up != CodecName::Sign => format!("{optimizer} {up}"),
            _ => optimizer,
        };
        Ok(Method { shown, config, algorithm })
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
    /// Optimizers with options of their own, where a paper says.
    pub given: Vec<Config>,
}

impl Run {
    pub fn plain(steps: u64, learning_rate: LearningRate, clip: Option<f64>) -> Run {
        Run { steps, learning_rate, clip, exact_codec: None, given: Vec::new() }
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
        if let Some(given) = run.given.iter().find(|given| given.name == config.name) {
            *config = given.clone();
        }
        let optimizer = Optimizers::row(config.name);
        if optimizer.exact.is_some() && optimizer.coarse.is_some() && config.exact_codec.is_none() {
            config.exact_codec = run.exact_codec;
        }
    }
    configs.into_iter().map(|config| Method::new(&run.scheduled(config))).collect()
}

/// Every optimizer at its defaults; those that have exact rounds only in f32 and in bf16, those that have coarse rounds only with
/// each of `codecs`.
pub fn every(codecs: &[CodecName]) -> Vec<Config> {
    let configs = |row: &'static thinwire::inside::Row| -> Vec<Config> {
        let usual = Config::new(row.name);
        match (row.exact, row.coarse) {
            (Some(_), None) => {
                let exact = |codec| Config { exact_codec: Some(codec), ..usual.clone() };
                [CodecName::F32, CodecName::Bf16].map(exact).to_vec()
            }
            (None, Some(_)) => codecs.iter().map(|codec| Config { codec: Some(*codec), ..usual.clone() }).collect(),
            _ => vec![usual],
        }
    };
    Optimizers::all().into_iter().flat_map(configs).collect()
}
