// The page: it draws the rooms' events, and passes the user's actions to the rooms.
import { Log, avatar, crowdPicture, element } from "./log.js";
import { Rooms } from "./rooms.js";
import * as store from "./store.js";
import { MESSAGE_CHARS_MAX, cleanName, cleanRoom, count, nameList, suggestName } from "./text.js";

const $ = id => document.getElementById(id);
const PEOPLE_SHOWN_MAX = 200;
const CROWD_DOTS_MAX = 500;
const MEASURE_MS = 10_000;
const SAVE_AFTER_MS = 500;
// A quick connect needs no banner; only a slow one does.
const BANNER_AFTER_MS = 700;

let rooms, current;
const drafts = new Map();
const log = new Log({
  scroller: $("scroller"), log: $("log"), pill: $("pill"), empty: $("empty"),
  retry: item => { rooms.send(current, item); $("text").focus(); },
  discard: item => { rooms.discard(current, item); $("text").focus(); },
  seen: () => markSeen(),
});

// ---- from the rooms to the screen

/** Draws a part of the page once a frame, however often it changes. */
function onceAFrame(draw) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    // Frames stop in hidden tabs, whose title and counts still matter.
    (document.hidden ? setTimeout : requestAnimationFrame)(() => { isDue = false; draw(); });
  };
}
const drawRooms = onceAFrame(drawRoomList);
const drawRoom = onceAFrame(() => { drawHead(); drawTyping(); });
const drawPeople = onceAFrame(drawPeopleList);
const drawStatus = onceAFrame(() => { drawLink(); drawBanner(); });

function onChange(what, room, item) {
  if (what === "status") return drawStatus();
  const isShown = room === current;
  if (what === "item") {
    // Messages from before this page entered the room are no news.
    const isNews = item.kind !== "notice" && !item.mine && (room.wasJoined || item.at >= room.joinedAt);
    if (isNews && !(isShown && !document.hidden && log.isAtEnd)) room.unread++;
    if (isShown) log.append(item);
    drawRooms();
  } else if (isShown && what === "changed") log.change(item);
  else if (isShown && what === "removed") log.remove(item);
  else if (what === "people") {
    if (isShown) { drawPeople(); drawRoom(); }
    drawRooms();
  } else if (isShown) { drawRoom(); drawStatus(); }
  if (item) saveSoon(room);
}

const unsaved = new Set();
let saveTimer = 0;
function saveSoon(room) {
  unsaved.add(room);
  saveTimer ||= setTimeout(saveNow, SAVE_AFTER_MS);
}
function saveNow() {
  clearTimeout(saveTimer);
  saveTimer = 0;
  for (const room of unsaved) store.saveItems(room.name, room.items);
  unsaved.clear();
}
addEventListener("pagehide", saveNow);

function markSeen() {
  if (!current || document.hidden || current.unread === 0) return;
  current.unread = 0;
  drawRooms();
}
document.addEventListener("visibilitychange", () => { if (!document.hidden && log.isAtEnd) markSeen(); });

const usersIn = room => room.crowd?.users ?? room.people.length;

function drawRoomList() {
  // Replacing the list would take the focus from its links.
  const focused = document.activeElement?.closest("#room-list li")?.dataset.room;
  const focusedClose = document.activeElement?.matches("#room-list button");
  let elsewhere = 0, all = 0;
  const lines = [...rooms.list.values()].map(room => {
    const link = element("a", "", element("span", "hash", "#"), element("span", "name", room.name));
    link.href = `#${encodeURIComponent(room.name)}`;
    all += room.unread;
    if (room === current) link.setAttribute("aria-current", "page");
    else elsewhere += room.unread;
    if (room.unread) link.append(element("span", "badge", room.unread > 99 ? "99+" : String(room.unread), element("span", "hidden-label", " unread")));
    else if (usersIn(room)) link.append(element("span", "here", usersIn(room).toLocaleString("en"), element("span", "hidden-label", " here")));
    const line = element("li", room.unread && room !== current ? "unread" : "", link);
    line.dataset.room = room.name;
    if (room.name !== "lobby") {
      const close = element("button", "leave", "×");
      close.type = "button";
      close.title = `Leave ${room.name}`;
      close.setAttribute("aria-label", close.title);
      close.addEventListener("click", () => leave(room.name));
      line.append(close);
    }
    return line;
  });
  $("room-list").replaceChildren(...lines);
  if (focused) {
    const line = lines.find(line => line.dataset.room === focused);
    line?.querySelector(focusedClose ? "button" : "a")?.focus();
  }
  $("unread-dot").hidden = elsewhere === 0;
  $("open-rooms").setAttribute("aria-label", elsewhere ? `Rooms, ${elsewhere} unread` : "Rooms");
  document.title = `${all ? `(${all > 99 ? "99+" : all}) ` : ""}${current.name} · Throng chat`;
}

