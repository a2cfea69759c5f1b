//! A server that is killed repeatedly under load. Clients call a tool with the effect "once" over HTTP, and repeat requests
//! without a response with the same key. In the end every request has one run, every run is finished, and every effect is
//! in an external ledger exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::http::Client;
use crate::world::{PATIENCE, Server, World};

/// The charge records its key and then takes a while: a server that is killed meanwhile leaves a charge without a record.
const CONFIG: &str = r#"
[tool.charge]
description = "Charges a card, once."
command = ["sh", "-c", "echo $WINDLASS_IDEMPOTENCY_KEY >> ledger; sleep 0.02; cat"]
input = { order = "string" }
dir = "bank"
sandbox = { level = "best_effort" }

[tool.charge.reconcile]
command = ["sh", "-c", "if grep -qxF $WINDLASS_IDEMPOTENCY_KEY ledger; then echo '{\"happened\": \"found\"}'; else echo '{\"did_not_happen\": true}'; fi"]

[tool.look]
description = "Looks at an order."
command = ["cat"]
input = { order = "string" }
effect = "readonly"
sandbox = { level = "best_effort" }
"#;

/// The number of concurrent clients.
const CLIENTS: u64 = 12;
/// How often the server is killed.
const KILLS: usize = 24;

/// Pseudo-random numbers that are the same in every run of the test.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// A request of a client, with the run it was assigned.
struct AcceptedRequest {
    run: String,
    /// The number of charges it makes.
    charges: usize,
}

/// The requests of the clients, by key.
type Requests = BTreeMap<String, AcceptedRequest>;

/// A client that repeats requests until they are accepted, and waits for every outcome.
struct LoadClient {
    number: u64,
    client: Client,
    dice: Dice,
    stop: Arc<AtomicBool>,
    accepted: UnboundedSender<()>,
    requests: Requests,
}

impl LoadClient {
    async fn work(mut self) -> Requests {
        for n in 0.. {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            self.request(format!("p{}.{n}", self.number)).await;
        }
        self.requests
    }

    /// Makes one request, and waits for its outcome.
    async fn request(&mut self, key: String) {
        let order = |n: usize| json!({"order": format!("{key}/{n}")});
        let wait = [0, 10, 30_000][self.dice.below(3) as usize];
        let (path, body, charges) = match self.dice.below(6) {
            0 => {
                let calls = json!([
                    {"tool": "charge", "args": order(0)}, {"tool": "look", "args": order(1)}, {"tool": "charge", "args": order(2)}
                ]);
                ("/v1/batches", json!({"calls": calls, "wait_ms": wait}), 2)
            }
            1 => ("/v1/calls", json!({"tool": "look", "args": order(0), "wait_ms": wait}), 0),
            _ => ("/v1/calls", json!({"tool": "charge", "args": order(0), "wait_ms": wait}), 1),
        };
        let body = body.to_string();
        let answer = self.client.insist("POST", path, Some(&key), &body).await;
        assert!([200, 202].contains(&answer.status), "{key}: {answer:?}");
        let run = answer.body["run"].as_str().expect("the response names its run").to_owned();
        // The receiver is gone once there were enough kills.
        let _ = self.accepted.send(());
        let waiting = self.outcome(&run);
        let ended = tokio::time::timeout(PATIENCE, waiting).await.expect("an accepted request finishes");
        let outcomes = ended["outcomes"].as_array().expect("outcomes").clone();
        assert_eq!(outcomes.len(), if charges == 2 { 3 } else { 1 }, "{key}: {ended}");
        assert!(outcomes.iter().all(|outcome| outcome.get("error").is_none_or(Value::is_null)), "{key}: {ended}");
        // Repeating it afterwards returns the same run and does nothing.
        let again =
            self.client.insist("POST", if charges == 2 { "/v1/batches" } else { "/v1/calls" }, Some(&key), &body);
        let again = again.await;
        assert_eq!(again.body["run"], run.as_str(), "{key}: {again:?}");
        self.requests.insert(key, AcceptedRequest { run, charges });
    }

