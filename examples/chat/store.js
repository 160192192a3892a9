// The data that outlive a reload. The browser stores the name and the rooms; the tab stores the messages that it
// showed, so that a reloaded page only requests those that it missed.

const SAVED_ITEMS_MAX = 200;
export const FIRST_ROOMS = ["lobby", "ideas", "help", "off-topic"];

// Storage throws when it is full, or switched off in private windows: the chat works without it.
function read(storage, key) {
  try { return JSON.parse(window[storage].getItem(`throng.${key}`)); } catch { return null; }
}
function write(storage, key, value) {
  try { window[storage].setItem(`throng.${key}`, JSON.stringify(value)); } catch { /* see above */ }
}

/** The tab's own name goes first, so that two tabs may be two users. */
export const loadName = () => read("sessionStorage", "name") ?? read("localStorage", "name");
export function saveName(name, { thisTabOnly = false } = {}) {
  write("sessionStorage", "name", name);
  if (!thisTabOnly) write("localStorage", "name", name);
}

export function loadRooms() {
  const rooms = read("localStorage", "rooms");
  return Array.isArray(rooms) && rooms.every(room => typeof room === "string") ? rooms : FIRST_ROOMS;
}
export const saveRooms = rooms => write("localStorage", "rooms", rooms);

export const loadTheme = () => read("localStorage", "theme") ?? "auto";
export const saveTheme = theme => write("localStorage", "theme", theme);

export function loadItems(room) {
  const items = read("sessionStorage", `log.${room}`);
  return Array.isArray(items) ? items : [];
}
export const saveItems = (room, items) => write("sessionStorage", `log.${room}`, items.slice(-SAVED_ITEMS_MAX));
