//! What crosses the network: a fixed header, then the bytes of a codec.
//!
//! The header says what the sender believes: which step it is, how long the vector is, what the state that all workers
//! share looks like. A receiver that believes otherwise names the worker and the field. docs/wire-format.md has the table.

use super::layout::Shape;
use crate::codec::CodecName;
use crate::error::{Error, Result};
use std::fmt;
use std::ops::Range;

/// Of the messages; workers of another version are refused.
pub const VERSION: u8 = 2;
/// Bytes before the payload.
pub const HEADER_LEN: usize = 48;
const MAGIC: [u8; 2] = *b"TW";
const CONTRIBUTIONS_AT: usize = 36;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Operation {
    /// The first message: the configuration, as JSON.
    Hello = 1,
    /// From a relay to an owner, in an exact round.
    ExactUp = 2,
    /// From an owner to everyone, in an exact round.
    ExactDown = 3,
    /// From a relay to an owner, in a coarse round.
    CoarseUp = 4,
    /// From an owner to everyone, in a coarse round.
    CoarseDown = 5,
    /// A checkpoint file is written: its name, length and digest, as JSON.
    Saved = 6,
    /// The sender stops: why, as text.
    Abort = 7,
    /// The sender stops, because a gradient is not finite: the rank of the worker that has it, in four bytes.
    AbortNotFinite = 8,
    /// What the program on top of the engine has to say.
    Note = 9,
    /// To the relay of the sender's host.
    ExactInside = 10,
    /// The same in a coarse round.
    CoarseInside = 11,
}

impl Operation {
    fn from_byte(byte: u8) -> Option<Operation> {
        use Operation::*;
        let rounds = [ExactInside, ExactUp, ExactDown, CoarseInside, CoarseUp, CoarseDown];
        let rest = [Hello, Saved, Abort, AbortNotFinite, Note];
        rounds.into_iter().chain(rest).find(|operation| *operation as u8 == byte)
    }

    /// The name in errors: "worker 3 did not answer within 30s during coarse mean, up".
    pub fn name(self) -> &'static str {
        match self {
            Operation::Hello => "hello",
            Operation::ExactInside => "exact mean, inside a host",
            Operation::CoarseInside => "coarse mean, inside a host",
            Operation::ExactUp => "exact mean, up",
            Operation::ExactDown => "exact mean, down",
            Operation::CoarseUp => "coarse mean, up",
            Operation::CoarseDown => "coarse mean, down",
            Operation::Saved => "checkpoint",
            Operation::Note => "note",
            Operation::Abort | Operation::AbortNotFinite => "abort",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a worker says with every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the message is for.
    pub operation: Operation,
    /// How its payload is coded.
    pub codec: CodecName,
    /// t.
    pub step: u64,
    /// The length of the whole vector.
    pub values: u64,
    /// Values in a block.
    pub block: u32,
    /// The first block of the payload, and the one after its last.
    pub blocks: (u32, u32),
    /// Inside a host: 1, or 0 when the sender's vector is left out. Up and down: how many workers it is of. Where workers are
    /// weighted, the sum of their weights.
    pub contributions: u32,
    /// Of the state that all workers share.
    pub digest: u64,
}

impl Header {
    /// Of a whole vector from one worker.
    pub fn new(operation: Operation, codec: CodecName, shape: Shape, step: u64, digest: u64) -> Header {
        let (values, block) = (shape.values as u64, shape.block as u32);
        Header { operation, codec, step, values, block, blocks: (0, 0), contributions: 1, digest }
    }

    /// The same for these blocks.
    pub fn covering(mut self, blocks: &Range<usize>) -> Header {
        self.blocks = (blocks.start as u32, blocks.end as u32);
        self
    }

