/** The overview: figures, alerts, the map of GPUs, running jobs, the queue, and what has just happened. */

import { card, emptyNote, errorBox, jobLink, moment, statTile } from "../controls.js";
import { fill, h, icon } from "../dom.js";
import { formatDuration, formatNumber, formatPercent, formatWhole } from "../format.js";
import { GpuMap } from "../gpu_map.js";
import { RUNNING_COLUMNS, renderRunning, renderWaiting, WAITING_COLUMNS } from "../job_rows.js";
import { Refresher } from "../live.js";
import { eventTexts, resourceText, texts } from "../texts.js";
import { VirtualTable } from "../virtual_table.js";

const SHOWN_ALERTS = 3;
const SHOWN_EVENTS = 12;

export default class Overview {
  constructor({ source, live, shell }) {
    this._source = source;
    this._live = live;
    this._shell = shell;
    const now = () => source.now();
    this._stats = {
      gpus: statTile(texts.stats.gpus), utilisation: statTile(texts.stats.utilisation), running: statTile(texts.stats.running),
      waiting: statTile(texts.stats.waiting), estimates: statTile(texts.stats.estimates),
    };
    this._alerts = h("section", { class: "alerts", "aria-label": texts.alerts.title, hidden: true });
    this._map = new GpuMap();
    const map = card(texts.map.title, { tools: [this._map.modes.element] });
    map.body.append(this._map.element);
    this._running = new VirtualTable({
      label: texts.jobs.running, columns: RUNNING_COLUMNS, empty: texts.jobs.noneRunning, render: renderRunning(now),
      load: (after, limit, signal) => source.jobs({ state: ["running", "stopping"], after, limit }, signal),
    });
    this._waiting = new VirtualTable({
      label: texts.jobs.waiting, columns: WAITING_COLUMNS, empty: texts.jobs.noneWaiting, render: renderWaiting(now),
      load: (after, limit, signal) => source.jobs({ state: ["waiting", "held", "infeasible"], after, limit }, signal),
    });
    const running = card(texts.jobs.running, { flush: true });
    running.body.append(this._running.element);
    const waiting = card(texts.jobs.waiting, { flush: true });
    waiting.body.append(this._waiting.element);
    const activity = card(texts.activity.title);
    this._activity = activity.body;
    this._problem = h("div", {});
    this.element = h(
      "div", { class: "page overview" }, h("h1", { class: "hidden-text", text: texts.pages.overview }), this._problem,
      h("div", { class: "stats" }, ...Object.values(this._stats).map((tile) => tile.element)),
      this._alerts, map.element, h("div", { class: "columns" }, waiting.element, running.element), activity.element,
    );
    this._unlisten = live.listen(() => this._showActivity());
    this._showActivity();
    this._cluster = new Refresher(live, (signal) => this._guard(this._loadCluster(signal)), { every: 10000, pause: 1000 });
    this._jobs = new Refresher(live, (signal) => this._guard(this._loadJobs(signal)), { every: 15000, pause: 1000 });
  }

  stop() {
    this._unlisten();
    this._cluster.stop();
    this._jobs.stop();
    this._map.stop();
    this._running.stop();
    this._waiting.stop();
  }

  /** Show an error above what was loaded before, and remove it when loading works again. */
  async _guard(loading) {
    try {
      await loading;
      fill(this._problem);
    } catch (error) {
      if (error.name !== "AbortError") fill(this._problem, errorBox(error, () => this._retry()));
    }
  }

  _retry() {
    this._cluster.now();
    this._jobs.now();
  }

  async _loadCluster(signal) {
    const [info, gpus, nodes, alerts] = await Promise.all([
      this._source.info(signal), this._source.gpus(signal), this._source.nodes(signal), this._source.alerts(signal),
    ]);
    this._shell.showInfo(info);
    this._showStats(info, gpus);
    this._map.update(gpus, nodes);
    this._showAlerts(alerts);
  }

