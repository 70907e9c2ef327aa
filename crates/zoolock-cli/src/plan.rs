//! From what was written to what will be done: every value is checked here, before anything is connected.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum as _;
use zoolock::{ConnectString, LockPath, Naming, Ticket, Tls, Zoolock};

use crate::args::{
    Args, BenchArgs, Command, DoctorArgs, ExportArgs, Global, KindArgs, ManArgs, OnLost, OnRevoke, TopArgs,
    Waiting, Work,
};
use crate::credentials::{Auth, credentials, named, tls};
use crate::duration::{duration, humane};
use crate::executable;
use crate::exit::{Exit, Failure};
use crate::manual;
use crate::metrics::{Collector, Export};
use crate::serve_plan::{self, Serve};
use crate::ui::{self, plan::Ui};

/// The grace period where the session is long enough for it.
const GRACE: Duration = Duration::from_secs(5);
/// The shortest session that Apache ZooKeeper's default tick lets us keep.
const SHORTEST_SESSION: Duration = Duration::from_secs(6);
/// What the library takes at most.
const LONGEST_SESSION: Duration = Duration::from_secs(60 * 60);
/// An ensemble that others use is not loaded for longer by one work.
const LONGEST_WORK: Duration = Duration::from_secs(60);
/// Each is a znode in an ensemble that others use, and a hand-over takes no longer for more of them.
const MOST_TASKS: usize = 256;

/// More often nobody sees anything, and the service has other work.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
/// Less often nobody looks.
const LONGEST_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// What will be done.
#[derive(Debug)]
pub(crate) enum Plan {
    Run(Run),
    Hold(Hold),
    Ls {
        service: Service,
        prefix: Option<String>,
        json: bool,
    },
    Show {
        service: Service,
        name: String,
        json: bool,
    },
    Watch {
        service: Service,
        name: String,
        json: bool,
    },
    Top(Top),
    Why {
        service: Service,
        name: String,
        json: bool,
    },
    Deadlocks {
        service: Service,
        prefix: Option<String>,
        json: bool,
    },
    /// Without a ticket: whoever holds.
    Revoke {
        service: Service,
        name: String,
        ticket: Option<Ticket>,
    },
    Break {
        service: Service,
        name: String,
        ticket: Ticket,
    },
    Resize {
        service: Service,
        name: String,
        permits: u32,
    },
    Bench(Bench),
    Doctor(Doctor),
    Ui(Box<Ui>),
    Serve(Box<Serve>),
    ServeLocal {
        idle: Duration,
    },
    ServeStatus {
        json: bool,
    },
    ServeStop,
    Completions(clap_complete::Shell),
    /// The page, as it is printed.
    Man(String),
    WriteManual(PathBuf),
}

/// Where the locks are.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) endpoint: Endpoint,
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) root: String,
    pub(crate) note: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) grace: Option<Duration>,
    pub(crate) token_epoch: u32,
    pub(crate) naming: Naming,
    pub(crate) kazoo_pattern: bool,
    pub(crate) strict_renewal: bool,
    pub(crate) metrics_by_lock: bool,
}

/// Which server keeps them.
#[derive(Clone)]
pub(crate) enum Endpoint {
    /// This user's, on this machine.
    Local,
    /// An ensemble, with the credentials it asks for.
    Remote { hosts: String, auth: Option<Auth>, tls: Option<Tls>, access: Access },
}

impl Endpoint {
    /// Whether the service knows us by a name.
    pub(crate) fn has_credentials(&self) -> bool {
        match self {
            Self::Local => true,
            Self::Remote { auth, tls, .. } => auth.is_some() || tls.as_ref().is_some_and(Tls::has_identity),
        }
    }
}

/// Who may use what we create, beside those who have our credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nobody; these may look: scheme and id.
    Readers(Vec<(String, String)>),
    Everybody,
    /// These may queue, and nobody may take a lock from its holder.
    Hardened(Box<Queuers>),
}

/// Who may do what with hardened locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queuers {
    pub(crate) members: Vec<(String, String)>,
    pub(crate) readers: Vec<(String, String)>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.write_str("Local"),
            Self::Remote { hosts, .. } => {
                f.debug_struct("Remote").field("hosts", hosts).finish_non_exhaustive()
            }
        }
    }
}

/// How long to wait for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Not at all.
    Try,
    /// This long.
    For(Duration),
    /// As long as it takes.
    Forever,
}

/// What kind of lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Alone,
    Shared,
    Write,
    Permits { size: u32, take: u32 },
}

