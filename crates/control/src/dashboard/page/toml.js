// One line of TOML as pieces [kind, text] for highlighting; it tells no right from wrong. Pure.

const VALUE = /("(?:[^"\\]|\\.)*"?|'[^']*'?)|(#.*$)|\b(true|false)\b|([+-]?\d[\d_.:eExXTZ+-]*)|([^"'#\d+-]+|.)/g;

export function pieces(line) {
  const table = /^(\s*\[\[?[^\]]*\]\]?)(.*)$/.exec(line);
  if (table) return [['table', table[1]], ...value(table[2])];
  const pair = /^(\s*(?:[\w.-]+|"[^"]*"))(\s*=\s*)(.*)$/.exec(line);
  if (pair) return [['key', pair[1]], ['plain', pair[2]], ...value(pair[3])];
  return value(line);
}

function value(text) {
  const found = [];
  for (const [all, string, comment, boolean, number] of text.matchAll(VALUE)) {
    const kind = string ? 'string' : comment ? 'comment' : boolean ? 'boolean' : number ? 'number' : 'plain';
    const last = found.at(-1);
    if (last && last[0] === kind && kind === 'plain') last[1] += all;
    else found.push([kind, all]);
  }
  return found;
}
