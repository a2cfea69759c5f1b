//! When the process that started a command is killed, the command dies too: by the guard, or by the next process.

use std::fs;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use windlass_tools::process::{Leftovers, kill_leftovers};

use crate::world::{World, can_confine, grown, lives, probe, until};

fn host(world: &World) -> Child {
    let mut command = Command::new(probe());
    command.arg("host").arg(env!("CARGO_BIN_EXE_windlass-launch")).arg(world.base());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn stat(pid: i32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").map_or_else(Vec::new, |(_, rest)| rest.split(' ').map(str::to_owned).collect())
}

fn start_time(pid: i32) -> u64 {
    stat(pid)[19].parse().unwrap()
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

fn kill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// The guard of a host: the child that is not the process tree.
fn guard(host: i32, tree: i32) -> i32 {
    let numbers = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_guard = |pid: &i32| *pid != tree && stat(*pid).get(1).is_some_and(|parent| *parent == host.to_string());
    numbers.into_iter().find(is_guard).expect("there is a guard")
}

#[tokio::test]
async fn e26_w01_a_command_dies_when_its_server_is_killed() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut host = host(&world);
    let pids = grown(&world.work()).await;
    host.kill().unwrap();
    host.wait().unwrap();
    until("the guard has killed the tree", || pids.iter().all(|pid| !lives(*pid))).await;
    until("what they left is gone too", || world.folders().is_empty()).await;
    // The record still exists, and its command does not.
    assert_eq!(world.records(), 1);
    assert_eq!(kill_leftovers(&world.base().join("records")).unwrap(), Leftovers::default());
    assert_eq!(world.records(), 0);
}

#[tokio::test]
async fn e26_w01_leftovers_are_killed_before_anything_is_settled() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut host = host(&world);
    let pids = grown(&world.work()).await;
    let number = i32::try_from(host.id()).unwrap();
    // The host is stopped, so it cannot start another guard.
    kill_process(Pid::from_raw(number).unwrap(), Signal::STOP).unwrap();
    kill(guard(number, pids[0]));
    host.kill().unwrap();
    host.wait().unwrap();
    assert!(pids.iter().all(|pid| lives(*pid)), "without a guard they survive");
    let (temps, _) = world.folders().remove(0);
    // As if the host had been killed between creating a folder and recording its user.
    fs::create_dir_all(temps.join("77/inner")).unwrap();
    let found = kill_leftovers(&world.base().join("records")).unwrap();
    assert_eq!(found, Leftovers { killed: vec![pids[0]], unsure: Vec::new() });
    assert!(pids.iter().all(|pid| !lives(*pid)), "{pids:?}");
    assert_eq!(world.records(), 0);
    assert!(!temps.exists() && world.folders().is_empty(), "the folders are removed too");
}

#[tokio::test]
async fn e26_temporary_folders_of_a_living_process_are_left_alone() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    assert_eq!(crate::world::value(world.sh("echo one")).await, json!("one"));
    let (temps, _) = world.folders().remove(0);
    assert_eq!(kill_leftovers(&world.base().join("records")).unwrap(), Leftovers::default());
    assert!(temps.exists() && world.folders().len() == 1);
    assert_eq!(crate::world::value(world.sh("echo two")).await, json!("two"));
    // Some systems remove old temporary folders.
    fs::remove_dir(&temps).unwrap();
    assert_eq!(crate::world::value(world.sh("echo three")).await, json!("three"));
    drop(world);
    until("the folder is removed with the launcher", || !temps.exists()).await;
}

#[tokio::test]
async fn e26_a_group_is_killed_even_if_its_leader_is_gone() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let mut host = host(&world);
    let pids = grown(&world.work()).await;
    let number = i32::try_from(host.id()).unwrap();
    kill_process(Pid::from_raw(number).unwrap(), Signal::STOP).unwrap();
    kill(guard(number, pids[0]));
    host.kill().unwrap();
    host.wait().unwrap();
    kill(pids[0]);
    until("the leader is gone", || stat(pids[0]).is_empty()).await;
    let found = kill_leftovers(&world.base().join("records")).unwrap();
    assert_eq!(found.killed, [pids[0]]);
    assert!(pids.iter().all(|pid| !lives(*pid)), "{pids:?}");
}

