//! Which errors say that the machine is short of something that may be there again later.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// What a later try may find again: space, memory, files, processes; or a program that is just being replaced.
const SHORT: [Errno; 10] = [
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::NOMEM,
    Errno::MFILE,
    Errno::NFILE,
    Errno::AGAIN,
    Errno::NOBUFS,
    Errno::INTR,
    Errno::TXTBSY,
    Errno::IO,
];

/// Whether what failed with it, or with what it comes from, may work a moment later, with nothing changed in the config.
pub(crate) fn may_pass(error: &(dyn Error + 'static)) -> bool {
    let of_io = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
    match of_io.or_else(|| error.downcast_ref::<Errno>().copied()) {
        Some(errno) => SHORT.contains(&errno),
        None => error.source().is_some_and(may_pass),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_passes_and_a_missing_program_does_not() {
        for (errno, passes) in [
            (Errno::NOSPC, true),
            (Errno::MFILE, true),
            (Errno::AGAIN, true),
            (Errno::NOENT, false),
            (Errno::ACCESS, false),
            (Errno::ROFS, false),
        ] {
            assert_eq!(may_pass(&io::Error::from(errno)), passes, "{errno}");
            assert_eq!(may_pass(&errno), passes, "{errno}");
        }
        assert!(!may_pass(&io::Error::other("the launcher has no program")));
    }
}
