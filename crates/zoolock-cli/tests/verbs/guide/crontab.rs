//! Runs crontab blocks.

use crate::common::CommandOutput;
use crate::guide::book::Block;
use crate::guide::machine::Machine;

/// Runs each command once, as cron would.
pub(crate) fn run(block: &Block, machine: &Machine) {
    machine.create_fake_programs(&block.text);
    let mut environment: Vec<(String, String)> = Vec::new();
    let mut commands = 0;
    for line in block.text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let location = format!("{}: {line}", block.location);
        let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        if let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_name(name)) {
            environment.push((name.to_owned(), machine.to_local(value)));
            continue;
        }
        let command = command(line).unwrap_or_else(|error| panic!("{location}: {error}"));
        let mut shell = machine.command("/bin/sh");
        // cron's PATH is shorter than a terminal's.
        let path = machine.to_local("/usr/local/bin:/usr/bin:/bin");
        shell.env("PATH", path).args(["-c", &machine.to_local(command)]).envs(environment.iter().cloned());
        let done = CommandOutput::from(shell.output().expect("the shell starts"));
        assert_eq!(done.code, 0, "{location}: {done:?}");
        assert_eq!(done.stderr, "", "{location}: cron would send mail about this output");
        commands += 1;
    }
    assert!(commands > 0, "{}: the block has no command", block.location);
}

/// Returns the command of a crontab line: the text after the five time fields.
fn command(line: &str) -> Result<&str, String> {
    let mut rest = line;
    for (field, maximum) in [("minute", 59), ("hour", 23), ("day", 31), ("month", 12), ("day of the week", 7)]
    {
        let (value, after) =
            rest.split_once(char::is_whitespace).ok_or("the line has fewer than five time fields")?;
        let mut numbers = value.split(['*', '/', ',', '-']).filter(|number| !number.is_empty());
        if !numbers.all(|number| number.parse::<u32>().is_ok_and(|number| number <= maximum)) {
            return Err(format!("{value} is not a valid {field}"));
        }
        rest = after.trim_start();
    }
    if rest.replace("\\%", "").contains('%') {
        return Err("cron reads % as a newline".to_owned());
    }
    Ok(rest)
}

#[test]
fn invalid_crontab_lines_are_refused() {
    assert_eq!(command("*/10 0-5 * 1,2 7  echo a\\%b"), Ok("echo a\\%b"));
    for bad in ["0 3 * * echo hello", "60 3 * * * true", "0 3 * * 8 true", "0 3 * * * date +%s"] {
        assert!(command(bad).is_err(), "{bad}");
    }
}
