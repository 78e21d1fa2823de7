//! Packing, measured on this machine for the methods of one plan.

use crate::cost::{Packing, Place};
use crate::kernels::{self, CodecSpeed};
use crate::methods::Method;
use crate::steps;
use anyhow::Result;

/// Values of the vectors whose packing is measured. More would be nearer to a large model, and take longer: 10M cost a tenth to a
/// third more a value than 2M where it was tried (benchmarks/runs/2026-11-16-plan-sizes).
const VALUES: usize = 4_000_000;

/// What packing costs for each of `methods`, where workers are placed as in `place`.
pub fn measure(methods: &[Method], params: usize, place: &Place) -> Result<Packing> {
    let values = params.clamp(1, VALUES);
    // Two hosts with as many workers on one as there are, up to two: more change little.
    let hosts: &[usize] = match (place.workers(), place.host_count()) {
        (1, _) => &[0],
        (workers, hosts) if hosts > 1 && workers > hosts => &[0, 0, 1, 1],
        _ => &steps::PAIR,
    };
    let values = if hosts.len() > 2 { values.div_ceil(2) } else { values };
    let (mut costs, mut codecs) = (Vec::new(), Vec::<CodecSpeed>::new());
    for Method { config, .. } in methods {
        costs.extend(steps::measure(config, hosts, values)?);
        for codec in [config.exact_codec, config.codec_up, config.codec_down].into_iter().flatten() {
            if !codecs.iter().any(|speed| speed.codec == codec) {
                codecs.push(kernels::speed(codec, values.min(500_000))?);
            }
        }
    }
    Ok(Packing::Measured { steps: costs, codecs })
}
