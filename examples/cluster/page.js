// The page: the users at each node, the messages, and buttons that kill a node.
import { Client } from "./client.js";

const LINES_MAX = 500;
const NODES_MS = 1_000;
const address = new URLSearchParams(location.search);
const [log, link, form, text, list, here, problem] = ["log", "link", "form", "text", "nodes", "here", "problem"].map(id => document.getElementById(id));
const user = address.get("as") ?? `guest ${Math.floor(Math.random() * 1000)}`;
const newId = () => crypto.getRandomValues(new Uint32Array(3)).join("-");
const element = (tag, textContent, className = "") => Object.assign(document.createElement(tag), { textContent, className });

let client, own, gone; // `own` is the node of this page, `gone` the node that it has lost.
const people = new Map(); // Present users: each user's connections by their refs, with their nodes.
const waiting = new Map(); // Texts whose publish is not confirmed, by the id in their `data`.
const lines = new Map(); // The lines of the log, by the same id.

// ---- the log

function append(line) {
  const isAtEnd = log.scrollTop + log.clientHeight > log.scrollHeight - 40;
  // Messages that are still to be sent stand below the published ones.
  log.insertBefore(line, line.dataset.state === "sending" ? null : log.querySelector("[data-state=sending]"));
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function show(id, sender, node, said, state) {
  const line = lines.get(id) ?? element("li", "");
  const time = element("time", new Date().toLocaleTimeString([], { timeStyle: "short" }));
  line.replaceChildren(element("b", sender), element("span", said), element("small", node ? `node ${node}` : ""), time);
  line.dataset.state = state;
  lines.set(id, line);
  append(line);
  for (const [old, oldest] of lines) {
    if (lines.size <= LINES_MAX) break;
    oldest.remove();
    lines.delete(old);
  }
}

function notice(words) {
  const line = element("li", words, "notice");
  lines.set(newId(), line);
  append(line);
}

function arrived({ id, sender, data }) {
  const key = data?.id ?? id;
  waiting.delete(key);
  // A message may come twice if its reply was lost with a node and it was sent again.
  if (lines.get(key)?.dataset.state === "said") return;
  show(key, sender ?? "the app", data?.node, data?.text ?? JSON.stringify(data), "said");
}

async function send(id, said) {
  waiting.set(id, said);
  show(id, user, own?.name, said, "sending");
  try {
    await client.request({ type: "publish", data: { id, text: said, node: own?.name } });
  } catch (error) {
    if (!error) return; // The next node gets it again.
    waiting.delete(id);
    show(id, user, own?.name, `${said} (${error.message})`, "refused");
  }
}

form.onsubmit = () => {
  if (text.value.trim()) send(newId(), text.value.trim());
  text.value = "";
  return false;
};

// ---- who is here

function present({ joins, leaves }) {
  for (const [name, { metas }] of Object.entries(joins)) {
    people.set(name, new Map([...people.get(name) ?? [], ...metas.map(meta => [meta.phx_ref, meta.node])]));
  }
  for (const [name, { metas }] of Object.entries(leaves)) {
    metas.forEach(meta => people.get(name)?.delete(meta.phx_ref));
    if (!people.get(name)?.size) people.delete(name);
  }
  here.textContent = [...people.keys()].sort().join(", ") || "nobody yet";
  for (const card of list.children) {
    const at = [...people].filter(([, connections]) => [...connections.values()].includes(card.dataset.node));
    card.querySelector("p").textContent = at.map(([name]) => name).sort().join(", ") || "–";
  }
}

// ---- the nodes

async function call(path, body) {
  const response = await fetch(path, body && { method: "POST", body: JSON.stringify(body) });
  const result = await response.json();
  if (!response.ok) throw new Error(result.error);
  return result;
}

function makeCard({ name }) {
  const card = element("li", "");
  const button = element("button", "");
  button.onclick = async () => {
    button.disabled = true;
    try {
      showNodes(await call(card.dataset.state === "up" ? "kill" : "start", { node: name }));
    } catch (error) {
      problem.textContent = error.message;
    }
    button.disabled = false;
  };
  card.dataset.node = name;
  card.append(element("h2", ""), element("p", "–"), button);
  return card;
}

function showNodes(nodes) {
  if (!list.children.length) list.replaceChildren(...nodes.map(makeCard));
  nodes.forEach(({ name, pid }, n) => {
    const card = list.children[n];
    const button = card.querySelector("button");
    card.dataset.state = pid ? "up" : "down";
    card.toggleAttribute("data-own", name === own?.name);
    card.querySelector("h2").textContent = `Node ${name}${pid ? "" : " is down"}`;
    button.textContent = pid ? "Kill" : "Start";
    button.setAttribute("aria-label", `${button.textContent} node ${name}`);
  });
  problem.textContent = "";
  return nodes;
}

async function followNodes() {
  try {
    showNodes(await call("nodes"));
  } catch {
    problem.textContent = "examples/cluster/run has ended.";
  }
  setTimeout(followNodes, NODES_MS);
}

function say(state, words) {
  [link.dataset.state, link.textContent] = [state, words];
  for (const card of list.children) card.toggleAttribute("data-own", card.dataset.node === own?.name);
}

const nodes = showNodes(await call("nodes"));
document.getElementById("user").textContent = user;
client = new Client({
  nodes,
  first: nodes.find(({ name }) => name === address.get("node")),
  user,
  topic: "room:lobby",
  on: {
    connected(node) {
      own = node;
      if (gone) notice(`Node ${gone.name} is gone, and this page is at node ${node.name}. What others said in between is not here.`);
      gone = null;
      say("live", `At node ${node.name}`);
      for (const [id, said] of waiting) send(id, said);
    },
    lost(node) {
      // The first attempts of a new page lose no node.
      gone = own && node;
      own = null;
      say("wait", `Node ${node.name} is gone, looking for another …`);
    },
    closed(code) {
      own = null;
      say("wait", `Closed by the server (${code})`);
    },
    message(message) {
      if (message.event === "presence_state") (people.clear(), present({ joins: message.data, leaves: {} }));
      else if (message.event === "presence_diff") present(message.data);
      else arrived(message);
    },
  },
});
followNodes();