    /// Waits for the outcome of a run. A run that was at the same operation when three processes died is held, and is resumed
    /// here.
    async fn outcome(&mut self, run: &str) -> Value {
        for n in 0.. {
            let answer = self.client.insist("GET", &format!("/v1/runs/{run}/outcome?wait_ms=1000"), None, "").await;
            match answer.status {
                200 => return answer.body,
                202 if answer.body["state"] == "held" => {
                    let path = format!("/v1/runs/{run}/resume");
                    let resumed = self.client.insist("POST", &path, Some(&format!("resume/{run}/{n}")), "{}").await;
                    // 409: another client has resumed it meanwhile.
                    assert!([200, 202, 409].contains(&resumed.status), "{run}: {resumed:?}");
                }
                202 => {}
                _ => panic!("{run} was accepted: {answer:?}"),
            }
        }
        unreachable!("there is no last number")
    }
}

/// A server with a bank, under the load of the clients.
struct Load {
    world: World,
    server: Server,
    address: String,
    accepted: UnboundedReceiver<()>,
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<Requests>>,
}

impl Load {
    /// Must be called within a Tokio runtime.
    fn start(seed: u64) -> Self {
        let world = World::empty();
        world.write("windlass.toml", CONFIG);
        std::fs::create_dir(world.path("bank")).unwrap();
        world.write("bank/ledger", "");
        let server = world.serve(&[]);
        let address = server.url.trim_start_matches("http://").to_owned();
        let (accepted, counted) = unbounded_channel();
        let stop: Arc<AtomicBool> = Arc::default();
        let client = |number| LoadClient {
            number,
            client: Client::new(&server.url),
            dice: Dice(seed.wrapping_mul(1_000).wrapping_add(number)),
            stop: stop.clone(),
            accepted: accepted.clone(),
            requests: Requests::new(),
        };
        let clients = (0..CLIENTS).map(client).map(|client| tokio::spawn(client.work())).collect();
        Self { world, server, address, accepted: counted, stop, clients }
    }

    /// Kills the server, and starts another on the same file and port.
    fn kill(&mut self) {
        self.server.child.kill().unwrap();
        let ended: ExitStatus = self.server.child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "it exited by itself: {ended}");
        self.server = self.world.serve_at(&self.address, &[]);
    }

    /// Runs a second process on the file, which uses the server or reports that the file is in use.
    fn run_second_process(&self, dice: &mut Dice) {
        let (args, code): (&[&str], i32) = match dice.below(4) {
            0 => (&["serve", "--listen", "127.0.0.1:0"], 5),
            1 => (&["inbox"], 0),
            2 => (&["tools", "list"], 0),
            _ => (&["runs", "list", "--limit", "3"], 0),
        };
        let done = tokio::task::block_in_place(|| self.world.run(args));
        assert_eq!(done.code, code, "{args:?}: {done:?}");
    }

    /// Stops the server (SIGSTOP) for a while, and lets it continue or leaves it to be killed.
    async fn pause(&mut self, time: Duration, dice: &mut Dice) {
        self.server.signal("STOP");
        tokio::time::sleep(time).await;
        if dice.below(2) == 0 {
            self.server.signal("CONT");
            self.accepts(1 + dice.below(CLIENTS)).await;
        }
    }

    /// Waits until this many more requests are accepted.
    async fn accepts(&mut self, count: u64) {
        for _ in 0..count {
            let next = tokio::time::timeout(PATIENCE, self.accepted.recv()).await;
            next.expect("requests are accepted").expect("clients continue until they are stopped");
        }
    }

    /// Lets the clients finish, and checks the runs and effects.
    async fn verify(mut self) -> LoadResult {
        self.stop.store(true, Ordering::Release);
        let mut requests = Requests::new();
        for client in self.clients.drain(..) {
            requests.extend(client.await.expect("the client succeeded"));
        }
        let runs = self.all_runs().await;
        let assigned: BTreeSet<&str> = requests.values().map(|request| request.run.as_str()).collect();
        let stored: BTreeSet<&str> = runs.iter().map(|run| run["id"].as_str().unwrap()).collect();
        assert_eq!(assigned.len(), requests.len(), "two requests have the same run");
        assert_eq!(stored, assigned, "lost or duplicated");
        let unfinished: Vec<&Value> = runs.iter().filter(|run| run["state"] != "finished").collect();
        assert!(unfinished.is_empty(), "{unfinished:?}");
        let ledger = self.world.read("bank/ledger");
        let mut effects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for key in ledger.lines() {
            // A key begins with its run.
            effects.entry(&key[..36]).or_default().push(key);
        }
        let mut charges = 0;
        for (key, request) in &requests {
            let found = effects.remove(request.run.as_str()).unwrap_or_default();
            let distinct: BTreeSet<&&str> = found.iter().collect();
            assert_eq!((found.len(), distinct.len()), (request.charges, request.charges), "{key}: {found:?}");
            charges += request.charges;
        }
        assert!(effects.is_empty(), "effects without a request: {effects:?}");
        let (mut recovered, mut settled) = (0, 0);
        for run in runs.iter().filter(|run| run["epoch"].as_u64() > Some(1)) {
            recovered += 1;
            settled += self.settlements(run["id"].as_str().unwrap()).await;
        }
        assert_eq!(self.server.stop(), 0, "the last server shuts down cleanly");
        LoadResult { requests: requests.len(), charges, recovered, settled }
    }

    async fn all_runs(&self) -> Vec<Value> {
        let (mut client, mut runs, mut cursor) = (Client::new(&self.server.url), Vec::new(), String::new());
        loop {
            let page = client.insist("GET", &format!("/v1/runs?limit=500{cursor}"), None, "").await;
            assert_eq!(page.status, 200, "{page:?}");
            runs.extend(page.body["runs"].as_array().unwrap().iter().cloned());
            match page.body["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return runs,
            }
        }
    }

    /// The number of settled doubts in the journal of a run.
    async fn settlements(&self, run: &str) -> usize {
        let journal = Client::new(&self.server.url).insist("GET", &format!("/v1/runs/{run}/journal"), None, "").await;
        journal.body.to_string().matches("\"settled\"").count()
    }
}

