//! TFRecord, the container of event files: for each record its length, a checksum of that, the bytes, and a checksum of them.
//!
//! ```text
//! u64 length │ u32 masked CRC-32C of the length │ length bytes │ u32 masked CRC-32C of the bytes      (little-endian)
//! ```
//!
//! A checksum is masked because a record may itself contain checksums: turned right by 15 bits, plus a constant.

use std::io::{Result, Write};

const MASK: u32 = 0xa282_ead8;

pub fn write(to: &mut impl Write, record: &[u8]) -> Result<()> {
    let length = (record.len() as u64).to_le_bytes();
    to.write_all(&length)?;
    to.write_all(&masked(&length).to_le_bytes())?;
    to.write_all(record)?;
    to.write_all(&masked(record).to_le_bytes())
}

fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As TensorFlow writes the record `abc`.
    #[test]
    fn a_record_is_as_tensorflow_writes_it() {
        let mut file = Vec::new();
        write(&mut file, b"abc").unwrap();
        let mut expected = vec![3, 0, 0, 0, 0, 0, 0, 0];
        expected.extend(LENGTH_SUM.to_le_bytes());
        expected.extend(b"abc");
        expected.extend(RECORD_SUM.to_le_bytes());
        assert_eq!(file, expected);
    }

    // tensorboard.compat.tensorflow_stub.pywrap_tensorflow.masked_crc32c
    const LENGTH_SUM: u32 = 0x0e49_99b0;
    const RECORD_SUM: u32 = 0x21f1_576e;
}
