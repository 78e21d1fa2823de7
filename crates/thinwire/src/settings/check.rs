//! What a configuration may not say: an option of another optimizer, a value that cannot be.

use super::Settings;
use crate::codec::{CodecName, MAX_BLOCK};
use crate::config::{Config, Hierarchy};
use crate::error::{Error, Result};
use crate::optim::table::{Optimizers, Row};
use crate::schedule::{Decay, LearningRate};

/// Refuses options that this optimizer does not have, and options that exclude each other.
pub(super) fn ownership(asked: &Config, row: &Row) -> Result<()> {
    let coarse = [
        ("codec", asked.codec.map(|codec| codec.to_string())),
        ("codec_up", asked.codec_up.map(|codec| codec.to_string())),
        ("codec_down", asked.codec_down.map(|codec| codec.to_string())),
        ("residual", asked.residual.map(|precision| precision.to_string())),
        ("feedback", asked.feedback.map(|kappa| kappa.to_string())),
        ("feedback_up", asked.feedback_up.map(|kappa| kappa.to_string())),
        ("feedback_down", asked.feedback_down.map(|kappa| kappa.to_string())),
    ];
    for (key, value) in coarse {
        owned(key, value, row, |row| row.coarse.or(row.if_coded).is_some())?;
    }
    owned("exact_codec", asked.exact_codec.map(|codec| codec.to_string()), row, |row| row.exact.is_some())?;
    if let (Some(codec), Some(_), Some(_)) = (asked.codec, asked.codec_up, asked.codec_down) {
        return Err(Error::config("codec", codec, "excludes codec_up; give one of the two"));
    }
    match (asked.feedback, asked.feedback_up, asked.feedback_down) {
        (Some(kappa), Some(_), Some(_)) => {
            Err(Error::config("feedback", kappa, "excludes feedback_up; give one of the two"))
        }
        _ => Ok(()),
    }
}

fn owned(key: &str, value: Option<String>, row: &Row, owns: fn(&Row) -> bool) -> Result<()> {
    match value {
        Some(value) if !owns(row) => {
            let rows = Optimizers::all();
            let owners = rows.iter().filter(|row| owns(row)).map(|row| row.name.as_str()).collect::<Vec<_>>();
            Err(foreign(key, &value, row, &owners))
        }
        _ => Ok(()),
    }
}

/// An option of other optimizers.
pub(super) fn foreign(key: &str, value: &str, row: &Row, owners: &[&str]) -> Error {
    let problem = format!("not an option of {}; it belongs to {}", row.name, owners.join(", "));
    Error::config(key, value, problem)
}

fn require(holds: bool, key: &str, value: impl std::fmt::Debug, expected: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::config(key, format!("{value:?}"), format!("expected {expected}"))) }
}

fn at_least_zero(value: f64) -> bool {
    (value as f32).is_finite() && value >= 0.0
}

fn above_zero(value: f64) -> bool {
    (value as f32).is_finite() && value as f32 > 0.0
}

impl Settings {
    /// Refuses values that cannot be.
    pub(super) fn check(&self) -> Result<()> {
        let (beta1, beta2) = self.betas;
        let fits = |beta: f64| beta >= 0.0 && (beta as f32) < 1.0;
        require(fits(beta1) && fits(beta2), "betas", [beta1, beta2], "two numbers of at least 0 and below 1")?;
        require(above_zero(self.eps), "eps", self.eps, "a number above 0, also in f32, such as 1e-8")?;
        let decay = self.weight_decay;
        require(at_least_zero(decay), "weight_decay", decay, "a number of at least 0, such as 0.01")?;
        if let Some(clip) = self.clip {
            require(above_zero(clip), "clip", clip, "a number above 0, such as 1.0, or nothing for no limit")?;
        }
        let factor = self.outlier_factor;
        require(factor.is_finite() && factor > 1.0, "outlier_factor", factor, "a number above 1, such as 100.0")?;
        require((1..=MAX_BLOCK).contains(&self.block), "block", self.block, "1 to 4096 values, such as 512")?;
        require((1..=1024).contains(&self.threads), "threads", self.threads, "1 to 1024")?;
        require(self.bucket > 0, "bucket", self.bucket, "a number of bytes, at least 1")?;
        self.check_codecs()?;
        self.learning_rate.as_ref().map_or(Ok(()), check_learning_rate)?;
        for group in &self.groups {
            require(at_least_zero(group.lr_scale), "groups.lr_scale", group.lr_scale, "a number of at least 0")?;
            let decay = group.weight_decay.unwrap_or(0.0);
            require(at_least_zero(decay), "groups.weight_decay", decay, "a number of at least 0")?;
        }
        Ok(())
    }

