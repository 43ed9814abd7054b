// Charts in SVG. Each has a text that states its numbers, for screen readers.

import { fill, h, svg } from "./dom.js";
import { clock, day } from "./format.js";

const W = 300;
const H = 100;

/** A small line without axes. `update(values)` draws it; the last value is at the right edge. */
export function spark(label, { slots = 60, least = 1 } = {}) {
  const line = svg("path.line");
  const area = svg("path.area");
  const title = svg("title", label);
  const element = svg("svg.spark", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, title, area, line);
  return {
    element,
    update(values, said) {
      const shown = values.slice(-slots);
      const top = Math.max(least, ...shown) * 1.08;
      // A young line is drawn wide, and gets narrower as it gets longer.
      const wide = Math.min(slots, Math.max(20, shown.length));
      const step = W / (wide - 1);
      const from = wide - shown.length;
      const points = shown.map((value, i) => `${((from + i) * step).toFixed(1)},${(H - (Math.max(0, value) / top) * H).toFixed(1)}`);
      line.setAttribute("d", points.length ? `M${points.join("L")}` : "");
      area.setAttribute("d", points.length ? `M${(from * step).toFixed(1)},${H}L${points.join("L")}L${W},${H}Z` : "");
      if (said) { element.setAttribute("aria-label", said); title.textContent = said; }
    },
  };
}

/** The smallest round number that is not below `value`: 1, 2 or 5 times a power of ten; of bytes, in units of 1,024. */
export function roundUp(value, isBytes = false) {
  if (!(value > 0)) return 1;
  if (isBytes && value >= 1024) {
    const unit = 1024 ** Math.floor(Math.log2(value) / 10);
    return unit * roundUp(value / unit);
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= value * 0.999);
}

const PARTS = 600;

/** A line over time with both axes. `update({values, step_ms, end_ms})` draws it; a null is a gap in the line. */
export function timeChart(label, shown, isBytes = false) {
  const line = svg("path.line");
  const area = svg("path.area");
  const title = svg("title", label);
  const grid = [0, 0.5, 1].map((part) => svg("line.grid", { x1: 0, x2: W, y1: part * H, y2: part * H }));
  const drawing = svg("svg.spark", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, title, grid, area, line);
  const axisY = h("div.axis-y", { "aria-hidden": "true" });
  const axisX = h("div.axis-x", { "aria-hidden": "true" });
  return {
    element: h("div.time-chart", axisY, h("div.chart", drawing), axisX),
    update({ values, step_ms: step, end_ms: end }, span) {
      const points = thin(values);
      const top = roundUp(points.reduce((most, one) => Math.max(most, one ?? 0), 0), isBytes);
      const wide = Math.max(2, Math.ceil(span / step));
      const place = (at, value) => `${(W - ((values.length - 1 - at) / (wide - 1)) * W).toFixed(2)},${(H - (Math.max(0, value) / top) * H).toFixed(2)}`;
      const each = values.length / Math.max(1, points.length);
      const runs = [];
      let run = null;
      points.forEach((value, i) => {
        if (value === null) { run = null; return; }
        if (run === null) runs.push((run = []));
        run.push(place(i === points.length - 1 ? values.length - 1 : i * each, value));
      });
      line.setAttribute("d", runs.map((one) => `M${one.join("L")}`).join(""));
      area.setAttribute("d", runs.map((one) => `M${one[0].split(",")[0]},${H}L${one.join("L")}L${one.at(-1).split(",")[0]},${H}Z`).join(""));
      fill(axisY, [top, top / 2, 0].map((value) => h("span", shown(value))));
      fill(axisX, [end - span, end - span / 2, end].map((ms) => h("span", when(ms, span))));
      const now = values.findLast((one) => one !== null) ?? 0;
      const said = `${label}: now ${shown(now)}, at most ${shown(values.reduce((most, one) => Math.max(most, one ?? 0), 0))}`;
      drawing.setAttribute("aria-label", said);
      title.textContent = said;
    },
  };
}

/** At most so many points as can be told apart: of those that fall together, the highest. */
function thin(values) {
  if (values.length <= PARTS) return values;
  const each = values.length / PARTS;
  return Array.from({ length: PARTS }, (_, i) => {
    const some = values.slice(Math.floor(i * each), Math.floor((i + 1) * each)).filter((one) => one !== null);
    return some.length ? Math.max(...some) : null;
  });
}

const when = (ms, span) => (span > 864e5 / 2 && day(ms) !== day(Date.now()) ? `${day(ms).slice(5)} ` : "") + clock(ms).slice(0, span > 36e5 ? 5 : 8);

/** Columns over time. `bins` are `{label, value}`; a column can be chosen with the mouse. */
export function bars(label, bins, onpick) {
  const top = Math.max(1, ...bins.map((bin) => bin.value));
  const wide = 600 / Math.max(1, bins.length);
  const marks = bins.map((bin, i) => {
    const tall = bin.value ? Math.max(1.5, (bin.value / top) * H) : 0;
    return svg("rect", {
      x: (i * wide + wide * 0.1).toFixed(2), y: (H - tall).toFixed(2), width: (wide * 0.8).toFixed(2), height: tall.toFixed(2), rx: 1,
      onclick: onpick ? () => onpick(bin) : undefined,
    }, svg("title", `${bin.label}: ${bin.value}`));
  });
  return h("div.bars-chart", h("div.axis-y", { "aria-hidden": "true" }, h("span", top), h("span", 0)),
    svg("svg.bars", { viewBox: `0 0 600 ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, marks));
}

/** The newest values of a chart. */
export class Trail {
  constructor(size = 60) { this.size = size; this.values = []; }
  push(value) {
    this.values.push(value);
    if (this.values.length > this.size) this.values.shift();
  }
}

/** The rate of a counter per second, between two readings. */
export class Rate {
  constructor() { this.last = null; }
  /** Null for the first reading, and when the counter began again. */
  look(value, now = performance.now()) {
    const before = this.last;
    this.last = { value, now };
    if (before === null || value < before.value || now <= before.now) return null;
    return ((value - before.value) * 1000) / (now - before.now);
  }
}

/** A counter at equal steps as its rate per second. A step without a value, or a counter that began again, is null. */
export const ratesOf = (values, stepMs) => values.map((value, i) => {
  const before = values[i - 1];
  return i === 0 || value === null || before === null || value < before ? null : ((value - before) * 1000) / stepMs;
});
