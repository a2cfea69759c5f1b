//! Errors that mean a temporary shortage of the machine.

use std::error::Error;
use std::io;

use rustix::io::Errno;

/// Shortages of space, memory, files or processes, and a program that is just being replaced.
const TRANSIENT: [Errno; 10] = [
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

/// Whether an operation that failed with this error, or one of its sources, may succeed a moment later without any
/// change.
pub(crate) fn is_transient(error: &(dyn Error + 'static)) -> bool {
    let of_io = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
    match of_io.or_else(|| error.downcast_ref::<Errno>().copied()) {
        Some(errno) => TRANSIENT.contains(&errno),
        None => error.source().is_some_and(is_transient),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_transient_and_a_missing_program_is_not() {
        for (errno, expected) in [
            (Errno::NOSPC, true),
            (Errno::MFILE, true),
            (Errno::AGAIN, true),
            (Errno::NOENT, false),
            (Errno::ACCESS, false),
            (Errno::ROFS, false),
        ] {
            assert_eq!(is_transient(&io::Error::from(errno)), expected, "{errno}");
            assert_eq!(is_transient(&errno), expected, "{errno}");
        }
        assert!(!is_transient(&io::Error::other("the launcher has no program")));
    }
}
