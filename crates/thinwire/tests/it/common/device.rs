//! A device of the tests' own: its vectors are in memory that the engine never sees, and it runs its loops by name.
//!
//! It shares nothing with the host's machine but the kernels of one tile and of one block: no tiles, no threads, no fused coding. Every
//! vector is walked whole, group by group, and every block is coded by itself. The [`Memory`] is shared with the test, as the tensors
//! of a program are shared with a GPU: the test puts gradients there and looks at the parameters.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use thinwire::inside::kernel::bf16::{self, Half};
use thinwire::inside::kernel::reduce;
use thinwire::inside::kernel::update::{self, Scalars};
use thinwire::inside::machine::tiles::TILE;
use thinwire::inside::machine::{Call, Coder, Device, Feedback, Input, Number, Refused, Room, Sum, Which};
use thinwire::options::Precision;
use thinwire::{CodecName, Error, Result};

/// The passes and sources it has.
pub const PASSES: [&str; 23] = [
    "gradient",
    "adam",
    "adam_after_coarse",
    "keep",
    "blend",
    "descend",
    "anchor",
    "local",
    "progress",
    "first_progress",
    "unsent",
    "rebase",
    "first_rebase",
    "fold_in",
    "own_update",
    "subtract",
    "own_progress",
    "difference",
    "return",
    "outer_average",
    "outer_slow_momentum",
    "outer_nesterov",
    "outer_sign",
];

/// What is on the device.
#[derive(Default)]
pub struct Memory {
    /// By name: `params`, `gradient`, `kept`, and the optimizer's own.
    vectors: BTreeMap<&'static str, Vec<f32>>,
    up: Residual,
    down: Residual,
    ends: Vec<usize>,
    /// The passes and sources that were asked for.
    pub called: BTreeSet<&'static str>,
    /// What it pretends not to have.
    pub lacks_pass: Option<&'static str>,
    pub lacks_codec: Option<CodecName>,
    /// The call of this name fails, as a GPU may: a pass, a source, `reserve` or `digest`.
    pub breaks_at: Option<&'static str>,
    /// Values that were copied from the device, and to it.
    pub copied: [usize; 2],
}

enum Residual {
    Wide(Vec<f32>),
    Half(Vec<Half>),
}

impl Default for Residual {
    fn default() -> Residual {
        Residual::Wide(Vec::new())
    }
}

impl Residual {
    fn new(len: usize, precision: Precision) -> Residual {
        match precision {
            Precision::Bf16 => Residual::Half(vec![[0; 2]; len]),
            _ => Residual::Wide(vec![0.0; len]),
        }
    }

    fn read(&self) -> Vec<f32> {
        match self {
            Residual::Wide(values) => values.clone(),
            Residual::Half(halves) => {
                let mut values = vec![0.0; halves.len()];
                bf16::read(halves, &mut values);
                values
            }
        }
    }

    fn write(&mut self, at: usize, values: &[f32]) {
        match self {
            Residual::Wide(own) => own[at..][..values.len()].copy_from_slice(values),
            Residual::Half(own) => bf16::write(values, &mut own[at..][..values.len()]),
        }
    }
}

/// The device: a handle to its memory.
#[derive(Clone, Default)]
pub struct Foreign(Arc<Mutex<Memory>>);

impl Foreign {
    /// With these parameters on it.
    pub fn new(params: &[f32]) -> Foreign {
        let device = Foreign::default();
        let vectors = [("params", params.to_vec()), ("gradient", vec![0.0; params.len()])];
        device.memory().vectors = BTreeMap::from(vectors);
        device
    }

    pub fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.lock().expect("no test panics in here")
    }

    pub fn params(&self) -> Vec<f32> {
        self.memory().vectors["params"].clone()
    }

    pub fn set_gradient(&self, gradient: &[f32]) {
        self.memory().vectors.insert("gradient", gradient.to_vec());
    }
}

impl Memory {
    fn failed(problem: String) -> Error {
        Error::Device { device: "foreign".to_owned(), problem }
    }

    fn unbroken(&self, name: &'static str) -> Result<()> {
        match self.breaks_at == Some(name) {
            true => Err(Memory::failed(format!("`{name}` was interrupted"))),
            false => Ok(()),
        }
    }

    /// A call that the device does not have is an error with its name.
    fn called(&mut self, name: &'static str) -> Result<()> {
        self.unbroken(name)?;
        if !PASSES.contains(&name) || self.lacks_pass == Some(name) {
            return Err(Memory::failed(format!("it has no pass `{name}`")));
        }
        self.called.insert(name);
        Ok(())
    }

