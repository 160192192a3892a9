// A board that shows a topic's state: a row for each key.
import { throng } from "./throng.js";

const [table, link] = ["rows", "link"].map(id => document.getElementById(id));
const rows = new Map();
// The keys that have come since the state began again; null while only changes come.
let fresh = new Set();

function say(state, words) {
  link.dataset.state = state;
  link.textContent = words;
}

function drop(key) {
  rows.get(key)?.line.remove();
  rows.delete(key);
}

function show(key, price) {
  let row = rows.get(key);
  if (!row) {
    const [line, name, value] = ["tr", "th", "td"].map(tag => document.createElement(tag));
    name.textContent = key;
    name.scope = "row";
    line.append(name, value);
    row = { line, value };
    rows.set(key, row);
    const next = [...table.children].find(other => other.firstChild.textContent > key);
    table.insertBefore(line, next ?? null);
  } else if (price !== row.price) {
    row.line.className = "";
    void row.line.offsetWidth; // restarts the animation
    row.line.className = price > row.price ? "up" : "down";
  }
  row.price = price;
  row.value.textContent = price.toLocaleString("en", { minimumFractionDigits: 2 });
}

const source = new EventSource(`${throng}/sse?topic=prices:market&format=json`);
source.onopen = () => say("live", "Live");
source.onerror = () => say("wait", "Connection lost, coming back …");
source.onmessage = ({ data }) => {
  const message = JSON.parse(data);
  fresh?.add(message.key);
  if (message.data === null) drop(message.key);
  else show(message.key, message.data.price);
};
// After a long absence the whole state comes again. Rows that it lacks are gone.
source.addEventListener("recovery", ({ data }) => { if (!JSON.parse(data).recovered) fresh = new Set(); });
source.addEventListener("state_complete", () => {
  for (const key of fresh ? rows.keys() : []) if (!fresh.has(key)) drop(key);
  fresh = null;
  table.parentElement.dataset.complete = "";
});
