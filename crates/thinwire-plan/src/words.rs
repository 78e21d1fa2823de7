//! A question in words: one JSON object, numbers with their units as on a command line, or as numbers of the unit itself.

use crate::error::Result;
use crate::question::{KEYS, MOST_STEPS, MOST_WORKERS, Question};
use crate::units;
use anyhow::{anyhow, ensure};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::PathBuf;

impl Question {
    /// A question from JSON: `{"params": "110M", "workers": 16, "bandwidth": "1Gb/s", "compute": 0.3}`.
    ///
    /// Rates, times and sizes are texts with a unit, as the flags of the command have them, or numbers of bits a second, seconds and
    /// bytes. `null` is as if the key were not there.
    ///
    /// # Errors
    ///
    /// With the key and what was expected, if a value does not fit or a key is not known.
    pub fn from_json(text: &str) -> Result<Question> {
        let object: Map<String, Value> =
            serde_json::from_str(text).map_err(|error| anyhow!("expected an object of JSON, found {error}"))?;
        Ok(read(object)?)
    }
}

fn read(object: Map<String, Value>) -> anyhow::Result<Question> {
    let mut question = Question::default();
    for (key, value) in object.iter().filter(|(_, value)| !value.is_null()) {
        ensure!(KEYS.contains(&key.as_str()), unknown(key));
        question.set(key, value).map_err(|problem| anyhow!("invalid {key} = {value}: {problem}"))?;
    }
    Ok(question)
}

/// In the words of serde, which Python's side guesses from.
fn unknown(key: &str) -> String {
    let keys = KEYS.map(|key| format!("`{key}`")).join(", ");
    format!("{key}: unknown field `{key}`, expected one of {keys}")
}

impl Question {
    fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
        let workers = || units::whole(1..=MOST_WORKERS, "16")(&plain(value, "")?);
        match key {
            "params" => self.params = Some(units::number(&plain(value, "")?)?),
            "model" => self.model = Some(path(value)?),
            "preset" => self.preset = Some(text(value)?.parse()?),
            "deepspeed" => self.deepspeed = Some(path(value)?),
            "compute" => self.compute = Some(units::duration(&plain(value, "s")?)?),
            "sharing" => self.sharing = Some(units::whole(1..=1024, "4")(&plain(value, "")?)?),
            "cores" => self.cores = Some(units::whole(1..=4096, "8")(&plain(value, "")?)?),
            "bench" => self.bench = Some(path(value)?),
            "device" => self.device = Some(text(value)?.to_owned()),
            "without_packing" => self.without_packing = switch(value)?,
            "memory" => self.memory = Some(units::size(&bytes(value)?)?),
            "workers" => self.workers = Some(workers()?),
            "hosts" => self.hosts = Some(workers()?),
            "bandwidth" => self.bandwidth = Some(units::bandwidth(&plain(value, "b/s")?)?),
            "latency" => self.latency = Some(units::delay(&plain(value, "s")?)?),
            "network" => self.network = Some(path(value)?),
            "steps" => self.steps = Some(units::steps(&plain(value, "")?)?),
            "warmup" => self.warmup = Some(units::whole(0..=MOST_STEPS, "1000")(&plain(value, "")?)?),
            "decay" => self.decay = Some(choice(value)?),
            "clip" => self.clip = switch(value)?,
            "codecs" => self.codecs = Some(list(value)?.iter().map(choice).collect::<Result<_, _>>()?),
            "also" => {
                self.also = list(value)?.iter().map(|name| text(name).map(str::to_owned)).collect::<Result<_, _>>()?
            }
            "simulate" => self.simulate = switch(value)?,
            "spread" => self.spread = Some(units::part(&plain(value, "")?)?),
            "slow_host" => self.slow_host = Some(units::factor(&plain(value, "")?)?),
            "slow_link" => self.slow_link = Some(units::factor(&plain(value, "")?)?),
            "jitter" => self.jitter = Some(units::delay(&plain(value, "s")?)?),
            "seed" => self.seed = Some(units::whole(0..=u64::from(u32::MAX), "2")(&plain(value, "")?)?),
            _ => unreachable!("{key} is among KEYS"),
        }
        Ok(())
    }
}

/// A text as it is; a number with the unit that it is in.
fn plain(value: &Value, unit: &str) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(format!("{}{unit}", number.as_f64().unwrap_or(f64::NAN))),
        _ => Err("expected a number, or a text".to_owned()),
    }
}

/// The same of bytes, of which the units of a memory begin at MB.
fn bytes(value: &Value) -> Result<String, String> {
    value.as_f64().map_or_else(|| plain(value, ""), |bytes| Ok(format!("{}MB", bytes / 1e6)))
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| "expected a text".to_owned())
}

fn path(value: &Value) -> Result<PathBuf, String> {
    value.as_str().map(PathBuf::from).ok_or_else(|| "expected the path of a file".to_owned())
}

fn switch(value: &Value) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "expected true or false".to_owned())
}

fn list(value: &Value) -> Result<&Vec<Value>, String> {
    value.as_array().ok_or_else(|| "expected a list of names".to_owned())
}

fn choice<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    serde_json::from_value(value.clone()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key is read, and refuses what it is not.
    #[test]
    fn every_key_is_known() {
        for key in KEYS {
            let error = Question::default().set(key, &Value::Object(Map::new())).expect_err(key);
            assert!(error.contains("expected"), "{key}: {error}");
        }
    }

    #[test]
    fn numbers_are_what_texts_with_units_are() {
        let read = |text: &str| Question::from_json(text).unwrap();
        let texts = read(
            r#"{"params": "110M", "bandwidth": "1Gb/s", "compute": "300ms", "latency": "1ms", "memory": "2.5GB", "workers": "16",
                "codecs": ["sign"], "simulate": true, "spread": "10%", "slow_link": "2x", "steps": "50k"}"#,
        );
        let numbers = read(
            r#"{"params": 110e6, "bandwidth": 1e9, "compute": 0.3, "latency": 1e-3, "memory": 2500000000, "workers": 16,
                "codecs": ["sign"], "simulate": true, "spread": 0.1, "slow_link": 2, "steps": 50000, "hosts": null, "clip": false}"#,
        );
        assert_eq!(texts, numbers);
        assert_eq!((texts.memory, texts.codecs), (Some(2_500_000_000), Some(vec![thinwire::CodecName::Sign])));
        assert_eq!(read("{}"), Question::default());
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_key() {
        for (text, says) in [
            (r#"{"worker": 4}"#, "worker: unknown field `worker`, expected one of `params`"),
            (r#"{"workers": 0}"#, "invalid workers = 0: expected a whole number from 1 to 4096"),
            (r#"{"bandwidth": "1"}"#, "invalid bandwidth = \"1\": the unit is missing"),
            (r#"{"preset": "bert-huge"}"#, "expected one of bert-base, bert-large"),
            (r#"{"decay": "never"}"#, "cosine"),
            ("[]", "expected an object of JSON"),
        ] {
            let error = Question::from_json(text).expect_err(text).to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
