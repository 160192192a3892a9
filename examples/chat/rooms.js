// The chat without its page: one Phoenix socket, a channel for each room, presence, and the messages to send. Copy
// this file for an application of your own.
import { Presence, Socket } from "./phoenix.js";
import { MESSAGE_CHARS_MAX, cleanName, cut } from "./text.js";

const LONG_POLL_AFTER_MS = 3000;
const REPLY_MS_MAX = 8000;
const TYPING_REPEAT_MS = 3000;
const TYPING_ENDS_MS = 5000;
// A user who reloads the page is back within this time, and others get no notice.
const LEFT_AFTER_MS = 4000;
// After it rejoins a room, the page shows no notices there for this time: when the server restarts, all users rejoin.
const RETURN_QUIET_MS = 10_000;
// In a crowd, notices about users are noise, and a push at each keystroke to so many is a waste.
const CROWD_USERS_MIN = 30;
const ITEMS_MAX = 600;
/** The earlier messages that a user who enters a room gets. */
const BEFORE = "last:50";
const ONE_LINE_CHARS_MAX = 60;

/** 128 random bits. `crypto.randomUUID` is missing on plain-http origins other than loopback. */
const randomId = () => Array.from(crypto.getRandomValues(new Uint32Array(4)), part => part.toString(36)).join("");

export class Rooms {
  /**
   * Calls `notify(what, room, item)` for every change: "status" (connection), "room" (its state or typists), "people",
   * "item" (a new one), "changed" (an item), "removed" (an item).
   */
  constructor(user, notify) {
    this.user = user;
    this.notify = notify;
    this.list = new Map();
    this.everOpen = false;
    this.rttMs = null;
    // A function, so that a changed name is sent with the next connection.
    this.socket = new Socket("/socket", { params: () => ({ user: this.user }), longPollFallbackMs: LONG_POLL_AFTER_MS });
    this.socket.onOpen(() => this.#opened());
    this.socket.onClose(() => this.notify("status"));
    this.socket.onError(() => this.notify("status"));
  }

  connect() { this.socket.connect(); }
  reconnect() { this.socket.disconnect(() => this.socket.connect()); }
  get isOpen() { return this.socket.isConnected(); }
  get transport() { return this.socket.transport === this.socket.getLongPollTransport() ? "long poll" : "WebSocket"; }

  rename(user) {
    if (user === this.user) return;
    for (const room of this.list.values()) this.typing(room, false);
    this.user = user;
    this.reconnect();
  }

  measure() {
    this.socket.ping(ms => { this.rttMs = ms; this.notify("status"); });
  }

  #opened() {
    this.everOpen = true;
    this.rttMs = null;
    this.socket.ping(() => {
      // Long poll is for networks where WebSocket never works. The client would also fall back, and stay there, when
      // a restarting server rejects the first attempt: so not once WebSocket has worked.
      if (this.transport === "WebSocket") this.socket.longPollFallbackMs = undefined;
    });
    // The first reply waits behind the joins, so its time says little.
    setTimeout(() => this.measure(), 1500);
    this.notify("status");
  }

  /** Joins a room, with its items from before. */
  join(name, items = []) {
    const room = this.list.get(name) ?? {
      name, topic: `room:${name}`, state: "joining", reason: "", items: [], byId: new Map(), people: [], crowd: null,
      typists: new Map(), leaving: new Map(), quietUntil: 0, unread: 0, typingSentAt: 0, last: undefined, joinedAt: Date.now(),
    };
    if (room.channel && room.state !== "closed") return room;
    this.list.set(name, room);
    for (const item of items) {
      if (item.state === "sending") item.state = "queued";
      room.last = item.position ?? room.last;
      this.#add(room, item, { quiet: true });
    }
    room.state = "joining";
    const meta = { on: matchMedia("(pointer: coarse)").matches ? "phone" : "computer" };
    // A function, so that each rejoin has the position of the last message: missed messages come first.
    const channel = room.channel = this.socket.channel(room.topic, () => ({ meta, since: room.last ?? BEFORE }));
    // Typing has its own topic, since the room's history is only for messages.
    room.typingChannel = this.socket.channel(`typing:${name}`);
    room.typingChannel.on("typing", payload => this.#typist(room, payload));
    room.typingChannel.join();
    this.#listen(room, channel);
    this.#watchPeople(room, channel);
    // The hooks apply to every later rejoin as well, which the client does by itself.
    channel.join()
      .receive("ok", reply => this.#joined(room, reply))
      .receive("error", reply => { room.state = "refused"; room.reason = String(reply?.reason ?? "no reason given"); this.notify("room", room); })
      .receive("timeout", () => { room.state = "refused"; room.reason = "no answer"; this.notify("room", room); });
    return room;
  }

  #joined(room, { since, recovered }) {
    room.last ??= since;
    // The server has started without its data, or too many messages were missed. So load what it still has, and skip
    // known messages by their ids.
    if (recovered === false) {
      room.last = since;
      room.channel.push("history", { since: BEFORE }).receive("ok", ({ messages }) => {
        for (const { event = "message", data, sender, id } of messages) this.#received(room, event, payloadOf(data, sender), id);
      });
    }
    if (room.wasJoined) room.quietUntil = Date.now() + RETURN_QUIET_MS;
    Object.assign(room, { state: "joined", reason: "", wasJoined: true });
    this.notify("room", room);
    this.#flush(room);
  }

  leave(name) {
    const room = this.list.get(name);
    this.list.delete(name);
    room?.channel.leave();
    room?.typingChannel.leave();
  }

  #listen(room, channel) {
    const own = /^(phx_|chan_reply_|presence_)/;
    // Events that this page does not know are also shown: the application may have sent them.
    channel.onMessage = (event, payload, id) => {
      if (!own.test(event)) this.#received(room, event, payload, id);
      return payload;
    };
    channel.onError(() => {
      if (room.state !== "refused") room.state = "joining";
      room.crowd = null;
      // It is unknown whether these arrived. They are sent again with the same id, and receivers drop the repetition.
      for (const item of room.items) if (item.state === "sending") this.#mark(room, item, "queued");
      this.#clearTypists(room);
      this.notify("room", room);
    });
    channel.onClose(() => {
      if (this.list.get(room.name) !== room || room.channel !== channel) return;
      room.state = "closed";
      this.notify("room", room);
    });
  }

