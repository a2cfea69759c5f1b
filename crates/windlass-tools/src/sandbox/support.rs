//! Which parts of a sandbox this kernel supports.

/// The sandbox features of this kernel. See [`support`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// The highest Landlock version that the kernel supports, of those we use (1 to 6); 0 if it has none.
    pub landlock: u32,
    /// Whether system calls can be filtered.
    pub seccomp: bool,
}

/// From this version on, Landlock covers truncation; before it a command could empty any file of its user.
pub(super) const LANDLOCK_NEEDED: u32 = 3;

impl Support {
    /// Whether this kernel supports everything a required sandbox needs.
    pub fn is_whole(&self) -> bool {
        self.missing().is_empty()
    }

    /// What a command could do here despite its sandbox, each with a remedy. If this is not empty, commands whose
    /// sandbox is required are refused.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !cfg!(target_os = "linux") {
            missing.push("commands can be sandboxed on Linux only".to_owned());
            return missing;
        }
        match self.landlock {
            0 => missing.push(
                "commands can access all files of their user: this kernel has no Landlock, or it is not enabled (needs \
                 Linux 6.2 or newer, with `landlock` in its `lsm=` list)"
                    .to_owned(),
                ),
            version if version < LANDLOCK_NEEDED => missing.push(format!(
                "commands can empty files outside of their working directory: this kernel has version {version} \
                 of Landlock, and version {LANDLOCK_NEEDED} is needed (Linux 6.2)"
            )),
            _ => {}
        }
        if !self.seccomp {
            missing.push(
                "commands can use the network: system calls cannot be filtered here (needs a kernel with seccomp \
                 on x86_64, aarch64 or riscv64)"
                    .to_owned(),
            );
        }
        missing
    }

    /// A description for people: what is missing, or that commands are sandboxed and with which limitation.
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = self.missing();
        if sentences.is_empty() {
            let version = self.landlock;
            sentences.push(format!("commands are sandboxed: Landlock version {version}, seccomp, resource limits"));
            if self.landlock < 6 {
                sentences.push(
                    "commands can send signals to other processes of their user, including this server (`kill \
                     -9 $PPID`): Linux 6.12 or newer prevents that"
                        .to_owned(),
                );
            }
        }
        sentences
    }
}

/// Detects the sandbox features of this kernel.
pub fn support() -> Support {
    #[cfg(target_os = "linux")]
    {
        // The features of a kernel do not change while it runs.
        static SUPPORT: std::sync::OnceLock<Support> = std::sync::OnceLock::new();
        *SUPPORT.get_or_init(|| Support {
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
    fn every_kernel_has_a_description() {
        for (landlock, seccomp, whole, word) in [
            (0, true, false, "no Landlock"),
            (0, false, false, "can use the network"),
            (2, true, false, "version 2"),
            (3, false, false, "seccomp"),
            (3, true, true, "signals to other processes of their user, including this server"),
            (5, true, true, "Linux 6.12 or newer"),
            (6, true, true, "are sandboxed"),
        ] {
            let support = Support { landlock, seccomp };
            let text = support.sentences().join("; ");
            assert_eq!(support.is_whole(), whole, "{text}");
            assert!(text.contains(word), "{landlock} {seccomp}: {text}");
            assert_eq!(text.contains("signals"), whole && landlock < 6, "{landlock} {seccomp}: {text}");
        }
    }
}
