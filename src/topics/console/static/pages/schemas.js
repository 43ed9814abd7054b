// Streams that have a schema, found among the streams page by page.

import { ApiError, get, streamPath } from "../api.js";
import { h } from "../dom.js";
import { count, plural } from "../format.js";
import { searchLink, topicLink } from "../links.js";
import { badge, button, empty, newId, table, textField } from "../parts.js";

const PAGE = 100;
const AT_ONCE = 10;

/** Whether the server wrote the stream for itself. */
export const isSystem = (name) => name.startsWith("__");

export default async function render(context) {
  let found = [];
  let after = null;
  let looked = 0;
  let turn = 0;
  const prefix = textField({ type: "search", placeholder: "Streams whose names begin with…", "aria-label": "Streams whose names begin with", "data-slash": true, value: context.query.get("prefix") ?? "" });
  const system = h("input", { type: "checkbox", id: newId("system"), onchange: () => draw() });
  const list = table("Streams with a schema", [
    { title: "Stream", class: "name", cell: (one) => h("a", { href: topicLink(one.name, "schema") }, one.name) },
    { title: "Version", class: "number", cell: (one) => one.registry.currentVersion || "–" },
    { title: "Entries", class: "number", cell: (one) => count(one.next_offset) },
    { title: "Kind", cell: (one) => [one.profile && one.profile !== "generic" ? badge(one.profile) : null, one.registry.routingKey ? badge(`key ${one.registry.routingKey.jsonPointer}`) : null] },
    { title: "Search", cell: (one) => (one.registry.search ? h("a", { href: searchLink(one.name) }, "Search") : null) },
  ]);
  const none = h("div", { hidden: true }, empty("No schemas", "A stream of JSON can have a schema and a search description: open it, then its Schema tab."));
  const more = button("Search further", search, { hidden: true });
  const progress = h("span.soft", { role: "status" });
  context.put("Schemas", h("div.row", h("div.grow", prefix), h("span.row.near", system, h("label", { for: system.id }, "System streams")), progress, more), list.element, none);
  prefix.addEventListener("input", () => { context.note({ prefix: prefix.value }); found = []; after = null; looked = 0; search(); });
  await search();

  async function search() {
    const mine = (turn += 1);
    try {
      for (let i = 0; i < AT_ONCE && mine === turn; i += 1) {
        const page = (await get("/v1/streams", { prefix: prefix.value, limit: PAGE, after: after ?? undefined }, context.signal));
        const streams = Array.isArray(page) ? page : page.streams;
        const all = await Promise.all(streams.map(async (one) => ({ ...one, registry: await registryOf(one.name) })));
        if (mine !== turn) return;
        found.push(...all.filter((one) => one.registry !== null));
        looked += streams.length;
        after = streams.length === PAGE ? streams.at(-1).name : null;
        draw();
        if (after === null) return;
      }
    } catch (error) {
      if (!(error instanceof ApiError) && error.name !== "AbortError") throw error;
    }
  }

  async function registryOf(name) {
    try {
      const registry = await get(`${streamPath(name)}/_schema`, {}, context.signal);
      return registry.currentVersion || registry.search || registry.routingKey ? registry : null;
    } catch (error) {
      if (error instanceof ApiError) return null;
      throw error;
    }
  }

  function draw() {
    const rows = system.checked ? found : found.filter((one) => !isSystem(one.name));
    list.show(rows);
    list.element.hidden = !rows.length;
    none.hidden = rows.length > 0 || after !== null;
    more.hidden = after === null;
    progress.textContent = after === null ? "" : `Looked at ${plural(looked, "stream")} so far.`;
  }
}
