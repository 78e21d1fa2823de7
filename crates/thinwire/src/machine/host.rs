//! The machine in the host's memory: passes run on threads, tile by tile, fused with packing and unpacking.

use super::jumps::FirstJump;
use super::pass::MOST;
use super::state::{Names, named, residuals, scale};
use super::sum::{Coded, Feedback, Refused, Sum};
use super::tiles::{Span, TILE, Vectors};
use super::{
    Floats, Gradient, Groups, Lies, Pass, Ranges, Reduction, Residual, Source, Step, Stripes, Threads, Totals, Vector,
};
use crate::codec::{Fault, Keeping, MAX_BLOCK, ResidualSlice, encode_remembering};
use crate::error::Result;
use crate::kernel::reduce;
use crate::kernel::update::Scalars;
use crate::state::Entry;
use std::ops::Range;
use std::sync::Arc;

/// The host's memory, and the threads that pass over it. [`Machine`](super::Machine) says what each method does.
pub struct Host {
    len: usize,
    threads: Threads,
    groups: Arc<Groups>,
    /// Of the optimizer's own vectors.
    names: Names,
    /// [`Vector::KEPT`], then the optimizer's own.
    vectors: Vec<Floats>,
    /// e: what this worker's payloads have not said yet; 0 in blocks that another worker of its host relays.
    up: Residual,
    /// E: what the means of the blocks it owns have not said yet.
    down: Residual,
    /// One for each tile: a sum over all values is the sum of these, in order.
    sums: Vec<f64>,
    /// The same for reductions; empty before the first.
    totals: Vec<Totals>,
    jump: FirstJump,
}

/// A vector this long is more than a core's own cache holds: what is stored there and not read soon goes past the caches.
const LONG: usize = 1 << 20;

#[allow(missing_docs)] // what `Machine` says of them
impl Host {
    /// For vectors of `len` values: the optimizer's own by these names, and [`Vector::KEPT`] if it `keeps` a mean.
    pub fn new(len: usize, groups: Arc<Groups>, names: Names, keeps: bool, threads: Threads) -> Host {
        let kept = Floats::zeroed(if keeps { len } else { 0 });
        let own = names.iter().map(|_| Floats::zeroed(len));
        Host {
            len,
            threads,
            groups,
            names,
            vectors: std::iter::once(kept).chain(own).collect(),
            up: Residual::none(),
            down: Residual::none(),
            sums: vec![0.0; len.div_ceil(TILE)],
            totals: Vec::new(),
            jump: FirstJump::default(),
        }
    }

    /// For means of the caller's vector alone.
    pub fn bare(len: usize, threads: Threads) -> Host {
        Host::new(len, Arc::new(Groups::whole(len)), &[], false, threads)
    }

    pub fn remember(&mut self, up: usize, down: usize, keeping: Keeping) -> Result<()> {
        let Keeping { precision, block, .. } = keeping;
        self.up = Residual::zeroed(up, precision, block, keeping.up);
        self.down = Residual::zeroed(down, precision, block, keeping.down);
        Ok(())
    }

    pub fn run<P: Pass>(&mut self, _: P, step: &mut Step<'_>) -> Result<()> {
        let (gradient, scalars, groups, jump) = (step.gradient, &step.scalars[..], &self.groups, &self.jump);
        let vectors = borrow(&mut self.vectors, step.params, P::READS, P::WRITES);
        self.threads.each(self.len, vectors, |tile, vectors| {
            with(gradient, tile.clone(), |g| apply::<P>(groups, scalars, tile, g, vectors, jump));
        });
        Ok(())
    }

    pub fn run_in<P: Pass>(&mut self, stripes: Stripes, _: P, step: &mut Step<'_>) -> Result<()> {
        let (scalars, groups, jump) = (&step.scalars[..], &self.groups, &self.jump);
        let vectors = borrow(&mut self.vectors, step.params, P::READS, P::WRITES);
        self.threads.each(self.len, vectors, |tile, mut vectors| {
            for part in stripes.cut(tile.clone()) {
                let here = tile.start + part.start..tile.start + part.end;
                apply::<P>(groups, scalars, here, &[], vectors.part(part), jump);
            }
        });
        Ok(())
    }

