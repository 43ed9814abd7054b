// Search of a stream: a query with completion, hits over time, facets, the query plan, export.

import { ApiError, exactly, get, streamPath } from "../api.js";
import { complete, quote, suggest } from "../completion.js";
import { fill, h } from "../dom.js";
import { exportDialog } from "../export.js";
import { count, duration, plural } from "../format.js";
import { histogram } from "../histogram.js";
import { oneLine, pretty } from "../json.js";
import { searchLink, topicLink } from "../links.js";
import { decode } from "../offsets.js";
import { badge, button, card, copy, empty, failure, field, mono, note, select, textField } from "../parts.js";
import { isSystem } from "./schemas.js";

const SIZE = 100;
const FACETS = 6;
const FACET_HITS = 10_000;
const FACET_PAGE = 500;
const DISTINCT = 200;
const VALUES = 8;

export default async function render(context) {
  const [name] = context.parts;
  if (!name) return choose(context);
  const registry = await get(`${streamPath(name)}/_schema`, {}, context.signal);
  const { search } = registry;
  if (!search) return context.put(name, empty("This stream has no search description", h("a", { href: topicLink(name, "schema") }, "Make it searchable"), h("a", { href: topicLink(name) }, "Show its records")));
  const kinds = Object.fromEntries(Object.entries(search.fields).map(([one, { kind }]) => [one, kind]));
  for (const [alias, to] of Object.entries(search.aliases ?? {})) kinds[alias] = `alias of ${to}`;
  let values = new Map();
  let next = null;
  let hits = [];
  let turn = 0;
  /** How many hits the facets count, once all of them were read; null before. */
  let counted = null;
  let all = 0;
  const q = textField({ value: context.query.get("q") ?? "", placeholder: example(search), "aria-label": "Query", "data-slash": true, class: "query" });
  const suggestions = complete(q, (text, cursor) => suggest(text, cursor, kinds, values));
  const sort = select(sorts(search), context.query.get("sort") ?? "", { "aria-label": "Order", onchange: run });
  const told = h("p.soft", { role: "status" });
  const overTime = h("div");
  const facets = h("aside.facets", { "aria-label": "Facets" });
  const list = h("ol.hits");
  const explained = h("div");
  const more = button("More", () => page(), { hidden: true });
  const explain = h("input", { type: "checkbox", id: "explain", checked: context.query.get("explain") === "1", onchange: run });
  context.put(["Search ", h("a", { href: topicLink(name) }, name)],
    h("div.beside", button("Copy a link", () => copy(location.href), { icon: "link", kind: "small" }), button("Export", () => exportHits(), { icon: "down", kind: "small" })),
    h("form.stack", { onsubmit: (event) => { event.preventDefault(); run(); } },
      h("div.row", h("div.grow.completes", q, suggestions), sort, h("button.button.primary", { type: "submit" }, "Search")),
      h("div.row", told, h("label.tick", explain, "Explain"))),
    overTime, h("div.search-body", facets, h("div.stack", list, more)), explained);
  await run();

  function request(from) {
    const body = { q: q.value, size: SIZE, explain: explain.checked, track_total: true, highlight: true };
    if (sort.value) body.sort = [sort.value];
    if (from) body.search_after = from;
    return exactly("POST", `${streamPath(name)}/_search`, { body, signal: context.signal });
  }

  async function run() {
    const mine = (turn += 1);
    context.note({ q: q.value, sort: sort.value, explain: explain.checked ? "1" : "" });
    hits = [];
    counted = null;
    try {
      const answer = await request(null);
      if (mine !== turn) return;
      fill(list, "");
      take(answer);
      countFacets(mine).catch((error) => { if (!(error instanceof ApiError) && error.name !== "AbortError") throw error; });
      fill(overTime, await histogram({ name, search, q: q.value, hits, signal: context.signal, onrange: narrow }));
    } catch (error) {
      if (error.name === "AbortError" || mine !== turn) return;
      if (!(error instanceof ApiError)) throw error;
      fill(list, h("li", failure(error)));
      fill(overTime, ""); fill(facets, ""); fill(explained, "");
      more.hidden = true;
      told.textContent = "";
    }
  }

  async function page() { take(await request(next)); }

  function take(answer) {
    hits.push(...answer.hits);
    next = answer.next_search_after ?? null;
    more.hidden = next === null;
    const { total, took_ms: took, coverage } = answer;
    all = Number(total.value);
    told.textContent = `${total.relation === "eq" ? "" : "at least "}${count(total.value)} ${total.value === 1 ? "hit" : "hits"} in ${duration(Number(took))}`
      + (coverage.complete ? "" : `; the search was cut off, ${plural(coverage.possible_missing_events_upper_bound, "entry", "entries")} at most were not searched`);
    list.append(...answer.hits.map(hitRow));
    if (!hits.length) fill(list, h("li", empty("No hits", note("A word searches the text fields; ", mono("field:value"), " searches one field."))));
    if (counted === null) values = valuesOf(hits, search);
    fill(facets, facetList());
    fill(explained, answer.explain ? card("Query plan", pretty(answer.explain, "Explanation")) : "");
  }

  function hitRow(hit) {
    const { counter } = decode(hit.offset);
    const shown = Object.entries(hit.fields ?? {}).filter(([one]) => one !== search.primaryTimestampField);
    const time = hit.fields?.[search.primaryTimestampField];
    return h("li.hit",
      h("div.row", time === undefined ? null : h("time.mono", String(time)), h("span.grow"), hit.score ? badge(`score ${hit.score}`) : null,
        h("a.soft", { href: topicLink(name, "live", { seq: counter }) }, `seq ${count(counter)}`)),
      h("p", shown.map(([one, value]) => h("span.pair", h("span.soft", `${one} `), lit(hit, one, value)))),
      h("details", h("summary", "Entry"), pretty(hit.source, "Entry")));
  }

  /** Counts the facets over all hits, a page at a time, up to a bound that the page states. */
  async function countFacets(mine) {
    const fields = facetFields(search);
    if (!fields.length || next === null) { counted = hits.length; fill(facets, facetList()); return; }
    const found = new Map(fields.map((one) => [one, new Map()]));
    let from;
    let seen = 0;
    do {
      const body = { q: q.value, size: FACET_PAGE, fields, _source: false, sort: ["offset:desc"], search_after: from };
      const answer = await exactly("POST", `${streamPath(name)}/_search`, { body, signal: context.signal });
      if (mine !== turn) return;
      addValues(found, answer.hits);
      seen += answer.hits.length;
      from = answer.next_search_after ?? null;
    } while (from !== null && seen < FACET_HITS);
    values = withValues(found);
    counted = seen;
    fill(facets, facetList());
  }

  function facetList() {
    const named = [...values].filter(([, seen]) => seen.size > 1 || hits.length === 1).slice(0, FACETS);
    if (!named.length) return null;
    const over = counted === null ? `Counting; so far of the first ${plural(hits.length, "hit")}` : counted >= all ? `Of all ${plural(counted, "hit")}` : `Of the newest ${count(counted)} of ${plural(all, "hit")}`;
    return [note(over), named.map(([one, seen]) => h("section", h("h3", one), h("ul",
      [...seen].sort((a, b) => b[1] - a[1]).slice(0, VALUES).map(([value, times]) => h("li",
        h("button", { type: "button", onclick: () => add(`${one}:${quote(value)}`) }, h("span", value), h("span.soft", count(times)))))))) ];
  }

  function exportHits() {
    const names = Object.keys(search.fields);
    const columns = [{ name: "seq", of: (row) => row.seq }, ...names.map((one) => ({ name: one, of: (row) => row.fields?.[one] }))];
    exportDialog({
      title: `Export the hits in ${name}`, name: `${name}-search`, columns, hint: "Exports the hits in the order of this page. NDJSON has the whole entries, CSV the search fields.",
      async *pages(stopped, most) {
        let from = null;
        do {
          const body = { q: q.value, size: Math.min(500, most), sort: sort.value ? [sort.value] : undefined, search_after: from ?? undefined };
          const answer = await exactly("POST", `${streamPath(name)}/_search`, { body, signal: AbortSignal.any([context.signal, stopped]) });
          yield answer.hits.map((hit) => ({ seq: decode(hit.offset).counter, fields: hit.fields, entry: hit.source }));
          from = answer.next_search_after ?? null;
        } while (from !== null);
      },
    });
  }

  function add(clause) {
    if (!q.value.includes(clause)) q.value = `${q.value} ${clause}`.trim();
    run();
  }

  function narrow(from, to) {
    const time = search.primaryTimestampField;
    const bare = q.value.replace(new RegExp(`\\s*${time}:(>=|<)"[^"]*"`, "g"), "").trim();
    q.value = `${bare} ${time}:>="${from}" ${time}:<"${to}"`.trim();
    run();
  }
}

