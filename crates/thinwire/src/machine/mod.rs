//! Where a worker's vectors live, and the passes over them.
//!
//! An optimizer never touches a vector. It names *passes*: a [`Source`] makes the vector that is averaged, a [`Pass`] does something
//! with a gradient or with a mean. Each is a type of no size, declared in the optimizer's file beside its equation, and its body is one
//! call of a [`kernel`](crate::kernel). The machine knows the rest: parameter groups, gradients in pieces, threads, and tiles that
//! stay in the first-level cache while packing or unpacking is fused with the pass.
//!
//! What crosses the border to [`exchange`](crate::exchange) is bytes of payloads, whose format is fixed to the bit. So the protocol of a
//! mean does not know where vectors live: it calls [`Machine::pack`], [`Machine::add_up`], [`Machine::serve`], [`Machine::unpack`] and
//! [`Machine::take_back`]. There is one machine today, the host's memory; one elsewhere would look its loops up by the names of the
//! passes, and would also need what optimizers and workers call: passes on a gradient, norms and sums, the state.

mod floats;
mod gradient;
mod groups;
mod jumps;
mod residual;
mod step;
mod sum;
pub mod tiles;

pub use floats::Floats;
pub use gradient::{Gradient, Pieces};
pub use groups::{Group, Groups};
pub use residual::Residual;
pub use step::Step;
pub(crate) use sum::{Refused, Sum};
pub use tiles::{Read, Threads, Write};

use crate::codec::{Codec, Fault, Owed, Precision};
use crate::error::Result;
use crate::kernel::reduce;
use crate::kernel::update::Scalars;
use crate::state::{Entry, Share};
use jumps::FirstJump;
use std::ops::Range;
use std::sync::Arc;
use tiles::{Cut, Span, TILE, Vectors};

/// A vector of the model's length, by its place among those that a machine keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector(usize);

impl Vector {
    /// x: the caller's parameters.
    pub const PARAMS: Vector = Vector(0);

    /// Where the mean of an exact round is kept until its norm is known: [`Keep`].
    pub const KEPT: Vector = Vector(1);

    /// The i-th of the optimizer's own.
    pub const fn own(i: usize) -> Vector {
        assert!(i + 2 < MOST, "more vectors than a machine keeps");
        Vector(i + 2)
    }
}

/// Vectors that a machine keeps at most, those of the caller included.
const MOST: usize = 10;

/// A loop over all parameters that has a name: what is done with a gradient, or with a mean.
///
/// A machine in other memory has a loop of its own under the same name, with the same bits.
pub trait Pass: Sync {
    const NAME: &'static str;
    /// At most four of each; none is in both.
    const READS: &'static [Vector] = &[];
    const WRITES: &'static [Vector];
    /// Whether the pass is nothing but `WRITES[0] ← input`: then a mean is decoded to where it goes.
    const STORES: bool = false;

    /// The loop over some values, all of one parameter group. `input` is the gradient, or the mean. Returns the first value that the
    /// pass moved farther than [`Scalars::jump`], if it looks for one.
    fn run(k: &Scalars, input: &[f32], read: Read<'_>, write: Write<'_>) -> Option<usize>;
}

/// A loop with a name that makes the vector z, of which the mean is taken.
pub trait Source: Sync {
    const NAME: &'static str;
    const READS: &'static [Vector] = &[];
    const WRITES: &'static [Vector] = &[];
    /// Whether z is there already, and need not be made.
    const LIES: Lies = Lies::Nowhere;

    /// The loop over some values, all of one parameter group; `g` is the gradient, or empty where the step has none.
    fn fill(k: &Scalars, g: &[f32], read: Read<'_>, write: Write<'_>, z: &mut [f32]);
}

/// Where the vector of a [`Source`] lies before it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    Nowhere,
    /// It is the gradient.
    InGradient,
    /// It is the first of the vectors that the source reads.
    InFirst,
}

/// z = g.
pub struct OfGradient;

impl Source for OfGradient {
    const NAME: &'static str = "gradient";
    const LIES: Lies = Lies::InGradient;

    fn fill(_: &Scalars, _: &[f32], _: Read<'_>, _: Write<'_>, _: &mut [f32]) {}
}

/// z = x.
pub struct OfParams;

impl Source for OfParams {
    const NAME: &'static str = "params";
    const READS: &'static [Vector] = &[Vector::PARAMS];
    const LIES: Lies = Lies::InFirst;

    fn fill(_: &Scalars, _: &[f32], _: Read<'_>, _: Write<'_>, _: &mut [f32]) {}
}

/// The mean is kept for later: clipping needs its norm before it can be used.
pub struct Keep;

