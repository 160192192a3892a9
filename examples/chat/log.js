// The messages of one room on the screen: grouped by author and time, scrolled to the end while you are there. User
// text only goes into text nodes.
import { clock, count, day, hue, initials, isEmojiOnly, nameList, withLinks } from "./text.js";

const GROUP_MS_MAX = 5 * 60_000;
const END_PX = 48;
const HAND_MS_MAX = 1000;

export function element(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

export function avatar(name) {
  const node = element("span", "avatar", initials(name));
  node.style.setProperty("--hue", hue(name));
  node.setAttribute("aria-hidden", "true");
  return node;
}

/** A crowd as a picture: one dot a person, packed like the seeds of a sunflower. */
export function crowdPicture(dots, names = []) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const reach = 8 * Math.sqrt(dots) + 8;
  svg.setAttribute("viewBox", `${-reach} ${-reach} ${2 * reach} ${2 * reach}`);
  svg.setAttribute("class", "crowd");
  svg.setAttribute("aria-hidden", "true");
  for (let n = 0; n < dots; n++) {
    const dot = document.createElementNS(svg.namespaceURI, "circle");
    const turn = n * 2.399963, away = 8 * Math.sqrt(n + .5);
    dot.setAttribute("cx", (away * Math.cos(turn)).toFixed(1));
    dot.setAttribute("cy", (away * Math.sin(turn)).toFixed(1));
    dot.setAttribute("r", (5.2 - 2.2 * n / dots).toFixed(1));
    dot.setAttribute("class", `tone${(n * 7) % 5}`);
    if (names[n]) dot.style.setProperty("--hue", hue(names[n]));
    svg.append(dot);
  }
  return svg;
}

