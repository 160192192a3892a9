// Shows a reply while it is written. The page's address has the reply's id, so a reload shows it again.
import { throng } from "./throng.js";

const [form, question, text, link] = ["form", "question", "text", "link"].map(id => document.getElementById(id));
let source;

function say(state, words) {
  link.dataset.state = state;
  link.textContent = words;
}

/** Shows the reply from its first token until it is done. */
function follow(id) {
  source?.close();
  text.replaceChildren();
  text.parentElement.hidden = false;
  say("wait", "Connecting …");
  source = new EventSource(`${throng}/sse?topic=answer:${encodeURIComponent(id)}&since=start`);
  source.onopen = () => say("live", "Writing …");
  // The browser reconnects by itself with the last token's id: nothing to do here.
  source.onerror = () => say("wait", "Connection lost, coming back …");
  source.addEventListener("token", ({ data }) => text.append(data));
  source.addEventListener("done", () => end("Done"));
  source.addEventListener("failed", ({ data }) => end(data));
  source.addEventListener("recovery", ({ data }) => {
    // The server has restarted without its data: show from the start what it has.
    if (!JSON.parse(data).recovered) follow(id);
  });
}

function end(words) {
  source.close();
  say("live", words);
}

form.onsubmit = async event => {
  event.preventDefault();
  const response = await fetch("/ask", { method: "POST", body: JSON.stringify({ question: question.value }) });
  const result = await response.json();
  if (!response.ok) return say("wait", result.error);
  location.hash = result.id;
};

const show = () => { if (location.hash) follow(location.hash.slice(1)); };
addEventListener("hashchange", show);
show();
