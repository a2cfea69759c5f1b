//! Tries what a sandbox should refuse, and prints what worked. The tests of this crate run it as a command. Run it
//! directly to see what is possible without a sandbox: `cargo run --example probe -- steal /etc/passwd`.

// Children are left running on purpose.
#![allow(clippy::unwrap_used, clippy::zombie_processes, missing_docs)]

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("there is nothing to try outside of Linux");
}

#[cfg(target_os = "linux")]
mod linux {
    use std::fs::{self, File, OpenOptions};
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
    use std::path::Path;
    use std::process::{Command, Stdio};

    use serde_json::{Value, json};
    use windlass::tool::Schemas;
    use windlass::{Effect, ToolSpec, Windlass};
    use windlass_tools::sandbox::Launcher;

    pub(super) fn main() {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let result = match &args[..] {
            ["steal", rest @ ..] => json!(steal(Path::new(rest.last().unwrap()))),
            ["spoil", path] => json!(spoil(Path::new(path))),
            ["network", address, socket, name] => json!(network(address, Path::new(socket), name)),
            ["privileges", pid] => json!(privileges(pid.parse().unwrap())),
            ["env"] => json!(std::env::vars().collect::<std::collections::BTreeMap<_, _>>()),
            ["eat", bytes] => json!(eat(bytes.parse().unwrap())),
            ["bomb", count] => bomb(count.parse().unwrap()),
            ["threads", count] => threads(count.parse().unwrap()),
            ["deep", count] => deep(count.parse().unwrap()),
            ["shut"] => shut(),
            ["wide", count] => wide(count.parse().unwrap()),
            ["tree", folder] => tree(folder),
            ["leaf", folder, name] => leaf(folder, name),
            ["host", launcher, folder] => host(launcher, folder),
            other => panic!("unknown probe {other:?}"),
        };
        println!("{result}");
    }

