//! From settings to the parts of a worker.

use super::{Coarse, Settings};
use crate::codec::{CodecName, Dither};
use crate::config::{Hierarchy, NonFinite};
use crate::error::{Error, Result};
use crate::exchange::hosts::Hosts;
use crate::exchange::layout::{Shape, Topology};
use crate::exchange::{Owner, RoundLayout, RoundLayouts};
use crate::machine::{Device, Groups, Host, Keep, Machine, Pass, Resident, Stripes, Threads};
use crate::optim::{Clip, Hyper, Optimizer};
use std::sync::Arc;

impl Settings {
    pub(crate) fn shape(&self, values: usize, workers: usize) -> Shape {
        Shape { values, block: self.block, workers, topology: self.topology }
    }

    /// The hosts that a mean sees: those of the workers, or one for each.
    pub(crate) fn hosts(&self, real: &Hosts) -> Result<Hosts> {
        let workers = real.of_all().len();
        match self.hierarchy {
            Hierarchy::Hosts if real.count() == 1 && workers > 1 => {
                let problem = format!(
                    "all {workers} workers are on one host, nothing goes between hosts; expected auto or flat here"
                );
                Err(Error::config("hierarchy", "hosts", problem))
            }
            Hierarchy::Auto if real.count() == 1 => Ok(Hosts::apart(workers)),
            Hierarchy::Flat => Ok(Hosts::apart(workers)),
            Hierarchy::Auto | Hierarchy::Hosts => Ok(real.clone()),
        }
    }

    pub(crate) fn codings(&self, shape: Shape, hosts: &Hosts) -> RoundLayouts {
        let (bucket, inside) = (self.bucket, self.host_codec);
        // To a server a round is one message, and the server is a host of its own.
        let (bucket, hosts) = match shape.topology {
            Topology::Served => (usize::MAX, &Hosts::apart(shape.workers + 1)),
            _ => (bucket, hosts),
        };
        let coding = |up, down| RoundLayout::on_hosts(shape, [inside, up, down], bucket, hosts);
        let whole = |coarse: Coarse| {
            let coding = coding(coarse.up, coarse.down).keeping(coarse.keeping(self.block));
            coding.dithering(coarse.dithers(&*self.algorithm)).late(self.algorithm.delays())
        };
        RoundLayouts {
            exact: self.exact.map(|codec| coding(codec, codec)),
            coarse: self.coarse.map(whole),
            parts: match (self.coarse, self.algorithm.parts()) {
                (None, _) | (_, 1) => Vec::new(),
                (Some(coarse), parts) => {
                    let stripes = Stripes::new(shape.values, shape.block, parts);
                    (0..parts).map(|part| whole(coarse).of_part(stripes.of(part))).collect()
                }
            },
        }
    }

    pub(crate) fn groups(&self, values: usize) -> Result<Groups> {
        Groups::new(&self.groups, values, self.weight_decay)
    }

    /// Whether a round keeps its mean until its norm is known.
    pub(crate) fn keeps(&self) -> bool {
        let clips_mean = self.exact.is_some() && self.algorithm.clips_mean();
        self.clip.is_some() && (clips_mean || self.algorithm.keeps_mean())
    }

    /// The memory of a worker, in the host.
    pub(crate) fn host(&self, values: usize, groups: Arc<Groups>) -> Result<Machine> {
        let threads = Threads::new(self.threads)?;
        Ok(Machine::Host(Host::new(values, groups, self.algorithm.vectors(), self.keeps(), threads)))
    }

    /// What a run can ask of a device: the names of passes and sources, and codecs. `is_flat`: no worker shares a host.
    pub fn needs(&self, is_flat: bool) -> (Vec<&'static str>, Vec<CodecName>) {
        let mut passes = self.algorithm.passes().to_vec();
        passes.extend(self.keeps().then_some(Keep::NAME));
        let dithers = self.coarse.map_or([None; 2], |coarse| coarse.dithers(&*self.algorithm));
        passes.extend(dithers.into_iter().flatten().map(Dither::name));
        let coarse = self.coarse.into_iter().flat_map(|coarse| [coarse.up, coarse.down]);
        let inside = (!is_flat).then_some(self.host_codec);
        (passes, self.exact.into_iter().chain(coarse).chain(inside).collect())
    }

    /// The memory of a worker on a device, which must have all that a run can ask for.
    pub(crate) fn resident(&self, device: Box<dyn Device>, groups: Arc<Groups>, is_flat: bool) -> Result<Machine> {
        let (passes, codecs) = self.needs(is_flat);
        if self.weighted {
            return Err(Error::Device { device: device.name(), problem: "it has no weighted means".to_owned() });
        }
        if self.algorithm.parts() > 1 {
            return Err(Error::Device { device: device.name(), problem: "it has no means of `parts`".to_owned() });
        }
        let resident = Resident::new(device, groups, self.algorithm.vectors(), self.keeps(), &passes, &codecs)?;
        Ok(Machine::Device(resident))
    }

    /// The server's half of the means of `values` parameters; the topology is `central`.
    pub fn owner(&self, values: usize) -> Result<Owner> {
        self.check_served()?;
        self.algorithm.fits(values, true)?;
        let shape = Shape { topology: Topology::Served, ..self.shape(values, 1) };
        let codings = self.codings(shape, &Hosts::apart(1));
        Ok(Owner::new(shape, codings, Threads::new(self.threads)?).weighing(self.weighted))
    }

    /// An error if a server cannot take the means: it knows steps of one round, or of none.
    pub(crate) fn check_served(&self) -> Result<()> {
        self.algorithm.is_served()
    }

    pub(crate) fn skips_non_finite(&self) -> bool {
        self.non_finite == NonFinite::Skip
    }

    pub(crate) fn optimizer(&self, workers: usize, parameters: usize, groups: usize) -> Box<dyn Optimizer> {
        let own_limit = |limit: f64| limit * self.algorithm.own_clip(workers);
        let hyper = Hyper {
            betas: self.betas,
            eps: self.eps,
            bias_correction: self.bias_correction,
            clip: self.clip.map(|limit| Clip::new(limit, own_limit(limit))),
            lossless: self.coarse.is_some_and(Coarse::loses_nothing),
            highest: self.learning_rate.as_ref().map_or(0.0, |schedule| schedule.peak),
            groups,
            parameters,
            block: self.block,
        };
        self.algorithm.build(hyper)
    }
}