impl Pass for Keep {
    const NAME: &'static str = "keep";
    const WRITES: &'static [Vector] = &[Vector::KEPT];
    const STORES: bool = true;

    fn run(_: &Scalars, input: &[f32], _: Read<'_>, [kept, ..]: Write<'_>) -> Option<usize> {
        kept.copy_from_slice(input);
        None
    }
}

/// x ← the mean.
pub struct Replace;

impl Pass for Replace {
    const NAME: &'static str = "replace";
    const WRITES: &'static [Vector] = &[Vector::PARAMS];
    const STORES: bool = true;

    fn run(_: &Scalars, input: &[f32], _: Read<'_>, [x, ..]: Write<'_>) -> Option<usize> {
        x.copy_from_slice(input);
        None
    }
}

/// The host's memory, and the threads that pass over it.
pub struct Machine {
    len: usize,
    threads: Threads,
    groups: Arc<Groups>,
    /// [`Vector::KEPT`], then the optimizer's own.
    vectors: Vec<Floats>,
    /// e: what this worker's payloads have not said yet; 0 in blocks that another worker of its host relays.
    up: Residual,
    /// E: what the means of the blocks it owns have not said yet.
    down: Residual,
    /// One for each tile: a sum over all values is the sum of these, in order.
    sums: Vec<f64>,
    jump: FirstJump,
}

/// How the bytes of a payload are cut and read.
#[derive(Clone, Copy)]
pub struct Coded<'a> {
    pub codec: &'a dyn Codec,
    /// Values in a block.
    pub block: usize,
}

impl Coded<'_> {
    fn cut(self) -> Cut {
        Cut { block: self.block, encoded: self.codec.encoded_len(self.block) }
    }
}

/// A vector this long is more than a core's own cache holds: what is stored there and not read soon goes past the caches.
const LONG: usize = 1 << 20;

impl Machine {
    /// For vectors of `len` values: `own` of them for the optimizer, and [`Vector::KEPT`] if it `keeps` a mean.
    pub fn new(len: usize, groups: Arc<Groups>, own: usize, keeps: bool, threads: Threads) -> Machine {
        let kept = Floats::zeroed(if keeps { len } else { 0 });
        let own = (0..own).map(|_| Floats::zeroed(len));
        Machine {
            len,
            threads,
            groups,
            vectors: std::iter::once(kept).chain(own).collect(),
            up: Residual::zeroed(0, Precision::F32),
            down: Residual::zeroed(0, Precision::F32),
            sums: vec![0.0; len.div_ceil(TILE)],
            jump: FirstJump::default(),
        }
    }

    /// For means of the caller's vector alone.
    pub fn bare(len: usize, threads: Threads) -> Machine {
        Machine::new(len, Arc::new(Groups::whole(len)), 0, false, threads)
    }

    /// Makes room for residuals: `up` values of this worker's own, `down` of the blocks it serves.
    pub fn remember(&mut self, up: usize, down: usize, precision: Precision) {
        self.up = Residual::zeroed(up, precision);
        self.down = Residual::zeroed(down, precision);
    }

    /// A pass over all values, on the gradient of this step.
    pub fn run<P: Pass>(&mut self, _: P, step: &mut Step<'_>) {
        let (gradient, scalars, groups, jump) = (step.gradient, &step.scalars[..], &self.groups, &self.jump);
        let vectors = borrow(&mut self.vectors, step.params, P::READS, P::WRITES);
        self.threads.each(self.len, vectors, |tile, vectors| {
            with(gradient, tile.clone(), |g| apply::<P>(groups, scalars, tile, g, vectors, jump));
        });
    }

    /// The same on the mean that was [kept](Keep).
    pub fn run_on_kept<P: Pass>(&mut self, _: P, step: &mut Step<'_>) {
        let (scalars, groups, jump) = (&step.scalars[..], &self.groups, &self.jump);
        let (kept, own) = self.vectors.split_first_mut().expect("it is always there");
        let kept = &kept[..];
        let vectors = borrow_from(&mut [], own, step.params, P::READS, P::WRITES);
        self.threads.each(self.len, vectors, |tile, vectors| {
            apply::<P>(groups, scalars, tile.clone(), &kept[tile], vectors, jump);
        });
    }

