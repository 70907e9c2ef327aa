//! The steps of a container file, carried out.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ignored::Ignored;
use super::place::{Copying, below};
use super::{Containerfile, Step};
use crate::Result;

/// Where an image is made.
#[derive(Debug)]
pub struct Image<'a> {
    /// What `COPY` copies from.
    pub context: &'a Path,
    /// The root of the first stage. Its commands are this machine's, so it has but one: cargo.
    pub build: &'a Path,
    /// The root of the last stage, which has a system in it.
    pub root: &'a Path,
    /// The program that is meant by `cargo`.
    pub cargo: &'a OsStr,
}

/// What a container of the image would do.
#[derive(Debug, PartialEq)]
pub struct Start {
    /// As whom: the numbers of the user and of the group, `990:990`.
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
        let ignored = Ignored::of(self.context)?;
        let mut stage = Carried::new(self.build, false);
        for step in &build.steps {
            stage.carry_out(step, self, &ignored, None)?;
        }
        let mut kept = Carried::new(self.root, true);
        for step in &image.steps {
            kept.carry_out(step, self, &ignored, build.name.as_deref())?;
        }
        let (user, group) = kept.user.ok_or("it says no USER, and would be root's")?;
        let command: Vec<String> = kept.entrypoint.into_iter().chain(kept.cmd).collect();
        let program =
            command.first().and_then(|program| program.strip_prefix('/')).ok_or("it starts nothing")?;
        if !below(self.root, &self.root.join(program)).is_ok_and(|program| program.is_file()) {
            return Err(format!("it starts /{program}, which is not there"));
        }
        Ok(Start { user: format!("{user}:{group}"), directory: kept.directory, command })
    }
}

/// A stage as far as it has come.
struct Carried<'a> {
    root: &'a Path,
    /// Whether its commands have its own programs.
    inside: bool,
    directory: String,
    user: Option<(u32, u32)>,
    entrypoint: Vec<String>,
    cmd: Vec<String>,
}

impl<'a> Carried<'a> {
    fn new(root: &'a Path, inside: bool) -> Self {
        Self { root, inside, directory: "/".to_owned(), user: None, entrypoint: Vec::new(), cmd: Vec::new() }
    }

    fn carry_out(
        &mut self,
        step: &Step,
        image: &Image<'_>,
        ignored: &Ignored,
        built: Option<&str>,
    ) -> Result<()> {
        match step {
            Step::Workdir(directory) => {
                self.directory = Path::new(&self.directory).join(directory).display().to_string();
                let here = below(self.root, &self.here(directory))?;
                std::fs::create_dir_all(&here).map_err(|error| format!("{}: {error}", here.display()))
            }
            Step::Copy { from: None, sources, target } => self.copy(image.context, ignored, sources, target),
            Step::Copy { from: Some(name), sources, target } if built == Some(name) => {
                self.copy(image.build, &Ignored::default(), sources, target)
            }
            Step::Copy { from, .. } => Err(format!("there is no stage {from:?}")),
            Step::Run(line) => {
                let mut command =
                    if self.inside { self.inside(line) } else { self.cargo(image.cargo, line)? };
                // Standard output is for what we say ourselves.
                command.stdout(std::io::stderr());
                match command.status() {
                    Ok(status) if status.success() => Ok(()),
                    Ok(status) => Err(format!("RUN {line}: {status}")),
                    Err(error) => Err(format!("RUN {line}: {error}")),
                }
            }
            Step::User(user, group) => self.become_user(*user, *group),
            Step::Volume(directory)
                if below(self.root, &self.here(directory)).is_ok_and(|it| it.is_dir()) =>
            {
                Ok(())
            }
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
        let path = Path::new("/").join(&self.directory).join(path);
        // Of `.` and slashes at the end nothing is left.
        let names = path.components().filter(|part| matches!(part, std::path::Component::Normal(_)));
        self.root.join(names.collect::<PathBuf>())
    }

    /// Of this machine's programs only cargo: what else the line says, nobody would carry out elsewhere as here.
    fn cargo(&self, cargo: &OsStr, line: &str) -> Result<Command> {
        let plain = |c: char| c.is_ascii_alphanumeric() || " -_./,=:+@".contains(c);
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["cargo", ref words @ ..] if line.chars().all(plain) => {
                let mut command = Command::new(cargo);
                command.args(words).current_dir(below(self.root, &self.here("."))?);
                // What is built is looked for where it is by default.
                for name in ["CARGO_TARGET_DIR", "CARGO_BUILD_TARGET_DIR", "CARGO_BUILD_TARGET"] {
                    command.env_remove(name);
                }
                Ok(command)
            }
            _ => Err(format!(
                "RUN {line}: the first stage runs on this machine, and runs cargo without a shell"
            )),
        }
    }

