//! What PyTorch users have: `DistributedDataParallel` with AdamW, whose all-reduce runs beside backward.
//!
//! Gradients go in B buckets of 25 MiB, each as soon as backward has filled it, one after the other. With F and W for forward and
//! backward (a third and two thirds of computing), c for the all-reduce of one bucket, h hosts and l for the latency:
//!
//! ```text
//! c    = 2·(h−1)/h · bytes of a bucket / rate + 2·⌈log₂ h⌉ · l
//! step = F + max(W + c, W/B + B·c) + packing
//! ```
//!
//! The last bucket is ready when backward ends and cannot hide; if the network is slower than backward, all wait for it from the first
//! bucket on. In `bf16` gradients are cast before they are sent, as by PyTorch's `bf16_compress_hook`.

use crate::network::Network;
use thinwire::CodecName;
use thinwire::counts::Memory;

/// PyTorch's `bucket_cap_mb`, of gradients in f32.
const BUCKET: f64 = 25.0 * 1024.0 * 1024.0;

/// Of computing, what is forward: backward takes about twice as long.
const FORWARD: f64 = 1.0 / 3.0;

/// The bytes of a parameter, of its gradient, of each moment.
const FLOAT: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ddp {
    params: usize,
    workers: usize,
    hosts: usize,
    /// Of a gradient as it is sent.
    bytes: u64,
}

impl Ddp {
    pub fn new(codec: CodecName, params: usize, workers: usize, hosts: usize) -> Ddp {
        let bytes = if codec == CodecName::F32 { FLOAT } else { FLOAT / 2 };
        Ddp { params, workers, hosts, bytes }
    }

    fn buckets(&self) -> f64 {
        (FLOAT as f64 * self.params as f64 / BUCKET).ceil().max(1.0)
    }

    /// Seconds of the all-reduce of one bucket.
    fn bucket_seconds(&self, network: &Network) -> f64 {
        if self.hosts < 2 {
            return 0.0; // inside a host nothing crosses a link
        }
        let bytes = (self.bytes * self.params as u64) as f64 / self.buckets();
        let hops = 2.0 * (self.hosts as f64).log2().ceil();
        network.wire(passes(self.hosts) * bytes) + hops * (network.latency + network.message)
    }

    /// Seconds of sending that backward does not hide.
    pub fn exposed(&self, compute: f64, network: &Network) -> f64 {
        let (buckets, each, backward) = (self.buckets(), self.bucket_seconds(network), (1.0 - FORWARD) * compute);
        each.max(backward / buckets + buckets * each - backward)
    }

    /// Bytes that a worker sends in `steps` steps, on average, and those of them that leave its host.
    pub fn bytes_sent(&self, steps: u64) -> (u64, u64) {
        let vector = (self.bytes * self.params as u64) as f64 * steps as f64;
        let between = vector * passes(self.hosts) * self.hosts as f64 / self.workers as f64;
        ((vector * passes(self.workers)).round() as u64, between.round() as u64)
    }

    /// Parameters and gradients, moments, and the buckets, which are a copy of the gradients.
    pub fn memory(&self) -> Memory {
        let vector = FLOAT * self.params as u64;
        Memory { model: 2 * vector, moments: 2 * vector, beyond_adam: 0, messages: vector }
    }
}

/// How often a vector goes over a link in an all-reduce among `many`.
fn passes(many: usize) -> f64 {
    2.0 * (many as f64 - 1.0) / many as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(bandwidth: f64) -> Network {
        Network { bandwidth, framing: 1.0, latency: 0.0, message: 0.0 }
    }

    #[test]
    fn a_fast_network_hides_all_but_the_last_bucket() {
        let ddp = Ddp::new(CodecName::F32, 65_536_000, 4, 4); // ten buckets
        let all = 1.5 * 8.0 * 4.0 * 65_536_000.0 / 1e11;
        assert!((ddp.exposed(3.0, &network(1e11)) - all / 10.0).abs() < 1e-12);
    }

    #[test]
    fn a_slow_network_hides_backward() {
        let ddp = Ddp::new(CodecName::F32, 65_536_000, 4, 4);
        let all = 1.5 * 8.0 * 4.0 * 65_536_000.0 / 1e8;
        // Everything but the first bucket's part of backward is beside it.
        assert!((ddp.exposed(3.0, &network(1e8)) - (all - 2.0 * 0.9)).abs() < 1e-9);
        let half = Ddp::new(CodecName::Bf16, 65_536_000, 4, 4);
        assert!((half.exposed(3.0, &network(1e8)) - (all / 2.0 - 2.0 * 0.9)).abs() < 1e-9);
        assert_eq!(Ddp::new(CodecName::F32, 65_536_000, 4, 1).exposed(3.0, &network(1e8)), 0.0);
    }

    #[test]
    fn bytes_and_memory_are_those_of_the_vectors() {
        let ddp = Ddp::new(CodecName::F32, 1000, 8, 2);
        assert_eq!(ddp.bytes_sent(10), (70_000, 10_000));
        assert_eq!(ddp.memory().total(), 20_000);
    }
}
