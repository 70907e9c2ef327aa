//! Container files, and their steps carried out without a registry of images: the first stage on this machine, which has a
//! compiler, the last one in a directory that has a system. Only what our own file needs is known; the rest is refused, so
//! that nothing in it goes untried, and so is what others would understand in another way.

mod ignored;
mod image;
mod place;

pub use image::{Image, Start};

use crate::Result;

/// A file, stage by stage.
#[derive(Debug, PartialEq)]
pub struct Containerfile {
    stages: Vec<Stage>,
}

#[derive(Debug, PartialEq)]
struct Stage {
    image: String,
    name: Option<String>,
    steps: Vec<Step>,
}

#[derive(Debug, PartialEq)]
enum Step {
    Workdir(String),
    Copy {
        from: Option<String>,
        sources: Vec<String>,
        target: String,
    },
    Run(String),
    /// The numbers of the user and of the group.
    User(u32, u32),
    /// Said to whoever runs it.
    Volume(String),
    Expose(u16),
    Entrypoint(Vec<String>),
    Cmd(Vec<String>),
}

impl Containerfile {
    /// Reads one.
    ///
    /// # Errors
    /// At the first line that is not understood.
    pub fn parse(text: &str) -> Result<Self> {
        let mut stages: Vec<Stage> = Vec::new();
        for line in logical_lines(text) {
            let (word, rest) = line.split_once(' ').ok_or_else(|| format!("{line:?} says nothing"))?;
            let rest = rest.trim();
            if word == "FROM" {
                let (image, name) = match rest.split_once(" AS ") {
                    Some((image, name)) => (image, Some(name.to_owned())),
                    None => (rest, None),
                };
                stages.push(Stage { image: image.to_owned(), name, steps: Vec::new() });
                continue;
            }
            let step = match word {
                "WORKDIR" => Step::Workdir(path(rest)?),
                "COPY" => copy(rest)?,
                "RUN" => run(rest)?,
                "USER" => user(rest)?,
                "VOLUME" => Step::Volume(path(rest)?),
                "EXPOSE" => Step::Expose(rest.parse().map_err(|_| format!("{line:?}: that is no port"))?),
                "ENTRYPOINT" => Step::Entrypoint(words(rest)?),
                "CMD" => Step::Cmd(words(rest)?),
                _ => return Err(format!("{line:?}: nobody here knows {word}")),
            };
            stages.last_mut().ok_or_else(|| format!("{line:?} comes before FROM"))?.steps.push(step);
        }
        Ok(Self { stages })
    }
}

/// Lines without comments, those that end with a backslash joined.
fn logical_lines(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let mut open = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_suffix('\\') {
            Some(part) => open.push_str(part),
            None => lines.push(std::mem::take(&mut open) + line),
        }
    }
    lines.extend(Some(open).filter(|open| !open.is_empty()));
    lines
}

/// One name, as it is. Elsewhere variables and patterns are filled in, and a way up may lead out of where we write.
fn path(text: &str) -> Result<String> {
    let known = |c: char| c.is_ascii_alphanumeric() || "/._-+@=".contains(c);
    if text.is_empty() || !text.chars().all(known) {
        return Err(format!("{text:?}: one plain name is expected"));
    }
    if text.split('/').any(|part| part == "..") {
        return Err(format!("{text:?}: nothing leads up with .. here"));
    }
    Ok(text.to_owned())
}

fn copy(text: &str) -> Result<Step> {
    let mut names: Vec<&str> = text.split_whitespace().collect();
    let from = names.first().and_then(|first| first.strip_prefix("--from=")).map(str::to_owned);
    if from.is_some() {
        names.remove(0);
    }
    let target = match names.pop() {
        Some(target) if !names.is_empty() && !names.iter().any(|name| name.starts_with("--")) => {
            path(target)?
        }
        _ => return Err(format!("COPY {text:?}: names and a target are needed, and no flag but --from")),
    };
    let sources = names.into_iter().map(path).collect::<Result<Vec<_>>>()?;
    if sources.len() > 1 && !target.ends_with('/') {
        return Err(format!("COPY {text:?}: the target of several ends with a slash"));
    }
    Ok(Step::Copy { from, sources, target })
}

fn run(text: &str) -> Result<Step> {
    if text.starts_with(['[', '-']) || text.contains("<<") {
        return Err(format!(
            "RUN {text:?}: one command is expected, with no flag, list or text that follows"
        ));
    }
    Ok(Step::Run(text.to_owned()))
}

/// Who demands that a container is not root's can see it of numbers alone.
fn user(text: &str) -> Result<Step> {
    let numbers =
        text.split_once(':').and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
    match numbers {
        Some((0, _) | (_, 0)) => Err(format!("USER {text}: that is root")),
        Some((user, group)) => Ok(Step::User(user, group)),
        None => Err(format!("USER {text}: write it in numbers, user:group")),
    }
}

/// A list as in JSON; what a shell would have to read is refused.
fn words(text: &str) -> Result<Vec<String>> {
    serde_json::from_str(text).map_err(|_| format!("{text:?}: write it as a list, [\"a\", \"b\"]"))
}
