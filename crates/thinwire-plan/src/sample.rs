//! Vectors to measure with: random, and the same in every run.

use crate::random::Random;
use thinwire::inside::machine::Floats;

/// Values between −`largest` and `largest`.
pub fn vector(values: usize, largest: f32) -> Floats {
    let (mut x, mut random) = (Floats::zeroed(values), Random::of(&[]));
    x.iter_mut().for_each(|x| *x = largest * (2.0 * random.unit() as f32 - 1.0));
    x
}
