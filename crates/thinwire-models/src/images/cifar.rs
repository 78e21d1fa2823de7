//! CIFAR-10 and CIFAR-100 in their binary form: records of a label, or two, and 3 × 32 × 32 pixels, one after another.
//!
//! CIFAR-100 has a coarse label of 20 and a fine one of 100; the fine one is learned.

use super::{Images, Split};
use crate::{Error, Result, file};
use std::path::{Path, PathBuf};

const SIDE: usize = 32;
const PIXELS: usize = 3 * SIDE * SIDE;

/// A kind of record: how many classes each of its labels has; the last label is the one to learn.
struct Kind {
    name: &'static str,
    classes: &'static [usize],
    train: &'static [&'static str],
    held_out: &'static str,
}

const CIFAR_10: Kind = Kind {
    name: "CIFAR-10",
    classes: &[10],
    train: &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"],
    held_out: "test_batch.bin",
};
const CIFAR_100: Kind = Kind { name: "CIFAR-100", classes: &[20, 100], train: &["train.bin"], held_out: "test.bin" };

/// The set in a folder; None when there is no file of one.
pub fn read_folder(folder: &Path) -> Result<Option<Images>> {
    for kind in [CIFAR_10, CIFAR_100] {
        let is_there = |name: &&str| find(folder, name).is_some();
        if kind.train.iter().any(is_there) || is_there(&kind.held_out) {
            return kind.read_folder(folder).map(Some);
        }
    }
    Ok(None)
}

/// The files of the set in a folder, as far as they are there.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let found = |kind: &Kind| kind.train.iter().chain([&kind.held_out]).filter_map(|name| find(folder, name)).collect();
    [CIFAR_10, CIFAR_100].iter().map(found).find(|files: &Vec<PathBuf>| !files.is_empty()).unwrap_or_default()
}

/// One file of records, a fifth of them held out. Which kind it is, its length says.
pub fn read_file(path: &Path) -> Result<Images> {
    parse(path, &file::read(path)?)
}

/// The same of the bytes of the file at `path`.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Images> {
    let Some(kind) = [CIFAR_10, CIFAR_100].into_iter().find(|kind| bytes.len().is_multiple_of(kind.record())) else {
        let problem = format!(
            "not images: {} bytes are no whole number of CIFAR-10 records (3073 bytes) or CIFAR-100 records (3074 bytes), and \
             IDX files are known by their names, such as train-images-idx3-ubyte or train-images-idx3-ubyte.gz",
            bytes.len()
        );
        return Err(Error::data(path, problem));
    };
    let mut all = Split::default();
    kind.add_records(path, bytes, &mut all)?;
    if all.labels.len() < 2 {
        return Err(Error::data(path, "one image alone: there is none to hold out"));
    }
    let (train, held_out) = all.hold_out_a_fifth();
    Ok(kind.images(train, held_out))
}

impl Kind {
    fn record(&self) -> usize {
        self.classes.len() + PIXELS
    }

    fn images(&self, train: Split, held_out: Split) -> Images {
        let classes = self.classes[self.classes.len() - 1];
        Images { channels: 3, height: SIDE, width: SIDE, classes, train, held_out }
    }

    fn read_folder(&self, folder: &Path) -> Result<Images> {
        Ok(self.images(self.read_files(folder, self.train)?, self.read_files(folder, &[self.held_out])?))
    }

    fn read_files(&self, folder: &Path, names: &[&str]) -> Result<Split> {
        let mut split = Split::default();
        for name in names {
            let path = find(folder, name).ok_or_else(|| {
                let problem = format!(
                    "is missing, also with .gz: {} is {} and {}",
                    self.name,
                    self.train.join(", "),
                    self.held_out
                );
                Error::data(folder.join(name), problem)
            })?;
            self.add_records(&path, &file::read(&path)?, &mut split)?;
        }
        Ok(split)
    }

    fn add_records(&self, path: &Path, bytes: &[u8], split: &mut Split) -> Result<()> {
        if !bytes.len().is_multiple_of(self.record()) {
            let (found, size) = (bytes.len(), self.record());
            let whole = found.div_ceil(size) * size;
            let problem = format!("cut short: {found} bytes, where whole records of {size} bytes would be {whole}");
            return Err(Error::data(path, problem));
        }
        for (index, record) in bytes.chunks_exact(self.record()).enumerate() {
            let (labels, pixels) = record.split_at(self.classes.len());
            for (&label, &classes) in labels.iter().zip(self.classes) {
                if usize::from(label) >= classes {
                    let problem =
                        format!("record {index}: label {label} is out of range, 0 to {} are expected", classes - 1);
                    return Err(Error::data(path, problem));
                }
            }
            split.labels.extend(labels.last());
            split.pixels.extend(pixels);
        }
        Ok(())
    }
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    [folder.join(name), folder.join(format!("{name}.gz"))].into_iter().find(|path| path.is_file())
}
