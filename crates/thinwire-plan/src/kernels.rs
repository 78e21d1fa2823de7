//! The passes of a codec over a vector, and a copy beside them.

use crate::sample::vector;
use anyhow::{Result, ensure};
use cpu_time::ThreadTime;
use serde::{Deserialize, Serialize};
use std::time::Instant;
use thinwire::CodecName;
use thinwire::inside::codec::ResidualSlice;
use thinwire::inside::codec::{Codec, Fault, encoded_len};
use thinwire::inside::machine::Floats;
use thinwire::inside::machine::tiles::{Cut, Span, Threads, Vectors};
use thinwire_report::numbers::median;

/// The engine's default block.
const BLOCK: usize = 512;

/// The median of so many runs counts.
const RUNS: usize = 5;

/// Bytes of a value that a copy reads and writes.
const COPIED: f64 = 8.0;

/// A pass of a codec beside a copy, by the wall clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kernel {
    /// The codec, and the pass.
    pub name: String,
    /// Threads that shared the vector.
    pub threads: usize,
    /// Values a second.
    pub values_per_s: f64,
    /// Nominal: what is read or written once counts once.
    pub gb_per_s: f64,
    /// GB/s against a copy's, on as many threads, in the same process.
    pub ratio_to_copy: f64,
}

/// CPU seconds a value on one thread: the same clock as of whole steps, because `plan` takes these for parts of those.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CodecSpeed {
    /// Which.
    pub codec: CodecName,
    /// z = x + e, coded, and e ← what was lost.
    pub encode: f64,
    /// Added to a sum.
    pub decode_add: f64,
    /// The part of the wall clock's time in which the passes had a core: less than 1 where something else ran.
    #[serde(default = "whole", skip_serializing_if = "is_whole")]
    pub cpu_share: f64,
}

fn whole() -> f64 {
    1.0
}

fn is_whole(share: &f64) -> bool {
    *share >= 1.0
}

/// A pass of a codec over the data, and what a tile of it is decoded by.
type Pass = fn(&dyn Codec, &mut Data, &Threads) -> Result<(), Fault>;
type Decode = fn(&dyn Codec, Cut, &[u8], &mut [f32]) -> Result<(), Fault>;

/// What the kernels work on.
struct Data {
    x: Floats,
    y: Floats,
    residual: Floats,
    bytes: Vec<u8>,
}

impl Data {
    fn new(codec: &dyn Codec, values: usize) -> Data {
        let bytes = vec![0; encoded_len(codec, BLOCK, values)];
        Data { x: vector(values, 0.5), y: Floats::zeroed(values), residual: Floats::zeroed(values), bytes }
    }
}

/// Each codec's passes on `threads` threads; and a copy's GB/s.
pub fn table(values: usize, codecs: &[CodecName], threads: usize) -> Result<(f64, Vec<Kernel>)> {
    let team = Threads::new(threads)?;
    let (mut copies, mut kernels) = (Vec::new(), Vec::new());
    for name in codecs {
        let codec = &*name.codec();
        let mut data = Data::new(codec, values);
        let coded = data.bytes.len() as f64 / values as f64;
        for (what, bytes, run) in [
            ("encode", 12.0 + coded, encode as Pass),
            ("decode, add", 8.0 + coded, decode_add),
            ("decode", 4.0 + coded, decode),
        ] {
            run(codec, &mut data, &team)?; // the first touches memory
            let (mut times, mut ratios) = (Vec::new(), Vec::new());
            for _ in 0..RUNS {
                let copy = copy_seconds(&mut data, threads);
                let time = seconds(|| run(codec, &mut data, &team))?;
                copies.push(COPIED * values as f64 / copy / 1e9);
                times.push(time);
                ratios.push(bytes / time / (COPIED / copy));
            }
            let rate = values as f64 / median(&times);
            kernels.push(Kernel {
                name: format!("{name} {what}"),
                threads,
                values_per_s: rate,
                gb_per_s: rate * bytes / 1e9,
                ratio_to_copy: median(&ratios),
            });
        }
    }
    ensure!(!copies.is_empty(), "invalid --codecs: expected at least one (for example sign), found none");
    Ok((median(&copies), kernels))
}

/// How fast `codec` is on one thread.
pub fn speed(name: CodecName, values: usize) -> Result<CodecSpeed> {
    let (codec, team) = (&*name.codec(), Threads::new(1)?);
    let mut data = Data::new(codec, values);
    let (mut wall, mut cpu) = (0.0, 0.0);
    let mut of = |run: Pass| -> Result<f64> {
        run(codec, &mut data, &team)?;
        let mut times = Vec::new();
        for _ in 0..3 {
            let began = ThreadTime::now();
            wall += seconds(|| run(codec, &mut data, &team))?;
            times.push(began.elapsed().as_secs_f64());
        }
        cpu += times.iter().sum::<f64>();
        Ok(median(&times) / values as f64)
    };
    let (encode, decode_add) = (of(encode)?, of(decode_add)?);
    Ok(CodecSpeed { codec: name, encode, decode_add, cpu_share: if wall > 0.0 { (cpu / wall).min(1.0) } else { 1.0 } })
}

fn encode(codec: &dyn Codec, data: &mut Data, threads: &Threads) -> Result<(), Fault> {
    let vectors = Vectors::new([&data.x], []);
    let cut = Cut { block: BLOCK, encoded: codec.encoded_len(BLOCK) };
    let span = Span {
        range: 0..data.x.len(),
        vectors,
        residual: ResidualSlice::Wide(&mut data.residual),
        bytes: &mut data.bytes,
        cut,
    };
    threads
        .walk(span, |tile: Span<'_>, _, _| codec.encode_blocks(BLOCK, tile.vectors.read[0], tile.residual, tile.bytes))
}

fn decode_add(codec: &dyn Codec, data: &mut Data, threads: &Threads) -> Result<(), Fault> {
    unpack(codec, data, threads, |codec, cut, bytes, out| {
        codec.add_up(cut.block, &[bytes], false, 1.0, out).map_err(|(_, fault)| fault)
    })
}

fn decode(codec: &dyn Codec, data: &mut Data, threads: &Threads) -> Result<(), Fault> {
    unpack(codec, data, threads, |codec, cut, bytes, out| codec.decode_blocks(cut.block, bytes, out))
}

fn unpack(codec: &dyn Codec, data: &mut Data, threads: &Threads, decode: Decode) -> Result<(), Fault> {
    let vectors = Vectors::new([], [&mut *data.y]);
    let cut = Cut { block: BLOCK, encoded: codec.encoded_len(BLOCK) };
    let span = Span { range: 0..data.x.len(), vectors, residual: ResidualSlice::Nothing, bytes: &mut data.bytes, cut };
    threads.walk(span, |tile: Span<'_>, _, _| {
        let Vectors { write: [out, ..], .. } = tile.vectors;
        decode(codec, cut, tile.bytes, out)
    })
}

/// The library's memcpy, each thread its part in one call.
fn copy_seconds(data: &mut Data, threads: usize) -> f64 {
    let part = data.x.len().div_ceil(threads);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for (x, y) in data.x.chunks(part).zip(data.y.chunks_mut(part)) {
            scope.spawn(|| y.copy_from_slice(x));
        }
    });
    began.elapsed().as_secs_f64()
}

fn seconds<E>(work: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed().as_secs_f64())
}