    /// z of the values in `range`.
    fn source(&mut self, call: Call<'_>, range: Range<usize>) -> Result<Vec<f32>> {
        self.called(call.name)?;
        match call.name {
            "gradient" => return Ok(self.vectors["gradient"][range].to_vec()),
            "unsent" => return Ok(self.vectors["u"][range].to_vec()),
            _ => {}
        }
        let mut z = vec![0.0; range.len()];
        for (k, part) in self.groups(call.scalars, range.clone()) {
            let out = &mut z[part.start - range.start..part.end - range.start];
            let g = self.vectors["gradient"][part.clone()].to_vec();
            match call.name {
                "blend" => update::blend(&k, &g, &self.vectors["m"][part], out),
                "progress" if k.rate > 0.0 => {
                    update::progress(&k, &g, &self.vectors["m"][part.clone()], &self.vectors["u"][part], out);
                }
                "progress" => out.copy_from_slice(&self.vectors["u"][part]),
                "first_progress" if k.rate > 0.0 => update::first_progress(&k, &g, &self.vectors["m"][part], out),
                "first_progress" => out.fill(0.0),
                "own_progress" => {
                    let [a, x] = ["anchor", "params"].map(|name| self.vectors[name][part.clone()].to_vec());
                    self.with(["m", "v"], part, |[m, v]| update::own_progress(&k, &g, &a, &x, m, v, out));
                }
                "difference" => {
                    update::difference(&self.vectors["anchor"][part.clone()], &self.vectors["params"][part], out);
                }
                "own_update" => self.with(["m", "v"], part, |[m, v]| update::own_update(&k, &g, m, v, out)),
                other => return Err(Memory::failed(format!("`{other}` makes no vector"))),
            }
        }
        Ok(z)
    }

    /// A pass on the values in `range`; `input` is as long as it is, or empty. Returns the first jump.
    fn pass(&mut self, call: Call<'_>, range: Range<usize>, input: &[f32]) -> Result<Option<usize>> {
        self.called(call.name)?;
        let mut first = None;
        for (k, part) in self.groups(call.scalars, range.clone()) {
            let input = input.get(part.start - range.start..part.end - range.start).unwrap_or_default();
            let jumped = self.apply(call.name, &k, part.clone(), input)?;
            first = first.or(jumped.map(|place| part.start + place));
        }
        Ok(first)
    }

    fn apply(&mut self, name: &str, k: &Scalars, part: Range<usize>, input: &[f32]) -> Result<Option<usize>> {
        let v = self.vectors.get("v").map_or(Vec::new(), |v| v[part.clone()].to_vec());
        let a = self.vectors.get("anchor").map_or(Vec::new(), |a| a[part.clone()].to_vec());
        match name {
            "adam" => {
                let jumped = |[m, v, x]: [&mut [f32]; 3]| update::adam(k, input, m, v, x).then(|| k.jumped(m, v));
                return Ok(self.with(["m", "v", "params"], part, jumped).flatten());
            }
            "adam_after_coarse" => {
                let jumped =
                    |[m, v, x]: [&mut [f32]; 3]| update::adam_after_coarse(k, input, m, v, x).then(|| k.jumped(m, v));
                return Ok(self.with(["m", "v", "params"], part, jumped).flatten());
            }
            "subtract" => {
                let jumped = k.moves && self.with(["params"], part, |[x]| update::subtract(k, input, x));
                return Ok(jumped.then(|| input.iter().position(|update| update.abs() > k.jump)).flatten());
            }
            "keep" => self.with(["kept"], part, |[kept]| kept.copy_from_slice(input)),
            "descend" => self.with(["m", "params"], part, |[m, x]| update::descend(k, input, &v, m, x)),
            "anchor" => {
                let x = self.vectors["params"][part.clone()].to_vec();
                self.with(["anchor"], part, |[a]| a.copy_from_slice(&x));
            }
            "local" if k.rate > 0.0 => {
                self.with(["m", "u", "params"], part, |[m, u, x]| update::local(k, input, &v, m, u, x));
            }
            "rebase" if k.moves => {
                self.with(["m", "u", "params"], part, |[m, u, x]| update::rebase(k, input, &v, &a, m, u, x));
            }
            "first_rebase" if k.moves => {
                self.with(["m", "params"], part, |[m, x]| update::first_rebase(k, input, &v, m, x));
            }
            "fold_in" => {
                let mean = self.vectors["u"][part.clone()].to_vec();
                self.with(["m", "u", "params"], part, |[m, u, x]| update::rebase(k, &mean, &v, &a, m, u, x));
            }
            "return" if !k.moves => self.with(["params"], part, |[x]| x.copy_from_slice(&a)),
            "outer_average" if k.moves => {
                self.with(["anchor", "params"], part, |[a, x]| update::outer_average(k, input, a, x));
            }
            "outer_slow_momentum" | "outer_nesterov" | "outer_sign" if k.moves => {
                let step = match name {
                    "outer_nesterov" => update::outer_nesterov,
                    _ if k.outer.unit == 0.0 => return Ok(None),
                    "outer_sign" => update::outer_sign,
                    _ => update::outer_slow_momentum,
                };
                self.with(["anchor", "outer_momentum", "params"], part, |[a, b, x]| step(k, input, a, b, x));
            }
            "local" | "rebase" | "first_rebase" | "return" => {}
            "outer_average" | "outer_slow_momentum" | "outer_nesterov" | "outer_sign" => {}
            other => return Err(Memory::failed(format!("`{other}` takes no mean"))),
        }
        Ok(None)
    }