/// A lock to take, or several.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// As people are told.
    pub(crate) name: String,
    pub(crate) names: Vec<String>,
    pub(crate) kind: Kind,
    pub(crate) crash_detection: bool,
    pub(crate) lock_delay: Duration,
    pub(crate) patience: Patience,
    pub(crate) on_busy: Exit,
}

/// `zoolock run`.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) service: Service,
    pub(crate) wanted: Wanted,
    /// What was asked for.
    pub(crate) grace: Option<Duration>,
    pub(crate) on_lost: OnLost,
    pub(crate) on_revoke: OnRevoke,
    pub(crate) keep: bool,
    pub(crate) export: Export,
    pub(crate) command: Vec<OsString>,
}

impl Run {
    /// How long before the end the command is asked to end, in a session of this length.
    pub(crate) fn grace_of(&self, session_timeout: Duration) -> Duration {
        self.grace.unwrap_or_else(|| GRACE.min(session_timeout / 6))
    }
}

/// `zoolock hold`.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) service: Service,
    pub(crate) wanted: Wanted,
    pub(crate) export: Export,
    pub(crate) json: bool,
}

/// `zoolock top`.
#[derive(Debug, Clone)]
pub(crate) struct Top {
    pub(crate) service: Service,
    pub(crate) prefix: Option<String>,
    pub(crate) interval: Duration,
    pub(crate) read_only: bool,
    /// Logs were asked for, which go to standard error.
    pub(crate) logs: bool,
}

/// `zoolock bench`.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) service: Service,
    /// Each once, in the order of the enumeration.
    pub(crate) works: Vec<Work>,
    pub(crate) time: Duration,
    pub(crate) tasks: usize,
    pub(crate) json: bool,
}

/// `zoolock doctor`.
#[derive(Debug)]
pub(crate) struct Doctor {
    pub(crate) service: Service,
    pub(crate) strict: bool,
    pub(crate) limit: usize,
    pub(crate) json: bool,
}

