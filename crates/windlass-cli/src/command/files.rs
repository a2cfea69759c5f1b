//! `windlass files`

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::io::AsyncReadExt;
use windlass_server::wire::{FileEntry, FileKind, FilePage};

use super::{sessions, text};
use crate::api::{Api, ApiResponse, escaped, query};
use crate::args::FilesCommand;
use crate::exit::{Exit, Failure, Result};
use crate::input;
use crate::out::Out;
use crate::style::{Tint, plain, table};

/// How much of a file is in memory at a time.
const PIECE: usize = 64 * 1024;

/// Executes a subcommand of `files`.
pub(super) async fn run(command: FilesCommand, api: &Api, out: &Out) -> Result<()> {
    match command {
        FilesCommand::Ls { session, directory, recursive } => list(&session, &directory, recursive, api, out).await,
        FilesCommand::Cat { session, path } => print(api.get_raw(&file(&session, &path)?).await?, out).await,
        FilesCommand::Put { session, from, path, if_hash, new } => {
            let condition = match (if_hash, new) {
                (Some(hash), _) => {
                    let value = HeaderValue::from_str(&format!("\"{}\"", hash.trim_matches('"')));
                    let value = value.map_err(|_| Failure::usage("--if-hash has characters that no hash has"))?;
                    Some((header::IF_MATCH, value))
                }
                (None, true) => Some((header::IF_NONE_MATCH, HeaderValue::from_static("*"))),
                (None, false) => None,
            };
            let (content, length) = content(&from)?;
            let written: FileEntry = api.upload(&file(&session, &path)?, condition, length, content).await?;
            let hash = written.hash.as_deref().map(plain).unwrap_or_default();
            done(out, &written, &format!("{}  {} bytes  {hash}", plain(&written.path), written.size))
        }
        FilesCommand::Get { session, path, to } => {
            let answer = api.get_raw(&file(&session, &path)?).await?;
            match to {
                Some(to) if to == Path::new("-") => print(answer, out).await,
                to => save(answer, local(&path, to)?, out).await,
            }
        }
        FilesCommand::Rm { session, path, recursive } => {
            let recursive = query(&[("recursive", recursive.then_some("true"))]);
            api.delete(&format!("{}{recursive}", file(&session, &path)?)).await?;
            done(out, &json!({"path": path, "ok": true}), &format!("{} deleted", plain(&path)))
        }
    }
}

fn done(out: &Out, document: &impl serde::Serialize, line: &str) -> Result<()> {
    if out.json { out.document(document) } else { out.line(line) }
}

/// The URL of a file. Its `/` are escaped too, and the server decodes them once.
fn file(session: &str, path: &str) -> Result<String> {
    if path.is_empty() {
        return Err(Failure::usage("the path is empty; `windlass files ls SESSION` lists the files"));
    }
    Ok(format!("{}/files/{}", sessions::path(session), escaped(path)))
}

async fn list(session: &str, directory: &str, recursive: bool, api: &Api, out: &Out) -> Result<()> {
    let (mut files, mut after): (Vec<FileEntry>, Option<String>) = (Vec::new(), None);
    loop {
        let pairs = [
            ("directory", Some(directory)),
            ("recursive", recursive.then_some("true")),
            ("limit", Some("1000")),
            ("after", after.as_deref()),
        ];
        let page: FilePage = api.get(&format!("{}/files{}", sessions::path(session), query(&pairs))).await?;
        files.extend(page.files);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if out.json {
        return out.document(&json!({ "files": files }));
    }
    if files.is_empty() {
        out.note("no files");
        return Ok(());
    }
    let now = text::now();
    let mut rows = vec![["PATH", "BYTES", "UPDATED", ""].map(|head| (Tint::Dim, head.to_owned())).into()];
    for file in &files {
        let (end, size) = match file.kind {
            FileKind::Directory => ("/", String::new()),
            FileKind::File => ("", file.size.to_string()),
        };
        rows.push(vec![
            (Tint::Bold, format!("{}{end}", plain(&file.path))),
            (Tint::Plain, size),
            (Tint::Dim, text::ago(file.updated, now)),
            (Tint::Plain, if file.readonly { "read-only" } else { "" }.to_owned()),
        ]);
    }
    out.lines(&table(&rows, &out.style))
}

/// The content of a local file or of standard input in pieces, and its length if it is known.
fn content(from: &Path) -> Result<(Body, Option<u64>)> {
    if from == Path::new("-") {
        let pieces = futures_util::stream::unfold(tokio::io::stdin(), |mut input| async move {
            let mut piece = vec![0; PIECE];
            let read = input.read(&mut piece).await;
            next_piece(read, piece).map(|piece| (piece, input))
        });
        return Ok((Body::from_stream(pieces), None));
    }
    let name = from.display().to_string();
    let failed = |error: std::io::Error| input::read_failed(&name, &error);
    let file = std::fs::File::open(from).map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if about.is_dir() {
        return Err(Failure::usage(format!("{name} is a folder; put its files one by one")));
    }
    let pieces = futures_util::stream::unfold(file, |mut file| async move {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece);
        next_piece(read, piece).map(|piece| (piece, file))
    });
    Ok((Body::from_stream(pieces), about.is_file().then_some(about.len())))
}

