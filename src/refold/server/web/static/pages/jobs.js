/** All jobs: running, waiting, ended; search by name, tenant and user. */

import { card, confirmDialog, errorBox, field, segmented, toast } from "../controls.js";
import { fill, h, setText } from "../dom.js";
import { plural } from "../format.js";
import { ENDED_COLUMNS, RUNNING_COLUMNS, renderEnded, renderRunning, renderWaiting, WAITING_COLUMNS } from "../job_rows.js";
import { Refresher } from "../live.js";
import { texts } from "../texts.js";
import { VirtualTable } from "../virtual_table.js";

const labels = texts.jobs;
const TABS = {
  waiting: { columns: WAITING_COLUMNS, render: renderWaiting, empty: labels.noneWaiting, query: { state: ["waiting", "held", "infeasible"] } },
  running: { columns: RUNNING_COLUMNS, render: renderRunning, empty: labels.noneRunning, query: { state: ["running", "stopping"] } },
  ended: { columns: ENDED_COLUMNS, render: renderEnded, empty: labels.noneEnded, query: { ended: true } },
};
const TYPING_MILLISECONDS = 250;

/** What can be done to all listed jobs of a tab, and to those in which states. */
const CHANGES = {
  waiting: { hold: ["waiting"], release: ["held"], cancel: ["waiting", "held", "infeasible"] },
  running: { cancel: ["running"] },
  ended: {},
};
const PAGE_JOBS = 1000;

export default class JobsPage {
  constructor({ source, live, query }) {
    this._source = source;
    this._live = live;
    this._tab = Object.hasOwn(TABS, query.get("show") ?? "") ? query.get("show") : "waiting";
    this._filters = { name: query.get("name") ?? "", tenant: query.get("tenant") ?? "", user: query.get("user") ?? "" };
    this._count = h("span", { class: "muted", role: "status" });
    const tabs = segmented(labels.state, { waiting: labels.waiting, running: labels.running, ended: labels.ended }, this._tab, (tab) => {
      this._tab = tab;
      this._showTab();
    });
    const inputs = ["name", "tenant", "user"].map((name) => this._input(name));
    this._problem = h("div", {});
    this._changes = h("div", { class: "actions" });
    this._card = card(texts.pages.jobs, { flush: true, tools: [this._count] });
    this._card.head.hidden = true;
    this.element = h(
      "div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { text: texts.pages.jobs }), this._count, this._changes, source.canChange && h("a", { class: "button primary", href: "#/submit", text: texts.pages.submit })),
      h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, tabs.element, ...inputs),
      this._problem, this._card.element,
    );
    this._showTab();
  }

  stop() {
    window.clearTimeout(this._typing);
    this._table?.stop();
    this._refresher?.stop();
  }

  _input(name) {
    const titles = { name: labels.search, tenant: labels.tenant, user: labels.user };
    const input = h("input", { type: "search", name, value: this._filters[name], placeholder: name === "name" ? labels.searchHint : labels.all, maxlength: 64, autocomplete: "off" });
    input.addEventListener("input", () => {
      window.clearTimeout(this._typing);
      this._typing = window.setTimeout(() => {
        this._filters[name] = input.value.trim();
        this._showTab();
      }, TYPING_MILLISECONDS);
    });
    return field(titles[name], input);
  }

  _showTab() {
    this._table?.stop();
    this._refresher?.stop();
    const { columns, render, empty, query } = TABS[this._tab];
    const filtered = Object.values(this._filters).some(Boolean);
    this._table = new VirtualTable({
      label: labels[this._tab], columns, render: render(() => this._source.now()), empty: filtered ? labels.noneMatching : empty, maxRows: 14,
      load: this._loader(query),
    });
    fill(this._card.body, this._table.element);
    const changes = this._source.canChange ? Object.keys(CHANGES[this._tab]) : [];
    fill(this._changes, ...changes.map((action) => h("button", { type: "button", class: action === "cancel" ? "button danger-text" : "button", text: labels.changeAll[action], onclick: () => this._changeAll(action) })));
    this._refresher = new Refresher(this._live, (signal) => this._load(signal), { every: 15000 });
  }

  /** Active jobs are found by position, ended ones page after page: each page names the next. */
  _loader(query) {
    const { name, tenant, user } = this._filters;
    if (!query.ended) {
      const match = name ? (/[*?[]/.test(name) ? name : `*${name}*`) : "";
      return (after, limit, signal) => this._source.jobs({ ...query, match, tenant, user, after, limit }, signal);
    }
    const cursors = new Map([[0, 0]]);
    return async (after, limit, signal) => {
      let from = [...cursors.keys()].filter((offset) => offset <= after).reduce((a, b) => Math.max(a, b), 0);
      for (;;) {
        const page = await this._source.jobs({ ...query, name, tenant, user, after: cursors.get(from), limit }, signal);
        if (page.next !== null) cursors.set(from + limit, page.next);
        if (from === after || page.next === null) return page;
        from += limit;
      }
    };
  }

  /** Ask, and then change all jobs that are listed now: those, and no others that come later. */
  async _changeAll(action) {
    const load = this._loader(TABS[this._tab].query);
    const [listed, states] = [[], CHANGES[this._tab][action]];
    try {
      for (let next = 0; next !== null;) {
        const page = await load(next, PAGE_JOBS);
        listed.push(...page.jobs);
        next = page.next;
      }
    } catch (error) {
      fill(this._problem, errorBox(error));
      return;
    }
    const jobs = listed.filter((job) => states.includes(job.state) && this._source.mayChange(job)).map((job) => job.id);
    if (!jobs.length) {
      toast(labels.noneToChange);
      return;
    }
    confirmDialog({
      title: labels.changeTitle[action](plural(jobs.length, "job")), text: labels.changeText(plural(listed.length, "job")), confirm: labels.changeAll[action], danger: action === "cancel",
      work: async () => {
        let changed = 0;
        for (let first = 0; first < jobs.length; first += PAGE_JOBS) changed += (await this._source.post("changes", { body: { action, jobs: jobs.slice(first, first + PAGE_JOBS) } })).changed.length;
        toast(labels.changed[action](plural(changed, "job")));
        this._refresher.now();
      },
    });
  }

  async _load(signal) {
    try {
      await this._table.refresh(signal);
      setText(this._count, plural(this._table.total, "job"));
      fill(this._problem);
    } catch (error) {
      if (error.name !== "AbortError") fill(this._problem, errorBox(error, () => this._refresher.now()));
    }
  }
}
