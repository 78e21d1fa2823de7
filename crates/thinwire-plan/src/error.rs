//! Why there is no answer: which key of the question, and what was expected.

use crate::question::KEYS;
use std::fmt;
use std::io::ErrorKind;

/// A [`std::result::Result`] whose error is [`Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was expected, and what was found.
///
/// Its text names keys as [`Question`](crate::Question) has them: `without_packing`. [`Error::with_flags`] has the spelling of the
/// command: `--without-packing`.
pub struct Error(anyhow::Error);

/// A text that is not the same to those who write flags and to those who write keywords.
#[derive(Debug)]
pub(crate) struct Spelled {
    pub flags: String,
    pub words: String,
}

impl Error {
    /// The text in the words of the command `thinwire plan`.
    pub fn with_flags(&self) -> String {
        format!("{:#}", self.0)
    }

    /// Whether a file is not there.
    pub fn is_missing_file(&self) -> bool {
        let mut causes = self.0.chain().filter_map(|cause| cause.downcast_ref::<std::io::Error>());
        causes.any(|error| error.kind() == ErrorKind::NotFound)
    }
}

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Error {
        Error(error)
    }
}

impl std::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.downcast_ref::<Spelled>() {
            Some(spelled) => f.write_str(&spelled.words),
            None => f.write_str(&in_words(&self.with_flags())),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Spelled {}

/// As the command writes it.
impl fmt::Display for Spelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.flags)
    }
}

/// `--slow-host` becomes `slow_host`, and `invalid --hosts 3` becomes `invalid hosts = 3`. Flags of other commands stay.
fn in_words(text: &str) -> String {
    let mut parts = text.split("--");
    let mut words = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|letter: char| !letter.is_ascii_lowercase() && letter != '-').unwrap_or(part.len());
        let key = part[..end].replace('-', "_");
        match KEYS.contains(&key.as_str()) {
            true => {
                let is = if words.ends_with("invalid ") { " =" } else { "" };
                words += &format!("{key}{is}{}", &part[end..]);
            }
            false => words += &format!("--{part}"),
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::in_words;

    #[test]
    fn keys_are_spelled_as_in_a_program() {
        for (flags, words) in [
            ("invalid --hosts 3: expected 1 to 2", "invalid hosts = 3: expected 1 to 2"),
            ("or --hosts beside --slow-link.", "or hosts beside slow_link."),
            ("`thinwire bench --json` and --codecs", "`thinwire bench --json` and codecs"),
            ("--network a--b.json: no", "network a--b.json: no"),
        ] {
            assert_eq!(in_words(flags), words);
        }
    }

    /// To whoever writes flags, and to whoever writes a program.
    #[test]
    fn a_lack_is_named_in_both_spellings() {
        let error = crate::Question::default().answer().expect_err("nothing is given");
        assert!(
            error.with_flags().contains("expected --params and --workers")
                && error.with_flags().contains("thinwire plan --params")
        );
        assert!(
            error.to_string().contains("expected params and workers") && !error.to_string().contains("--"),
            "{error}"
        );
    }
}
