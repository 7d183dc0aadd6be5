/** Nodes: their GPUs, jobs and power; drain and resume a node or a GPU. */

import { card, confirmDialog, errorBox, field, jobLink, toast } from "../controls.js";
import { fill, h, setText } from "../dom.js";
import { formatGib, formatNumber, formatWhole, plural } from "../format.js";
import { Refresher } from "../live.js";
import { texts } from "../texts.js";
import { VirtualTable } from "../virtual_table.js";

const labels = texts.nodes;
const SHOWN_JOBS = 3;
const COLUMNS = [
  { key: "node", label: labels.node }, { key: "gpustrip", label: labels.gpus }, { key: "nodestate", label: labels.state },
  { key: "jobs", label: labels.jobs }, { key: "action", label: "" },
];

export default class NodesPage {
  constructor({ source, live, argument }) {
    this._source = source;
    this._name = argument;
    this._nodes = [];
    this._byNode = new Map();
    this._search = h("input", { type: "search", maxlength: 64, autocomplete: "off", oninput: () => this._table.reset() });
    this._table = new VirtualTable({
      label: texts.pages.nodes, columns: COLUMNS, empty: labels.none, rowHeight: 56, narrowRowHeight: 84, maxRows: 13,
      load: async (after, limit) => {
        const found = this._matching();
        return { jobs: found.slice(after, after + limit), total: found.length };
      },
      render: (cells, node) => this._render(cells, node),
    });
    this._summary = h("span", { class: "muted", role: "status" });
    this._detail = h("div", {});
    this._problem = h("div", {});
    const list = card(labels.all, { flush: true });
    list.head.hidden = true;
    list.body.append(this._table.element);
    this.element = h(
      "div", { class: "page nodes" }, h("div", { class: "page-head" }, h("h1", { text: texts.pages.nodes }), this._summary), this._problem, this._detail,
      h("div", { class: "filters" }, field(labels.search, this._search)), list.element,
    );
    this._refresher = new Refresher(live, (signal) => this._load(signal), { every: 10000 });
  }

  stop() {
    this._refresher.stop();
    this._table.stop();
  }

  _matching() {
    const text = this._search.value.trim().toLowerCase();
    if (!text) return this._nodes;
    return this._nodes.filter((node) => [node.name, node.rack, node.gpu_type, node.reason].some((one) => one?.toLowerCase().includes(text)));
  }

  async _load(signal) {
    try {
      const [nodes, gpus] = await Promise.all([this._source.nodes(signal), this._source.gpus(signal)]);
      this._nodes = nodes;
      this._byNode = new Map(nodes.map((node) => [node.name, []]));
      for (const gpu of gpus) this._byNode.get(gpu.node)?.push(gpu);
      const down = nodes.filter((node) => !node.up).length;
      const free = nodes.reduce((sum, node) => sum + node.free_gpus, 0);
      setText(this._summary, [plural(nodes.length, "node"), labels.free(formatNumber(free)), down ? labels.down(formatWhole(down)) : ""].filter(Boolean).join(" · "));
      this._showDetail();
      await this._table.refresh(signal);
      fill(this._problem);
    } catch (error) {
      if (error.name !== "AbortError") fill(this._problem, errorBox(error, () => this._refresher.now()));
    }
  }

  _render([name, strip, state, jobs, action], node) {
    fill(name, h("a", { class: "job-link", href: `#/nodes/${encodeURIComponent(node.name)}`, text: node.name }), h("span", { class: "sub", text: [node.gpu_type, node.rack && texts.map.rack(node.rack)].filter(Boolean).join(" · ") }));
    fill(strip, gpuStrip(this._byNode.get(node.name) ?? [], node));
    fill(state, nodeState(node), node.rack_watts != null && h("span", { class: "sub", text: labels.power(formatWhole(node.rack_watts), node.rack_limit_watts == null ? "" : formatWhole(node.rack_limit_watts)) }));
    const shown = node.jobs.slice(0, SHOWN_JOBS).flatMap((job, index) => (index ? [", ", jobLink(job)] : [jobLink(job)]));
    fill(jobs, ...shown, node.jobs.length > SHOWN_JOBS && h("span", { class: "muted", text: labels.more(node.jobs.length - SHOWN_JOBS) }), !node.jobs.length && h("span", { class: "muted", text: "–" }));
    fill(action, ...this._buttons(node, null));
  }

  _buttons(node, gpu) {
    if (!this._source.isOwner) return [];
    const out = gpu === null ? !node.up : Boolean(gpu.drain_reason);
    const what = gpu === null ? node.name : labels.gpuOf(gpu.index, node.name);
    const text = out ? labels.resume : labels.drain;
    return [h("button", { type: "button", class: "button small", text, "aria-label": `${text} ${what}`, onclick: () => (out ? this._resume(node, gpu, what) : this._drain(node, gpu, what)) })];
  }

