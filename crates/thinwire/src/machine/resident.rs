//! The machine on a device: every call goes there by name, and the host keeps no vector.
//!
//! Whoever saves, loads or inspects the state gets a copy in the host's memory. It may have been changed, so it goes back to the device
//! before the next call, unless the caller says that it was only read; then the copy is dropped.

use super::device::{Call, Coder, Device, Input, Number, Room, Which};
use super::state::{Names, fields, named, residuals, scale};
use super::sum::{Coded, Feedback, Refused, Sum};
use super::{Floats, Gradient, Groups, Pass, Ranges, Reduction, Source, Step, Stripes, Totals, Vector};
use crate::codec::{CodecName, Keeping, Precision};
use crate::error::{Error, Result};
use crate::kernel::reduce;
use crate::state::{Entry, Field};
use std::ops::Range;
use std::sync::Arc;

/// Parameters that are looked at together.
const PIECE: usize = 1 << 20;

/// A device, and what the engine remembers of it. [`Machine`](super::Machine) says what each method does.
pub struct Resident {
    device: Box<dyn Device>,
    groups: Arc<Groups>,
    names: Names,
    keeps: bool,
    /// The values of e and of E.
    residuals: [usize; 2],
    /// Whether anything is remembered on the way up, and on the way down.
    remembers: [bool; 2],
    /// The optimizer's vectors, e and E, from when somebody looks at them until the next call.
    opened: Option<Vec<Floats>>,
    jump: Option<usize>,
}

#[allow(missing_docs)] // what `Machine` says of them
impl Resident {
    /// Refuses a device that lacks one of these passes or codecs: it must not turn out at step 5,000.
    pub fn new(
        device: Box<dyn Device>,
        groups: Arc<Groups>,
        names: Names,
        keeps: bool,
        passes: &[&str],
        codecs: &[CodecName],
    ) -> Result<Resident> {
        let lacks = |what: String| Err(Error::Device { device: device.name(), problem: format!("it has no {what}") });
        if let Some(pass) = passes.iter().find(|pass| !device.has_pass(pass)) {
            return lacks(format!("pass `{pass}`"));
        }
        if let Some(codec) = codecs.iter().find(|codec| !device.has_codec(**codec)) {
            return lacks(format!("codec `{codec}`"));
        }
        Ok(Resident { device, groups, names, keeps, residuals: [0; 2], remembers: [true; 2], opened: None, jump: None })
    }

    fn len(&self) -> usize {
        self.device.len()
    }

    /// A device has its own loops for residuals, and they know nothing between κ = 0 and κ = 1, and no 8 bits.
    pub fn remember(&mut self, up: usize, down: usize, keeping: Keeping) -> Result<()> {
        let residual = keeping.precision;
        let ways = [keeping.up, keeping.down];
        let lacks = match ways.iter().find(|kappa| **kappa != 0.0 && **kappa != 1.0) {
            Some(kappa) => Some(format!("`feedback` of {kappa}")),
            None if residual == Precision::I8 && ways != [0.0; 2] => Some(format!("residuals of `{residual}`")),
            None => None,
        };
        if let Some(what) = lacks.filter(|_| up > 0) {
            return Err(Error::Device { device: self.device.name(), problem: format!("it has no {what}") });
        }
        let of = |values: usize, kappa: f32| if kappa > 0.0 { values } else { 0 };
        let (up, down) = (of(up, keeping.up), of(down, keeping.down));
        self.remembers = ways.map(|kappa| kappa > 0.0);
        self.residuals = [up, down];
        let vectors = self.names.iter().map(|(name, _)| *name).collect();
        let ends = self.groups.ends().to_vec();
        self.device.reserve(&Room { vectors, keeps: self.keeps, up, down, residual, ends })
    }

    pub fn run<P: Pass>(&mut self, _: P, step: &mut Step<'_>) -> Result<()> {
        let input = if step.gradient.is_some() { Input::Gradient } else { Input::Nothing };
        self.run_on::<P>(step, input)
    }

    pub fn run_on_kept<P: Pass>(&mut self, _: P, step: &mut Step<'_>) -> Result<()> {
        self.run_on::<P>(step, Input::Kept)
    }

