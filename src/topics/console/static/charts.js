// Small drawings of numbers. Each says in words what it shows, for those who do not see it.

import { svg } from "./dom.js";

const W = 300;
const H = 100;

/** A line with its shade. `update(values)` draws it anew; the last value is at the right edge. */
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
  return svg("svg.bars", { viewBox: `0 0 600 ${H}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, marks);
}

/** Numbers that come one by one, kept for as long as a chart shows. */
export class Trail {
  constructor(size = 60) { this.size = size; this.values = []; }
  push(value) {
    this.values.push(value);
    if (this.values.length > this.size) this.values.shift();
  }
}

/** What a counter does in a second, between two looks at it. */
export class Rate {
  constructor() { this.last = null; }
  /** Null at the first look, and when the counter began again. */
  look(value, now = performance.now()) {
    const before = this.last;
    this.last = { value, now };
    if (before === null || value < before.value || now <= before.now) return null;
    return ((value - before.value) * 1000) / (now - before.now);
  }
}
