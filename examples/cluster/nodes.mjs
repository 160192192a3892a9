// Starts the nodes, kills or restarts one when the page calls for it, and serves the page. `run` runs this file.
import { spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { serve } from "../application/application.mjs";

const { COUNT, FOLDER, NATS_URL, OUTBOX_URL, PSQL, THRONG_BIN } = process.env;
const NAMES = ["a", "b", "c"].slice(0, Number(COUNT));
/** How long the nodes may take to make the schema of the outbox. */
const OUTBOX_MS = 60_000;
const PEOPLE = { a: "alice", b: "bob", c: "carol" };

/** The client and the admin port of each node: 8000 and 8001, 8010 and 8011, 8020 and 8021. */
function ports() {
  const named = (process.env.PORTS ?? "").split(/[\s,]+/).filter(Boolean).map(Number);
  const all = NAMES.flatMap((_, n) => [8000 + 10 * n, 8001 + 10 * n]);
  if (named.length === 0) return all;
  if (named.length === 1 && named[0] === 0) return all.map(() => 0);
  const areSound = named.every(port => Number.isInteger(port) && port >= 0 && port <= 65_535);
  if (named.length !== all.length || !areSound) {
    throw new Error(`PORTS has a client and an admin port for each node, ${all.length} in all (PORTS="${all.join(" ")}"), or is 0`);
  }
  return named;
}

/** A node: its addresses, which stay the same, and its process, if it runs. */
class Node {
  constructor(name, client, admin) {
    Object.assign(this, { name, client: `127.0.0.1:${client}`, admin: `127.0.0.1:${admin}`, process: null });
  }

  /** Starts the node, and waits until clients can connect. */
  async start() {
    if (this.process) throw new Error(`node ${this.name} is there`);
    const log = `${FOLDER}/${this.name}.log`;
    const config = fileURLToPath(new URL("throng.toml", import.meta.url));
    const args = ["serve", "--config", config, "--listen", this.client, "--admin", this.admin, "--cluster", NATS_URL, "--shards", "1"];
    // A killed server leaves the folder of its sockets behind.
    const env = { ...process.env, THRONG_CLUSTER_NODE: this.name, TMPDIR: FOLDER };
    if (OUTBOX_URL) env.THRONG_OUTBOX_URL = OUTBOX_URL;
    const errors = openSync(log, "a");
    const child = spawn(THRONG_BIN, args, { env, stdio: ["ignore", "pipe", errors], detached: true });
    closeSync(errors);
    this.process = child;
    this.ended = new Promise(done => child.on("error", done).on("exit", done)).then(() => (this.process = null));
    const found = {};
    const ready = new Promise(done => createInterface({ input: child.stdout }).on("line", line => {
      const [, label, address] = /^ {2}(clients|applications) +http:\/\/([0-9.:]+)/.exec(line) ?? [];
      if (label) found[label] = address;
      if (found.clients && found.applications) done(found);
    }));
    if (!await Promise.race([ready, this.ended])) {
      throw new Error(`node ${this.name} does not start:\n${readFileSync(log, "utf8").trim().split("\n").slice(-5).join("\n")}`);
    }
    [this.client, this.admin] = [found.clients, found.applications];
  }

  /** Kills the node like a crash: it can't notify its clients. */
  async kill() {
    this.process?.kill("SIGKILL");
    await this.ended;
  }
}

const all = ports();
const nodes = NAMES.map((name, n) => new Node(name, all[2 * n], all[2 * n + 1]));
const named = ({ node }) => nodes.find(({ name }) => name === node) ?? fail(`there is no node ${JSON.stringify(node)}`);
const state = () => nodes.map(({ name, client, process }) => ({ name, url: `ws://${client}`, pid: process?.pid ?? null }));

function fail(message) {
  throw new Error(message);
}

async function end(code) {
  await Promise.all(nodes.map(node => node.kill()));
  process.exit(code);
}
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => end(0));
process.on("exit", () => nodes.forEach(node => node.process?.kill("SIGKILL")));

/** Waits until a node has made the schema and drains the outbox. */
async function untilDraining() {
  for (const end = Date.now() + OUTBOX_MS; ;) {
    const replies = await Promise.all(nodes.map(async ({ admin }) => (await fetch(`http://${admin}/api/outbox`)).json()));
    if (replies.some(({ draining }) => draining)) return;
    if (Date.now() > end) throw new Error(`no node publishes from the outbox: ${replies[0].error}`);
    await new Promise(done => setTimeout(done, 50));
  }
}

function instructions(url) {
  const line = (label, rest) => `  ${label.padEnd(8)}${rest}`;
  const pages = nodes.map(({ name }) => line(`node ${name}`, `${url}?node=${name}&as=${PEOPLE[name]}`));
  const dashboards = nodes.map(({ name, admin, process }) => line(`node ${name}`, `http://${admin}   kill -9 ${process.pid}`));
  const publish = `SELECT throng.publish('room:lobby', '{"text":"paid"}')`;
  return [
    `Open ${nodes.length > 1 ? "these pages, each in a window of its own" : "this page"}, and talk:`, "", ...pages, "",
    "Kill a node in a page, or here: its people go on at another one. Each node has a dashboard:", "", ...dashboards, "",
    ...PSQL ? ["Publish in your own transaction, in PostgreSQL:", "", `  ${PSQL} -c "${publish.replaceAll('"', '\\"')}"`, ""] : [],
    "Publish by the API, at any node:", "",
    `  curl http://${nodes.at(-1).admin}/api/publish -d '{"topic":"room:lobby","data":{"text":"hello"}}'`, "",
    `Logs are in ${FOLDER}, which goes at the end. Ctrl-C ends it all.`,
  ].join("\n");
}

try {
  await Promise.all(nodes.map(node => node.start()));
  if (OUTBOX_URL) await untilDraining();
  const calls = {
    "GET /nodes": state,
    "POST /kill": async body => (await named(body).kill(), state()),
    "POST /start": async body => (await named(body).start(), state()),
  };
  serve(import.meta.url, calls, url => console.log(instructions(url))).on("error", error => {
    console.error(`The page can't be served: ${error.message}. Another port: PORT=3001`);
    end(1);
  });
} catch (error) {
  console.error(error.message);
  await end(1);
}