function drawHead() {
  $("room-title").textContent = `# ${current.name}`;
  const users = usersIn(current);
  document.querySelector("main").dataset.state = current.state;
  $("room-sub").textContent = {
    joined: users ? `${users.toLocaleString("en")} here` : "Joined",
    joining: rooms.isOpen ? "Joining…" : "Not connected", refused: "Not joined", closed: "Not joined",
  }[current.state];
  $("open-people").setAttribute("aria-label", `People: ${users.toLocaleString("en")} here`);
}

function drawTyping() {
  const names = [...current.typists.keys()];
  $("typing").classList.toggle("on", names.length > 0);
  if (names.length) $("typing-text").textContent = names.length > 3 ? "Several people are typing" : `${nameList(names)} ${names.length > 1 ? "are" : "is"} typing`;
}

function drawPeopleList() {
  const { people, crowd } = current;
  const users = usersIn(current);
  $("people-count").textContent = users ? `${users.toLocaleString("en")} here` : "People";
  $("crowd").replaceChildren();
  if (crowd) {
    $("crowd").append(crowdPicture(Math.min(crowd.users, CROWD_DOTS_MAX)),
      element("p", "", `On ${count(crowd.connections, "connection")}. A crowd of this size is counted and not listed.`));
    return $("people-list").replaceChildren();
  }
  const isMe = person => person.name === rooms.user;
  const sorted = people.toSorted((a, b) => isMe(b) - isMe(a) || a.name.localeCompare(b.name));
  const lines = sorted.slice(0, PEOPLE_SHOWN_MAX).map(person => {
    const details = [];
    if (isMe(person)) details.push("you");
    if (person.connections > 1) details.push(count(person.connections, "connection"));
    else if (person.on.includes("phone")) details.push("on a phone");
    const who = element("span", "who", element("strong", "", person.name));
    if (details.length) who.append(element("small", "", details.join(" · ")));
    return element("li", "", avatar(person.name), who);
  });
  if (sorted.length > lines.length) lines.push(element("li", "more", `and ${(sorted.length - lines.length).toLocaleString("en")} more`));
  $("people-list").replaceChildren(...lines);
}

function drawLink() {
  const open = rooms.isOpen;
  $("people").dataset.link = open ? "open" : "lost";
  $("link").dataset.state = open ? "open" : "lost";
  const rtt = rooms.rttMs === null ? "" : ` · ${rooms.rttMs < 1 ? "under 1" : rooms.rttMs} ms`;
  $("link").replaceChildren(...open ? [element("span", "hidden-label", "Connected by "), `${rooms.transport}${rtt}`] : ["Not connected"]);
}

let bannerTimer = 0, wasLost = false;
function drawBanner() {
  const lost = !rooms.isOpen;
  // Every failed attempt comes here, and must not restart the wait.
  if (lost && bannerTimer && !$("banner").dataset.fades) return;
  clearTimeout(bannerTimer);
  bannerTimer = 0;
  delete $("banner").dataset.fades;
  if (!lost && current.state === "refused") return showBanner("bad", `The server did not let you into this room: ${current.reason}. Trying again.`);
  if (!lost && current.state === "closed") return showBanner("bad", "The server closed this room for you.", "Join again", () => show(current.name));
  if (!lost) {
    if (!wasLost) return void ($("banner").hidden = true);
    wasLost = false;
    showBanner("good", "Connected again.");
    $("banner").dataset.fades = "";
    bannerTimer = setTimeout(() => { $("banner").hidden = true; }, 2500);
    return;
  }
  bannerTimer = setTimeout(() => {
    wasLost = true;
    bannerTimer = 0;
    if (rooms.isOpen) return;
    const what = !navigator.onLine ? "You are offline." : rooms.everOpen ? "Connection lost. Reconnecting…" : "The server does not answer yet. Trying again…";
    showBanner("wait", `${what} What you write now is sent as soon as it is back.`, "Try now", () => rooms.reconnect());
  }, BANNER_AFTER_MS);
}

