/** A job: what it is, why it waits or where it runs, its history, output and figures; cancel, hold, release. */

import { card, confirmDialog, emptyNote, errorBox, estimate, moment, progressBar, stateBadge, toast } from "../controls.js";
import { fill, h, icon } from "../dom.js";
import { formatCommand, formatDomains, formatDuration, formatFull, formatGib, formatMoment, formatNumber, formatPercent, formatPlacement, formatPrecise, formatRange, formatWhole } from "../format.js";
import { reasonText, shareDone, shareText } from "../job_rows.js";
import { Refresher } from "../live.js";
import { LogView } from "../log_view.js";
import { SparkLine } from "../spark_line.js";
import { eventTexts, resourceText, texts } from "../texts.js";

const labels = texts.job;
const ENDED = ["finished", "failed", "timed out", "cancelled"];

export default class JobPage {
  constructor({ source, live, argument }) {
    this._source = source;
    this._id = argument;
    this._head = h("div", { class: "job-head" }, h("h1", { text: argument }));
    this._now = h("div", { class: "job-now" });
    this._facts = h("dl", { class: "facts" });
    this._launch = h("dl", { class: "facts launch" });
    this._history = h("div", {});
    this._log = source.hasOutput ? new LogView(source, argument) : null;
    this._charts = {
      samples_per_second: new SparkLine(labels.throughput, (value) => `${formatPrecise(value)} /s`),
      loss: new SparkLine(labels.loss),
      utilisation: new SparkLine(labels.gpuUse, (value) => formatPercent(value / 100)),
      cpus: new SparkLine(labels.cpuUse, (value) => formatNumber(Math.round(10 * value) / 10)),
      memory_mib: new SparkLine(labels.memoryUse, formatGib),
    };
    const facts = card(labels.details);
    facts.body.append(this._launch, this._facts, h("div", { class: "sparks" }, ...Object.values(this._charts).map((chart) => chart.element)));
    const history = card(labels.history);
    history.body.append(this._history);
    this._problem = h("div", {});
    this.element = h(
      "div", { class: "page" }, h("a", { class: "back", href: "#/jobs" }, icon("back", 16), texts.pages.jobs), this._problem, this._head, this._now,
      this._log ? h("div", { class: "columns job-columns" }, h("div", { class: "stack" }, facts.element, history.element), outputCard(this._log)) : h("div", { class: "stack" }, facts.element, history.element),
    );
    this._refresher = new Refresher(live, (signal) => this._load(signal), { every: 5000, pause: 500, matches: (event) => event.job === this._shownId });
  }

  stop() {
    this._refresher.stop();
    this._log?.stop();
  }

  async _load(signal) {
    try {
      const found = await this._source.why(this._id, signal);
      this._show(found, await this._useOf(found.job, signal));
      fill(this._problem);
    } catch (error) {
      if (error.name !== "AbortError") fill(this._problem, errorBox(error, () => this._refresher.now()));
    }
  }

  /** What the job has used over time; nothing for callers who may not read it. */
  async _useOf(job, signal) {
    try {
      return job.runs ? await this._source.jobUse(job.id, signal) : [];
    } catch (error) {
      if (error.name === "AbortError") throw error;
      return [];
    }
  }

  _show(found, use) {
    const { job, events } = found;
    this._shownId = job.id;
    const now = this._source.now();
    this._showHead(job);
    this._showNow(job, now);
    this._showLaunch(job);
    this._showFacts(found, now);
    fill(this._history, events.length ? historyList(events, now) : emptyNote(labels.noHistory));
    this._log?.update(job);
    for (const [name, chart] of Object.entries(this._charts)) {
      chart.show(use.map((sample) => [sample.at, sample[name]]), name === "samples_per_second" ? found.predicted_samples_per_second ?? null : null);
    }
  }