    /// Codes z = (the source's vector) + e into `bytes`, and leaves in e what the code lost. Without `remembers` there is no e.
    pub(crate) fn pack<S: Source>(
        &mut self,
        _: &S,
        step: &mut Step<'_>,
        remembers: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        let (gradient, scalars, groups) = (step.gradient, &step.scalars[..], &self.groups);
        let mut vectors = borrow(&mut self.vectors, step.params, S::READS, S::WRITES);
        let mut up = self.up.owed();
        let span = Span {
            residual: if remembers { up.part(range.clone()) } else { Owed::Nothing },
            vectors: vectors.part(range.clone()),
            range,
            bytes,
            cut: coded.cut(),
        };
        self.threads.walk(span, |tile, room| {
            let Span { range, mut vectors, residual, bytes, .. } = tile;
            let encode = |z: &[f32]| coded.codec.encode_blocks(coded.block, z, residual, bytes);
            match S::LIES {
                Lies::InGradient => with(gradient, range, encode),
                Lies::InFirst => encode(vectors.read[0]),
                Lies::Nowhere => {
                    with(gradient, range.clone(), |g| {
                        for (group, part) in groups.cut(range.start, range.len()) {
                            let Vectors { read, write } = vectors.part(part.clone());
                            S::fill(&scalars[group], cut(g, part.clone()), read, write, &mut room[part]);
                        }
                    });
                    encode(room)
                }
            }
        })
    }

    /// The sum of what the workers of a host sent, and e, coded again; e keeps what the code lost.
    pub(crate) fn add_up(
        &mut self,
        sum: &Sum<'_>,
        remembers: bool,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let mut up = self.up.owed();
        let residual = if remembers { up.part(range.clone()) } else { Owed::Nothing };
        sum.code(&self.threads, range, residual, bytes)
    }

    /// The mean of what all sent, and E, coded again; E keeps what the code lost. `owned` is where this owner's values start.
    pub(crate) fn serve(
        &mut self,
        sum: &Sum<'_>,
        remembers: bool,
        owned: usize,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let mut down = self.down.owed();
        let residual = if remembers { down.part(range.start - owned..range.end - owned) } else { Owed::Nothing };
        sum.code(&self.threads, range, residual, bytes)
    }

    /// Decodes a mean, and does with it what the pass does. A worker that `compares` takes it off e as well: of a state that all
    /// share, it still has to say how far its own is from the others'.
    pub(crate) fn unpack<P: Pass>(
        &mut self,
        _: &P,
        step: &mut Step<'_>,
        compares: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Fault> {
        let (scalars, groups, jump) = (&step.scalars[..], &self.groups, &self.jump);
        let mut vectors = borrow(&mut self.vectors, step.params, P::READS, P::WRITES);
        let mut up = self.up.owed();
        let span = Span {
            residual: if compares { up.part(range.clone()) } else { Owed::Nothing },
            vectors: vectors.part(range.clone()),
            range,
            bytes,
            cut: coded.cut(),
        };
        let (codec, block, past_caches) = (coded.codec, coded.block, self.len >= LONG && !compares);
        self.threads.walk_streaming(span, |tile, room, stream| {
            let Span { range, vectors, residual, bytes, .. } = tile;
            let decode = |mean: &mut [f32]| {
                codec.decode_blocks(block, bytes, mean)?;
                residual.change(|e| {
                    e.iter_mut().zip(mean).for_each(|(e, p)| *e -= *p);
                    Ok(())
                })
            };
            if P::STORES {
                let [mean, ..] = vectors.write;
                return if past_caches { codec.decode_streaming(block, bytes, mean, stream) } else { decode(mean) };
            }
            decode(room)?;
            apply::<P>(groups, scalars, range, room, vectors, jump);
            Ok(())
        })
    }

    /// e ← e + q: a mean was taken without this payload, and all of it is still to be said.
    pub(crate) fn take_back(&mut self, coded: Coded<'_>, bytes: &mut [u8]) -> Result<(), Fault> {
        let span =
            Span { residual: self.up.owed(), vectors: Vectors::none(), range: 0..self.len, bytes, cut: coded.cut() };
        self.threads.walk(span, |tile, _| {
            tile.residual
                .change(|e| coded.codec.add_up(coded.block, &[tile.bytes], false, 1.0, e).map_err(|(_, fault)| fault))
        })
    }

    /// Whether no value of the gradient is infinite or NaN.
    pub fn is_finite(&self, gradient: Gradient<'_>) -> bool {
        let span = Span::of(0..self.len, Vectors::none());
        let found = self.threads.walk(span, |tile, _| match gradient.with(tile.range, reduce::all_finite) {
            true => Ok(()),
            false => Err(()),
        });
        found.is_ok()
    }

    /// ‖g‖₂: finite exactly where every value is, because no f64 is too small for the square of an f32.
    pub fn norm(&mut self, gradient: Gradient<'_>) -> f64 {
        sum(&self.threads, &mut self.sums, self.len, |tile| gradient.with(tile, reduce::sum_of_squares)).sqrt()
    }

    /// ‖·‖₂ of the mean that was [kept](Keep).
    pub fn norm_of_kept(&mut self) -> f64 {
        let kept = &self.vectors[0];
        sum(&self.threads, &mut self.sums, self.len, |tile| reduce::sum_of_squares(&kept[tile])).sqrt()
    }

    /// Σ of a vector of the optimizer's own.
    pub fn sum_of(&mut self, vector: Vector) -> f64 {
        let values = &self.vectors[vector.0 - 1];
        sum(&self.threads, &mut self.sums, self.len, |tile| reduce::sum(&values[tile]))
    }

    /// The optimizer's own vectors, by these names.
    pub fn state(&mut self, vectors: &'static [(&'static str, Share)]) -> Vec<Entry<'_>> {
        named(vectors, &mut self.vectors[1..]).collect()
    }

    /// The same, and the residuals; those of the blocks it serves are `owned`.
    pub fn state_with_residuals(
        &mut self,
        vectors: &'static [(&'static str, Share)],
        owned: Range<usize>,
    ) -> Vec<Entry<'_>> {
        let residuals = [
            Entry::vector("up_residue", Share::Residual, self.up.values()),
            Entry::vector("down_residue", Share::Cut(owned), self.down.values()),
        ];
        named(vectors, &mut self.vectors[1..]).chain(residuals).collect()
    }

    /// e ← factor·e in `range`; a factor of 0 leaves nothing, whatever was there.
    pub(crate) fn scale_residual(&mut self, range: Range<usize>, factor: f32) {
        let e = &mut self.up.values()[range];
        match factor {
            0.0 => e.fill(0.0),
            factor => e.iter_mut().for_each(|e| *e *= factor),
        }
    }

    /// e ← 0,  E ← 0.
    pub(crate) fn forget(&mut self) {
        self.up.values().fill(0.0);
        self.down.values().fill(0.0);
    }

    /// The first parameter that a pass moved too far since this was last asked.
    pub fn take_jump(&mut self) -> Option<usize> {
        self.jump.take()
    }
}