/// The totals of a test.
struct LoadResult {
    requests: usize,
    charges: usize,
    /// Runs that a later server continued.
    recovered: usize,
    /// Doubts that the tool settled with the ledger.
    settled: usize,
}

impl LoadResult {
    fn print(&self, kills: usize) {
        let Self { requests, charges, recovered, settled } = self;
        println!(
            "{kills} kills, {requests} requests, {charges} charges, {recovered} runs recovered, {settled} doubts settled: \
             none lost, none made twice"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn w01_l12_a_server_that_is_killed_under_load_loses_nothing_and_doubles_nothing() {
    let (mut load, mut dice) = (Load::start(7), Dice(7));
    for _ in 0..KILLS {
        load.accepts(1 + dice.below(2 * CLIENTS)).await;
        load.kill();
    }
    load.accepts(CLIENTS).await;
    let result = load.verify().await;
    result.print(KILLS);
    assert!(result.recovered > 0 && result.settled > 0, "no kill interrupted a run: {} runs", result.requests);
}

/// The same at random times, for the time that `cargo xtask soak` sets; otherwise a few kills in quick succession. Between
/// them, other processes use the file, and the server is stopped and continued.
#[tokio::test(flavor = "multi_thread")]
async fn w01_l12_kills_by_time_under_load() {
    let minutes: u64 = std::env::var("WINDLASS_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let (mut load, mut dice, mut kills) = (Load::start(11), Dice(11), 0);
    while kills < 3 || Instant::now() < end {
        // A kill must be survived at any time, also during recovery.
        match minutes {
            0 => load.accepts(dice.below(CLIENTS)).await,
            _ => tokio::time::sleep(Duration::from_millis(dice.below(1_500))).await,
        }
        match dice.below(3) {
            0 => load.run_second_process(&mut dice),
            1 => {
                let most = if minutes == 0 { 1 } else { 500 };
                load.pause(Duration::from_millis(dice.below(most)), &mut dice).await;
            }
            _ => {}
        }
        load.kill();
        kills += 1;
    }
    load.verify().await.print(kills);
}
