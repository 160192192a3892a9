// Numbers and times for people. Pure: no page is needed, so node can test it.

const NONE = '–';
const STEPS = ['', ' k', ' M', ' G', ' T'];
const BYTES = [' B', ' kB', ' MB', ' GB', ' TB'];

const isNumber = value => typeof value === 'number' && Number.isFinite(value);

/** Three significant digits at most, a unit from `units` (factor 1,000 each). */
function scaled(value, units) {
  if (!isNumber(value)) return NONE;
  const sign = value < 0 ? '−' : '';
  let rest = Math.abs(value);
  let step = 0;
  // 999.5 would be rounded to 1000 of the smaller unit.
  while (rest >= 999.5 && step < units.length - 1) {
    rest /= 1000;
    step += 1;
  }
  return sign + digits(rest, step > 0) + units[step];
}

function digits(value, isScaled) {
  if (value === 0) return '0';
  if (value >= 99.95) return String(Math.round(value));
  if (value >= 9.995) return isScaled || value % 1 ? value.toFixed(1) : String(value);
  if (isScaled) return value.toFixed(2);
  return Number.isInteger(value) ? String(value) : value >= 0.995 ? value.toFixed(1) : value.toFixed(2);
}

/** 12.3 k */
export const count = value => scaled(value, STEPS);

/** 107 B, 2.10 kB (1 kB is 1,000 bytes) */
export const bytes = value => scaled(value, BYTES);

/** Milliseconds as µs, ms or s. */
export function milliseconds(value) {
  if (!isNumber(value)) return NONE;
  if (value === 0) return '0 ms';
  if (value < 0.9995) return `${digits(value * 1000, false)} µs`;
  if (value < 999.5) return `${digits(value, value < 10)} ms`;
  return `${digits(value / 1000, value < 10_000)} s`;
}

/** 0.42; 12.3 */
export function cores(value) {
  if (!isNumber(value)) return NONE;
  return value >= 99.95 ? String(Math.round(value)) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

/** A share of a whole: 4.8 %. */
export function percent(part, whole) {
  if (!isNumber(part) || !isNumber(whole) || whole <= 0) return NONE;
  const value = (part / whole) * 100;
  if (value > 0 && value < 0.1) return '< 0.1 %';
  return `${value >= 99.95 || value === 0 ? Math.round(value) : value.toFixed(1)} %`;
}

/** With all digits, for titles: 12,345.67 */
export function exact(value, unit = '') {
  if (!isNumber(value)) return 'no value';
  const text = value.toLocaleString('en-GB', { maximumFractionDigits: value < 100 ? 3 : 1 });
  return unit ? `${text} ${unit}` : text;
}

/** 3 d 4 h; 12 min 5 s; 8 s */
export function duration(seconds) {
  if (!isNumber(seconds)) return NONE;
  const whole = Math.max(0, Math.floor(seconds));
  const [d, h, m, s] = [
    Math.floor(whole / 86_400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60, whole % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  if (m) return `${m} min ${s} s`;
  return `${s} s`;
}

/** A formatted number without zeros that say nothing, for the marks of an axis: 5.00 k → 5 k */
export const brief = format => value => format(value).replace(/(\.\d*?)0+(?!\d)/, '$1').replace(/\.(?!\d)/, '');

const two = value => String(value).padStart(2, '0');

/** The local time of day of unix milliseconds: 14:03:09 */
export function clock(at) {
  const date = new Date(at);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Seconds as minutes and seconds: 7:28 */
export const minutes = seconds => `${Math.floor(Math.round(seconds) / 60)}:${two(Math.round(seconds) % 60)}`;

/** How long before the newest sample: “now”, 12 s ago, 3 min 5 s ago. */
export function ago(at, newest) {
  const seconds = Math.round((newest - at) / 1000);
  return seconds <= 0 ? 'now' : `${duration(seconds)} ago`;
}

/** A reason or a name of the protocol as words: slow_consumer → slow consumer */
export const words = name => name.replaceAll('_', ' ');
