//! A PostgreSQL of our own, at its default settings: every commit is synced.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::server::{End, Server, port};

/// Who runs the server where we are root, which it refuses: the user that its package makes.
const USER: &str = "postgres";

/// A server with an empty database.
pub(crate) struct Postgres {
    server: Server,
    port: u16,
    /// Goes away after the server.
    _folder: TempDir,
}

impl Postgres {
    /// Starts it.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let programs = programs()?;
        // A short path: the name of a socket is bounded.
        let folder = tempfile::Builder::new().prefix("pg").tempdir()?;
        let (home, root) = (folder.path().join("pg"), is_root());
        let command = |program: PathBuf| {
            if !root {
                return Command::new(program);
            }
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--init-groups"]).arg(program);
            command
        };
        make_home(folder.path(), &home, root)?;
        let data = home.join("data");
        let mut initdb = command(programs.join("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]);
        let made = initdb.current_dir("/").stdout(Stdio::null()).status().context("cannot start initdb")?;
        ensure!(made.success(), "initdb ended with {made}");

        let (port, log) = (port()?, folder.path().join("log"));
        let mut postgres = command(programs.join("postgres"));
        postgres.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-k"]);
        postgres.arg(&home).current_dir("/");
        let mut server = Server::start(postgres, &log, End::Quit)?;
        server.wait_until(&log, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(Self { server, port, _folder: folder })
    }

    /// Where its database is.
    pub(crate) fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/bench", self.port)
    }

    /// Its first process.
    pub(crate) fn id(&self) -> u32 {
        self.server.id()
    }
}

/// The folder of the server's programs.
fn programs() -> anyhow::Result<PathBuf> {
    if let Some(named) = std::env::var_os("POSTGRES_BIN") {
        return Ok(named.into());
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|version| version.path().join("bin")).collect();
    folders.sort();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path);
    let found = folders.into_iter().rev().chain(on_path).find(|folder| folder.join("initdb").is_file());
    found.context("PostgreSQL's initdb is not there; install PostgreSQL, or name its folder in POSTGRES_BIN")
}

/// A folder that belongs to whoever runs the server.
fn make_home(folder: &Path, home: &Path, root: bool) -> anyhow::Result<()> {
    if !root {
        return Ok(std::fs::create_dir(home)?);
    }
    let opened = Command::new("chmod").arg("711").arg(folder).status().context("cannot start chmod")?;
    let made = Command::new("install").args(["-d", "-m", "700", "-o", USER]).arg(home).status();
    let made = made.context("cannot start install")?;
    ensure!(
        opened.success() && made.success(),
        "no folder could be made for the user {USER}; install PostgreSQL's package"
    );
    Ok(())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