/// A sum over `len` values: of each tile by itself, then of the tiles in order. So any machine, however parallel, has these bits.
fn sum(threads: &Threads, sums: &mut [f64], len: usize, of: impl Fn(Range<usize>) -> f64 + Sync) -> f64 {
    threads.fill(sums, |tile| of(tile * TILE..((tile + 1) * TILE).min(len)));
    sums.iter().sum()
}

fn named<'a>(names: &'static [(&'static str, Share)], vectors: &'a mut [Floats]) -> impl Iterator<Item = Entry<'a>> {
    names.iter().zip(vectors).map(|((name, share), vector)| Entry::vector(name, share.clone(), vector))
}

/// Calls `work` with the gradient of a tile; with nothing where there is none.
fn with<T>(gradient: Option<Gradient<'_>>, tile: Range<usize>, work: impl FnOnce(&[f32]) -> T) -> T {
    match gradient {
        Some(gradient) => gradient.with(tile, work),
        None => work(&[]),
    }
}

/// A part of a tile's gradient, if it has one.
fn cut(g: &[f32], part: Range<usize>) -> &[f32] {
    if g.is_empty() { g } else { &g[part] }
}

/// The pass over one tile, group by group.
fn apply<P: Pass>(
    groups: &Groups,
    scalars: &[Scalars],
    tile: Range<usize>,
    input: &[f32],
    mut vectors: Vectors<'_>,
    jump: &FirstJump,
) {
    for (group, part) in groups.cut(tile.start, tile.len()) {
        let Vectors { read, write } = vectors.part(part.clone());
        if let Some(place) = P::run(&scalars[group], cut(input, part.clone()), read, write) {
            jump.note(tile.start + part.start + place);
        }
    }
}

/// The vectors that a pass reads and writes; each is named once.
fn borrow<'a>(vectors: &'a mut [Floats], params: &'a mut [f32], reads: &[Vector], writes: &[Vector]) -> Vectors<'a> {
    let (kept, own) = vectors.split_first_mut().expect("it is always there");
    borrow_from(kept, own, params, reads, writes)
}

fn borrow_from<'a>(
    kept: &'a mut [f32],
    own: &'a mut [Floats],
    params: &'a mut [f32],
    reads: &[Vector],
    writes: &[Vector],
) -> Vectors<'a> {
    let mut all = [const { None }; MOST];
    all[0] = Some(params);
    all[1] = Some(kept);
    all[2..].iter_mut().zip(own).for_each(|(place, vector)| *place = Some(&mut vector[..]));
    let mut take = |vector: &Vector| all[vector.0].take().expect("a pass names each vector once");
    let mut vectors = Vectors::none();
    vectors.write.iter_mut().zip(writes).for_each(|(place, vector)| *place = take(vector));
    vectors.read.iter_mut().zip(reads).for_each(|(place, vector)| *place = take(vector));
    vectors
}
