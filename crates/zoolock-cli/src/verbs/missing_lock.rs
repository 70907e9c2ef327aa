//! Messages about a name without a lock.

use zoolock::{Error, Zoolock};

use crate::base::exit::{Exit, Failure};
use crate::base::reporter::{Reporter, escape_unprintable};
use crate::plan::{ConnectionSettings, Endpoint};
use crate::render::text::lock_name;

/// Minimum similarity of a name that is suggested, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.8;

/// Returns the lock whose name is most similar to `name`, if one is similar.
pub(crate) async fn find_similar(
    zoolock: &Zoolock,
    name: &str,
    service: &ConnectionSettings,
) -> Result<Option<String>, Error> {
    let locks = zoolock.survey(None, 0).await?;
    let names = locks.iter().map(|lock| lock_name(&lock.path, &service.root));
    Ok(most_similar(names, name).map(str::to_owned))
}

/// Returns the failure of a command that looked at a lock that does not exist.
pub(crate) fn no_such_lock(name: &str, similar: Option<&str>, service: &ConnectionSettings) -> Failure {
    let ConnectionSettings { endpoint, root, .. } = service;
    let hint = if similar.is_none() { endpoint.ensemble_hint() } else { "" };
    let message = format!(
        "no lock {name} at {} below {root}: it is free, or its name is misspelled{}{hint}",
        endpoint.address(),
        suggestion(similar)
    );
    Failure::new(Exit::NO_SUCH_LOCK, message)
}

/// Notes that a lock is free only at this user's server, if this server was asked. An ensemble can have a lock of the
/// same name.
pub(crate) fn note_free_locally(name: &str, service: &ConnectionSettings, reporter: &Reporter) {
    if let Endpoint::Local = service.endpoint {
        reporter.note(format_args!(
            "{name} is free at {}{}",
            service.endpoint.address(),
            service.endpoint.ensemble_hint()
        ));
    }
}

/// Formats a question whether the similar name was meant.
pub(crate) fn suggestion(similar: Option<&str>) -> String {
    similar.map_or_else(String::new, |name| format!("; did you mean {}?", escape_unprintable(name)))
}

fn most_similar<'a>(names: impl Iterator<Item = &'a str>, wanted: &str) -> Option<&'a str> {
    let rated = names.map(|name| match name.starts_with(wanted) {
        true => (1.0, name),
        false => (strsim::jaro_winkler(name, wanted), name),
    });
    let best = rated.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY);
    best.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_name_is_suggested() {
        let names = || ["db/main", "nightly", "weekly"].into_iter();
        assert_eq!(most_similar(names(), "nihgtly"), Some("nightly"));
        assert_eq!(most_similar(names(), "night"), Some("nightly"));
        assert_eq!(most_similar(names(), "db/mian"), Some("db/main"));
        assert_eq!(most_similar(names(), "reports"), None);
        assert_eq!(suggestion(Some("a\u{7}")), "; did you mean a\\u{7}?");
    }
}
