//! Container files, and their steps carried out without a registry of images: the first stage on this machine, which has a
//! compiler, the last one in a directory that has a system. Only what our own file needs is known; the rest is refused, so
//! that nothing in it goes untried.

use std::path::{Path, PathBuf};
use std::process::Command;

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
    User(String),
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
                "WORKDIR" => Step::Workdir(rest.to_owned()),
                "COPY" => copy(rest)?,
                "RUN" => Step::Run(rest.to_owned()),
                "USER" => Step::User(rest.to_owned()),
                "VOLUME" => Step::Volume(rest.to_owned()),
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

fn copy(text: &str) -> Result<Step> {
    let mut names: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let from = names.first().and_then(|first| first.strip_prefix("--from=")).map(str::to_owned);
    if from.is_some() {
        names.remove(0);
    }
    match names.pop() {
        Some(target) if !names.is_empty() && !names.iter().any(|name| name.starts_with("--")) => {
            Ok(Step::Copy { from, sources: names, target })
        }
        _ => Err(format!("COPY {text:?}: names and a target are needed, and no flag but --from")),
    }
}

/// A list as in JSON; what a shell would have to read is refused.
fn words(text: &str) -> Result<Vec<String>> {
    serde_json::from_str(text).map_err(|_| format!("{text:?}: write it as a list, [\"a\", \"b\"]"))
}

/// Where an image is made.
#[derive(Debug)]
pub struct Image<'a> {
    /// What `COPY` copies from.
    pub context: &'a Path,
    /// The root of the first stage; its commands have this machine's programs.
    pub build: &'a Path,
    /// The root of the last stage, which has a system in it.
    pub root: &'a Path,
}

/// What a container of the image would do.
#[derive(Debug, PartialEq)]
pub struct Start {
    /// As whom.
    pub user: String,
    /// Where.
    pub directory: String,
    /// What.
    pub command: Vec<String>,
}

impl Image<'_> {
    /// Carries the steps out.
    ///
    /// # Errors
    /// At the first step that fails, and where the container would be root's.
    pub fn make(&self, file: &Containerfile) -> Result<Start> {
        let [build, image] = &file.stages[..] else {
            return Err(format!(
                "{} stages: one that builds and one that is kept are expected",
                file.stages.len()
            ));
        };
        if !build.image.contains("rust:") || !image.image.contains("debian:") {
            return Err(format!("{} and {}: rust and debian are expected", build.image, image.image));
        }
        let mut stage = Carried::new(self.build, false);
        for step in &build.steps {
            stage.carry_out(step, self, None)?;
        }
        let mut kept = Carried::new(self.root, true);
        for step in &image.steps {
            kept.carry_out(step, self, build.name.as_deref())?;
        }
        let user = kept.user.ok_or("it says no USER, and would be root's")?;
        let command: Vec<String> = kept.entrypoint.into_iter().chain(kept.cmd).collect();
        match command.first() {
            Some(program) if self.root.join(program.trim_start_matches('/')).is_file() => {}
            program => return Err(format!("it starts {program:?}, which is not there")),
        }
        Ok(Start { user, directory: kept.directory, command })
    }
}

/// A stage as far as it has come.
struct Carried<'a> {
    root: &'a Path,
    /// Whether its commands have its own programs.
    inside: bool,
    directory: String,
    user: Option<String>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
}

impl<'a> Carried<'a> {
    fn new(root: &'a Path, inside: bool) -> Self {
        Self { root, inside, directory: "/".to_owned(), user: None, entrypoint: Vec::new(), cmd: Vec::new() }
    }

    fn carry_out(&mut self, step: &Step, image: &Image<'_>, built: Option<&str>) -> Result<()> {
        match step {
            Step::Workdir(directory) => {
                self.directory.clone_from(directory);
                let here = self.here(directory);
                std::fs::create_dir_all(&here).map_err(|error| format!("{}: {error}", here.display()))
            }
            Step::Copy { from: None, sources, target } => self.copy(image.context, sources, target),
            Step::Copy { from: Some(name), sources, target } if built == Some(name) => {
                self.copy(image.build, sources, target)
            }
            Step::Copy { from, .. } => Err(format!("there is no stage {from:?}")),
            Step::Run(command) => self.run(command),
            Step::User(user) => self.become_user(user),
            Step::Volume(directory) if self.here(directory).is_dir() => Ok(()),
            Step::Volume(directory) => Err(format!("VOLUME {directory}: there is no such directory")),
            Step::Expose(_) => Ok(()),
            Step::Entrypoint(words) => {
                self.entrypoint.clone_from(words);
                Ok(())
            }
            Step::Cmd(words) => {
                self.cmd.clone_from(words);
                Ok(())
            }
        }
    }

    /// A path of the stage's, here.
    fn here(&self, path: &str) -> PathBuf {
        match path.strip_prefix('/') {
            Some(path) => self.root.join(path),
            None => self.root.join(self.directory.trim_start_matches('/')).join(path),
        }
    }