/// The piece that was read; `None` at the end.
fn next_piece(read: std::io::Result<usize>, mut piece: Vec<u8>) -> Option<std::io::Result<Bytes>> {
    match read {
        Ok(0) => None,
        Ok(count) => {
            piece.truncate(count);
            Some(Ok(piece.into()))
        }
        Err(error) => Some(Err(error)),
    }
}

/// Passes on the body of a response, piece by piece.
async fn receive(answer: ApiResponse, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut body = answer.body;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            Failure::new(Exit::Unreachable, format!("could not read the whole file: {error}; try again"))
        })?;
        if let Ok(bytes) = frame.into_data() {
            each(&bytes)?;
        }
    }
    Ok(())
}

/// Prints a file as it is. A terminal would act on control characters, so it gets none.
async fn print(answer: ApiResponse, out: &Out) -> Result<()> {
    let is_control = |byte: &u8| byte.is_ascii_control() && !b"\n\r\t".contains(byte);
    receive(answer, |bytes| {
        if out.terminal && bytes.iter().any(is_control) {
            let why = "the file has control characters, which are not printed to a terminal; redirect the output, or \
                       save it with `windlass files get`";
            return Err(Failure::usage(why));
        }
        let mut output = std::io::stdout().lock();
        output.write_all(bytes).and_then(|()| output.flush()).map_err(|error| match error.kind() {
            // The reader has seen enough.
            std::io::ErrorKind::BrokenPipe => Failure::silent(Exit::Ok),
            _ => Failure::new(Exit::Failed, format!("could not write to standard output: {error}")),
        })
    })
    .await
}

/// Where a file is saved.
fn local(path: &str, to: Option<PathBuf>) -> Result<PathBuf> {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    match to {
        Some(to) if to.is_dir() => Ok(to.join(name)),
        Some(to) => Ok(to),
        None if name.is_empty() => Err(Failure::usage("name the local file")),
        None => Ok(PathBuf::from(name)),
    }
}

/// Saves a file under another name first, so that no reader sees an incomplete one.
async fn save(answer: ApiResponse, to: PathBuf, out: &Out) -> Result<()> {
    let failed = |error: std::io::Error| {
        Failure::new(Exit::Refused, format!("could not write {}: {error}", plain(&to.display().to_string())))
    };
    let mut partial = to.as_os_str().to_owned();
    partial.push(".part");
    let mut file = std::fs::File::create_new(&partial).map_err(failed)?;
    let mut size = 0;
    let received = receive(answer, |bytes| {
        size += bytes.len() as u64;
        file.write_all(bytes).map_err(failed)
    });
    let saved = received.await.and_then(|()| std::fs::rename(&partial, &to).map_err(failed));
    if saved.is_err() {
        // The first failure matters more.
        let _ = std::fs::remove_file(&partial);
    }
    saved?;
    done(out, &json!({"to": to, "size": size}), &format!("{}  {size} bytes", plain(&to.display().to_string())))
}