    /// Calls `work` on the same part of several vectors.
    fn with<const N: usize, T>(
        &mut self,
        names: [&'static str; N],
        part: Range<usize>,
        work: impl FnOnce([&mut [f32]; N]) -> T,
    ) -> T {
        let mut taken = names.map(|name| self.vectors.remove(name).expect("a vector of this name"));
        let done = work(taken.each_mut().map(|vector| &mut vector[part.clone()]));
        self.vectors.extend(names.into_iter().zip(taken));
        done
    }

    /// The parts of `range` that are of one group, each with its scalars.
    fn groups(&self, scalars: &[Scalars], range: Range<usize>) -> Vec<(Scalars, Range<usize>)> {
        let starts = [0].into_iter().chain(self.ends.iter().copied());
        let parts = starts.zip(&self.ends).map(|(start, end)| start.max(range.start)..(*end).min(range.end));
        // A sync between two means has no scalars, and its passes need none.
        scalars.iter().copied().zip(parts).filter(|(_, part)| !part.is_empty()).collect()
    }

    /// Codes z and a residual block by block: `at` is where z starts in the residual.
    fn encode(
        residual: Option<(&mut Residual, usize)>,
        coder: Coder,
        z: &[f32],
        out: &mut [u8],
    ) -> Result<(), Refused> {
        let codec = coder.codec.codec();
        let blocks = z.chunks(coder.block).zip(out.chunks_mut(codec.encoded_len(coder.block))).enumerate();
        let overflow = |_| Refused::Overflow;
        let Some((residual, at)) = residual else {
            return blocks.into_iter().try_for_each(|(_, (z, out))| codec.encode(z, out)).map_err(overflow);
        };
        for (i, (z, out)) in blocks {
            let place = at + i * coder.block..at + i * coder.block + z.len();
            let coded = match residual {
                Residual::Wide(e) => codec.encode_with(z, &mut e[place], out),
                Residual::Half(e) => codec.encode_with_half(z, &mut e[place], out),
            };
            coded.map_err(overflow)?;
        }
        Ok(())
    }
}

/// Decodes block by block.
fn decode(coder: Coder, payload: &[u8], len: usize) -> Result<Vec<f32>, Refused> {
    let (codec, mut values) = (coder.codec.codec(), vec![0.0; len]);
    let blocks = values.chunks_mut(coder.block).zip(payload.chunks(codec.encoded_len(coder.block)));
    let refused = |fault| Refused::Payload(0, fault);
    blocks.into_iter().try_for_each(|(out, bytes)| codec.decode(bytes, out)).map_err(refused)?;
    Ok(values)
}

fn tiles(values: &[f32], of: impl Fn(&[f32]) -> f64) -> f64 {
    values.chunks(TILE).map(of).sum()
}

impl Device for Foreign {
    fn name(&self) -> String {
        "foreign".to_owned()
    }

    fn len(&self) -> usize {
        self.memory().vectors["params"].len()
    }

    fn has_pass(&self, name: &str) -> bool {
        PASSES.contains(&name) && self.memory().lacks_pass != Some(name)
    }

    fn has_codec(&self, codec: CodecName) -> bool {
        self.memory().lacks_codec != Some(codec)
    }

    fn reserve(&mut self, room: &Room) -> Result<()> {
        let mut memory = self.memory();
        memory.unbroken("reserve")?;
        let len = memory.vectors["params"].len();
        memory.vectors.extend(room.vectors.iter().map(|name| (*name, vec![0.0; len])));
        if room.keeps {
            memory.vectors.insert("kept", vec![0.0; len]);
        }
        memory.up = Residual::new(room.up, room.residual);
        memory.down = Residual::new(room.down, room.residual);
        memory.ends.clone_from(&room.ends);
        Ok(())
    }

