//! Access control lists of the znodes that the command creates.

use crate::args::Global;
use crate::base::exit::Failure;
use crate::plan::credentials::is_set;

/// Access granted to clients without this command's credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Read access for these identities, as (scheme, id); no access for anyone else.
    Readers(Vec<(String, String)>),
    /// Full access for everyone.
    WorldWritable,
}

/// Checks `--reader` and `--world-writable`.
pub(super) fn access(global: &Global) -> Result<Access, Failure> {
    if global.world_writable {
        return Ok(Access::WorldWritable);
    }
    let reader = |text: &String| match text.split_once(':') {
        Some((scheme, id)) if !scheme.is_empty() && !id.is_empty() => Ok((scheme.to_owned(), id.to_owned())),
        _ => Err(Failure::usage(format!(
            "--reader {text:?}: write it as SCHEME:ID, such as digest:ops:DIGEST, x509:CN=ops or world:anyone"
        ))),
    };
    let readers: Vec<_> = global.reader.iter().map(reader).collect::<Result<_, _>>()?;
    // An empty environment variable counts as unset.
    let auth = global.auth.as_ref().is_some_and(|auth| !auth.is_empty());
    if !readers.is_empty() && !auth && !is_set(global.cert.as_ref()) {
        return Err(Failure::usage(
            "--reader needs --auth or --cert: without credentials, anyone may modify the znodes that zoolock creates",
        ));
    }
    Ok(Access::Readers(readers))
}
