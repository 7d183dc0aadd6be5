/** Submit a job: a form with a live preview of its start and cost; or submit a job again, with changes. */

import { card, errorBox, estimate, field, select, toast } from "../controls.js";
import { fill, h, setText } from "../dom.js";
import { formatCommand, formatDuration, formatNumber } from "../format.js";
import { resourceText, texts } from "../texts.js";

const labels = texts.submit;
const TYPING_MILLISECONDS = 500;

export default class SubmitPage {
  constructor({ source, query }) {
    this._source = source;
    this._abort = new AbortController();
    const input = (name, props) => h("input", { name, autocomplete: "off", ...props });
    this._fields = {
      command: h("textarea", { name: "command", rows: 4, required: true, spellcheck: "false", placeholder: "python train.py" }),
      name: input("name", { maxlength: 64, placeholder: labels.fromCommand }),
      folder: input("folder", { maxlength: 4096, placeholder: labels.ownFolder }),
      gpus: input("gpus", { type: "number", min: 0, max: 4096, step: "any", value: 1, required: true }),
      instances: input("instances", { type: "number", min: 1, max: 4096, value: 1, required: true }),
      hours: input("hours", { type: "number", min: 0, step: "any", placeholder: labels.noLimit }),
      tenant: input("tenant", { maxlength: 64, placeholder: source.session?.tenant ?? "", disabled: !source.isOwner }),
      class: select({ guaranteed: texts.whatif.guaranteed, "best-effort": texts.whatif.bestEffort }, "guaranteed", { name: "class" }),
    };
    this._button = h("button", { type: "submit", class: "button primary", text: labels.submit });
    this._note = h("p", { class: "muted" });
    const fields = Object.entries(this._fields).map(([name, control]) => field(labels[name], control, labels.help[name] ?? ""));
    fields[0].classList.add("whole");
    const form = h("form", { class: "ask-form", oninput: () => this._previewLater() }, ...fields, this._button);
    form.addEventListener("submit", (event) => { event.preventDefault(); this._submit(); });
    this._preview = h("div", { class: "preview", role: "status" }, h("p", { class: "muted", text: labels.previewHint }));
    this._problem = h("div", {});
    const [question, answer] = [card(labels.job), card(labels.preview)];
    question.body.append(form, this._note);
    answer.body.append(this._preview);
    this.element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { text: texts.pages.submit }), h("p", { class: "muted", text: labels.hint })), this._problem, question.element, answer.element);
    if (query.get("again")) this._copy(query.get("again"));
  }

  stop() {
    window.clearTimeout(this._typing);
    this._abort.abort();
  }

  /** Fill in what an earlier job ran. Its environment stays with the daemon. */
  async _copy(id) {
    try {
      const { job } = await this._source.why(id, this._abort.signal);
      this._copied = job.command;
      const perInstance = job.requested_gpus / job.instances;
      const values = {
        command: isForShell(job.command) ? job.command[2] : formatCommand(job.command), name: job.name, folder: job.folder, gpus: perInstance, instances: job.instances,
        hours: job.time_limit ? job.time_limit / 3600 : "", tenant: job.tenant, class: job.job_class,
      };
      for (const [name, value] of Object.entries(values)) this._fields[name].value = String(value);
      setText(this._note, job.variables.length ? labels.notCopied(job.variables.join(", ")) : "");
      this._previewLater();
    } catch (error) {
      if (error.name !== "AbortError") fill(this._problem, errorBox(error));
    }
  }

  /** The job as the daemon takes it; null if something is missing. A command line is for the shell. */
  _submission() {
    const value = (name) => this._fields[name].value.trim();
    const line = this._fields.command.value;
    if (!line.trim() || value("gpus") === "" || !this._fields.gpus.reportValidity()) return null;
    const command = this._copied && line === formatCommand(this._copied) ? this._copied : ["sh", "-c", line];
    const [gpus, hours] = [Number(value("gpus")), Number(value("hours"))];
    const shared = gpus > 0 && gpus < 1 ? { gpus: 1, gpu_share: gpus } : { gpus };
    return {
      name: value("name") || nameOf(line), command, ...shared, instances: Number(value("instances")) || 1, job_class: value("class"), folder: value("folder"),
      ...(hours > 0 ? { time_limit: hours * 3600 } : {}), ...(this._source.isOwner && value("tenant") ? { tenant: value("tenant") } : {}),
    };
  }

  _previewLater() {
    window.clearTimeout(this._typing);
    this._abort.abort();
    this._abort = new AbortController();
    this._typing = window.setTimeout(() => this._ask(), TYPING_MILLISECONDS);
  }

  async _ask() {
    const body = this._submission();
    if (!body) return;
    try {
      const found = await this._source.post("preview", { body, signal: this._abort.signal });
      fill(this._preview, ...this._previewRows(body, found));
    } catch (error) {
      if (error.name !== "AbortError") fill(this._preview, h("p", { class: "field-problem", text: error.status === 0 ? texts.error.offline : error.message }));
    }
  }

  _previewRows(body, found) {
    const when = found.starts_now ? labels.startsNow : estimate(found.start_estimate, this._source.now(), texts.jobs.unknownEnd);
    const cost = body.time_limit ? labels.atMost(formatNumber((found.gpus * body.time_limit) / 3600), formatDuration(body.time_limit)) : labels.noBound(formatNumber(found.gpus));
    const facts = [[texts.job.requested, resourceText(found.demand)], [texts.jobs.starts, found.fits ? when : labels.doesNotFit], [labels.cost, cost], [texts.job.plan, found.plan], [texts.job.preemptible, `${found.preemptible ? texts.job.yes : texts.job.no}: ${found.consent}`]];
    const rows = facts.filter(([, value]) => value).map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", {}, value)));
    return [h("dl", { class: "facts" }, ...rows), ...found.notes.map((text) => h("p", { class: "muted", text: resourceText(text) }))];
  }

  async _submit() {
    const body = this._submission();
    if (!body) return;
    this._button.disabled = true;
    this._request ??= crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`; // a second click submits nothing
    try {
      const job = await this._source.post("jobs", { body: { ...body, request: this._request } });
      toast(labels.submitted(job.id));
      location.hash = `#/jobs/${encodeURIComponent(job.id)}`;
    } catch (error) {
      if (error.status) this._request = undefined; // it was refused: what is sent next is another request
      fill(this._problem, errorBox(error));
      this._button.disabled = false;
    }
  }
}

/** Whether a command is a line for the shell, as this form submits it. */
function isForShell(command) {
  return command.length === 3 && command[0] === "sh" && command[1] === "-c";
}

/** "train" for "python -u train.py --fast", as `refold submit` names jobs. */
function nameOf(line) {
  const words = line.trim().split(/\s+/);
  const script = words.slice(1).find((word) => /^[^-].*\.(py|sh)$/.test(word)) ?? words[0];
  return script.split("/").pop().replace(/\.\w+$/, "").replace(/[^\w.-]+/g, "-").slice(0, 64) || "job";
}