    type Tries = Vec<(&'static str, io::Result<String>)>;

    /// The ways that worked.
    fn worked(tries: Tries) -> Vec<Value> {
        tries.into_iter().filter_map(|(way, result)| result.ok().map(|found| json!([way, found]))).collect()
    }

    fn glance(mut file: impl Read) -> io::Result<String> {
        let mut bytes = vec![0; 64];
        let count = file.read(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..count]).into_owned())
    }

    fn open(path: &Path) -> io::Result<File> {
        // Do not block on a pipe without a writer.
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
    }

    fn ran(command: &mut Command) -> io::Result<String> {
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output()?;
        if output.status.success() { glance(&output.stdout[..]) } else { Err(io::Error::other("it failed")) }
    }

    /// Reads a file in every possible way.
    fn steal(path: &Path) -> Vec<Value> {
        let through = |name: &str, made: io::Result<()>| made.and_then(|()| open(Path::new(name))).and_then(glance);
        let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
        let not = || Err(io::Error::other("no file"));
        let by_path_fd = || {
            let fd = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
            use std::os::fd::AsRawFd;
            open(Path::new(&format!("/proc/self/fd/{}", fd.as_raw_fd()))).and_then(glance)
        };
        let from_there = || {
            let here = std::env::current_dir()?;
            let (folder, name) = (path.parent().unwrap_or(path), path.file_name().unwrap_or_default());
            std::env::set_current_dir(folder)?;
            let found = open(Path::new(name)).and_then(glance);
            std::env::set_current_dir(here)?;
            found
        };
        for left in ["copied", "hard", "soft"] {
            let _ = fs::remove_file(left);
        }
        let moved = || {
            fs::rename(path, "moved")?;
            let found = open(Path::new("moved")).and_then(glance);
            fs::rename("moved", path)?;
            found
        };
        worked(vec![
            ("open", open(path).and_then(glance)),
            ("list", fs::read_dir(path).map(|entries| format!("{} entries", entries.count()))),
            ("copy", if is_file { through("copied", fs::copy(path, "copied").map(drop)) } else { not() }),
            ("hard link", through("hard", fs::hard_link(path, "hard"))),
            ("symbolic link", through("soft", std::os::unix::fs::symlink(path, "soft"))),
            ("path descriptor", by_path_fd()),
            ("change folder", from_there()),
            ("child", if is_file { ran(Command::new("/bin/cat").arg("--").arg(path)) } else { not() }),
            (
                "shell",
                if is_file {
                    ran(Command::new("/bin/sh").args(["-c", "read x < \"$0\"; [ -n \"$x\" ] && echo \"$x\""]).arg(path))
                } else {
                    not()
                },
            ),
            ("move", if is_file { moved() } else { not() }),
            ("run", if is_file { ran(&mut Command::new(path)) } else { not() }),
        ])
    }

    /// Changes a file or a folder in every possible way.
    fn spoil(path: &Path) -> Vec<Value> {
        let done = |result: io::Result<()>| result.map(|()| String::new());
        let write = |options: &mut OpenOptions| options.custom_flags(libc::O_NONBLOCK).open(path).map(drop);
        let inside = path.join("new");
        worked(vec![
            ("write", done(write(OpenOptions::new().write(true)))),
            ("append", done(write(OpenOptions::new().append(true)))),
            ("empty", done(write(OpenOptions::new().write(true).truncate(true)))),
            ("truncate", done(ran(Command::new("/usr/bin/truncate").arg("-s").arg("1").arg(path)).map(drop))),
            ("create", done(File::create(&inside).map(drop))),
            ("make a folder", done(fs::create_dir(&inside))),
            ("make a link", done(std::os::unix::fs::symlink("x", &inside))),
            ("make a pipe", done(ran(Command::new("/usr/bin/mkfifo").arg(&inside)).map(drop))),
            ("link into", done(fs::write("mine", "x").and_then(|()| fs::hard_link("mine", &inside)))),
            ("move into", done(fs::write("mine", "x").and_then(|()| fs::rename("mine", &inside)))),
            ("replace", done(fs::write("mine", "x").and_then(|()| fs::rename("mine", path)))),
            ("change mode", done(fs::set_permissions(path, fs::Permissions::from_mode(0o777)))),
            (
                "change times",
                done(ran(Command::new("/usr/bin/touch").args(["-h", "-d", "2001-01-01"]).arg(path)).map(drop)),
            ),
            ("remove", done(fs::remove_file(path))),
            ("remove the folder", done(fs::remove_dir(path))),
        ])
    }

    /// Uses the network in every possible way.
    fn network(address: &str, socket: &Path, name: &str) -> Vec<Value> {
        let done = |result: io::Result<()>| result.map(|()| String::new());
        let abstract_name = || SocketAddr::from_abstract_name(name);
        worked(vec![
            ("tcp", done(TcpStream::connect(address).map(drop))),
            ("listen", done(TcpListener::bind("127.0.0.1:0").map(drop))),
            ("udp", done(UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", address)).map(drop))),
            ("udp 6", done(UdpSocket::bind("[::1]:0").map(drop))),
            ("unix", done(UnixStream::connect(socket).map(drop))),
            ("unix datagram", done(UnixDatagram::unbound().map(drop))),
            ("unix listen", done(UnixListener::bind("own.sock").map(drop))),
            ("abstract", done(abstract_name().and_then(|name| UnixStream::connect_addr(&name)).map(drop))),
            (
                "child",
                done(ran(Command::new("/bin/bash").args(["-c", "exec 3<>/dev/tcp/${0/:/\\/}", address])).map(drop)),
            ),
        ])
    }

    /// Tries to affect other processes.
    fn privileges(pid: i32) -> Vec<Value> {
        let done = |result: io::Result<()>| result.map(|()| String::new());
        let other = rustix::process::Pid::from_raw(pid).unwrap();
        let not = || Err(io::Error::other("none"));
        let powers = || rustix::thread::capabilities(None).map(|sets| sets.effective.bits()).map_err(io::Error::from);
        worked(vec![
            ("signal", done(rustix::process::test_kill_process(other).map_err(io::Error::from))),
            ("leave the session", done(ran(Command::new("/usr/bin/setsid").arg("/bin/true")).map(drop))),
            ("leave the group", done(rustix::process::setpgid(None, Some(other)).map_err(io::Error::from))),
            ("namespace", done(ran(Command::new("/usr/bin/unshare").args(["-Ur", "/bin/true"])).map(drop))),
            ("mount", done(ran(Command::new("/bin/mount").args(["-t", "tmpfs", "x", "."])).map(drop))),
            ("look into", fs::read(format!("/proc/{pid}/environ")).map(|bytes| format!("{} bytes", bytes.len()))),
            ("capabilities", powers().and_then(|bits| if bits == 0 { not() } else { Ok(format!("{bits:x}")) })),
        ])
    }

    fn eat(bytes: usize) -> usize {
        let mut eaten: Vec<u8> = Vec::new();
        if eaten.try_reserve_exact(bytes).is_err() {
            return 0;
        }
        eaten.resize(bytes, 1);
        eaten.iter().map(|byte| usize::from(*byte)).sum()
    }

    /// Starts this many processes, none of which ends by itself.
    fn bomb(count: usize) -> Value {
        for _ in 0..count {
            if let Err(error) = Command::new("/bin/sleep").arg("600").spawn() {
                eprintln!("{error}");
            }
        }
        std::thread::park();
        json!("survived")
    }

    fn threads(count: usize) -> Value {
        for _ in 0..count {
            std::thread::spawn(std::thread::park);
        }
        std::thread::park();
        json!("survived")
    }

    /// Nests this many folders, and returns the outermost. Works from the innermost outwards, because Landlock checks
    /// every parent of a new folder.
    fn deep(count: usize) -> Value {
        let folder = std::env::temp_dir();
        let name = |level: usize| folder.join(["even", "odd"][level % 2]);
        for level in 0..count {
            fs::create_dir(name(level)).unwrap();
            if level > 0 {
                fs::rename(name(level - 1), name(level).join("d")).unwrap();
            }
        }
        json!(folder)
    }

    /// A folder that its owner cannot enter, with a file in it, and one from which nothing can be removed.
    fn shut() -> Value {
        let folder = std::env::temp_dir();
        for (name, mode) in [("closed", 0o000), ("fixed", 0o555)] {
            let path = folder.join(name).join("inner");
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("file"), "x").unwrap();
            for path in [&path, path.parent().unwrap()] {
                File::open(path).unwrap().set_permissions(fs::Permissions::from_mode(mode)).unwrap();
            }
        }
        json!(folder)
    }

    /// This many files in one folder.
    fn wide(count: usize) -> Value {
        let folder = std::env::temp_dir();
        for number in 0..count {
            File::create(folder.join(number.to_string())).unwrap();
        }
        json!(folder)
    }

    /// A process with children and grandchildren, each of which writes its process id to a file.
    fn tree(folder: &str) -> Value {
        for name in ["left", "right"] {
            Command::new("/proc/self/exe").args(["leaf", folder, name]).spawn().unwrap();
        }
        eprintln!("growing");
        leaf(folder, "root")
    }

    fn leaf(folder: &str, name: &str) -> Value {
        if !name.ends_with("most") && name != "root" {
            Command::new("/proc/self/exe").args(["leaf", folder, &format!("{name}most")]).spawn().unwrap();
        }
        // Every process that can leaves the group.
        let left = rustix::process::setsid().is_ok();
        let mut file = File::create(format!("{folder}/.{name}")).unwrap();
        write!(file, "{} {left}", std::process::id()).unwrap();
        fs::rename(format!("{folder}/.{name}"), format!("{folder}/{name}.pid")).unwrap();
        loop {
            std::thread::park();
        }
    }

    /// A program that embeds Windlass, runs a process tree as a command, and waits to be killed.
    fn host(launcher: &str, folder: &str) -> Value {
        let work = format!("{folder}/work");
        let probe = std::env::current_exe().unwrap().to_string_lossy().into_owned();
        let launcher = Launcher::new([launcher]).records(format!("{folder}/records"));
        let command = windlass_tools::command::Command {
            dir: Some(work.clone().into()),
            sandbox: windlass_tools::sandbox::Sandbox { read: vec!["/proc".into()], ..Default::default() },
            ..windlass_tools::command::Command::new([probe.as_str(), "tree", &work], launcher)
        };
        let tool = command.tool(ToolSpec::new("tree", "Grows"), Schemas::any()).effect(Effect::Readonly);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let windlass = Windlass::in_memory().tool(tool).await.unwrap();
            json!(windlass.call_json("tree", json!({})).await.unwrap().for_model())
        })
    }
}