  _drain(node, gpu, what) {
    const reason = h("input", { name: "reason", maxlength: 200, autocomplete: "off" });
    const move = h("input", { type: "checkbox", name: "move" });
    const busy = gpu === null ? node.jobs.length : gpu.jobs.length;
    confirmDialog({
      title: labels.drainTitle(what), confirm: labels.drain, danger: true, text: gpu === null ? labels.drainText(busy) : labels.drainGpuText(busy),
      fields: [field(labels.reason, reason), gpu === null && busy ? h("label", { class: "check" }, move, labels.move) : ""].filter(Boolean),
      work: async () => {
        await this._source.post(`nodes/${encodeURIComponent(node.name)}/drain`, { query: { reason: reason.value, move: move.checked, gpu: gpu?.index } });
        toast(labels.drained(what));
        this._refresher.now();
      },
    });
  }

  _resume(node, gpu, what) {
    confirmDialog({
      title: labels.resumeTitle(what), text: labels.resumeText, confirm: labels.resume,
      work: async () => {
        await this._source.post(`nodes/${encodeURIComponent(node.name)}/resume`, { query: { gpu: gpu?.index } });
        toast(labels.resumed(what));
        this._refresher.now();
      },
    });
  }

  _showDetail() {
    const node = this._nodes.find((one) => one.name === this._name);
    if (!node) return;
    const { element, body } = card(node.name, { tools: [nodeState(node), ...this._buttons(node, null)] });
    const focused = document.activeElement?.getAttribute("aria-label");
    const head = h("tr", {}, ...labels.gpuColumns.map((text) => h("th", { scope: "col", text })));
    const rows = (this._byNode.get(node.name) ?? []).map((gpu) => this._gpuRow(node, gpu));
    body.append(h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": node.name }, h("table", { class: "plain" }, h("thead", {}, head), h("tbody", {}, ...rows))));
    fill(this._detail, element);
    if (focused) [...this._detail.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
  }

  _gpuRow(node, gpu) {
    const state = gpu.drain_reason ? h("span", { class: "state-failed", text: gpu.drain_reason }) : gpu.used_by ? gpu.used_by : gpu.jobs.length ? "" : texts.map.free;
    return h(
      "tr", {}, h("th", { scope: "row", text: String(gpu.index) }), h("td", {}, ...gpu.jobs.flatMap((job, index) => (index ? [", ", jobLink(job)] : [jobLink(job)])), state),
      h("td", {}, meter(gpu.utilisation, 100, "%")), h("td", {}, gpu.memory_mib ? meter(gpu.memory_used_mib / 1024, gpu.memory_mib / 1024, "GiB", formatGib(gpu.memory_used_mib)) : "–"),
      h("td", { class: "number", text: gpu.celsius === null ? "–" : `${formatWhole(gpu.celsius)} °C` }), h("td", { class: "number", text: gpu.watts === null ? "–" : `${formatWhole(gpu.watts)} W` }),
      h("td", {}, ...this._buttons(node, gpu)),
    );
  }
}

/** A small bar with its value; a dash if it is not measured. */
function meter(value, most, unit, text = `${formatWhole(value)} ${unit}`) {
  if (value === null || value === undefined) return h("span", { class: "muted", text: "–" });
  return h("span", { class: "meter" }, h("span", { class: "meter-bar", "aria-hidden": "true" }, h("span", { style: { width: `${Math.min(100, (100 * value) / most)}%` } })), text);
}

function nodeState(node) {
  if (node.up) return h("span", { class: "badge state-finished" }, h("span", { class: "dot", "aria-hidden": "true" }), labels.up);
  const kind = node.drained ? "held" : "failed";
  return h("span", { class: `badge state-${kind}`, title: node.reason }, h("span", { class: "dot", "aria-hidden": "true" }), `${node.drained ? labels.isDrained : labels.isDown}${node.reason ? `: ${node.reason}` : ""}`);
}

/** The GPUs of a node as squares: in use, free, out of service. */
function gpuStrip(gpus, node) {
  const used = gpus.filter((gpu) => gpu.jobs.length).length;
  const strip = h("span", { class: "gpu-strip", role: "img", "aria-label": labels.used(used, node.gpus) });
  for (const gpu of gpus.slice(0, 16)) strip.append(h("i", { class: gpu.drain_reason ? "out" : gpu.jobs.length ? "used" : "" }));
  return h("span", { class: "strip-line" }, strip, h("span", { class: "muted", text: labels.used(used, node.gpus) }));
}