    pub fn run_on_kept<P: Pass>(&mut self, _: P, step: &mut Step<'_>) -> Result<()> {
        let (scalars, groups, jump) = (&step.scalars[..], &self.groups, &self.jump);
        let (kept, own) = self.vectors.split_first_mut().expect("it is always there");
        let kept = &kept[..];
        let vectors = borrow_from(&mut [], own, step.params, P::READS, P::WRITES);
        self.threads.each(self.len, vectors, |tile, vectors| {
            apply::<P>(groups, scalars, tile.clone(), &kept[tile], vectors, jump);
        });
        Ok(())
    }

    pub fn spend<P: Pass>(&mut self, stripes: Stripes, _: P, step: &mut Step<'_>, vector: Vector) -> Result<()> {
        let mut spent = std::mem::replace(&mut self.vectors[vector.0 - 1], Floats::zeroed(0));
        let (scalars, groups, jump) = (&step.scalars[..], &self.groups, &self.jump);
        let (input, vectors) = (&spent[..], borrow(&mut self.vectors, step.params, P::READS, P::WRITES));
        self.threads.each(self.len, vectors, |tile, mut vectors| {
            for part in stripes.cut(tile.clone()) {
                let here = tile.start + part.start..tile.start + part.end;
                apply::<P>(groups, scalars, here.clone(), &input[here], vectors.part(part), jump);
            }
        });
        spent.fill(0.0);
        self.vectors[vector.0 - 1] = spent;
        Ok(())
    }

    pub fn run_scaled<P: Pass>(&mut self, _: P, step: &mut Step<'_>, ranges: &Ranges, factors: &[f64]) -> Result<()> {
        let (scalars, groups, jump) = (&step.scalars[..], &self.groups, &self.jump);
        let vectors = borrow(&mut self.vectors, step.params, P::READS, P::WRITES);
        self.threads.each(self.len, vectors, |tile, mut vectors| {
            for (i, part) in ranges.cut(tile.start, tile.len()) {
                let scaled = |k: &Scalars| Scalars { rate: (f64::from(k.rate) * factors[i]) as f32, ..*k };
                let here = tile.start + part.start..tile.start + part.end;
                apply_with::<P>(groups, |group| scaled(&scalars[group]), here, &[], vectors.part(part), jump);
            }
        });
        Ok(())
    }

    pub fn reduce<R: Reduction>(
        &mut self,
        _: R,
        step: &mut Step<'_>,
        ranges: &Ranges,
        totals: &mut [Totals],
    ) -> Result<()> {
        let (scalars, groups) = (&step.scalars[..], &self.groups);
        self.totals.resize(self.sums.len(), Totals::default());
        let read = borrow(&mut self.vectors, step.params, R::READS, &[]).read;
        for (range, total) in ranges.each().zip(totals) {
            let tiles = &mut self.totals[..range.len().div_ceil(TILE)];
            self.threads.fill(tiles, |tile| {
                let from = range.start + tile * TILE;
                let of = |(group, part): (usize, Range<usize>)| {
                    let part = from + part.start..from + part.end;
                    R::of(&scalars[group], read.map(|vector| vector.get(part.clone()).unwrap_or_default()))
                };
                groups.cut(from, TILE.min(range.end - from)).map(of).fold(Totals::default(), Totals::and)
            });
            *total = tiles.iter().copied().fold(Totals::default(), Totals::and);
        }
        Ok(())
    }