/** A value with its matches marked, if the server reports them. */
function lit(hit, name, value) {
  const told = hit.highlights?.[name];
  if (told === undefined) return oneLine(value, 300);
  return [told].flat().map(({ text, spans }) => {
    // Spans count characters; a JavaScript string counts UTF-16 units.
    const letters = Array.from(text);
    const cut = (from, to) => letters.slice(from, to).join("");
    const ends = [0, ...spans.map(([, to]) => to)];
    return [spans.map(([from, to], i) => [cut(ends[i], from), h("mark", cut(from, to))]), cut(ends.at(-1)), " "];
  });
}

const facetFields = (search) => Object.entries(search.fields).filter(([, { kind }]) => ["keyword", "bool", "integer"].includes(kind)).map(([name]) => name);

/** How often each value of each field occurs in the hits. */
function valuesOf(hits, search) {
  const found = new Map(facetFields(search).map((name) => [name, new Map()]));
  addValues(found, hits);
  return withValues(found);
}

/** A field with too many different values is no facet. */
const withValues = (found) => new Map([...found].filter(([, seen]) => seen.size && seen.size <= DISTINCT));

function addValues(found, hits) {
  for (const { fields } of hits) {
    for (const [name, seen] of found) {
      if (seen.size > DISTINCT) continue;
      for (const one of [fields?.[name]].flat()) {
        if (one === undefined || one === null) continue;
        const text = String(one);
        if (text.length < 80) seen.set(text, (seen.get(text) ?? 0) + 1);
      }
    }
  }
}

