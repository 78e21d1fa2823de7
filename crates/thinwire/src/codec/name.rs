//! The names of the codecs, as configurations spell them, and the numbers that stand for them in a message.

use super::{CAST_BF16, CAST_F16, CAST_F32, Codec, Levels, Power2, SIGN, Sparse, TopK, Uniform, VOTE};
use crate::error::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A codec and its setting: `sign`, `uniform2` … `uniform8`, `power2` … `power6`, `topk0.01`, `topk0.1x4`, `bf16`, `f16`, `f32`,
/// `vote`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum CodecName {
    /// One bit: the sign, and one scale a block.
    Sign,
    /// Evenly spaced levels, of so many bits: 2 to 8.
    Uniform(u8),
    /// Powers of two, of so many bits: 2 to 6.
    Power2(u8),
    /// The largest magnitudes of each block, so many millionths of it: 1 to 1,000,000.
    TopK(u32),
    /// The same in so many bits each.
    Sparse {
        /// Of a block, in millionths: 1 to 1,000,000.
        millionths: u32,
        /// Bits of each: 2 to 8.
        width: u8,
    },
    /// 16 bits, rounded.
    Bf16,
    /// 16 bits, rounded: finer than `bf16`, for a smaller range.
    F16,
    /// 32 bits: nothing is lost.
    F32,
    /// One bit: the sign, and no scale. Without error feedback only.
    Vote,
}

impl CodecName {
    /// What a name may be, for messages to people.
    pub const ACCEPTED: &str = "sign, uniform2 to uniform8, power2 to power6, topk followed by a fraction (topk0.01) and maybe by 2 to 8 bits for each (topk0.1x4), bf16, f16, f32, vote";

    /// Refuses a setting that no name stands for, as `option`: only a program can write one, past the parser.
    pub(crate) fn check(self, option: &str) -> Result<(), Error> {
        match CodecName::from_id(self.id()) == Some(self) {
            true => Ok(()),
            false => Err(Error::config(option, self, format!("expected {}", CodecName::ACCEPTED))),
        }
    }

    /// The codec itself.
    pub fn codec(self) -> Box<dyn Codec> {
        match self {
            CodecName::Sign => Box::new(SIGN),
            CodecName::Uniform(width) => Box::new(Levels(Uniform { width })),
            CodecName::Power2(width) => Box::new(Levels(Power2 { width })),
            CodecName::TopK(millionths) => Box::new(TopK { millionths }),
            CodecName::Sparse { millionths, width } => Box::new(Sparse { millionths, width: width.into() }),
            CodecName::Bf16 => Box::new(CAST_BF16),
            CodecName::F16 => Box::new(CAST_F16),
            CodecName::F32 => Box::new(CAST_F32),
            CodecName::Vote => Box::new(VOTE),
        }
    }

    /// The number in a message's header: the kind in the top byte, its setting below.
    pub fn id(self) -> u32 {
        let (kind, setting) = match self {
            CodecName::Sign => (1, 0),
            CodecName::Uniform(width) => (2, u32::from(width)),
            CodecName::Power2(width) => (3, u32::from(width)),
            CodecName::TopK(millionths) => (4, millionths),
            CodecName::Bf16 => (5, 0),
            CodecName::F16 => (6, 0),
            CodecName::F32 => (7, 0),
            CodecName::Vote => (8, 0),
            CodecName::Sparse { millionths, width } => (9, u32::from(width) << 20 | millionths),
        };
        kind << 24 | setting
    }

    /// The inverse of [`CodecName::id`].
    pub fn from_id(id: u32) -> Option<CodecName> {
        let setting = id & 0x00ff_ffff;
        let name = match (id >> 24, setting) {
            (1, 0) => CodecName::Sign,
            (2, 2..=8) => CodecName::Uniform(setting as u8),
            (3, 2..=6) => CodecName::Power2(setting as u8),
            (4, 1..=1_000_000) => CodecName::TopK(setting),
            (5, 0) => CodecName::Bf16,
            (6, 0) => CodecName::F16,
            (7, 0) => CodecName::F32,
            (8, 0) => CodecName::Vote,
            (9, _) => {
                let (millionths, width) = (setting & 0xf_ffff, (setting >> 20) as u8);
                let fits = (1..=1_000_000).contains(&millionths) && (2..=8).contains(&width);
                fits.then_some(CodecName::Sparse { millionths, width })?
            }
            _ => return None,
        };
        Some(name)
    }
}

impl fmt::Display for CodecName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CodecName::Sign => f.write_str("sign"),
            CodecName::Uniform(width) => write!(f, "uniform{width}"),
            CodecName::Power2(width) => write!(f, "power{width}"),
            CodecName::TopK(millionths) => write!(f, "topk{}", f64::from(*millionths) / 1e6),
            CodecName::Sparse { millionths, width } => write!(f, "topk{}x{width}", f64::from(*millionths) / 1e6),
            CodecName::Bf16 => f.write_str("bf16"),
            CodecName::F16 => f.write_str("f16"),
            CodecName::F32 => f.write_str("f32"),
            CodecName::Vote => f.write_str("vote"),
        }
    }
}

/// A name that is none of [`CodecName::ACCEPTED`].
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("`{0}` is not a codec; expected {known}", known = CodecName::ACCEPTED)]
pub struct UnknownCodec(String);

impl FromStr for CodecName {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<CodecName, UnknownCodec> {
        let setting = |prefix| name.strip_prefix(prefix).filter(|rest: &&str| !rest.starts_with('+'));
        let width = |prefix, most| setting(prefix)?.parse().ok().filter(|width| (2..=most).contains(width));
        let fraction =
            |text: &str| text.parse().ok().filter(|k| (1e-6..=1.0).contains(k)).map(|k: f64| (k * 1e6).round() as u32);
        let top = || match setting("topk")?.split_once('x') {
            None => fraction(setting("topk")?).map(CodecName::TopK),
            Some((k, bits)) if !bits.starts_with('+') => {
                let width = bits.parse().ok().filter(|width| (2..=8).contains(width))?;
                fraction(k).map(|millionths| CodecName::Sparse { millionths, width })
            }
            Some(_) => None,
        };
        match name {
            "sign" => Some(CodecName::Sign),
            "bf16" => Some(CodecName::Bf16),
            "f16" => Some(CodecName::F16),
            "f32" => Some(CodecName::F32),
            "vote" => Some(CodecName::Vote),
            _ => (width("uniform", 8).map(CodecName::Uniform))
                .or_else(|| width("power", 6).map(CodecName::Power2))
                .or_else(top),
        }
        .ok_or_else(|| UnknownCodec(name.to_owned()))
    }
}

impl TryFrom<String> for CodecName {
    type Error = UnknownCodec;

    fn try_from(name: String) -> Result<CodecName, UnknownCodec> {
        name.parse()
    }
}

impl From<CodecName> for String {
    fn from(name: CodecName) -> String {
        name.to_string()
    }
}
