//! Lines for cron.

use crate::common::Done;
use crate::guide::book::Block;
use crate::guide::world::World;

/// Runs each command once, as cron would.
pub(crate) fn run(block: &Block, world: &World) {
    world.stand_ins(&block.text);
    let mut environment: Vec<(String, String)> = Vec::new();
    let mut commands = 0;
    for line in block.text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let place = format!("{}: {line}", block.place);
        let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
        if let Some((name, value)) = line.split_once('=').filter(|(name, _)| is_name(name)) {
            environment.push((name.to_owned(), world.here(value)));
            continue;
        }
        let command = command(line).unwrap_or_else(|what| panic!("{place}: {what}"));
        let mut shell = world.command("/bin/sh");
        // cron's PATH is shorter than a terminal's.
        let path = world.here("/usr/local/bin:/usr/bin:/bin");
        shell.env("PATH", path).args(["-c", &world.here(command)]).envs(environment.iter().cloned());
        let done = Done::from(shell.output().expect("there is a shell"));
        assert_eq!(done.code, 0, "{place}: {done:?}");
        assert_eq!(done.stderr, "", "{place}: cron would send mail");
        commands += 1;
    }
    assert!(commands > 0, "{}: it has no command", block.place);
}

/// Returns what follows the five fields.
fn command(line: &str) -> Result<&str, String> {
    let mut rest = line;
    for (field, most) in [("minute", 59), ("hour", 23), ("day", 31), ("month", 12), ("day of the week", 7)] {
        let (value, after) = rest.split_once(char::is_whitespace).ok_or("there are no five fields")?;
        let mut numbers = value.split(['*', '/', ',', '-']).filter(|number| !number.is_empty());
        if !numbers.all(|number| number.parse::<u32>().is_ok_and(|number| number <= most)) {
            return Err(format!("{value} is no {field}"));
        }
        rest = after.trim_start();
    }
    if rest.replace("\\%", "").contains('%') {
        return Err("% is a new line to cron".to_owned());
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