impl Plan {
    /// Checks what was asked for.
    pub(crate) fn new(args: Args) -> Result<Self, Failure> {
        let Args { global, command } = args;
        match command {
            Command::Run(run) => {
                refuse_json(&global, "run")?;
                let mut service = service(&global, run.waiting.note.clone())?;
                name_as(&mut service, &run.waiting.kind)?;
                service.strict_renewal = run.waiting.strict_renewal;
                service.owner = Some(match owner(&run.waiting)? {
                    Some(owner) => owner,
                    None => new_owner()?,
                });
                let wanted = wanted(&run.names, &run.waiting, &service)?;
                let grace = grace(run.grace.as_deref(), service.session_timeout)?;
                // What was not asked for follows what is granted.
                service.grace = grace;
                service.program = run.command.first().map(short_name);
                if let Some(program) = run.command.first() {
                    executable::check(program)?;
                }
                let (on_lost, on_revoke, keep) = (run.on_lost, run.on_revoke, run.keep);
                if keep && on_lost == OnLost::Warn {
                    return Err(Failure::usage(
                        "--keep with --on-lost warn: CMD would go on while another host starts its own",
                    ));
                }
                let export = export(&run.waiting.export)?;
                service.metrics_by_lock = run.waiting.export.metrics_by_lock;
                Ok(Self::Run(Run {
                    service,
                    wanted,
                    grace,
                    on_lost,
                    on_revoke,
                    keep,
                    export,
                    command: run.command,
                }))
            }
            Command::Hold(hold) => {
                let mut service = service(&global, hold.waiting.note.clone())?;
                name_as(&mut service, &hold.waiting.kind)?;
                service.strict_renewal = hold.waiting.strict_renewal;
                service.owner = owner(&hold.waiting)?;
                let wanted = wanted(&hold.names, &hold.waiting, &service)?;
                let export = export(&hold.waiting.export)?;
                service.metrics_by_lock = hold.waiting.export.metrics_by_lock;
                Ok(Self::Hold(Hold { service, wanted, export, json: global.json }))
            }
            Command::Ls(ls) => {
                let service = service(&global, None)?;
                check_prefix(ls.prefix.as_deref(), &service.root)?;
                Ok(Self::Ls { service, prefix: ls.prefix, json: global.json })
            }
            Command::Show(show) => {
                let service = service(&global, None)?;
                check_name(&show.name, &service.root)?;
                Ok(Self::Show { service, name: show.name, json: global.json })
            }
            Command::Watch(watch) => {
                let service = service(&global, None)?;
                check_name(&watch.name, &service.root)?;
                Ok(Self::Watch { service, name: watch.name, json: global.json })
            }
            Command::Top(asked) => top(&global, asked).map(Self::Top),
            Command::Why(why) => {
                let service = service(&global, None)?;
                check_name(&why.name, &service.root)?;
                Ok(Self::Why { service, name: why.name, json: global.json })
            }
            Command::Deadlocks(deadlocks) => {
                let service = service(&global, None)?;
                check_prefix(deadlocks.prefix.as_deref(), &service.root)?;
                Ok(Self::Deadlocks { service, prefix: deadlocks.prefix, json: global.json })
            }
            Command::Revoke(revoke) => {
                refuse_json(&global, "revoke")?;
                let service = service(&global, revoke.note)?;
                check_name(&revoke.name, &service.root)?;
                let ticket = revoke.token.as_deref().map(ticket).transpose()?;
                Ok(Self::Revoke { service, name: revoke.name, ticket })
            }
            Command::Break(broken) => {
                refuse_json(&global, "break")?;
                let service = service(&global, broken.note)?;
                check_name(&broken.name, &service.root)?;
                Ok(Self::Break { service, name: broken.name, ticket: ticket(&broken.token)? })
            }
            Command::Resize(resize) => {
                refuse_json(&global, "resize")?;
                let mut service = service(&global, None)?;
                check_name(&resize.name, &service.root)?;
                service.naming = naming(&resize.naming)?;
                if resize.permits == 0 {
                    return Err(Failure::usage("--permits 0: a semaphore has at least one permit"));
                }
                Ok(Self::Resize { service, name: resize.name, permits: resize.permits })
            }
            Command::Bench(asked) => bench(global, asked).map(Self::Bench),
            Command::Doctor(DoctorArgs { strict, limit }) => {
                if limit == 0 {
                    return Err(Failure::usage(
                        "--limit 0: there would be nothing to look at; the default is 2000",
                    ));
                }
                Ok(Self::Doctor(Doctor {
                    service: service(&global, None)?,
                    strict,
                    limit,
                    json: global.json,
                }))
            }
            Command::Ui(asked) => ui::plan::plan(&global, asked),
            Command::Serve(serve) => serve_plan::plan(*serve, &global),
            Command::Completions(asked) => {
                refuse_json(&global, "completions")?;
                Ok(Self::Completions(asked.shell))
            }
            Command::Man(asked) => man(&global, asked),
            Command::Become(_) | Command::Reap(_) => {
                Err(Failure::usage("`become` and `reap` are not for the command line"))
            }
        }
    }
}

pub(crate) fn refuse_json(global: &Global, command: &str) -> Result<(), Failure> {
    if global.json {
        return Err(Failure::usage(format!(
            "--json means nothing to `{command}`; it is for hold, ls, show, why, deadlocks, bench, doctor and serve --status"
        )));
    }
    Ok(())
}

fn man(global: &Global, asked: ManArgs) -> Result<Plan, Failure> {
    refuse_json(global, "man")?;
    if let Some(directory) = asked.write {
        return Ok(Plan::WriteManual(directory));
    }
    let name = asked.command.as_deref();
    let page = manual::page(name).ok_or_else(|| {
        Failure::usage(format!(
            "there is no command {:?} and so no page of it; `zoolock --help` lists the commands",
            name.unwrap_or_default()
        ))
    })?;
    Ok(Plan::Man(page))
}

fn top(global: &Global, asked: TopArgs) -> Result<Top, Failure> {
    let TopArgs { prefix, interval: text, read_only } = asked;
    refuse_json(global, "top")?;
    let service = service(global, None)?;
    check_prefix(prefix.as_deref(), &service.root)?;
    let interval = duration("--interval", &text)?;
    if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
        return Err(Failure::usage(format!("--interval {text}: must be between 100ms and 1h")));
    }
    Ok(Top { service, prefix, interval, read_only, logs: global.verbose > 0 })
}