export class Log {
  /** `retry` and `discard` are called with an item that failed; `seen` when the end is in view. */
  constructor({ scroller, log, pill, empty, retry, discard, seen }) {
    Object.assign(this, { scroller, log, pill, empty, retry, discard, seen });
    this.nodes = new Map();
    this.room = null;
    this.isAtEnd = true;
    this.below = 0;
    this.scrollTop = 0;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.handAt = -Infinity;
    for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) {
      scroller.addEventListener(kind, () => {
        this.handAt = performance.now();
        this.scrollTop = scroller.scrollTop;
      }, { passive: true });
    }
    pill.addEventListener("click", () => this.toEnd());
    // The keyboard of a phone, or a growing composer, must not cover the last message.
    new ResizeObserver(() => { if (this.isAtEnd) this.toEnd({ smooth: false }); }).observe(scroller);
  }

  show(room) {
    this.room = room;
    // Otherwise a screen reader would read the whole room on every change of rooms.
    this.log.setAttribute("aria-live", "off");
    this.log.setAttribute("aria-label", `Messages in ${room.name}`);
    this.log.replaceChildren();
    this.nodes.clear();
    this.last = null;
    const firstUnread = room.unread > 0 ? room.items.filter(item => item.kind !== "notice" && !item.mine).at(-room.unread) : null;
    let divider = null;
    for (const item of room.items) {
      if (item === firstUnread && item !== room.items[0]) {
        divider = element("p", "divider new", element("span", "", "New"));
        this.log.append(divider);
        this.last = null;
      }
      this.#place(item);
    }
    this.#showEmpty();
    this.toEnd({ smooth: false });
    if (!this.empty.hidden) this.scroller.scrollTop = 0;
    // If there are more unread messages than fit on the screen, begin at the first of them.
    if (divider && divider.offsetTop < this.scroller.scrollTop) {
      this.scroller.scrollTop = divider.offsetTop - 12;
      this.isAtEnd = false;
      this.#setBelow(0);
    }
    this.scrollTop = this.scroller.scrollTop;
    requestAnimationFrame(() => this.log.setAttribute("aria-live", "polite"));
  }

  append(item) {
    this.#place(item);
    this.#showEmpty();
    if (item.mine || this.isAtEnd) this.#follow();
    else if (item.kind !== "notice") this.#setBelow(this.below + 1);
  }

  change(item) {
    const node = this.nodes.get(item);
    if (!node) return;
    if (item.kind === "notice") node.textContent = noticeText(item);
    else this.#drawState(item, node);
    if (this.isAtEnd) this.toEnd({ smooth: false });
  }

  remove(item) {
    const node = this.nodes.get(item);
    this.nodes.delete(item);
    const group = node?.closest(".group");
    node?.remove();
    if (group && !group.querySelector(".bubble-row")) group.remove();
    if (this.last?.item === item || !this.last?.group?.isConnected) this.last = null;
    this.#showEmpty();
  }

  toEnd({ smooth = true } = {}) {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.isAtEnd = true;
    this.#setBelow(0);
    this.scroller.scrollTo({ top: this.scroller.scrollHeight, behavior: smooth && !calm ? "smooth" : "instant" });
    this.seen();
  }

  /** Scrolls to the end with the next frame, once for all messages of this frame. */
  #follow() {
    this.isAtEnd = true;
    if (this.isFollowing) return this.isHurried = true;
    this.isFollowing = true;
    (document.hidden ? setTimeout : requestAnimationFrame)(() => {
      if (this.isAtEnd) this.toEnd({ smooth: !this.isHurried });
      this.isFollowing = this.isHurried = false;
    });
  }

  #scrolled() {
    const gap = this.scroller.scrollHeight - this.scroller.clientHeight - this.scroller.scrollTop;
    // The browser scrolls by itself, too: smoothly to the end, and when old messages disappear. So only an upward
    // scroll soon after the user's input leaves the end. Each one extends that time, since momentum scrolling goes on.
    const now = performance.now();
    const isUp = this.scroller.scrollTop < this.scrollTop && now - this.handAt < HAND_MS_MAX;
    if (isUp) this.handAt = now;
    this.scrollTop = this.scroller.scrollTop;
    if (gap <= END_PX) {
      this.isAtEnd = true;
      this.#setBelow(0);
      this.seen();
    } else if (isUp) {
      this.isAtEnd = false;
      this.#setBelow(this.below);
    }
  }

  #setBelow(number) {
    this.below = number;
    this.pill.hidden = this.isAtEnd;
    this.pill.textContent = number ? `${count(number, "new message")} ↓` : "Latest ↓";
  }

  #showEmpty() {
    this.empty.hidden = this.room.items.some(item => item.kind !== "notice");
  }

  #place(item) {
    const last = this.last;
    if (!last || day(last.item.at) !== day(item.at)) {
      if (day(item.at) !== day(Date.now())) this.log.append(element("p", "divider", element("span", "", day(item.at))));
    }
    if (item.kind === "message") return this.#placeMessage(item, last);
    const node = item.kind === "notice" ? element("p", "notice", noticeText(item)) : appMessage(item);
    this.log.append(node);
    this.nodes.set(item, node);
    this.last = { item };
  }

  #placeMessage(item, last) {
    const follows = last?.group && last.item.user === item.user && Boolean(last.item.mine) === Boolean(item.mine) && item.at - last.item.at < GROUP_MS_MAX;
    let group = follows ? last.group : null;
    if (!group) {
      const head = element("p", "head", element("strong", "", item.mine ? "You" : item.user), " ", element("time", "", clock(item.at)));
      group = element("div", `group ${item.mine ? "mine" : "theirs"}`, avatar(item.user), element("div", "stack", head));
      this.log.append(group);
    }
    const bubble = element("div", isEmojiOnly(item.text) ? "bubble emoji" : "bubble", withLinks(item.text));
    bubble.dir = "auto";
    bubble.title = new Date(item.at).toLocaleString();
    const row = element("div", "bubble-row", bubble);
    group.lastElementChild.append(row);
    this.nodes.set(item, row);
    if (item.mine) this.#drawState(item, row);
    this.last = { item, group };
  }

  #drawState(item, row) {
    if (!item.mine) return;
    row.dataset.state = item.state;
    row.querySelector(".state")?.remove();
    const state = element("p", "state");
    if (item.state === "failed") {
      const again = element("button", "link", "Send again");
      const drop = element("button", "link", "Discard");
      again.type = drop.type = "button";
      again.addEventListener("click", () => this.retry(item));
      drop.addEventListener("click", () => this.discard(item));
      state.append(`Not sent: ${item.reason}. `, again, " · ", drop);
    } else {
      state.textContent = { queued: "Waiting to be sent", sending: "Sending…", sent: "Sent" }[item.state];
    }
    row.append(state);
  }
}

function noticeText({ joined, left }) {
  const parts = [];
  if (joined.length) parts.push(`${nameList(joined)} joined`);
  if (left.length) parts.push(`${nameList(left)} left`);
  return parts.join(" · ");
}

function appMessage(item) {
  const head = element("p", "head", element("strong", "", item.user || "Application"), " ");
  if (item.event !== "message") head.append(element("code", "event", item.event), " ");
  head.append(element("time", "", clock(item.at)));
  const text = element(item.isCode ? "pre" : "div", "app-text", item.isCode ? item.text : withLinks(item.text));
  text.dir = "auto";
  const mark = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  mark.setAttribute("class", "mark");
  mark.setAttribute("viewBox", "0 0 24 24");
  mark.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(mark.namespaceURI, "use");
  use.setAttribute("href", "#mark");
  mark.append(use);
  return element("div", "app-message", mark, element("div", "", head, text));
}