    /// Makes `message` a message: this header and room for `payload` bytes, which are returned.
    pub fn start<'a>(&self, message: &'a mut Vec<u8>, payload: usize) -> &'a mut [u8] {
        message.resize(HEADER_LEN + payload, 0);
        let (head, rest) = message.split_first_chunk_mut().expect("a header");
        *head = self.to_bytes();
        rest
    }

    /// As docs/wire-format.md has it.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let fields: [&[u8]; 10] = [
            &MAGIC,
            &[VERSION, self.operation as u8],
            &self.codec.id().to_le_bytes(),
            &self.step.to_le_bytes(),
            &self.values.to_le_bytes(),
            &self.block.to_le_bytes(),
            &self.blocks.0.to_le_bytes(),
            &self.blocks.1.to_le_bytes(),
            &self.contributions.to_le_bytes(),
            &self.digest.to_le_bytes(),
        ];
        let mut at = 0;
        for field in fields {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        }
        bytes
    }

    /// Splits a message of `worker` into its header and its payload.
    pub fn read(message: &[u8], worker: usize) -> Result<(Header, &[u8])> {
        let malformed = |problem: String| Error::Malformed { worker, problem };
        let Some((head, payload)) = message.split_first_chunk::<HEADER_LEN>() else {
            return Err(malformed(format!("header: expected {HEADER_LEN} bytes, found {}", message.len())));
        };
        let u32_at = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        if head[..2] != MAGIC {
            return Err(malformed(format!("first bytes: expected {MAGIC:02x?}, found {:02x?}", &head[..2])));
        }
        if head[2] != VERSION {
            return Err(malformed(format!("version: expected {VERSION}, found {}", head[2])));
        }
        let header = Header {
            operation: Operation::from_byte(head[3])
                .ok_or_else(|| malformed(format!("operation: expected one of this version's, found {}", head[3])))?,
            codec: CodecName::from_id(u32_at(4))
                .ok_or_else(|| malformed(format!("codec: expected one of this version's, found {:#x}", u32_at(4))))?,
            step: u64_at(8),
            values: u64_at(16),
            block: u32_at(24),
            blocks: (u32_at(28), u32_at(32)),
            contributions: u32_at(CONTRIBUTIONS_AT),
            digest: u64_at(40),
        };
        Ok((header, payload))
    }

    /// How many workers this whole message is of.
    pub fn contributions_in(message: &[u8]) -> u32 {
        let field = message[CONTRIBUTIONS_AT..].first_chunk().expect("a whole header");
        u32::from_le_bytes(*field)
    }

    /// Refuses a header of `worker` that differs from what worker `me` expects, and names the first field that does.
    pub fn expect(&self, ours: &Header, worker: usize, me: usize) -> Result<()> {
        let check = |field: &str, there: &dyn fmt::Display, here: &dyn fmt::Display, same: bool| {
            let (field, there, here) = (field.to_owned(), there.to_string(), here.to_string());
            if same { Ok(()) } else { Err(Error::Disagreement { worker, field, there, me, here }) }
        };
        let hex = |digest| format!("{digest:016x}");
        let range = |blocks: (u32, u32)| format!("{} to {}", blocks.0, blocks.1);
        if self.same_place(ours) {
            return Ok(());
        }
        check("the vector's length", &self.values, &ours.values, self.values == ours.values)?;
        check("the block size", &self.block, &ours.block, self.block == ours.block)?;
        check("the step", &self.step, &ours.step, self.step == ours.step)?;
        check("the operation", &self.operation, &ours.operation, self.operation == ours.operation)?;
        check("the codec", &self.codec, &ours.codec, self.codec == ours.codec)?;
        check("the blocks", &range(self.blocks), &range(ours.blocks), self.blocks == ours.blocks)?;
        let what = match ours.operation {
            Operation::Hello => "the digest of the parameters to start from",
            _ => "the digest of the shared state",
        };
        check(what, &hex(self.digest), &hex(ours.digest), self.digest == ours.digest)
    }

    /// Equal in all but `contributions`, which the sender alone knows.
    fn same_place(&self, ours: &Header) -> bool {
        Header { contributions: ours.contributions, ..*self } == *ours
    }
}
