// What is around every page: where one can go, how the server is, light and dark.

import { get } from "./api.js";
import { fill, h, say } from "./dom.js";
import { icon } from "./icons.js";
import { openPalette } from "./palette.js";
import { button } from "./parts.js";

const ENTRIES = [
  ["overview", "Overview"], ["topics", "Topics"], ["queues", "Queues"], ["routers", "Routers"], ["schema", "Schemas"],
  ["search", "Search"], ["pipeline", "Pipeline"], ["settings", "Keys and settings"],
];
const HOME = { topic: "topics" };

export function shell(app, { onleave }) {
  const links = new Map(ENTRIES.map(([page, text]) => [page, h("a", { href: `#/${page}` }, icon(page), h("span", text))]));
  const banner = h("p.banner", { role: "alert", hidden: true });
  const main = h("main", { id: "main", tabindex: "-1" });
  const version = h("span.version");
  fill(app, h("div.frame",
    h("header.side",
      h("a.brand", { href: "#/overview" }, h("img", { src: "console/icon.svg", alt: "", width: 26, height: 26 }), h("span", "topics"), version),
      button("Go to…", openPalette, { kind: "quiet jump", icon: "search", "aria-keyshortcuts": "Control+K", title: "Ctrl K" }),
      h("nav", { "aria-label": "Pages" }, h("ul", [...links.values()].map((link) => h("li", link)))),
      h("div.foot",
        h("a", { href: "docs" }, icon("book"), h("span", "API reference")),
        button("Light or dark", toggleTheme, { kind: "quiet", icon: "sun" }),
        onleave ? button("Sign out", onleave, { kind: "quiet", icon: "out" }) : null)),
    h("div.page", banner, main)));
  return {
    version: (text) => say(version, text),
    hide(page) { links.get(page).parentElement.hidden = true; },
    select(page, parts) {
      const home = HOME[page] ?? page;
      for (const [name, link] of links) {
        if (name === home) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
      }
      document.title = `${parts[0] ?? ENTRIES.find(([name]) => name === home)?.[1] ?? "Console"} · topics`;
    },
    put(title, ...children) {
      const heading = h("h1", { tabindex: "-1" }, title);
      const [aside, ...rest] = children[0]?.classList?.contains("beside") ? children : [null, ...children];
      fill(main, h("div.head", heading, aside), ...rest);
      // Whoever reads with their ears hears where they are now.
      if (document.activeElement === document.body || document.activeElement?.closest("nav, #main")) heading.focus({ preventScroll: true });
      main.parentElement.scrollTop = 0;
    },
    trouble(text) {
      if (text) say(banner, text);
      banner.hidden = !text;
    },
  };
}

/** Takes away what this server does not have. */
export async function refreshNavigation(frame) {
  try {
    frame.version((await get("/v0/health")).version);
    const pipeline = await get("/v0/pipeline");
    if (pipeline.state === "off" && !pipeline.run && !pipeline.lag_segments) frame.hide("pipeline");
  } catch {
    // What cannot be asked stays: its page says why.
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
  try { localStorage.setItem(KEPT, theme); } catch { /* A browser that keeps nothing forgets it. */ }
}

try {
  const kept = localStorage.getItem(KEPT);
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
} catch { /* As above. */ }
