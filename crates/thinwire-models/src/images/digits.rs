//! The UCI digits: 1,797 pictures of 8×8 pixels. In the file a pixel is 0 to 16; here it is 0 to 255, as everywhere else.

use super::{Images, Split};
use crate::file;

static DIGITS: &[u8] = include_bytes!("../../data/digits.csv.gz");

pub fn read() -> Images {
    let text = String::from_utf8(file::embedded(DIGITS)).expect("digits are ASCII");
    let mut all = Split::default();
    for line in text.lines() {
        let mut numbers: Vec<u8> =
            line.split(',').map(|number| number.parse().expect("a line is 64 pixels and a class")).collect();
        all.labels.extend(numbers.pop());
        all.pixels.extend(numbers.into_iter().map(to_byte));
    }
    let (train, held_out) = all.hold_out_a_fifth();
    Images { channels: 1, height: 8, width: 8, classes: 10, train, held_out }
}

/// 0 to 16, rounded to the nearest of 0 to 255.
fn to_byte(pixel: u8) -> u8 {
    ((u16::from(pixel) * 255 + 8) / 16) as u8
}
