//! What was decided: every option has its value.
//!
//! [`Config`] is what was asked for; [`Config::decide`] makes [`Settings`] of it, once, and nothing behind it asks what was not given.
//! First the optimizer decides its own options, and applies its preset; then the options that all share get their values.

mod build;
mod check;
mod parse;

use crate::codec::{CodecName, Dither, Keeping, Precision};
use crate::config::{Config, Hierarchy, Name, NonFinite, Outlier};
use crate::error::{Error, Result};
use crate::exchange::layout::Topology;
use crate::machine::Group;
use crate::optim::Hyper;
use crate::optim::table::{Algorithm, Optimizers};
use crate::schedule::LearningRate;
use std::sync::Arc;

/// Every option, decided. What is an `Option` here may be absent: a run without a clip has no limit.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which optimizer.
    pub name: Name,
    /// It, with its own options.
    pub algorithm: Arc<dyn Algorithm>,
    pub(crate) betas: (f64, f64),
    pub(crate) eps: f64,
    pub(crate) weight_decay: f64,
    pub(crate) bias_correction: bool,
    pub(crate) clip: Option<f64>,
    /// None for an optimizer that has no exact rounds.
    pub(crate) exact: Option<CodecName>,
    /// None for an optimizer that has no coarse rounds.
    pub(crate) coarse: Option<Coarse>,
    pub(crate) block: usize,
    pub(crate) topology: Topology,
    pub(crate) hierarchy: Hierarchy,
    pub(crate) host_codec: CodecName,
    /// Whether workers count by their weights.
    pub weighted: bool,
    pub(crate) non_finite: NonFinite,
    /// What is done with outliers.
    pub outlier: Outlier,
    /// An outlier is more than so many times as long as the median.
    pub outlier_factor: f64,
    pub(crate) threads: usize,
    pub(crate) bucket: usize,
    pub(crate) learning_rate: Option<LearningRate>,
    pub(crate) groups: Vec<Group>,
}

/// How coarse rounds are coded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coarse {
    pub up: CodecName,
    pub down: CodecName,
    pub residual: Precision,
    /// κ of the way up.
    pub feedback_up: f64,
    /// κ of the way down.
    pub feedback_down: f64,
}

impl Coarse {
    pub fn keeping(self, block: usize) -> Keeping {
        Keeping { precision: self.residual, block, up: self.feedback_up as f32, down: self.feedback_down as f32 }
    }

    /// What is made up where κ = 0, up and down.
    pub fn dithers(self, algorithm: &dyn Algorithm) -> [Option<Dither>; 2] {
        let [up, down] = algorithm.dithers(self.up, self.down);
        [up.filter(|_| self.feedback_up == 0.0), down.filter(|_| self.feedback_down == 0.0)]
    }

    fn loses_nothing(self) -> bool {
        self.up == CodecName::F32 && self.down == CodecName::F32
    }
}

impl Config {
    /// Gives every option its value; an error names the one that does not fit. Hidden, because its type is part of the inside.
    #[doc(hidden)]
    pub fn decide(&self) -> Result<Settings> {
        let mut asked = self.clone();
        let row = Optimizers::row(asked.name);
        check::ownership(&asked, row)?;
        let algorithm: Arc<dyn Algorithm> = row.decide(&mut asked)?.into();
        let only_coarse = row.if_coded.is_some() && asked.is_coded();
        if let (Some(codec), false) = (asked.exact_codec, algorithm.has_exact_rounds()) {
            let problem = format!("{} has no exact rounds with these options; leave it out", asked.name);
            return Err(Error::config("exact_codec", codec, problem));
        }
        let mut settings = Settings {
            name: asked.name,
            algorithm: Arc::clone(&algorithm),
            betas: asked.betas.unwrap_or(Hyper::BETAS),
            eps: asked.eps.unwrap_or(1e-8),
            weight_decay: asked.weight_decay.unwrap_or(0.01),
            bias_correction: asked.bias_correction.unwrap_or(true),
            clip: asked.clip,
            exact: row
                .exact
                .filter(|_| !only_coarse && algorithm.has_exact_rounds())
                .map(|usual| asked.exact_codec.unwrap_or(usual)),
            coarse: row.coarse.or(row.if_coded.filter(|_| only_coarse)).map(|usual| {
                let (both, feedback) = (asked.codec.unwrap_or(usual), asked.feedback.unwrap_or(1.0));
                Coarse {
                    up: asked.codec_up.unwrap_or(both),
                    down: asked.codec_down.unwrap_or(both),
                    residual: asked.residual.unwrap_or_default(),
                    feedback_up: asked.feedback_up.unwrap_or(feedback),
                    feedback_down: asked.feedback_down.unwrap_or(feedback),
                }
            }),
            block: asked.block.unwrap_or(512),
            topology: asked.topology.unwrap_or_default(),
            hierarchy: asked.hierarchy.unwrap_or_default(),
            host_codec: asked.host_codec.unwrap_or(CodecName::F32),
            weighted: asked.weighted.unwrap_or(false),
            non_finite: asked.non_finite.unwrap_or_default(),
            outlier: asked.outlier.unwrap_or_default(),
            outlier_factor: asked.outlier_factor.unwrap_or(100.0),
            threads: asked.threads.unwrap_or(1),
            bucket: asked.bucket.unwrap_or(4 << 20),
            learning_rate: asked.learning_rate,
            groups: asked.groups,
        };
        settings.check()?;
        if settings.votes_up() && settings.hierarchy == Hierarchy::Auto {
            settings.hierarchy = Hierarchy::Flat;
        }
        Ok(settings)
    }

    /// The same configuration with every option that counts written out.
    pub fn resolved(&self) -> Result<Config> {
        Ok(self.decide()?.config())
    }
}

impl Settings {
    /// Whether workers vote: on two levels the hosts would vote on votes of their workers.
    fn votes_up(&self) -> bool {
        self.coarse.is_some_and(|coarse| coarse.up == CodecName::Vote)
    }

    /// As a configuration with every option that counts written out: what a run records.
    pub fn config(&self) -> Config {
        Config {
            betas: Some(self.betas),
            eps: Some(self.eps),
            weight_decay: Some(self.weight_decay),
            bias_correction: Some(self.bias_correction),
            clip: self.clip,
            codec_up: self.coarse.map(|coarse| coarse.up),
            codec_down: self.coarse.map(|coarse| coarse.down),
            residual: self.coarse.map(|coarse| coarse.residual),
            feedback_up: self.coarse.map(|coarse| coarse.feedback_up),
            feedback_down: self.coarse.map(|coarse| coarse.feedback_down),
            exact_codec: self.exact,
            block: Some(self.block),
            topology: Some(self.topology),
            hierarchy: Some(self.hierarchy),
            host_codec: Some(self.host_codec),
            weighted: Some(self.weighted),
            non_finite: Some(self.non_finite),
            outlier: Some(self.outlier),
            outlier_factor: Some(self.outlier_factor),
            own: self.algorithm.options(),
            threads: Some(self.threads),
            bucket: Some(self.bucket),
            learning_rate: self.learning_rate.clone(),
            groups: self.groups.clone(),
            ..Config::new(self.name)
        }
    }
}
