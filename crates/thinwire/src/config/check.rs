//! What a configuration may not say: a word that is not for this optimizer, a value that cannot be.

use super::{Config, Freeze, Name, Sync, Warmup};
use crate::codec::{CodecName, MAX_BLOCK};
use crate::error::{Error, Result};
use crate::schedule::Decay;
use Name::{EfficientAdam, OneBitAdam, ZeroOneAdam};

/// The words that only some optimizers know.
const BELONGS_TO: &[(&str, &[Name])] = &[
    ("codec", &[OneBitAdam, ZeroOneAdam, EfficientAdam]),
    ("codec_up", &[OneBitAdam, ZeroOneAdam, EfficientAdam]),
    ("codec_down", &[OneBitAdam, ZeroOneAdam, EfficientAdam]),
    ("residue", &[OneBitAdam, ZeroOneAdam, EfficientAdam]),
    ("exact_codec", &[Name::Adam, OneBitAdam, ZeroOneAdam]),
    ("warmup", &[OneBitAdam]),
    ("freeze_step", &[OneBitAdam]),
    ("kappa", &[ZeroOneAdam]),
    ("variance_gap", &[ZeroOneAdam]),
    ("variance_longest", &[ZeroOneAdam]),
    ("freeze", &[ZeroOneAdam]),
    ("variance_steps", &[ZeroOneAdam]),
    ("sync", &[ZeroOneAdam]),
    ("sync_start", &[ZeroOneAdam]),
    ("sync_every", &[ZeroOneAdam]),
    ("sync_longest", &[ZeroOneAdam]),
    ("sync_steps", &[ZeroOneAdam]),
    ("var_freeze_step", &[ZeroOneAdam]),
    ("var_update_scaler", &[ZeroOneAdam]),
    ("local_step_scaler", &[ZeroOneAdam]),
    ("local_step_clipper", &[ZeroOneAdam]),
    ("theta", &[EfficientAdam]),
];

fn require(holds: bool, key: &str, value: impl std::fmt::Debug, accepted: &str) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::config(key, format!("{value:?}"), format!("accepted: {accepted}"))) }
}

impl Config {
    /// Refuses words of another optimizer, and words that exclude each other.
    pub(super) fn check_words(&self) -> Result<()> {
        let written = serde_json::to_value(self).expect("a configuration is plain data");
        for (key, names) in BELONGS_TO {
            if let Some(value) = written.get(key)
                && !names.contains(&self.name)
            {
                let owners = names.iter().map(Name::to_string).collect::<Vec<_>>().join(", ");
                return Err(Error::config(key, value, format!("is no word of {}; it belongs to {owners}", self.name)));
            }
        }
        let exclude = |key: &str, other: &str| match (written.get(key), written.get(other)) {
            (Some(value), Some(_)) => Err(Error::config(key, value, format!("excludes {other}; give one of the two"))),
            _ => Ok(()),
        };
        for other in ["kappa", "variance_gap", "variance_longest", "freeze", "var_freeze_step", "var_update_scaler"] {
            exclude("variance_steps", other)?;
        }
        if self.codec_up.is_some() && self.codec_down.is_some() {
            exclude("codec", "codec_up")?;
        }
        Ok(())
    }

    /// `sync`, chosen by now, decides which of the words around it mean something.
    pub(super) fn check_sync_words(&self) -> Result<()> {
        let Some(sync) = self.sync else { return Ok(()) };
        let written = serde_json::to_value(self).expect("a configuration is plain data");
        let unused = |key: &str, without_meaning: bool| match written.get(key) {
            Some(value) if without_meaning => {
                Err(Error::config(key, value, format!("has no meaning with sync = {}", written["sync"])))
            }
            _ => Ok(()),
        };
        unused("sync_every", matches!(sync, Sync::FollowLr | Sync::Custom))?;
        unused("sync_longest", matches!(sync, Sync::Every | Sync::Custom))?;
        unused("sync_start", sync == Sync::Custom)?;
        unused("sync_steps", sync != Sync::Custom)
    }