  _showHead(job) {
    const signature = `${job.id} ${job.state}`;
    if (signature === this._headShown) return; // a button that is focused stays
    this._headShown = signature;
    fill(this._head, h("h1", { text: job.id }), stateBadge(job.state), h("div", { class: "actions" }, ...this._actions(job)));
  }

  _actions(job) {
    if (!this._source.mayChange(job)) return [];
    const again = Boolean(job.command?.length) && h("a", { class: "button", href: `#/submit?again=${encodeURIComponent(job.id)}`, text: labels.again });
    if (ENDED.includes(job.state)) return [again];
    const button = (text, options, danger = false) => h("button", { type: "button", class: danger ? "button danger-text" : "button", text, onclick: () => confirmDialog(options) });
    const change = (verb, done, query = {}) => async () => {
      await this._source.post(`jobs/${encodeURIComponent(job.id)}/${verb}`, { query });
      toast(done);
      this._refresher.now();
    };
    const buttons = [again];
    if (job.state === "waiting") {
      buttons.push(button(labels.hold, { title: labels.holdTitle(job.id), text: labels.holdText, confirm: labels.hold, work: change("hold", labels.held(job.id)) }));
    }
    if (job.state === "held") {
      buttons.push(button(labels.release, { title: labels.releaseTitle(job.id), text: labels.releaseText, confirm: labels.release, work: change("release", labels.released(job.id)) }));
    }
    buttons.push(this._cancelButton(job, button, change));
    return buttons;
  }

  _cancelButton(job, button, change) {
    const runs = job.state === "running" || job.state === "stopping";
    const atOnce = h("input", { type: "checkbox", name: "now" });
    return button(labels.cancel, {
      title: labels.cancelTitle(job.id), text: runs ? labels.cancelRunning : labels.cancelWaiting, confirm: labels.cancel, danger: true,
      fields: runs ? [h("label", { class: "check" }, atOnce, labels.cancelNow)] : [],
      work: () => change("cancel", labels.cancelled(job.id), { now: atOnce.checked })(),
    }, true);
  }

  _showNow(job, now) {
    const rows = [];
    if (job.state === "waiting" || job.state === "held" || job.state === "infeasible") {
      rows.push(h("div", {}, h("strong", { text: reasonText(job) }), h("p", { class: "muted", text: resourceText(job.message) })));
      if (job.position) rows.push(h("div", {}, h("span", { class: "stat-label", text: labels.position }), h("span", { class: "figure", text: formatWhole(job.position) })));
      if (job.state === "waiting") rows.push(h("div", {}, h("span", { class: "stat-label", text: texts.jobs.starts }), estimate(job.start_estimate, now, texts.jobs.unknownEnd)));
    } else if (!ENDED.includes(job.state)) {
      const share = shareDone(job, now);
      const steps = job.steps ? texts.jobs.steps(formatWhole(job.steps_done), formatWhole(job.steps)) : "";
      rows.push(h("div", { class: "wide" }, h("span", { class: "stat-label", text: texts.jobs.progress }), progressBar(share, texts.jobs.progress, !job.steps), h("span", { class: "sub", text: [shareText(job, share) || labels.noProgress, steps].filter(Boolean).join(" · ") })));
      rows.push(h("div", {}, h("span", { class: "stat-label", text: texts.jobs.ends }), estimate(job.end_estimate, now, texts.jobs.unknownEnd)));
    } else if (job.message) {
      rows.push(h("div", {}, h("strong", { text: labels.outcome }), h("p", { text: job.message })));
    }
    if (job.warning) rows.push(h("div", { class: "job-warning" }, icon("alert"), h("span", { text: job.warning })));
    this._now.hidden = rows.length === 0;
    fill(this._now, ...rows);
  }

  /** What the job runs, which never changes: what is selected in it stays. */
  _showLaunch({ command = [], folder = "", variables = [] }) {
    if (this._launch.children.length || !command.length) return;
    const facts = [
      [labels.command, h("code", { tabindex: 0, role: "region", "aria-label": labels.command, text: formatCommand(command) })],
      [labels.folder, folder && h("code", { text: folder })],
      [labels.variables, variables.join(", ")],
    ];
    fill(this._launch, ...factRows(facts));
  }

