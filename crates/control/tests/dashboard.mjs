// Tests the dashboard's logic without a page. dashboard.rs runs this file with `node --test`.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';

/** Loads a module as data, since the modules are served without a package.json. */
async function load(name) {
  const text = await readFile(new URL(`../src/dashboard/page/${name}`, import.meta.url), 'utf8');
  return import(`data:text/javascript,${encodeURIComponent(text)}`);
}

const { EventStreamParser } = await load('sse.js');
const format = await load('format.js');
const scale = await load('scale.js');
const series = await load('samples.js');
const route = await load('route.js');
const { pieces } = await load('toml.js');

const STREAM = '\uFEFFretry: 5\n: hello\n\nevent: sample\r\ndata: {"a":\r\ndata:1}\r\n\r\nid: 7\rdata\rdata: b: c\r\revent: lost\ndata: x\n';
const EVENTS = [{ event: 'sample', data: '{"a":\n1}', id: '' }, { event: 'message', data: '\nb: c', id: '7' }];

test('an event stream is the same however it is cut', () => {
  assert.deepEqual(new EventStreamParser().push(STREAM), EVENTS);
  for (let cut = 0; cut <= STREAM.length; cut += 1) {
    const parser = new EventStreamParser();
    assert.deepEqual([...parser.push(STREAM.slice(0, cut)), ...parser.push(STREAM.slice(cut))], EVENTS, `cut at ${cut}`);
  }
  const parser = new EventStreamParser();
  assert.deepEqual([...STREAM].flatMap(character => parser.push(character)), EVENTS);
});

test('an event stream without data or without an end has no event', () => {
  const parser = new EventStreamParser();
  assert.deepEqual(parser.push('event: sample\n\n:\n\n\n'), []);
  assert.deepEqual(parser.push('data: later'), []);
  assert.deepEqual(parser.push('\n\n'), [{ event: 'message', data: 'later', id: '' }]);
  assert.throws(() => parser.push('x'.repeat(5_000_000)), RangeError);
  const lines = new EventStreamParser();
  assert.throws(() => lines.push(`data: ${'x'.repeat(999)}\n`.repeat(5_000)), RangeError);
});

test('numbers have three digits and a unit', () => {
  const cases = [[0, '0'], [7, '7'], [0.42, '0.42'], [1.5, '1.5'], [12.34, '12.3'], [999, '999'], [999.4, '999'],
    [999.6, '1.00 k'], [1000, '1.00 k'], [12_345, '12.3 k'], [99_960, '100 k'], [999_499, '999 k'],
    [999_500, '1.00 M'], [2_858_634, '2.86 M'], [5e15, '5000 T'], [-1500, '−1.50 k'],
    [undefined, '–'], [null, '–'], [NaN, '–'], [Infinity, '–']];
  for (const [value, want] of cases) assert.equal(format.count(value), want, String(value));
  assert.equal(format.bytes(107.4), '107 B');
  assert.equal(format.bytes(2210), '2.21 kB');
  assert.equal(format.bytes(0), '0 B');
});

test('times, cores and shares', () => {
  const times = [[0, '0 ms'], [0.0005, '0.50 µs'], [0.35, '350 µs'], [0.9999, '1.00 ms'], [1.2, '1.20 ms'], [12.34, '12.3 ms'],
    [250, '250 ms'], [999.6, '1.00 s'], [1500, '1.50 s'], [65_000, '65 s'], [null, '–']];
  for (const [value, want] of times) assert.equal(format.milliseconds(value), want, String(value));
  assert.deepEqual([0.416, 12.34, 128, undefined].map(format.cores), ['0.42', '12.3', '128', '–']);
  assert.deepEqual([[1, 2], [1, 10_000], [0, 5], [5, 5], [1, 0]].map(([part, whole]) => format.percent(part, whole)),
    ['50.0 %', '< 0.1 %', '0 %', '100 %', '–']);
  assert.deepEqual([-1, 8, 65, 3_700, 93_784].map(format.duration), ['0 s', '8 s', '1 min 5 s', '1 h 1 min', '1 d 2 h']);
  assert.equal(format.minutes(448), '7:28');
  assert.deepEqual([format.ago(5_000, 5_000), format.ago(1_000, 66_000)], ['now', '1 min 5 s ago']);
  assert.match(format.clock(0), /^\d\d:\d\d:\d\d$/);
  assert.deepEqual([format.exact(12_345.678), format.exact(0.5, 'ms'), format.exact(null)], ['12,345.7', '0.5 ms', 'no value']);
  assert.equal(format.words('slow_consumer'), 'slow consumer');
});

