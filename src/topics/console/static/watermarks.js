// First and last seq of a topic, the evicted part, and the distance to its caps.

import { h, svg } from "./dom.js";
import { ago, bytes, count, duration, plural, short } from "./format.js";

const W = 600;

export function watermarks(info) {
  const { head_seq: head, earliest_seq: earliest, count: live, config } = info;
  const said = head === 0 ? "No record was ever appended."
    : `Seqs 1 to ${count(head)} were assigned; ${live ? `the first live record is ${count(earliest)}, and ${plural(live, "record")} ${live === 1 ? "is" : "are"} live` : "no record is live"}.`;
  const gone = head === 0 ? 0 : ((earliest - 1) / head) * W;
  return h("div.card.watermarks",
    h("div.row", h("h2", "Live records"), h("span.soft", `${live === 1 ? "1 record" : `${short(live)} records`}, ${bytes(info.bytes)}`), h("span.grow"),
      h("span.soft", info.last_write_ts ? `last write ${ago(info.last_write_ts)}` : "never written")),
    svg("svg.band", { viewBox: `0 0 ${W} 22`, preserveAspectRatio: "none", role: "img", "aria-label": said },
      svg("title", said),
      svg("rect.gone", { x: 0, y: 4, width: W, height: 14, rx: 3 }),
      svg("rect.live", { x: gone.toFixed(1), y: 4, width: Math.max(live ? 3 : 0, W - gone).toFixed(1), height: 14, rx: 3 })),
    h("div.chart-foot", h("span", earliest > 1 ? `1 to ${count(earliest - 1)} evicted or deleted` : "from 1"), h("span", `head ${count(head)}`)),
    h("div.bounds",
      bound("Records", live, config.cap_records, count, config.discard),
      bound("Bytes", info.bytes, config.cap_bytes, bytes, config.discard),
      config.ttl_ms ? h("p.soft", `Retention time: ${duration(config.ttl_ms)}.`) : null));
}

function bound(name, value, cap, shown, discard) {
  if (!cap) return null;
  const part = Math.min(1, value / cap);
  const kind = discard === "reject" && part > 0.9 ? "bad" : "";
  const then = discard === "reject" ? "then appends are refused" : "then the oldest are evicted";
  return h("div.bound", h("div.row", h("span", name), h("span.soft", `${shown(value)} of ${shown(cap)}; ${then}`)),
    h("span.meter", { role: "img", "aria-label": `${Math.round(part * 100)} % of the cap` }, h("i", { class: kind, vars: { "--part": `${part * 100}%` } })));
}
