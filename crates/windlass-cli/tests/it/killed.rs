//! A server that is killed under load, again and again: programs outside call a tool that acts once, over HTTP, and
//! repeat what was not answered under the same key. In the end every request has one run, every run its end, and every
//! effect stands once in a ledger that Windlass does not know.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::http::Client;
use crate::world::{PATIENCE, Server, World};

/// The charge writes down its key, and then takes a while: whoever dies meanwhile leaves a charge that nobody has recorded.
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

/// Programs outside that ask at once.
const CLIENTS: u64 = 12;
/// As often the server dies in every test run.
const KILLS: usize = 24;

/// Numbers that look like chance and are the same in every run of the test.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What a program asked for, and which run it was told of.
struct Asked {
    run: String,
    /// How many charges it is.
    charges: usize,
}

/// What all programs were told, by the keys of their requests.
type Books = BTreeMap<String, Asked>;

/// A program outside: asks, repeats what was not answered, and waits for every end.
struct Program {
    number: u64,
    client: Client,
    dice: Dice,
    over: Arc<AtomicBool>,
    accepted: UnboundedSender<()>,
    books: Books,
}

impl Program {
    async fn work(mut self) -> Books {
        for n in 0.. {
            if self.over.load(Ordering::Acquire) {
                break;
            }
            self.request(format!("p{}.{n}", self.number)).await;
        }
        self.books
    }

    /// One request, to its end.
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
        let run = answer.body["run"].as_str().expect("an answer names its run").to_owned();
        // Nobody listens any more once there were enough kills.
        let _ = self.accepted.send(());
        let waiting = self.outcome(&run);
        let ended = tokio::time::timeout(PATIENCE, waiting).await.expect("an accepted request ends");
        let outcomes = ended["outcomes"].as_array().expect("outcomes").clone();
        assert_eq!(outcomes.len(), if charges == 2 { 3 } else { 1 }, "{key}: {ended}");
        assert!(outcomes.iter().all(|outcome| outcome.get("error").is_none_or(Value::is_null)), "{key}: {ended}");
        // Asked again when all is over: the same run, and nothing is done.
        let again =
            self.client.insist("POST", if charges == 2 { "/v1/batches" } else { "/v1/calls" }, Some(&key), &body);
        let again = again.await;
        assert_eq!(again.body["run"], run.as_str(), "{key}: {again:?}");
        self.books.insert(key, Asked { run, charges });
    }

    /// Waits for the end of a run. One that was in the middle of the same thing at three deaths in a row is held: somebody has
    /// to look at it, and finds nothing wrong with it.
    async fn outcome(&mut self, run: &str) -> Value {
        for n in 0.. {
            let answer = self.client.insist("GET", &format!("/v1/runs/{run}/outcome?wait_ms=1000"), None, "").await;
            match answer.status {
                200 => return answer.body,
                202 if answer.body["state"] == "held" => {
                    let path = format!("/v1/runs/{run}/resume");
                    let resumed = self.client.insist("POST", &path, Some(&format!("resume/{run}/{n}")), "{}").await;
                    // 409: somebody else went on with it meanwhile.
                    assert!([200, 202, 409].contains(&resumed.status), "{run}: {resumed:?}");
                }
                202 => {}
                _ => panic!("{run} was accepted: {answer:?}"),
            }
        }
        unreachable!("there is no last number")
    }
}

/// A world with a bank, and the programs that have to do with it.
struct Load {
    world: World,
    server: Server,
    address: String,
    accepted: UnboundedReceiver<()>,
    over: Arc<AtomicBool>,
    programs: Vec<tokio::task::JoinHandle<Books>>,
}

impl Load {
    /// Must be called within an executor.
    fn start(seed: u64) -> Self {
        let world = World::empty();
        world.write("windlass.toml", CONFIG);
        std::fs::create_dir(world.path("bank")).unwrap();
        world.write("bank/ledger", "");
        let server = world.serve(&[]);
        let address = server.url.trim_start_matches("http://").to_owned();
        let (accepted, counted) = unbounded_channel();
        let over: Arc<AtomicBool> = Arc::default();
        let program = |number| Program {
            number,
            client: Client::new(&server.url),
            dice: Dice(seed.wrapping_mul(1_000).wrapping_add(number)),
            over: over.clone(),
            accepted: accepted.clone(),
            books: Books::new(),
        };
        let programs = (0..CLIENTS).map(program).map(|program| tokio::spawn(program.work())).collect();
        Self { world, server, address, accepted: counted, over, programs }
    }

