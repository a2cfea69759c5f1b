//! Many clients with persistent connections, each calling as fast as it gets responses.
//!
//! The clients share the machine with the server, so they do as little as possible: one thread, prepared requests in
//! which only a number changes, responses that are checked but not parsed.

use std::io::Write as _;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use windlass_bench::cpu;
use windlass_bench::measure::median;
use windlass_bench::percentile::Sorted;
use windlass_bench_http::{ONCE, READONLY};

use crate::library::Library;
use crate::report::CallRow;
use crate::server::Server;

const LEVELS: [usize; 3] = [1, 64, 256];
/// Time of each turn in a round.
const TURN: Duration = Duration::from_secs(2);
/// Time before anything is measured.
const WARM_UP: Duration = Duration::from_millis(500);
/// Digits of the number of a call.
const DIGITS: usize = 12;

/// The calls of a turn.
pub(crate) struct TimedCalls {
    pub(crate) times: Vec<Duration>,
    pub(crate) elapsed: Duration,
}

impl TimedCalls {
    fn rate(&self) -> f64 {
        self.times.len() as f64 / self.elapsed.as_secs_f64()
    }
}

/// Measures every tool with every number of clients, over HTTP and in the library, in turn.
pub(crate) fn measure(rounds: usize) -> anyhow::Result<Vec<CallRow>> {
    let (server, library) = (Server::start()?, Library::open()?);
    let clients = Clients::new(server.address)?;
    let mut rows = Vec::new();
    for tool in [READONLY, ONCE] {
        for at_once in LEVELS {
            eprintln!("{tool} calls, {at_once} clients");
            clients.turn(tool, at_once, WARM_UP)?;
            library.turn(tool, at_once, WARM_UP)?;
            let rounds: Vec<Round> = (0..rounds)
                .map(|_| round(&server, &clients, &library, tool, at_once))
                .collect::<anyhow::Result<_>>()?;
            rows.push(row(tool, at_once, &rounds));
        }
    }
    Ok(rows)
}

struct Round {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
    library_rate: f64,
    library_p50_us: f64,
    library_p99_us: f64,
    server_cpu_us: Option<f64>,
    client_cpu_us: Option<f64>,
    library_cpu_us: Option<f64>,
}

fn round(
    server: &Server,
    clients: &Clients,
    library: &Library,
    tool: &'static str,
    at_once: usize,
) -> anyhow::Result<Round> {
    let before = (cpu::of_tree(server.id()), cpu::of_this());
    let http = clients.turn(tool, at_once, TURN)?;
    let after = (cpu::of_tree(server.id()), cpu::of_this());
    let library = library.turn(tool, at_once, TURN)?;
    let at_last = cpu::of_this();
    let cost = |turn: &TimedCalls, before: Option<Duration>, after: Option<Duration>| {
        let spent = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        spent.map(|spent| spent.as_secs_f64() * 1e6 / turn.times.len() as f64)
    };
    let (server_cpu_us, client_cpu_us) = (cost(&http, before.0, after.0), cost(&http, before.1, after.1));
    let library_cpu_us = cost(&library, after.1, at_last);
    let (rate, library_rate) = (http.rate(), library.rate());
    let (times, library_times) = (Sorted::new(http.times), Sorted::new(library.times));
    Ok(Round {
        rate,
        p50_us: times.us(50.0),
        p99_us: times.us(99.0),
        library_rate,
        library_p50_us: library_times.us(50.0),
        library_p99_us: library_times.us(99.0),
        server_cpu_us,
        client_cpu_us,
        library_cpu_us,
    })
}

/// The medians. The ratio is the median of the ratios, so that load which affects both in a round cancels out.
fn row(tool: &str, clients: usize, rounds: &[Round]) -> CallRow {
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure).collect());
    let maybe = |figure: fn(&Round) -> Option<f64>| rounds.iter().map(figure).collect::<Option<Vec<f64>>>().map(median);
    CallRow {
        tool: tool.to_owned(),
        clients,
        calls_per_s: of(|round| round.rate),
        p50_us: of(|round| round.p50_us),
        p99_us: of(|round| round.p99_us),
        library_calls_per_s: of(|round| round.library_rate),
        library_p50_us: of(|round| round.library_p50_us),
        library_p99_us: of(|round| round.library_p99_us),
        ratio: of(|round| round.rate / round.library_rate),
        server_cpu_us_per_call: maybe(|round| round.server_cpu_us),
        client_cpu_us_per_call: maybe(|round| round.client_cpu_us),
        library_cpu_us_per_call: maybe(|round| round.library_cpu_us),
    }
}

/// All clients, on one thread.
struct Clients {
    executor: tokio::runtime::Runtime,
    address: SocketAddr,
}

