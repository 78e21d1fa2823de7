//! Files that are there whole or not at all: written beside their place, flushed to the disk, then renamed.

use anyhow::{Context, Result};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

/// Writes `text` to `path`.
pub fn write(path: &Path, text: &str) -> Result<()> {
    replace(path, |draft| Ok(std::fs::write(draft, text)?))
}

/// Puts the file that `fill` writes at `path`.
pub fn replace(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}", std::process::id()));
    let draft = PathBuf::from(draft);
    let written = fill(&draft).and_then(|()| Ok(put(&draft, path)?));
    if written.is_err() {
        let _ = std::fs::remove_file(&draft); // half a file is of no use to anyone
    }
    written.with_context(|| path.display().to_string())
}

fn put(draft: &Path, path: &Path) -> std::io::Result<()> {
    OpenOptions::new().write(true).open(draft)?.sync_all()?;
    std::fs::rename(draft, path)?;
    // The name is on the disk once its folder is; not every system lets a folder be opened.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_fails_leaves_the_one_before() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file.txt");
        write(&path, "before").unwrap();
        let failed = replace(&path, |draft| {
            std::fs::write(draft, "half")?;
            anyhow::bail!("the disk is full")
        });
        let error = format!("{:#}", failed.unwrap_err());
        assert!(error.contains("file.txt") && error.contains("the disk is full"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "before");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "no draft is left");
    }
}
