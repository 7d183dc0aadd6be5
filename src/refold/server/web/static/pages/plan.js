/** The planner as a form: the best parallel plans of a model on given GPUs, where the time goes, and why others were rejected. */

import { card, emptyNote, errorBox, field, select } from "../controls.js";
import { fill, h } from "../dom.js";
import { formatNumber, formatPercent, formatPrecise, formatWhole } from "../format.js";
import { texts } from "../texts.js";

const labels = texts.plan;
const PREFERRED = { model: "llama-2-7b", gpu: "A100-80GB" };

export default class PlanPage {
  constructor({ source }) {
    this._source = source;
    this._abort = new AbortController();
    this._form = h("form", { class: "ask-form" });
    this._form.addEventListener("submit", (event) => { event.preventDefault(); this._ask(); });
    this._result = h("div", { role: "status" });
    const question = card(labels.question);
    question.body.append(this._form);
    this.element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { text: texts.pages.plan }), h("p", { class: "muted", text: labels.hint })), question.element, this._result);
    this._load();
  }

  stop() {
    this._abort.abort();
  }

  async _load() {
    try {
      const catalogue = await this._source.get("catalogue", {}, this._abort.signal);
      const options = (names) => Object.fromEntries(names.map((name) => [name, name]));
      this._fields = {
        model: select(options(catalogue.models), catalogue.models.includes(PREFERRED.model) ? PREFERRED.model : catalogue.models[0]),
        gpu: select(options(catalogue.gpus), catalogue.gpus.includes(PREFERRED.gpu) ? PREFERRED.gpu : catalogue.gpus[0]),
        gpus: h("input", { type: "number", min: 1, max: 1024, value: 8, required: true }),
        nodes: h("input", { type: "number", min: 0, max: 1024, placeholder: labels.fewest }),
        batch: h("input", { type: "number", min: 1, placeholder: labels.ofModel }),
        sequence: h("input", { type: "number", min: 1, placeholder: labels.ofModel }),
        cp: h("input", { type: "number", min: 1, max: 1024, placeholder: labels.chosen }),
        ep: h("input", { type: "number", min: 1, max: 1024, placeholder: labels.chosen }),
        engine: select({ "": labels.chosen, ...options(catalogue.engines) }, ""),
      };
      this._button = h("button", { type: "submit", class: "button primary", text: labels.ask });
      fill(this._form, ...Object.entries(this._fields).map(([name, control]) => field(labels[name], control)), this._button);
    } catch (error) {
      if (error.name !== "AbortError") fill(this._result, errorBox(error, () => this._load()));
    }
  }

  async _ask() {
    const number = (name) => Number(this._fields[name].value) || 0;
    const body = { model: this._fields.model.value, gpu: this._fields.gpu.value, engine: this._fields.engine.value, gpus: number("gpus"), nodes: number("nodes"), batch: number("batch"), sequence: number("sequence"), cp: number("cp"), ep: number("ep") };
    this._button.disabled = true;
    try {
      const answer = await this._source.post("plan", { body, signal: this._abort.signal });
      fill(this._result, h("div", { class: "stack" }, bestCard(answer), answer.rejected.length && rejectedCard(answer)));
    } catch (error) {
      if (error.name !== "AbortError") fill(this._result, errorBox(error));
    } finally {
      this._button.disabled = false;
    }
  }
}

function table(label, columns, rows) {
  const head = h("tr", {}, ...columns.map(([text, kind]) => h("th", { scope: "col", class: kind, text })));
  return h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", { class: "plain" }, h("thead", {}, head), h("tbody", {}, ...rows)));
}

function bestCard(answer) {
  const { element, body } = card(labels.best(answer.model, `${formatWhole(answer.gpus)} × ${answer.gpu}`));
  body.append(h("p", { class: "muted", text: labels.setup(formatWhole(answer.nodes), formatWhole(answer.batch), formatWhole(answer.sequence), answer.engine) }));
  if (!answer.best.length) {
    body.append(emptyNote(labels.none), ...answer.advice.map((text) => h("p", { text })));
    return element;
  }
  const slowest = Math.max(...answer.best.map((row) => row.step_seconds));
  const parts = [...new Set(answer.best.flatMap((row) => Object.keys(row.seconds)))].filter((name) => answer.best.some((row) => row.seconds[name] > 0));
  const colours = new Map(parts.map((name, index) => [name, `var(--owner-${index % 9})`]));
  const rows = answer.best.map((row) => h(
    "tr", {}, h("th", { scope: "row" }, h("code", { text: row.plan })), h("td", { class: "bar-cell" }, partsBar(row, slowest, colours)), h("td", { class: "number", text: `${formatPrecise(row.step_seconds)} s` }),
    h("td", { class: "number", text: formatPrecise(row.samples_per_second) }), h("td", { class: "number", text: formatPercent(row.mfu) }), h("td", { class: "number", text: `${formatNumber(row.memory_gib)} GiB` }),
  ));
  const columns = [[labels.plan], [labels.stepParts], [labels.step, "number"], [labels.samples, "number"], [labels.mfu, "number"], [labels.memory, "number"]];
  body.append(
    table(labels.plan, columns, rows), h("p", { class: "legend" }, ...parts.map((name) => h("span", { class: "legend-entry" }, h("span", { class: "swatch", style: { background: colours.get(name) } }), name.replaceAll("_", " ")))),
    h("p", { class: "muted", text: `${labels.considered(formatWhole(answer.considered), formatWhole(answer.out_of_memory))} ${labels.accuracy}` }),
  );
  return element;
}

function partsBar(row, slowest, colours) {
  return h("span", { class: "use-bar parts-bar", "aria-hidden": "true" }, ...Object.entries(row.seconds).filter(([, seconds]) => seconds > 0).map(([name, seconds]) => h("span", { title: `${name}: ${formatPrecise(seconds)} s`, style: { width: `${(100 * seconds) / slowest}%`, background: colours.get(name) } })));
}

function rejectedCard(answer) {
  const { element, body } = card(labels.rejected);
  const rows = answer.rejected.map((one) => h("tr", {}, h("th", { scope: "row", text: one.name }), h("td", { class: "number", text: formatWhole(one.plans) }), h("td", { class: "wrap", text: one.explanation }), h("td", {}, h("code", { text: one.example }))));
  body.append(table(labels.rejected, [[labels.reason], [labels.plans, "number"], [labels.explanation], [labels.example]], rows));
  return element;
}
