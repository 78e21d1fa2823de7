//! What a certificate says: whose it is, and from when until when it counts.
//!
//! With `--client-ca` a worker joins under the name in its certificate and under no other, so that nobody who is let in can put another
//! out, or take more than one seat. A certificate that has expired, or does not count yet, is named at the start.

use crate::error::{Error, Result};
use rustls_pki_types::CertificateDer;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// The names in a certificate: the common names of its subject, and its DNS names.
pub(crate) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let mut names = common.map(str::to_owned).collect::<Vec<_>>();
    if let Ok(Some(others)) = certificate.subject_alternative_name() {
        names.extend(others.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    names
}

/// The name that a worker with the certificate in this PEM file joins under, if it has one.
pub fn name(path: &Path) -> Result<Option<String>> {
    let chain = crate::door::certificates(path)?;
    Ok(chain.first().and_then(|certificate| names(certificate).into_iter().next()))
}

/// Refuses a certificate that does not count at `now`.
pub(crate) fn check_time(path: &Path, certificate: &CertificateDer<'_>, now: SystemTime) -> Result<()> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Ok(()) };
    let seconds = |time: x509_parser::time::ASN1Time| Duration::from_secs(time.timestamp().max(0) as u64);
    let (validity, now) = (certificate.validity(), now.duration_since(UNIX_EPOCH).unwrap_or_default());
    let problem = match (now < seconds(validity.not_before), now > seconds(validity.not_after)) {
        (true, _) => format!("the certificate does not count before {}", validity.not_before),
        (_, true) => format!("the certificate has expired on {}", validity.not_after),
        _ => return Ok(()),
    };
    Err(Error::Usage(format!("{}: {problem} (make a new one, or set the clock)", path.display())))
}