    fn pass(&mut self, call: Call<'_>, input: Input) -> Result<Option<usize>> {
        let mut memory = self.memory();
        let input = match input {
            Input::Gradient => memory.vectors["gradient"].clone(),
            Input::Kept => memory.vectors["kept"].clone(),
            Input::Nothing => Vec::new(),
            _ => unreachable!("the engine has no other"),
        };
        let len = memory.vectors["params"].len();
        memory.pass(call, 0..len, &input)
    }

    fn pack(
        &mut self,
        call: Call<'_>,
        remembers: bool,
        coder: Coder,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let memory = &mut *self.memory();
        let z = memory.source(call, range.clone())?;
        Memory::encode(remembers.then_some((&mut memory.up, range.start)), coder, &z, bytes)
    }

    fn serve(
        &mut self,
        sum: &Sum<'_>,
        feedback: Feedback,
        range: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let memory = &mut *self.memory();
        let coder = |coded: thinwire::inside::machine::Coded<'_>| Coder { codec: coded.name, block: coded.block };
        let mut total = vec![0.0; range.len()];
        for (place, payload) in sum.payloads() {
            let values = decode(coder(sum.from), payload, range.len()).map_err(|refused| match refused {
                Refused::Payload(_, fault) => Refused::Payload(place, fault),
                other => other,
            })?;
            total.iter_mut().zip(values).for_each(|(total, value)| *total += value);
        }
        reduce::divide(sum.divisor, &mut total);
        let residual = match feedback {
            Feedback::None => None,
            Feedback::Up => Some((&mut memory.up, range.start)),
            Feedback::Down { owned } => Some((&mut memory.down, range.start - owned)),
            _ => unreachable!("the engine has no other"),
        };
        Memory::encode(residual, coder(sum.to), &total, bytes)
    }

    fn unpack(
        &mut self,
        call: Call<'_>,
        compares: bool,
        coder: Coder,
        range: Range<usize>,
        payload: &[u8],
    ) -> Result<Option<usize>, Refused> {
        let mut memory = self.memory();
        let mean = decode(coder, payload, range.len())?;
        if compares {
            let e = memory.up.read()[range.clone()].iter().zip(&mean).map(|(e, p)| e - p).collect::<Vec<_>>();
            memory.up.write(range.start, &e);
        }
        Ok(memory.pass(call, range, &mean)?)
    }

    fn take_back(&mut self, coder: Coder, payload: &[u8]) -> Result<(), Refused> {
        let mut memory = self.memory();
        let mut e = memory.up.read();
        let q = decode(coder, payload, e.len())?;
        e.iter_mut().zip(q).for_each(|(e, q)| *e += q);
        memory.up.write(0, &e);
        Ok(())
    }

    fn shorten(&mut self, factor: f32) -> Result<()> {
        let mut memory = self.memory();
        memory.vectors.get_mut("gradient").expect("it is there").iter_mut().for_each(|g| *g *= factor);
        Ok(())
    }

    fn number(&mut self, of: Number) -> Result<f64> {
        let memory = self.memory();
        Ok(match of {
            Number::NotFinite => f64::from(u8::from(!reduce::all_within(&memory.vectors["gradient"]))),
            Number::GradientSquared => tiles(&memory.vectors["gradient"], reduce::sum_of_squares),
            Number::KeptSquared => tiles(&memory.vectors["kept"], reduce::sum_of_squares),
            Number::Sum(name) => tiles(&memory.vectors[name], reduce::sum),
            _ => unreachable!("the engine has no other"),
        })
    }

    fn digest(&mut self, range: Range<usize>) -> Result<u64> {
        let memory = self.memory();
        memory.unbroken("digest")?;
        Ok(reduce::digest(range.start, &memory.vectors["params"][range]))
    }

    fn read(&mut self, which: Which, range: Range<usize>, out: &mut [f32]) -> Result<()> {
        let mut memory = self.memory();
        memory.copied[0] += out.len();
        match which {
            Which::Params => out.copy_from_slice(&memory.vectors["params"][range]),
            Which::Own(name) => out.copy_from_slice(&memory.vectors[name][range]),
            Which::Up => out.copy_from_slice(&memory.up.read()[range]),
            Which::Down => out.copy_from_slice(&memory.down.read()[range]),
            _ => unreachable!("the engine has no other"),
        }
        Ok(())
    }

    fn write(&mut self, which: Which, range: Range<usize>, from: &[f32]) -> Result<()> {
        let memory = &mut *self.memory();
        memory.copied[1] += from.len();
        match which {
            Which::Params => memory.vectors.get_mut("params").expect("it is there")[range].copy_from_slice(from),
            Which::Own(name) => memory.vectors.get_mut(name).expect("it is there")[range].copy_from_slice(from),
            Which::Up => memory.up.write(range.start, from),
            Which::Down => memory.down.write(range.start, from),
            _ => unreachable!("the engine has no other"),
        }
        Ok(())
    }
}
