/** How long the latest jobs would have waited if all of them, those that consent, or none could be preempted. */

import { card, errorBox } from "./controls.js";
import { fill, h } from "./dom.js";
import { formatDuration, formatNumber, formatWhole } from "./format.js";
import { table } from "./policy_comparison.js";
import { texts } from "./texts.js";

const labels = texts.preemption;
const RULES = ["always", "consent", "never"];

export class PreemptionOutlook {
  /** @param {import("./api.js").DaemonSource} source */
  constructor(source) {
    this._source = source;
    this._abort = new AbortController();
    this._button = h("button", { type: "button", class: "button primary", text: labels.ask, onclick: () => this._ask() });
    this._result = h("div", { class: "stack", role: "status" });
    const { element, body } = card(labels.title);
    body.append(h("div", { class: "policy-form" }, h("p", { class: "field-help", text: labels.help }), this._button), this._result);
    this.element = element;
  }

  stop() {
    this._abort.abort();
  }

  async _ask() {
    this._button.disabled = true;
    fill(this._result, h("p", { class: "muted", text: labels.simulating }));
    try {
      const outlook = await this._source.get("whatif/preemption", {}, this._abort.signal);
      fill(this._result, outlookTable(outlook), h("p", { class: "muted", text: labels.note(outlook.policy) }));
    } catch (error) {
      if (error.name !== "AbortError") fill(this._result, errorBox(error));
    } finally {
      this._button.disabled = false;
    }
  }
}

function outlookTable(outlook) {
  const outcomes = RULES.map((rule) => outlook[rule]);
  const most = Math.max(1, ...outcomes.map((one) => one.mean_wait ?? 0));
  const duration = (seconds) => h("td", { class: "number", text: seconds === null ? "–" : formatDuration(seconds) });
  const rows = outcomes.map((one) => h(
    "tr", {}, h("th", { scope: "row", text: labels[one.rule](formatWhole(one.preemptible)) }),
    h("td", { class: "bar-cell" }, h("span", { class: "use-bar", "aria-hidden": "true" }, h("span", { class: "outcome-wait", style: { width: `${(100 * (one.mean_wait ?? 0)) / most}%` } }))),
    duration(one.mean_wait), duration(one.longest_wait), h("td", { class: "number", text: formatWhole(one.preemptions) }), h("td", { class: "number", text: formatNumber(one.overhead_gpu_hours) }),
  ));
  return table(labels.title, [[labels.rule], [labels.wait], [labels.mean, "number"], [labels.longest, "number"], [labels.preemptions, "number"], [labels.overhead, "number"]], rows);
}
