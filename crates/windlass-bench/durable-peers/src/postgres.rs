//! A private PostgreSQL server with default settings: every commit is synced.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::server::{EndSignal, Server, port};

/// The user that runs the server if we are root, which PostgreSQL refuses. Its package creates it.
const USER: &str = "postgres";

/// A server with an empty database.
pub(crate) struct Postgres {
    server: Server,
    port: u16,
    /// Removed after the server has ended.
    _folder: TempDir,
}

impl Postgres {
    /// Starts the server.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let programs = programs()?;
        // A short path, because the length of a socket's name is limited.
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
        create_home(folder.path(), &home, root)?;
        let data = home.join("data");
        let mut initdb = command(programs.join("initdb"));
        initdb.arg("-D").arg(&data).args(["-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8"]);
        let made = initdb.current_dir("/").stdout(Stdio::null()).status().context("cannot start initdb")?;
        ensure!(made.success(), "initdb ended with {made}");

        let (port, log) = (port()?, folder.path().join("log"));
        let mut postgres = command(programs.join("postgres"));
        postgres.arg("-D").arg(&data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1", "-k"]);
        postgres.arg(&home).current_dir("/");
        let mut server = Server::start(postgres, &log, EndSignal::Quit)?;
        server.wait_until(&log, || TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(Self { server, port, _folder: folder })
    }

    /// The URL of its database.
    pub(crate) fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/bench", self.port)
    }

    /// The id of its first process.
    pub(crate) fn id(&self) -> u32 {
        self.server.id()
    }
}

/// The folder of PostgreSQL's programs.
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
    found.context("PostgreSQL's initdb was not found; install PostgreSQL, or set POSTGRES_BIN to its folder")
}

/// Creates a folder that belongs to the user who runs the server.
fn create_home(folder: &Path, home: &Path, root: bool) -> anyhow::Result<()> {
    if !root {
        return Ok(std::fs::create_dir(home)?);
    }
    let opened = Command::new("chmod").arg("711").arg(folder).status().context("cannot start chmod")?;
    let made = Command::new("install").args(["-d", "-m", "700", "-o", USER]).arg(home).status();
    let made = made.context("cannot start install")?;
    ensure!(
        opened.success() && made.success(),
        "the folder for the user {USER} could not be created; install PostgreSQL's package"
    );
    Ok(())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
