// A bell: unread notifications wait on the server, for every device, until the customer opens the bell.
import { throng } from "./throng.js";

const [bell, count, list, panel, products, link] =
  ["bell", "count", "list", "panel", "products", "link"].map(id => document.getElementById(id));
// A page of your own takes the customer from the session.
const user = new URLSearchParams(location.search).get("user") ?? "alice";
const SHOWN_MAX = 50;
/** The items of the list, by id. A message has the same id each time it comes. */
const items = new Map();
let newest;

function show({ id, data }, isUnread) {
  let item = items.get(id);
  if (!item) {
    const [text, about] = ["strong", "span"].map(tag => document.createElement(tag));
    item = document.createElement("li");
    text.textContent = data.text;
    about.textContent = `${data.product}, ${new Date(data.at).toLocaleTimeString()}`;
    about.className = "dim";
    item.append(text, about);
    item.dataset.at = data.at;
    items.set(id, item);
    const older = [...list.children].find(other => Number(other.dataset.at) <= data.at);
    list.insertBefore(item, older ?? null);
    if (list.children.length > SHOWN_MAX) list.lastChild.remove();
  }
  item.classList.toggle("unread", isUnread);
  drawCount();
}

function drawCount() {
  const unread = list.querySelectorAll(".unread").length;
  count.textContent = unread;
  count.hidden = unread === 0;
  bell.setAttribute("aria-label", `Notifications, ${unread} unread`);
  document.title = unread ? `(${unread}) Shop` : "Shop";
}

/** Shows the last messages of the history as read. Unread ones become unread when the stream delivers them. */
async function showRead() {
  const url = `${throng}/history?user=${user}&limit=20&reverse=true`;
  const { messages = [] } = await (await fetch(url)).json();
  for (const message of messages) if (!items.has(message.id)) show(message, false);
}

/** Acknowledges everything up to the newest message, on all devices. */
async function read() {
  if (!newest || panel.hidden) return;
  const id = newest;
  newest = undefined;
  const options = { method: "POST", body: JSON.stringify({ customer: user, id }) };
  const response = await fetch("/read", options).catch(() => ({}));
  if (!response.ok) newest ??= id;
}

const offset = id => Number(id.split(":")[1]);
function markRead(upTo) {
  for (const [id, item] of items) if (offset(id) <= offset(upTo)) item.classList.remove("unread");
  drawCount();
}

const source = new EventSource(`${throng}/sse?user=${user}&format=json`);
source.onopen = () => { link.dataset.state = "live"; link.textContent = `Signed in as ${user}`; };
source.onerror = () => { link.dataset.state = "wait"; link.textContent = "Connection lost, coming back …"; };
source.onmessage = event => {
  const message = JSON.parse(event.data);
  // Unread messages come again when the browser reconnects: with the same ids, so each shows once.
  show(message, true);
  newest = message.id;
  read();
};

source.addEventListener("read", event => markRead(JSON.parse(event.data).data.upTo));

bell.onclick = () => {
  panel.hidden = !panel.hidden;
  bell.setAttribute("aria-expanded", String(!panel.hidden));
  read();
};
products.onclick = async ({ target }) => {
  if (!target.dataset.product) return;
  target.disabled = true;
  await fetch("/order", { method: "POST", body: JSON.stringify({ customer: user, product: target.dataset.product }) });
  target.disabled = false;
};
showRead().catch(() => {});