    /// SIGKILL, and another one on the same file and port.
    fn kill(&mut self) {
        self.server.child.kill().unwrap();
        let ended: ExitStatus = self.server.child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "it ended by itself: {ended}");
        self.server = self.world.serve_at(&self.address, &[]);
    }

    /// A second process on the file of a living server asks the server, or is told who has the file.
    fn beside(&self, dice: &mut Dice) {
        let (args, code): (&[&str], i32) = match dice.below(4) {
            0 => (&["serve", "--listen", "127.0.0.1:0"], 5),
            1 => (&["inbox"], 0),
            2 => (&["tools", "list"], 0),
            _ => (&["runs", "list", "--limit", "3"], 0),
        };
        let done = tokio::task::block_in_place(|| self.world.run(args));
        assert_eq!(done.code, code, "{args:?}: {done:?}");
    }

    /// The server stands still for a while; it works on for a while, or is killed as it stands.
    async fn stands_still(&mut self, time: Duration, dice: &mut Dice) {
        self.server.signal("STOP");
        tokio::time::sleep(time).await;
        if dice.below(2) == 0 {
            self.server.signal("CONT");
            self.accepts(1 + dice.below(CLIENTS)).await;
        }
    }

    /// Waits until so many more requests were accepted.
    async fn accepts(&mut self, count: u64) {
        for _ in 0..count {
            let next = tokio::time::timeout(PATIENCE, self.accepted.recv()).await;
            next.expect("requests are accepted").expect("programs go on until they are told");
        }
    }

    /// Lets the programs finish what they have begun, and looks at everything.
    async fn judge(mut self) -> Found {
        self.over.store(true, Ordering::Release);
        let mut books = Books::new();
        for program in self.programs.drain(..) {
            books.extend(program.await.expect("a program ends well"));
        }
        let runs = self.all_runs().await;
        let told: BTreeSet<&str> = books.values().map(|asked| asked.run.as_str()).collect();
        let kept: BTreeSet<&str> = runs.iter().map(|run| run["id"].as_str().unwrap()).collect();
        assert_eq!(told.len(), books.len(), "two requests were told of one run");
        assert_eq!(kept, told, "lost or doubled");
        let unfinished: Vec<&Value> = runs.iter().filter(|run| run["state"] != "finished").collect();
        assert!(unfinished.is_empty(), "{unfinished:?}");
        let ledger = self.world.read("bank/ledger");
        let mut effects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for key in ledger.lines() {
            // A key begins with its run.
            effects.entry(&key[..36]).or_default().push(key);
        }
        let mut charges = 0;
        for (key, asked) in &books {
            let found = effects.remove(asked.run.as_str()).unwrap_or_default();
            let distinct: BTreeSet<&&str> = found.iter().collect();
            assert_eq!((found.len(), distinct.len()), (asked.charges, asked.charges), "{key}: {found:?}");
            charges += asked.charges;
        }
        assert!(effects.is_empty(), "effects nobody asked for: {effects:?}");
        let (mut taken_over, mut settled) = (0, 0);
        for run in runs.iter().filter(|run| run["epoch"].as_u64() > Some(1)) {
            taken_over += 1;
            settled += self.settlements(run["id"].as_str().unwrap()).await;
        }
        assert_eq!(self.server.stop(), 0, "the last one stops in good order");
        Found { requests: books.len(), charges, taken_over, settled }
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

    /// How many doubts of a run the journal has as settled.
    async fn settlements(&self, run: &str) -> usize {
        let journal = Client::new(&self.server.url).insist("GET", &format!("/v1/runs/{run}/journal"), None, "").await;
        journal.body.to_string().matches("\"settled\"").count()
    }
}

/// What was found in the end.
struct Found {
    requests: usize,
    charges: usize,
    /// Runs that a later server went on with.
    taken_over: usize,
    /// Doubts that were settled by asking the bank.
    settled: usize,
}

impl Found {
    fn print(&self, kills: usize) {
        let Self { requests, charges, taken_over, settled } = self;
        println!(
            "{kills} kills, {requests} requests, {charges} charges, {taken_over} runs taken over, {settled} doubts settled: \
             nothing lost, nothing doubled"
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
    let found = load.judge().await;
    found.print(KILLS);
    assert!(found.taken_over > 0 && found.settled > 0, "no kill hit anything: {} runs", found.requests);
}

/// The same for as long as `cargo xtask soak` asks for, at moments that nobody chose; otherwise a few kills at once after one
/// another. Between them other processes come to the file, and the server is stopped and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn w01_l12_kills_by_time_under_load() {
    let minutes: u64 = std::env::var("WINDLASS_SOAK_MINUTES").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let (mut load, mut dice, mut kills) = (Load::start(11), Dice(11), 0);
    while kills < 3 || Instant::now() < end {
        // Any moment must do, also one in which it has only begun to recover.
        match minutes {
            0 => load.accepts(dice.below(CLIENTS)).await,
            _ => tokio::time::sleep(Duration::from_millis(dice.below(1_500))).await,
        }
        match dice.below(3) {
            0 => load.beside(&mut dice),
            1 => {
                let most = if minutes == 0 { 1 } else { 500 };
                load.stands_still(Duration::from_millis(dice.below(most)), &mut dice).await;
            }
            _ => {}
        }
        load.kill();
        kills += 1;
    }
    load.judge().await.print(kills);
}