fn bench(global: Global, asked: BenchArgs) -> Result<Bench, Failure> {
    let BenchArgs { time: text, only: mut works, tasks } = asked;
    if global.hardened && !global.hardened_by_variable {
        return Err(Failure::usage(
            "--hardened means nothing to `bench`: it removes what it has made, which nobody can there; leave it out",
        ));
    }
    let global = Global { hardened: false, ..global };
    let service = service(&global, None)?;
    // Its locks are two levels below the root.
    check_name(crate::bench::LONGEST_NAME, &service.root)?;
    let time = duration("--time", &text)?;
    if time.is_zero() {
        return Err(Failure::usage("--time 0s: nothing is measured in no time; the default is 3s"));
    }
    if time > LONGEST_WORK {
        return Err(Failure::usage(format!("--time {text}: at most {} for each work", humane(LONGEST_WORK))));
    }
    if !(2..=MOST_TASKS).contains(&tasks) {
        return Err(Failure::usage(format!(
            "--tasks {tasks}: a lock is handed over between 2 tasks or more, at most {MOST_TASKS}"
        )));
    }
    if works.is_empty() {
        works = Work::value_variants().to_vec();
    }
    works.sort_unstable();
    works.dedup();
    Ok(Bench { service, works, time, tasks, json: global.json })
}

pub(crate) fn service(global: &Global, note: Option<String>) -> Result<Service, Failure> {
    let session_timeout = duration("--session-timeout", &global.session_timeout)?;
    if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&session_timeout) {
        return Err(Failure::usage(format!(
            "--session-timeout {}: must be between 6s and 1h",
            global.session_timeout
        )));
    }
    let connect_timeout = duration("--connect-timeout", &global.connect_timeout)?;
    if connect_timeout.is_zero() {
        return Err(Failure::usage("--connect-timeout 0s: leaves no time to connect; the default is 10s"));
    }
    let tls = tls(global)?;
    if tls.is_some() && global.connect.is_none() {
        return Err(Failure::usage(
            "--cacert (or ZOOLOCK_CACERT) goes with --connect (or ZOOLOCK_CONNECT): this user's own server is on this \
             machine, and known by a key of its own",
        ));
    }
    // An empty variable is as none.
    let auth = global.auth.as_deref().filter(|auth| !auth.is_empty());
    let endpoint = match (&global.connect, auth) {
        (None, None) if global.world_writable || !global.reader.is_empty() => {
            return Err(Failure::usage(
                "--reader and --world-writable go with --connect (or ZOOLOCK_CONNECT): this user's own server is for \
                 this user",
            ));
        }
        // The variable may be meant for a service that others of its programs use.
        (None, None) if (global.hardened && !global.hardened_by_variable) || !global.member.is_empty() => {
            return Err(Failure::usage(
                "--hardened and --member go with --connect (or ZOOLOCK_CONNECT): whoever reaches this user's own server is \
                 this user",
            ));
        }
        (None, None) => Endpoint::Local,
        (None, Some(_)) => {
            return Err(Failure::usage(
                "--auth (or ZOOLOCK_AUTH) goes with --connect (or ZOOLOCK_CONNECT): this user's own server has its own secret",
            ));
        }
        (Some(hosts), _) if hosts.trim().is_empty() => {
            return Err(Failure::usage(
                "--connect (or ZOOLOCK_CONNECT) is empty: name the ensemble, or leave it out to use this \
                 machine's own server, which excludes nobody on other machines",
            ));
        }
        (Some(hosts), auth) => {
            ConnectString::parse(hosts)?;
            let access = access(global)?;
            let auth = auth.map(credentials).transpose()?;
            Endpoint::Remote { hosts: hosts.clone(), auth, tls, access }
        }
    };
    // The root alone is a path that any lock below it could have.
    LockPath::parse("x", &global.root).map_err(|_| {
        Failure::usage(format!("--root {:?}: is no directory that locks can be in", global.root))
    })?;
    Ok(Service {
        endpoint,
        session_timeout,
        connect_timeout,
        root: global.root.clone(),
        note,
        program: None,
        owner: None,
        grace: None,
        token_epoch: global.token_epoch,
        naming: Naming::Native,
        kazoo_pattern: false,
        strict_renewal: false,
        metrics_by_lock: false,
    })
}

fn export(asked: &ExportArgs) -> Result<Export, Failure> {
    if asked.metrics_by_lock && asked.metrics.is_none() && asked.otlp.is_none() {
        return Err(Failure::usage(
            "--metrics-by-lock goes with --metrics or --otlp: without them nobody is told",
        ));
    }
    let address = |text: &String| serve_plan::address("--metrics", text);
    let metrics = asked.metrics.as_ref().map(address).transpose()?;
    let collector = |text: &String| {
        text.parse::<Collector>().map_err(|error| Failure::usage(format!("--otlp {text:?}: {error}")))
    };
    let otlp = asked.otlp.as_ref().map(collector).transpose()?;
    Ok(Export { metrics, otlp })
}

