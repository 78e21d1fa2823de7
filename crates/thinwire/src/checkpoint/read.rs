//! Reading: everything is checked before anything is written, and another number of workers shares what the old ones had.

use super::{Checkpoint, HOSTS, host_note, measure};
use crate::error::{Error, Result};
use crate::exchange::hosts::Hosts;
use crate::state::{Entry, Share, Slot};
use safetensors::tensor::{Dtype, Metadata};
use std::fs::File;
use std::io::{BufReader, Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

impl Checkpoint {
    /// Reads the entries of worker `rank` in a group on `hosts`. With another number of workers than saved, or other hosts, all
    /// files are read: what was each worker's own becomes their mean, what was cut among them is cut anew. Returns whether it
    /// was so.
    pub fn read(&self, rank: usize, hosts: &Hosts, entries: &mut [Entry<'_>]) -> Result<bool> {
        self.read_by(|rank| self.file(rank), rank, hosts, entries)
    }

    /// The same with these `files` in memory, whatever the manifest says of them.
    #[doc(hidden)]
    pub fn read_from(&self, files: &[&[u8]], rank: usize, hosts: &Hosts, entries: &mut [Entry<'_>]) -> Result<bool> {
        let open = |rank: usize| {
            let bytes = files.get(rank).copied().unwrap_or_default();
            Stored::open(self.dir.join(rank.to_string()), Cursor::new(bytes), bytes.len() as u64)
        };
        self.read_by(open, rank, hosts, entries)
    }

    fn read_by<F: Read + Seek>(
        &self,
        open: impl Fn(usize) -> Result<Stored<F>>,
        rank: usize,
        hosts: &Hosts,
        entries: &mut [Entry<'_>],
    ) -> Result<bool> {
        let mut files = Vec::new();
        if hosts.of_all().len() == self.workers() {
            files.push(open(rank)?);
        }
        let same = files.first().is_some_and(|file| file.host_note() == host_note(hosts).as_ref());
        if !same {
            files = (0..self.workers()).map(open).collect::<Result<Vec<_>>>()?;
        }
        for file in &files {
            file.check_names(entries)?;
        }
        let is_old = |entry: &Entry<'_>| entry.is_optional && files.iter().any(|file| !file.has(entry.name));
        let (mut missing, mut entries): (Vec<_>, Vec<_>) = entries.iter_mut().partition(|entry| is_old(entry));
        for entry in &entries {
            self.check_lengths(&files, entry, same)?;
        }
        missing.iter_mut().for_each(|entry| entry.reset());
        for entry in &mut entries {
            match (same, &entry.share) {
                (true, _) | (false, Share::Same) => files[0].read(entry.name, 0, entry.slot.as_bytes_mut())?,
                (false, Share::Mean | Share::Progress | Share::Residual) => read_mean(&mut files, entry)?,
                (false, Share::Cut(range)) => read_cut(&mut files, entry.name, range.clone(), &mut entry.slot)?,
            }
        }
        Ok(!same)
    }

    /// The parameters, as worker 0 saved them: everybody's, if all were in sync. Of local Adam, whose anchor everybody has, that.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        let mut params = vec![0.0f32; self.manifest.parameters];
        let mut file = self.file(0)?;
        let stored = file.place("params")?.1;
        if stored != 4 * params.len() as u64 {
            return Err(Error::checkpoint(
                &file.path,
                format!("`params`: expected {} bytes, found {stored}", 4 * params.len()),
            ));
        }
        let name = if self.has_anchor()? { "anchor" } else { "params" };
        file.read(name, 0, bytemuck::cast_slice_mut(&mut params))?;
        Ok(params)
    }

    /// Whether it was saved between two syncs of an optimizer whose workers keep a model in common then: local Adam, or 0/1 Adam with a
    /// delay. (0/1 Adam without one has an anchor too, and what has happened since in u.)
    #[doc(hidden)] // for the command, which says whose parameters it exports
    pub fn has_anchor(&self) -> Result<bool> {
        let mut file = self.file(0)?;
        if file.place("anchor").is_err() || file.has("u") && !file.has("u_sent") {
            return Ok(false);
        }
        let mut pending = 0_u64;
        file.read("steps_since_sync", 0, bytemuck::bytes_of_mut(&mut pending))?;
        Ok(pending > 0)
    }

    /// Every file must hold as much of `entry` as it is expected to; what is cut among them, all of it together.
    fn check_lengths<F: Read + Seek>(&self, files: &[Stored<F>], entry: &Entry<'_>, same: bool) -> Result<()> {
        let wrong = |path: &Path, got: u64, expected: u64| {
            Error::checkpoint(path, format!("`{}`: expected {expected} bytes, found {got}", entry.name))
        };
        let lengths = files.iter().map(|file| Ok(file.place(entry.name)?.1)).collect::<Result<Vec<_>>>()?;
        if !same && let Share::Cut(_) = entry.share {
            let (whole, got) = (4 * self.manifest.parameters as u64, lengths.iter().sum::<u64>());
            let none = got == 0 && entry.slot.as_bytes().len() as u64 == 0;
            return if none || got == whole { Ok(()) } else { Err(wrong(&self.dir, got, whole)) };
        }
        let expected = entry.slot.as_bytes().len() as u64;
        match lengths.iter().zip(files).find(|(got, _)| **got != expected) {
            Some((got, file)) => Err(wrong(&file.path, *got, expected)),
            None => Ok(()),
        }
    }

    /// Worker `rank`'s file, checked against the manifest.
    fn file(&self, rank: usize) -> Result<Stored<BufReader<File>>> {
        let Some(written) = self.manifest.files.get(rank) else {
            return Err(Error::checkpoint(&self.dir, format!("it has no file of worker {rank}")));
        };
        let path = self.dir.join(&written.name);
        if !path.is_file() {
            return Err(Error::checkpoint(path, "the manifest names this file, and it is not there"));
        }
        let (bytes, digest) = measure(&path)?;
        if bytes != written.bytes {
            return Err(Error::checkpoint(path, format!("it has {bytes} bytes, the manifest says {}", written.bytes)));
        }
        if digest != written.digest {
            return Err(Error::checkpoint(path, "its contents are not those the manifest describes"));
        }
        let file = File::open(&path).map_err(Error::io(&path))?;
        Stored::open(path, BufReader::new(file), bytes)
    }
}

/// A worker's file, open.
struct Stored<F> {
    path: PathBuf,
    file: F,
    /// Where the data starts.
    start: u64,
    metadata: Metadata,
}

impl<F: Read + Seek> Stored<F> {
    /// Looks at the header of `file`, which has so many bytes.
    fn open(path: PathBuf, mut file: F, available: u64) -> Result<Stored<F>> {
        let foreign = |problem: String| {
            Error::checkpoint(&path, format!("expected a safetensors file, found another: {problem}"))
        };
        let mut len = [0; 8];
        file.read_exact(&mut len).map_err(|error| foreign(error.to_string()))?;
        let start = u64::from_le_bytes(len).saturating_add(8);
        if start > available {
            return Err(foreign(format!("header: expected at most {available} bytes, found {start}")));
        }
        let mut header = vec![0; start as usize - 8];
        file.read_exact(&mut header).map_err(|error| foreign(error.to_string()))?;
        let metadata = serde_json::from_slice::<Metadata>(&header).map_err(|error| foreign(error.to_string()))?;
        let end = start + metadata.data_len() as u64;
        if end != available {
            return Err(foreign(format!("expected {end} bytes, found {available}")));
        }
        Ok(Stored { path, file, start, metadata })
    }

    /// Where the workers that saved it were; nothing if each was its own host.
    fn host_note(&self) -> Option<&String> {
        self.metadata.metadata().as_ref()?.get(HOSTS)
    }

    /// The bytes of `name`: where, and how many.
    fn place(&self, name: &str) -> Result<(u64, u64)> {
        let missing = || Error::checkpoint(&self.path, format!("it has no {name}"));
        let info = self.metadata.info(name).ok_or_else(missing)?;
        Ok((self.start + info.data_offsets.0 as u64, (info.data_offsets.1 - info.data_offsets.0) as u64))
    }

    fn has(&self, name: &str) -> bool {
        self.metadata.info(name).is_some()
    }

    fn check_names(&self, entries: &[Entry<'_>]) -> Result<()> {
        for entry in entries.iter().filter(|entry| !entry.is_optional || self.has(entry.name)) {
            self.place(entry.name)?;
            let (expected, got) = (dtype(&entry.slot), self.metadata.info(entry.name).expect("just found").dtype);
            if expected != got {
                let problem = format!("`{}`: expected {expected:?}, found {got:?}", entry.name);
                return Err(Error::checkpoint(&self.path, problem));
            }
        }
        match self.metadata.tensors().keys().find(|name| entries.iter().all(|entry| entry.name != **name)) {
            Some(unknown) => Err(Error::checkpoint(
                &self.path,
                format!("unexpected tensor `{unknown}` (this optimizer has no such state)"),
            )),
            None => Ok(()),
        }
    }

    /// Reads the bytes of `name` from `skip` on.
    fn read(&mut self, name: &str, skip: u64, out: &mut [u8]) -> Result<()> {
        let (at, _) = self.place(name)?;
        self.file.seek(SeekFrom::Start(at + skip)).map_err(Error::io(&self.path))?;
        self.file.read_exact(out).map_err(Error::io(&self.path))
    }
}

/// The mean over the files, summed in rank order. In f64 a mean of equal numbers is that number, whatever their count: what all workers
/// have alike passes over as it is.
fn read_mean<F: Read + Seek>(files: &mut [Stored<F>], entry: &mut Entry<'_>) -> Result<()> {
    const PIECE: usize = 1 << 16;
    let count = files.len() as f64;
    let mean = match &mut entry.slot {
        Slot::Floats(mean) => mean,
        Slot::Doubles(mean) => return read_mean_of_doubles(files, entry.name, mean),
        Slot::Word(_) => unreachable!("words are the same everywhere"),
    };
    let (mut piece, mut sums) = (vec![0f32; PIECE], vec![0f64; PIECE]);
    for (i, mean) in mean.chunks_mut(PIECE).enumerate() {
        sums.fill(0.0);
        for file in &mut *files {
            let values = &mut piece[..mean.len()];
            file.read(entry.name, (4 * PIECE * i) as u64, bytemuck::cast_slice_mut(values))?;
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        mean.iter_mut().zip(&sums).for_each(|(mean, sum)| *mean = (sum / count) as f32);
    }
    Ok(())
}

/// The same for the few numbers that a worker keeps in f64.
fn read_mean_of_doubles<F: Read + Seek>(files: &mut [Stored<F>], name: &str, mean: &mut [f64]) -> Result<()> {
    let count = files.len() as f64;
    let mut values = vec![0.0; mean.len()];
    mean.fill(0.0);
    for file in files {
        file.read(name, 0, bytemuck::cast_slice_mut(&mut values))?;
        mean.iter_mut().zip(&values).for_each(|(mean, value)| *mean += value / count);
    }
    Ok(())
}

/// This range of the vector that lies cut, in rank order, in the files.
fn read_cut<F: Read + Seek>(
    files: &mut [Stored<F>],
    name: &str,
    range: std::ops::Range<usize>,
    slot: &mut Slot<'_>,
) -> Result<()> {
    let Slot::Floats(out) = slot else { unreachable!("only vectors are cut") };
    let mut from = 0;
    for file in files {
        let to = from + file.place(name)?.1 as usize / 4;
        let (first, last) = (range.start.max(from), range.end.min(to));
        if first < last {
            let part = &mut out[first - range.start..last - range.start];
            file.read(name, 4 * (first - from) as u64, bytemuck::cast_slice_mut(part))?;
        }
        from = to;
    }
    Ok(())
}

fn dtype(slot: &Slot<'_>) -> Dtype {
    match slot {
        Slot::Floats(_) => Dtype::F32,
        Slot::Doubles(_) => Dtype::F64,
        Slot::Word(_) => Dtype::U64,
    }
}
