//! The launcher as a separate program, for users of the library who do not have the `windlass` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    windlass_tools::sandbox::launch_main()
}
