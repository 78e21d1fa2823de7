//! An optimizer that lives outside of the engine, in one file: Adam on a compressed gradient, after some exact steps.
//!
//! ```text
//! t < start:   ḡ = exact mean of g, each worker's own clipped
//! else:        ḡ = coarse mean of the same
//! then         m ← β1·m + (1−β1)·ḡ;   v ← β2·v + (1−β2)·ḡ²;   x ← x·(1−γλ) − γ̂·m/P
//! ```
//!
//! It shows that an optimizer needs nothing else: one call of [`add`], and it is configured, planned, saved, resumed, regrouped and served
//! like any other.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use thinwire::inside::exchange::Exchange;
use thinwire::inside::kernel::update::{self, Scalars};
use thinwire::inside::machine::{Pass, Read, Source, Step, Vector, Write};
use thinwire::inside::optim::{Hyper, M, Optimizer, V, Vectors, X};
use thinwire::inside::state::{Entry, Share};
use thinwire::inside::{Algorithm, Optimizers, Options, Row};
use thinwire::{CodecName, Config, Name, Result, Round};

/// As configurations have it.
pub const NAME: &str = "toy-adam";

/// Makes it known to this process.
pub fn add() {
    static ROW: Row = Row::of::<Toy>();
    Optimizers::add(&ROW);
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Toy {
    /// The first coarse step. Default 10.
    pub start: Option<u64>,
}

impl Options for Toy {
    const NAME: Name = Name::new(NAME);
    const TITLE: &'static str = "the toy";
    const EXACT: Option<CodecName> = Some(CodecName::F32);
    const COARSE: Option<CodecName> = Some(CodecName::Uniform(4));

    fn decide(self, _: &mut Config) -> Result<Box<dyn Algorithm>> {
        Ok(Box::new(Decided { start: self.start.unwrap_or(10) }))
    }
}

#[derive(Clone, Copy, Debug)]
struct Decided {
    start: u64,
}

impl Algorithm for Decided {
    fn options(&self) -> Map<String, Value> {
        Map::from_iter([("start".to_owned(), json!(self.start))])
    }

    fn vectors(&self) -> Vectors {
        &[("m", Share::Same), ("v", Share::Same)]
    }

    fn passes(&self) -> &'static [&'static str] {
        &[Clipped::NAME, Adam::NAME]
    }

    fn round(&self, t: u64, _: f32) -> Round {
        if t < self.start { Round::Exact } else { Round::Coarse }
    }

    fn rank(&self, _: CodecName) -> Option<usize> {
        None
    }

    fn build(&self, hyper: Hyper) -> Box<dyn Optimizer> {
        Box::new(Running { hyper, calendar: *self, updates: 0 })
    }
}

/// z = g, clipped: the worker's own gradient.
struct Clipped;

impl Source for Clipped {
    const NAME: &'static str = "toy_clipped";

    fn fill(k: &Scalars, g: &[f32], _: Read<'_>, _: Write<'_>, z: &mut [f32]) {
        z.iter_mut().zip(g).for_each(|(z, g)| *z = k.shrink * g);
    }
}

/// Adam on the mean, which needs no clipping any more.
struct Adam;

impl Pass for Adam {
    const NAME: &'static str = "toy_adam";
    const WRITES: &'static [Vector] = &[M, V, X];

    fn run(k: &Scalars, mean: &[f32], _: Read<'_>, [m, v, x, _]: Write<'_>) -> Option<usize> {
        update::adam(&Scalars { shrink: 1.0, ..*k }, mean, m, v, x);
        None
    }
}

struct Running {
    hyper: Hyper,
    calendar: Decided,
    updates: u64,
}

impl Optimizer for Running {
    fn step(&mut self, step: &mut Step<'_>, exchange: &mut Exchange) -> Result<Round> {
        let (round, beta2) = (self.calendar.round(step.t, step.lr), self.hyper.betas.1);
        self.hyper.prepare(step, beta2, beta2.powf(self.updates as f64 + 1.0));
        self.updates += u64::from(exchange.mean(round, step, Clipped, Adam)? > 0);
        Ok(round)
    }

    fn numbers(&mut self) -> Vec<Entry<'_>> {
        vec![Entry::word("variance_updates", &mut self.updates)]
    }
}
