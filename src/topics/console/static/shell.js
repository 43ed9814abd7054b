// The frame of every page: navigation, connection problems, theme.

import { get } from "./api.js";
import { append, fill, h, say, visible } from "./dom.js";
import { icon } from "./icons.js";
import { hidePlace, openPalette } from "./palette.js";
import { button } from "./parts.js";

const ENTRIES = [
  ["overview", "Overview"], ["topics", "Topics"], ["queues", "Queues"], ["schedules", "Schedules"], ["consumers", "Consumers"], ["routers", "Routers"], ["schema", "Schemas"],
  ["search", "Search"], ["pipeline", "Pipeline"], ["settings", "Keys and settings"],
];
const HOME = { topic: "topics" };

export function shell(app, { onleave }) {
  const links = new Map(ENTRIES.map(([page, text]) => [page, h("a", { href: `#/${page}` }, icon(page), h("span", text))]));
  const banner = h("p.banner", { role: "alert", hidden: true });
  // Reachable by Tab, so that the keyboard scrolls a page without links, too.
  const main = h("main", { id: "main", tabindex: "0" });
  const version = h("span.version");
  const menu = h("div.menu", { id: "menu" });
  const toggle = button("Menu", () => open(toggle.getAttribute("aria-expanded") !== "true"), { kind: "quiet menu-toggle", icon: "topics", "aria-expanded": "false", "aria-controls": "menu" });
  // On a narrow screen the navigation is folded; elsewhere the button is hidden and the class has no effect.
  const open = (is) => { toggle.setAttribute("aria-expanded", String(is)); menu.classList.toggle("open", is); };
  menu.addEventListener("click", (event) => { if (event.target.closest("a")) open(false); });
  fill(app, h("div.frame",
    h("header.side",
      h("a.brand", { href: "#/overview" }, h("img", { src: "console/icon.svg", alt: "", width: 26, height: 26 }), h("span", "topics"), version),
      button("Go to…", () => { open(false); openPalette(); }, { kind: "quiet jump", icon: "search", "aria-keyshortcuts": "Control+K", title: "Ctrl K" }),
      toggle,
      append(menu, [
        h("nav", { "aria-label": "Pages" }, h("ul", [...links.values()].map((link) => h("li", link)))),
        h("div.foot",
          h("a", { href: "docs" }, icon("book"), h("span", "API reference")),
          button("Switch theme", toggleTheme, { kind: "quiet", icon: "sun" }),
          onleave ? button("Sign out", onleave, { kind: "quiet", icon: "out" }) : null)])),
    h("div.page", banner, main)));
  return {
    version: (text) => say(version, text),
    hide(page) { links.get(page).parentElement.hidden = true; hidePlace(page); },
    select(page, parts) {
      const home = HOME[page] ?? page;
      open(false);
      for (const [name, link] of links) {
        if (name === home) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
      }
      document.title = `${parts[0] ? visible(parts[0]) : ENTRIES.find(([name]) => name === home)?.[1] ?? "Console"} · topics`;
    },
    put(title, ...children) {
      const heading = h("h1", { tabindex: "-1" }, title);
      const [aside, ...rest] = children[0]?.classList?.contains("beside") ? children : [null, ...children];
      fill(main, h("div.head", heading, aside), ...rest);
      // Screen readers announce the new page.
      if (document.activeElement === document.body || document.activeElement?.closest("nav, #main")) heading.focus({ preventScroll: true });
      main.parentElement.scrollTop = 0;
    },
    trouble(text) {
      if (text) say(banner, text);
      banner.hidden = !text;
    },
  };
}

/** Hides the pages that this server has nothing for: the pipeline, when it is off or Spark is not installed. */
export async function refreshNavigation(frame) {
  try {
    frame.version((await get("/v0/health")).version);
    const { state, run, lag_segments: lag } = await get("/v0/pipeline");
    if (!run && (state === "unavailable" || (state === "off" && !lag))) frame.hide("pipeline");
  } catch {
    // A page that cannot be checked stays: it shows the reason.
  }
}

const KEPT = "topics-console-theme";

function toggleTheme() {
  const dark = document.documentElement.dataset.theme === "dark"
    || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  setTheme(dark ? "light" : "dark");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem(KEPT, theme); } catch { /* Without storage the theme lasts until the page is reloaded. */ }
}

try {
  const kept = localStorage.getItem(KEPT);
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* As above. */ }
