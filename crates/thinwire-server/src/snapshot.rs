//! The state that all workers share, as one safetensors file: what a new worker starts from, and a server that comes back.
//!
//! It holds the entries that are the same on all workers: the parameters, the step, the digest, for 0/1 Adam and 1-bit Adam the
//! moments. What is each worker's own (residues, local progress, Efficient-Adam's moments) is not in it, and starts at zero.

use crate::disk;
use crate::error::{Error, Result};
use crate::frames::write_whole;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::Path;
use thinwire::inside::checkpoint::view;
use thinwire::inside::state::{Entry, Share};
use thinwire::{Config, Error as EngineError, Worker};

const FORMAT: &str = "thinwire-snapshot";

/// Whether an entry is the same on all workers, under this optimizer.
fn is_shared(entry: &Entry<'_>) -> bool {
    entry.share == Share::Same
}

/// The shared state of `worker`, whose parameters are `params`.
pub fn take(worker: &mut Worker, params: &mut [f32]) -> Result<Vec<u8>> {
    let mut entries = worker.whole_state()?;
    entries.push(Entry::vector("params", Share::Same, params));
    let views = entries.iter().filter(|entry| is_shared(entry)).map(|entry| (entry.name, view(&entry.slot)));
    let notes = HashMap::from([("format".to_owned(), FORMAT.to_owned())]);
    let bytes = safetensors::serialize(views, Some(notes));
    bytes.map_err(|error| Error::Usage(format!("the state could not be written: {error}")))
}

/// What is each worker's own: taken from one worker, given to another.
#[derive(Clone, Debug, Default)]
pub struct Own(Vec<(String, Vec<u8>)>);

/// The name of the residual in the files of [`Own`], which hold names alone.
const RESIDUAL: &str = "up_residue";

impl Own {
    /// Of a worker at the end of a round, or one that failed in one. Its local progress since the last sync is not in it: that has
    /// been told, or is in the residue.
    pub fn of(worker: &mut Worker) -> Result<Own> {
        let state = worker.state()?;
        let named = |entry: &Entry<'_>| match entry.share {
            Share::Mean => Some(entry.name),
            Share::Residual => Some(RESIDUAL),
            Share::Same | Share::Progress | Share::Cut(_) => None,
            _ => unreachable!("the engine has no other"),
        };
        let own = state.iter().filter_map(|entry| Some((named(entry)?.to_owned(), entry.slot.as_bytes().to_vec())));
        Ok(Own(own.collect()))
    }

    /// Without what it has not told yet: rounds that it knows nothing of have counted some of that.
    pub fn without_residue(mut self) -> Own {
        self.0.retain(|(name, _)| name != RESIDUAL);
        self
    }

    /// As a file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let views = self.0.iter().map(|(name, bytes)| {
            let view = TensorView::new(Dtype::U8, vec![bytes.len()], bytes).expect("as long as it is");
            (name, view)
        });
        let bytes = safetensors::serialize(views, None).expect("names and bytes");
        write_whole(path, &bytes)
    }

    pub fn read(path: &Path) -> Result<Own> {
        Own::parse(path, &disk::read(path).map_err(Error::io(path))?)
    }

    /// The same of the bytes of the file at `path`.
    #[doc(hidden)]
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Own> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|error| Error::damaged(path, error))?;
        Ok(Own(tensors.iter().map(|(name, view)| (name.to_owned(), view.data().to_vec())).collect()))
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, bytes)| &bytes[..])
    }
}

/// Puts `worker`, which is new, and `params` into the state in `snapshot`, with what is the worker's `own`.
pub fn restore(worker: &mut Worker, params: &mut [f32], snapshot: &[u8], own: &Own) -> Result<()> {
    let foreign = |problem: String| EngineError::Transport { problem: format!("the snapshot: {problem}") };
    let tensors = SafeTensors::deserialize(snapshot).map_err(|error| foreign(error.to_string()))?;
    let bytes = |name: &str, length: usize| {
        let tensor = tensors.tensor(name).map_err(|error| foreign(format!("{name}: {error}")))?;
        match tensor.data().len() {
            found if found == length => Ok(tensor.data().to_vec()),
            found => Err(foreign(format!("`{name}`: expected {length} bytes, found {found}"))),
        }
    };
    let loaded = bytes("params", 4 * params.len())?;
    worker.restore(params, |entries| {
        let mut found = Vec::new();
        for entry in &*entries {
            let length = entry.slot.as_bytes().len();
            found.push(match is_shared(entry) {
                true => Some(bytes(entry.name, length)?),
                false => own
                    .bytes(if entry.share == Share::Residual { RESIDUAL } else { entry.name })
                    .filter(|own| own.len() == length)
                    .map(<[u8]>::to_vec),
            });
        }
        for (entry, found) in entries.iter_mut().zip(found) {
            match found {
                Some(found) => entry.slot.as_bytes_mut().copy_from_slice(&found),
                None => entry.reset(),
            }
        }
        Ok(())
    })?;
    bytemuck::cast_slice_mut(params).copy_from_slice(&loaded);
    Ok(())
}

/// The configuration that a server runs under: resolved, in the central form, with a schedule for the learning rate, which all
/// must know without being told.
pub fn served(config: &Config) -> Result<Config> {
    if config.learning_rate.is_none() {
        let why = "a server needs learning_rate: workers that follow must know the rate of every step";
        return Err(Error::Usage(why.to_owned()));
    }
    if config.topology == Some(thinwire::options::Topology::Sharded) {
        return Err(Error::Usage("topology = sharded: accepted with a server: central".to_owned()));
    }
    let central = Config { topology: Some(thinwire::options::Topology::Central), ..config.clone() };
    Ok(central.resolved()?)
}