    fn run(&self, line: &str) -> Result<()> {
        let mut command;
        if self.inside {
            command = Command::new("chroot");
            command.arg(self.root).args(["/usr/bin/env", "-i", "-C", &self.directory]);
            command.args([
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "/bin/sh",
                "-c",
            ]);
            command.arg(line);
        } else {
            command = Command::new("/bin/sh");
            command.args(["-c", line]).current_dir(self.here(&self.directory));
        }
        // Standard output is for what we say ourselves.
        command.stdout(std::io::stderr());
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("RUN {line}: {status}")),
            Err(error) => Err(format!("RUN {line}: {error}")),
        }
    }

    fn become_user(&mut self, name: &str) -> Result<()> {
        let accounts =
            std::fs::read_to_string(self.here("/etc/passwd")).map_err(|error| error.to_string())?;
        let account = accounts.lines().find(|line| line.split(':').next() == Some(name));
        match account.and_then(|line| line.split(':').nth(2)) {
            None => Err(format!("USER {name}: there is no such account")),
            Some("0") => Err(format!("USER {name}: that is root")),
            Some(_) => {
                self.user = Some(name.to_owned());
                Ok(())
            }
        }
    }

    /// As `COPY` does: of a directory its contents.
    fn copy(&self, from: &Path, sources: &[String], target: &str) -> Result<()> {
        let into_directory = target.ends_with('/') || target == "." || sources.len() > 1;
        for source in sources {
            let source = from.join(source.trim_start_matches('/'));
            let target = self.here(target);
            let copied = if source.is_dir() {
                copy_directory(&source, &target)
            } else if into_directory {
                let name = source.file_name().unwrap_or_default();
                copy_file(&source, &target.join(name))
            } else {
                copy_file(&source, &target)
            };
            copied.map_err(|error| format!("COPY {}: {error}", source.display()))?;
        }
        Ok(())
    }
}

fn copy_file(source: &Path, target: &Path) -> std::io::Result<()> {
    if let Some(parent) = target.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::copy(source, target).map(drop)
}

fn copy_directory(source: &Path, target: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(target)?;
    for entry in std::fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            copy_directory(&from, &to)?;
        } else if kind.is_symlink() {
            let _ = std::fs::remove_file(&to);
            std::os::unix::fs::symlink(std::fs::read_link(&from)?, &to)?;
        } else {
            std::fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine in a directory: the first stage builds, the last is never entered, since it runs nothing.
    fn make(file: &str) -> Result<(Start, String)> {
        let place = tempfile::tempdir().expect("a temporary directory");
        let [context, build, root] = ["context", "build", "root"].map(|name| place.path().join(name));
        for directory in [&context.join("src"), &build, &root.join("etc")] {
            std::fs::create_dir_all(directory).expect("a new directory");
        }
        std::fs::write(context.join("src/a"), "a").expect("a new file");
        std::fs::write(context.join("b"), "b").expect("a new file");
        std::fs::write(root.join("etc/passwd"), "root:x:0:0::/:\nme:x:900:900::/:\n").expect("a new file");
        let image = Image { context: &context, build: &build, root: &root };
        let start = image.make(&Containerfile::parse(file)?)?;
        Ok((start, std::fs::read_to_string(root.join("bin/program")).expect("it was copied")))
    }

    const FILE: &str = "\
# a comment
FROM docker.io/library/rust:1 AS build
WORKDIR /src
COPY b ./
COPY src src
RUN cat b \\
    src/a > program
FROM debian:bookworm-slim
COPY --from=build /src/program /bin/program
USER me
EXPOSE 2181
ENTRYPOINT [\"/bin/program\"]
CMD [\"serve\", \"--listen\"]
";

    #[test]
    fn the_steps_are_carried_out() {
        let (start, program) = make(FILE).expect("all is there");
        assert_eq!(program, "ba");
        assert_eq!((start.user.as_str(), start.directory.as_str()), ("me", "/"));
        assert_eq!(start.command, ["/bin/program", "serve", "--listen"]);
    }

    #[test]
    fn what_is_wrong_is_found() {
        for (line, instead, told) in [
            ("COPY b ./", "COPY c ./", "COPY"),
            ("COPY src src", "ADD src src", "nobody here knows ADD"),
            ("RUN cat b \\\n", "RUN exit 3; cat b \\\n", "exit status: 3"),
            ("--from=build", "--from=other", "no stage"),
            ("--from=build", "--chown=me", "no flag but --from"),
            ("USER me", "USER root", "that is root"),
            ("USER me", "USER you", "no such account"),
            ("USER me\n", "", "no USER"),
            ("EXPOSE 2181", "EXPOSE http", "no port"),
            ("EXPOSE 2181", "VOLUME /data", "no such directory"),
            ("ENTRYPOINT [\"/bin/program\"]", "ENTRYPOINT /bin/program", "list"),
            ("ENTRYPOINT [\"/bin/program\"]", "ENTRYPOINT [\"/bin/other\"]", "not there"),
            ("FROM debian:bookworm-slim\n", "", "1 stages"),
        ] {
            let file = FILE.replace(line, instead);
            assert_ne!(file, FILE, "{line}");
            let error = make(&file).expect_err(instead);
            assert!(error.contains(told), "{instead}: {error}");
        }
    }
}
