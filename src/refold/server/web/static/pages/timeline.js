/** The timeline: GPUs × time with past, running and planned work; allocation beside utilisation. */

import { card, errorBox, segmented } from "../controls.js";
import { fill, h } from "../dom.js";
import { formatPercent } from "../format.js";
import { Refresher } from "../live.js";
import { placePlanned } from "../planned_runs.js";
import { texts } from "../texts.js";
import { TimelineChart } from "../timeline_chart.js";
import { UseChart } from "../use_chart.js";

const labels = texts.timeline;
/** Hours to look back, and ahead. */
const SPANS = { 1: [1, 1], 6: [6, 3], 24: [24, 12], 168: [168, 48] };
const PLANNED_JOBS = 300;
const MIN_SECONDS = 120;

export default class TimelinePage {
  constructor({ source, live }) {
    this._source = source;
    this._span = source.range ? "whole" : "6";
    this._zoom = null;
    this._chart = new TimelineChart((from, to) => this._setZoom([from, to]));
    this._use = new UseChart();
    this._reset = h("button", { type: "button", class: "button small", text: labels.reset, hidden: true, onclick: () => this._setZoom(null) });
    const choices = source.range ? { ...labels.spans, whole: labels.whole } : labels.spans;
    const spans = segmented(labels.span, choices, this._span, (span) => {
      this._span = span;
      this._setZoom(null);
      this._refresher.now();
    });
    const chart = card(labels.title, { tools: [this._reset, spans.element] });
    this._note = h("p", { class: "muted" });
    chart.body.append(this._chart.element, this._note);
    const use = card(labels.use);
    use.body.append(this._use.element);
    this._problem = h("div", {});
    this.element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { text: texts.pages.timeline }), h("p", { class: "muted", text: labels.hint })), this._problem, chart.element, use.element);
    this._refresher = new Refresher(live, (signal) => this._load(signal), { every: 20000, pause: 3000 });
  }

  stop() {
    this._refresher.stop();
    this._chart.stop();
    this._use.stop();
  }

  _setZoom(range) {
    this._zoom = range && range[1] - range[0] < MIN_SECONDS ? [range[0], range[0] + MIN_SECONDS] : range;
    this._reset.hidden = this._zoom === null;
    this._show();
  }

  async _load(signal) {
    try {
      const [from, to] = this._shownRange(this._source.now());
      const [timeline, nodes, running, waiting] = await Promise.all([
        this._source.timeline({ from, to, seconds: SPANS[this._span]?.[0] * 3600 }, signal), this._source.nodes(signal),
        this._source.jobs({ state: ["running", "stopping"], limit: 1000 }, signal), this._source.jobs({ state: ["waiting"], limit: PLANNED_JOBS }, signal),
      ]);
      this._data = { timeline, nodes, running: running.jobs, waiting: waiting.jobs, waitingTotal: waiting.total };
      fill(this._problem);
      this._show();
    } catch (error) {
      if (error.name !== "AbortError") fill(this._problem, errorBox(error, () => this._refresher.now()));
    }
  }

  /** The time span that was chosen, around now. */
  _shownRange(now) {
    if (this._span === "whole") return this._source.range;
    const [back, ahead] = SPANS[this._span];
    return [now - back * 3600, now + ahead * 3600];
  }

  _show() {
    if (!this._data) return;
    const { timeline, nodes, running, waiting } = this._data;
    const span = this._shownRange(timeline.now);
    const range = this._zoom ?? span;
    const bars = makeBars(timeline, nodes, running, timeline.future ? [] : waiting, span[1]);
    this._chart.update(nodes, bars, timeline.now, range, timeline.future ? labels.later : labels.planned);
    this._use.update(bars, timeline.busy, nodes.reduce((sum, node) => sum + node.gpus, 0), timeline.now, range);
    this._note.textContent = [timeline.future ? labels.laterNote : labels.plannedNote, timeline.complete ? "" : labels.incomplete, describeGoodput(timeline.runs)].filter(Boolean).join(" ");
  }
}

/** What became of the GPU time of runs that have ended: progress, starting and stopping, and runs that failed. */
export function describeGoodput(runs) {
  let [held, overhead, lost] = [0, 0, 0];
  for (const run of runs) {
    const gpus = run.placement.reduce((sum, one) => sum + one.gpus.length, 0);
    if (run.end === null || !(run.end > run.start) || !gpus) continue;
    held += gpus * (run.end - run.start);
    overhead += gpus * (run.overhead ?? 0);
    if (run.ending === "failed") lost += gpus * Math.max(0, run.end - run.start - (run.overhead ?? 0));
  }
  return held ? labels.goodput(formatPercent(1 - (overhead + lost) / held), formatPercent(overhead / held), formatPercent(lost / held)) : "";
}

/** All runs as bars on rows, with rows numbered over all nodes; waiting jobs where there is room. */
export function makeBars(timeline, nodes, running, waiting, until) {
  const firstRow = new Map();
  const nodeOfRow = [];
  nodes.forEach((node, index) => {
    firstRow.set(node.name, nodeOfRow.length);
    for (let gpu = 0; gpu < node.gpus; gpu += 1) nodeOfRow.push(index);
  });
  const ends = new Map(running.map((job) => [job.id, job.end_estimate?.at ?? null]));
  const freeAt = new Float64Array(nodeOfRow.length);
  nodes.forEach((node) => { if (!node.up) freeAt.fill(Infinity, firstRow.get(node.name), firstRow.get(node.name) + node.gpus); });
  const bars = timeline.runs.map((run) => {
    const rows = run.placement.filter(({ node }) => firstRow.has(node)).flatMap(({ node, gpus }) => gpus.map((gpu) => firstRow.get(node) + gpu)).sort((a, b) => a - b);
    const open = run.end === null;
    const estimated = ends.get(run.job) ?? null;
    const end = open ? Math.max(timeline.now, estimated ?? until) : run.end;
    if (open) for (const row of rows) freeAt[row] = Math.max(freeAt[row], end);
    const kind = run.start > timeline.now ? "planned" : end > timeline.now || open ? "running" : "past";
    return { job: run.job, tenant: run.tenant, user: run.user, start: run.start, end, rows, kind, ending: run.ending, certain: !open || estimated !== null };
  });
  const planned = placePlanned(waiting, freeAt, nodeOfRow, until).map(({ job, start, end, endKnown, rows }) => ({
    job: job.id, tenant: job.tenant, user: job.user, start, end, rows, kind: "planned", ending: "", certain: endKnown,
  }));
  return [...bars, ...planned];
}