    pub fn pack<S: Source>(
        &mut self,
        _: &S,
        step: &mut Step<'_>,
        feedback: Feedback,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let (gradient, scalars, groups) = (step.gradient, &step.scalars[..], &self.groups);
        let weight = step.weight as f32;
        let mut vectors = borrow(&mut self.vectors, step.params, S::READS, S::WRITES);
        let (kappa_up, kappa_down) = (self.up.feedback(), self.down.feedback());
        let (mut up, mut down) = (self.up.slice(), self.down.slice());
        let (residual, kappa) = residual(feedback, &range, (&mut up, kappa_up), (&mut down, kappa_down));
        let span = Span { residual, vectors: vectors.part(range.clone()), range, bytes, cut: coded.cut() };
        let packed = self.threads.walk(span, |tile, room, _| {
            let Span { range, mut vectors, residual, bytes, .. } = tile;
            let encode = |z: &[f32]| encode_remembering(coded.codec, coded.block, z, residual, kappa, bytes);
            match S::LIES {
                Lies::InGradient if weight == 1.0 => with(gradient, range, encode),
                Lies::InFirst if weight == 1.0 => encode(vectors.read[0]),
                Lies::InGradient => with(gradient, range, |g| encode(weighed(weight, g, room))),
                Lies::InFirst => encode(weighed(weight, vectors.read[0], room)),
                Lies::Nowhere => {
                    with(gradient, range.clone(), |g| {
                        for (group, part) in groups.cut(range.start, range.len()) {
                            let Vectors { read, write } = vectors.part(part.clone());
                            S::fill(&scalars[group], cut(g, part.clone()), read, write, &mut room[part]);
                        }
                    });
                    if weight != 1.0 {
                        room.iter_mut().for_each(|z| *z *= weight);
                    }
                    encode(room)
                }
            }
        });
        packed.map_err(|_| Refused::Overflow)
    }