  _showFacts({ job, first_estimate: first, gpu_seconds: held, predicted_samples_per_second: predicted = null }, now) {
    const facts = [
      [labels.owner, [job.user, job.tenant].filter(Boolean).join(" · ")],
      [labels.requested, resourceText(job.demand)],
      [labels.runsOn, job.placement?.length ? resourceText(`${formatNumber(job.gpus)} ${job.gpus === 1 ? "GPU" : "GPUs"}: ${formatPlacement(job.placement, 12)}`) : ""],
      [labels.domains, formatDomains(job.domains ?? {})],
      [labels.plan, job.plan],
      [labels.predictedThroughput, predicted ? predictedText(job.samples_per_second, predicted) : ""],
      [labels.jobClass, [job.job_class, job.priority ? labels.priority(job.priority) : ""].filter(Boolean).join(", ")],
      [labels.preemptible, `${job.preemptible ? labels.yes : labels.no}${job.consent ? `: ${job.consent}` : ""}`],
      [labels.submitted, moment(job.submitted, now)],
      [labels.firstEstimate, first && [formatMoment(first.at, now), formatRange(first, now) && `(${formatRange(first, now)})`].filter(Boolean).join(" ")],
      [labels.started, job.started && startedText(job, first, now)],
      [labels.ended, job.ended && moment(job.ended, now)],
      [labels.runTime, job.started && formatDuration((job.ended ?? now) - job.started)],
      [labels.gpuTime, held ? formatDuration(held) : ""],
      [labels.cpuTime, job.cpu_seconds ? formatDuration(job.cpu_seconds) : ""],
      [labels.peakMemory, job.peak_memory_mib ? formatGib(job.peak_memory_mib) : ""],
      [labels.timeLimit, job.time_limit && formatDuration(job.time_limit)],
      [labels.runs, job.runs > 1 ? formatWhole(job.runs) : ""],
      [labels.exitCode, job.exit_code === null ? "" : String(job.exit_code)],
      [labels.array, job.array],
    ];
    fill(this._facts, ...factRows(facts));
  }
}

/** The facts that are known. */
function factRows(facts) {
  return facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", {}, value)));
}

/** The modelled throughput, and what share of it was measured. */
function predictedText(measured, predicted) {
  const share = measured ? h("span", { class: "muted", text: ` ${labels.measuredShare(formatPercent(measured / predicted))}` }) : "";
  return h("span", {}, labels.perSecond(formatPrecise(predicted)), share);
}

function outputCard(log) {
  const { element, body } = card(labels.output);
  body.append(log.element);
  return element;
}

/** When a job started, and by how much that differs from the first estimate. */
function startedText(job, first, now) {
  const text = h("span", { title: formatFull(job.started), text: formatMoment(job.started, now) });
  if (!first) return text;
  const late = job.started - first.at;
  const compared = Math.abs(late) < 60 ? labels.asEstimated : late > 0 ? labels.later(formatDuration(late)) : labels.earlier(formatDuration(-late));
  return h("span", {}, text, h("span", { class: "muted", text: ` ${compared}` }));
}

/** The events of a job, run by run. */
function historyList(events, now) {
  const list = h("ol", { class: "history" });
  let run = -1;
  for (const event of events) {
    const number = event.run ?? 0;
    if (number && number !== run) list.append(h("li", { class: "history-run" }, labels.run(number)));
    run = number || run;
    list.append(h(
      "li", { class: "history-event" }, h("time", { datetime: new Date(event.at * 1000).toISOString(), title: formatFull(event.at), text: formatMoment(event.at, now) }),
      h("span", { class: `event event-${event.kind.replaceAll(" ", "-")}`, text: eventTexts[event.kind] ?? event.kind }), h("span", { class: "history-text", text: resourceText(event.text ?? "") }),
    ));
  }
  return list;
}
