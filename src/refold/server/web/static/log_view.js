/** The output of a run, followed while it grows, searched and downloaded. Escape sequences are removed; nothing in it becomes markup. */

import { errorBox, field, select } from "./controls.js";
import { fill, h, setText } from "./dom.js";
import { formatWhole } from "./format.js";
import { texts } from "./texts.js";

const labels = texts.log;
const FIRST_BYTES = 64 * 1024;
const POLL_MILLISECONDS = 1500;
const MAX_CHARACTERS = 400_000;
const DOWNLOAD_BYTES = 512 * 1024;
const ESCAPES = /\u001b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-_])/g;
const OVERWRITTEN = /[^\n]*\r(?!\n)/g;

/** Output as a terminal would show it in the end: without escape sequences, and without lines that were overwritten. */
export function plainText(text) {
  return text.replace(ESCAPES, "").replace(OVERWRITTEN, "").replaceAll("\r\n", "\n");
}

export class LogView {
  /** @param {import("./api.js").DaemonSource} source @param {string} job */
  constructor(source, job) {
    this._source = source;
    this._job = job;
    this._text = "";
    this._abort = new AbortController();
    this._first = -FIRST_BYTES;
    this._next = this._first;
    this._run = null;
    this._runs = 0;
    this._instances = 1;
    this._output = h("pre", { class: "log", tabindex: 0, role: "region", "aria-label": labels.title });
    this._note = h("p", { class: "muted", role: "status" });
    this._follow = h("input", { type: "checkbox", checked: true, onchange: () => this._scroll() });
    this._runField = field(labels.run, select({ "": labels.latest }, "", { onchange: () => this._choose() }));
    this._instanceField = field(labels.instance, select({ 0: "0" }, "0", { onchange: () => this._choose() }));
    this._search = h("input", { type: "search", "aria-label": labels.search, placeholder: labels.search, oninput: () => this._searchAll() });
    this._download = h("button", { type: "button", class: "button", text: labels.download, onclick: () => this._save() });
    this._tools = h("div", { class: "log-tools" }, this._runField, this._instanceField, this._search, this._download, h("label", { class: "check" }, this._follow, labels.follow));
    this._problem = h("div", {});
    this.element = h("div", { class: "log-view" }, this._tools, this._problem, this._output, this._note);
    this._timer = 0;
    this._poll();
  }

  stop() {
    window.clearTimeout(this._timer);
    this._abort.abort();
  }

  /** Tell how many runs and instances the job has. */
  update(job) {
    if (job.runs !== this._runs) {
      this._runs = job.runs;
      const control = this._runField.querySelector("select");
      const chosen = control.value;
      fill(control, h("option", { value: "", text: labels.latest }), ...Array.from({ length: job.runs }, (_, index) => h("option", { value: String(job.runs - index), text: String(job.runs - index) })));
      control.value = chosen;
      if (!chosen) this._restart();
    }
    if (job.instances !== this._instances) {
      this._instances = job.instances;
      fill(this._instanceField.querySelector("select"), ...Array.from({ length: Math.min(job.instances, 256) }, (_, index) => h("option", { value: String(index), text: String(index) })));
    }
    this._runField.hidden = job.runs < 2;
    this._instanceField.hidden = job.instances < 2;
  }

  _choose() {
    this._run = this._runField.querySelector("select").value || null;
    this._restart();
  }

  /** Show the lines with a text. All that may be shown is read for that, not only the end. */
  _searchAll() {
    if (this._first === -FIRST_BYTES) {
      this._first = -MAX_CHARACTERS;
      this._restart();
    } else this._render();
  }

  _restart() {
    this.stop();
    this._abort = new AbortController();
    this._text = "";
    this._next = this._first;
    this._output.replaceChildren();
    this._poll();
  }

  async _poll() {
    const { signal } = this._abort;
    try {
      const instance = this._instanceField.querySelector("select").value;
      const chunk = await this._source.logs(this._job, { run: this._run, instance, offset: this._next }, signal);
      fill(this._problem);
      this._show(chunk);
      if (chunk.ended) return;
      this._timer = window.setTimeout(() => this._poll(), chunk.text ? 200 : POLL_MILLISECONDS);
    } catch (error) {
      if (error.name === "AbortError") return;
      const forbidden = error.status === 403;
      fill(this._problem, forbidden ? h("p", { class: "empty", text: error.message }) : errorBox(error));
      this._output.hidden = forbidden;
      this._tools.hidden = forbidden;
      if (!forbidden) this._timer = window.setTimeout(() => this._poll(), 4 * POLL_MILLISECONDS);
    }
  }

  _show(chunk) {
    this._next = chunk.next;
    const note = chunk.run === 0 ? labels.notStarted : !this._text && !chunk.text ? labels.empty : "";
    this._output.hidden = Boolean(note);
    if (note) setText(this._note, note);
    if (chunk.text) this._text = plainText((this._text + chunk.text).slice(-MAX_CHARACTERS));
    if (chunk.text || !this._text) this._render(note);
  }

  _render(note = "") {
    const wanted = this._search.value.toLowerCase();
    const lines = wanted ? this._text.split("\n") : [];
    const found = lines.filter((line) => line.toLowerCase().includes(wanted));
    this._output.textContent = wanted ? found.join("\n") : this._text;
    setText(this._note, note || (wanted && labels.found(formatWhole(found.length), formatWhole(lines.length))));
    this._scroll();
  }

  /** Download all output of the run as it is. */
  async _save() {
    const instance = this._instanceField.querySelector("select").value;
    const parts = [];
    this._download.disabled = true;
    try {
      for (let offset = 0; ;) {
        const chunk = await this._source.logs(this._job, { run: this._run, instance, offset, limit: DOWNLOAD_BYTES });
        if (chunk.text) parts.push(chunk.text);
        if (!chunk.text || chunk.next <= offset) break;
        offset = chunk.next;
      }
      const address = URL.createObjectURL(new Blob(parts, { type: "text/plain" }));
      h("a", { href: address, download: `${this._job}.log` }).click();
      window.setTimeout(() => URL.revokeObjectURL(address), 60_000);
    } catch (error) {
      fill(this._problem, errorBox(error));
    }
    this._download.disabled = false;
  }

  _scroll() {
    if (this._follow.checked) this._output.scrollTop = this._output.scrollHeight;
  }
}
