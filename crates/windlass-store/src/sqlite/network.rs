//! Detects network file systems. There a lock may not exclude other processes, a sync may not reach a disk, and memory
//! is not shared; SQLite advises against using them.

use std::path::Path;

/// File system types whose files are on other machines. Others that could be remote, such as those of virtual machines
/// and containers, are treated as local, because they nearly always are.
#[cfg(target_os = "linux")]
const NETWORK_KINDS: [&str; 23] = [
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "davfs",
    "fuse.beegfs",
    "fuse.ceph",
    "fuse.cephfs",
    "fuse.davfs",
    "fuse.gcsfuse",
    "fuse.glusterfs",
    "fuse.goofys",
    "fuse.juicefs",
    "fuse.mount-s3",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.sshfs",
    "glusterfs",
    "lustre",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
];

/// The type of the network file system that this directory is on. `None` for a local file system, and where the system
/// does not report it.
#[cfg(target_os = "linux")]
pub(super) fn network_kind(directory: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(directory).ok()?.dev();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    kind_of(&mounts, (rustix::fs::major(device), rustix::fs::minor(device))).map(str::to_owned)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn network_kind(_: &Path) -> Option<String> {
    None
}

/// The type of the network file system with these device numbers, if it is one. `mounts` is the content of Linux's
/// `mountinfo`.
#[cfg(target_os = "linux")]
fn kind_of(mounts: &str, (major, minor): (u32, u32)) -> Option<&str> {
    let device = format!("{major}:{minor}");
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some(&device))?;
    let (_, mounted) = line.split_once(" - ")?;
    mounted.split(' ').next().filter(|network_kind| NETWORK_KINDS.contains(network_kind))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_distinguished_from_local_ones() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      31 22 0:25 / /dev/shm rw - tmpfs tmpfs rw\n\
                      40 22 0:47 / /home rw shared:9 master:2 - nfs4 server:/home rw,vers=4.2\n\
                      41 22 0:48 / /cloud rw - fuse.sshfs me@there: rw\n\
                      42 22 0:49 / /stick rw - fuseblk /dev/sdb1 rw\n";
        let table = [
            ((8, 1), None),
            ((0, 25), None),
            ((0, 47), Some("nfs4")),
            ((0, 48), Some("fuse.sshfs")),
            ((0, 49), None),
            ((0, 4), None),
        ];
        for (device, expected) in table {
            assert_eq!(kind_of(mounts, device), expected, "{device:?}");
        }
        assert_eq!(kind_of("nonsense", (8, 1)), None);
    }

    #[test]
    fn the_temporary_directory_is_local() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(network_kind(directory.path()), None);
    }
}