    fn check_codecs(&self) -> Result<()> {
        let is_cast = |codec| matches!(codec, CodecName::F32 | CodecName::Bf16);
        require(is_cast(self.host_codec), "host_codec", self.host_codec.to_string(), "f32, bf16")?;
        // Nothing remembers what an exact round loses, so small values must keep their size too: fewer than 14 powers of two do not do.
        let serves = |codec| is_cast(codec) || matches!(codec, CodecName::Power2(5 | 6));
        if let Some(codec) = self.exact {
            require(serves(codec), "exact_codec", codec.to_string(), "f32, bf16, power6, power5")?;
        }
        let Some(coarse) = self.coarse else { return Ok(()) };
        for (key, codec) in [("codec_up", coarse.up), ("codec_down", coarse.down)] {
            codec.check(key)?;
        }
        for (key, kappa) in [("feedback_up", coarse.feedback_up), ("feedback_down", coarse.feedback_down)] {
            let part = (0.0..=1.0).contains(&kappa) && (kappa == 0.0 || kappa as f32 > 0.0);
            require(part, key, kappa, "a part, 0 (forget) to 1 (remember all)")?;
        }
        let ways = [
            ("feedback_up", "codec_up", coarse.up, coarse.feedback_up),
            ("feedback_down", "codec_down", coarse.down, coarse.feedback_down),
        ];
        for (key, codec_key, codec, kappa) in ways {
            if codec == CodecName::Vote && !self.algorithm.sends_directions() {
                let problem =
                    format!("says ±1 and no size, and {} needs one; expected sign or another codec", self.name);
                return Err(Error::config(codec_key, codec, problem));
            }
            if codec == CodecName::Vote && kappa > 0.0 {
                let problem = format!("{codec_key} = vote has no size, so a residual would only grow; expected 0");
                return Err(Error::config(key, kappa, problem));
            }
        }
        if self.votes_up() && self.weighted {
            let problem = "with codec_up = vote all workers count alike; expected false, or another codec";
            return Err(Error::config("weighted", true, problem));
        }
        if coarse.up == CodecName::F16 && self.weighted {
            let problem = "a vector times its weight soon leaves the range of f16; expected bf16 or another codec";
            return Err(Error::config("codec_up", coarse.up, problem));
        }
        if self.votes_up() && self.hierarchy == Hierarchy::Hosts {
            let problem =
                "with codec_up = vote the hosts would vote on the votes of their workers; expected auto or flat";
            return Err(Error::config("hierarchy", "hosts", problem));
        }
        Ok(())
    }
}

fn check_learning_rate(schedule: &LearningRate) -> Result<()> {
    let (peak, part) = (schedule.peak, |value: f64| (0.0..=1.0).contains(&value));
    require(at_least_zero(peak), "learning_rate.peak", peak, "a number of at least 0, such as 1e-3")?;
    require(part(schedule.floor), "learning_rate.floor", schedule.floor, "a part of the peak, 0 to 1")?;
    require(part(schedule.drop_to), "learning_rate.drop_to", schedule.drop_to, "a part, 0 to 1")?;
    require(schedule.drop_every > 0, "learning_rate.drop_every", schedule.drop_every, "a number of at least 1")?;
    let ends = !matches!(schedule.decay, Decay::Cosine | Decay::Linear) || schedule.steps > schedule.warmup;
    require(ends, "learning_rate.steps", schedule.steps, "the length of the run, more than learning_rate.warmup")
}
