//! Runs the commands of a page in a shell.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use snapbox::IntoData;
use tempfile::NamedTempFile;

use crate::common::PATIENCE;
use crate::guide::book::{Block, regex};
use crate::guide::machine::Machine;

/// Byte before the exit code of each command in the output.
const MARK: u8 = 0x1e;

/// A command and its expected output.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    expected: String,
}

/// The shell in which all blocks of a page run.
pub(crate) struct Console<'a> {
    machine: &'a Machine,
    shell: Child,
    input: ChildStdin,
    /// Output of the shell and its children.
    output: NamedTempFile,
    /// Number of bytes of the output that were compared already.
    consumed: usize,
    /// Description of a failed command whose exit code the page has not shown yet.
    failed: Option<String>,
}

impl<'a> Console<'a> {
    pub(crate) fn open(machine: &'a Machine) -> Self {
        let output = NamedTempFile::new().expect("temporary file");
        let append =
            std::fs::OpenOptions::new().append(true).open(output.path()).expect("the file is writable");
        let mut shell = machine.command("bash");
        shell.args(["--noprofile", "--norc", "-s"]).process_group(0);
        let mut shell = shell.stdin(Stdio::piped()).stdout(append).spawn().expect("bash starts");
        let mut input = shell.stdin.take().expect("stdin is piped");
        // The shell and its children keep the pipe of standard error open as descriptor 3. `end` reads the pipe to its end,
        // and so waits for all these processes.
        writeln!(input, "exec 3>&2 2>&1").expect("bash reads");
        Self { machine, shell, input, output, consumed: 0, failed: None }
    }

    pub(crate) fn run(&mut self, block: &Block) {
        for step in steps(block) {
            let location = format!("{}: $ {}", block.location, step.command);
            if let Some(failed) = self.failed.take() {
                assert!(step.command.starts_with("echo $?"), "{failed}, and the guide does not say so");
            }
            let status = self.run_step(&location, &step);
            self.failed = (status != 0).then(|| format!("{location} ended with {status}"));
        }
    }

    /// Ends the shell and its children.
    pub(crate) fn close(mut self) {
        assert_eq!(self.failed, None, "the guide does not say so");
        self.end();
    }

    /// Runs a command, compares its output with the expected output, and returns its exit code.
    fn run_step(&mut self, location: &str, step: &Step) -> i32 {
        // The command gets an empty standard input. The subshell sets $? for the next command.
        let command = self.machine.to_local(&step.command);
        let script =
            format!("{{\n{command}\n}} </dev/null\n__code=$?; printf '\\036%d\\n' $__code; (exit $__code)\n");
        self.input.write_all(script.as_bytes()).expect("bash reads");
        // A background command may print before and after the mark.
        let is_background = step.command.ends_with('&');
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = std::fs::read(self.output.path()).expect("readable");
            let output = &output[self.consumed..];
            let is_late = Instant::now() > deadline;
            if let Some((printed, status, rest)) = split_at_mark(output) {
                let all = [printed, if is_background { rest } else { &[] }].concat();
                match compare(&step.expected, &self.machine.to_guide(&String::from_utf8_lossy(&all))) {
                    Ok(()) => {
                        self.consumed += output.len() - if is_background { 0 } else { rest.len() };
                        return status;
                    }
                    Err(difference) if is_late || !is_background => {
                        panic!("{location} prints something else\n{difference}")
                    }
                    Err(_) => {}
                }
            }
            assert!(!is_late, "{location} does not end; it printed\n{}", String::from_utf8_lossy(output));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(&mut self) {
        let group = Pid::from_child(&self.shell);
        for signal in [Signal::TERM, Signal::CONT] {
            let _ = kill_process_group(group, signal);
        }
        // A shell that reads commands ignores TERM.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        let _ = self.shell.stderr.take().map(|mut pipe| pipe.read_to_end(&mut Vec::new()));
    }
}

impl Drop for Console<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.end();
        }
    }
}

/// Splits the output at the mark into the output of the command, its exit code, and the rest.
fn split_at_mark(output: &[u8]) -> Option<(&[u8], i32, &[u8])> {
    let mark = output.iter().position(|byte| *byte == MARK)?;
    let end = mark + output[mark..].iter().position(|byte| *byte == b'\n')?;
    let status = std::str::from_utf8(&output[mark + 1..end]).ok()?.parse().expect("exit code");
    Some((&output[..mark], status, &output[end + 1..]))
}

