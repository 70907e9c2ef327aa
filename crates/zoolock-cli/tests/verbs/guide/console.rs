//! A chapter's shell.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};
use snapbox::IntoData;

use crate::common::PATIENCE;
use crate::guide::book::Block;
use crate::guide::world::World;

/// Comes before a command's exit code; nobody prints it.
const MARK: char = '\u{1e}';

/// A command and what it prints.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    expected: String,
}

/// One shell for all blocks of a chapter, as the reader has one.
pub(crate) struct Console<'a> {
    world: &'a World,
    shell: Child,
    input: ChildStdin,
    output: Receiver<Vec<u8>>,
    /// What was read, and belongs to nobody yet.
    read: String,
    /// A command that failed, until the guide says so.
    failed: Option<String>,
}

impl<'a> Console<'a> {
    pub(crate) fn open(world: &'a World) -> Self {
        let mut shell = world.command("bash");
        shell.args(["--noprofile", "--norc", "-s"]);
        // Whatever is left of it at the end goes with its group.
        shell.process_group(0).stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::null());
        let mut shell = shell.spawn().expect("there is a shell");
        let mut input = shell.stdin.take().expect("it is open");
        let mut stdout = shell.stdout.take().expect("it is caught");
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut buffer) {
                let _ = sender.send(buffer[..count].to_vec());
            }
        });
        writeln!(input, "exec 2>&1").expect("it reads");
        Self { world, shell, input, output, read: String::new(), failed: None }
    }

    pub(crate) fn run(&mut self, block: &Block) {
        for step in steps(block) {
            let place = format!("{}: $ {}", block.place, step.command);
            if let Some(failed) = self.failed.take() {
                assert!(step.command.starts_with("echo $?"), "{failed}, and the guide does not say so");
            }
            let status = self.carry_out(&place, &step);
            if status != 0 {
                self.failed = Some(format!("{place} ended with {status}"));
            }
        }
    }

    /// Ends the shell, and what it left running.
    pub(crate) fn close(mut self) {
        assert_eq!(self.failed, None, "the guide does not say so");
        self.end();
    }

    fn carry_out(&mut self, place: &str, step: &Step) -> i32 {
        // Its input is no business of the command's; its code is that of the next one's $?.
        let script = format!(
            "{{\n{}\n}} </dev/null\n__code=$?; printf '{MARK}%d\\n' $__code; (exit $__code)\n",
            self.world.here(&step.command)
        );
        self.input.write_all(script.as_bytes()).expect("it reads");
        let deadline = Instant::now() + PATIENCE;
        let (said, status) = loop {
            if let Some((said, rest)) = self.read.split_once(MARK)
                && let Some((status, rest)) = rest.split_once('\n')
            {
                let found = (said.to_owned(), status.parse().expect("a code"));
                self.read = rest.to_owned();
                break found;
            }
            assert!(self.more(deadline), "{place} does not end; it printed\n{}", self.read);
        };
        // What goes on in the background prints when it likes, before the mark and after it.
        let background = step.command.ends_with('&');
        let mut said = said;
        loop {
            if background {
                said.push_str(&std::mem::take(&mut self.read));
            }
            let Err(difference) = compare(&step.expected, &self.world.guide(&said)) else { break };
            assert!(background && self.more(deadline), "{place} prints something else\n{difference}");
        }
        status
    }

    /// Whether something came.
    fn more(&mut self, deadline: Instant) -> bool {
        match self.output.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(bytes) => {
                self.read.push_str(&String::from_utf8_lossy(&bytes));
                true
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => false,
        }
    }

    fn end(&mut self) {
        let group = i32::try_from(self.shell.id()).ok().and_then(Pid::from_raw).expect("a process id");
        let _ = kill_process_group(group, Signal::TERM);
        let _ = kill_process_group(group, Signal::CONT);
        // A shell that reads commands does not end for a TERM.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        // When nobody has its output any more, they have all ended.
        let deadline = Instant::now() + PATIENCE;
        while self.more(deadline) {}
        let _ = kill_process_group(group, Signal::KILL);
    }
}

impl Drop for Console<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end();
        }
    }
}

fn steps(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), expected: String::new() });
            continue;
        }
        let last = steps.last_mut().unwrap_or_else(|| panic!("{}: begins with no command", block.place));
        match line.strip_prefix("> ") {
            Some(more) if last.expected.is_empty() => {
                last.command.push('\n');
                last.command.push_str(more);
            }
            _ => {
                last.expected.push_str(line);
                last.expected.push('\n');
            }
        }
    }
    steps
}

