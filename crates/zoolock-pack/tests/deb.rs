//! The Debian package, made of the command as the tests have it: what is in it, and what systemd says of its units.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use zoolock_pack::materials::root;
use zoolock_tests::ZoolockBinary;
use zoolock_tests::skip::Availability;

/// `systemd-analyze security` counts from 0, which may do nothing, to 100.
const EXPOSURE: &str = "20";

const UNITS: [&str; 4] = ["zoolock.service", "nightly.service", "nightly.timer", "mailer.service"];

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    found.is_ok_and(|found| found.status.success())
}

fn available(programs: &[&str]) -> Availability {
    match programs.iter().find(|program| !has(program)) {
        None => Availability::Available,
        Some(missing) => Availability::Missing(format!("no {missing} here")),
    }
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn build(program: &Path, directory: &Path) -> PathBuf {
    let mut command = Command::new(root().join("packaging/deb/build"));
    command.arg("--program").arg(program).arg("--output").arg(directory);
    command.env("ZOOLOCK_PACK", env!("CARGO_BIN_EXE_zoolock-pack")).env("SOURCE_DATE_EPOCH", "1700000000");
    // Nobody downloads this one.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "gzip").env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    let done = output(&mut command);
    assert!(done.status.success(), "{}", said(&done));
    PathBuf::from(String::from_utf8_lossy(&done.stdout).trim())
}

#[test]
fn a_package_has_all_that_its_users_look_for() {
    if !available(&["dpkg-deb", "dpkg-shlibdeps", "strip"]).or_skip("the Debian package") {
        return;
    }
    let zoolock = ZoolockBinary::find().expect("it was built");
    let place = tempfile::tempdir().expect("a temporary directory");
    let package = build(zoolock.path(), place.path());
    assert_eq!(package, place.path().join(package.file_name().expect("a name")));
    let again = place.path().join("again");
    let again = build(zoolock.path(), &again);
    let read = |path: &Path| std::fs::read(path).expect("it was made");
    assert!(read(&package) == read(&again), "the same program makes the same package");

    let tree = place.path().join("tree");
    let done = output(Command::new("dpkg-deb").arg("--raw-extract").arg(&package).arg(&tree));
    assert!(done.status.success(), "{}", said(&done));
    let help = output(Command::new(zoolock.path()).arg("--help"));
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let (_, commands) = help.split_once("Commands:\n").expect("there are some");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let commands: BTreeSet<&str> = commands
        .filter_map(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| !name.is_empty())
        .collect();
    assert!(commands.contains("run"), "{commands:?}");
    for command in commands.into_iter().filter(|command| *command != "help") {
        assert!(tree.join(format!("usr/share/man/man1/zoolock-{command}.1.gz")).is_file(), "{command}");
    }
    for file in [
        "usr/bin/zoolock",
        "usr/share/man/man1/zoolock.1.gz",
        "usr/share/bash-completion/completions/zoolock",
        "usr/share/zsh/vendor-completions/_zoolock",
        "usr/share/fish/vendor_completions.d/zoolock.fish",
        "usr/lib/systemd/system/zoolock.service",
        "usr/share/doc/zoolock/copyright",
        "usr/share/doc/zoolock/changelog.gz",
        "usr/share/doc/zoolock/changelog.Debian.gz",
        "usr/share/doc/zoolock/LICENCES.gz",
        "usr/share/doc/zoolock/zoolock.cdx.json.gz",
        "usr/share/doc/zoolock/examples/nightly.timer",
        "usr/share/doc/zoolock/examples/backup",
        "usr/share/doc/zoolock/examples/zoolock.default",
        "DEBIAN/md5sums",
    ] {
        let metadata = std::fs::metadata(tree.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(metadata.is_file() && metadata.len() > 0, "{file}");
        assert_eq!(metadata.permissions().mode() & 0o022, 0, "{file} is root's alone");
    }
    let sums =
        output(Command::new("md5sum").args(["--check", "--quiet", "DEBIAN/md5sums"]).current_dir(&tree));
    assert!(sums.status.success(), "{}", said(&sums));
    let version = output(Command::new(tree.join("usr/bin/zoolock")).arg("--version"));
    assert_eq!(said(&version), format!("zoolock {}\n", env!("CARGO_PKG_VERSION")));
    let control = std::fs::read_to_string(tree.join("DEBIAN/control")).expect("it is there");
    assert!(control.contains("\nDepends: libc6 (>= 2."), "{control}");
    for (line, word) in control.lines().flat_map(|line| {
        ["VERSION", "ARCHITECTURE", "MAINTAINER", "DEPENDS", "SIZE"].map(|word| (line, word))
    }) {
        assert!(!line.contains(word), "{line}");
    }
    for script in ["postinst", "prerm", "postrm"] {
        let done = output(Command::new("sh").arg("-n").arg(tree.join("DEBIAN").join(script)));
        assert!(done.status.success(), "{script}: {}", said(&done));
    }
}

#[test]
fn systemd_finds_no_fault_with_the_units() {
    if !available(&["systemd-analyze"]).or_skip("the units before systemd") {
        return;
    }
    let zoolock = ZoolockBinary::find().expect("it was built");
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut units = Vec::new();
    for name in UNITS {
        let text = std::fs::read_to_string(root().join("packaging/systemd").join(name)).expect("it is there");
        assert!(name.ends_with(".timer") || text.contains("ExecStart=/usr/bin/zoolock "), "{text}");
        // It is looked for.
        let text = text.replace("/usr/bin/zoolock", zoolock.path().to_str().expect("UTF-8"));
        let unit = place.path().join(name);
        std::fs::write(&unit, text).expect("a new file");
        units.push(unit);
    }
    let verify =
        |units: &[PathBuf]| output(Command::new("systemd-analyze").args(["verify", "--man=no"]).args(units));
    let done = verify(&units);
    // It may have something to say of this machine's own units.
    let told = said(&done);
    let of_ours: Vec<&str> =
        told.lines().filter(|line| UNITS.iter().any(|unit| line.contains(unit))).collect();
    assert!(done.status.success() && of_ours.is_empty(), "{told}");
    let exposed = output(
        Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--no-pager", &format!("--threshold={EXPOSURE}")])
            .arg(&units[0]),
    );
    assert!(exposed.status.success(), "{}", said(&exposed));

    let text = std::fs::read_to_string(&units[0]).expect("it was written");
    std::fs::write(&units[0], text.replace("ProtectSystem=", "ProtecSystem=")).expect("it is ours");
    let done = verify(&units[..1]);
    assert!(said(&done).contains("ProtecSystem"), "a mistake is found: {}", said(&done));
}
