// Ctrl K: go to a topic or a page by typing the beginning of its name.

import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { topicLink } from "./links.js";
import { newId } from "./parts.js";

const PLACES = [
  ["Overview", "#/overview"], ["Topics", "#/topics"], ["Queues", "#/queues"], ["Routers", "#/routers"],
  ["Schemas", "#/schema"], ["Search", "#/search"], ["Pipeline", "#/pipeline"], ["Keys and settings", "#/settings"],
];
const SHOWN = 12;

export function openPalette() {
  if (document.querySelector("dialog.palette")) return;
  const list = h("ul", { id: newId("found"), role: "listbox", "aria-label": "Places" });
  const typed = h("input", {
    type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": list.id, "aria-label": "Go to a topic or a page",
    placeholder: "Topic or page…", autocomplete: "off", spellcheck: "false",
  });
  const box = h("dialog.palette", { "aria-label": "Go to" }, typed, list);
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
    const pages = PLACES.filter(([text]) => text.toLowerCase().startsWith(word.toLowerCase()));
    let topics = [];
    try {
      topics = (await get("/v0/topics", { prefix: word, page_size: SHOWN, streams: true })).topics;
    } catch { /* The pages can be gone to all the same. */ }
    if (turn !== asked) return;
    const found = [...topics.map((one) => [one.topic, topicLink(one.topic), one.queue ? "queue" : "topic"]), ...pages.map((one) => [...one, "page"])];
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
  box.addEventListener("close", close);
  box.addEventListener("click", (event) => { if (event.target === box) close(); });
  document.body.append(box);
  box.showModal();
  typed.focus();
  offer();
}
