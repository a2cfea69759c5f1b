//! The launcher: this program, started again to become a command, or the guard of those commands.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
pub(super) use instructions::NotRun;
#[cfg(target_os = "linux")]
pub(crate) use instructions::{Instructions, Launch};

/// The launcher's exit code when it did not run the command.
#[cfg(target_os = "linux")]
const NOT_RUN: u8 = 125;

/// The same for a failure that a retry may not meet (`EX_TEMPFAIL`).
#[cfg(target_os = "linux")]
pub(crate) const NOT_RUN_NOW: u8 = 75;

/// The main function of the program that a [`Launcher`](super::Launcher) names. It reads its instructions from standard
/// input and follows them. It is not for people: without instructions it prints a message and exits.
pub fn launch_main() -> ExitCode {
    #[cfg(target_os = "linux")]
    return instructions::follow();
    #[cfg(not(target_os = "linux"))]
    {
        eprintln!("commands can be sandboxed on Linux only");
        ExitCode::FAILURE
    }
}

#[cfg(target_os = "linux")]
mod instructions {
    use std::collections::BTreeMap;
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::path::PathBuf;
    use std::process::{Command, ExitCode};

    use rustix::stdio::stdin;
    use serde::{Deserialize, Serialize};

    use super::{NOT_RUN, NOT_RUN_NOW};
    use crate::process::guard;
    use crate::process::shortage::is_transient;
    use crate::sandbox::{Sandbox, confine};

    /// More than the kernel's own limit on arguments and environment.
    const MOST_BYTES: u32 = 8 << 20;

    /// The instructions of a launcher. The command's own input follows them in the same pipe.
    #[derive(Serialize, Deserialize)]
    pub(crate) enum Instructions {
        Launch(Launch),
        /// Become the guard; see [`guard`].
        Guard,
    }

    /// The command to become.
    #[derive(Serialize, Deserialize)]
    pub(crate) struct Launch {
        /// Prefix of the launcher's own messages on standard error. The command never learns it, so its output cannot
        /// be taken for the launcher's.
        pub(crate) nonce: String,
        pub(crate) argv: Vec<String>,
        pub(crate) env: BTreeMap<String, String>,
        pub(crate) dir: PathBuf,
        pub(crate) temp: PathBuf,
        pub(crate) sandbox: Sandbox,
    }

    impl Instructions {
        /// Encodes them for the pipe: the length, then the body.
        pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
            let body = serde_json::to_vec(self)?;
            let length = u32::try_from(body.len()).ok().filter(|length| *length <= MOST_BYTES);
            let length = length.ok_or_else(|| io::Error::other("arguments and environment are too long"))?;
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend(body);
            Ok(bytes)
        }

        /// Reads the instructions and nothing more: the rest of the pipe belongs to the command.
        fn read() -> io::Result<Self> {
            let mut length = [0; 4];
            read_exactly(&mut length)?;
            let length = u32::from_le_bytes(length);
            if length > MOST_BYTES {
                return Err(io::Error::other("the input is too long to be instructions"));
            }
            let mut body = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            read_exactly(&mut body)?;
            Ok(serde_json::from_slice(&body)?)
        }
    }

    fn read_exactly(mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            match rustix::io::read(stdin(), &mut *buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => buffer = &mut buffer[count..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    pub(super) fn follow() -> ExitCode {
        // A group and a session of its own, before there is anything to kill: no terminal, and one group for all it
        // starts. The call fails if a shell already made this process a group leader, which serves as well.
        let leads_group = rustix::process::setsid().is_ok() || rustix::process::getpgrp() == rustix::process::getpid();
        match Instructions::read() {
            Ok(Instructions::Guard) => guard::watch(),
            Ok(Instructions::Launch(launch)) if leads_group => {
                let NotRun { problem, is_transient } = become_command(&launch);
                eprintln!("{} {problem}", launch.nonce);
                ExitCode::from(if is_transient { NOT_RUN_NOW } else { NOT_RUN })
            }
            // The server died before it sent the instructions.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => ExitCode::from(NOT_RUN),
            _ => {
                eprintln!("this program starts commands for Windlass and takes its instructions from Windlass alone");
                ExitCode::from(NOT_RUN)
            }
        }
    }

    /// Why the launcher did not become the command. The command has not begun.
    #[derive(Debug)]
    pub(crate) struct NotRun {
        pub(crate) problem: String,
        /// Whether a retry may succeed.
        pub(crate) is_transient: bool,
    }

    impl NotRun {
        /// A retry would fail the same way.
        pub(crate) fn permanent(problem: String) -> Self {
            Self { problem, is_transient: false }
        }

        /// A failure with an error, which decides whether a retry may succeed.
        pub(crate) fn from_error(problem: impl std::fmt::Display, error: impl std::error::Error + 'static) -> Self {
            Self { problem: format!("{problem}: {error}"), is_transient: is_transient(&error) }
        }
    }

    /// Returns only if the process could not become the command.
    fn become_command(launch: &Launch) -> NotRun {
        let no_program = || NotRun::permanent("it has no program".to_owned());
        let Some((name, args)) = launch.argv.split_first() else { return no_program() };
        if let Err(error) = std::env::set_current_dir(&launch.dir) {
            let problem = format!("its working directory {} cannot be entered", launch.dir.display());
            return NotRun::from_error(problem, error);
        }
        if let Err(refused) = confine::confine(launch) {
            return refused;
        }
        let error = Command::new(name).args(args).env_clear().envs(&launch.env).exec();
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => "; is it executable, and are it and its interpreter within the sandbox?",
            io::ErrorKind::NotFound => "; is it installed, and on the PATH the command is given?",
            _ => "",
        };
        NotRun { problem: format!("`{name}` cannot be run: {error}{hint}"), is_transient: is_transient(&error) }
    }
}
