//! Tests of `ZoolockBinary`.

use zoolock_tests::ZoolockBinary;

#[tokio::test]
async fn command_runs_with_its_own_home() {
    let zoolock = ZoolockBinary::find().expect("zoolock was built");
    let command = zoolock.command(["--version"]);
    let home = command.as_std().get_envs().find(|(name, _)| *name == "HOME").and_then(|(_, value)| value);
    assert_eq!(home, Some(zoolock.home().as_os_str()));

    let child = zoolock.spawn(["--version"]);
    let output = child.wait_with_output().await.expect("output read");
    assert!(output.status.code().is_some(), "{output:?}");
}
