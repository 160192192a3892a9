// Makes the users' text safe and readable. No function here touches the network or the page's state.

export const NAME_CHARS_MAX = 40;
export const ROOM_CHARS_MAX = 60;
export const MESSAGE_CHARS_MAX = 2000;

const pick = list => list[Math.floor(Math.random() * list.length)];

export function suggestName() {
  const mood = pick(["Merry", "Quiet", "Bright", "Gentle", "Brave", "Sunny", "Clever", "Swift", "Cosy", "Lucky", "Witty", "Calm"]);
  const animal = pick(["Otter", "Heron", "Badger", "Finch", "Hare", "Lynx", "Puffin", "Marten", "Newt", "Robin", "Seal", "Wren"]);
  return `${mood} ${animal}`;
}

/** One line without control or direction-changing characters, at most 40 long; empty when nothing is left. */
export function cleanName(raw) {
  const line = String(raw).normalize("NFC").replace(/[\p{Cc}\p{Cs}\u202a-\u202e\u2066-\u2069]/gu, " ");
  return cut(line.replace(/\s+/g, " ").trim(), NAME_CHARS_MAX);
}

/**
 * A room's name as in topics and links: letters, digits, `-`, `_` and `.`, lower case. So it needs no quotes in a
 * URL's hash and in the shell command that the page shows.
 */
export function cleanRoom(raw) {
  const slug = String(raw).normalize("NFC").toLowerCase().trim().replace(/\s+/g, "-").replace(/[^\p{L}\p{N}\p{M}._-]/gu, "");
  return cut(slug, ROOM_CHARS_MAX);
}

/** Cuts at UTF-16 units, as `maxlength` counts, but never through the middle of a character. */
export function cut(text, units) {
  if (text.length <= units) return text;
  const end = /[\ud800-\udbff]/.test(text[units - 1]) ? units - 1 : units;
  return text.slice(0, end);
}

export function initials(name) {
  const words = name.split(/[\s._-]+/).filter(Boolean);
  const first = word => [...(word ?? "")][0] ?? "";
  return (first(words[0]) + (words.length > 1 ? first(words.at(-1)) : "")).toUpperCase() || "?";
}

/** The same name has the same colour for everyone: a hue in degrees. */
export function hue(name) {
  let hash = 2166136261;
  for (const char of name) hash = Math.imul(hash ^ char.codePointAt(0), 16777619);
  // Similar names must still get different colours.
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return ((hash ^ (hash >>> 16)) >>> 0) % 24 * 15;
}

/** "Ada", "Ada and Bo", "Ada, Bo and 3 others". */
export function nameList(names) {
  if (names.length <= 2) return names.join(" and ");
  if (names.length === 3) return `${names[0]}, ${names[1]} and ${names[2]}`;
  return `${names[0]}, ${names[1]} and ${(names.length - 2).toLocaleString("en")} others`;
}

export const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

const clockFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const dayFormat = new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long" });
export const clock = at => clockFormat.format(at);
export const day = at => dayFormat.format(at);

const EMOJI_ONLY = /^(?:[\p{Extended_Pictographic}\p{Emoji_Modifier}\p{Regional_Indicator}\u200d\ufe0f]\s*){1,12}$/u;
export const isEmojiOnly = text => EMOJI_ONLY.test(text.trim());

/** Returns the text as DOM nodes: text stays text, and http(s) addresses become links. */
export function withLinks(text) {
  const nodes = document.createDocumentFragment();
  let rest = 0;
  for (const match of text.matchAll(/https?:\/\/[^\s<>"]+/gi)) {
    const shown = trimAddress(match[0]);
    if (!URL.canParse(shown)) continue;
    const link = document.createElement("a");
    link.href = shown;
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
    link.textContent = shown;
    nodes.append(text.slice(rest, match.index), link);
    rest = match.index + shown.length;
  }
  nodes.append(text.slice(rest));
  return nodes;
}

/** Punctuation after an address belongs to the sentence; a closing bracket only when it opened inside. */
function trimAddress(address) {
  for (;;) {
    const last = address.at(-1);
    const unopened = last === ")" && address.split("(").length < address.split(")").length;
    if (!unopened && !/[.,;:!?'’”*_~\]}]/.test(last)) return address;
    address = address.slice(0, -1);
  }
}
