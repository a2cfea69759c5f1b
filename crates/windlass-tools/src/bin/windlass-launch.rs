//! The launcher as a program of its own, for whoever uses the library without the `windlass` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    windlass_tools::sandbox::launch_main()
}