/// `…` in a line is anything in it, `…` alone any number of lines.
fn compare(expected: &str, actual: &str) -> Result<(), String> {
    let wild =
        |line: &str| if line == "…" { "...".to_owned() } else { normal(line).replace('…', "[..]") };
    let expected: String = expected.lines().map(|line| wild(line) + "\n").collect();
    let actual: String = actual.lines().map(|line| normal(line) + "\n").collect();
    snapbox::Assert::new()
        .normalize_paths(false)
        .try_eq(Some(&"what is printed"), actual.into_data(), expected.into_data())
        .map_err(|difference| difference.to_string())
}

/// A line without what differs each time: hosts, processes, tokens, ages, and the width of columns.
fn normal(line: &str) -> String {
    let tells_ages = line.contains(" pid ") || line.starts_with("  since ");
    let mut words: Vec<String> = Vec::new();
    let mut after_gap = false;
    for word in line.split(' ') {
        // Leading spaces count, and two between columns are as many as there are.
        if word.is_empty() && after_gap && words.iter().any(|word| !word.is_empty()) {
            continue;
        }
        after_gap = word.is_empty();
        let bare = word.trim_matches(['"', ',', ';']);
        let replaced = match words.last().map(String::as_str) {
            _ if bare.is_empty() => word.to_owned(),
            Some("pid") if bare.bytes().all(|b| b.is_ascii_digit()) => word.replace(bare, "PID"),
            // The epoch is no accident.
            _ if is_token(bare) => word.replace(&bare[8..], "-TOKEN"),
            _ if tells_ages && is_age(bare) => word.replace(bare, "AGE"),
            _ => word.to_owned(),
        };
        if replaced == "pid"
            && let Some(host) = words.last_mut()
        {
            "HOST".clone_into(host);
        }
        words.push(replaced);
    }
    words.join(" ")
}

fn is_token(word: &str) -> bool {
    let parts: Vec<&str> = word.split('-').collect();
    let widths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    widths == [8, 16, 8] && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn is_age(word: &str) -> bool {
    let number = word.strip_suffix("ms").or(word.strip_suffix('s')).unwrap_or(word);
    number.len() < word.len() && number.parse::<f32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guide::book::Page;

    #[test]
    fn a_block_is_commands_and_what_they_print() {
        let page = Page::of("p.md", "```console\n$ cat <<E\n> one\n> E\none\n$ true\n```\n");
        let step =
            |command: &str, expected: &str| Step { command: command.into(), expected: expected.into() };
        assert_eq!(steps(&page.blocks()[0]), [step("cat <<E\none\nE", "one\n"), step("true", "")]);
    }

    #[test]
    fn what_differs_each_time_may_differ_and_nothing_else() {
        assert_eq!(compare("a … c\n", "a b c\n"), Ok(()));
        assert_eq!(compare("a\n…\nd\n", "a\nb\nc\nd\n"), Ok(()));
        assert_eq!(compare("", ""), Ok(()));
        let (token, later) = ("00000000-0000000100000005-00000000", "00000000-00000001000000ff-00000000");
        let there = format!("x  3s     0  web1 pid 4711 (sh)\n  \"token\": \"{token}\",\n");
        let here = format!("x  12s  0  host pid 9 (sh)\n  \"token\": \"{later}\",\n");
        assert_eq!(compare(&there, &here), Ok(()));
        assert!(compare(&there, &here.replace("(sh)", "(bash)")).is_err());
        for (expected, actual) in
            [("a … c\n", "a b d\n"), ("a\n", "a\nb\n"), ("a\nb\n", "a\n"), ("", "a\n"), ("a\n", "")]
        {
            assert!(compare(expected, actual).is_err(), "{expected:?} is not {actual:?}");
        }
    }

    fn run(text: &str) {
        let page = Page::of("p.md", &format!("```console\n{text}```\n"));
        let world = World::for_page(&page);
        let mut console = Console::open(&world);
        page.blocks().iter().for_each(|block| console.run(block));
        console.close();
    }

    #[test]
    fn one_shell_has_what_was_said_before() {
        run(
            "$ x=1\n$ (exit 3)\n$ echo $?\n3\n$ sh -c 'sleep 0.2; echo late' &\nlate\n$ wait; echo $x >&2\n1\n",
        );
    }

    #[test]
    #[should_panic(expected = "ended with 3, and the guide does not say so")]
    fn a_failure_that_the_guide_hides_is_found() {
        run("$ (exit 3)\n$ true\n");
    }

    #[test]
    #[should_panic(expected = "prints something else")]
    fn another_output_is_found() {
        run("$ echo two\none\n");
    }
}
