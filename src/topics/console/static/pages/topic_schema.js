// The schema of a stream: versions with their boundaries, and an entry before and after its lenses.

import { ApiError, ask, exact, exactly, may, streamPath, topicPath } from "../api.js";
import { fill, h, svg } from "../dom.js";
import { count } from "../format.js";
import { pretty } from "../json.js";
import { searchLink } from "../links.js";
import { encode } from "../offsets.js";
import { badge, card, failure, facts, field, mono, note, table } from "../parts.js";
import { searchForm } from "./search_form.js";

export default async function render({ name, info, registry: found, body, signal }) {
  const registry = found ?? { currentVersion: 0 };
  const current = registry.currentVersion;
  const chosen = h("select", { "aria-label": "Version" }, versions().map((one) => h("option", { value: one, selected: one === current }, `version ${one}${one === current ? ", the current one" : ""}`)));
  const shown = h("div.stack");
  chosen.addEventListener("change", showVersion);
  fill(body,
    h("div.row", badge(current ? `version ${current}` : "no schema", current ? "accent" : ""), registry.routingKey ? badge(`key ${registry.routingKey.jsonPointer}`) : null,
      registry.search ? h("a.button", { href: searchLink(name) }, "Search") : null),
    current ? card("Version boundaries", timeline(), note("Readers get each entry in the current version.")) : null,
    current ? card("Preview", preview()) : null,
    current ? card("Schema", field("Version", chosen), shown) : null,
    registry.search ? card("Search description", searchFields()) : null,
    may("admin") ? searchForm({ name, registry }) : null);
  if (current) showVersion();

  function versions() { return Array.from({ length: current }, (_, i) => i + 1); }

  function showVersion() {
    const version = Number(chosen.value);
    const lens = registry.lenses?.[version - 1] ?? Object.values(registry.lenses ?? {}).find((one) => one.to === version);
    fill(shown, pretty(registry.schemas[version], `Schema of version ${version}`),
      lens && version > 1 ? [h("h3", `Lens from version ${lens.from}`), pretty(lens.ops, "Steps of the lens")] : null);
  }

  function timeline() {
    const end = Math.max(info.head_seq, 1);
    const said = registry.boundaries.map((one) => `version ${one.version} from entry ${count(one.offset + 1)}`).join(", ");
    const parts = registry.boundaries.map((one, i) => {
      const x = (one.offset / end) * 600;
      const to = ((registry.boundaries[i + 1]?.offset ?? end) / end) * 600;
      return svg("g", svg("title", `version ${one.version}`), svg(`rect.v${i % 4}`, { x: x.toFixed(1), y: 4, width: Math.max(2, to - x).toFixed(1), height: 16, rx: 3 }));
    });
    return [svg("svg.band.versions", { viewBox: "0 0 600 24", preserveAspectRatio: "none", role: "img", "aria-label": said }, svg("title", said), parts),
      h("div.row", registry.boundaries.map((one) => h("span.soft", `v${one.version} from ${count(one.offset + 1)}`)))];
  }

  function preview() {
    const seq = h("input", { type: "number", min: "1", max: info.head_seq, value: info.earliest_seq <= info.head_seq ? info.earliest_seq : "" });
    const out = h("div.columns", { "aria-live": "polite" });
    const show = async () => {
      if (!seq.value) return;
      try {
        const at = Number(seq.value);
        const [written, read] = await Promise.all([asWritten(at), asRead(at)]);
        fill(out, h("div.stack", h("h3", `As written, version ${versionOf(at)}`), written === undefined ? note("The entry no longer exists.") : pretty(written, "As written")),
          h("div.stack", h("h3", `As read, version ${current}`), read === undefined ? note("The entry no longer exists.") : pretty(read, "As read")));
      } catch (error) {
        if (error instanceof ApiError) fill(out, failure(error)); else if (error.name !== "AbortError") throw error;
      }
    };
    seq.addEventListener("change", show);
    show();
    return h("div.stack", field("Entry", seq, "An entry of the stream before and after its lenses."), out);
  }

  const versionOf = (seq) => registry.boundaries.findLast((one) => one.offset < seq)?.version ?? 0;

  async function asWritten(seq) {
    const page = await exactly("POST", `${topicPath(name)}/diff`, { body: { from_seq: seq - 1, limit: 1 }, query: { streams: true }, signal });
    return page.records[0]?.$seq === seq ? page.records[0].data : undefined;
  }

  async function asRead(seq) {
    const answer = await ask("GET", streamPath(name), { query: { offset: seq === 1 ? "-1" : encode(info.epoch, seq - 1) }, signal });
    return exact(await answer.text())[0];
  }

  function searchFields() {
    const { search } = registry;
    const words = ["exact", "prefix", "column", "sortable", "aggregatable", "positions"];
    const list = table("Search fields", [
      { title: "Field", class: "name", cell: ([field_]) => field_ },
      { title: "Kind", cell: ([, one]) => badge(one.kind) },
      { title: "Capabilities", cell: ([, one]) => words.filter((word) => one[word]).join(", ") },
      { title: "Pointer", class: "name", cell: ([, one]) => one.bindings.map((binding) => binding.jsonPointer).join(", ") },
    ], Object.entries(search.fields));
    return [facts([search.primaryTimestampField ? ["Primary timestamp", mono(search.primaryTimestampField)] : null, search.aliases ? ["Aliases", Object.entries(search.aliases).map(([from, to]) => `${from} → ${to}`).join(", ")] : null]), list.element];
  }
}
