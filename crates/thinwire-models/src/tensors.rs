//! Names and shapes of the tensors that make up the one flat vector.

use crate::random::Random;
use std::ops::Range;

/// How a tensor starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Zeros,
    Ones,
    /// Normal, with this standard deviation.
    Normal(f64),
}

#[derive(Clone, Debug)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
    pub init: Init,
}

impl Tensor {
    /// Whether weight decay is customary: for matrices and kernels, not for biases and gains.
    pub fn decays(&self) -> bool {
        self.shape.len() > 1
    }
}

/// The tensors in the order in which they lie.
#[derive(Clone, Debug, Default)]
pub struct Tensors {
    list: Vec<Tensor>,
}

impl Tensors {
    /// Adds a tensor behind the others, and says where it lies.
    pub fn add(&mut self, name: impl Into<String>, shape: &[usize], init: Init) -> Range<usize> {
        let start = self.len();
        let range = start..start + shape.iter().product::<usize>();
        self.list.push(Tensor { name: name.into(), shape: shape.to_vec(), range: range.clone(), init });
        range
    }

    /// Parameters in all.
    pub fn len(&self) -> usize {
        self.list.last().map_or(0, |tensor| tensor.range.end)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Tensor> {
        self.list.iter()
    }

    /// The parameters that training starts from.
    pub fn initial(&self, seed: u64) -> Vec<f32> {
        let mut params = vec![0.0; self.len()];
        for (index, tensor) in self.list.iter().enumerate() {
            let values = &mut params[tensor.range.clone()];
            match tensor.init {
                Init::Zeros => {}
                Init::Ones => values.fill(1.0),
                Init::Normal(deviation) => {
                    let mut random = Random::of(&[seed, index as u64]);
                    values.fill_with(|| (random.normal() * deviation) as f32);
                }
            }
        }
        params
    }
}