/// A record of an unrelated process.
fn record(world: &World, pid: i32, start: u64, boot: &str) {
    let folder = world.base().join("records");
    fs::create_dir_all(&folder).unwrap();
    let record = json!({"pid": pid, "start": start, "boot": boot, "key": "none", "temp": world.base().join("gone")});
    fs::write(folder.join(format!("{pid}-{start}.json")), record.to_string()).unwrap();
}

#[tokio::test]
async fn e26_a_reused_process_id_is_not_killed() {
    let world = World::new();
    let folder = world.base().join("records");
    let mut unrelated = Command::new("/bin/sleep").arg("600").spawn().unwrap();
    let pid = i32::try_from(unrelated.id()).unwrap();
    record(&world, pid, start_time(pid) - 1, &boot());
    record(&world, pid, start_time(pid), "another boot");
    // An incomplete record is of a command that never began.
    fs::write(folder.join("7-7.json"), "{\"pid\": 7, \"st").unwrap();
    assert_eq!(kill_leftovers(&folder).unwrap(), Leftovers::default());
    assert!(lives(pid));
    assert_eq!(world.records(), 0, "obsolete records are removed");
    record(&world, pid, start_time(pid), &boot());
    assert_eq!(kill_leftovers(&folder).unwrap().killed, [pid], "with the right start time and boot it is killed");
    unrelated.wait().unwrap();
}

#[tokio::test]
async fn e26_a_group_of_unknown_origin_is_reported_and_left_alone() {
    let world = World::new();
    // A session whose leader is gone, without our variables in its environment.
    let script = "sleep 600 & echo $! > pid.tmp; mv pid.tmp pid";
    let mut leader = Command::new("/usr/bin/setsid")
        .args(["--wait", "/bin/sh", "-c", script])
        .current_dir(world.work())
        .spawn()
        .unwrap();
    leader.wait().unwrap();
    let pid: i32 = fs::read_to_string(world.work().join("pid")).unwrap().trim().parse().unwrap();
    let group: i32 = stat(pid)[2].parse().unwrap();
    record(&world, group, 1, &boot());
    let found = kill_leftovers(&world.base().join("records")).unwrap();
    assert_eq!(found, Leftovers { killed: Vec::new(), unsure: vec![group] });
    assert!(lives(pid));
    assert_eq!(world.records(), 1, "the record stays for the operator");
    kill(pid);
}

#[tokio::test]
async fn e26_a_guard_that_was_killed_is_replaced() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let own = i32::try_from(std::process::id()).unwrap();
    let guards = || {
        let numbers =
            fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_guard = |pid: &i32| {
            let name = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            lives(*pid)
                && name.starts_with(b"windlass-guard")
                && stat(*pid).get(1).is_some_and(|parent| *parent == own.to_string())
        };
        numbers.into_iter().filter(is_guard).collect::<Vec<i32>>()
    };
    let before = guards();
    assert_eq!(crate::world::value(world.sh("echo one")).await, json!("one"));
    let first: Vec<i32> = guards().into_iter().filter(|pid| !before.contains(pid)).collect();
    assert_eq!(first.len(), 1, "other tests run in their own processes");
    kill(first[0]);
    until("it is dead", || !lives(first[0])).await;
    assert_eq!(crate::world::value(world.sh("echo two")).await, json!("two"));
    assert_eq!(guards().iter().filter(|pid| !before.contains(pid)).count(), 1);
}

#[test]
fn a_missing_folder_has_no_leftovers() {
    let world = World::new();
    assert_eq!(kill_leftovers(&world.base().join("nothing")).unwrap(), Leftovers::default());
}