    /// Refuses values that cannot be. Everything is filled in by now.
    pub(super) fn check_values(&self) -> Result<()> {
        if let Some((beta1, beta2)) = self.betas {
            let fits = |beta: f64| beta >= 0.0 && (beta as f32) < 1.0;
            require(fits(beta1) && fits(beta2), "betas", [beta1, beta2], "two numbers of at least 0 and below 1")?;
            // The automatic end of the warm-up looks back 1/(1−β2) steps, and remembers as many numbers.
            let remembers = self.warmup != Some(Warmup::Auto) || beta2 <= 1.0 - 1e-6;
            require(remembers, "betas", [beta1, beta2], "with warmup = \"auto\", a second number of at most 0.999999")?;
        }
        let at_least_zero = |value: f64| (value as f32).is_finite() && value >= 0.0;
        if let Some(eps) = self.eps {
            let fits = eps as f32 > 0.0 && (eps as f32).is_finite();
            require(fits, "eps", eps, "a number above 0, also in f32, such as 1e-8")?;
        }
        if let Some(decay) = self.weight_decay {
            require(at_least_zero(decay), "weight_decay", decay, "a number of at least 0, such as 0.01")?;
        }
        if let Some(clip) = self.clip {
            let fits = clip as f32 > 0.0 && (clip as f32).is_finite();
            require(fits, "clip", clip, "a number above 0, such as 1.0, or nothing for no limit")?;
        }
        if let Some(block) = self.block {
            require((1..=MAX_BLOCK).contains(&block), "block", block, "1 to 4096 values, such as 512")?;
        }
        for (key, codec) in [("exact_codec", self.exact_codec), ("host_codec", self.host_codec)] {
            let Some(codec) = codec else { continue };
            require(matches!(codec, CodecName::F32 | CodecName::Bf16), key, codec.to_string(), "f32, bf16")?;
        }
        for (key, codec) in [("codec_up", self.codec_up), ("codec_down", self.codec_down)] {
            let whole = codec.is_none_or(|codec| CodecName::from_id(codec.id()) == Some(codec));
            require(whole, key, codec.map(|codec| codec.to_string()), CodecName::ACCEPTED)?;
        }
        let threads = self.threads.unwrap_or(1);
        require((1..=1024).contains(&threads), "threads", threads, "1 to 1024")?;
        require(self.bucket != Some(0), "bucket", 0, "a number of bytes, at least 1")?;
        for (key, value) in [
            ("kappa", self.kappa),
            ("variance_gap", self.variance_gap),
            ("variance_longest", self.variance_longest),
            ("sync_every", self.sync_every),
            ("sync_longest", self.sync_longest),
        ] {
            let value = value.unwrap_or(1);
            require((1..1 << 32).contains(&value), key, value, "a number of at least 1 and below 2^32")?;
        }
        self.check_steps()?;
        self.check_learning_rate()?;
        for group in &self.groups {
            require(at_least_zero(group.lr_scale), "groups.lr_scale", group.lr_scale, "a number of at least 0")?;
            let decay = group.weight_decay.unwrap_or(0.0);
            require(at_least_zero(decay), "groups.weight_decay", decay, "a number of at least 0")?;
        }
        Ok(())
    }

    fn check_steps(&self) -> Result<()> {
        for (key, steps) in [("variance_steps", &self.variance_steps), ("sync_steps", &self.sync_steps)] {
            let steps = steps.as_deref().unwrap_or_default();
            require(steps.is_sorted_by(|a, b| a < b), key, steps, "steps in rising order, each once")?;
        }
        let first = self.variance_steps.as_ref().is_none_or(|steps| steps.first() == Some(&0));
        require(
            first,
            "variance_steps",
            &self.variance_steps,
            "a list that starts with 0: without a variance nothing moves",
        )?;
        let freezes_later = self.freeze != Some(Freeze::Step(0));
        require(freezes_later, "freeze", 0, "a step of at least 1, or \"never\": without a variance nothing moves")?;
        let warms = self.warmup != Some(Warmup::Steps(0));
        require(warms, "warmup", 0, "a number of at least 1, or \"auto\": without a variance nothing moves")?;
        let custom = self.sync != Some(Sync::Custom) || self.sync_steps.is_some();
        require(custom, "sync", "custom", "custom together with sync_steps, the list of the steps that sync")?;
        let follows = self.sync != Some(Sync::FollowLr) || self.learning_rate.is_some();
        require(follows, "sync", "follow-lr", "follow-lr together with learning_rate, or doubling, every, custom")
    }

    fn check_learning_rate(&self) -> Result<()> {
        let Some(schedule) = &self.learning_rate else { return Ok(()) };
        let peak = schedule.peak;
        require(
            (peak as f32).is_finite() && peak >= 0.0,
            "learning_rate.peak",
            peak,
            "a number of at least 0, such as 1e-3",
        )?;
        let part = |value: f64| (0.0..=1.0).contains(&value);
        require(part(schedule.floor), "learning_rate.floor", schedule.floor, "a part of the peak, 0 to 1")?;
        require(part(schedule.drop_to), "learning_rate.drop_to", schedule.drop_to, "a part, 0 to 1")?;
        require(schedule.drop_every > 0, "learning_rate.drop_every", schedule.drop_every, "a number of at least 1")?;
        let ends = !matches!(schedule.decay, Decay::Cosine | Decay::Linear) || schedule.steps > schedule.warmup;
        require(ends, "learning_rate.steps", schedule.steps, "the length of the run, more than learning_rate.warmup")
    }
}