fn name_as(service: &mut Service, asked: &KindArgs) -> Result<(), Failure> {
    service.naming = naming(&asked.naming)?;
    service.kazoo_pattern = asked.kazoo_pattern;
    Ok(())
}

fn naming(text: &str) -> Result<Naming, Failure> {
    // An empty variable is as none.
    let text = if text.is_empty() { Naming::default().as_str() } else { text };
    text.parse().map_err(|error| Failure::usage(format!("--{error} (--naming, or ZOOLOCK_NAMING)")))
}

fn wanted(names: &[String], waiting: &Waiting, service: &Service) -> Result<Wanted, Failure> {
    for name in names {
        check_name(name, &service.root)?;
    }
    let patience = match (&waiting.timeout, waiting.try_once) {
        (_, true) => Patience::Try,
        (Some(text), false) => match duration("--timeout", text)? {
            // No time to wait is not no time to take what is free.
            Duration::ZERO => Patience::Try,
            patience => Patience::For(patience),
        },
        (None, false) => Patience::Forever,
    };
    check_hardened(&waiting.kind, service)?;
    let lock_delay = match &waiting.kind.lock_delay {
        Some(text) => duration("--lock-delay", text)?,
        None => Duration::ZERO,
    };
    Ok(Wanted {
        name: names.join(" and "),
        names: names.to_vec(),
        kind: kind(&waiting.kind, names)?,
        crash_detection: waiting.kind.crash_detection,
        lock_delay,
        patience,
        on_busy: Exit::code(waiting.on_busy_exit),
    })
}

fn kind(asked: &KindArgs, names: &[String]) -> Result<Kind, Failure> {
    let one = |flag: &str| match names {
        [_] => Ok(()),
        _ => Err(Failure::usage(format!(
            "{flag} takes one NAME, not {}: {}; the command goes after --",
            names.len(),
            names.join(" ")
        ))),
    };
    match (asked.permits, asked.take) {
        (Some(size), take) => {
            one("--permits")?;
            match take {
                _ if size == 0 => Err(Failure::usage("--permits 0: a semaphore has at least one permit")),
                0 => Err(Failure::usage("--take 0: at least one permit is taken")),
                _ if take > size => {
                    Err(Failure::usage(format!("--take {take}: --permits says that there are only {size}")))
                }
                _ => Ok(Kind::Permits { size, take }),
            }
        }
        _ if asked.write => one("--write").map(|()| Kind::Write),
        _ if asked.shared => Ok(Kind::Shared),
        _ => Ok(Kind::Alone),
    }
}

fn ticket(text: &str) -> Result<Ticket, Failure> {
    text.parse().map_err(|error| Failure::usage(format!("--token {error}; `zoolock show` prints it")))
}

fn access(global: &Global) -> Result<Access, Failure> {
    if !global.member.is_empty() && !global.hardened {
        return Err(Failure::usage(
            "--member goes with --hardened: elsewhere all who share a lock have the same credentials",
        ));
    }
    if global.world_writable && global.hardened {
        return Err(Failure::usage(
            "--world-writable and --hardened (or ZOOLOCK_HARDENED) exclude each other; to let everybody queue for a \
             hardened lock: --member world:anyone",
        ));
    }
    if global.world_writable {
        return Ok(Access::Everybody);
    }
    let readers = identities("--reader", &global.reader)?;
    let members = identities("--member", &global.member)?;
    // An empty variable is as none.
    let auth = global.auth.as_ref().is_some_and(|auth| !auth.is_empty());
    let known = auth || named(global.cert.as_ref());
    if !readers.is_empty() && !known {
        return Err(Failure::usage(
            "--reader goes with --auth or --cert: without credentials everybody may do everything with what we create",
        ));
    }
    if !members.is_empty() && !known {
        return Err(Failure::usage(
            "--member goes with --auth or --cert: without credentials everybody may queue for what we create",
        ));
    }
    Ok(match global.hardened {
        true => Access::Hardened(Box::new(Queuers { members, readers })),
        false => Access::Readers(readers),
    })
}

fn identities(flag: &str, texts: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let identity = |text: &String| match text.split_once(':') {
        Some((scheme, id)) if !scheme.is_empty() && !id.is_empty() => Ok((scheme.to_owned(), id.to_owned())),
        _ => Err(Failure::usage(format!(
            "{flag} {text:?}: write it as SCHEME:ID, such as digest:ops:DIGEST, x509:CN=ops or world:anyone"
        ))),
    };
    texts.iter().map(identity).collect()
}