test('marks of an axis have no zeros that say nothing', () => {
  const brief = (name, value) => format.brief(format[name])(value);
  assert.deepEqual([brief('count', 5000), brief('count', 10_000), brief('count', 100), brief('bytes', 2500),
    brief('milliseconds', 1), brief('cores', 4), brief('cores', 0.5)], ['5 k', '10 k', '100', '2.5 kB', '1 ms', '4', '0.5']);
});

test('axes hold all values, in order', () => {
  for (const max of [0, 0.3, 1, 7, 99, 100, 101, 612_345]) {
    const axis = scale.linear(max, 0.4);
    assert.ok(axis.end >= max && axis.ticks.length >= 3 && axis.ticks.length <= 6, `${max}: ${axis.ticks}`);
    assert.equal(axis.at(axis.end), 1);
    const both = scale.mirrored(max);
    assert.equal(both.at(0), 0.5);
    assert.ok(both.end >= max && both.ticks.includes(0) && both.ticks[0] === -both.ticks.at(-1), `${max}: ${both.ticks}`);
    const log = scale.logarithmic(max);
    assert.equal(log.at(0), 0);
    assert.ok(log.end >= max && log.ticks.length <= 7, `${max}: ${log.ticks}`);
    assert.ok(log.at(1) > 0 && log.at(10) > log.at(1));
  }
  const latency = scale.decades(0.3, 18);
  assert.deepEqual(latency.ticks, [0.1, 1, 10, 100]);
  assert.equal(latency.at(0.01), 0);
  assert.deepEqual(scale.decades(1, 1).ticks, [1, 10]);
});

test('the sample at a time, and holes between samples', () => {
  const samples = [1000, 2000, 3000, 9000, 10_000].map(at => ({ at }));
  const cases = [[0, 0], [1400, 0], [1600, 1], [5900, 2], [6100, 3], [99_000, 4]];
  for (const [at, want] of cases) assert.equal(scale.nearest(samples, at), want, String(at));
  assert.deepEqual(scale.runs(samples), [[0, 3], [3, 5]]);
  assert.deepEqual(scale.runs([]), []);
  assert.deepEqual([[], [0], [0, 60_000], [0, 61_000], [0, 400_000], [0, 9e9]].map(times => scale.span(times.map(at => ({ at })))),
    [60, 60, 60, 180, 900, 900]);
});

test('columns and live samples become the same', () => {
  const [sample] = series.fromColumns({ at: [5], opened: [2], p50: [1], p90: [2], p99: [null],
    transports: { ws: [3] }, closed_by: { client: [1] } });
  const live = series.fromLive({ at: 5, opened: 2, latency_ms: { p50: 1, p90: 2 }, transports: { ws: 3 }, closed_by: { client: 1 } });
  delete live.latency_ms;
  assert.deepEqual(sample, live);
  assert.equal(series.fromLive({ at: 1, latency_ms: null }).p99, null);
  assert.deepEqual(series.fromColumns({}), []);
});

test('the series holds 15 minutes, each second once', () => {
  const samples = [];
  for (let second = 0; second < 2000; second += 1) series.add(samples, { at: second * 1000, second });
  assert.equal(samples.length, 900);
  series.add(samples, { at: 1_999_000, second: 'again' });
  assert.deepEqual([samples.length, samples.at(-1).second], [900, 'again']);
  series.add(samples, { at: 9_999_000 });
  assert.equal(samples.length, 1);
});

test('the series follows a clock that goes back', () => {
  const samples = [];
  for (const at of [1000, 2000, 3000, 9000, 2500, 3500]) series.add(samples, { at });
  assert.deepEqual(samples.map(({ at }) => at), [1000, 2000, 2500, 3500]);
  series.add(samples, { at: 5 });
  series.add(samples, { at: 1005 });
  assert.deepEqual(samples.map(({ at }) => at), [5, 1005]);
});

