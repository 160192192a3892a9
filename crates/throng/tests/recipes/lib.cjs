// Runs a recipe as a reader does: the server with the recipe's configuration, the application, and a browser. The
// test can stop the server and start it again.
"use strict";

const assert = require("node:assert/strict");
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const net = require("node:net");
const os = require("node:os");
const path = require("node:path");
const { pathToFileURL } = require("node:url");
const readline = require("node:readline");
const { chromium } = require("../phoenix/node_modules/playwright-core");

const EXAMPLES = path.resolve(__dirname, "../../../../examples");
const PATIENCE_MS = 60_000;
// A recipe fails when it takes longer than this.
const RECIPE_MS = 5 * PATIENCE_MS;

const running = [];
// All processes of the recipe have this in their environment, also a server that replaces another one.
const MARK = `TEST_MARK=recipe-${process.pid}`;

/** Returns the running processes with the mark. */
function marked() {
  return fs.readdirSync("/proc").filter((name) => {
    try {
      return /^[0-9]+$/.test(name) && fs.readFileSync(`/proc/${name}/environ`, "latin1").split("\0").includes(MARK);
    } catch {
      // The process has ended, or belongs to another user.
      return false;
    }
  }).map(Number);
}

/** Ends all processes of the recipe. */
function end() {
  for (const child of running) child.kill("SIGKILL");
  for (const pid of marked()) {
    try {
      process.kill(pid, "SIGKILL");
    } catch {
      // The process has ended.
    }
  }
}

// A test runner ends a test by a signal if it takes too long.
process.on("SIGTERM", () => {
  end();
  process.exit(143);
});

function spawnMarked(program, args, env, stdio) {
  const [mark, value] = MARK.split("=");
  return spawn(program, args, { env: { ...process.env, ...env, [mark]: value }, stdio });
}

/** Starts a program and returns a reader of its lines. */
function start(program, args, env) {
  const child = spawnMarked(program, args, env, ["ignore", "pipe", "inherit"]);
  running.push(child);
  const lines = readline.createInterface({ input: child.stdout });
  child.ended = new Promise((done) => child.on("exit", done));
  const find = (pattern) =>
    new Promise((done, failed) => {
      const timer = setTimeout(() => failed(new Error(`${program} ${args}: no line like ${pattern}`)), PATIENCE_MS);
      lines.on("line", (line) => {
        const found = pattern.exec(line);
        if (found) (clearTimeout(timer), done(found[1]));
      });
      child.ended.then((code) => (clearTimeout(timer), failed(new Error(`${program} ${args} ended with ${code}`))));
    });
  return { child, find };
}

/** Returns an address below the kernel's ephemeral ports, which stays free while the server is away. */
let tried = 0;
async function lastingAddress() {
  for (;;) {
    const port = 20_000 + (process.pid * 13 + tried++) % 12_000;
    const probe = net.createServer();
    const isFree = await new Promise((done) => probe.once("error", () => done(false)).listen(port, "127.0.0.1", () => done(true)));
    await new Promise((done) => probe.close(done));
    if (isFree) return `127.0.0.1:${port}`;
  }
}

class Throng {
  constructor(args) {
    this.args = args;
    this.folder = fs.mkdtempSync(path.join(os.tmpdir(), "throng-recipe-"));
    this.data = path.join(this.folder, "data");
  }
  /** Starts the server, at the same addresses each time. */
  async up() {
    this.client ??= await lastingAddress();
    this.admin ??= await lastingAddress();
    const args = ["serve", "--listen", this.client, "--admin", this.admin, "--data", this.data, ...this.args];
    // A killed server leaves the folder of its sockets behind.
    this.process = start(process.env.THRONG_BIN, args, { TMPDIR: this.folder });
    const [client, admin] = ["clients", "applications"].map((label) =>
      this.process.find(new RegExp(`^\\s*${label}.*?http://([0-9.:]+)`)));
    [this.client, this.admin] = [await client, await admin];
  }
  /** Kills the server, which can't notify its clients. */
  async down() {
    this.process.child.kill("SIGKILL");
    await this.process.child.ended;
  }
  /** Stops the server's process with all its connections. */
  pause() {
    this.process.child.kill("SIGSTOP");
  }
  resume() {
    this.process.child.kill("SIGCONT");
  }
  /** Replaces the server by a new process. */
  async upgrade() {
    const child = spawnMarked(process.env.THRONG_BIN, ["upgrade", "--admin", `http://${this.admin}`], {}, ["ignore", "ignore", "inherit"]);
    const code = await new Promise((done, failed) => child.on("error", failed).on("exit", done));
    assert.equal(code, 0, "throng upgrade");
  }
  /** Removes the server's data. */
  forget() {
    fs.rmSync(this.data, { recursive: true });
  }
  async api(method, target, body) {
    const response = await fetch(`http://${this.admin}${target}`, {
      method, body: body && JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE_MS),
    });
    const result = await response.json();
    assert.ok(response.ok, `${target}: ${JSON.stringify(result)}`);
    return result;
  }
}

/** Runs a scenario, and ends all processes afterwards, also when it takes too long. */
async function guarded(scenario) {
  setTimeout(() => {
    console.error("the recipe does not end");
    end();
    process.exit(1);
  }, RECIPE_MS).unref();
  try {
    await scenario();
  } finally {
    end();
  }
}

/** Runs a scenario with a browser: `open` opens a URL in a page of its own, in which `prepare` runs before its own scripts. */
async function browse(prepare, scenario) {
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    timeout: PATIENCE_MS,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic"],
  });
  try {
    const context = await browser.newContext();
    if (prepare) await context.addInitScript(prepare);
    context.setDefaultTimeout(PATIENCE_MS);
    await scenario(async (url) => {
      const page = await context.newPage();
      page.on("pageerror", (error) => { throw new Error(`in the page: ${error}`); });
      await page.goto(url);
      return page;
    });
    const shots = process.env.RECIPE_SHOTS;
    if (shots) for (const [n, page] of context.pages().entries()) await page.screenshot({ path: `${shots}-${n}.png` });
  } finally {
    await browser.close();
  }
}

/**
 * Runs one recipe's scenario: `scenario({ throng, open, url })`. `application` is a file of its folder, or a page
 * that is opened as a file and gets the server's address. `prepare` runs in each page before its own scripts.
 */
async function run(args, application, env, scenario, prepare) {
  const throng = new Throng(args);
  await guarded(async () => {
    await throng.up();
    let url = `http://${throng.client}/`;
    if (application?.endsWith(".html")) {
      url = `${pathToFileURL(path.join(EXAMPLES, application))}?server=ws://${throng.client}`;
    } else if (application) {
      const settings = { PORT: "0", THRONG_URL: `http://${throng.client}`, THRONG_API: `http://${throng.admin}`, ...env };
      url = await start("node", [path.join(EXAMPLES, application)], settings).find(/^Open (http:\S+)/);
    }
    await browse(prepare, (open) => scenario({ throng, open: (query = "") => open(url + query), url }));
  }).finally(() => fs.rmSync(throng.folder, { recursive: true, force: true }));
}

module.exports = { EXAMPLES, PATIENCE_MS, assert, browse, guarded, lastingAddress, marked, run, spawnMarked, start };