/// What a hardened lock cannot have, before anybody is connected to.
fn check_hardened(asked: &KindArgs, service: &Service) -> Result<(), Failure> {
    let Endpoint::Remote { access: Access::Hardened(_), .. } = service.endpoint else { return Ok(()) };
    let wrong = |flag: &str, why: &str| {
        Err(Failure::usage(format!("{flag} and --hardened (or ZOOLOCK_HARDENED) exclude each other: {why}")))
    };
    if asked.crash_detection {
        return wrong("--crash-detection", "nobody may write there that a holder begins");
    }
    if service.naming != Naming::Native || service.kazoo_pattern {
        return wrong(
            "--naming, or --kazoo-pattern,",
            "clients of other makes let go by deleting, which nobody may there",
        );
    }
    Ok(())
}

/// Whose lock it is, if somebody says so; an empty variable is as none.
fn owner(waiting: &Waiting) -> Result<Option<String>, Failure> {
    let Some(owner) = waiting.owner.as_ref().filter(|owner| !owner.is_empty()) else { return Ok(None) };
    let checked = Zoolock::builder().owner_id(owner);
    checked.map_err(|error| Failure::usage(format!("--{error} (--owner, or ZOOLOCK_OWNER)")))?;
    Ok(Some(owner.clone()))
}

fn new_owner() -> Result<String, Failure> {
    let number =
        getrandom::u64().map_err(|error| Failure::unavailable(format!("no random number: {error}")))?;
    Ok(format!("run-{number:016x}"))
}

fn check_name(name: &str, root: &str) -> Result<(), Failure> {
    LockPath::parse(name, root)?;
    Ok(())
}

fn check_prefix(prefix: Option<&str>, root: &str) -> Result<(), Failure> {
    match prefix {
        None | Some("/") => Ok(()),
        Some(prefix) => check_name(prefix.strip_suffix('/').unwrap_or(prefix), root),
    }
}

/// The lease is believed for two thirds of the session timeout at most: no grace of more than a third is ever possible. The
/// library allows a sixth to a quarter.
fn grace(asked: Option<&str>, session_timeout: Duration) -> Result<Option<Duration>, Failure> {
    let Some(text) = asked else { return Ok(None) };
    let grace = duration("--grace", text)?;
    let most = session_timeout / 3;
    if grace > most {
        return Err(Failure::usage(format!(
            "--grace {text}: more than a third of the session timeout ({}), which no session has to spare; raise \
             --session-timeout or lower --grace",
            humane(most)
        )));
    }
    Ok(Some(grace))
}

