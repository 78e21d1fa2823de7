//! From a resolved configuration to the parts of a worker; the only match on an optimizer's name.

use super::{Config, Freeze, Hierarchy, Name, NonFinite, Sync, Warmup};
use crate::codec::CodecName;
use crate::error::{Error, Result};
use crate::exchange::{Coding, Codings};
use crate::groups::Groups;
use crate::hosts::Hosts;
use crate::layout::{Shape, Topology};
use crate::optimizer::{Adam, Auto, Clip, EfficientAdam, Hyper, OneBitAdam, Optimizer, WarmUp, ZeroOneAdam};
use crate::schedule::{Calendar, SyncSteps, VarianceSteps};
use crate::tiles::Threads;

/// These take what [`Config::resolved`] returns, where every word they ask for is filled in.
impl Config {
    pub(crate) fn shape(&self, values: usize, workers: usize) -> Shape {
        let (block, topology) = (self.block.expect("resolved"), self.topology.expect("resolved"));
        Shape { values, block, workers, topology }
    }

    /// The hosts that a mean sees: those of the workers, or one for each.
    pub(crate) fn hosts(&self, real: &Hosts) -> Result<Hosts> {
        let workers = real.of_all().len();
        match self.hierarchy.expect("resolved") {
            Hierarchy::Hosts if real.count() == 1 && workers > 1 => {
                let accepted = format!(
                    "all {workers} workers are on one host, nothing goes between hosts; accepted here: auto, flat"
                );
                Err(Error::config("hierarchy", "hosts", accepted))
            }
            Hierarchy::Auto if real.count() == 1 => Ok(Hosts::apart(workers)),
            Hierarchy::Flat => Ok(Hosts::apart(workers)),
            Hierarchy::Auto | Hierarchy::Hosts => Ok(real.clone()),
        }
    }

    pub(crate) fn codings(&self, shape: Shape, hosts: &Hosts) -> Codings {
        let (bucket, inside) = (self.bucket.expect("resolved"), self.host_codec.expect("resolved"));
        // To a server a round is one message, and the server is a host of its own.
        let (bucket, hosts) = match shape.topology {
            Topology::Served => (usize::MAX, &Hosts::apart(shape.workers + 1)),
            _ => (bucket, hosts),
        };
        let coding = |up, down| Coding::on_hosts(shape, [inside, up, down], bucket, hosts);
        let coarse = self.codec_up.zip(self.codec_down);
        Codings {
            exact: self.exact_codec.map(|codec| coding(codec, codec)),
            coarse: coarse.map(|(up, down)| coding(up, down).keeping(self.residue.expect("resolved"))),
        }
    }

    pub(crate) fn groups(&self, values: usize) -> Result<Groups> {
        Groups::new(&self.groups, values, self.weight_decay.expect("resolved"))
    }

    pub(crate) fn threads(&self) -> Result<Threads> {
        Threads::new(self.threads.expect("resolved"))
    }

    pub(crate) fn skips_non_finite(&self) -> bool {
        self.non_finite == Some(NonFinite::Skip)
    }

    pub(crate) fn optimizer(&self, params: &[f32], workers: usize) -> Result<Box<dyn Optimizer>> {
        let (betas, eps) = (self.betas.expect("resolved"), self.eps.expect("resolved"));
        let (longer, room) = match self.name {
            Name::EfficientAdam => (1.0, 0),
            _ => ((workers as f64).sqrt(), params.len()),
        };
        let clip = self.clip.map(|limit| Clip::new(limit, limit * longer, room));
        let bias_correction = self.bias_correction.expect("resolved");
        let hyper = Hyper::new(betas, eps, bias_correction, self.groups(params.len())?, clip);
        let lossless = self.codec_up == Some(CodecName::F32) && self.codec_down == Some(CodecName::F32);
        let hyper = if lossless { hyper.lossless() } else { hyper };
        Ok(match self.name {
            Name::Adam => Box::new(Adam::new(hyper, params.len())),
            Name::OneBitAdam => {
                let lr_warmup = self.learning_rate.as_ref().map_or(0, |schedule| schedule.warmup);
                let warmup = match self.warmup.expect("resolved") {
                    Warmup::Steps(steps) => WarmUp::Steps(steps),
                    Warmup::Auto => WarmUp::Auto(Auto::new(lr_warmup, betas.1)),
                };
                Box::new(OneBitAdam::new(hyper, params.len(), warmup))
            }
            Name::ZeroOneAdam => Box::new(ZeroOneAdam::new(hyper, self.calendar(), params)),
            Name::EfficientAdam => Box::new(EfficientAdam::new(hyper, self.theta.expect("resolved"), params.len())),
        })
    }

    /// Which round each step has.
    pub(crate) fn calendar(&self) -> Calendar {
        match self.name {
            Name::Adam => Calendar::Exact,
            Name::EfficientAdam => Calendar::Coarse,
            Name::OneBitAdam => match self.warmup.expect("resolved") {
                Warmup::Steps(steps) => Calendar::OneBit { warmup: Some(steps) },
                Warmup::Auto => Calendar::OneBit { warmup: None },
            },
            Name::ZeroOneAdam => Calendar::ZeroOne { variance: self.variance_steps(), sync: self.sync_steps() },
        }
    }

    fn variance_steps(&self) -> VarianceSteps {
        match &self.variance_steps {
            Some(steps) => VarianceSteps::Custom(steps.clone()),
            None => VarianceSteps::Growing {
                kappa: self.kappa.expect("resolved"),
                gap: self.variance_gap.expect("resolved"),
                longest: self.variance_longest,
                freeze: match self.freeze.expect("resolved") {
                    Freeze::Step(step) => Some(step),
                    Freeze::Never => None,
                },
            },
        }
    }

    fn sync_steps(&self) -> SyncSteps {
        let start = self.sync_start.unwrap_or(0);
        match self.sync.expect("resolved") {
            Sync::FollowLr => SyncSteps::FollowLr {
                peak: self.learning_rate.as_ref().expect("resolved").peak,
                start,
                longest: self.sync_longest.expect("resolved"),
            },
            Sync::Doubling => SyncSteps::Doubling {
                start,
                every: self.sync_every.expect("resolved"),
                longest: self.sync_longest.expect("resolved"),
            },
            Sync::Every => SyncSteps::Every { start, gap: self.sync_every.expect("resolved") },
            Sync::Custom => SyncSteps::Custom(self.sync_steps.clone().expect("resolved")),
        }
    }
}
