// Routers as a graph: topics in columns, from where records come to where they go.

import { svg } from "./dom.js";
import { short } from "./format.js";
import { topicLink } from "./links.js";

const BOX = { w: 190, h: 34, gapX: 130, gapY: 20 };
const EDGE = 20;

/** The column of each topic: one behind its source; what closes a cycle is left out of the count. */
export function columns(routers) {
  const next = Map.groupBy(routers, (one) => one.source);
  const arriving = new Set(routers.map((one) => one.dest));
  const column = new Map();
  const visit = (topic, at, path) => {
    if (path.has(topic) || (column.get(topic) ?? -1) >= at) return;
    column.set(topic, at);
    path.add(topic);
    for (const { dest } of next.get(topic) ?? []) visit(dest, at + 1, path);
    path.delete(topic);
  };
  const topics = [...new Set(routers.flatMap((one) => [one.source, one.dest]))];
  for (const topic of topics) if (!arriving.has(topic)) visit(topic, 0, new Set());
  // The remaining topics are in cycles.
  for (const topic of topics) if (!column.has(topic)) visit(topic, 0, new Set());
  return column;
}

/** Within a column, topics stand in the order of their sources, so that lines cross as little as that allows. */
function layout(routers) {
  const column = columns(routers);
  const byColumn = [];
  for (const [topic, at] of column) (byColumn[at] ??= []).push(topic);
  const place = new Map();
  const source = new Map(routers.map((one) => [one.dest, one.source]));
  byColumn.forEach((topics, x) => {
    topics.sort((a, b) => (place.get(source.get(a))?.y ?? 0) - (place.get(source.get(b))?.y ?? 0) || (a < b ? -1 : 1));
    topics.forEach((topic, y) => place.set(topic, { x: EDGE + x * (BOX.w + BOX.gapX), y: EDGE + y * (BOX.h + BOX.gapY) }));
  });
  const deepest = Math.max(...byColumn.map((topics) => topics.length));
  return { place, width: EDGE * 2 + byColumn.length * (BOX.w + BOX.gapX) - BOX.gapX, height: EDGE * 2 + deepest * (BOX.h + BOX.gapY) - BOX.gapY };
}

export function graph(routers) {
  const { place, width, height } = layout(routers);
  const said = `${routers.length} routers between ${place.size} topics; the table below has them in words.`;
  return svg("svg.graph", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": said },
    routers.map((one) => edge(one, place.get(one.source), place.get(one.dest))),
    [...place].map(([topic, { x, y }]) => svg("a", { href: topicLink(topic) },
      svg("title", topic), svg("rect", { x, y, width: BOX.w, height: BOX.h, rx: 8 }),
      svg("text", { x: x + 12, y: y + 21.5 }, topic.length > 24 ? `${topic.slice(0, 23)}…` : topic))));
}

function edge(router, from, to) {
  const x1 = from.x + BOX.w;
  const y1 = from.y + BOX.h / 2;
  const x2 = to.x;
  const y2 = to.y + BOX.h / 2;
  const bend = Math.max(40, Math.abs(x2 - x1) / 2);
  const kind = router.blocked ? "blocked" : router.lag > 0 ? "behind" : "";
  const word = router.blocked ? `blocked: ${router.blocked_by ?? "?"}` : router.lag > 0 ? `${short(router.lag)} behind` : "";
  return svg("g.edge", { class: kind }, svg("title", `${router.router}: ${word || "up to date"}`),
    svg("path", { d: `M${x1},${y1}C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2 - 7},${y2}` }),
    svg("path.tip", { d: `M${x2 - 8},${y2 - 4.5}L${x2},${y2}L${x2 - 8},${y2 + 4.5}Z` }),
    word ? svg("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 6, "text-anchor": "middle" }, word) : null);
}
