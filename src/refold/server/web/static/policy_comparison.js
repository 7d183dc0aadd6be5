/** The current queue under other policies: mean wait and completion, and by how much the start of each job shifts. */

import { card, errorBox, field, jobLink } from "./controls.js";
import { fill, h } from "./dom.js";
import { formatDuration, formatFull, formatMoment, formatWhole } from "./format.js";
import { texts } from "./texts.js";

const labels = texts.policies;
const FEW_SECONDS = 1;
/** Policies that are chosen at first, if the daemon has another one. */
const FIRST_CHOSEN = ["refold", "easy", "fifo"];
const MAX_CHOSEN = 4;

export class PolicyComparison {
  /** @param {import("./api.js").DaemonSource} source */
  constructor(source) {
    this._source = source;
    this._abort = new AbortController();
    this._choices = h("div", { class: "choices" });
    this._button = h("button", { type: "submit", class: "button primary", text: labels.ask, disabled: true });
    this._result = h("div", { class: "stack", role: "status" });
    const form = h("form", { class: "policy-form" }, h("fieldset", {}, h("legend", { text: labels.policies }), this._choices), h("p", { class: "field-help", text: labels.help }), this._button);
    form.addEventListener("submit", (event) => { event.preventDefault(); this._ask(); });
    const { element, body } = card(labels.title);
    body.append(form, this._result);
    this.element = element;
    this._load();
  }

  stop() {
    this._abort.abort();
  }

  async _load() {
    try {
      const [{ policies }, info] = await Promise.all([this._source.get("catalogue", {}, this._abort.signal), this._source.info(this._abort.signal)]);
      const chosen = FIRST_CHOSEN.filter((name) => name !== info.policy).slice(0, 2);
      fill(this._choices, ...policies.filter((name) => name !== info.policy).map((name) => h("label", { class: "check" }, h("input", { type: "checkbox", name: "policy", value: name, checked: chosen.includes(name) }), name)));
      this._choices.addEventListener("change", () => this._limit());
      this._limit();
    } catch (error) {
      if (error.name !== "AbortError") fill(this._result, errorBox(error, () => this._load()));
    }
  }

  get _chosen() {
    return [...this._choices.querySelectorAll("input:checked")].map((input) => input.value);
  }

  _limit() {
    const count = this._chosen.length;
    for (const input of this._choices.querySelectorAll("input")) input.disabled = !input.checked && count >= MAX_CHOSEN;
    this._button.disabled = count === 0;
  }

  async _ask() {
    this._button.disabled = true;
    fill(this._result, h("p", { class: "muted", text: labels.simulating }));
    try {
      const answer = await this._source.post("whatif/policies", { body: { policies: this._chosen }, signal: this._abort.signal });
      fill(this._result, ...this._show(answer));
    } catch (error) {
      if (error.name !== "AbortError") fill(this._result, errorBox(error));
    } finally {
      this._limit();
    }
  }

  _show(answer) {
    if (!answer.waiting) return [h("p", { class: "empty", text: labels.noneWaiting })];
    const notes = [labels.futures(formatWhole(answer.forecasts[0].futures), formatWhole(answer.compared), formatWhole(answer.waiting)), answer.knows_run_times ? "" : labels.guessed];
    return [forecastTable(answer), h("p", { class: "muted", text: notes.filter(Boolean).join(" ") }), answer.starts.length ? startTable(answer) : ""];
  }
}

/** A table that scrolls sideways if it is wider than the page. */
export function table(label, columns, rows, kind = "") {
  const head = h("tr", {}, ...columns.map(([text, kind]) => h("th", { scope: "col", class: kind, text })));
  return h("div", { class: `table-scroll ${kind}`, tabindex: 0, role: "region", "aria-label": label }, h("table", { class: "plain" }, h("thead", {}, head), h("tbody", {}, ...rows)));
}

function forecastTable({ forecasts }) {
  const [present] = forecasts;
  const most = Math.max(1, ...forecasts.map((one) => one.mean_wait ?? 0));
  const rows = forecasts.map((one, index) => h(
    "tr", {}, h("th", { scope: "row" }, one.policy, index === 0 && h("span", { class: "sub", text: labels.present })),
    h("td", { class: "bar-cell" }, h("span", { class: "use-bar", "aria-hidden": "true" }, h("span", { class: index ? "outcome-run" : "outcome-wait", style: { width: `${(100 * (one.mean_wait ?? 0)) / most}%` } }))),
    h("td", { class: "number" }, duration(one.mean_wait, index ? present.mean_wait : null)), h("td", { class: "number" }, duration(one.mean_completion, index ? present.mean_completion : null)),
    h("td", { class: "number", text: index ? formatWhole(one.earlier) : "–" }), h("td", { class: "number", text: index ? formatWhole(one.later) : "–" }),
  ));
  return table(labels.title, [[labels.policy], [labels.wait], [labels.meanWait, "number"], [labels.meanCompletion, "number"], [labels.earlier, "number"], [labels.later, "number"]], rows);
}

/** A duration, and the difference to that of the current policy below. */
function duration(seconds, present) {
  if (seconds === null) return "–";
  const compared = present === null ? null : h("span", { class: "sub", text: shiftText(seconds - present) });
  return h("span", {}, formatDuration(seconds), compared);
}

function shiftText(seconds) {
  if (Math.abs(seconds) <= FEW_SECONDS) return labels.same;
  return seconds < 0 ? `−${formatDuration(-seconds)}` : `+${formatDuration(seconds)}`;
}

function startTable({ now, forecasts, starts }) {
  const rows = starts.map(({ job, starts: times }) => h(
    "tr", {}, h("th", { scope: "row" }, jobLink(job)),
    ...times.map((at, index) => h("td", { title: formatFull(at) }, formatMoment(at, now), index > 0 && h("span", { class: `sub ${shiftClass(at - times[0])}`, text: shiftText(at - times[0]) }))),
  ));
  return h("div", { class: "stack" }, h("h3", { text: labels.starts }), table(labels.starts, [[texts.jobs.job], ...forecasts.map((one, index) => [index ? one.policy : `${one.policy} (${labels.present})`])], rows, "tall"));
}

function shiftClass(seconds) {
  return Math.abs(seconds) <= FEW_SECONDS ? "" : seconds < 0 ? "shift-earlier" : "shift-later";
}
