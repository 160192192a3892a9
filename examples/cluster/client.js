// A connection to one of several nodes, over /ws. When the node is gone, it connects to another one.

/** How often the page pings its node. A node that sends nothing between two pings counts as dead. */
const PING_MS = 10_000;
/** When a node dies, its clients connect to the others spread over this time. */
const SPREAD_MS = 300;
const WAIT_MS_MAX = 30_000;
/** 4000: the application closed it. After the others the same error would happen at each node. See docs/errors.md. */
const FINAL_CODES = [1002, 1007, 1009, 4000];

/** Returns the items in random order. */
function shuffled(items) {
  const rest = [...items], out = [];
  while (rest.length) out.push(...rest.splice(Math.floor(Math.random() * rest.length), 1));
  return out;
}

/**
 * `nodes` are `{ name, url }`. `on` has `connected(node)`, `lost(node)`, `closed(code)` and `message(message)`.
 * Presence shows the others of the topic at which node the user is.
 */
export class Client {
  #nodes; #user; #topic; #on;
  #socket; #node; #next = []; #failures = 0; #isSilent; #timer;
  #pending = new Map(); // Commands that wait for their reply, by id.
  #id = 0;

  constructor({ nodes, first, user, topic, on }) {
    [this.#nodes, this.#user, this.#topic, this.#on] = [nodes, user, topic, on];
    if (first) this.#next = [first];
    this.#connect();
  }

  /** Sends a command. Returns its `ok`, or throws its `error`; null if the connection ends before. */
  request(command) {
    return new Promise((resolve, reject) => {
      if (this.#socket?.readyState !== WebSocket.OPEN) return reject(null);
      const id = ++this.#id;
      this.#pending.set(id, { resolve, reject });
      this.#socket.send(JSON.stringify({ ...command, id, topic: this.#topic }));
    });
  }

  #connect() {
    // The lost node comes last.
    if (!this.#next.length) this.#next = [...shuffled(this.#nodes.filter(node => node !== this.#node)), ...this.#node ? [this.#node] : []];
    this.#node = this.#next.shift();
    this.#isSilent = false;
    const socket = this.#socket = new WebSocket(`${this.#node.url}/ws?user=${encodeURIComponent(this.#user)}`);
    socket.onopen = () => this.#enter();
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = ({ code }) => this.#lost(code);
    this.#timer = setInterval(() => this.#ping(), PING_MS);
  }

  /** A machine that loses its power closes no connection: only its silence shows it. */
  #ping() {
    if (this.#isSilent) return this.#lost();
    this.#isSilent = true;
    this.request({ type: "ping" }).catch(() => {});
  }

  async #enter() {
    const node = this.#node;
    try {
      await this.request({ type: "subscribe", meta: { node: node.name } });
      [this.#failures, this.#next] = [0, []];
      this.#on.connected(node);
    } catch (error) {
      if (error) this.#lost();
    }
  }

  #receive(message) {
    this.#isSilent = false;
    if (message.type === "message" && message.topic === this.#topic) this.#on.message(message);
    if (message.type !== "reply") return;
    const { resolve, reject } = this.#pending.get(message.id) ?? {};
    this.#pending.delete(message.id);
    if (message.ok) resolve?.(message.ok); else reject?.(message.error);
  }

  #lost(code) {
    clearInterval(this.#timer);
    Object.assign(this.#socket, { onopen: null, onmessage: null, onclose: null }).close();
    this.#pending.forEach(({ reject }) => reject(null));
    this.#pending.clear();
    if (FINAL_CODES.includes(code)) return this.#on.closed(code);
    if (this.#failures === 0) this.#on.lost(this.#node);
    // The first round of all nodes is quick. Later rounds wait 1, 2, 4, … seconds, each a quarter more or less.
    const rounds = Math.floor(this.#failures++ / this.#nodes.length);
    const wait = rounds ? Math.min(WAIT_MS_MAX, 1000 * 2 ** (rounds - 1)) * (0.75 + Math.random() / 2) : Math.random() * SPREAD_MS;
    setTimeout(() => this.#connect(), wait);
  }
}