fn short_name(program: &OsString) -> String {
    Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &[&str]) -> Result<Plan, Failure> {
        Plan::new(args(line))
    }

    fn args(line: &[&str]) -> Args {
        Args::read(["zoolock"].iter().chain(line)).expect("the line is well formed")
    }

    fn refused(line: &[&str]) -> String {
        let failure = plan(line).expect_err("the plan must be refused");
        assert_eq!(failure.exit, Exit::USAGE, "{failure}");
        failure.to_string()
    }

    #[test]
    fn a_plain_run_has_the_defaults() {
        let Ok(Plan::Run(run)) = plan(&["run", "nightly", "--", "sh", "-c", "true"]) else {
            panic!("nothing is wrong with it")
        };
        assert_eq!(run.grace_of(Duration::from_secs(30)), GRACE);
        assert_eq!(run.wanted.patience, Patience::Forever);
        assert_eq!(run.wanted.on_busy, Exit::BUSY);
        assert_eq!(run.service.session_timeout, Duration::from_secs(30));
        assert_eq!(run.service.program.as_deref(), Some("sh"));
    }

    #[test]
    fn the_default_grace_follows_a_short_session() {
        let of = |line: &[&str]| {
            let Ok(Plan::Run(run)) = plan(line) else { panic!("nothing is wrong with it") };
            run.grace_of(Duration::from_secs(12))
        };
        assert_eq!(of(&["run", "x", "--", "true"]), Duration::from_secs(2));
        assert_eq!(of(&["run", "--grace", "3s", "x", "--", "true"]), Duration::from_secs(3));
    }

    #[test]
    fn a_grace_without_room_for_renewals_is_refused() {
        assert!(grace(Some("10s"), Duration::from_secs(30)).is_ok());
        assert!(refused(&["run", "--grace", "11s", "x", "--", "true"]).contains("--grace 11s"));
    }

    #[test]
    fn several_names_are_one_lock_of_several_and_no_semaphore() {
        let Ok(Plan::Run(run)) = plan(&["run", "a", "b", "--", "true"]) else {
            panic!("nothing is wrong with it")
        };
        assert_eq!((run.wanted.names.len(), run.wanted.kind), (2, Kind::Alone));
        for flag in [&["--permits", "3"][..], &["--write"]] {
            let line = [&["run"], flag, &["a", "b", "--", "true"]].concat();
            assert!(refused(&line).contains("a b"));
        }
    }

    #[test]
    fn permits_that_make_no_sense_are_refused() {
        for (flags, word) in [
            (&["--permits", "0"][..], "--permits 0"),
            (&["--permits", "3", "--take", "0"], "--take 0"),
            (&["--permits", "3", "--take", "4"], "only 3"),
        ] {
            let line = [&["run"], flags, &["x", "--", "true"]].concat();
            let message = refused(&line);
            assert!(message.contains(word), "{message}");
        }
        assert!(refused(&["resize", "x", "--permits", "0"]).contains("--permits 0"));
        assert!(refused(&["run", "--lock-delay", "soon", "x", "--", "true"]).contains("--lock-delay"));
    }

    #[test]
    fn a_token_that_is_none_is_refused_by_its_text() {
        for line in [&["break", "x", "--token", "17"][..], &["revoke", "x", "--token", "17"]] {
            let message = refused(line);
            assert!(message.contains("`17`") && message.contains("zoolock show"), "{message}");
        }
    }

    #[test]
    fn bad_names_are_refused_before_connecting() {
        for name in ["", "..", "a/../b", "a//b", "a/", "a\0b", "/"] {
            let message = refused(&["show", name]);
            assert!(!message.contains('\0'), "{message:?}");
        }
    }

    #[test]
    fn bad_durations_name_the_flag() {
        for bad in ["", "soon", "-5s", "5", "5 parsecs"] {
            let timeout = format!("--timeout={bad}");
            let message = refused(&["hold", &timeout, "x"]);
            assert!(message.contains("--timeout"), "{message}");
        }
        for bad in ["1s", "61m"] {
            assert!(refused(&["ls", "--session-timeout", bad]).contains("--session-timeout"));
        }
        assert!(plan(&["ls", "--session-timeout", "1h"]).is_ok());
    }

    #[test]
    fn an_empty_connect_string_does_not_fall_back_to_this_machine() {
        assert!(refused(&["ls", "--connect", ""]).contains("empty"));
    }

    #[test]
    fn bad_ports_are_refused() {
        for bad in ["h:", "h:x", "h:70000", "h:0"] {
            refused(&["ls", "--connect", bad]);
        }
    }

    #[test]
    fn an_inline_password_is_refused_and_not_repeated() {
        let message = refused(&["ls", "--connect", "h:1", "--auth", "digest:me:hunter2"]);
        assert!(message.contains("@FILE") && !message.contains("hunter2"), "{message}");
        for text in ["hunter2", "me:hunter2", "digest:hunter2", "digest:env:"] {
            let message = refused(&["ls", "--connect", "h:1", "--auth", text]);
            assert!(message.contains("--auth") && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn what_a_hardened_lock_cannot_have_is_refused_before_connecting() {
        for (line, word) in [
            (&["hold", "x", "--hardened"][..], "--connect"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--world-writable"], "--world-writable"),
            (&["hold", "x", "--connect", "h:1", "--member", "x509:CN=ci"], "--hardened"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--member", "ci"], "--member"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--crash-detection"], "--crash-detection"),
            (&["hold", "x", "--connect", "h:1", "--hardened", "--naming", "curator"], "--naming"),
            (&["bench", "--connect", "h:1", "--hardened"], "means nothing to `bench`"),
        ] {
            let message = refused(line);
            assert!(message.contains(word), "{line:?}: {message}");
        }
        assert!(plan(&["hold", "x", "--connect", "h:1", "--hardened", "--lock-delay", "1s"]).is_ok());
    }

    #[test]
    fn the_variable_for_hardened_locks_speaks_of_a_service_and_not_of_a_bench() {
        let by_variable = |line: &[&str]| {
            let mut args = args(line);
            (args.global.hardened, args.global.hardened_by_variable) = (true, true);
            Plan::new(args).unwrap_or_else(|failure| panic!("{line:?}: {failure}"))
        };
        let Plan::Hold(hold) = by_variable(&["hold", "x"]) else { panic!("it holds") };
        assert!(matches!(hold.service.endpoint, Endpoint::Local));
        let Plan::Hold(hold) = by_variable(&["hold", "x", "--connect", "h:1"]) else { panic!("it holds") };
        assert!(
            matches!(hold.service.endpoint, Endpoint::Remote { access: Access::Hardened(_), .. }),
            "that is what it is for"
        );
        let Plan::Bench(bench) = by_variable(&["bench", "--connect", "h:1"]) else { panic!("it measures") };
        assert!(matches!(bench.service.endpoint, Endpoint::Remote { access: Access::Readers(_), .. }));
    }

    #[test]
    fn certificates_come_whole_and_go_with_a_service() {
        for (flags, word) in [
            (&["--cert", "c", "--key", "k"][..], "--cacert"),
            (&["--cacert", "a", "--cert", "c"], "--key"),
            (&["--cacert", "a", "--key", "k"], "--cert"),
            (&["--cacert", "a", "--cert", "c", "--key", "/nonexistent"], "/nonexistent"),
            (&["--cacert", "a", "--reader", "world:anyone"], "--reader"),
        ] {
            let message = refused(&[&["ls", "--connect", "h:1"], flags].concat());
            assert!(message.contains(word), "{message}");
        }
        assert!(refused(&["ls", "--cacert", "a"]).contains("--connect"));
        let Ok(Plan::Ls { service, .. }) = plan(&["ls", "--connect", "h:1", "--cacert", ""]) else {
            panic!("nothing is wrong with it")
        };
        assert!(matches!(service.endpoint, Endpoint::Remote { tls: None, .. }));
    }

    #[test]
    fn works_are_done_once_and_in_order() {
        let Ok(Plan::Bench(bench)) = plan(&["bench", "--only", "many", "--only", "loop", "--only", "many"])
        else {
            panic!("nothing is wrong with it")
        };
        assert_eq!(bench.works, [Work::Loop, Work::Many]);
        let Ok(Plan::Bench(bench)) = plan(&["bench"]) else { panic!("nothing is wrong with it") };
        assert_eq!(bench.works, Work::value_variants());
    }

    #[test]
    fn a_bench_of_nothing_is_refused() {
        for (line, word) in [
            (&["bench", "--time", "0s"][..], "--time 0s"),
            (&["bench", "--time", "3"], "--time \"3\""),
            (&["bench", "--time", "2m"], "at most"),
            (&["bench", "--tasks", "0"], "--tasks 0"),
            (&["bench", "--tasks", "1"], "--tasks 1"),
            (&["bench", "--tasks", "100000"], "at most"),
        ] {
            let message = refused(line);
            assert!(message.contains(word), "{message}");
        }
        let long = format!("/{}", "r".repeat(1010));
        refused(&["bench", "--root", &long]);
    }

    #[test]
    fn monitors_that_cannot_be_reached_are_refused_before_anything_is_begun() {
        assert!(refused(&["run", "--metrics", "9090", "x", "--", "true"]).contains("--metrics"));
        assert!(refused(&["hold", "--otlp", "https://otel:4318", "x"]).contains("https"));
        assert!(refused(&["hold", "--metrics-by-lock", "x"]).contains("--otlp"));
        assert!(plan(&["hold", "--metrics-by-lock", "--metrics", "127.0.0.1:0", "x"]).is_ok());
        assert!(plan(&["hold", "--metrics", "127.0.0.1:0", "--otlp", "http://otel:4318", "x"]).is_ok());
    }

    #[test]
    fn a_doctor_that_may_look_at_nothing_is_refused() {
        assert!(refused(&["doctor", "--limit", "0"]).contains("--limit 0"));
        assert!(matches!(
            plan(&["doctor", "--strict", "--json"]),
            Ok(Plan::Doctor(Doctor { strict: true, json: true, .. }))
        ));
    }

    #[test]
    fn a_top_that_looks_too_often_or_never_is_refused() {
        for text in ["0s", "99ms", "2h", "soon"] {
            let message = refused(&["top", "--interval", text]);
            assert!(message.contains("--interval"), "{message}");
        }
        refused(&["top", "a//b"]);
        refused(&["top", "--json"]);
        let Ok(Plan::Top(top)) = plan(&["top", "db/", "--interval", "100ms"]) else {
            panic!("nothing is wrong with it")
        };
        assert_eq!((top.prefix.as_deref(), top.read_only), (Some("db/"), false));
    }

    #[test]
    fn json_is_refused_where_it_would_do_nothing() {
        refused(&["run", "--json", "x", "--", "true"]);
        refused(&["serve", "--json", "--listen", "127.0.0.1:0"]);
    }
}
