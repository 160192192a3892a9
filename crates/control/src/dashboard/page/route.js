// The part of the address after #, to a view and back. Pure.

export const href = (view, name) => (name === undefined ? `#/${view}` : `#/${view}/${encodeURIComponent(name)}`);

/** {view, name}; undefined where there is no such view. */
export function parse(hash) {
  const [view, ...rest] = hash.replace(/^#?\/?/, '').split('/');
  if (view === '') return { view: 'overview' };
  if (view === 'topic' || view === 'user') {
    const name = decode(rest.join('/'));
    return name ? { view, name } : undefined;
  }
  return ['mqtt', 'config', 'help'].includes(view) && !rest.length ? { view } : undefined;
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** What was typed into the search box: `@alice` is a user whatever is chosen beside it. */
export function target(text, kind) {
  const name = text.trim();
  if (!name) return undefined;
  if (name.startsWith('@') && name.length > 1) return href('user', name.slice(1));
  return href(kind === 'user' ? 'user' : 'topic', name);
}

/** A topic's link: a personal topic's is its user's. */
export const topicHref = topic => (topic.startsWith('@') && topic.length > 1 ? href('user', topic.slice(1)) : href('topic', topic));
