//! The temporary folder of a command is removed whatever it contains, and without delaying anything else.

use std::path::PathBuf;

use crate::world::{World, alone, can_confine, drop_capabilities, error, memory, until, value};

async fn left_by(world: &World, args: &[&str]) -> PathBuf {
    PathBuf::from(value(world.probe(args)).await.as_str().unwrap())
}

#[tokio::test]
async fn e26_deeply_nested_folders_are_removed() {
    if !alone("cleanup::e26_deeply_nested_folders_are_removed", "TMPDIR", memory()) {
        return;
    }
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    // Longer than a path may be, and deep enough to overflow the stack of a recursive removal.
    let folder = left_by(&world, &["deep", "16000"]).await;
    until("it is gone", || !folder.exists()).await;
    until("its record is gone", || world.records() == 0).await;
}

#[tokio::test]
async fn e26_folders_without_permissions_are_removed() {
    drop_capabilities();
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let folder = left_by(&world, &["shut"]).await;
    until("it is gone", || !folder.exists()).await;
    until("its record is gone", || world.records() == 0).await;
}

#[tokio::test]
async fn e26_a_folder_with_many_files_is_removed() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let folder = left_by(&world, &["wide", "3000"]).await;
    until("it is gone", || !folder.exists()).await;
    until("its record is gone", || world.records() == 0).await;
}

#[tokio::test]
async fn e26_a_fork_bomb_is_killed_while_it_is_small() {
    // Without root, the counting thread has no priority over others.
    drop_capabilities();
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    // Each process becomes two, and appends a line.
    let bomb = world.sh("f() { echo >> born; f & f & wait; }; f");
    let (_, message) = error(bomb).await;
    assert!(message.contains("more than 64 processes"), "{message}");
    let born = std::fs::metadata(world.work().join("born")).unwrap().len();
    println!("{born} processes in total");
    // No process ended before all did. About seventy, also on a busy machine; thousands if the counting thread had to
    // wait.
    assert!(born < 500, "{born}");
}