test('a call has its time for each try, and who declines to sign in is not asked again', async () => {
  const api = await load('api.js');
  const [signals, sent] = [[], []];
  let session;
  globalThis.fetch = async (path, { signal, method = 'GET', headers = {}, body }) => {
    signals.push(signal);
    sent.push([method, path, headers['X-Throng-Session']]);
    const answer = (status, value) => new Response(JSON.stringify(value), { status });
    if (method === 'POST' && path === '/api/session') {
      if (JSON.parse(body).key !== 'right') return answer(401, { error: { code: 'bad_key', message: 'wrong' } });
      session = { key: 'ops', scopes: ['read'] };
      return answer(200, { ...session, seconds: 60 });
    }
    if (!session) return answer(401, { error: { code: 'no_key', message: 'key' } });
    return answer(200, path === '/api/session' ? session : { fine: true });
  };
  let asked = 0;
  api.askKeyWith(async () => {
    asked += 1;
    throw new api.ApiError(401, 'no_key', 'declined');
  });
  await assert.rejects(api.get('/x'), { status: 401, message: 'declined' });
  await assert.rejects(api.get('/x'), { status: 401, message: 'declined' });
  assert.equal(asked, 1);
  await assert.rejects(api.post('/x', {}), { message: 'declined' });
  assert.equal(asked, 2);
  let changes = 0;
  api.onCaller(() => { changes += 1; });
  api.askKeyWith(async error => {
    assert.equal(error.code, 'no_key');
    await assert.rejects(api.signIn('wrong'), { status: 401, code: 'bad_key', message: 'wrong' });
    await api.signIn('right');
  });
  await assert.rejects(api.get('/x'), { message: 'declined' });
  assert.deepEqual([api.who(), api.lacks('admin')], [undefined, '']);
  api.askAgain();
  signals.length = 0;
  assert.deepEqual(await api.get('/x'), { fine: true });
  assert.equal(new Set(signals).size, 4);
  await api.identify();
  assert.deepEqual([api.who(), changes], [{ key: 'ops', scopes: ['read'] }, 1]);
  assert.match(api.lacks('admin'), /“ops”.*scope admin/);
  assert.match(api.lacks('publish'), /publish:… or admin/);
  session = { key: 'ops', scopes: ['read', 'publish:a'] };
  await api.identify();
  assert.deepEqual([api.lacks('publish'), changes], ['', 2]);
  assert.deepEqual(await api.post('/y', {}), { fine: true });
  assert.deepEqual(sent.at(-1), ['POST', '/y', '1']);
  assert.deepEqual(await api.remove('/z'), { fine: true });
  assert.deepEqual(sent.at(-1), ['DELETE', '/z', '1']);
  globalThis.fetch = async () => { throw new DOMException('late', 'TimeoutError'); };
  await assert.rejects(api.get('/x'), { code: 'late' });
  assert.equal(api.segment('a/b'), 'a%2Fb');
  for (const name of ['.', '..']) assert.throws(() => api.segment(name), { code: 'folded' });
});

test('names of a group: known ones in their order, then others, without zeros', () => {
  const samples = [{ t: { b: 1, zz: 2, a: 0 } }, { t: { c: 3 } }, {}];
  assert.deepEqual(series.names(samples, 't', ['c', 'a', 'b']), ['c', 'b', 'zz']);
});

test('addresses lead to views and back, whatever the name', () => {
  for (const name of ['room:1', 'a/b', 'ä ß', '100%', '?#&', '@x', '..', '<b>']) {
    assert.deepEqual(route.parse(route.href('topic', name)), { view: 'topic', name });
  }
  assert.deepEqual(['', '#', '#/', '#/config', '#/help', '#/mqtt'].map(hash => route.parse(hash)?.view),
    ['overview', 'overview', 'overview', 'config', 'help', 'mqtt']);
  for (const hash of ['#/nothing', '#/topic', '#/topic/', '#/config/x']) assert.equal(route.parse(hash), undefined, hash);
  assert.deepEqual(route.parse('#/user/100%'), { view: 'user', name: '100%' });
  assert.deepEqual([route.target(' room:1 ', 'topic'), route.target('bob', 'user'), route.target('@al/ice', 'topic'), route.target(' ', 'topic')],
    ['#/topic/room%3A1', '#/user/bob', '#/user/al%2Fice', undefined]);
  assert.deepEqual([route.topicHref('@alice'), route.topicHref('news')], ['#/user/alice', '#/topic/news']);
});

test('highlighting loses nothing of a line', () => {
  const lines = ['[limits]', '  [[a.b]] # c', 'key = "a # b" # c', "k='x' ", 'n = 65_536', 'f = -1.5e3', 'b = true # x', '# all',
    '', 'list = ["a", \'b\', 3]', 'broken = "no end', '"quoted key" = false', 'ünïcode = “x”'];
  for (const line of lines) assert.equal(pieces(line).map(([, text]) => text).join(''), line);
  assert.deepEqual(pieces('key = "a # b" # c'), [['key', 'key'], ['plain', ' = '], ['string', '"a # b"'], ['plain', ' '], ['comment', '# c']]);
  assert.deepEqual(pieces('on = true').at(-1), ['boolean', 'true']);
  assert.deepEqual(pieces('n = 4_096').at(-1), ['number', '4_096']);
});
