//! Images.

use crate::{assert_error, cuts, folder, gzip, spoiled, write};
use std::path::Path;
use tempfile::TempDir;
use thinwire_models::images::{self, Images};

const CIFAR_10: [&str; 6] = [
    "data_batch_1.bin",
    "data_batch_2.bin",
    "data_batch_3.bin",
    "data_batch_4.bin",
    "data_batch_5.bin",
    "test_batch.bin",
];

/// An IDX file: its dimensions, whatever they are, and its bytes.
fn idx(dimensions: &[u32], bytes: &[u8]) -> Vec<u8> {
    let sizes = dimensions.iter().flat_map(|size| size.to_be_bytes());
    [0, 0, 8, dimensions.len() as u8].into_iter().chain(sizes).chain(bytes.iter().copied()).collect()
}

/// A set of images of 2×1: three to train on, of classes 0 to 2, and two held out.
fn write_idx_set(folder: &TempDir) {
    write(folder, "train-images-idx3-ubyte", idx(&[3, 2, 1], &[1, 2, 3, 4, 5, 6]));
    write(folder, "train-labels-idx1-ubyte", idx(&[3], &[2, 0, 1]));
    write(folder, "t10k-images-idx3-ubyte", idx(&[2, 2, 1], &[7, 8, 9, 10]));
    write(folder, "t10k-labels-idx1-ubyte", idx(&[2], &[1, 2]));
}

/// A record of CIFAR: every pixel is `pixel`, but the first of each channel is the channel's number.
fn record(labels: &[u8], pixel: u8) -> Vec<u8> {
    let channels = (0..3).flat_map(|channel| std::iter::once(channel).chain(std::iter::repeat_n(pixel, 1023)));
    labels.iter().copied().chain(channels).collect()
}

fn read(path: &Path) -> thinwire_models::Result<Images> {
    images::read(Some(path))
}

fn assert_consistent(images: &Images) {
    for split in [&images.train, &images.held_out] {
        assert_eq!(split.pixels.len(), split.labels.len() * images.channels * images.height * images.width);
        assert!(!split.labels.is_empty() && split.labels.iter().all(|&label| usize::from(label) < images.classes));
    }
}

