// A topic: its kind at the top, and a tab for each view.

import { ApiError, get, isTopicName, may, streamPath, topicPath } from "../api.js";
import { h } from "../dom.js";
import { topicLink } from "../links.js";
import { badge, button, copy, empty, tabs } from "../parts.js";
import appendTab from "./topic_append.js";
import configTab from "./topic_config.js";
import liveTab from "./topic_live.js";
import queueTab from "./topic_queue.js";
import schemaTab from "./topic_schema.js";

const TABS = { live: ["Records", liveTab], queue: ["Queue", queueTab], append: ["Append", appendTab], schema: ["Schema", schemaTab], config: ["Config", configTab] };

export default async function render(context) {
  const [name, tab = "live"] = context.parts;
  let info;
  try {
    info = await get(topicPath(name), { touch: false, streams: true }, context.signal);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    return context.put(name, empty("This topic does not exist", h("a", { href: "#/topics" }, "Show all topics")));
  }
  const registry = await registryOf(name, context.signal);
  const shown = Object.entries(TABS).filter(([id]) => {
    if (id === "queue") return info.type === "queue";
    if (id === "schema") return registry !== null || (may("admin") && isJson(info));
    if (id === "append") return may("write");
    // /v0 does not configure a stream whose name is not valid for topics.
    return id !== "config" || isTopicName(name);
  });
  const body = h("div.stack");
  context.put(name,
    h("div.beside",
      badge(info.type === "queue" ? "queue" : "log", info.type === "queue" ? "accent" : ""), badge(info.config.durability),
      info.content_type ? h("span.badge", { title: "Used as a stream" }, `stream ${info.content_type}`) : null,
      registry?.search ? h("a.badge.accent", { href: `#/search/${encodeURIComponent(name)}` }, "search") : null,
      button("", () => copy(name), { kind: "quiet small", icon: "copy", name: "Copy the name" })),
    tabs("Views of this topic", tab, shown.map(([id, [text]]) => [id, text, topicLink(name, id)])), body);
  const [, draw] = TABS[shown.some(([id]) => id === tab) ? tab : "live"];
  await draw({ ...context, name, info, registry, body });
}

/** Whether the entries are JSON, which can be searched; those of a topic that was never used as a stream are. */
const isJson = (info) => (info.content_type ?? "application/json").split(";")[0].trim().toLowerCase() === "application/json";

/** The schemas of a topic; null if it has none. */
async function registryOf(name, signal) {
  try {
    const registry = await get(`${streamPath(name)}/_schema`, {}, signal);
    return registry.currentVersion > 0 || registry.routingKey || registry.search ? registry : null;
  } catch (error) {
    if (error instanceof ApiError) return null;
    throw error;
  }
}
