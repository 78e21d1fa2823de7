//! A residual that is made up: numbers that stand where a residual would, take no memory, and are forgotten.
//!
//! Each is a pure function of the step, of who codes, and of the place in the vector; so a run that resumes has the same ones, and a
//! server can make them too. What one bit cannot say by itself it says with them on average.

use crate::kernel::chance;

/// What is added before a value is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dither {
    /// ξ in (−1, 1): the vote on r + ξ is + with chance (1+r)/2 ([`chance`]).
    Coin {
        /// Of all coins, the same on all workers.
        seed: u64,
    },
    /// The smallest normal number, + on even steps and − on odd ones. It is nothing beside any other value, and it is the sign of a 0,
    /// which one bit would otherwise call + for ever.
    Turns,
}

impl Dither {
    /// What a device knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Dither::Coin { .. } => "coin",
            Dither::Turns => "turns",
        }
    }

    /// In this step, by worker `who`; an owner's number is that of the workers.
    pub fn at(self, step: u64, who: usize) -> Made {
        match self {
            Dither::Coin { seed } => Made::Coin { stream: chance::stream(seed, step, who as u64) },
            Dither::Turns => Made::Turn { minus: !step.is_multiple_of(2) },
        }
    }
}

/// A [`Dither`] of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are explained with their variants
pub enum Made {
    /// Of this stream of chance.
    Coin { stream: u64 },
    /// Everywhere the same.
    Turn { minus: bool },
}

impl Made {
    /// out ← its values from the place `from` on.
    pub fn fill(self, from: usize, out: &mut [f32]) {
        match self {
            Made::Coin { stream } => chance::fill(stream, from as u64, out),
            Made::Turn { minus } => out.fill(if minus { -f32::MIN_POSITIVE } else { f32::MIN_POSITIVE }),
        }
    }
}