#[test]
fn without_a_path_it_is_the_digits() {
    let digits = images::read(None).unwrap();
    assert_consistent(&digits);
    assert_eq!([digits.channels, digits.height, digits.width, digits.classes], [1, 8, 8, 10]);
    assert_eq!([digits.train.labels.len(), digits.held_out.labels.len()], [1437, 360]);
    let mut counts = [0; 10];
    for &label in digits.train.labels.iter().chain(&digits.held_out.labels) {
        counts[usize::from(label)] += 1;
    }
    assert_eq!(counts, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    let pixels = || digits.train.pixels.iter().chain(&digits.held_out.pixels).copied();
    assert_eq!((pixels().min(), pixels().max()), (Some(0), Some(255)));
    assert!(pixels().all(|pixel| (0..=16).any(|level| (f64::from(level) * 255.0 / 16.0).round() == f64::from(pixel))));
    assert_eq!(digits, images::read(None).unwrap(), "the held-out fifth is always the same");
}

#[test]
fn the_held_out_digits_are_a_mixture() {
    let mut counts = [0; 10];
    for label in images::read(None).unwrap().held_out.labels {
        counts[usize::from(label)] += 1;
    }
    assert!(counts.iter().all(|count| (20..55).contains(count)), "{counts:?}");
}

#[test]
fn an_idx_set_is_read() {
    let folder = folder();
    write_idx_set(&folder);
    let images = read(folder.path()).unwrap();
    assert_eq!([images.channels, images.height, images.width, images.classes], [1, 2, 1, 3]);
    assert_eq!((images.train.pixels, images.train.labels), (vec![1, 2, 3, 4, 5, 6], vec![2, 0, 1]));
    assert_eq!((images.held_out.pixels, images.held_out.labels), (vec![7, 8, 9, 10], vec![1, 2]));
}

#[test]
fn an_idx_set_may_be_packed_spelled_with_a_dot_prefixed_and_named_by_any_of_its_files() {
    let (plain, other) = (folder(), folder());
    write_idx_set(&plain);
    for entry in std::fs::read_dir(plain.path()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap().replace("-idx", ".idx");
        let bytes = gzip(std::fs::read(entry.path()).unwrap());
        write(&other, &format!("{name}.gz"), &bytes);
        write(&other, &format!("letters/emnist-{name}.gz").replace("t10k", "test"), &bytes);
    }
    let expected = read(plain.path()).unwrap();
    assert_eq!(read(other.path()).unwrap(), expected);
    assert_eq!(read(&plain.path().join("t10k-images-idx3-ubyte")).unwrap(), expected);
    assert_eq!(read(&other.path().join("train-labels.idx1-ubyte.gz")).unwrap(), expected);
    assert_eq!(read(&other.path().join("letters/emnist-train-images.idx3-ubyte.gz")).unwrap(), expected);
}

#[test]
fn a_wrong_idx_file_says_why() {
    let wrong: [(&str, Vec<u8>, &str); 11] = [
        ("train-images-idx3-ubyte", vec![], "is empty"),
        (
            "train-images-idx3-ubyte",
            idx(&[3], &[0, 1, 2]),
            "starts with [00, 00, 08, 01], but an IDX file of images starts with [00, 00, 08, 03]",
        ),
        (
            "train-labels-idx1-ubyte",
            idx(&[3, 2, 1], &[0; 6]),
            "starts with [00, 00, 08, 03], but an IDX file of labels",
        ),
        ("train-images-idx3-ubyte", vec![0, 0, 8, 3, 0, 0], "cut short: 6 bytes, but the header alone is 16"),
        (
            "train-images-idx3-ubyte",
            idx(&[3, 2, 1], &[0; 5]),
            "21 bytes, but its header says 3×2×1 images, which are 22 bytes",
        ),
        (
            "train-images-idx3-ubyte",
            idx(&[3, 2, 1], &[0; 7]),
            "23 bytes, but its header says 3×2×1 images, which are 22 bytes",
        ),
        (
            "train-images-idx3-ubyte",
            idx(&[u32::MAX; 3], &[0; 6]),
            "22 bytes, but its header says 4294967295×4294967295×4294967295 images",
        ),
        ("train-images-idx3-ubyte", idx(&[0, 28, 28], &[]), "holds no images: its header says 0×28×28"),
        ("train-labels-idx1-ubyte", idx(&[2], &[0, 1]), "2 labels, but "),
        ("t10k-images-idx3-ubyte", idx(&[2, 1, 2], &[0; 4]), "images of 1×2, but those to train on are 2×1"),
        ("t10k-labels-idx1-ubyte", idx(&[2], &[0, 3]), "label 3 is out of range: the training labels are 0 to 2"),
    ];
    for (name, bytes, problem) in wrong {
        let folder = folder();
        write_idx_set(&folder);
        let path = write(&folder, name, bytes);
        assert_error(read(folder.path()), &path, problem);
    }
}

#[test]
fn a_missing_idx_file_is_named() {
    let names =
        ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"];
    for name in names {
        let folder = folder();
        write_idx_set(&folder);
        let path = folder.path().join(name);
        std::fs::remove_file(&path).unwrap();
        assert_error(read(folder.path()), &path, "is missing, also with .gz: a set is images and labels");
    }
}

#[test]
fn spoiled_idx_files_never_panic_and_never_give_nonsense() {
    for name in
        ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]
    {
        let folder = folder();
        write_idx_set(&folder);
        let bytes = std::fs::read(folder.path().join(name)).unwrap();
        for spoiled in spoiled(&bytes) {
            let is_cut = spoiled.len() < bytes.len();
            write(&folder, name, spoiled);
            match read(folder.path()) {
                Ok(images) => {
                    assert!(!is_cut);
                    assert_consistent(&images);
                }
                Err(error) => assert!(error.to_string().contains("idx"), "{error}"),
            }
        }
    }
}

