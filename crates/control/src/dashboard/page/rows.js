// Rows of a table that is asked for again and again: those that are there stay, and keep the focus.

/** `key(item)` names a row; `make(item)` gives its cells anew where `mark(item)` is another; `update(row, item)` the rest. */
export function showRows(body, items, { key, mark, make, update }) {
  const known = new Map([...body.children].map(row => [row.dataset.key, row]));
  const rows = items.map(item => {
    const name = key(item);
    const row = known.get(name) ?? document.createElement('tr');
    const is = JSON.stringify(mark(item));
    if (row.dataset.mark !== is) {
      Object.assign(row.dataset, { key: name, mark: is });
      row.replaceChildren(...make(item));
    }
    update(row, item);
    return row;
  });
  const focused = document.activeElement;
  if (rows.length !== body.children.length || rows.some((row, at) => row !== body.children[at])) body.replaceChildren(...rows);
  if (document.activeElement !== focused && body.contains(focused)) focused.focus({ preventScroll: true });
}

/** What a list is asked for again by: what was typed a moment ago, and how many rows. */
export function asked(poll) {
  let timer;
  const soon = wait => {
    clearTimeout(timer);
    timer = setTimeout(() => poll().now(), wait);
  };
  return { typed: () => soon(250), chosen: () => soon(0), stop: () => clearTimeout(timer) };
}
