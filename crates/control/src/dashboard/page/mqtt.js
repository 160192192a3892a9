// MQTT: how many clients and sessions there are, the sessions, and what is retained.

import * as api from './api.js';
import { card, every, fill, h, text } from './dom.js';
import { bytes, count, exact, percent } from './format.js';
import { store, subscribe } from './live.js';
import { retained } from './mqtt_retained.js';
import { sessions } from './mqtt_sessions.js';
import { tiles } from './tiles.js';

const clients = sample => sample.transports?.mqtt ?? 0;

/** As the tiles of the overview. */
const TILES = [
  ['Clients', clients, sample => ({
    main: count(clients(sample)), title: exact(clients(sample), 'connected clients'), note: `${percent(clients(sample), sample.connections)} of connections` })],
  ['Sessions away', sample => sample.mqtt_away, sample => ({
    main: count(sample.mqtt_away), title: exact(sample.mqtt_away, 'sessions whose clients are disconnected'), note: 'their clients may reconnect' })],
  ['Retained', sample => sample.mqtt_retained, sample => ({
    main: count(sample.mqtt_retained), title: exact(sample.mqtt_retained, 'retained messages'), note: bytes(sample.mqtt_retained_bytes) })],
];

/** Name, value, title, and whether it is a warning. */
const lines = mqtt => [
  ['Persistent sessions', count(mqtt.sessions_kept), 'Sessions that outlive their connections, including those of connected clients'],
  ['Filters', count(mqtt.filters), 'Different topic filters for which messages are retained for sessions'],
  ['Taken over', count(mqtt.taken_over), 'Connections that a newer connection of the same client replaced, since the start'],
  ['Sent again', count(mqtt.repeated), 'Messages that were sent again to clients on a new connection, since the start'],
  ['Lost', count(mqtt.gone), 'Messages that expired, or that a limit of the history dropped, before they could be sent'],
  ['Expired', count(mqtt.sessions_expired), 'Sessions that expired, since the start'],
  ['Not persistent', count(mqtt.sessions_refused), 'Sessions that ended with their connections because of a limit (mqtt.sessions_max, mqtt.sessions_per_user_max, mqtt.away_bytes_max)'],
  ['Not retained', count(mqtt.retained_refused), 'Messages that were not retained because of a limit (mqtt.retained_messages_max, mqtt.retained_bytes_max)'],
];

function figures() {
  const list = h('dl.figures');
  const note = h('p.empty', {}, 'Loading…');
  const poll = every(5000, async signal => {
    try {
      const { mqtt } = await api.get('/api/stats', signal);
      const shown = lines(mqtt);
      fill(list, 'made', () => shown.map(([name]) => h('div', {}, h('dt', {}, name), h('dd'))));
      shown.forEach(([, value, title], at) => text(list.children[at].lastChild, value, title));
      note.hidden = true;
    } catch (error) {
      if (error.name === 'AbortError') return;
      note.hidden = false;
      note.textContent = error.message;
    }
  });
  return { element: card('Sessions and messages', {}, note, list), close: poll.stop };
}

export function view() {
  const head = tiles(TILES);
  const parts = [figures(), sessions(), retained()];
  const update = () => {
    const sample = store.samples.at(-1);
    if (sample) head.update(sample);
  };
  const unsubscribe = subscribe(update);
  const element = h('div', {},
    h('div.view-head', {}, h('h1', {}, 'MQTT')),
    h('div.mqtt-head', {}, head.element, parts[0].element),
    h('div.column.mqtt', {}, parts[1].element, parts[2].element));
  return { title: 'MQTT', element, shown: update, close: () => {
    unsubscribe();
    head.close();
    parts.forEach(part => part.close());
  } };
}