function showBanner(kind, text, button, act) {
  $("banner").dataset.kind = kind;
  $("banner").hidden = false;
  if ($("banner-text").textContent !== text) $("banner-text").textContent = text;
  $("banner-button").hidden = !button;
  $("banner-button").textContent = button ?? "";
  $("banner-button").onclick = act ?? null;
}

// ---- rooms

function show(name) {
  if (current) drafts.set(current.name, $("text").value);
  const isNew = !rooms.list.has(name);
  const room = rooms.join(name, isNew ? store.loadItems(name) : []);
  if (isNew) store.saveRooms([...rooms.list.keys()]);
  current = room;
  $("text").value = drafts.get(name) ?? "";
  $("text").placeholder = `Message #${name}`;
  fitComposer();
  for (const code of document.querySelectorAll(".snippet code")) code.replaceChildren(...curlLine().split(/(?<=[, ])/).map(part => element("span", "", part)));
  $("second").href = `?as=${encodeURIComponent(suggestName())}#${encodeURIComponent(name)}`;
  log.show(room);
  drawRoomList();
  drawHead();
  drawTyping();
  drawPeopleList();
  drawStatus();
}

$("room-list").addEventListener("click", event => {
  // The link of the current room does not change the hash.
  if (event.target.closest("a[aria-current]")) closePanels();
});

function leave(name) {
  rooms.leave(name);
  store.saveRooms([...rooms.list.keys()]);
  if (current.name === name) location.hash = "lobby";
  else drawRooms();
  $("room-list").querySelector("a")?.focus();
}

function roomInHash() {
  try { return cleanRoom(decodeURIComponent(location.hash.slice(1))); } catch { return ""; }
}
addEventListener("hashchange", () => {
  const name = roomInHash() || "lobby";
  if (name !== current.name) show(name);
  closePanels();
});

$("room-form").addEventListener("submit", event => {
  event.preventDefault();
  const name = cleanRoom($("room-name").value);
  if (!name) return $("room-name").focus();
  $("room-name").value = "";
  location.hash = encodeURIComponent(name);
  closePanels();
  $("text").focus();
});

function curlLine() {
  const given = document.querySelector("meta[name=throng-api]").content;
  const api = given || `${location.hostname}:${Number(location.port || 8000) + 1}`;
  // Both names are free of quotes: see cleanRoom.
  return `curl ${api}/api/publish -d '${JSON.stringify({ topic: `room:${current.name}`, data: "hello" })}'`;
}

// ---- the composer

const text = $("text");
// A screen reader announces how many characters are left, at these counts. A number at every key would talk over the
// typing.
const LEFT_SAID = [200, 50, 10, 0];
let leftBefore = MESSAGE_CHARS_MAX;
function fitComposer() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
  const left = MESSAGE_CHARS_MAX - text.value.length;
  $("left").textContent = left <= LEFT_SAID[0] ? String(left) : "";
  if (LEFT_SAID.some(mark => left <= mark && mark < leftBefore)) $("announce").textContent = `${count(left, "character")} left`;
  leftBefore = left;
  $("send").disabled = text.value.trim() === "";
}
text.addEventListener("input", () => {
  fitComposer();
  rooms.typing(current, text.value.trim() !== "");
});
text.addEventListener("keydown", event => {
  // While an input method composes a character, Enter belongs to it.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("composer").addEventListener("submit", event => {
  event.preventDefault();
  const said = text.value.trim();
  if (!said) return;
  text.value = "";
  fitComposer();
  rooms.say(current, said);
  text.focus();
});
$("skip").addEventListener("click", () => text.focus());

// ---- the name

function showNameDialog({ isFirst }) {
  $("welcome-title").textContent = isFirst ? "Come on in" : "Change your name";
  $("welcome-text").textContent = isFirst
    ? "A chat in a few hundred lines, on a Throng server. No account; any name will do."
    : "What you said before keeps the name it was said with.";
  $("name-ok").textContent = isFirst ? "Start chatting" : "Save";
  $("name-cancel").hidden = isFirst;
  $("name-trouble").textContent = "";
  $("name").value = isFirst ? suggestName() : rooms.user;
  $("welcome").showModal();
  $("name").focus();
  $("name").select();
}
$("shuffle").addEventListener("click", () => { $("name").value = suggestName(); });
$("name-cancel").addEventListener("click", () => $("welcome").close());
$("welcome").addEventListener("cancel", event => { if (!rooms) event.preventDefault(); });
// Chromium lets a second Escape through whatever `cancel` says.
$("welcome").addEventListener("close", () => { if (!rooms) showNameDialog({ isFirst: true }); });
$("name-form").addEventListener("submit", event => {
  event.preventDefault();
  const name = cleanName($("name").value);
  if (!name) {
    $("name-trouble").textContent = "Please give a name of at least one visible character.";
    return $("name").focus();
  }
  store.saveName(name);
  if (rooms) rooms.rename(name);
  else start(name);
  drawMe();
  $("welcome").close();
  // On a phone the keyboard would cover the messages.
  if (matchMedia("(pointer: fine)").matches) text.focus();
});
$("me").addEventListener("click", () => showNameDialog({ isFirst: false }));
function drawMe() {
  $("me-name").textContent = rooms.user;
  $("me-avatar").replaceChildren(avatar(rooms.user));
}

