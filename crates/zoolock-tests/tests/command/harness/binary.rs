//! Finding and starting the command.

use zoolock_tests::ZoolockBinary;

#[tokio::test]
async fn the_command_is_started_with_a_home_of_its_own() {
    let zoolock = ZoolockBinary::find().expect("`cargo build -p zoolock-cli` ran before");
    let command = zoolock.command(["--version"]);
    let home = command.as_std().get_envs().find(|(name, _)| *name == "HOME").and_then(|(_, value)| value);
    assert_eq!(home, Some(zoolock.home().as_os_str()));

    let child = zoolock.spawn(["--version"]);
    let output = child.wait_with_output().await.expect("its streams are piped");
    assert!(output.status.code().is_some(), "{output:?}");
}
