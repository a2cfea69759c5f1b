//! What a command leaves in its temporary folder is removed, whatever it is, and without holding anything else up.

use std::path::PathBuf;

use crate::world::{World, alone, can_confine, drop_capabilities, error, memory, until, value};

async fn left_by(world: &World, args: &[&str]) -> PathBuf {
    PathBuf::from(value(world.probe(args)).await.as_str().unwrap())
}

#[tokio::test]
async fn e26_folders_in_folders_are_removed_however_deep() {
    if !alone("remains::e26_folders_in_folders_are_removed_however_deep", "TMPDIR", memory()) {
        return;
    }
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    // Longer than a path can be, and deeper than what once took a whole stack.
    let folder = left_by(&world, &["deep", "16000"]).await;
    until("it is gone", || !folder.exists()).await;
    until("its record is gone", || world.records() == 0).await;
}

#[tokio::test]
async fn e26_folders_without_rights_are_removed() {
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
async fn e26_much_that_a_command_left_is_removed() {
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    let folder = left_by(&world, &["wide", "3000"]).await;
    until("it is gone", || !folder.exists()).await;
    until("its record is gone", || world.records() == 0).await;
}

#[tokio::test]
async fn e26_a_fork_bomb_is_ended_while_it_is_small() {
    // The counter of a server that is not root has no priority over others.
    drop_capabilities();
    let world = World::new();
    if !can_confine(&world).await {
        return;
    }
    // Each process becomes two, and leaves a line behind.
    let bomb = world.sh("f() { echo >> born; f & f & wait; }; f");
    let (_, message) = error(bomb).await;
    assert!(message.contains("more than its 64 processes"), "{message}");
    let born = std::fs::metadata(world.work().join("born")).unwrap().len();
    println!("{born} processes in all");
    // None of them ended before all did. Some seventy, also on a busy machine; thousands where the counter has to wait its turn.
    assert!(born < 500, "{born}");
}
