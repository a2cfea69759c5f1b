//! The `windlass` binary.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A call's memory is taken by one thread and given back by another all the time, which the system's allocator makes the two
/// wait for. Here, because whoever embeds the library chooses for itself.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    windlass_cli::main()
}
