//! Labelled images: the digits that are compiled in, sets of the MNIST family (IDX files), CIFAR-10 and CIFAR-100.
//!
//! All become the same thing: bytes, channel by channel, and a label a picture. Sizes that a file claims are checked against
//! the bytes that are there before anything is made of them. A set without a held-out part gives a fifth, always the same one.

pub(crate) mod cifar;
mod digits;
pub(crate) mod idx;

use crate::random::Random;
use crate::{Error, Result};
use std::path::{Path, PathBuf};

/// Labelled images, all of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub classes: usize,
    pub train: Split,
    pub held_out: Split,
}

/// Pixels are bytes, image by image, channel by channel, row by row (CHW).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub pixels: Vec<u8>,
    pub labels: Vec<u8>,
}

/// The images at `path`, a folder or one file of a set; without one, the digits.
pub fn read(path: Option<&Path>) -> Result<Images> {
    match path {
        None => Ok(digits::read()),
        Some(folder) if folder.is_dir() => read_folder(folder),
        Some(file) => match idx::Set::of_file(file) {
            Some(set) => set.read(),
            None => cifar::read_file(file),
        },
    }
}

/// The files that [`read`] reads: none for what is compiled in.
pub fn files(path: Option<&Path>) -> Result<Vec<PathBuf>> {
    match path {
        None => Ok(Vec::new()),
        Some(folder) if folder.is_dir() => {
            let idx = idx::Set::of_folder(folder);
            if idx.is_there() { idx.files() } else { Ok(cifar::files(folder)) }
        }
        Some(file) => idx::Set::of_file(file).map_or_else(|| Ok(vec![file.to_owned()]), |set| set.files()),
    }
}

fn read_folder(folder: &Path) -> Result<Images> {
    let idx = idx::Set::of_folder(folder);
    if idx.is_there() {
        return idx.read();
    }
    cifar::read_folder(folder)?.ok_or_else(|| {
        Error::data(
            folder,
            "no images in this folder: looked for the IDX files of the MNIST family (train-images-idx3-ubyte, \
             train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte), for CIFAR-10 (data_batch_1.bin to \
             data_batch_5.bin, test_batch.bin) and for CIFAR-100 (train.bin, test.bin), each also with .gz",
        )
    })
}

impl Split {
    /// Takes a fifth out, the same one every time; the rest and the fifth keep their order.
    fn hold_out_a_fifth(self) -> (Split, Split) {
        let size = self.pixels.len() / self.labels.len();
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        Random::of(&[0]).shuffle(&mut order);
        let mut is_held_out = vec![false; order.len()];
        for &index in &order[..order.len().div_ceil(5)] {
            is_held_out[index] = true;
        }
        let (mut train, mut held_out) = (Split::default(), Split::default());
        for (index, picture) in self.pixels.chunks_exact(size).enumerate() {
            let split = if is_held_out[index] { &mut held_out } else { &mut train };
            split.pixels.extend(picture);
            split.labels.push(self.labels[index]);
        }
        (train, held_out)
    }
}
