//! The settings of this machine: lines such as `ZOOLOCK_CONNECT=zk1:2181` in a file. They are the defaults of the flags.

use clap::{Arg, Command, CommandFactory as _};

use super::values::name_flag;
use super::{Args, Environment, environment};

/// Variables that zoolock reads or sets, beside those of the connection flags. Each begins with `ZOOLOCK_`.
const OTHER_VARIABLES: [&str; 12] = [
    "CONFIG",
    "HELD",
    "LOCAL_IDLE",
    "NAME",
    "NAMING",
    "OWNER",
    "PATH",
    "PREVIOUS",
    "SLOT",
    "STATE_DIR",
    "TICKET",
    "TOKEN",
];

/// The variables of a file, with their values.
type Values = Vec<(String, String)>;

/// Makes the values in the text of the file the defaults of the connection flags. Returns the variables of the file.
pub(super) fn apply(file: Result<String, String>, command: Command) -> (Result<Values, String>, Command) {
    match file.and_then(|text| settings_of(&text, &command)) {
        Err(problem) => (Err(problem), command),
        Ok(values) => {
            let command =
                command.mut_args(|arg| match values.iter().find(|(name, _)| has_variable(&arg, name)) {
                    // --help shows the default of a flag that has one without the file.
                    Some((_, value)) => {
                        let is_hidden = arg.get_default_values().is_empty();
                        arg.default_value(value.clone()).hide_default_value(is_hidden)
                    }
                    None => arg,
                });
            (Ok(values), command)
        }
    }
}

/// Returns the variables and values in the text. Checks that the flags accept them.
fn settings_of(text: &str, command: &Command) -> Result<Values, String> {
    let (mut values, mut line) = (Vec::new(), vec!["zoolock".to_owned(), "ls".to_owned()]);
    for setting in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        // The line is not printed, because it may contain a secret.
        let (name, value) = setting.split_once('=').ok_or("a line is not of the form NAME=VALUE")?;
        let (name, value) = (name.trim(), value.trim().trim_matches('"'));
        let flag = command.get_arguments().find(|arg| has_variable(arg, name)).and_then(Arg::get_long);
        match flag {
            Some(flag) => line.push(format!("--{flag}={value}")),
            None if environment::OF_MACHINES.contains(&name) => {
                Environment::read(|read| (read == name).then(|| value.into())).map_err(first_line)?;
            }
            None => return Err(format!("{name:?} is not the variable of a connection flag")),
        }
        values.push((name.to_owned(), value.to_owned()));
    }
    let checked = Args::command().try_get_matches_from(line).map(|_| values);
    checked.map_err(|error| first_line(name_flag(error)))
}

fn first_line(error: clap::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().replace("error: ", "")
}

fn has_variable(arg: &Arg, name: &str) -> bool {
    arg.get_env().is_some_and(|variable| variable == name)
}

/// Returns the variables of the environment that look like settings of zoolock, but are none.
pub(super) fn unknown_variables(command: &Command) -> Vec<String> {
    let is_known = |name: &str| {
        let variable = format!("ZOOLOCK_{name}");
        OTHER_VARIABLES.contains(&name)
            || environment::OF_MACHINES.contains(&&*variable)
            || command.get_arguments().any(|arg| has_variable(arg, &variable))
    };
    // Kubernetes sets such variables for a service whose name is zoolock.
    let is_of_service = |name: &str| name.contains("PORT") || name.contains("SERVICE_");
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let is_unknown = |name: &str| {
        name.strip_prefix("ZOOLOCK_").is_some_and(|name| !is_known(name) && !is_of_service(name))
    };
    names.filter(|name| is_unknown(name)).collect()
}
