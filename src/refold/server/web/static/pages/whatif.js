/** What if: when would a job of this size start and end, and whom would it delay? Nothing is submitted. */

import { card, errorBox, field, select } from "../controls.js";
import { fill, h } from "../dom.js";
import { formatDuration, formatFull, formatMoment, formatNumber, formatRange, formatRelative, formatWhole, plural } from "../format.js";
import { PolicyComparison } from "../policy_comparison.js";
import { PreemptionOutlook } from "../preemption_outlook.js";
import { resourceText, texts } from "../texts.js";

const labels = texts.whatif;
const MAX_VARIANTS = 8;

export default class WhatIfPage {
  constructor({ source }) {
    this._source = source;
    this._gpus = h("input", { name: "gpus", value: "1, 2, 4, 8", required: true, pattern: "[0-9, ]+", autocomplete: "off" });
    this._instances = h("input", { name: "instances", type: "number", min: 1, max: 4096, value: 1, required: true });
    this._hours = h("input", { name: "hours", type: "number", min: 0, step: "any", placeholder: labels.predicted });
    this._class = select({ guaranteed: labels.guaranteed, "best-effort": labels.bestEffort }, "guaranteed", { name: "class" });
    this._button = h("button", { type: "submit", class: "button primary", text: labels.ask });
    const form = h(
      "form", { class: "ask-form" }, field(labels.gpus, this._gpus, labels.gpusHelp), field(labels.instances, this._instances), field(labels.hours, this._hours, labels.hoursHelp),
      field(labels.jobClass, this._class), this._button,
    );
    form.addEventListener("submit", (event) => { event.preventDefault(); this._ask(); });
    this._result = h("div", { role: "status" });
    this._policies = new PolicyComparison(source);
    this._preemption = new PreemptionOutlook(source);
    const question = card(labels.question);
    question.body.append(form);
    this.element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { text: texts.pages.whatif }), h("p", { class: "muted", text: labels.hint })), question.element, this._result, this._policies.element, this._preemption.element);
    this._abort = new AbortController();
  }

  stop() {
    this._abort.abort();
    this._policies.stop();
    this._preemption.stop();
  }

  _variants() {
    const sizes = [...new Set(this._gpus.value.split(/[ ,]+/).filter(Boolean).map(Number))].slice(0, MAX_VARIANTS);
    const seconds = Number(this._hours.value) * 3600;
    return sizes.map((gpus) => ({
      name: "what-if", command: ["true"], gpus, instances: Number(this._instances.value), job_class: this._class.value,
      ...(seconds > 0 ? { estimate: (seconds * sizes[0]) / Math.max(1, gpus) } : {}),
    }));
  }

  async _ask() {
    this._button.disabled = true;
    try {
      const variants = this._variants();
      const answer = await this._source.post("whatif", { body: { variants }, signal: this._abort.signal });
      fill(this._result, this._show(variants, answer));
    } catch (error) {
      if (error.name !== "AbortError") fill(this._result, errorBox(error));
    } finally {
      this._button.disabled = false;
    }
  }

  _show(variants, answer) {
    const ends = answer.variants.map((one) => one.end?.at ?? Infinity);
    const first = ends.indexOf(Math.min(...ends));
    const span = Math.max(60, ...answer.variants.flatMap((one) => [one.end?.latest ?? one.end?.at ?? 0, one.start?.latest ?? one.start?.at ?? 0]).map((at) => at - answer.now));
    const rows = answer.variants.map((one, index) => {
      const gpus = variants[index].gpus * variants[index].instances;
      const best = index === first && ends[index] < Infinity && variants.length > 1;
      return h(
        "tr", {}, h("th", { scope: "row" }, resourceText(plural(gpus, "GPU")), best && h("span", { class: "best", text: labels.earliest })),
        h("td", { class: "bar-cell" }, outcomeBar(one, answer.now, span)), h("td", {}, time(one.start, answer.now, one.reason)), h("td", {}, time(one.end, answer.now, "")),
        h("td", { class: "number", text: one.start ? formatWhole(one.delayed_jobs) : "–" }), h("td", { class: "number", text: one.start && one.mean_delay_of_others > 1 ? formatDuration(one.mean_delay_of_others) : "–" }),
      );
    });
    const columns = [[labels.size], [labels.when], [texts.jobs.starts], [texts.jobs.ends], [labels.delayed, "number"], [labels.meanDelay, "number"]];
    const { element, body } = card(labels.answer);
    body.append(
      h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": labels.answer }, h("table", { class: "plain" }, h("thead", {}, h("tr", {}, ...columns.map(([text, kind]) => h("th", { scope: "col", class: kind, text })))), h("tbody", {}, ...rows))),
      h("p", { class: "legend" }, h("span", { class: "legend-entry" }, h("span", { class: "swatch outcome-wait" }), labels.waits), h("span", { class: "legend-entry" }, h("span", { class: "swatch outcome-run" }), labels.runs)),
      h("p", { class: "muted", text: [labels.futures(formatNumber(answer.futures)), answer.approximate ? labels.approximate : "", Number(this._hours.value) > 0 && variants.length > 1 ? labels.scaled : ""].filter(Boolean).join(" ") }),
    );
    return element;
  }
}

function time(estimate, now, reason) {
  if (!estimate) return h("span", { class: "muted", text: reason || "–" });
  return h("span", { class: "estimate", title: formatFull(estimate.at) }, `${formatMoment(estimate.at, now)} (${formatRelative(estimate.at, now)})`, h("span", { class: "sub", text: formatRange(estimate, now) }));
}

/** From now: how long it waits, then how long it runs. */
function outcomeBar({ start, end }, now, span) {
  const percent = (seconds) => `${Math.max(0, Math.min(100, (100 * seconds) / span))}%`;
  if (!start) return h("span", { class: "use-bar", "aria-hidden": "true" });
  const stop = end?.at ?? start.at;
  return h("span", { class: "use-bar", "aria-hidden": "true" }, h("span", { class: "outcome-wait", style: { width: percent(start.at - now) } }), h("span", { class: "outcome-run", style: { width: percent(stop - start.at) } }));
}
