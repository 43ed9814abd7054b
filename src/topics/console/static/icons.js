// Small drawings, one path each, in the colour of the text around them.

import { svg } from "./dom.js";

const PATHS = {
  overview: "M3 13h4l3-8 4 14 3-6h4",
  topics: "M4 6h16M4 12h16M4 18h10",
  queues: "M4 5h16v4H4zM4 15h16v4H4zM12 9v6",
  schedules: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16M12 8v4l3 3",
  consumers: "M4 6h16M4 12h9M4 18h16M16 9l4 3-4 3z",
  routers: "M6 6a2 2 0 1 0 0 .01M18 6a2 2 0 1 0 0 .01M18 18a2 2 0 1 0 0 .01M8 6h8M7.5 7.5l9 9",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5 20 20",
  pipeline: "M4 7h6l4 10h6M4 17h6M14 7h6",
  settings: "M4 8h10M18 8h2M4 16h2M10 16h10M16 6v4M8 14v4",
  schema: "M12 3 4 7l8 4 8-4zM4 12l8 4 8-4M4 17l8 4 8-4",
  sun: "M12 7.5a4.5 4.5 0 1 0 0 9 4.5 4.5 0 0 0 0-9M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M5 19l1.4-1.4M17.6 6.4 19 5",
  pause: "M8 5v14M16 5v14",
  play: "M7 5l12 7-12 7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  close: "M5 5l14 14M19 5 5 19",
  link: "M10 14a4 4 0 0 0 6 .5l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6-.5l-3 3a4 4 0 0 0 6 6l1-1",
  down: "M12 4v15M6 13l6 6 6-6",
  book: "M5 4h10a4 4 0 0 1 4 4v12H9a4 4 0 0 1-4-4zM5 16a4 4 0 0 1 4-4h10",
  out: "M14 4h5v16h-5M4 12h11M11 8l4 4-4 4",
};

export function icon(name) {
  return svg("svg.icon", { viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}