    /// In the system that the stage has, as whom `USER` has named.
    fn inside(&self, line: &str) -> Command {
        let mut command = Command::new("chroot");
        if let Some((user, group)) = self.user {
            command.arg(format!("--userspec={user}:{group}"));
        }
        command.arg(self.root).args(["/usr/bin/env", "-i", "-C", &self.directory]);
        command.arg("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        command.args(["/bin/sh", "-c", line]);
        command
    }

    fn become_user(&mut self, user: u32, group: u32) -> Result<()> {
        if !self.inside {
            return Err(format!("USER {user}:{group}: the first stage is this machine's, and is run by us"));
        }
        let has = |file: &str, number: u32| {
            let text = below(self.root, &self.here(file))
                .and_then(|file| std::fs::read_to_string(file).map_err(|error| error.to_string()))
                .map_err(|error| format!("{file}: {error}"))?;
            let number = number.to_string();
            Ok::<_, String>(text.lines().any(|line| line.split(':').nth(2) == Some(&number)))
        };
        if !has("/etc/passwd", user)? || !has("/etc/group", group)? {
            return Err(format!("USER {user}:{group}: they have no names; create the account before"));
        }
        self.user = Some((user, group));
        Ok(())
    }

    /// As `COPY` does: of a directory its contents.
    fn copy(&self, from: &Path, ignored: &Ignored, sources: &[String], target: &str) -> Result<()> {
        let into_directory = target.ends_with('/') || target == ".";
        let copying = Copying { from, to: self.root, ignored };
        for source in sources {
            let path = from.join(source.trim_start_matches('/'));
            let copied = copying.copy(&path, &self.here(target), into_directory);
            copied.map_err(|error| format!("COPY {source}: {error}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine in a directory: the first stage builds, with a shell in cargo's place that reads what is called `build`; the
    /// last is never entered, since it runs nothing.
    fn make(file: &str) -> Result<(Start, String)> {
        let place = tempfile::tempdir().expect("a temporary directory");
        let [context, build, root] = ["context", "build", "root"].map(|name| place.path().join(name));
        for directory in [&context.join("src"), &build, &root.join("etc")] {
            std::fs::create_dir_all(directory).expect("a new directory");
        }
        for (path, text) in [
            (&context.join("src/a"), "a"),
            (&context.join("src/secret"), "s"),
            (&context.join("b"), "b"),
            (&context.join("build"), "cat b src/a > program; echo \"$*\" >> program"),
            (&context.join("fail"), "exit 3"),
            (&context.join("unnamed"), ""),
            (&context.join(".dockerignore"), "*\n!b\n!build\n!fail\n!src\nsrc/secret\n"),
            (&root.join("etc/passwd"), "root:x:0:0::/:\nme:x:900:901::/:\n"),
            (&root.join("etc/group"), "root:x:0:\nme:x:901:\n"),
        ] {
            std::fs::write(path, text).expect("a new file");
        }
        let image = Image { context: &context, build: &build, root: &root, cargo: OsStr::new("sh") };
        let start = image.make(&Containerfile::parse(file)?)?;
        assert!(!build.join("src/src/secret").exists(), "it was to be left out");
        Ok((start, std::fs::read_to_string(root.join("bin/program")).expect("it was copied")))
    }

    const FILE: &str = "\
# a comment
FROM docker.io/library/rust:1 AS build
WORKDIR /src
COPY b build fail ./
COPY src src
RUN cargo build \\
    --locked
FROM debian:bookworm-slim
COPY --from=build /src/program /bin/program
USER 900:901
EXPOSE 2181
ENTRYPOINT [\"/bin/program\"]
CMD [\"serve\", \"--listen\"]
";

    #[test]
    fn the_steps_are_carried_out() {
        let (start, program) = make(FILE).expect("all is there");
        assert_eq!(program, "ba--locked\n");
        assert_eq!((start.user.as_str(), start.directory.as_str()), ("900:901", "/"));
        assert_eq!(start.command, ["/bin/program", "serve", "--listen"]);
        let relative = FILE.replace("EXPOSE 2181", "WORKDIR data\nWORKDIR below");
        assert_eq!(make(&relative).expect("all is there").0.directory, "/data/below");
    }

    #[test]
    fn what_is_wrong_is_found() {
        for (line, instead, told) in [
            ("COPY b build fail ./", "COPY c ./", "COPY c: "),
            ("COPY b build fail ./", "COPY ../outside ./", "leads up"),
            ("COPY b build fail ./", "COPY b ../", "leads up"),
            ("COPY b build fail ./", "COPY src/../../outside ./", "leads up"),
            ("WORKDIR /src", "WORKDIR /src/../..", "leads up"),
            ("WORKDIR /src", "WORKDIR $HOME", "plain"),
            ("COPY b build fail ./", "COPY * ./", "plain"),
            ("COPY b build fail ./", "COPY [\"b\", \"./\"]", "plain"),
            ("COPY b build fail ./", "COPY b build fail there", "ends with a slash"),
            ("COPY b build fail ./", "COPY src/secret ./", ".dockerignore keeps it out"),
            ("COPY b build fail ./", "COPY unnamed ./", ".dockerignore keeps it out"),
            ("COPY src src", "ADD src src", "nobody here knows ADD"),
            ("RUN cargo build", "RUN cargo fail", "exit status: 3"),
            ("RUN cargo build", "RUN cat b", "runs cargo"),
            ("RUN cargo build", "RUN cargo build; cat b", "runs cargo"),
            ("RUN cargo build", "RUN cargo build && cargo doc", "runs cargo"),
            ("RUN cargo build", "RUN cargo build $(id)", "runs cargo"),
            ("RUN cargo build", "RUN --network=none cargo build", "no flag"),
            ("RUN cargo build", "RUN [\"cargo\", \"build\"] #", "no flag, list"),
            ("RUN cargo build", "USER 900:901\nRUN cargo build", "this machine's"),
            ("--from=build", "--from=other", "no stage"),
            ("--from=build", "--chown=me", "no flag but --from"),
            ("USER 900:901", "USER 0:901", "that is root"),
            ("USER 900:901", "USER 900:0", "that is root"),
            ("USER 900:901", "USER me", "in numbers"),
            ("USER 900:901", "USER 900", "in numbers"),
            ("USER 900:901", "USER 902:901", "no names"),
            ("USER 900:901", "USER 900:902", "no names"),
            ("USER 900:901\n", "", "no USER"),
            ("EXPOSE 2181", "EXPOSE http", "no port"),
            ("EXPOSE 2181", "VOLUME /data", "no such directory"),
            ("ENTRYPOINT [\"/bin/program\"]", "ENTRYPOINT /bin/program", "list"),
            ("ENTRYPOINT [\"/bin/program\"]", "ENTRYPOINT [\"/bin/other\"]", "not there"),
            ("ENTRYPOINT [\"/bin/program\"]", "ENTRYPOINT [\"/../context/b\"]", "not there"),
            ("FROM debian:bookworm-slim\n", "", "1 stages"),
        ] {
            let file = FILE.replace(line, instead);
            assert_ne!(file, FILE, "{line}");
            let error = make(&file).expect_err(instead);
            assert!(error.contains(told), "{instead}: {error}");
        }
    }

    #[test]
    fn commands_are_run_as_whom_user_has_named() {
        let place = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(place.path().join("etc")).expect("a new directory");
        std::fs::write(place.path().join("etc/passwd"), "me:x:900:901::/:\n").expect("a new file");
        std::fs::write(place.path().join("etc/group"), "me:x:901:\n").expect("a new file");
        let mut stage = Carried::new(place.path(), true);
        let words = |stage: &Carried<'_>| {
            let command = stage.inside("id");
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let of_root = words(&stage);
        assert!(!of_root.iter().any(|word| word.starts_with("--userspec")), "{of_root:?}");
        stage.become_user(900, 901).expect("it is there");
        let of_me = words(&stage);
        assert_eq!(of_me[0], "--userspec=900:901");
        assert_eq!(of_me[1..], of_root[..]);
    }
}
