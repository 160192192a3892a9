// A chat across three nodes, one of which is killed under its page; messages of PostgreSQL; the start and the end of
// the recipe.
"use strict";

const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");
const { EXAMPLES, PATIENCE_MS, assert, browse, guarded, lastingAddress, marked, spawnMarked, start } = require("./lib.cjs");

const RUN = `${EXAMPLES}/cluster/run`;
const NATS_SERVER = process.env.TEST_NATS;

/** Waits until `isSo` is true. */
async function until(what, isSo) {
  const end = Date.now() + PATIENCE_MS;
  while (!await isSo()) {
    assert.ok(Date.now() < end, `waited in vain until ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

/** Runs a program to its end. */
async function output(program, args, env = {}) {
  const child = spawnMarked(program, args, env, ["ignore", "pipe", "pipe"]);
  const [out, errors] = [[], []];
  child.stdout.on("data", (bytes) => out.push(bytes));
  child.stderr.on("data", (bytes) => errors.push(bytes));
  const code = await new Promise((done, failed) => child.on("error", failed).on("close", done));
  return { code, out: Buffer.concat(out).toString(), errors: Buffer.concat(errors).toString() };
}

async function shell(command) {
  const { code, out, errors } = await output("sh", ["-c", command]);
  assert.equal(code, 0, `${command}: ${errors}`);
  return out.trim();
}

/** Presses Ctrl-C: all processes end, and no file stays behind. */
async function interrupt(cluster, folder) {
  cluster.child.kill("SIGINT");
  assert.equal(await cluster.child.ended, 130);
  await until("all processes have ended", () => marked().length === 0);
  assert.deepEqual(fs.readdirSync(folder), []);
}

async function threeNodes(folder) {
  // Node a comes back at its earlier ports.
  const ports = [];
  while (ports.length < 2) ports.push((await lastingAddress()).split(":")[1]);
  ports.push(0, 0, 0, 0);
  const cluster = start(RUN, [], { NATS_SERVER, PORT: "0", PORTS: ports.join(" "), TMPDIR: folder });
  const [psql, ...urls] = await Promise.all([/^ {2}(\S*psql .*)$/, ...["a", "b", "c"].map((name) =>
    new RegExp(`^  node ${name} +(http:\\S+[?]\\S+)`))].map(cluster.find));
  await browse(null, async (open) => {
    await talk({ open, urls, psql });
    await interrupt(cluster, folder);
  });
}

async function talk({ open, urls, psql }) {
  const isAt = (page, names) => page.waitForFunction((names) =>
    document.getElementById("link").dataset.state === "live" && new RegExp(`^At node [${names}]$`).test(document.getElementById("link").textContent), names);
  const say = async (page, text) => {
    await page.fill("#text", text);
    await page.keyboard.press("Enter");
  };
  /** Waits until the function `read` gives this text in a page. */
  const shows = (page, read, want) => page.waitForFunction(`(${read})() === ${JSON.stringify(JSON.stringify(want))}`)
    .catch(async (error) => assert.deepEqual(JSON.parse(await page.evaluate(read)), want, error.message));
  const texts = () => JSON.stringify([...document.querySelectorAll("#log li:not(.notice)")].map((line) =>
    `${line.dataset.state} ${line.children[0].textContent}: ${line.children[1].textContent}`));
  const people = () => JSON.stringify([...document.querySelectorAll("#nodes p"), document.getElementById("here")].map((it) => it.textContent));
  const pages = await Promise.all(urls.map(open));
  const [alice, bob, carol] = pages;
  const said = [];
  const all = async (line, act) => {
    said.push(`said ${line}`);
    await act();
    for (const page of pages) await shows(page, texts, said);
  };
  const arePresent = (...want) => Promise.all(pages.map((page) => shows(page, people, want)));

  await Promise.all(["a", "b", "c"].map((name, n) => isAt(pages[n], name)));
  await arePresent("alice", "bob", "carol", "alice, bob, carol");
  await all("alice: one", () => say(alice, "one"));
  await all("bob: <b>two</b>", () => say(bob, "<b>two</b>"));
  await all("carol: three", () => say(carol, "three"));
  await all("the app: paid", () => shell(psql));
  // If a node died between publish and delete, another one would publish the row again.
  const rows = psql.replace(/ -c .*/, ' -At -c "SELECT count(*) FROM throng.outbox"');
  await until("the outbox is empty", async () => await shell(rows) === "0");

  // Alice's message arrives once although her node dies.
  await Promise.all([bob.click("[aria-label='Kill node a']"), all("alice: four", () => say(alice, "four"))]);
  await isAt(alice, "bc");
  await alice.waitForSelector("#log .notice");
  const at = await alice.textContent("#link");
  const atB = at === "At node b";
  await arePresent("–", atB ? "alice, bob" : "bob", atB ? "carol" : "alice, carol", "alice, bob, carol");
  await all("carol: five", () => say(carol, "five"));
  await all("alice: six", () => say(alice, "six"));
  // Another node now drains the outbox.
  await all("the app: paid", () => shell(psql));
  assert.equal(await alice.textContent("#link"), at);

  await alice.click("[aria-label='Start node a']");
  await carol.waitForSelector("[data-node=a][data-state=up]");
  const dave = await open(urls[0].replace("alice", "dave"));
  await isAt(dave, "a");
  pages.push(dave);
  await arePresent("dave", atB ? "alice, bob" : "bob", atB ? "carol" : "alice, carol", "alice, bob, carol, dave");
  await say(dave, "seven");
  await shows(dave, texts, ["said dave: seven"]);
  await say(carol, "eight");
  await shows(dave, texts, ["said dave: seven", "said carol: eight"]);
  for (const page of [alice, bob, carol]) await shows(page, texts, [...said, "said dave: seven", "said carol: eight"]);
}

/** One node, on a machine without PostgreSQL. */
async function withoutPostgres(folder) {
  const cluster = start(RUN, ["1"], { NATS_SERVER, POSTGRES_BIN: "", PORT: "0", PORTS: "0", TMPDIR: folder });
  const [url, last] = await Promise.all([/^ {2}node a +(http:\S+[?]\S+)/, /(Ctrl-C)/].map(cluster.find));
  const response = await fetch(new URL("/nodes", url), { signal: AbortSignal.timeout(PATIENCE_MS) });
  assert.deepEqual((await response.json()).map(({ name }) => name), ["a"]);
  assert.equal(last, "Ctrl-C");
  // Pages of other sites can't call this.
  const foreign = await fetch(new URL("/kill", url), {
    method: "POST", body: '{"node":"a"}', headers: { "Sec-Fetch-Site": "cross-site" }, signal: AbortSignal.timeout(PATIENCE_MS),
  });
  assert.equal(foreign.status, 404);
  await interrupt(cluster, folder);
}

/** Errors print a remedy, and leave no process behind. */
async function refusals(folder) {
  const cases = [
    [["four"], {}, /usage: examples\/cluster\/run/],
    [["1"], { THRONG_BIN: "/nowhere/throng" }, /THRONG_BIN names \/nowhere\/throng/],
    [["1"], { NATS_SERVER: "", PATH: withoutNats(folder) }, /nats-server is not there\. Install it: apt install/],
    [["1"], { POSTGRES_BIN: "/nowhere" }, /POSTGRES_BIN names \/nowhere, which lacks/],
    [["1"], { NATS_SERVER: "/bin/false" }, /nats-server does not start:/],
    [["1"], { PORTS: "1 2 3" }, /PORTS has a client and an admin port for each node, 2 in all/],
    [["1"], { PORTS: "65536 0" }, /PORTS has/],
    [["1"], { THRONG_BIN: "/bin/false" }, /node a does not start:/],
  ];
  for (const [args, env, message] of cases) {
    const { code, errors } = await output(RUN, args, { NATS_SERVER, POSTGRES_BIN: "", PORT: "0", PORTS: "0", TMPDIR: folder, ...env });
    assert.match(errors, message);
    assert.equal(code, 1, errors);
  }
  await until("all processes have ended", () => marked().length === 0);
  assert.deepEqual(fs.readdirSync(folder), ["programs"]);
}

/** Returns a folder with the programs that the script needs before NATS. */
function withoutNats(folder) {
  const programs = path.join(folder, "programs");
  fs.mkdirSync(programs);
  for (const name of ["bash", "dirname", "env", "realpath"]) {
    const found = process.env.PATH.split(":").map((each) => path.join(each, name)).find((each) => fs.existsSync(each));
    fs.symlinkSync(found, path.join(programs, name));
  }
  return programs;
}

const folder = fs.mkdtempSync(path.join(os.tmpdir(), "throng-recipe-"));
// PostgreSQL runs as another user if this runs as root, and has its data below this folder.
fs.chmodSync(folder, 0o755);
guarded(async () => {
  await threeNodes(folder);
  await withoutPostgres(folder);
  await refusals(folder);
}).catch((error) => { console.error(error); process.exitCode = 1; })
  .finally(() => fs.rmSync(folder, { recursive: true, force: true }));