function sorts(search) {
  const fields = Object.entries(search.fields).filter(([name, one]) => one.sortable || name === search.primaryTimestampField).map(([name]) => name);
  const all = [["", "best match first"], ["offset:desc", "newest first"], ["offset:asc", "oldest first"]];
  for (const name of fields) all.push([`${name}:desc`, `${name}, highest first`], [`${name}:asc`, `${name}, lowest first`]);
  return Object.fromEntries(all);
}

function example(search) {
  const word = Object.entries(search.fields).find(([, one]) => one.kind === "keyword" && one.exact)?.[0];
  return word ? `words, ${word}:value, -${word}:value, has:${word}` : "words, or field:value";
}

/** The choice of a stream: the ones among the first 200 that can be searched. */
async function choose(context) {
  const found = h("ul.choices");
  const name = textField({ placeholder: "Name of a stream", "data-slash": true });
  const none = h("div");
  context.put("Search", card("Select a stream",
    h("form.row", { onsubmit: (event) => { event.preventDefault(); if (name.value) location.hash = searchLink(name.value); } },
      h("div.grow", field("Stream", name)), h("button.button.primary", { type: "submit" }, "Go")), found, none));
  const page = await get("/v1/streams", { limit: 200 }, context.signal);
  for (const one of Array.isArray(page) ? page : page.streams) {
    const registry = await get(`${streamPath(one.name)}/_schema`, {}, context.signal).catch(() => null);
    if (registry?.search && !isSystem(one.name)) found.append(h("li", h("a", { href: searchLink(one.name) }, one.name), h("span.soft", ` ${plural(Number(one.next_offset), "entry", "entries")}, ${plural(Object.keys(registry.search.fields).length, "field")}`)));
  }
  if (!found.children.length) fill(none, note("None of the first 200 streams can be searched. Open the Schema tab of a stream to make it searchable."));
}
