// Searching a stream: a query with completion, its hits over time, what they have in common, and how it was done.

import { ApiError, exactly, get, streamPath } from "../api.js";
import { complete, quote, suggest } from "../completion.js";
import { fill, h } from "../dom.js";
import { count, duration } from "../format.js";
import { histogram } from "../histogram.js";
import { oneLine, pretty } from "../json.js";
import { searchLink, topicLink } from "../links.js";
import { decode } from "../offsets.js";
import { badge, button, card, copy, empty, failure, field, mono, note, select, textField } from "../parts.js";

const SIZE = 100;
const FACETS = 6;
const VALUES = 8;

export default async function render(context) {
  const [name] = context.parts;
  if (!name) return choose(context);
  const registry = await get(`${streamPath(name)}/_schema`, {}, context.signal);
  const { search } = registry;
  if (!search) return context.put(name, empty("This stream has no search description", h("a", { href: topicLink(name) }, "Look at its records")));
  const kinds = Object.fromEntries(Object.entries(search.fields).map(([one, { kind }]) => [one, kind]));
  for (const [alias, to] of Object.entries(search.aliases ?? {})) kinds[alias] = `is ${to}`;
  let values = new Map();
  let next = null;
  let hits = [];
  let turn = 0;
  const q = textField({ value: context.query.get("q") ?? "", placeholder: example(search), "aria-label": "Query", "data-slash": true, class: "query" });
  const suggestions = complete(q, (text, cursor) => suggest(text, cursor, kinds, values));
  const sort = select(sorts(search), context.query.get("sort") ?? "", { "aria-label": "Order", onchange: run });
  const told = h("p.soft", { role: "status" });
  const overTime = h("div");
  const facets = h("aside.facets", { "aria-label": "What the hits have in common" });
  const list = h("ol.hits");
  const explained = h("div");
  const more = button("More", () => page(), { hidden: true });
  const explain = h("input", { type: "checkbox", id: "explain", checked: context.query.get("explain") === "1", onchange: run });
  context.put(["Search ", h("a", { href: topicLink(name) }, name)],
    h("div.beside", button("Copy a link", () => copy(location.href), { icon: "link", kind: "small" })),
    h("form.stack", { onsubmit: (event) => { event.preventDefault(); run(); } },
      h("div.row", h("div.grow.completes", q, suggestions), sort, h("button.button.primary", { type: "submit" }, "Search")),
      h("div.row", told, h("span.grow"), explain, h("label", { for: "explain" }, "Explain"))),
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
    try {
      const answer = await request(null);
      if (mine !== turn) return;
      fill(list, "");
      take(answer);
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
    told.textContent = `${total.relation === "eq" ? "" : "at least "}${count(total.value)} ${total.value === 1 ? "hit" : "hits"} in ${duration(Number(took))}`
      + (coverage.complete ? "" : `; up to ${count(coverage.possible_missing_events_upper_bound)} entries were not looked at`);
    list.append(...answer.hits.map(hitRow));
    if (!hits.length) fill(list, h("li", empty("No hits", note("A word alone looks into the texts; ", mono("field:value"), " asks for a field."))));
    values = valuesOf(hits, search);
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

  function facetList() {
    const named = [...values].filter(([, seen]) => seen.size > 1 || hits.length === 1).slice(0, FACETS);
    if (!named.length) return null;
    return [note(`Among the ${count(hits.length)} hits here`), named.map(([one, seen]) => h("section", h("h3", one), h("ul",
      [...seen].sort((a, b) => b[1] - a[1]).slice(0, VALUES).map(([value, times]) => h("li",
        h("button", { type: "button", onclick: () => add(`${one}:${quote(value)}`) }, h("span", value), h("span.soft", count(times)))))))) ];
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

/** A value with what matched standing out, where the server tells what did. */
function lit(hit, name, value) {
  const told = hit.highlights?.[name];
  if (told === undefined) return oneLine(value, 300);
  return [told].flat().map(({ text, spans }) => {
    // Places count characters, of which this language has some twice.
    const letters = Array.from(text);
    const cut = (from, to) => letters.slice(from, to).join("");
    const ends = [0, ...spans.map(([, to]) => to)];
    return [spans.map(([from, to], i) => [cut(ends[i], from), h("mark", cut(from, to))]), cut(ends.at(-1)), " "];
  });
}

/** How often each value of a field stands in the hits. */
function valuesOf(hits, search) {
  const told = new Map();
  for (const [name, { kind }] of Object.entries(search.fields)) {
    if (kind !== "keyword" && kind !== "bool" && kind !== "integer") continue;
    const seen = new Map();
    for (const { fields } of hits) {
      for (const one of [fields?.[name]].flat()) {
        if (one === undefined || one === null) continue;
        const text = String(one);
        if (text.length < 80) seen.set(text, (seen.get(text) ?? 0) + 1);
      }
    }
    if (seen.size && seen.size <= 60) told.set(name, seen);
  }
  return told;
}

function sorts(search) {
  const fields = Object.entries(search.fields).filter(([name, one]) => one.sortable || name === search.primaryTimestampField).map(([name]) => name);
  const all = [["", "best first"], ["offset:desc", "newest first"], ["offset:asc", "oldest first"]];
  for (const name of fields) all.push([`${name}:desc`, `${name}, highest first`], [`${name}:asc`, `${name}, lowest first`]);
  return Object.fromEntries(all);
}

function example(search) {
  const word = Object.entries(search.fields).find(([, one]) => one.kind === "keyword" && one.exact)?.[0];
  return word ? `words, ${word}:value, -${word}:value, has:${word}` : "words, or field:value";
}

/** Which stream: those that can be searched are looked for among the first ones. */
async function choose(context) {
  const found = h("ul.choices");
  const name = textField({ placeholder: "name of a stream", "data-slash": true });
  const none = h("div");
  context.put("Search", card("Select a stream",
    h("form.row", { onsubmit: (event) => { event.preventDefault(); if (name.value) location.hash = searchLink(name.value); } },
      h("div.grow", field("Stream", name)), h("button.button.primary", { type: "submit" }, "Go")), found, none));
  const page = await get("/v1/streams", { limit: 200 }, context.signal);
  for (const one of Array.isArray(page) ? page : page.streams) {
    const registry = await get(`${streamPath(one.name)}/_schema`, {}, context.signal).catch(() => null);
    if (registry?.search) found.append(h("li", h("a", { href: searchLink(one.name) }, one.name), h("span.soft", ` ${count(one.next_offset)} entries, ${count(Object.keys(registry.search.fields).length)} fields`)));
  }
  if (!found.children.length) fill(none, note("None of the first streams can be searched. A stream with a search description in its _schema can."));
}
