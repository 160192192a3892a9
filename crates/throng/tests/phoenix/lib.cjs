// Helpers of the scenarios: clients of each version and serializer, listeners of other transports,
// the API, and a way to run one scenario by its name.
"use strict";

const assert = require("node:assert/strict");
const readline = require("node:readline");
const WebSocket = require("ws");

// The client's long poll needs this part of a browser's XMLHttpRequest: a request that can be aborted.
class XMLHttpRequest {
  readyState = 0;
  responseText = "";
  #headers = {};
  #stop = new AbortController();
  open(method, url) {
    Object.assign(this, { method, url });
  }
  setRequestHeader(name, value) {
    this.#headers[name] = value;
  }
  send(body) {
    const { method, url, timeout } = this;
    const timer = timeout && setTimeout(() => (this.abort(), this.ontimeout?.()), timeout);
    const done = (status, text) => {
      clearTimeout(timer);
      if (this.#stop.signal.aborted) return;
      Object.assign(this, { readyState: 4, status, responseText: text });
      this.onreadystatechange?.();
    };
    const options = { method, headers: this.#headers, body, signal: this.#stop.signal };
    fetch(url, options)
      .then(async (response) => done(response.status, await response.text()))
      .catch(() => (done(0, ""), this.onerror?.()));
  }
  abort() {
    this.#stop.abort();
  }
}

// The client reads these when it is loaded.
global.XMLHttpRequest = XMLHttpRequest;
global.window = global;

const latest = require("phoenix");
const old = require("phoenix15");

// A scenario fails when it waits longer than this.
const PATIENCE_MS = 60_000;
// A scenario is ended when all of it takes longer than this.
const SCENARIO_MS = 5 * PATIENCE_MS;

// The client's own encoder writes arrays (version 2). Version 1 has objects.
const V1 = {
  vsn: "1.0.0",
  encode: (message, done) => done(JSON.stringify(message)),
  decode: (raw, done) => done(JSON.parse(raw)),
};

// `binary`: the client can send and receive bytes.
const KINDS = [
  { name: "new-v2", phoenix: latest, options: {}, binary: true },
  { name: "new-v1", phoenix: latest, options: V1, binary: false },
  { name: "old-v2", phoenix: old, options: {}, binary: false },
  { name: "old-v1", phoenix: old, options: V1, binary: false },
];
const LATEST = KINDS[0];
// The client's long poll only supports version 2, whatever encoder it has.
const POLLED = KINDS.filter((kind) => kind.options !== V1);

// The server's addresses: given at the start, or sent later.
const server = {};

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function until(what, so) {
  const end = Date.now() + PATIENCE_MS;
  for (;;) {
    const value = await so();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited in vain until ${what}`);
    await sleep(10);
  }
}

// Collects events as [event, payload].
class Inbox {
  events = [];
  receive(event, payload) {
    this.events.push([event, payload]);
  }
  // Takes the oldest payload of an event.
  async next(event) {
    const of = ([name]) => name === event;
    await until(`${event} has arrived; received: ${JSON.stringify(this.events)}`, () => this.events.some(of));
    return this.events.splice(this.events.findIndex(of), 1)[0][1];
  }
  all(event) {
    return this.events.filter(([name]) => name === event).map(([, payload]) => payload);
  }
}

function connect(kind, { user, url = `ws://${server.client}/socket`, transport, ...options } = {}) {
  const socket = new kind.phoenix.Socket(url, {
    ...kind.options,
    transport: transport === "longpoll" ? kind.phoenix.LongPoll : (transport ?? WebSocket),
    params: user ? { user } : {},
    reconnectAfterMs: () => 50,
    rejoinAfterMs: () => 50,
    timeout: PATIENCE_MS,
    ...options,
  });
  socket.closes = [];
  socket.onClose((event) => socket.closes.push(event?.code));
  socket.connect();
  return socket;
}

// Sends a heartbeat every `everyMs` milliseconds. With the client's own heartbeats, a reply that takes longer than
// the interval closes the socket, which happens on busy machines.
function sendHeartbeats(socket, everyMs) {
  const beat = () => socket.push({ topic: "phoenix", event: "heartbeat", payload: {}, ref: socket.makeRef() });
  setInterval(() => socket.isConnected() && beat(), everyMs).unref();
}

const settled = (push, what) =>
  new Promise((done, failed) => {
    for (const status of ["ok", "error"]) {
      push.receive(status, (response) => done({ status, response }));
    }
    push.receive("timeout", () => failed(new Error(`${what} got no reply`)));
  });

// Joins and returns the channel, with its `inbox` and the join's `reply`. `joins` counts all joins.
async function tryJoin(socket, topic, payload = {}) {
  const channel = socket.channel(topic, payload);
  channel.inbox = new Inbox();
  channel.joins = 0;
  channel.onMessage = (event, payload) => {
    // Replies have internal names of the client, and a timeout has none.
    if (event && !/^(chan|phx)_reply/.test(event)) channel.inbox.receive(event, payload);
    return payload;
  };
  const push = channel.join();
  push.receive("ok", () => (channel.joins += 1));
  channel.reply = await settled(push, `the join of ${topic}`);
  return channel;
}

async function join(socket, topic, payload) {
  const channel = await tryJoin(socket, topic, payload);
  assert.equal(channel.reply.status, "ok", `${topic}: ${JSON.stringify(channel.reply)}`);
  return channel;
}

const push = (channel, event, payload) => settled(channel.push(event, payload), `${event} to ${channel.topic}`);
const leave = (channel) => settled(channel.leave(), `the leave of ${channel.topic}`);
const disconnect = (socket) => new Promise((done) => socket.disconnect(done));
const OK = { status: "ok", response: {} };
const refused = (reason) => ({ status: "error", response: { reason } });
const bytes = (...of) => new Uint8Array(of).buffer;

// A GET with a lasting response: lines of an HTTP stream as objects, events of an event stream.
async function listen(path) {
  const inbox = new Inbox();
  const stop = new AbortController();
  const response = await fetch(`http://${server.client}${path}`, { signal: stop.signal });
  assert.equal(response.status, 200, path);
  const sse = path.startsWith("/sse");
  const read = async () => {
    let rest = "";
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream())) {
      const parts = (rest + chunk).split(sse ? "\n\n" : "\n");
      rest = parts.pop();
      for (const part of parts) sse ? event(part) : part && object(JSON.parse(part));
    }
  };
  const object = (line) => inbox.receive(line.event ?? line.type, line);
  const event = (text) => {
    const fields = text.split("\n").map((line) => line.split(/: ?(.*)/s));
    const of = (name) => fields.filter(([key]) => key === name).map(([, value]) => value);
    if (of("data").length) inbox.receive(of("event")[0] ?? "message", of("data").join("\n"));
  };
  read().catch(() => {});
  inbox.close = () => stop.abort();
  return inbox;
}

// A plain WebSocket: messages by their event, everything else by its type.
function listenWs(query) {
  const inbox = new Inbox();
  const socket = new WebSocket(`ws://${server.client}/ws?${query}`);
  socket.on("message", (data, isBinary) => {
    if (isBinary) return inbox.receive("binary", data);
    const message = JSON.parse(data);
    inbox.receive(message.event ?? message.type, message);
  });
  socket.on("error", () => {});
  inbox.send = (command) => socket.send(JSON.stringify(command));
  inbox.close = () => socket.close();
  return inbox.next("welcome").then(() => inbox);
}

async function json(url, options) {
  const response = await fetch(url, { signal: AbortSignal.timeout(PATIENCE_MS), ...options });
  const text = await response.text();
  return { status: response.status, body: text ? JSON.parse(text) : null };
}

// Makes an API call that must succeed.
async function api(path, body) {
  const headers = { "Content-Type": "application/json" };
  const options = body && { method: "POST", headers, body: JSON.stringify(body) };
  const response = await json(`http://${server.admin}/api/${path}`, options);
  assert.equal(response.status, 200, `${path}: ${JSON.stringify(response.body)}`);
  return response.body;
}

// Returns the value of the line of /metrics that begins with this name.
async function metric(name) {
  const response = await fetch(`http://${server.admin}/metrics`, { signal: AbortSignal.timeout(PATIENCE_MS) });
  const line = (await response.text()).split("\n").find((line) => line.startsWith(`${name} `));
  assert.ok(line, `no metric ${name}`);
  return Number(line.slice(name.length));
}

const publish = (topic, data, more = {}) => api("publish", { topic, data, ...more });
const members = async (topic) =>
  (await json(`http://${server.admin}/api/topics/${topic}`)).body?.members ?? 0;
const presence = async (topic) =>
  (await json(`http://${server.client}/presence?topic=${topic}`)).body;

// Runs all kinds of clients at the same time.
const each = (kinds, of) =>
  Promise.all(
    kinds.map(async (kind) => {
      try {
        await of(kind);
      } catch (error) {
        error.message = `${kind.name}: ${error.message}`;
        throw error;
      }
    }),
  );

const report = (value) => console.log(JSON.stringify(value));
let lines;
const readInput = async () => {
  lines ??= readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  return JSON.parse((await lines.next()).value);
};

// Runs the scenario that the command line selects.
function run(scenarios) {
  const [name, given] = process.argv.slice(2);
  Object.assign(server, JSON.parse(given ?? "{}"));
  const fail = (error) => {
    console.error(`${name}: ${error.stack}`);
    process.exit(1);
  };
  process.on("uncaughtException", fail);
  process.on("unhandledRejection", fail);
  setTimeout(() => fail(new Error("the scenario does not end")), SCENARIO_MS).unref();
  if (!scenarios[name]) fail(new Error("there is no such scenario"));
  scenarios[name]().then(() => {
    report({ done: name });
    process.exit(0);
  }, fail);
}

module.exports = {
  PATIENCE_MS, assert, WebSocket, KINDS, POLLED, LATEST, OK, Inbox, server, sleep, until, connect,
  sendHeartbeats, tryJoin, join, push, leave, disconnect, refused, bytes, listen, listenWs, json, api, metric, publish,
  members, presence, each, report, readInput, run,
};