#[test]
fn cifar_10_is_read() {
    let folder = folder();
    for (name, label) in CIFAR_10.iter().zip(0..) {
        let packed = gzip([record(&[label], 100 + label), record(&[9], 200)].concat());
        write(&folder, &format!("{name}.gz"), packed);
    }
    let images = read(folder.path()).unwrap();
    assert_consistent(&images);
    assert_eq!([images.channels, images.height, images.width, images.classes], [3, 32, 32, 10]);
    assert_eq!(images.train.labels, [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]);
    assert_eq!(images.held_out.labels, [5, 9]);
    assert_eq!(images.train.pixels[2 * 3072..][..3072], record(&[], 101));
}

#[test]
fn cifar_100_is_read_with_its_fine_labels() {
    let folder = folder();
    write(&folder, "train.bin", [record(&[19, 99], 1), record(&[0, 7], 2)].concat());
    write(&folder, "test.bin", record(&[3, 42], 3));
    let images = read(folder.path()).unwrap();
    assert_consistent(&images);
    assert_eq!((images.classes, images.train.labels, images.held_out.labels), (100, vec![99, 7], vec![42]));
    assert_eq!(images.held_out.pixels, record(&[], 3));
}

#[test]
fn of_one_cifar_file_a_fifth_is_held_out() {
    let folder = folder();
    let ten = |labels: fn(u8) -> Vec<u8>| (0..10).flat_map(|n| record(&labels(n), n)).collect::<Vec<u8>>();
    for (bytes, classes) in [(ten(|n| vec![n]), 10), (ten(|n| vec![1, n]), 100)] {
        let images = read(&write(&folder, "some.bin", bytes)).unwrap();
        assert_consistent(&images);
        assert_eq!((images.classes, images.train.labels.len(), images.held_out.labels.len()), (classes, 8, 2));
        let mut labels = [images.train.labels, images.held_out.labels].concat();
        labels.sort();
        assert_eq!(labels, (0..10).collect::<Vec<u8>>());
        assert!(
            images.train.pixels.chunks(3072).all(|picture| picture[0] == 0 && picture[1024] == 1 && picture[2048] == 2)
        );
    }
}

#[test]
fn wrong_cifar_files_say_why() {
    let folder = folder();
    let path = write(&folder, "train.bin", record(&[20, 5], 0));
    assert_error(read(folder.path()), &path, "record 0: label 20 is out of range, 0 to 19 are expected");
    let path = write(&folder, "train.bin", [record(&[0, 5], 0), record(&[1, 100], 0)].concat());
    assert_error(read(folder.path()), &path, "record 1: label 100 is out of range, 0 to 99 are expected");
    let path = write(&folder, "train.bin", &[record(&[0, 5], 0), record(&[1, 2], 0)].concat()[..6000]);
    assert_error(read(folder.path()), &path, "cut short: 6000 bytes, where whole records of 3074 bytes would be 6148");
    write(&folder, "train.bin", record(&[0, 5], 0));
    let path = folder.path().join("test.bin");
    assert_error(read(folder.path()), &path, "is missing, also with .gz: CIFAR-100 is train.bin and test.bin");
    let path = write(&folder, "test.bin", "");
    assert_error(read(folder.path()), &path, "is empty");
    let path = write(&folder, "one.bin", record(&[5], 0));
    assert_error(read(&path), &path, "one image alone: there is none to hold out");
    write(&folder, "data_batch_3.bin", record(&[5], 0));
    let path = folder.path().join("data_batch_1.bin");
    assert_error(read(folder.path()), &path, "is missing, also with .gz: CIFAR-10 is data_batch_1.bin, ");
}

#[test]
fn cut_cifar_files_never_panic() {
    let folder = folder();
    for cut in cuts(&[record(&[1], 2), record(&[3], 4)].concat()).step_by(61).chain([vec![1; 3072]]) {
        assert!(read(&write(&folder, "cut.bin", cut)).is_err());
    }
}

#[test]
fn what_holds_no_images_says_what_would() {
    let folder = folder();
    write(&folder, "readme.txt", "hello");
    assert_error(
        read(folder.path()),
        folder.path(),
        "no images in this folder: looked for the IDX files of the MNIST family",
    );
    let path = folder.path().join("readme.txt");
    assert_error(read(&path), &path, "not images: 5 bytes are no whole number of CIFAR-10 records (3073 bytes)");
    let path = folder.path().join("missing");
    assert_error(read(&path), &path, "there is no such file or folder");
}
