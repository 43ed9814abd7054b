// Schedules: what they append and when, their last and next run; pause, resume and delete.

import { ApiError, del, exactly, get, may, put } from "../api.js";
import { h } from "../dom.js";
import { count, duration, moment, plural } from "../format.js";
import { pretty } from "../json.js";
import { topicLink } from "../links.js";
import { liveTable, since } from "../live_table.js";
import { badge, button, confirmWord, dialog, empty, facts, mono, textField, toast } from "../parts.js";

const PAGE = 200;
const LOOK_MS = 2000;
const CATCH_UP = { none: "missed due times are skipped", one: "one job for all missed due times", all: "one job for each missed due time" };

const schedulePath = (name) => `/v0/schedules/${encodeURIComponent(name)}`;

export default async function render(context) {
  const prefix = textField({ type: "search", placeholder: "Schedules whose names begin with…", "aria-label": "Schedules whose names begin with", "data-slash": true, value: context.query.get("prefix") ?? "" });
  const list = liveTable("Schedules");
  list.setColumns([
    { title: "Schedule", class: "name", cell: (one) => button(one.schedule, () => inFull(one), { kind: "small", name: `Show schedule ${one.schedule}` }) },
    { title: "Topic", class: "name", cell: (one) => h("a", { href: topicLink(one.topic) }, one.topic) },
    { title: "Due", cell: due },
    { title: "Next run", class: "number", cell: (one) => (one.paused || one.next_due_ms === null ? "none" : since(one.next_due_ms)) },
    { title: "Last run", class: "number", cell: (one) => (one.last_run_ms === null ? "never" : since(one.last_run_ms)) },
    { title: "Runs", class: "number wide", cell: (one) => count(one.runs) },
    { title: "State", cell: state },
    { title: "Actions", cell: actions },
  ]);
  const none = h("div", { hidden: true }, empty("No schedules", "A schedule appends a job at its due times. Create one with PUT /v0/schedules/{schedule}."));
  const told = h("p.soft", { role: "status" });
  context.put("Schedules", h("div.row", h("div.grow", prefix), told), list.element, none);
  prefix.addEventListener("input", () => { context.note({ prefix: prefix.value }); look().catch(() => {}); });
  let asked = 0;
  await context.every(LOOK_MS, look);

  async function look() {
    const turn = (asked += 1);
    const page = await get("/v0/schedules", { prefix: prefix.value, page_size: PAGE }, context.signal);
    if (turn !== asked) return;
    list.show(page.schedules, JSON.stringify);
    list.tick();
    none.hidden = page.schedules.length > 0;
    told.textContent = page.next_cursor ? `The first ${PAGE} are shown. Type more of the name to find others.` : plural(page.schedules.length, "schedule");
  }

  function actions(one) {
    return h("div.row.near",
      may("write") && button(one.paused ? "Resume" : "Pause", () => pause(one), { kind: "small", name: `${one.paused ? "Resume" : "Pause"} ${one.schedule}` }),
      may("delete") && button("Delete", () => remove(one), { kind: "small bad", name: `Delete ${one.schedule}` }));
  }

  async function settle(asked, said) {
    try {
      await asked;
      toast(said);
      await look();
    } catch (error) {
      if (error instanceof ApiError) toast(error.message, "bad"); else if (error.name !== "AbortError") throw error;
    }
  }

  const pause = (one) => settle(put(schedulePath(one.schedule), { paused: !one.paused }), one.paused ? "Resumed." : "Paused. Its due times are not run.");

  async function remove(one) {
    if (await confirmWord("Delete the schedule?", `It appends no more jobs to ${one.topic}. The jobs it has appended stay.`, one.schedule, "Delete")) await settle(del(schedulePath(one.schedule)), "Deleted.");
  }

  async function inFull(one) {
    let full;
    try {
      full = await exactly("GET", schedulePath(one.schedule), { signal: context.signal });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return toast(error.message, "bad");
    }
    await dialog(one.schedule, h("div.stack.job",
      facts([
        ["Topic", h("a", { href: topicLink(full.topic) }, full.topic)],
        ["Due", due(full)],
        ["After a stop", CATCH_UP[full.catch_up] ?? full.catch_up],
        ["Next run", full.paused || full.next_due_ms === null ? "none" : moment(full.next_due_ms)],
        ["Last run", full.last_run_ms === null ? "never" : [moment(full.last_run_ms), full.last_seq === null ? "" : [", ", h("a", { href: topicLink(full.topic, "live", { seq: full.last_seq }) }, `seq ${count(full.last_seq)}`)]]],
        ["Runs", count(full.runs)],
        full.tag ? ["Tag", full.tag] : null,
        ["Created", [moment(full.created_ms), full.created_by ? ` by ${full.created_by}` : ""]],
        full.error ? ["Error", full.error] : null,
      ]),
      h("h3", "Data"), pretty(full.data, "Data of the job")), [["Close", null]]);
  }
}

function due(one) {
  return one.cron === null ? `every ${duration(one.every_ms).replace(/ 0 (s|min)$/, "")}` : [mono(one.cron), h("span.soft", ` ${one.timezone}`)];
}

function state(one) {
  if (one.error) return h("span.badge.bad", { title: one.error }, "failing");
  return one.paused ? badge("paused", "warn") : badge("on", "good");
}
