// The nodes of the cluster, and this one's connection to NATS. The card is hidden where the node is alone. Polled every two
// seconds while the page is visible.

import * as api from './api.js';
import { card, every, h, showLines } from './dom.js';
import { bytes, count, duration, exact } from './format.js';
import { store } from './live.js';

const label = ({ id, name }) => name || id;
const connections = number => `${count(number)} connections`;

/** The line of another node; `version` is that of this one. */
function otherLine(node, version) {
  const { state, silent_seconds: silent, presence_complete: complete } = node;
  const isOther = node.version !== version;
  const words = [state === 'up' ? connections(node.connections) : state === 'left' ? 'has left' : `silent for ${duration(silent)}`];
  if (state === 'up' && node.draining) words.push('draining');
  if (state === 'up' && !complete) words.push('presence incomplete');
  if (isOther) words.push(`version ${node.version}`);
  return [label(node), words.join(', '), `Throng ${node.version}, id ${node.id}`, state === 'silent' || (state === 'up' && !complete)];
}

function natsLine({ connected, seconds, error, losses, queue_bytes: queue }) {
  return ['NATS', connected ? `connected for ${duration(seconds)}` : `disconnected for ${duration(seconds)}`,
    `${error ?? 'No error'}; lost ${exact(losses, 'times')}; ${bytes(queue)} queued`, !connected];
}

function lines({ node, nodes, nats, messages }) {
  const here = [connections(node.connections), node.draining && 'draining'].filter(Boolean).join(', ');
  return [
    [`${label(node)} (this one)`, here, `Throng ${node.version}, id ${node.id}`],
    ...nodes.map(it => otherLine(it, node.version)),
    natsLine(nats),
    ['Lost', messages.gaps ? `${count(messages.gaps)} times` : 'nothing',
      'Times that messages between nodes were lost for good since this node began', messages.gaps > 0],
  ];
}

export function nodes() {
  const list = h('dl.keys');
  const element = card('Nodes', {}, list);
  element.hidden = true;
  const poll = every(2000, async signal => {
    element.hidden = !store.node?.is_clustered;
    if (!element.hidden) showLines(list, lines(await api.get('/api/cluster', signal)));
  });
  return { element, close: poll.stop };
}