    pub fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let (kappa_up, kappa_down) = (self.up.feedback(), self.down.feedback());
        let (mut up, mut down) = (self.up.slice(), self.down.slice());
        let (residual, kappa) = residual(feedback, &range, (&mut up, kappa_up), (&mut down, kappa_down));
        sum.code(&self.threads, range, residual, kappa, bytes)
    }

    /// The same with a residual of the caller's: a server keeps its E until a mean is written down.
    pub fn serve_with(
        &self,
        sum: &Sum<'_>,
        residual: ResidualSlice<'_>,
        feedback: f32,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        sum.code(&self.threads, 0..self.len, residual, feedback, bytes)
    }

    /// Decodes a payload of all values: their norm, or the first of them that is larger than [`LARGEST`](reduce::LARGEST).
    pub fn measure(&self, coded: Coded<'_>, payload: &[u8]) -> Result<Result<f64, f32>, Fault> {
        let (mut room, mut rest, mut squares) = ([0.0; MAX_BLOCK], payload, 0.0);
        for from in (0..self.len).step_by(coded.tile()) {
            let values = &mut room[..coded.tile().min(self.len - from)];
            let (bytes, others) = rest.split_at(coded.len_of(values.len()).min(rest.len()));
            coded.codec.decode_blocks(coded.block, bytes, values)?;
            if !reduce::all_within(values) {
                let beyond = values.iter().find(|value| value.abs() > reduce::LARGEST);
                return Ok(Err(beyond.copied().unwrap_or(f32::NAN)));
            }
            squares += reduce::sum_of_squares(values);
            rest = others;
        }
        Ok(Ok(squares.sqrt()))
    }

    /// Decodes a payload of all values, and codes each times `factor` again. A coarse code loses a little by it.
    pub fn shorten_payload(&self, factor: f32, coded: Coded<'_>, payload: &mut [u8]) -> Result<(), Fault> {
        let (mut room, mut rest) = ([0.0; MAX_BLOCK], payload);
        for from in (0..self.len).step_by(coded.tile()) {
            let values = &mut room[..coded.tile().min(self.len - from)];
            let (bytes, others) = rest.split_at_mut(coded.len_of(values.len()).min(rest.len()));
            coded.codec.decode_blocks(coded.block, bytes, values)?;
            values.iter_mut().for_each(|value| *value *= factor);
            coded.codec.encode_blocks(coded.block, values, ResidualSlice::Nothing, bytes)?;
            rest = others;
        }
        Ok(())
    }

    pub fn unpack<P: Pass>(
        &mut self,
        _: &P,
        step: &mut Step<'_>,
        compares: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let (scalars, groups, jump) = (&step.scalars[..], &self.groups, &self.jump);
        let mut vectors = borrow(&mut self.vectors, step.params, P::READS, P::WRITES);
        let feedback = self.up.feedback() * step.weight as f32;
        let mut up = self.up.slice();
        let span = Span {
            residual: if compares { up.part(range.clone()) } else { ResidualSlice::Nothing },
            vectors: vectors.part(range.clone()),
            range,
            bytes,
            cut: coded.cut(),
        };
        let (codec, block, past_caches) = (coded.codec, coded.block, self.len >= LONG && !compares);
        let unpacked = self.threads.walk(span, |tile, room, stream| {
            let Span { range, vectors, residual, bytes, .. } = tile;
            let decode = |mean: &mut [f32]| {
                codec.decode_blocks(block, bytes, mean)?;
                residual.change(|e| {
                    e.iter_mut().zip(mean).for_each(|(e, p)| *e -= feedback * *p);
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
        });
        unpacked.map_err(|fault| Refused::Payload(0, fault))
    }

    pub fn take_back(&mut self, coded: Coded<'_>, bytes: &mut [u8]) -> Result<(), Refused> {
        let feedback = self.up.feedback();
        if feedback == 0.0 {
            return Ok(()); // what was not heard is lost, as what a code loses is
        }
        let span =
            Span { residual: self.up.slice(), vectors: Vectors::none(), range: 0..self.len, bytes, cut: coded.cut() };
        let taken = self.threads.walk(span, |tile, room, _| {
            let Span { residual, bytes, .. } = tile;
            residual.change(|e| {
                if feedback == 1.0 {
                    return coded.codec.add_up(coded.block, &[bytes], false, 1.0, e).map_err(|(_, fault)| fault);
                }
                coded.codec.decode_blocks(coded.block, bytes, room)?;
                e.iter_mut().zip(room).for_each(|(e, q)| *e += feedback * *q);
                Ok(())
            })
        });
        taken.map_err(|fault| Refused::Payload(0, fault))
    }

    pub fn is_within(&self, gradient: Gradient<'_>) -> Result<bool> {
        let span = Span::of(0..self.len, Vectors::none());
        let found = self.threads.walk(span, |tile, _, _| match gradient.with(tile.range, reduce::all_within) {
            true => Ok(()),
            false => Err(()),
        });
        Ok(found.is_ok())
    }

    pub fn shorten(&self, gradient: Gradient<'_>, factor: f32) -> Result<Option<Vec<f32>>> {
        let mut shorter = Vec::with_capacity(self.len); // the gradient is the caller's, and this is rare enough to allocate
        for from in (0..self.len).step_by(TILE) {
            let tile = from..(from + TILE).min(self.len);
            gradient.with(tile, |values| shorter.extend(values.iter().map(|g| factor * g)));
        }
        Ok(Some(shorter))
    }

    pub fn are_finite(&self, range: Range<usize>, params: &[f32]) -> Result<bool> {
        Ok(reduce::all_finite(&params[range]))
    }

    pub fn norm(&mut self, gradient: Gradient<'_>) -> Result<f64> {
        let squares = |tile| gradient.with(tile, reduce::sum_of_squares);
        Ok(sum(&self.threads, &mut self.sums, self.len, squares).sqrt())
    }

    pub fn norm_of_kept(&mut self) -> Result<f64> {
        let kept = &self.vectors[0];
        Ok(sum(&self.threads, &mut self.sums, self.len, |tile| reduce::sum_of_squares(&kept[tile])).sqrt())
    }

    pub fn sum_of(&mut self, vector: Vector) -> Result<f64> {
        let values = &self.vectors[vector.0 - 1];
        Ok(sum(&self.threads, &mut self.sums, self.len, |tile| reduce::sum(&values[tile])))
    }

    pub fn copy_of(&self, vector: Vector) -> Result<Vec<f32>> {
        Ok(self.vectors[vector.0 - 1].to_vec())
    }

    pub fn digest(&self, range: Range<usize>, params: &[f32]) -> Result<u64> {
        Ok(reduce::digest(range.start, &params[range]))
    }

    pub fn digest_of(&self, vector: Vector, range: Range<usize>) -> Result<u64> {
        Ok(reduce::digest(range.start, &self.vectors[vector.0 - 1][range]))
    }

    pub fn copy_params(&self, params: &[f32]) -> Result<Vec<f32>> {
        Ok(params.to_vec())
    }

    pub fn give_params(&self, _: &[f32]) -> Result<()> {
        Ok(())
    }

    pub fn state(&mut self, owned: Option<Range<usize>>) -> Result<Vec<Entry<'_>>> {
        let mut entries: Vec<_> = named(self.names, &mut self.vectors[1..]).collect();
        if let Some(owned) = owned {
            entries.extend(residuals(self.up.values(), self.down.values(), owned));
        }
        Ok(entries)
    }

    pub fn scale_residual(&mut self, range: Range<usize>, factor: f32) -> Result<()> {
        if self.up.feedback() > 0.0 {
            scale(&mut self.up.values()[range], factor);
        }
        Ok(())
    }

    pub fn forget(&mut self) -> Result<()> {
        self.up.values().fill(0.0);
        self.down.values().fill(0.0);
        Ok(())
    }

    pub fn take_jump(&mut self) -> Option<usize> {
        self.jump.take()
    }
}

/// The residual of the values in `range`, and its κ; there are two to choose from.
fn residual<'a>(
    feedback: Feedback,
    range: &Range<usize>,
    (up, kappa_up): (&'a mut ResidualSlice<'_>, f32),
    (down, kappa_down): (&'a mut ResidualSlice<'_>, f32),
) -> (ResidualSlice<'a>, f32) {
    match feedback {
        Feedback::None => (ResidualSlice::Nothing, 0.0),
        Feedback::Up => (up.part(range.clone()), kappa_up),
        Feedback::Down { owned } => (down.part(range.start - owned..range.end - owned), kappa_down),
        Feedback::Made(made) => (ResidualSlice::Made { made, range: range.clone() }, 0.0),
    }
}