  async _loadJobs(signal) {
    await Promise.all([this._waiting.refresh(signal), this._running.refresh(signal)]);
  }

  _showStats(info, gpus) {
    const labels = texts.stats;
    const usable = info.gpus - info.drained_gpus;
    const used = Math.max(0, gpus.reduce((sum, gpu) => sum + (gpu.jobs.length ? 1 - gpu.free : 0), 0));
    const drained = info.drained_gpus ? labels.drained(formatWhole(info.drained_gpus)) : "";
    this._stats.gpus.update(formatNumber(used), [labels.of(formatWhole(info.gpus)), drained].filter(Boolean).join(" · "), usable ? used / usable : 0);
    const measured = gpus.filter((gpu) => gpu.utilisation !== null && gpu.jobs.length);
    const mean = measured.length ? measured.reduce((sum, gpu) => sum + gpu.utilisation, 0) / measured.length : null;
    this._stats.utilisation.update(mean === null ? "–" : formatPercent(mean / 100), mean === null ? labels.notMeasured : labels.allocated, mean === null ? null : mean / 100);
    this._stats.running.update(formatWhole(info.running), labels.gpusOfJobs(formatNumber(used)));
    this._stats.waiting.update(formatWhole(info.waiting), info.held ? labels.held(formatWhole(info.held)) : "");
    const accuracy = info.start_accuracy;
    const known = accuracy.median_error !== null && accuracy.median_error !== undefined;
    this._stats.estimates.update(known ? `± ${formatDuration(accuracy.median_error)}` : "–", known ? labels.estimatesHelp(formatWhole(accuracy.jobs)) : labels.noEstimates);
  }

  _showAlerts(alerts) {
    const signature = JSON.stringify(alerts);
    if (signature === this._alertSignature) return;
    this._alertSignature = signature;
    this._alerts.hidden = alerts.length === 0;
    const rows = alerts.map((alert) => alertRow(alert));
    const list = h("ul", {}, ...rows);
    const rest = rows.slice(SHOWN_ALERTS);
    fill(this._alerts, h("h2", {}, icon("alert"), texts.alerts.title, h("span", { class: "count", text: formatWhole(alerts.reduce((sum, alert) => sum + (alert.count ?? 1), 0)) })), list);
    if (rest.length) {
      const toggle = h("button", { type: "button", class: "quiet", "aria-expanded": "false", text: texts.alerts.more(rest.length) });
      const show = (open) => {
        for (const row of rest) row.hidden = !open;
        toggle.setAttribute("aria-expanded", String(open));
        toggle.textContent = open ? texts.alerts.fewer : texts.alerts.more(rest.length);
      };
      toggle.addEventListener("click", () => show(toggle.getAttribute("aria-expanded") !== "true"));
      show(false);
      this._alerts.append(toggle);
    }
  }

  _showActivity() {
    const events = this._live.latest.slice(0, SHOWN_EVENTS);
    const signature = events.length ? events[0].number : 0;
    if (signature === this._lastShown) return;
    this._lastShown = signature;
    if (!events.length) {
      fill(this._activity, emptyNote(texts.activity.none));
      return;
    }
    const now = this._source.now();
    fill(this._activity, h("ol", { class: "activity" }, ...events.map((event) => h(
      "li", {}, moment(event.at, now, { relative: false }), h("span", { class: `event event-${event.kind.replaceAll(" ", "-")}`, text: eventTexts[event.kind] ?? event.kind }),
      event.job ? jobLink(event.job) : null, h("span", { class: "muted", text: event.text ?? "" }),
    ))));
  }
}

function alertRow(alert) {
  const about = alert.job ? jobLink(alert.job) : alert.node ? h("a", { href: `#/nodes/${encodeURIComponent(alert.node)}`, text: alert.node }) : null;
  return h("li", { class: `alert alert-${alert.kind.replaceAll(" ", "-")}` }, h("span", { class: "alert-kind", text: texts.alerts.kinds[alert.kind] ?? alert.kind }), about, h("span", { text: resourceText(alert.text) }));
}
