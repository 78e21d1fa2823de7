//! From what was written to what is meant: presets, DeepSpeed's names, defaults.

use super::{Config, Freeze, Name, Preset, Sync, Warmup};
use crate::codec::CodecName;
use crate::error::{Error, Result};
use crate::schedule::LearningRate;

/// Part of a run that 1-bit Adam warms up for, when its length is known.
const WARMUP_PART: f64 = 0.15;

/// Exact steps that a variance needs, whatever the length of the run: with fewer, its square root is wrong by more than a tenth.
const ENOUGH: u64 = 100;

/// 0/1 Adam, when the length of the run is known: the variance is updated about a hundred times over this part of it, evenly but for
/// the beginning, where a few gaps that double lead up to the even ones. All updates weigh about the same in v, and early gradients
/// say least about the rest of the run; so many of them at the beginning, as the paper has it, are better spread out
/// (docs/convergence.md).
const FREEZE_PART: f64 = 0.4;
const FREEZE_WARMUPS: u64 = 2;
const GAPS: u64 = 200;

/// κ when the length is not known: the gaps go on doubling, so exact rounds become few, and the variance is never frozen.
const OPEN_KAPPA: u64 = 32;

/// The paper's κ, and DeepSpeed's `var_update_scaler`.
const PAPER_KAPPA: u64 = 16;

impl Config {
    /// The same configuration with every word that counts written out; an error for one that does not fit.
    pub fn resolved(&self) -> Result<Config> {
        let mut config = self.clone();
        config.check_words()?;
        config.translate_deepspeed()?;
        config.apply_preset()?;
        config.choose_sync();
        config.check_sync_words()?;
        config.fill_in();
        config.check_values()?;
        Ok(config)
    }

    /// DeepSpeed's names become the words they stand for.
    fn translate_deepspeed(&mut self) -> Result<()> {
        let freeze = self.var_freeze_step;
        if freeze.is_some() && self.var_update_scaler.is_none() {
            self.kappa.get_or_insert(PAPER_KAPPA);
        }
        rename("var_freeze_step", &mut self.var_freeze_step, "freeze", &mut self.freeze, Freeze::Step)?;
        if self.sync_start.is_none() && self.sync != Some(Sync::Custom) {
            self.sync_start = freeze;
        }
        rename("var_update_scaler", &mut self.var_update_scaler, "kappa", &mut self.kappa, |kappa| kappa)?;
        if self.local_step_scaler.is_some() || self.local_step_clipper.is_some() {
            self.sync.get_or_insert(Sync::Doubling);
        }
        rename("local_step_scaler", &mut self.local_step_scaler, "sync_every", &mut self.sync_every, |steps| steps)?;
        rename("local_step_clipper", &mut self.local_step_clipper, "sync_longest", &mut self.sync_longest, |gap| gap)?;
        rename("freeze_step", &mut self.freeze_step, "warmup", &mut self.warmup, Warmup::Steps)
    }