/// A sum over `len` values: of each tile by itself, then of the tiles in order. So any machine, however parallel, has these bits.
fn sum(threads: &Threads, sums: &mut [f64], len: usize, of: impl Fn(Range<usize>) -> f64 + Sync) -> f64 {
    threads.fill(sums, |tile| of(tile * TILE..((tile + 1) * TILE).min(len)));
    sums.iter().sum()
}

/// The values times this worker's weight.
fn weighed<'a>(weight: f32, values: &[f32], room: &'a mut [f32]) -> &'a [f32] {
    room.iter_mut().zip(values).for_each(|(z, value)| *z = weight * value);
    room
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
    vectors: Vectors<'_>,
    jump: &FirstJump,
) {
    apply_with::<P>(groups, |group| scalars[group], tile, input, vectors, jump);
}

/// The same with scalars that are made for each group.
fn apply_with<P: Pass>(
    groups: &Groups,
    scalars: impl Fn(usize) -> Scalars,
    tile: Range<usize>,
    input: &[f32],
    mut vectors: Vectors<'_>,
    jump: &FirstJump,
) {
    for (group, part) in groups.cut(tile.start, tile.len()) {
        let Vectors { read, write } = vectors.part(part.clone());
        if let Some(place) = P::run(&scalars(group), cut(input, part.clone()), read, write) {
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