    fn run_on<P: Pass>(&mut self, step: &Step<'_>, input: Input) -> Result<()> {
        let jumped = self.closed()?.pass(call(P::NAME, step), input)?;
        self.note(jumped);
        Ok(())
    }

    /// No device has a call for it yet. An optimizer that needs it lists names of passes that no device has, so it is refused earlier.
    pub fn run_scaled<P: Pass>(&mut self, _: P, _: &mut Step<'_>, _: &Ranges, _: &[f64]) -> Result<()> {
        self.lacks("pass by tensor", P::NAME)
    }

    /// Nor for this, but of a whole vector.
    pub fn run_in<P: Pass>(&mut self, stripes: Stripes, pass: P, step: &mut Step<'_>) -> Result<()> {
        if stripes.is_whole() { self.run(pass, step) } else { self.lacks("pass over a part of the values,", P::NAME) }
    }

    /// Nor for this.
    pub fn spend<P: Pass>(&mut self, _: Stripes, _: P, _: &mut Step<'_>, _: Vector) -> Result<()> {
        self.lacks("pass on a mean that has arrived,", P::NAME)
    }

    pub fn reduce<R: Reduction>(&mut self, _: R, _: &mut Step<'_>, _: &Ranges, _: &mut [Totals]) -> Result<()> {
        self.lacks("reduction", R::NAME)
    }

    fn lacks(&self, what: &str, name: &str) -> Result<()> {
        Err(Error::Device { device: self.device.name(), problem: format!("it has no {what} `{name}`") })
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
        debug_assert!(!matches!(feedback, Feedback::Made(_)), "it was asked for the dither's name");
        let remembers = feedback == Feedback::Up && self.remembers[0];
        self.closed()?.pack(call(S::NAME, step), remembers, coder(coded), range, bytes)
    }

