/** Small parts that all pages share: badges, bars, tiles, dialogs, messages. */

import { append, fill, h, icon, setText } from "./dom.js";
import { formatFull, formatMoment, formatRange, formatRelative } from "./format.js";
import { texts } from "./texts.js";

/** A card with a heading. @returns {{element: HTMLElement, head: HTMLElement, body: HTMLElement}} */
export function card(title, { level = "h2", tools = [], label = title, flush = false } = {}) {
  const body = h("div", { class: flush ? "card-body flush" : "card-body" });
  const head = h("div", { class: "card-head" }, h(level, { text: title }), h("div", { class: "card-tools" }, ...tools));
  return { element: h("section", { class: "card", "aria-label": label }, head, body), head, body };
}

/** The state of a job as a coloured dot and a word. */
export function stateBadge(state) {
  return h("span", { class: `badge state-${state.replaceAll(" ", "-")}` }, h("span", { class: "dot", "aria-hidden": "true" }), texts.states[state] ?? state);
}

/** A figure with a label; `update` changes it in place. */
export function statTile(label) {
  const value = h("span", { class: "stat-value", text: "–" });
  const detail = h("span", { class: "stat-detail" });
  const bar = h("span", { class: "stat-bar", hidden: true }, h("span", {}));
  const element = h("div", { class: "stat" }, h("span", { class: "stat-label", text: label }), value, detail, bar);
  return {
    element,
    update(text, more = "", share = null) {
      setText(value, text);
      setText(detail, more);
      bar.hidden = share === null;
      if (share !== null) bar.firstChild.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    },
  };
}

/** A bar for a share from 0 to 1; null: not known. `predicted`: it was not measured. */
export function progressBar(share, label, predicted = false) {
  if (share === null) return h("span", { class: "progress unknown", "aria-hidden": "true" });
  const percent = Math.round(Math.max(0, Math.min(1, share)) * 100);
  return h(
    "span",
    { class: predicted ? "progress predicted" : "progress", role: "progressbar", "aria-valuetext": predicted ? texts.jobs.predicted(`${percent} %`) : null, "aria-valuenow": percent, "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": label },
    h("span", { style: { width: `${percent}%` } }),
  );
}

/** A time in relation to now, with the exact time on hover. */
export function moment(at, now, { relative = true } = {}) {
  if (at === null || at === undefined) return h("span", { class: "muted", text: "–" });
  const text = relative ? formatRelative(at, now) : formatMoment(at, now);
  return h("time", { datetime: new Date(at * 1000).toISOString(), title: formatFull(at), text });
}

/** An estimated time with its range below. */
export function estimate(value, now, unknown = "–") {
  if (!value) return h("span", { class: "muted", text: unknown });
  const range = formatRange(value, now);
  return h("span", { class: "estimate" }, moment(value.at, now), range && h("span", { class: "sub", text: range }));
}

/** One of several choices, as buttons side by side. */
export function segmented(label, choices, current, onChoose) {
  const group = h("div", { class: "segmented", role: "group", "aria-label": label });
  const show = (chosen) => {
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.dataset.value === chosen));
  };
  for (const [value, text] of Object.entries(choices)) {
    group.append(h("button", { type: "button", "data-value": value, text, onclick: () => { show(value); onChoose(value); } }));
  }
  show(current);
  return { element: group, show };
}

/** A message that replaces what could not be loaded. */
export function errorBox(error, onRetry) {
  const text = error.status === 0 ? texts.error.offline : error.message;
  return h(
    "div", { class: "problem", role: "alert" }, icon("alert"),
    h("div", {}, h("strong", { text: texts.error.title }), h("p", { text })),
    onRetry && h("button", { type: "button", class: "button", text: texts.error.retry, onclick: onRetry }),
  );
}

export function emptyNote(text) {
  return h("p", { class: "empty", text });
}

/**
 * Ask before something is changed. `work` is called when it is confirmed; its error is shown in the dialog.
 * @param {{title: string, text: string|Node, confirm: string, danger?: boolean, fields?: Node[], work: (form: HTMLFormElement) => Promise<void>}} options
 */
export function confirmDialog({ title, text, confirm, danger = false, fields = [], work }) {
  const problem = h("p", { class: "field-problem", role: "alert" });
  const button = h("button", { type: "submit", class: danger ? "button danger" : "button primary", text: confirm });
  const form = h(
    "form", { method: "dialog", class: "dialog-form" },
    h("h2", { id: "dialog-title", text: title }), typeof text === "string" ? h("p", { text }) : text, ...fields, problem,
    h("div", { class: "dialog-buttons" }, h("button", { type: "button", class: "button", text: texts.dialog.cancel, onclick: () => dialog.close() }), button),
  );
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      await work(form);
      dialog.close();
    } catch (error) {
      problem.textContent = error.status === 0 ? texts.error.offline : error.message;
      button.disabled = false;
    }
  });
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}

/** A short message at the lower edge, which screen readers announce. */
export function toast(text) {
  let area = document.querySelector(".toasts");
  if (!area) {
    area = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
    document.body.append(area);
  }
  const note = h("div", { class: "toast", text });
  area.append(note);
  window.setTimeout(() => note.remove(), 5000);
}

/** A labelled field of a form. */
export function field(label, control, help = "") {
  const id = control.id || `field-${Math.random().toString(36).slice(2, 9)}`;
  control.id = id;
  const note = help && h("span", { class: "field-help", id: `${id}-help`, text: help });
  if (help) control.setAttribute("aria-describedby", `${id}-help`);
  return h("div", { class: "field" }, h("label", { for: id, text: label }), control, note);
}

export function select(options, value, props = {}) {
  const control = h("select", props);
  for (const [key, text] of Object.entries(options)) control.append(h("option", { value: key, text, selected: key === value }));
  return control;
}

/** A link to a job. */
export function jobLink(id, text = id) {
  return h("a", { href: `#/jobs/${encodeURIComponent(id)}`, class: "job-link", text });
}

export { append, fill };
