//! The `windlass` binary.

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// A call often allocates on one thread and frees on another, where the system's allocator contends. The choice is made here
/// and not in the library: a program that embeds Windlass chooses its own allocator.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    windlass_cli::main()
}
