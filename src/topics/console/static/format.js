// Numbers, sizes and times as people read them.

const whole = new Intl.NumberFormat("en");
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const STEPS = [["", 1], ["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]];

export const count = (n) => whole.format(n);
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** 12345 as 12.3k. */
export function short(n) {
  if (!Number.isFinite(n)) return "–";
  const size = Math.abs(n);
  if (size < 1000) return size < 10 && size % 1 ? n.toFixed(1) : String(Math.round(n));
  const [unit, step] = STEPS.findLast(([, least]) => size >= least);
  const value = n / step;
  return `${value >= 100 ? Math.round(value) : value.toFixed(1)}${unit}`;
}

export const rate = (n) => `${short(n)}/s`;

export function bytes(n) {
  let at = 0;
  let value = n;
  while (value >= 1024 && at < SIZES.length - 1) { value /= 1024; at += 1; }
  return `${at === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${SIZES[at]}`;
}

export function duration(ms) {
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.round(s / 86400)} days`;
}

const pad = (n, width = 2) => String(n).padStart(width, "0");

/** The time of day, to the millisecond, where the reader is. */
export function clock(ms) {
  const at = new Date(ms);
  return `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}.${pad(at.getMilliseconds(), 3)}`;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
}

export const moment = (ms) => `${day(ms)} ${clock(ms)}`;
export const iso = (ms) => new Date(ms).toISOString();

export function ago(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return "never";
  const gone = now - ms;
  if (gone < 1500) return gone < -1500 ? `in ${duration(-gone)}` : "just now";
  return `${duration(gone)} ago`;
}
