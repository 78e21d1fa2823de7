//! The few messages of TensorBoard's `event.proto` and `summary.proto` that a run needs, encoded by hand: four messages of at
//! most three fields do not need a code generator.
//!
//! ```text
//! Event       1: double wall_time   2: int64 step   3: string file_version   5: Summary   7: SessionLog
//! Summary     1: repeated Value     Value: 1: string tag   2: float simple_value
//! SessionLog  1: enum status, of which START is 1
//! ```

/// How a field is encoded: protobuf's wire types.
const VARINT: u64 = 0;
const DOUBLE: u64 = 1;
const BYTES: u64 = 2;
const FLOAT: u64 = 5;

/// The first event of every file.
pub fn version(time: f64) -> Vec<u8> {
    let mut event = event(time, 0);
    bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// A session begins: what was written before of `step` and later steps does not count any more.
pub fn start(time: f64, step: u64) -> Vec<u8> {
    const START: u64 = 1;
    let mut log = Vec::new();
    key(&mut log, 1, VARINT);
    varint(&mut log, START);
    let mut event = event(time, step);
    bytes(&mut event, 7, &log);
    event
}

/// Figures of one step.
pub fn scalars(time: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Vec::new();
    for (tag, value) in values {
        let mut one = Vec::new();
        bytes(&mut one, 1, tag.as_bytes());
        key(&mut one, 2, FLOAT);
        one.extend((*value as f32).to_le_bytes());
        bytes(&mut summary, 1, &one);
    }
    let mut event = event(time, step);
    bytes(&mut event, 5, &summary);
    event
}

fn event(time: f64, step: u64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, 1, DOUBLE);
    event.extend(time.to_le_bytes());
    key(&mut event, 2, VARINT);
    varint(&mut event, step);
    event
}

fn key(to: &mut Vec<u8>, field: u64, kind: u64) {
    varint(to, field << 3 | kind);
}

fn bytes(to: &mut Vec<u8>, field: u64, content: &[u8]) {
    key(to, field, BYTES);
    varint(to, content.len() as u64);
    to.extend(content);
}

/// Seven bits a byte, the lowest first; all but the last have the eighth bit.
fn varint(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_protobufs_own_example_has_them() {
        let mut encoded = Vec::new();
        key(&mut encoded, 1, VARINT);
        varint(&mut encoded, 150);
        assert_eq!(encoded, [0x08, 0x96, 0x01]);
        let mut encoded = Vec::new();
        bytes(&mut encoded, 2, b"testing");
        assert_eq!(encoded, b"\x12\x07testing");
    }
}