  // ---- messages

  say(room, text) {
    const item = { kind: "message", id: randomId(), user: this.user, text: cut(text, MESSAGE_CHARS_MAX), at: Date.now(), mine: true, state: "queued" };
    this.typing(room, false);
    this.#add(room, item);
    this.send(room, item);
  }

  /**
   * Pushes a message, or queues it until the room is joined. The queue is here because the client's own buffer drops
   * a message at its timeout.
   */
  send(room, item) {
    if (!room.channel.canPush()) return this.#mark(room, item, "queued");
    // The server will name the current user as the sender, even if the user had another name when writing it.
    room.byId.delete(keyOf(item));
    item.user = this.user;
    room.byId.set(keyOf(item), item);
    const attempts = item.attempts = (item.attempts ?? 0) + 1;
    this.#mark(room, item, "sending");
    const settle = (state, reason) => {
      if (item.attempts === attempts && item.state === "sending") this.#mark(room, item, state, reason);
    };
    room.channel.push("message", { id: item.id, text: item.text, at: item.at }, REPLY_MS_MAX)
      .receive("ok", () => settle("sent"))
      .receive("error", reply => settle("failed", String(reply?.reason ?? "refused")))
      .receive("timeout", () => settle("failed", "no answer"));
  }

  discard(room, item) {
    room.items = room.items.filter(other => other !== item);
    room.byId.delete(keyOf(item));
    this.notify("removed", room, item);
  }

