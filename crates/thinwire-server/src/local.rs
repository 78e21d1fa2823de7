//! A token that the server makes for workers of the same user on the same machine, who find it by the port's number.
//!
//! It lies in a folder that only this user can look into: `$XDG_RUNTIME_DIR/thinwire`, or `thinwire-UID` in the folder for temporary
//! files. So other users of the machine, and pages in its browsers, cannot join.

use crate::error::{Error, Result};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use tokio_rustls::rustls::crypto::ring;

/// Bytes that nobody can guess.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let filled = ring::default_provider().secure_random.fill(&mut bytes);
    filled.expect("the system has randomness");
    bytes
}

/// A token that nobody can guess.
pub fn new_token() -> String {
    random::<32>().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A token's file, there for as long as its server is.
pub struct Announced {
    path: PathBuf,
    token: String,
}

impl Announced {
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        // Another server may have the port by now.
        if std::fs::read_to_string(&self.path).is_ok_and(|found| found == self.token) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Writes `token` where workers on this machine find it.
pub fn announce(port: u16, token: &str) -> Result<Announced> {
    let dir = folder();
    private::make(&dir)?;
    let (path, draft) = (file(&dir, port), dir.join(format!("{port}.{}", std::process::id())));
    let _ = std::fs::remove_file(&draft);
    let written = private::write(&draft, token).and_then(|()| std::fs::rename(&draft, &path));
    written.map_err(Error::io(&path))?;
    private::check(&dir, &path)?;
    Ok(Announced { path, token: token.to_owned() })
}

/// The token of the server at `address` (`HOST:PORT`), if that is on this machine and has announced one.
pub fn find(address: &str) -> Option<String> {
    let (host, port) = address.rsplit_once(':')?;
    let number = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let here = host.eq_ignore_ascii_case("localhost") || number.is_ok_and(|number| number.is_loopback());
    let (dir, port) = (folder(), port.parse().ok().filter(|_| here)?);
    let path = file(&dir, port);
    private::check(&dir, &path).ok()?;
    std::fs::read_to_string(path).ok()
}

/// Where the token of the server at `address` is, if workers on this machine may look for it.
pub fn place(address: SocketAddr) -> PathBuf {
    file(&folder(), address.port())
}

fn file(dir: &Path, port: u16) -> PathBuf {
    dir.join(format!("{port}.token"))
}

fn folder() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute()) {
        Some(dir) => dir.join("thinwire"),
        None => std::env::temp_dir().join(format!("thinwire-{}", private::user())),
    }
}

#[cfg(unix)]
mod private {
    //! Folders and files that only this user can read.

    use crate::error::{Error, Result};
    use std::io::Write;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
    use std::path::Path;

    pub fn user() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    pub fn make(dir: &Path) -> Result<()> {
        match std::fs::DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io(dir)(error)),
            _ => owned(dir, true),
        }
    }

    pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all())
    }

    pub fn check(dir: &Path, file: &Path) -> Result<()> {
        owned(dir, true).and_then(|()| owned(file, false))
    }

    /// Somebody else may have made a folder of this name, or a link that leads elsewhere.
    fn owned(path: &Path, is_dir: bool) -> Result<()> {
        let found = std::fs::symlink_metadata(path).map_err(Error::io(path))?;
        match found.is_dir() == is_dir && !found.is_symlink() && found.uid() == user() && found.mode() & 0o077 == 0 {
            true => Ok(()),
            false => {
                Err(Error::Usage(format!("{}: expected to be this user's alone, found others' rights", path.display())))
            }
        }
    }
}

#[cfg(not(unix))]
mod private {
    //! Where a user's folder for temporary files is the user's alone.

    use crate::error::{Error, Result};
    use std::path::Path;

    pub fn user() -> &'static str {
        "user"
    }

    pub fn make(dir: &Path) -> Result<()> {
        std::fs::create_dir_all(dir).map_err(Error::io(dir))
    }

    pub fn write(path: &Path, text: &str) -> std::io::Result<()> {
        std::fs::write(path, text)
    }

    pub fn check(_: &Path, file: &Path) -> Result<()> {
        std::fs::metadata(file).map(|_| ()).map_err(Error::io(file))
    }
}
