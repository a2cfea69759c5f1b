//! What this kernel can do, in sentences.

/// What this kernel can keep a command from. See [`support`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Landlock's version of itself, as far as we use it (1 to 6); 0 where there is none.
    pub landlock: u32,
    /// Whether system calls can be refused one by one.
    pub seccomp: bool,
}

/// Truncating files is covered from here on; before that a command could empty any file of its user.
pub(super) const LANDLOCK_NEEDED: u32 = 3;

impl Support {
    /// Whether a command can be kept to its sandbox here.
    pub fn is_whole(&self) -> bool {
        self.missing().is_empty()
    }

    /// What a command could do here in spite of its sandbox, each with the way out. Where this is not empty, commands whose
    /// sandbox is required are refused.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !cfg!(target_os = "linux") {
            missing.push("commands can be sandboxed on Linux only".to_owned());
            return missing;
        }
        match self.landlock {
            0 => missing.push(
                "files are open to commands: this kernel has no Landlock, or does not use it (Linux 6.2 or newer, with \
                 `landlock` in its `lsm=` list)"
                    .to_owned(),
            ),
            version if version < LANDLOCK_NEEDED => missing.push(format!(
                "commands can empty files outside of their working directory: this kernel's Landlock is version {version}, and \
                 {LANDLOCK_NEEDED} is needed (Linux 6.2)"
            )),
            _ => {}
        }
        if !self.seccomp {
            missing.push(
                "the network is open to commands: system calls cannot be filtered here (a kernel with seccomp, on x86_64, \
                 aarch64 or riscv64)"
                    .to_owned(),
            );
        }
        missing
    }

    /// All there is to say, for people.
    pub fn sentences(&self) -> Vec<String> {
        let mut said = self.missing();
        if said.is_empty() {
            said.push(format!("commands are sandboxed: Landlock version {}, seccomp, resource limits", self.landlock));
            if self.landlock < 6 {
                said.push(
                    "a command can send signals to other processes of its user, this server among them (`kill -9 $PPID`): use \
                     Linux 6.12 or newer, where Landlock keeps it from that"
                        .to_owned(),
                );
            }
        }
        said
    }
}

/// What this kernel can do.
pub fn support() -> Support {
    #[cfg(target_os = "linux")]
    {
        // A kernel does not change while we run.
        static KNOWN: std::sync::OnceLock<Support> = std::sync::OnceLock::new();
        *KNOWN.get_or_init(|| Support {
            landlock: super::confine::landlock_version(),
            seccomp: super::filter::is_possible(),
        })
    }
    #[cfg(not(target_os = "linux"))]
    Support { landlock: 0, seccomp: false }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_gets_its_sentence() {
        for (landlock, seccomp, whole, word) in [
            (0, true, false, "no Landlock"),
            (0, false, false, "network is open"),
            (2, true, false, "version 2"),
            (3, false, false, "seccomp"),
            (3, true, true, "signals to other processes of its user, this server among them"),
            (5, true, true, "Linux 6.12 or newer"),
            (6, true, true, "are sandboxed"),
        ] {
            let support = Support { landlock, seccomp };
            let said = support.sentences().join("; ");
            assert_eq!(support.is_whole(), whole, "{said}");
            assert!(said.contains(word), "{landlock} {seccomp}: {said}");
            assert_eq!(said.contains("signals"), whole && landlock < 6, "{landlock} {seccomp}: {said}");
        }
    }
}