  #flush(room) {
    for (const item of room.items) if (item.state === "queued") this.send(room, item);
  }

  #mark(room, item, state, reason = "") {
    if (item.state === state && item.reason === reason) return;
    item.state = state;
    item.reason = reason;
    this.notify("changed", room, item);
  }

  /** `position` is the message's id in the room's history, from which a rejoin continues. */
  #received(room, event, payload, position) {
    room.last = position ?? room.last;
    const item = event === "message" && fromPerson(payload) || fromElsewhere(event, payload, position);
    item.position = position;
    if (item.kind === "message") {
      this.#endTypist(room, item.user);
      item.mine = item.user === this.user;
    }
    // Own messages come back, as do repeated ones: both are known by their id.
    const known = room.byId.get(keyOf(item));
    if (known) {
      known.position = position;
      return known.mine ? this.#mark(room, known, "sent") : undefined;
    }
    this.#add(room, item);
  }

  #add(room, item, { quiet = false } = {}) {
    room.items.push(item);
    if (item.id) room.byId.set(keyOf(item), item);
    if (room.items.length > ITEMS_MAX) {
      const old = room.items.shift();
      room.byId.delete(keyOf(old));
      this.notify("removed", room, old);
    }
    if (!quiet) this.notify("item", room, item);
  }

  // ---- people

  #watchPeople(room, channel) {
    let syncing = false;
    // Before `Presence` gets the state: users who were already present cause no notices.
    channel.on("presence_state", state => {
      syncing = true;
      if (Object.keys(state).length) room.crowd = null;
    });
    channel.on("presence_diff", ({ joins, leaves }) => {
      if (Object.keys(joins).length + Object.keys(leaves).length >= CROWD_USERS_MIN) syncing = true;
    });
    const presence = new Presence(channel);
    // Other users choose these names, and other clients of the server may choose any.
    const quiet = name => syncing || Date.now() < room.quietUntil || name === this.user || this.isCrowded(room);
    presence.onJoin((raw, before) => {
      const name = personName(raw);
      if (!before && !quiet(name)) this.#came(room, name);
    });
    presence.onLeave((raw, now) => {
      const name = personName(raw);
      if (now.metas.length === 0 && !quiet(name)) this.#went(room, name);
    });
    presence.onSync(() => {
      syncing = false;
      room.people = peopleIn(presence);
      this.notify("people", room);
    });
    // Above the server's limit only counts come, and no snapshot.
    channel.on("presence_count", ({ users, connections }) => {
      room.crowd = { users: Number(users) || 0, connections: Number(connections) || 0 };
      this.notify("people", room);
    });
  }

  #came(room, name) {
    if (room.leaving.has(name)) {
      clearTimeout(room.leaving.get(name));
      room.leaving.delete(name);
    } else {
      this.#notice(room, name, "joined", "left");
    }
  }

  #went(room, name) {
    this.#endTypist(room, name);
    clearTimeout(room.leaving.get(name));
    room.leaving.set(name, setTimeout(() => {
      room.leaving.delete(name);
      this.#notice(room, name, "left", "joined");
    }, LEFT_AFTER_MS));
  }

  /** Consecutive notices are one line, which grows. A user who came and went again cancels out. */
  #notice(room, name, kind, opposite) {
    const last = room.items.at(-1);
    if (last?.kind !== "notice") return this.#add(room, { kind: "notice", at: Date.now(), joined: [], left: [], [kind]: [name] });
    if (last[opposite].includes(name)) last[opposite] = last[opposite].filter(other => other !== name);
    else if (!last[kind].includes(name)) last[kind].push(name);
    if (last.joined.length + last.left.length) this.notify("changed", room, last);
    else this.discard(room, last);
  }

  isCrowded(room) { return room.crowd !== null || room.people.length >= CROWD_USERS_MIN; }

  // ---- typing

  typing(room, on) {
    const now = Date.now();
    if (on ? now - room.typingSentAt < TYPING_REPEAT_MS : room.typingSentAt === 0) return;
    if (!room.typingChannel.canPush() || this.isCrowded(room)) return;
    room.typingSentAt = on ? now : 0;
    room.typingChannel.push("typing", { on });
  }

  #typist(room, payload) {
    const user = senderOf(payload);
    if (!user || user === this.user) return;
    this.#endTypist(room, user);
    if (payload.on === true) {
      room.typists.set(user, setTimeout(() => this.#endTypist(room, user), TYPING_ENDS_MS));
      this.notify("room", room);
    }
  }

  #endTypist(room, user) {
    if (!room.typists.has(user)) return;
    clearTimeout(room.typists.get(user));
    room.typists.delete(user);
    this.notify("room", room);
  }

  #clearTypists(room) {
    for (const timer of room.typists.values()) clearTimeout(timer);
    room.typists.clear();
    room.typingSentAt = 0;
  }
}

/** Converts a message of the history to the channel's form. */
const payloadOf = (data, sender) =>
  ({ ...(typeof data === "object" && !Array.isArray(data) ? data : { data }), phx_sender: sender });

const keyOf = item => `${item.user ?? ""}\n${item.id}`;

const personName = raw => cleanName(raw) || "(no name)";

/** Returns the present users, each name once: [{name, connections, on}]. */
function peopleIn(presence) {
  const people = new Map();
  presence.list((raw, { metas }) => {
    const name = personName(raw);
    const person = people.get(name) ?? { name, connections: 0, on: [] };
    people.set(name, { name, connections: person.connections + metas.length, on: [...new Set([...person.on, ...metas.map(meta => meta.on)])] });
  });
  return [...people.values()];
}

/**
 * Returns the sender that the server names: no client can write `phx_sender` itself. Empty for messages that the
 * application published without a sender.
 */
const senderOf = payload => typeof payload?.phx_sender === "string" ? personName(payload.phx_sender) : "";

/** Any client may push any payload, so this returns null for one that is no person's message. */
function fromPerson(payload) {
  const user = senderOf(payload);
  // Text that another kind of client published comes as `data`.
  const { id = randomId(), text = payload?.data, at } = payload ?? {};
  if (!user || typeof text !== "string" || typeof id !== "string" || id.length > 64) return null;
  // The time by the sender's clock: only the sender knows it for earlier messages.
  const saidAt = Number.isFinite(at) ? Math.min(at, Date.now()) : Date.now();
  return { kind: "message", id, user, text: cut(text.trim(), MESSAGE_CHARS_MAX), at: saidAt, state: "sent" };
}

/** Converts a message of the application, or a person's event that this page does not know. */
function fromElsewhere(event, payload, position) {
  const user = senderOf(payload);
  const { phx_sender, ...said } = payload ?? {};
  const keys = Object.keys(said);
  const only = keys.length === 1 && ["data", "text"].includes(keys[0]) ? said[keys[0]] : said;
  const isText = typeof only === "string";
  const line = isText ? only : JSON.stringify(only);
  const text = isText || line.length <= ONE_LINE_CHARS_MAX ? line : JSON.stringify(only, null, 2);
  return { kind: "app", id: position ?? randomId(), user, event, text: cut(text, MESSAGE_CHARS_MAX), isCode: !isText, at: Date.now() };
}
