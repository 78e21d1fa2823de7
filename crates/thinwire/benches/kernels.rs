//! The kernels against this machine's memory bandwidth: `cargo bench --bench kernels [-- MILLIONS OF VALUES] [CODECS]`. With names of
//! codecs (`16 uniform4 f16`) the passes of these alone, on one thread.
//!
//! Bandwidth drifts by half on shared machines, so every kernel runs right after a copy, round after round, and what counts is
//! the ratio: the median over the rounds of (kernel's GB/s) / (memcpy's GB/s on as many threads). Time is CPU time over the threads, so
//! that waiting for a core does not count. Traffic is nominal: every value read or written once counts once. A copy moves 8 bytes a
//! value, a triad 12.

use cpu_time::ProcessTime;
use std::hint::black_box;
use std::ops::DerefMut;
use thinwire::CodecName;
use thinwire::inside::codec::ResidualSlice;
use thinwire::inside::codec::{self, Codec, Fault};
use thinwire::inside::kernel::{self, Level, Stream, update};
use thinwire::inside::machine::Floats;
use thinwire::inside::machine::tiles::{Cut, Span, Threads, Vectors};

const ROUNDS: usize = 9;
const BLOCK: usize = 512;
const COPY_BYTES: f64 = 8.0;

/// A kernel, the bytes it moves a value (of a payload's beside), and what it does on some threads.
struct Case {
    name: &'static str,
    bytes: f64,
    run: fn(&mut Data, &Threads),
}

/// Vectors on huge pages, or on ordinary ones.
type Vector = Box<dyn DerefMut<Target = [f32]>>;

struct Data {
    a: Vector,
    b: Vector,
    c: Vector,
    d: Vector,
    e: Vector,
    /// Two values in each.
    halves: Vector,
    codec: Box<dyn Codec>,
    bits: Vec<u8>,
}

impl Data {
    fn new(len: usize, vector: fn(usize) -> Vector) -> Data {
        let random = || random(vector(len));
        let (codec, bits, halves) = (CodecName::Sign.codec(), Vec::new(), vector(len / 2));
        let data = Data { a: random(), b: random(), c: random(), d: random(), e: random(), halves, codec, bits };
        data.with(CodecName::Sign)
    }

    /// To be coded by `name`.
    fn with(self, name: CodecName) -> Data {
        let codec = name.codec();
        let bits = vec![0; codec::encoded_len(&*codec, BLOCK, self.a.len())];
        Data { codec, bits, ..self }
    }

    fn cut(&self) -> Cut {
        Cut { block: BLOCK, encoded: self.codec.encoded_len(BLOCK) }
    }

    /// The bytes of a value's share of the payload.
    fn coded(&self) -> f64 {
        self.codec.encoded_len(BLOCK) as f64 / BLOCK as f64
    }
}

const K: update::Scalars = update::Scalars {
    beta1: (0.9, 0.1),
    beta2: (0.999, 0.001),
    rate: 1e-3,
    decay: 0.9999,
    weight_decay: 0.0,
    correction: 1.5,
    eps: 1e-8,
    shrink: 1.0,
    limit: update::LIMIT,
    jump: 0.1,
    moves: true,
    since: update::Since::NOTHING,
    sent: update::Sent::NOTHING,
    outer: update::OuterStep::NOTHING,
};

/// The passes of a codec.
const PASSES: [Case; 5] = [
    Case {
        name: "encode with feedback",
        bytes: 12.0,
        run: |data, threads| {
            let (cut, residual) = (data.cut(), ResidualSlice::Wide(&mut data.e));
            encode(&*data.codec, cut, &data.a, residual, &mut data.bits, threads);
        },
    },
    Case {
        name: "the same, residue in bf16",
        bytes: 8.0,
        run: |data, threads| {
            let residual = ResidualSlice::Half(bytemuck::cast_slice_mut(&mut data.halves));
            let cut = Cut { block: BLOCK, encoded: data.codec.encoded_len(BLOCK) };
            encode(&*data.codec, cut, &data.a, residual, &mut data.bits, threads);
        },
    },
    Case { name: "decode and accumulate", bytes: 8.0, run: decode_add },
    Case { name: "decode", bytes: 4.0, run: decode },
    Case { name: "decode past the caches", bytes: 4.0, run: decode_streaming },
];