    pub fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let feedback = match feedback {
            Feedback::Up if !self.remembers[0] => Feedback::None,
            Feedback::Down { .. } if !self.remembers[1] => Feedback::None,
            feedback => feedback,
        };
        self.closed()?.serve(sum, feedback, range, bytes)
    }

    pub fn unpack<P: Pass>(
        &mut self,
        _: &P,
        step: &mut Step<'_>,
        compares: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        payload: &mut [u8],
    ) -> Result<(), Refused> {
        let compares = compares && self.remembers[0];
        let jumped = self.closed()?.unpack(call(P::NAME, step), compares, coder(coded), range, payload)?;
        self.note(jumped);
        Ok(())
    }

    pub fn take_back(&mut self, coded: Coded<'_>, payload: &mut [u8]) -> Result<(), Refused> {
        if !self.remembers[0] {
            return Ok(());
        }
        self.closed()?.take_back(coder(coded), payload)
    }

    pub fn is_within(&mut self, _: Gradient<'_>) -> Result<bool> {
        Ok(self.closed()?.number(Number::NotFinite)? == 0.0)
    }

    pub fn norm(&mut self, _: Gradient<'_>) -> Result<f64> {
        Ok(self.closed()?.number(Number::GradientSquared)?.sqrt())
    }

    pub fn norm_of_kept(&mut self) -> Result<f64> {
        Ok(self.closed()?.number(Number::KeptSquared)?.sqrt())
    }

    pub fn shorten(&mut self, _: Gradient<'_>, factor: f32) -> Result<Option<Vec<f32>>> {
        self.closed()?.shorten(factor).map(|()| None)
    }

    /// They are copied piece by piece.
    pub fn are_finite(&mut self, _: Range<usize>, _: &[f32]) -> Result<bool> {
        let (len, mut piece) = (self.len(), vec![0.0; PIECE.min(self.len())]);
        for from in (0..len).step_by(PIECE) {
            let range = from..(from + PIECE).min(len);
            let values = &mut piece[..range.len()];
            self.device.read(Which::Params, range, values)?;
            if !reduce::all_finite(values) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn sum_of(&mut self, vector: Vector) -> Result<f64> {
        let (name, _) = self.names[vector.0 - 2];
        self.closed()?.number(Number::Sum(name))
    }

    pub fn copy_of(&mut self, vector: Vector) -> Result<Vec<f32>> {
        let (name, mut copied) = (self.names[vector.0 - 2].0, vec![0.0; self.len()]);
        self.closed()?.read(Which::Own(name), 0..copied.len(), &mut copied)?;
        Ok(copied)
    }

    pub fn digest(&mut self, range: Range<usize>, _: &[f32]) -> Result<u64> {
        self.closed()?.digest(range)
    }

    /// It is asked for late means only, which no device has.
    pub fn digest_of(&mut self, vector: Vector, _: Range<usize>) -> Result<u64> {
        self.lacks("digest of", self.names[vector.0 - 2].0).map(|()| 0)
    }

    pub fn copy_params(&mut self, _: &[f32]) -> Result<Vec<f32>> {
        let mut copied = vec![0.0; self.len()];
        self.device.read(Which::Params, 0..copied.len(), &mut copied)?;
        Ok(copied)
    }

    pub fn give_params(&mut self, from: &[f32]) -> Result<()> {
        self.device.write(Which::Params, 0..from.len(), from)
    }

    pub fn state(&mut self, owned: Option<Range<usize>>) -> Result<Vec<Entry<'_>>> {
        let names = self.names;
        let (own, [e, owners]) = split(self.open()?);
        let mut entries: Vec<_> = named(names, own).collect();
        if let Some(owned) = owned {
            entries.extend(residuals(e, owners, owned));
        }
        Ok(entries)
    }

    pub fn fields(&self, owned: Option<Range<usize>>) -> Vec<Field> {
        fields(self.names, self.len(), self.residuals, owned)
    }

    pub fn drop_copy(&mut self) {
        self.opened = None;
    }

    pub fn close(&mut self) -> Result<()> {
        self.closed().map(drop)
    }

    pub fn scale_residual(&mut self, range: Range<usize>, factor: f32) -> Result<()> {
        if self.remembers[0] {
            let (_, [e, _]) = split(self.open()?);
            scale(&mut e[range], factor);
        }
        Ok(())
    }

    pub fn forget(&mut self) -> Result<()> {
        let (_, residuals) = split(self.open()?);
        residuals.iter_mut().for_each(|residual| residual.fill(0.0));
        Ok(())
    }

    pub fn take_jump(&mut self) -> Option<usize> {
        self.jump.take()
    }

    fn note(&mut self, jumped: Option<usize>) {
        self.jump = [self.jump, jumped].into_iter().flatten().min();
    }

    /// The vectors that are opened, in order, and their lengths.
    fn vectors(&self) -> impl Iterator<Item = (Which, usize)> + use<> {
        let (len, [up, down]) = (self.len(), self.residuals);
        let own = self.names.iter().map(move |(name, _)| (Which::Own(name), len));
        own.chain([(Which::Up, up), (Which::Down, down)])
    }

    fn open(&mut self) -> Result<&mut Vec<Floats>> {
        if self.opened.is_none() {
            let mut opened = Vec::new();
            for (which, len) in self.vectors() {
                let mut values = Floats::zeroed(len);
                self.device.read(which, 0..len, &mut values)?;
                opened.push(values);
            }
            self.opened = Some(opened);
        }
        Ok(self.opened.get_or_insert_default())
    }

    /// The device, after it has back what was opened.
    fn closed(&mut self) -> Result<&mut dyn Device> {
        if let Some(opened) = self.opened.take() {
            for ((which, len), values) in self.vectors().zip(&opened) {
                self.device.write(which, 0..len, values)?;
            }
        }
        Ok(&mut *self.device)
    }
}

/// The optimizer's own vectors, and the two residuals behind them.
fn split(opened: &mut [Floats]) -> (&mut [Floats], &mut [Floats; 2]) {
    opened.split_last_chunk_mut().expect("both residuals are always there")
}

fn call<'a>(name: &'static str, step: &'a Step<'_>) -> Call<'a> {
    Call { name, scalars: &step.scalars }
}

fn coder(coded: Coded<'_>) -> Coder {
    Coder { codec: coded.name, block: coded.block }
}