/// Splits a block into its commands and their expected outputs.
fn steps(block: &Block) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for line in block.text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), expected: String::new() });
            continue;
        }
        let last = steps.last_mut().unwrap_or_else(|| panic!("{}: starts without a command", block.location));
        match line.strip_prefix("> ") {
            Some(more) if last.expected.is_empty() => last.command += &format!("\n{more}"),
            _ => last.expected += &format!("{line}\n"),
        }
    }
    steps
}

/// Compares output. In `expected`, `…` within a line matches any text, and a line `…` matches any number of lines.
fn compare(expected: &str, actual: &str) -> Result<(), String> {
    let pattern =
        |line: &str| if line == "…" { "...".to_owned() } else { normalize(line).replace('…', "[..]") };
    let expected: String = expected.lines().map(|line| pattern(line) + "\n").collect();
    let actual: String = actual.lines().map(|line| normalize(line) + "\n").collect();
    snapbox::Assert::new()
        .normalize_paths(false)
        .try_eq(Some(&"the output"), actual.into_data(), expected.into_data())
        .map_err(|difference| difference.to_string())
}

/// Replaces what differs from run to run: tokens except for their epoch, ages, hosts, process ids and column widths.
fn normalize(line: &str) -> String {
    let mut line = line.to_owned();
    let has_ages = line.contains(" pid ") || line.starts_with("  held for ");
    let mut replace = |pattern: &str, by: &str| line = regex(pattern).replace_all(&line, by).into_owned();
    replace(r"\b([0-9a-f]{8})-[0-9a-f]{16}-[0-9a-f]{8}\b", "$1-TOKEN");
    if has_ages {
        replace(r"\b[0-9.]+m?s\b", "AGE");
    }
    replace(r"\S+ pid [0-9]+", "HOST pid PID");
    replace(r"process [0-9]+ on \S+", "process PID on HOST");
    replace(r"pstree -alp [0-9]+", "pstree -alp PID");
    replace(r"(\S)  +", "$1  ");
    line
}

mod tests {
    use super::*;
    use crate::guide::book::Page;

    #[test]
    fn console_block_splits_into_commands_and_output() {
        let page = Page::of("p.md", "```console\n$ cat <<E\n> one\n> E\none\n$ true\n```\n");
        let step =
            |command: &str, expected: &str| Step { command: command.into(), expected: expected.into() };
        assert_eq!(steps(&page.blocks()[0]), [step("cat <<E\none\nE", "one\n"), step("true", "")]);
    }

    #[test]
    fn only_varying_parts_may_differ() {
        assert_eq!(compare("a … c\n", "a b c\n"), Ok(()));
        assert_eq!(compare("a\n…\nd\n", "a\nb\nc\nd\n"), Ok(()));
        assert_eq!(compare("", ""), Ok(()));
        let (guide_token, actual_token) =
            ("00000000-0000000100000005-00000000", "00000000-00000001000000ff-00000000");
        let guide = format!("x  3s     0  web1 pid 4711 (sh)\n  \"token\": \"{guide_token}\",\n");
        let actual = format!("x  12s  0  host pid 9 (sh)\n  \"token\": \"{actual_token}\",\n");
        assert_eq!(compare(&guide, &actual), Ok(()));
        assert!(compare(&guide, &actual.replace("(sh)", "(bash)")).is_err());
        for (expected, actual) in
            [("a … c\n", "a b d\n"), ("a\n", "a\nb\n"), ("a\nb\n", "a\n"), ("", "a\n"), ("a\n", "")]
        {
            assert!(compare(expected, actual).is_err(), "{expected:?} must not match {actual:?}");
        }
    }

    fn run(text: &str) {
        let page = Page::of("p.md", &format!("```console\n{text}```\n"));
        let machine = Machine::for_page(&page);
        let mut console = Console::open(&machine);
        page.blocks().iter().for_each(|block| console.run(block));
        console.close();
    }

    #[test]
    fn shell_state_persists_between_commands() {
        run(
            "$ x=1\n$ (exit 3)\n$ echo $?\n3\n$ sh -c 'sleep 0.2; echo late' &\nlate\n$ wait; echo $x >&2\n1\n",
        );
    }

    #[test]
    #[should_panic(expected = "ended with 3, and the guide does not say so")]
    fn unshown_failure_is_detected() {
        run("$ (exit 3)\n$ true\n");
    }

    #[test]
    #[should_panic(expected = "prints something else")]
    fn wrong_output_is_detected() {
        run("$ echo two\none\n");
    }
}
