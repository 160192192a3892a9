// What the scenarios share: clients of each version and serializer, listeners of other transports,
// the API, and a way to run one scenario by its name.
"use strict";

const assert = require("node:assert/strict");
const readline = require("node:readline");
const WebSocket = require("ws");

// What the client's long poll needs of a browser's: a request that can be aborted.
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

// The client looks for these when it is loaded.
global.XMLHttpRequest = XMLHttpRequest;
global.window = global;

const latest = require("phoenix");
const old = require("phoenix15");

// Everything that a scenario waits for comes sooner than this, or the scenario fails.
const PATIENCE_MS = 15000;

// The client's own encoder writes arrays (version 2); objects are version 1's form.
const V1 = {
  vsn: "1.0.0",
  encode: (message, done) => done(JSON.stringify(message)),
  decode: (raw, done) => done(JSON.parse(raw)),
};

// `binary`: the client can send and read bytes.
const KINDS = [
  { name: "new-v2", phoenix: latest, options: {}, binary: true },
  { name: "new-v1", phoenix: latest, options: V1, binary: false },
  { name: "old-v2", phoenix: old, options: {}, binary: false },
  { name: "old-v1", phoenix: old, options: V1, binary: false },
];
const LATEST = KINDS[0];
// The client's long poll has version 2 only, whatever encoder it is given.
const POLLED = KINDS.filter((kind) => kind.options !== V1);

// Where the server is: given at the start, or told later.
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

// Keeps what comes, as [event, payload], for who asks later.
class Ear {
  heard = [];
  hear(event, payload) {
    this.heard.push([event, payload]);
  }
  // The oldest payload of an event that was not taken yet.
  async next(event) {
    const of = ([name]) => name === event;
    await until(`${event} is heard; heard: ${JSON.stringify(this.heard)}`, () => this.heard.some(of));
    return this.heard.splice(this.heard.findIndex(of), 1)[0][1];
  }
  all(event) {
    return this.heard.filter(([name]) => name === event).map(([, payload]) => payload);
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

const settled = (push, what) =>
  new Promise((done, failed) => {
    for (const status of ["ok", "error"]) {
      push.receive(status, (response) => done({ status, response }));
    }
    push.receive("timeout", () => failed(new Error(`${what} was not answered`)));
  });

// Joins and gives the channel, its `ear` and the join's `answer`; `joins` counts every join.
async function tryJoin(socket, topic, payload = {}) {
  const channel = socket.channel(topic, payload);
  channel.ear = new Ear();
  channel.joins = 0;
  channel.onMessage = (event, payload) => {
    // Replies have names of the client's own, and a timeout has none.
    if (event && !/^(chan|phx)_reply/.test(event)) channel.ear.hear(event, payload);
    return payload;
  };
  const push = channel.join();
  push.receive("ok", () => (channel.joins += 1));
  channel.answer = await settled(push, `the join of ${topic}`);
  return channel;
}

async function join(socket, topic, payload) {
  const channel = await tryJoin(socket, topic, payload);
  assert.equal(channel.answer.status, "ok", `${topic}: ${JSON.stringify(channel.answer)}`);
  return channel;
}

const push = (channel, event, payload) => settled(channel.push(event, payload), `${event} to ${channel.topic}`);
const leave = (channel) => settled(channel.leave(), `the leave of ${channel.topic}`);
const disconnect = (socket) => new Promise((done) => socket.disconnect(done));
const OK = { status: "ok", response: {} };
const refused = (reason) => ({ status: "error", response: { reason } });
const bytes = (...of) => new Uint8Array(of).buffer;

// A lasting GET: lines of an HTTP stream as objects, events of an event stream.
async function listen(path) {
  const ear = new Ear();
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
  const object = (line) => ear.hear(line.event ?? line.type, line);
  const event = (text) => {
    const fields = text.split("\n").map((line) => line.split(/: ?(.*)/s));
    const of = (name) => fields.filter(([key]) => key === name).map(([, value]) => value);
    if (of("data").length) ear.hear(of("event")[0] ?? "message", of("data").join("\n"));
  };
  read().catch(() => {});
  ear.close = () => stop.abort();
  return ear;
}

// A plain WebSocket: messages by their event, everything else by its type.
function listenWs(query) {
  const ear = new Ear();
  const socket = new WebSocket(`ws://${server.client}/ws?${query}`);
  socket.on("message", (data, isBinary) => {
    if (isBinary) return ear.hear("binary", data);
    const message = JSON.parse(data);
    ear.hear(message.event ?? message.type, message);
  });
  socket.on("error", () => {});
  ear.send = (command) => socket.send(JSON.stringify(command));
  ear.close = () => socket.close();
  return ear.next("welcome").then(() => ear);
}

async function json(url, options) {
  const response = await fetch(url, options);
  const text = await response.text();
  return { status: response.status, body: text ? JSON.parse(text) : null };
}

// A call of the API that must succeed.
async function api(path, body) {
  const headers = { "Content-Type": "application/json" };
  const options = body && { method: "POST", headers, body: JSON.stringify(body) };
  const answer = await json(`http://${server.admin}/api/${path}`, options);
  assert.equal(answer.status, 200, `${path}: ${JSON.stringify(answer.body)}`);
  return answer.body;
}

const publish = (topic, data, more = {}) => api("publish", { topic, data, ...more });
const members = async (topic) =>
  (await json(`http://${server.admin}/api/topics/${topic}`)).body?.members ?? 0;
const presence = async (topic) =>
  (await json(`http://${server.client}/presence?topic=${topic}`)).body;

// With every kind of client at a time.
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

const tell = (value) => console.log(JSON.stringify(value));
let lines;
const told = async () => {
  lines ??= readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
  return JSON.parse((await lines.next()).value);
};

// Runs the scenario that the command line names.
function run(scenarios) {
  const [name, given] = process.argv.slice(2);
  Object.assign(server, JSON.parse(given ?? "{}"));
  const fail = (error) => {
    console.error(`${name}: ${error.stack}`);
    process.exit(1);
  };
  process.on("uncaughtException", fail);
  process.on("unhandledRejection", fail);
  if (!scenarios[name]) fail(new Error("there is no such scenario"));
  scenarios[name]().then(() => {
    tell({ done: name });
    process.exit(0);
  }, fail);
}

module.exports = {
  assert, WebSocket, KINDS, POLLED, LATEST, OK, Ear, server, sleep, until, connect, tryJoin, join, push,
  leave, disconnect, refused, bytes, listen, listenWs, json, api, publish, members, presence, each,
  tell, told, run,
};