impl Clients {
    fn new(address: SocketAddr) -> anyhow::Result<Self> {
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { executor, address })
    }

    fn turn(&self, tool: &str, at_once: usize, time: Duration) -> anyhow::Result<TimedCalls> {
        self.executor.block_on(async {
            let mut connections = Vec::with_capacity(at_once);
            for number in 0..at_once {
                connections.push(Connection::open(self.address, tool, number as u64).await?);
            }
            let begin = Instant::now();
            let end = begin + time;
            let tasks: Vec<_> = connections.into_iter().map(|one| tokio::spawn(one.work(end))).collect();
            let mut times = Vec::new();
            for task in tasks {
                times.extend(task.await.context("a client panicked")??);
            }
            Ok(TimedCalls { times, elapsed: begin.elapsed() })
        })
    }
}

/// One client: a connection, and a request that is sent repeatedly.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    /// The position of the number in the request.
    digits: Range<usize>,
    number: u64,
    response: Vec<u8>,
}

impl Connection {
    async fn open(address: SocketAddr, tool: &str, number: u64) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (before, after) = (format!("{{\"tool\":\"{tool}\",\"args\":{{\"n\":\""), "\"}}");
        let length = before.len() + DIGITS + after.len();
        let head = format!(
            "POST /v1/calls HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        let mut request = format!("{head}{before}").into_bytes();
        let digits = request.len()..request.len() + DIGITS;
        request.resize(digits.end, b'0');
        request.extend_from_slice(after.as_bytes());
        // Connections use different numbers: identical repeated calls would be refused as a loop.
        Ok(Self { stream, request, digits, number: number * 1_000_000_000, response: Vec::with_capacity(4_096) })
    }

    async fn work(mut self, end: Instant) -> anyhow::Result<Vec<Duration>> {
        let mut times = Vec::new();
        while Instant::now() < end {
            let begin = Instant::now();
            self.call().await?;
            times.push(begin.elapsed());
        }
        Ok(times)
    }

    async fn call(&mut self) -> anyhow::Result<()> {
        self.number += 1;
        write!(&mut self.request[self.digits.clone()], "{:012}", self.number)?;
        self.stream.write_all(&self.request).await?;
        self.response.clear();
        loop {
            ensure!(self.stream.read_buf(&mut self.response).await? > 0, "the server closed the connection");
            if is_complete(&self.response)? {
                return Ok(());
            }
        }
    }
}

/// Whether a response is complete; an error if it is not the outcome of a successful call.
fn is_complete(response: &[u8]) -> anyhow::Result<bool> {
    let Some(head) = memmem::find(response, b"\r\n\r\n") else { return Ok(false) };
    let (head, body) = (std::str::from_utf8(&response[..head])?, &response[head + 4..]);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.context("a response has no content-length")?.trim().parse()?;
    if body.len() < length {
        return Ok(false);
    }
    let succeeded = head.starts_with("HTTP/1.1 200") && memmem::find(body, b"\"value\":").is_some();
    if !succeeded || body.len() > length {
        bail!("a call failed with {head}\n{}", String::from_utf8_lossy(body));
    }
    Ok(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_with_its_last_byte() {
        let whole = b"HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{\"value\":true}";
        for end in 0..whole.len() {
            assert!(!is_complete(&whole[..end]).unwrap(), "{end}");
        }
        assert!(is_complete(whole).unwrap());
        let failed = b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{\"error\":{}}";
        assert!(is_complete(failed).unwrap_err().to_string().contains("error"));
        assert!(is_complete(b"HTTP/1.1 503 No\r\ncontent-length: 0\r\n\r\n").is_err());
    }

    #[test]
    fn the_library_is_measured_with_the_same_calls() {
        let library = Library::open().unwrap();
        let turn = library.turn(ONCE, 4, Duration::from_millis(50)).unwrap();
        assert!(turn.times.len() >= 4 && turn.rate() > 0.0);
    }

    #[test]
    fn figures_are_medians_and_ratios_are_medians_of_ratios() {
        let round = |rate, library_rate| Round {
            rate,
            p50_us: rate,
            p99_us: 2.0 * rate,
            library_rate,
            library_p50_us: 1.0,
            library_p99_us: 1.0,
            server_cpu_us: Some(rate),
            client_cpu_us: None,
            library_cpu_us: Some(1.0),
        };
        let row = row(ONCE, 64, &[round(10.0, 20.0), round(30.0, 30.0), round(20.0, 25.0)]);
        assert_eq!((row.calls_per_s, row.p99_us, row.library_calls_per_s), (20.0, 40.0, 25.0));
        assert_eq!((row.ratio, row.server_cpu_us_per_call, row.client_cpu_us_per_call), (0.8, Some(20.0), None));
    }
}
