// The server's TLS certificates, with the days that are left of each. The card is hidden where no port has TLS. Polled every
// minute while the page is visible.

import * as api from './api.js';
import { card, every, fill, h, text } from './dom.js';

const days = left => (left === 1 ? '1 day' : `${left} days`);

/** The days that are left of a certificate, and what to do. */
const words = ({ not_after: end, days_left: left, ends_soon: soon }) =>
  (end === 0 ? 'none yet' : soon ? `${days(left)}: renew it` : days(left));

const title = end => (end === 0 ? 'Self-signed by the server until an authority signs one' : `Valid until ${new Date(end * 1000).toLocaleString()}`);

export function certificates() {
  const rows = h('dl.figures');
  const note = h('p.empty', { hidden: true });
  const element = card('Certificates', {}, note, rows);
  element.classList.add('certificates');
  element.hidden = true;
  const poll = every(60_000, async signal => {
    try {
      const { certificates: list } = await api.get('/api/certificates', signal);
      element.hidden = list.length === 0;
      note.hidden = true;
      const names = list.map(({ name }) => name);
      fill(rows, names.join(), () => names.map(name => h('div', {}, h('dt', {}, name), h('dd'))));
      list.forEach((certificate, at) => text(rows.children[at].lastChild, words(certificate), title(certificate.not_after)));
    } catch (error) {
      if (error.name === 'AbortError') return;
      text(note, error.message);
      note.hidden = false;
    }
  });
  return { element, close: poll.stop };
}
