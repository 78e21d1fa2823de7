//! Γ and D: what the steps since the last sync come to, for each parameter group.

use super::Step;
use crate::kernel::update::Since;
use crate::state::{Entry, Share};

/// Steps that the other workers have not seen yet.
pub struct Interval {
    /// Γ of each group: Σγ̂.
    rates: Vec<f64>,
    /// D of each group: Π(1−γλ).
    decays: Vec<f64>,
}

impl Interval {
    /// Just after a sync.
    pub fn new(groups: usize) -> Interval {
        Interval { rates: vec![0.0; groups], decays: vec![1.0; groups] }
    }

    /// Γ ← Γ + γ̂,  D ← D·(1−γλ), from the scalars of a step.
    pub fn add(&mut self, step: &Step<'_>) {
        for ((rate, decay), k) in self.rates.iter_mut().zip(&mut self.decays).zip(&step.scalars) {
            *rate += f64::from(k.rate);
            *decay *= f64::from(k.decay);
        }
    }

    /// Tells the passes of a step: [`Scalars::since`](crate::kernel::update::Scalars::since).
    pub fn tell(&self, step: &mut Step<'_>) {
        self.since().zip(&mut step.scalars).for_each(|(since, k)| k.since = since);
    }

    /// Γ and D of each group.
    pub fn since(&self) -> impl Iterator<Item = Since> + '_ {
        let of = |(rate, decay): (&f64, &f64)| Since { rates: *rate as f32, decays: *decay as f32 };
        self.rates.iter().zip(&self.decays).map(of)
    }

    /// Γ ← 0,  D ← 1.
    pub fn restart(&mut self) {
        self.rates.fill(0.0);
        self.decays.fill(1.0);
    }

    /// Both, by the names that checkpoints have.
    pub fn numbers(&mut self) -> [Entry<'_>; 2] {
        self.numbers_as(["rates_since_sync", "decays_since_sync"])
    }

    /// The same by other names.
    pub fn numbers_as(&mut self, [rates, decays]: [&'static str; 2]) -> [Entry<'_>; 2] {
        [
            Entry::doubles(rates, Share::Same, &mut self.rates),
            Entry::doubles(decays, Share::Same, &mut self.decays).starting_at(1.0),
        ]
    }
}
