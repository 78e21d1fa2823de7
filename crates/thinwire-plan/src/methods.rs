//! What is compared: every optimizer, and Efficient-Adam by every codec.

use anyhow::{Context, Result};
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
        let optimizer = thinwire_report::shown(&config.name.to_string());
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

/// The optimizers and presets of these names on `run`.
pub fn also(run: &Run, names: &[String]) -> Result<Vec<Method>> {
    let mut names = names.iter().map(|name| name.trim()).collect::<Vec<_>>();
    names.sort_unstable();
    names.dedup();
    let method = |called: &str| {
        let (name, preset) = Optimizers::chosen(called).context("--also")?;
        let config = Config { preset: preset.map(str::to_owned), ..Config::new(name) };
        let method = Method::new(&run.scheduled(config)).with_context(|| format!("--also {called}"))?;
        Ok(match preset {
            Some(preset) => Method { shown: preset.to_owned(), ..method },
            None => method,
        })
    };
    names.into_iter().map(method).collect()
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

/// Every optimizer that was measured, at its defaults; those that have exact rounds only in f32 and in bf16, those that have coarse
/// rounds only with each of `codecs`.
pub fn every(codecs: &[CodecName]) -> Vec<Config> {
    let configs = |row: &'static thinwire::inside::Row| -> Vec<Config> {
        let usual = Config::new(row.name);
        match (row.exact, row.coarse) {
            (Some(_), None) => {
                let exact = |codec| Config { exact_codec: Some(codec), ..usual.clone() };
                [CodecName::F32, CodecName::Bf16].map(exact).to_vec()
            }
            (None, Some(_)) => {
                // A vote has no size: nobody sends an update by it.
                let sized = codecs.iter().filter(|codec| **codec != CodecName::Vote);
                sized.map(|codec| Config { codec: Some(*codec), ..usual.clone() }).collect()
            }
            _ => vec![usual],
        }
    };
    Optimizers::all().into_iter().filter(|row| is_measured(row)).flat_map(configs).collect()
}

/// Whether anybody has measured how it learns: a comparison by time alone would say nothing of the others.
pub fn is_measured(row: &thinwire::inside::Row) -> bool {
    let settings = Config::new(row.name).decide().expect("the defaults of an optimizer");
    settings.algorithm.rank(row.coarse.unwrap_or(CodecName::F32)).is_some()
}
