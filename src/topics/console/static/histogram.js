// Hits over time: of all hits, by a rollup that counts, or else of the loaded hits.

import { ApiError, post, streamPath } from "./api.js";
import { bars } from "./charts.js";
import { h } from "./dom.js";
import { plural, day, clock } from "./format.js";
import { card } from "./parts.js";

const BINS = 60;
const UNITS = { s: 1e3, m: 6e4, h: 36e5, d: 864e5 };

const timeOf = (value) => {
  const one = [value].flat()[0];
  const ms = typeof one === "number" ? one : Date.parse(one);
  return Number.isFinite(ms) ? ms : null;
};
const span = (interval) => { const [, n, unit] = /^(\d+)([smhd])$/.exec(interval) ?? []; return n ? n * UNITS[unit] : null; };

export async function histogram({ name, search, q, hits, signal, onrange }) {
  const time = search.primaryTimestampField;
  if (!time || !hits.length) return null;
  const rolled = await byRollup({ name, search, q, time, signal });
  // One column has no shape: the loaded hits give a finer one.
  const exactly = rolled !== null && rolled.length > 1;
  const bins = exactly ? rolled : byHits(hits, time);
  if (bins === null || bins.length < 2) return null;
  const sum = bins.reduce((all, bin) => all + bin.value, 0);
  const pick = (bin) => onrange(new Date(bin.from).toISOString(), new Date(bin.to).toISOString());
  return card(exactly ? "Hits over time" : `The first ${plural(hits.length, "hit")} over time`,
    bars(`${plural(sum, "hit")} from ${shown(bins[0].from)} to ${shown(bins.at(-1).to)}`, bins, pick),
    h("div.chart-foot", h("span", shown(bins[0].from)), h("span", shown(bins.at(-1).to))));
}

const shown = (ms) => `${day(ms)} ${clock(ms).slice(0, 8)}`;

function byHits(hits, time) {
  const times = hits.map((hit) => timeOf(hit.fields?.[time])).filter((ms) => ms !== null);
  if (times.length < 2) return null;
  return cut(Math.min(...times), Math.max(...times) + 1, times.map((ms) => [ms, 1]));
}

function cut(from, to, counted, step = Math.max(1, (to - from) / BINS)) {
  const bins = Array.from({ length: Math.ceil((to - from) / step) }, (_, i) => ({ from: from + i * step, to: from + (i + 1) * step, value: 0 }));
  for (const [ms, n] of counted) { const bin = bins[Math.floor((ms - from) / step)]; if (bin) bin.value += n; }
  for (const bin of bins) bin.label = shown(bin.from);
  return bins;
}

async function byRollup({ name, search, q, time, signal }) {
  for (const [rollup, { intervals, measures }] of Object.entries(search.rollups ?? {})) {
    const measure = Object.entries(measures).find(([, one]) => one.kind === "count")?.[0];
    const steps = (intervals ?? []).map((one) => [one, span(one)]).filter(([, ms]) => ms !== null).sort((a, b) => a[1] - b[1]);
    if (measure === undefined || !steps.length) continue;
    try {
      const edge = async (order) => timeOf((await post(`${streamPath(name)}/_search`, { q, size: 1, sort: [`${time}:${order}`], _source: false, fields: [time] }, { signal })).hits[0]?.fields?.[time]);
      const [first, last] = await Promise.all([edge("asc"), edge("desc")]);
      if (first === null || last === null) return null;
      const [interval, step] = steps.find(([, ms]) => (last - first) / ms <= BINS * 2) ?? steps.at(-1);
      const from = Math.floor(first / step) * step;
      const to = last + 1;
      const answer = await post(`${streamPath(name)}/_aggregate`, { rollup, q, interval, from: new Date(from).toISOString(), to: new Date(to).toISOString(), measures: [measure] }, { signal });
      const counted = answer.buckets.map((one) => [Date.parse(one.start), one.groups.reduce((all, group) => all + (group.measures[measure]?.count ?? 0), 0)]);
      return cut(from, to, counted, Math.max(step, Math.ceil((to - from) / step / (BINS * 2)) * step));
    } catch (error) {
      if (error instanceof ApiError) return null;
      throw error;
    }
  }
  return null;
}
