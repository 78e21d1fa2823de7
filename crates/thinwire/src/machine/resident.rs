//! The machine on a device: every call goes there by name, and the host keeps no vector.
//!
//! Whoever saves, loads or inspects the state gets a copy in the host's memory. It may have been changed, so it goes back to the device
//! before the next call, and the copy is dropped.

use super::device::{Call, Coder, Device, Input, Number, Room, Which};
use super::state::{Names, named, residuals, scale};
use super::sum::{Coded, Feedback, Refused, Sum};
use super::{Floats, Groups, Pass, Source, Step, Vector};
use crate::codec::{CodecName, Precision};
use crate::error::{Error, Result};
use crate::kernel::reduce;
use crate::state::Entry;
use std::ops::Range;
use std::sync::Arc;

/// Parameters that are looked at together.
const PIECE: usize = 1 << 20;

/// A device, and what the engine remembers of it.
pub struct Resident {
    device: Box<dyn Device>,
    groups: Arc<Groups>,
    names: Names,
    keeps: bool,
    /// The values of e and of E.
    residuals: [usize; 2],
    /// The optimizer's vectors, e and E, from when somebody looks at them until the next call.
    opened: Option<Vec<Floats>>,
    jump: Option<usize>,
}

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
        Ok(Resident { device, groups, names, keeps, residuals: [0; 2], opened: None, jump: None })
    }

    pub(super) fn len(&self) -> usize {
        self.device.len()
    }

    pub fn remember(&mut self, up: usize, down: usize, residual: Precision) -> Result<()> {
        self.residuals = [up, down];
        let vectors = self.names.iter().map(|(name, _)| *name).collect();
        let ends = self.groups.ends().to_vec();
        self.device.reserve(&Room { vectors, keeps: self.keeps, up, down, residual, ends })
    }

    pub fn run<P: Pass>(&mut self, step: &Step<'_>, input: Input) -> Result<()> {
        let jumped = self.closed()?.pass(call(P::NAME, step), input)?;
        self.note(jumped);
        Ok(())
    }

    pub fn pack<S: Source>(
        &mut self,
        step: &Step<'_>,
        remembers: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        self.closed()?.pack(call(S::NAME, step), remembers, coder(coded), range, bytes)
    }

    pub fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        self.closed()?.serve(sum, feedback, range, bytes)
    }

    pub fn unpack<P: Pass>(
        &mut self,
        step: &Step<'_>,
        compares: bool,
        coded: Coded<'_>,
        range: Range<usize>,
        payload: &[u8],
    ) -> Result<(), Refused> {
        let jumped = self.closed()?.unpack(call(P::NAME, step), compares, coder(coded), range, payload)?;
        self.note(jumped);
        Ok(())
    }

    pub fn take_back(&mut self, coded: Coded<'_>, payload: &[u8]) -> Result<(), Refused> {
        self.closed()?.take_back(coder(coded), payload)
    }

    pub fn number(&mut self, of: Number) -> Result<f64> {
        self.closed()?.number(of)
    }

    pub fn shorten(&mut self, factor: f32) -> Result<()> {
        self.closed()?.shorten(factor)
    }

    /// Whether all parameters are finite. They are copied piece by piece.
    pub fn are_finite(&mut self) -> Result<bool> {
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
        self.number(Number::Sum(name))
    }

    pub fn digest(&mut self, range: Range<usize>) -> Result<u64> {
        self.closed()?.digest(range)
    }

    pub fn read_params(&mut self, out: &mut [f32]) -> Result<()> {
        self.device.read(Which::Params, 0..out.len(), out)
    }

    pub fn write_params(&mut self, from: &[f32]) -> Result<()> {
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

    pub fn scale_residual(&mut self, range: Range<usize>, factor: f32) -> Result<()> {
        let (_, [e, _]) = split(self.open()?);
        scale(&mut e[range], factor);
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
