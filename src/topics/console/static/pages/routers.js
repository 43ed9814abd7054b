// Routers: source, destination, lag, and the reason why one is blocked.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { count, plural, short } from "../format.js";
import { graph } from "../graph.js";
import { topicLink } from "../links.js";
import { badge, empty, table, textField } from "../parts.js";

const PAGE = 200;
const DRAWN = 80;
const LOOK_MS = 2000;

export default async function render(context) {
  const prefix = textField({ type: "search", placeholder: "Routers whose names begin with…", "aria-label": "Routers whose names begin with", "data-slash": true, value: context.query.get("prefix") ?? "" });
  const drawing = h("div.scrolls.drawing", { tabindex: "0", role: "region", "aria-label": "Graph of routers" });
  const list = table("Routers", [
    { title: "Router", class: "name", cell: (one) => one.router },
    { title: "From", class: "name", cell: (one) => h("a", { href: topicLink(one.source) }, one.source) },
    { title: "To", class: "name", cell: (one) => h("a", { href: topicLink(one.dest) }, one.dest) },
    { title: "Forwarded", class: "number", cell: (one) => h("span", { title: count(one.forwarded_total) }, short(one.forwarded_total)) },
    { title: "Lag", class: "number", cell: (one) => (one.lag === undefined ? "" : count(one.lag)) },
    { title: "State", cell: (one) => [one.guarantee === "exactly_once" ? badge("exactly once") : null, state(one)] },
  ]);
  const none = h("div", { hidden: true }, empty("No routers", "A router copies the records of one topic into another. Create one with PUT /v0/routers/{router}."));
  const told = h("p.soft", { role: "status" });
  context.put("Routers", h("div.row", h("div.grow", prefix), told), drawing, list.element, none);
  prefix.addEventListener("input", () => { context.note({ prefix: prefix.value }); look().catch(() => {}); });
  let asked = 0;
  let drawn = "";
  await context.every(LOOK_MS, look);

  async function look() {
    const turn = (asked += 1);
    const page = await get("/v0/routers", { prefix: prefix.value, page_size: PAGE }, context.signal);
    const near = await Promise.all(page.routers.slice(0, DRAWN).map((one) => get(`/v0/routers/${encodeURIComponent(one.router)}`, {}, context.signal).catch(() => one)));
    if (turn !== asked) return;
    const all = [...near, ...page.routers.slice(DRAWN)];
    list.show(all);
    list.element.hidden = drawing.hidden = !all.length;
    none.hidden = all.length > 0;
    told.textContent = page.next_cursor ? `The first ${PAGE} are shown. Type more of the name to find others.` : plural(all.length, "router");
    // Redrawn only when it changes, so that it keeps its scroll position.
    const looks = JSON.stringify(near.map((one) => [one.router, one.lag, one.blocked, one.blocked_by]));
    if (looks !== drawn && near.length) fill(drawing, graph(near));
    drawn = looks;
  }
}

function state(one) {
  if (one.blocked === undefined) return null;
  if (one.blocked) return badge(`blocked: ${one.blocked_by ?? "?"}${one.blocked_seq ? ` at ${one.blocked_seq}` : ""}`, "bad");
  return one.lag ? badge("catching up", "warn") : badge("up to date", "good");
}
