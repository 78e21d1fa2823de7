//! Which methods a situation asks for, what packing costs them, and what each comes to.

use crate::bench::Benched;
use crate::cost::{Estimate, Packing};
use crate::methods::{self, Method};
use crate::packing;
use crate::question::{Beside, Question};
use crate::situation::Situation;
use anyhow::Result;
use thinwire::{CodecName, Config};
use thinwire_report::{BASELINE, numbers};

/// Adam first, then what was given, then the others; and which of them the others are held to.
pub fn methods(situation: &Situation, codecs: &[CodecName]) -> Result<(Vec<Method>, usize)> {
    let mut methods = methods::of(&situation.run, codecs)?;
    for also in methods::also(&situation.run, &situation.also)? {
        if !methods.iter().any(|method| method.config == also.config) {
            methods.push(also);
        }
    }
    let Some(given) = &situation.given else { return Ok((methods, 0)) };
    let yours = Method { shown: format!("yours: {}", given.shown), ..given.clone() };
    let base = match methods.iter().position(|method| method.config == given.config) {
        Some(same) => {
            methods[same] = yours;
            same
        }
        None => {
            methods.insert(1, yours);
            1
        }
    };
    Ok((methods, base))
}

/// What packing costs, and a note that says where that is from.
pub fn packing(
    question: &Question,
    benched: Option<Benched>,
    situation: &Situation,
    methods: &[Method],
    beside: Beside<'_>,
) -> Result<(Packing, String)> {
    if let (Some(benched), Some(path)) = (benched, &question.bench) {
        let clock = match benched.clock.as_str() {
            "cpu" => "",
            _ => "; its codecs are by the wall clock, bench again to have one clock",
        };
        let note = format!("packing as benched on {} cores ({}){clock}", benched.cores, path.display());
        return Ok((Packing::Measured { steps: benched.steps, codecs: benched.codecs }, note));
    }
    if question.without_packing {
        let note = "packing takes no time, and a message costs only its latency and its bytes";
        return Ok((Packing::Nothing, note.to_owned()));
    }
    if let Some(device) = &situation.device {
        let rate = |bytes: f64| numbers::bytes(bytes) + "/s";
        let note = format!(
            "packing by arithmetic for {}: the bytes that a step moves at most, {} through its memory and {} over PCIe, without launches; \
             no GPU has measured it (--device cpu measures this machine's CPU)",
            device.name,
            rate(device.memory_bytes_per_second),
            rate(device.pcie_bytes_per_second)
        );
        return Ok((Packing::Device(device.clone()), note));
    }
    (beside.told)("measuring packing: a few steps of every optimizer");
    let note = "packing measured here and now, on this machine's CPU (--device a100 and others: on a GPU)";
    Ok((packing::measure(methods, situation.params, &situation.place)?, note.to_owned()))
}

/// AdamW under PyTorch's DDP, in f32 and in bf16: what most people have.
pub fn baselines(situation: &Situation, packing: &Packing) -> Result<Vec<Estimate>> {
    let baseline = |codec| Config { exact_codec: Some(codec), ..Config::new(BASELINE) };
    let configs = [CodecName::F32, CodecName::Bf16].map(baseline);
    let methods = configs.map(|config| Method::new(&situation.run.scheduled(config)));
    let estimates = all(situation, methods.into_iter().collect::<Result<_>>()?, packing)?;
    Ok(estimates.into_iter().map(|estimate| estimate.under_ddp(&situation.place, packing)).collect())
}

pub fn all(situation: &Situation, methods: Vec<Method>, packing: &Packing) -> Result<Vec<Estimate>> {
    let Situation { params, run, place, compute, .. } = situation;
    methods.into_iter().map(|method| Estimate::new(method, *params, run.steps, *compute, place, packing)).collect()
}
