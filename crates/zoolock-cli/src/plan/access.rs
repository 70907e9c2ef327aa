//! Who may use what we create.

use crate::args::Global;
use crate::credentials::named;
use crate::exit::Failure;

/// Who may use what we create, beside those who have our credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nobody; these may look: scheme and id.
    Readers(Vec<(String, String)>),
    Everybody,
}

pub(super) fn access(global: &Global) -> Result<Access, Failure> {
    if global.world_writable {
        return Ok(Access::Everybody);
    }
    let reader = |text: &String| match text.split_once(':') {
        Some((scheme, id)) if !scheme.is_empty() && !id.is_empty() => Ok((scheme.to_owned(), id.to_owned())),
        _ => Err(Failure::usage(format!(
            "--reader {text:?}: write it as SCHEME:ID, such as digest:ops:DIGEST, x509:CN=ops or world:anyone"
        ))),
    };
    let readers: Vec<_> = global.reader.iter().map(reader).collect::<Result<_, _>>()?;
    // An empty variable is as none.
    let auth = global.auth.as_ref().is_some_and(|auth| !auth.is_empty());
    if !readers.is_empty() && !auth && !named(global.cert.as_ref()) {
        return Err(Failure::usage(
            "--reader goes with --auth or --cert: without credentials everybody may do everything with what we create",
        ));
    }
    Ok(Access::Readers(readers))
}