const CASES: [Case; 6] = [
    Case {
        name: "triad",
        bytes: 12.0,
        run: |data, threads| {
            let vectors = Vectors::new([&data.a, &data.b], [&mut data.c]);
            threads.each(data.a.len(), vectors, |_, Vectors { read: [a, b, ..], write: [c, ..] }| {
                c.iter_mut().zip(a).zip(b).for_each(|((c, a), b)| *c = a + 0.5 * b);
            });
        },
    },
    Case {
        name: "adam step",
        bytes: 28.0,
        run: |data, threads| {
            let vectors = Vectors::new([&data.a], [&mut data.b, &mut data.c, &mut data.d]);
            threads.each(data.a.len(), vectors, |_, Vectors { read: [g, ..], write: [m, v, x, ..] }| {
                update::adam(&K, g, m, v, x);
            });
        },
    },
    Case {
        name: "1-bit adam: m and x from the mean",
        bytes: 20.0,
        run: |data, threads| {
            let vectors = Vectors::new([&data.a, &data.b], [&mut data.c, &mut data.d]);
            threads.each(data.a.len(), vectors, |_, Vectors { read: [mean, v, ..], write: [m, x, ..] }| {
                update::descend(&K, mean, v, m, x);
            });
        },
    },
    Case {
        name: "0/1 adam: local step",
        bytes: 32.0,
        run: |data, threads| {
            let vectors = Vectors::new([&data.a, &data.b], [&mut data.c, &mut data.d, &mut data.e]);
            threads.each(data.a.len(), vectors, |_, Vectors { read: [g, v, ..], write: [m, u, x, ..] }| {
                update::local(&K, g, v, m, u, x);
            });
        },
    },
    Case {
        name: "efficient-adam: own update",
        bytes: 24.0,
        run: |data, threads| {
            let vectors = Vectors::new([&data.a], [&mut data.b, &mut data.c, &mut data.d]);
            threads.each(data.a.len(), vectors, |_, Vectors { read: [g, ..], write: [m, v, z, ..] }| {
                update::own_update(&K, g, m, v, z);
            });
        },
    },
    Case {
        name: "is it finite",
        bytes: 4.0,
        run: |data, threads| {
            let vectors = Vectors::new([&data.a], []);
            threads.each(data.a.len(), vectors, |_, Vectors { read: [a, ..], .. }| {
                black_box(kernel::reduce::all_finite(a));
            });
        },
    },
];

fn encode(codec: &dyn Codec, cut: Cut, x: &[f32], residual: ResidualSlice<'_>, bytes: &mut [u8], threads: &Threads) {
    let vectors = Vectors::new([x], []);
    let span = Span { range: 0..x.len(), vectors, residual, bytes, cut };
    let done = threads
        .walk(span, |tile: Span<'_>, _, _| codec.encode_blocks(BLOCK, tile.vectors.read[0], tile.residual, tile.bytes));
    done.expect("finite values");
}

fn decode_add(data: &mut Data, threads: &Threads) {
    unpack(data, threads, |codec, bytes, sum, _| {
        codec.add_up(BLOCK, &[bytes], false, 1.0, sum).map_err(|(_, fault)| fault)
    });
}

fn decode(data: &mut Data, threads: &Threads) {
    unpack(data, threads, |codec, bytes, out, _| codec.decode_blocks(BLOCK, bytes, out));
}

fn decode_streaming(data: &mut Data, threads: &Threads) {
    unpack(data, threads, |codec, bytes, out, stream| codec.decode_streaming(BLOCK, bytes, out, stream));
}

type Decode = for<'a> fn(&dyn Codec, &[u8], &'a mut [f32], &Stream<'a>) -> Result<(), Fault>;

fn unpack(data: &mut Data, threads: &Threads, decode: Decode) {
    let (cut, codec, range) = (data.cut(), &*data.codec, 0..data.a.len());
    let vectors = Vectors::new([], [&mut *data.d]);
    let span = Span { range, vectors, residual: ResidualSlice::Nothing, bytes: &mut data.bits, cut };
    let done = threads.walk(span, |tile: Span<'_>, _, stream| {
        let Vectors { write: [out, ..], .. } = tile.vectors;
        decode(codec, tile.bytes, out, stream)
    });
    done.expect("what was encoded");
}