// ---- panels, theme, copying

const drawers = { rooms: matchMedia("(max-width: 719px)"), people: matchMedia("(max-width: 1039px)") };
function setPanel(id, open) {
  const isDrawer = drawers[id].matches;
  $(id).classList.toggle("open", isDrawer && open);
  // A hidden panel must not be in the focus order.
  $(id).inert = isDrawer && !open;
  $(`open-${id}`).setAttribute("aria-expanded", String(isDrawer && open));
  $("scrim").hidden = !document.querySelector(".panel.open");
  document.querySelector("main").inert = !$("scrim").hidden;
  if (isDrawer && open) $(id).querySelector(".close").focus();
}
function closePanels() {
  for (const id of Object.keys(drawers)) if ($(id).classList.contains("open")) {
    setPanel(id, false);
    $(`open-${id}`).focus();
  }
}
for (const id of Object.keys(drawers)) {
  drawers[id].addEventListener("change", () => setPanel(id, false));
  $(`open-${id}`).addEventListener("click", () => setPanel(id, true));
  setPanel(id, false);
}
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", closePanels);
$("scrim").addEventListener("click", closePanels);
addEventListener("keydown", event => { if (event.key === "Escape") closePanels(); });

const themes = ["auto", "light", "dark"];
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").title = `Colours: ${theme}`;
  $("theme").setAttribute("aria-label", `Colours: ${theme}. Change`);
  store.saveTheme(theme);
}
$("theme").addEventListener("click", () => setTheme(themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length]));
setTheme(themes.includes(store.loadTheme()) ? store.loadTheme() : "auto");

async function copy(what, said) {
  try {
    await navigator.clipboard.writeText(what);
    return said;
  } catch {
    // No clipboard on plain-http origins other than loopback.
    return "Copying is not allowed here: select the text instead";
  }
}
document.addEventListener("click", async event => {
  const button = event.target.closest(".copy");
  if (!button) return;
  const said = await copy(curlLine(), "Copied");
  $("announce").textContent = said;
  button.textContent = said === "Copied" ? said : "Select";
  if (said !== "Copied") getSelection().selectAllChildren(button.previousElementSibling);
  setTimeout(() => { button.textContent = "Copy"; }, 1800);
});
$("share").addEventListener("click", async () => {
  const link = new URL(`#${encodeURIComponent(current.name)}`, location.origin + location.pathname).href;
  const said = await copy(link, "Link copied");
  $("announce").textContent = said;
  $("room-sub").textContent = said;
  setTimeout(drawHead, 1800);
});

// iOS lays its keyboard over the page and leaves 100dvh unchanged; only the visual viewport changes.
visualViewport?.addEventListener("resize", () => {
  const covered = innerHeight - visualViewport.height > 80 && visualViewport.scale === 1;
  $("app").style.height = covered ? `${visualViewport.height}px` : "";
  if (covered) scrollTo(0, 0);
});

// ---- start

function start(name) {
  rooms = new Rooms(name, onChange);
  rooms.connect();
  for (const room of store.loadRooms().map(cleanRoom)) if (room) rooms.join(room, store.loadItems(room));
  drawMe();
  show(roomInHash() || "lobby");
  setInterval(() => { if (rooms.isOpen && !document.hidden) rooms.measure(); }, MEASURE_MS);
}

$("empty").append(crowdPicture(140), $("empty-template").content);
// `?as=Name` gives this tab another name, and does not change the stored one.
const address = new URL(location.href);
const as = cleanName(address.searchParams.get("as") ?? "");
if (as) {
  store.saveName(as, { thisTabOnly: true });
  address.searchParams.delete("as");
  history.replaceState(null, "", address);
}
const known = cleanName(store.loadName() ?? "");
if (known) start(known);
else showNameDialog({ isFirst: true });
