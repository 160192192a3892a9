// A chat over Throng's /ws, without a library.
const address = new URLSearchParams(location.search);
const server = address.get("server") ?? "ws://127.0.0.1:8000";
const topic = "room:lobby";
const [log, link, form, name, text] = ["log", "link", "form", "name", "text"].map(id => document.getElementById(id));
name.value = address.get("as") ?? sessionStorage.name ?? `guest ${Math.floor(Math.random() * 1000)}`;

let socket, last, failures = 0; // `last` is a position: the log has everything up to it.
const pending = new Map(); // Commands that wait for their reply, by id.
const waiting = new Map(); // Texts whose publish is not confirmed, by the id in their `data`.
const lines = new Map(); // The lines of the log, by the same id.
const here = new Map(); // Present users: the refs of each user's connections.
const newId = () => crypto.getRandomValues(new Uint32Array(3)).join("-");

/** Sends a command. Returns its `ok`, or throws its `error`; null if the connection ends before. */
const request = command => new Promise((resolve, reject) => {
  if (socket.readyState !== WebSocket.OPEN) return reject(null);
  const id = newId();
  pending.set(id, { resolve, reject });
  socket.send(JSON.stringify({ ...command, id, topic }));
});

function show(id, sender, said, time, state) {
  const line = lines.get(id) ?? document.createElement("li");
  const clock = new Date(time).toLocaleTimeString([], { timeStyle: "short" });
  const parts = [["b", sender ?? "the app"], ["span", said], ["time", clock]];
  line.replaceChildren(...parts.map(([tag, textContent]) => Object.assign(document.createElement(tag), { textContent })));
  line.dataset.state = state;
  line.lastChild.dateTime = new Date(time).toISOString();
  lines.set(id, line);
  // Messages that are still to be sent stand below the published ones.
  log.insertBefore(line, state === "said" ? log.querySelector("[data-state=sending]") : null);
}

/** A message of a history page has its time; a live one has none, since it is from now. */
function arrived({ id, sender, data, published_at = Date.now() }) {
  const key = data?.id ?? id;
  last = id ?? last;
  waiting.delete(key);
  // A message may come twice if it was sent again after a cut.
  if (lines.get(key)?.dataset.state === "said") return;
  show(key, sender, data?.text ?? JSON.stringify(data), published_at, "said");
}

async function send(id, said) {
  waiting.set(id, said);
  show(id, name.value, said, Date.now(), "sending");
  try {
    await request({ type: "publish", data: { id, text: said } });
  } catch (error) {
    if (!error) return; // The next connection sends it again.
    waiting.delete(id);
    show(id, name.value, `${said} (${error.message})`, Date.now(), "refused");
  }
}

/** Gets earlier and missed messages, with their times, and continues from there. */
async function enter() {
  try {
    for (let more = true; more;) {
      const page = await request({ type: "history", since: last ?? "last:50" });
      if (!page.complete) show(newId(), "", "… what was said here is gone", Date.now(), "said");
      page.messages.forEach(arrived);
      more = page.more;
      last = more ? page.next : page.last;
    }
    await request({ type: "subscribe", since: last });
    failures = 0;
    [link.textContent, link.dataset.state] = ["Connected", "live"];
    for (const [id, said] of waiting) send(id, said);
  } catch (error) {
    // The server has restarted without its store, so its positions are others.
    if (error?.code === "epoch_changed") (last = undefined, lines.clear(), log.replaceChildren(), enter());
    else socket.close();
  }
}

/** Presence: a user is here as long as one of the user's connections is. */
function present({ joins, leaves }) {
  for (const [user, { metas }] of Object.entries(joins)) {
    here.set(user, new Set([...here.get(user) ?? [], ...metas.map(meta => meta.phx_ref)]));
  }
  for (const [user, { metas }] of Object.entries(leaves)) {
    metas.forEach(meta => here.get(user)?.delete(meta.phx_ref));
    if (!here.get(user)?.size) here.delete(user);
  }
  document.getElementById("here").textContent = [...here.keys()].sort().join(", ") || "nobody";
}

function receive({ data }) {
  const it = JSON.parse(data);
  if (it.type === "reply") {
    const { resolve, reject } = pending.get(it.id) ?? {};
    pending.delete(it.id);
    if (it.ok) resolve?.(it.ok); else reject?.(it.error);
  }
  if (it.type !== "message" || it.topic !== topic) return;
  if (it.event === "presence_state") (here.clear(), present({ joins: it.data, leaves: {} }));
  else if (it.event === "presence_diff") present(it.data);
  else if (it.event === "message") arrived(it);
}

function connect() {
  socket = new WebSocket(`${server}/ws?user=${encodeURIComponent(name.value)}`);
  socket.onopen = enter;
  socket.onmessage = receive;
  socket.onclose = ({ code }) => {
    pending.forEach(({ reject }) => reject(null));
    pending.clear();
    // 4000: the application closed it. The others: the same error would happen again.
    const stays = [1002, 1007, 1009, 4000].includes(code);
    [link.textContent, link.dataset.state] = [stays ? `Closed by the server (${code})` : "Connecting …", "wait"];
    if (!stays) setTimeout(connect, Math.min(30, 2 ** failures++) * (750 + Math.random() * 500));
  };
}

form.onsubmit = () => {
  if (text.value.trim()) send(newId(), text.value.trim());
  text.value = "";
  return false;
};
name.onchange = () => (sessionStorage.name = name.value, socket.close());
connect();
