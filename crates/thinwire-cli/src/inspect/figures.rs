//! What a tensor looks like from afar: how long it is, how large its values are, and whether all of them are finite.

use serde::Serialize;

/// Of the finite values; the others are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    pub values: u64,
    /// √Σx².
    pub norm: f64,
    /// √(Σx²/values).
    pub rms: f64,
    /// The largest |x|.
    pub largest: f64,
    /// NaN and infinite values.
    pub non_finite: u64,
}

/// Adds up values that come in pieces.
#[derive(Debug, Default)]
pub struct Sums {
    values: u64,
    squares: f64,
    largest: f64,
    non_finite: u64,
}

impl Sums {
    pub fn add(&mut self, value: f64) {
        self.values += 1;
        if value.is_finite() {
            self.squares += value * value;
            self.largest = self.largest.max(value.abs());
        } else {
            self.non_finite += 1;
        }
    }

    pub fn figures(&self) -> Figures {
        let finite = (self.values - self.non_finite).max(1) as f64;
        Figures {
            values: self.values,
            norm: self.squares.sqrt(),
            rms: (self.squares / finite).sqrt(),
            largest: self.largest,
            non_finite: self.non_finite,
        }
    }
}

/// The figures of a vector in memory.
pub fn of(values: &[f32]) -> Figures {
    let mut sums = Sums::default();
    values.iter().for_each(|value| sums.add(f64::from(*value)));
    sums.figures()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn norms_are_of_the_finite_values() {
        let figures = of(&[3.0, -4.0, f32::NAN, f32::INFINITY]);
        assert_eq!((figures.values, figures.non_finite), (4, 2));
        assert_eq!((figures.norm, figures.largest), (5.0, 4.0));
        assert!((figures.rms - 12.5_f64.sqrt()).abs() < 1e-12);
        assert_eq!(of(&[]), Figures::default());
    }
}
