//! The launcher: this program started anew, on its way to becoming a command, or the guard of those that did.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
pub(super) use orders::NotRun;
#[cfg(target_os = "linux")]
pub(crate) use orders::{Launch, Orders};

/// What the launcher ends with when the command was not run.
#[cfg(target_os = "linux")]
const NOT_RUN: u8 = 125;

/// The same, where it may be run a moment later (`EX_TEMPFAIL`).
#[cfg(target_os = "linux")]
pub(crate) const NOT_RUN_NOW: u8 = 75;

/// The whole of a program that a [`Launcher`](super::Launcher) names: takes its orders from standard input and follows them. Not
/// for people; without orders it says so and ends.
pub fn launch_main() -> ExitCode {
    #[cfg(target_os = "linux")]
    return orders::follow();
    #[cfg(not(target_os = "linux"))]
    {
        eprintln!("commands can be sandboxed on Linux only");
        ExitCode::FAILURE
    }
}

#[cfg(target_os = "linux")]
mod orders {
    use std::collections::BTreeMap;
    use std::io;
    use std::os::unix::process::CommandExt;
    use std::path::PathBuf;
    use std::process::{Command, ExitCode};

    use rustix::stdio::stdin;
    use serde::{Deserialize, Serialize};

    use super::{NOT_RUN, NOT_RUN_NOW};
    use crate::process::guard;
    use crate::process::shortage::may_pass;
    use crate::sandbox::{Sandbox, confine};

    /// Nobody's arguments and environment are longer: the system would not take them.
    const MOST_BYTES: u32 = 8 << 20;

    /// What a launcher is told. They stand before what the command reads from the same pipe.
    #[derive(Serialize, Deserialize)]
    pub(crate) enum Orders {
        Launch(Launch),
        /// Become the guard: see [`guard`].
        Guard,
    }

    /// What to become.
    #[derive(Serialize, Deserialize)]
    pub(crate) struct Launch {
        /// What the launcher's own words on standard error begin with. The command never learns it, so it cannot speak for
        /// the launcher.
        pub(crate) nonce: String,
        pub(crate) argv: Vec<String>,
        pub(crate) env: BTreeMap<String, String>,
        pub(crate) dir: PathBuf,
        pub(crate) temp: PathBuf,
        pub(crate) sandbox: Sandbox,
    }

    impl Orders {
        /// As they go down the pipe: their length, then they.
        pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
            let body = serde_json::to_vec(self)?;
            let length = u32::try_from(body.len()).ok().filter(|length| *length <= MOST_BYTES);
            let length = length.ok_or_else(|| io::Error::other("arguments and environment are too long"))?;
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend(body);
            Ok(bytes)
        }

        /// Takes exactly the orders off the pipe: what follows is the command's.
        fn read() -> io::Result<Self> {
            let mut length = [0; 4];
            read_exactly(&mut length)?;
            let length = u32::from_le_bytes(length);
            if length > MOST_BYTES {
                return Err(io::Error::other("these are no orders"));
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
        // A group and a session of its own, before there is anything to kill: no terminal, and one name for all it starts. It
        // fails where a shell already made us a leader, which is as good.
        let led = rustix::process::setsid().is_ok() || rustix::process::getpgrp() == rustix::process::getpid();
        match Orders::read() {
            Ok(Orders::Guard) => guard::watch(),
            Ok(Orders::Launch(launch)) if led => {
                let NotRun { problem, passes } = become_command(&launch);
                eprintln!("{} {problem}", launch.nonce);
                ExitCode::from(if passes { NOT_RUN_NOW } else { NOT_RUN })
            }
            // Whoever wanted something of us died before he could say what.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => ExitCode::from(NOT_RUN),
            _ => {
                eprintln!("this is how Windlass starts commands; it takes its orders from Windlass alone");
                ExitCode::from(NOT_RUN)
            }
        }
    }

    /// Why it did not become the command. Nothing of the command has begun.
    #[derive(Debug)]
    pub(crate) struct NotRun {
        pub(crate) problem: String,
        /// Whether it may be tried again.
        pub(crate) passes: bool,
    }

    impl NotRun {
        /// It would be the same the next time.
        pub(crate) fn for_good(problem: String) -> Self {
            Self { problem, passes: false }
        }

        /// It failed with an error, which may be one that passes.
        pub(crate) fn for_want(problem: impl std::fmt::Display, error: impl std::error::Error + 'static) -> Self {
            Self { problem: format!("{problem}: {error}"), passes: may_pass(&error) }
        }
    }

    /// Returns only if it could not.
    fn become_command(launch: &Launch) -> NotRun {
        let no_program = || NotRun::for_good("it has no program".to_owned());
        let Some((name, args)) = launch.argv.split_first() else { return no_program() };
        if let Err(error) = std::env::set_current_dir(&launch.dir) {
            let problem = format!("its working directory {} cannot be entered", launch.dir.display());
            return NotRun::for_want(problem, error);
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
        NotRun { problem: format!("`{name}` cannot be run: {error}{hint}"), passes: may_pass(&error) }
    }
}
