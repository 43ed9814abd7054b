// Ctrl K: go to a topic or a page by typing a part of its name.

import { get } from "./api.js";
import { fill, h, visible } from "./dom.js";
import { topicLink } from "./links.js";
import { newId } from "./parts.js";

const PLACES = [
  ["Overview", "#/overview"], ["Topics", "#/topics"], ["Queues", "#/queues"], ["Schedules", "#/schedules"], ["Consumers", "#/consumers"], ["Routers", "#/routers"],
  ["Schemas", "#/schema"], ["Search", "#/search"], ["Pipeline", "#/pipeline"], ["Keys and settings", "#/settings"],
];
const SHOWN = 12;
const hidden = new Set();

/** Leaves out a page that this server has nothing for. */
export function hidePlace(page) { hidden.add(`#/${page}`); }

/** Topics whose name begins with the text, and then those that contain it. */
async function named(word) {
  const query = { page_size: SHOWN, streams: true };
  const first = (await get("/v0/topics", { ...query, prefix: word })).topics;
  if (!word || first.length >= SHOWN) return first;
  const more = (await get("/v0/topics", { ...query, contains: word })).topics;
  const known = new Set(first.map((one) => one.topic));
  return [...first, ...more.filter((one) => !known.has(one.topic))];
}

export function openPalette() {
  if (document.querySelector("dialog.palette")) return;
  const list = h("ul", { id: newId("found"), role: "listbox", "aria-label": "Topics and pages" });
  const typed = h("input", {
    type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": list.id, "aria-label": "Go to a topic or a page",
    placeholder: "Topic or page…", autocomplete: "off", spellcheck: "false",
  });
  const none = h("p.soft.none", { role: "status", hidden: true });
  const box = h("dialog.palette", { "aria-label": "Go to" }, typed, list, none);
  let chosen = 0;
  let asked = 0;
  const options = () => [...list.children];
  const mark = (next) => {
    const all = options();
    if (!all.length) return typed.removeAttribute("aria-activedescendant");
    chosen = (next + all.length) % all.length;
    all.forEach((one, i) => one.setAttribute("aria-selected", String(i === chosen)));
    typed.setAttribute("aria-activedescendant", all[chosen].id);
    all[chosen].scrollIntoView({ block: "nearest" });
  };
  const close = () => { box.close(); box.remove(); };
  const go = (href) => { close(); location.hash = href; };
  const offer = async () => {
    const word = typed.value.trim();
    const turn = (asked += 1);
    const pages = PLACES.filter(([text, href]) => !hidden.has(href) && text.toLowerCase().includes(word.toLowerCase()));
    let topics = [];
    try {
      topics = await named(word);
    } catch { /* Pages need no answer of the server. */ }
    if (turn !== asked) return;
    const found = [...topics.map((one) => [one.topic, topicLink(one.topic), one.queue ? "queue" : one.content_type ? "stream" : "topic"]), ...pages.map((one) => [...one, "page"])];
    chosen = 0;
    typed.setAttribute("aria-expanded", String(found.length > 0));
    none.hidden = found.length > 0;
    none.textContent = found.length ? "" : visible(`No match for “${word}”.`);
    fill(list, found.slice(0, SHOWN).map(([text, href, kind]) =>
      h("li", { id: newId("place"), role: "option", onclick: () => go(href), "data-href": href }, h("span", text), h("small", kind))));
    mark(0);
  };
  typed.addEventListener("input", offer);
  typed.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") mark(chosen + 1);
    else if (event.key === "ArrowUp") mark(chosen - 1);
    else if (event.key === "Enter" && options()[chosen]) go(options()[chosen].dataset.href);
    else return;
    event.preventDefault();
  });
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => { if (event.target === box) close(); });
  document.body.append(box);
  box.showModal();
  typed.focus();
  offer();
}
