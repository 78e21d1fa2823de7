//! IDX, the format of MNIST and of the sets made after it (Fashion-MNIST, KMNIST, EMNIST).
//!
//! A file is a magic number (two zeros, 8 for bytes, the number of dimensions), the dimensions as 32-bit big-endian numbers,
//! and the bytes. A set is four files: images and labels, to train on and held out. How many classes there are is written
//! nowhere; the training labels say it.

use super::{Images, Split};
use crate::{Error, Result, file};
use std::path::{Path, PathBuf};

const IMAGES: &str = "-images";
const LABELS: &str = "-labels";
const TRAIN: &[&str] = &["train"];
const HELD_OUT: &[&str] = &["t10k", "test"];

/// Where a set is: its folder, and what stands before `train-images-idx3-ubyte` in its names (`emnist-letters-`; mostly nothing).
pub struct Set {
    folder: PathBuf,
    prefix: String,
}

impl Set {
    pub fn of_folder(folder: &Path) -> Set {
        Set { folder: folder.to_owned(), prefix: String::new() }
    }

    /// The set that a file belongs to, by its name; None when the name is not that of an IDX file.
    pub fn of_file(path: &Path) -> Option<Set> {
        let name = path.file_name()?.to_str()?;
        let endings =
            TRAIN.iter().chain(HELD_OUT).flat_map(|part| [spellings(part, IMAGES), spellings(part, LABELS)]).flatten();
        let prefix = endings.filter_map(|ending| name.strip_suffix(&ending).map(str::to_owned)).next()?;
        Some(Set { folder: path.parent()?.to_owned(), prefix })
    }

    pub fn is_there(&self) -> bool {
        [(TRAIN, IMAGES), (TRAIN, LABELS), (HELD_OUT, IMAGES), (HELD_OUT, LABELS)]
            .iter()
            .any(|(parts, kind)| self.find(parts, kind).is_ok())
    }

    /// The four files of the set.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let kinds = [(TRAIN, IMAGES), (TRAIN, LABELS), (HELD_OUT, IMAGES), (HELD_OUT, LABELS)];
        kinds.iter().map(|(parts, kind)| self.find(parts, kind)).collect()
    }

    pub fn read(&self) -> Result<Images> {
        let [train_labels, held_out_labels] = [self.find(TRAIN, LABELS)?, self.find(HELD_OUT, LABELS)?];
        let [train_images, held_out_images] = [self.find(TRAIN, IMAGES)?, self.find(HELD_OUT, IMAGES)?];
        parse([&train_images, &train_labels, &held_out_images, &held_out_labels], file::read)
    }

    fn find(&self, parts: &[&str], kind: &str) -> Result<PathBuf> {
        let mut names = parts
            .iter()
            .flat_map(|part| spellings(part, kind))
            .map(|name| self.folder.join(self.prefix.clone() + &name));
        names.clone().find(|path| path.is_file()).ok_or_else(|| {
            let first = names.next().unwrap_or_default();
            Error::data(first, "is missing, also with .gz: a set is images and labels, train and t10k (or test)")
        })
    }
}

/// The set of these files: images and labels to train on, images and labels held out. `read` has the bytes of each.
pub fn parse(files: [&Path; 4], read: impl Fn(&Path) -> Result<Vec<u8>>) -> Result<Images> {
    let [train_images, train_labels, held_out_images, held_out_labels] = files;
    let (size, train) = read_split(train_images, train_labels, &read)?;
    let (held_out_size, held_out) = read_split(held_out_images, held_out_labels, &read)?;
    if held_out_size != size {
        let [[height, width], [other_height, other_width]] = [size, held_out_size];
        let problem = format!("images of {other_height}×{other_width}, but those to train on are {height}×{width}");
        return Err(Error::data(held_out_images, problem));
    }
    let classes = 1 + usize::from(train.labels.iter().copied().max().unwrap_or(0));
    if let Some(label) = held_out.labels.iter().find(|&&label| usize::from(label) >= classes) {
        let problem = format!("label {label} is out of range: the training labels are 0 to {}", classes - 1);
        return Err(Error::data(held_out_labels, problem));
    }
    Ok(Images { channels: 1, height: size[0], width: size[1], classes, train, held_out })
}

/// How the name of a file may be written.
fn spellings(part: &str, kind: &str) -> [String; 4] {
    let dimensions = if kind == IMAGES { 3 } else { 1 };
    let [dash, dot] = ["-", "."].map(|mark| format!("{part}{kind}{mark}idx{dimensions}-ubyte"));
    [dash.clone(), dash + ".gz", dot.clone(), dot + ".gz"]
}

/// The images, as [height, width], and their labels.
fn read_split(images: &Path, labels: &Path, read: impl Fn(&Path) -> Result<Vec<u8>>) -> Result<([usize; 2], Split)> {
    let ([count, height, width], pixels) = parse_file::<3>(images, read(images)?)?;
    let ([labels_count], label_bytes) = parse_file::<1>(labels, read(labels)?)?;
    if labels_count != count {
        let problem = format!("{labels_count} labels, but {} holds {count} images", images.display());
        return Err(Error::data(labels, problem));
    }
    Ok(([height, width], Split { pixels, labels: label_bytes }))
}

/// The dimensions and the values of a file of `D` dimensions.
fn parse_file<const D: usize>(path: &Path, mut bytes: Vec<u8>) -> Result<([usize; D], Vec<u8>)> {
    let (magic, what) = ([0, 0, 8, D as u8], if D == 3 { "images" } else { "labels" });
    let header = 4 + 4 * D;
    if !bytes.starts_with(&magic[..bytes.len().min(4)]) {
        let problem = format!(
            "starts with {:02x?}, but an IDX file of {what} starts with {magic:02x?}",
            &bytes[..4.min(bytes.len())]
        );
        return Err(Error::data(path, problem));
    }
    if bytes.len() < header {
        return Err(Error::data(path, format!("cut short: {} bytes, but the header alone is {header}", bytes.len())));
    }
    let dimensions: [u32; D] = std::array::from_fn(|index| {
        let at = 4 + 4 * index;
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    });
    // 128 bits hold the product of three numbers of 32.
    let expected = header as u128 + dimensions.iter().map(|&size| u128::from(size)).product::<u128>();
    if expected == header as u128 {
        return Err(Error::data(path, format!("holds no {what}: its header says {}", times(&dimensions))));
    }
    if bytes.len() as u128 != expected {
        let problem = format!(
            "{} bytes, but its header says {} {what}, which are {expected} bytes with the header",
            bytes.len(),
            times(&dimensions)
        );
        return Err(Error::data(path, problem));
    }
    bytes.drain(..header);
    Ok((dimensions.map(|size| size as usize), bytes))
}

fn times(dimensions: &[u32]) -> String {
    dimensions.iter().map(u32::to_string).collect::<Vec<_>>().join("×")
}