    fn apply_preset(&mut self) -> Result<()> {
        let Some(preset) = self.preset.take() else { return Ok(()) };
        if preset == Preset::Deepspeed && self.name == Name::EfficientAdam {
            return Err(Error::config("preset", "deepspeed", "DeepSpeed has no efficient-adam; accepted here: paper"));
        }
        let follows = self.name == Name::ZeroOneAdam && matches!(self.sync, None | Some(Sync::FollowLr));
        if preset == Preset::Paper && follows && self.learning_rate.is_none() {
            return Err(Error::config(
                "preset",
                "paper",
                "its gaps follow learning_rate, which is missing; give it, or sync",
            ));
        }
        self.bias_correction.get_or_insert(false);
        if self.name == Name::ZeroOneAdam && self.variance_steps.is_none() {
            self.kappa.get_or_insert(PAPER_KAPPA);
        }
        match (preset, self.name) {
            (Preset::Paper, Name::OneBitAdam) => {
                self.warmup.get_or_insert(Warmup::Auto);
            }
            (Preset::Paper, Name::ZeroOneAdam) => {
                self.sync.get_or_insert(Sync::FollowLr);
                let warmup = self.learning_rate.as_ref().map_or(0, |schedule| schedule.warmup);
                if self.variance_steps.is_none() && warmup > 0 {
                    self.freeze.get_or_insert(Freeze::Step(warmup));
                }
            }
            (Preset::Paper, Name::EfficientAdam) if self.codec_up.is_none() || self.codec_down.is_none() => {
                self.codec.get_or_insert(CodecName::Power2(3));
            }
            (Preset::Deepspeed, Name::OneBitAdam) => {
                self.warmup.get_or_insert(Warmup::Steps(100_000));
            }
            (Preset::Deepspeed, Name::ZeroOneAdam) => {
                if self.variance_steps.is_none() {
                    self.freeze.get_or_insert(Freeze::Step(100_000));
                }
                let sync = *self.sync.get_or_insert(Sync::Doubling);
                if let (Some(Freeze::Step(step)), true) = (self.freeze, sync != Sync::Custom) {
                    self.sync_start.get_or_insert(step);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn choose_sync(&mut self) {
        if self.name == Name::ZeroOneAdam {
            let usual = if self.learning_rate.is_some() { Sync::FollowLr } else { Sync::Every };
            self.sync.get_or_insert(usual);
        }
    }

    fn fill_in(&mut self) {
        self.betas.get_or_insert((0.9, 0.999));
        self.eps.get_or_insert(1e-8);
        self.weight_decay.get_or_insert(0.01);
        self.bias_correction.get_or_insert(true);
        self.block.get_or_insert(512);
        self.topology.get_or_insert_default();
        self.hierarchy.get_or_insert_default();
        self.host_codec.get_or_insert(CodecName::F32);
        self.non_finite.get_or_insert_default();
        self.threads.get_or_insert(1);
        self.bucket.get_or_insert(4 << 20);
        if self.name != Name::EfficientAdam {
            // 0/1 Adam has few exact rounds, and in f32 they would still be most of its bytes.
            let usual = if self.name == Name::ZeroOneAdam { CodecName::Bf16 } else { CodecName::F32 };
            self.exact_codec.get_or_insert(usual);
        }
        if self.name != Name::Adam {
            let codec = self.codec.take().unwrap_or(if self.name == Name::EfficientAdam {
                CodecName::Uniform(4)
            } else {
                CodecName::Sign
            });
            self.codec_up.get_or_insert(codec);
            self.codec_down.get_or_insert(codec);
            self.residue.get_or_insert_default();
        }
        match self.name {
            Name::Adam => {}
            Name::OneBitAdam => self.fill_in_one_bit(),
            Name::ZeroOneAdam => self.fill_in_zero_one(),
            Name::EfficientAdam => {
                self.theta.get_or_insert_default();
            }
        }
    }

    fn fill_in_one_bit(&mut self) {
        let steps = self.learning_rate.as_ref().map_or(0, |schedule| schedule.steps);
        let part = Warmup::Steps(((steps as f64 * WARMUP_PART).ceil() as u64).max(ENOUGH.min(steps)));
        self.warmup.get_or_insert(if steps > 0 { part } else { Warmup::Auto });
    }

    fn fill_in_zero_one(&mut self) {
        let warmup = self.learning_rate.as_ref().map_or(0, |schedule: &LearningRate| schedule.warmup);
        let steps = self.learning_rate.as_ref().map_or(0, |schedule| schedule.steps);
        if self.variance_steps.is_none() {
            self.variance_gap.get_or_insert(1);
            if self.kappa.is_none() && steps > 0 {
                self.variance_longest.get_or_insert((steps / GAPS).max(1));
            }
            self.kappa.get_or_insert(if steps > 0 { PAPER_KAPPA } else { OPEN_KAPPA });
            let freeze = ((steps as f64 * FREEZE_PART).ceil() as u64).max(ENOUGH).max(FREEZE_WARMUPS * warmup);
            self.freeze.get_or_insert(if steps > 0 { Freeze::Step(freeze) } else { Freeze::Never });
        }
        let sync = self.sync.expect("chosen");
        if sync != Sync::Custom {
            self.sync_start.get_or_insert(warmup);
        }
        match sync {
            Sync::Doubling => {
                self.sync_every.get_or_insert(32_678);
                self.sync_longest.get_or_insert(16);
            }
            Sync::FollowLr => {
                self.sync_longest.get_or_insert(16);
            }
            Sync::Every => {
                self.sync_every.get_or_insert(1);
            }
            Sync::Custom => {}
        }
    }
}

/// Moves DeepSpeed's `theirs` to the word it stands for, unless that is given too.
fn rename<T>(
    their_name: &str,
    theirs: &mut Option<u64>,
    name: &str,
    ours: &mut Option<T>,
    map: fn(u64) -> T,
) -> Result<()> {
    let Some(value) = theirs.take() else { return Ok(()) };
    if value == 0 {
        return Err(Error::config(their_name, value, "accepted: a number of at least 1"));
    }
    if ours.is_some() {
        return Err(Error::config(
            their_name,
            value.to_string(),
            format!("is DeepSpeed's name for {name}; give one of the two"),
        ));
    }
    *ours = Some(map(value));
    Ok(())
}