/// Values in [0, 1): variances must not be negative.
fn random(mut vector: Vector) -> Vector {
    let mut state = 1u32;
    for value in vector.iter_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *value = (state >> 8) as f32 / (1 << 24) as f32;
    }
    vector
}

/// The library's memcpy, each thread its part in one call.
fn copy_seconds(data: &mut Data, threads: usize) -> f64 {
    let part = data.a.len().div_ceil(threads);
    let start = ProcessTime::now();
    std::thread::scope(|scope| {
        for (a, b) in data.a.chunks(part).zip(data.b.chunks_mut(part)) {
            scope.spawn(|| b.copy_from_slice(a));
        }
    });
    start.elapsed().as_secs_f64() / threads as f64
}

fn seconds(case: &Case, data: &mut Data, threads: &Threads, count: usize) -> f64 {
    let start = ProcessTime::now();
    (case.run)(data, threads);
    start.elapsed().as_secs_f64() / count as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let millions = std::env::args().filter_map(|arg| arg.parse::<usize>().ok()).next().unwrap_or(64);
    let names = std::env::args().filter_map(|arg| arg.parse().ok()).collect::<Vec<CodecName>>();
    let len = millions << 20;
    println!("{millions} Mi values, blocks of {BLOCK}, {ROUNDS} rounds; kernels for {:?}", kernel::level());
    let data = Data::new(len, |len| Box::new(Floats::zeroed(len)));
    if names.is_empty() { all(data, len) } else { some(data, &names) }
}

/// The passes of these codecs, at each level.
fn some(mut data: Data, names: &[CodecName]) {
    for name in names {
        data = data.with(*name);
        let mut alone = Vec::new();
        for level in [Level::Avx512, Level::Avx2, Level::Portable] {
            println!("\n{name}, {:?}, threads: 1", kernel::use_level(level));
            let coded = data.coded();
            report(&mut data, &PASSES, coded, 1, &mut alone);
        }
    }
}

/// Every kernel, with the codec `sign`.
fn all(mut data: Data, len: usize) {
    let mut alone = [Vec::new(), Vec::new()];
    let mut report_all = |data: &mut Data, pages, twins, count| {
        println!("\n{pages}{twins}, threads: {count}");
        report(data, &PASSES, data.coded(), count, &mut alone[0]);
        report(data, &CASES, 0.0, count, &mut alone[1]);
    };
    for count in [1, 2] {
        report_all(&mut data, "Huge pages", "", count);
    }
    kernel::use_level(Level::Portable);
    report_all(&mut data, "Huge pages", ", the portable twins", 1);
    kernel::use_level(Level::Avx512);
    drop(data);
    let mut data = Data::new(len, |len| Box::new(vec![0.0; len]));
    report_all(&mut data, "Ordinary pages (where the system gives no others unasked)", "", 1);
}

/// `extra` bytes a value are moved beside those that the cases name.
fn report(data: &mut Data, cases: &[Case], extra: f64, count: usize, alone: &mut Vec<f64>) {
    let (len, threads) = (data.a.len() as f64, &Threads::new(count).expect("threads"));
    println!("{:<34} {:>8} {:>8} {:>15} {:>15}", "kernel", "ms", "GB/s", "ratio to copy", "to first table");
    let mut copies = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        seconds(case, data, threads, count);
        let bytes = case.bytes + extra;
        let (mut ratios, mut times) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            (PASSES[0].run)(data, threads); // valid bits, and no kernel finds its vectors in the cache
            let copy = copy_seconds(data, count);
            let time = seconds(case, data, threads, count);
            copies.push(copy);
            times.push(time);
            ratios.push(bytes / time / (COPY_BYTES / copy));
        }
        let time = median(times);
        if alone.len() <= i {
            alone.push(time);
        }
        let (ratio, gain) = (median(ratios), alone[i] / time);
        println!("{:<34} {:>8.1} {:>8.1} {ratio:>15.2} {gain:>15.2}", case.name, time * 1e3, bytes * len / time / 1e9);
    }
    let copy = median(copies);
    println!("{:<34} {:>8.1} {:>8.1}", "copy", copy * 1e3, COPY_BYTES * len / copy / 1e9);
}
