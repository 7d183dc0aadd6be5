/** Rows of jobs: running, waiting and ended. */

import { estimate, jobLink, moment, progressBar, stateBadge } from "./controls.js";
import { fill, h } from "./dom.js";
import { formatCompact, formatDuration, formatNumber, formatPercent, formatPlacement, formatWhole } from "./format.js";
import { resourceText, texts } from "./texts.js";

const labels = texts.jobs;

/** The share of a job that is done, from 0 to 1: of its steps, else of its predicted run time; null if it is not known. */
export function shareDone(job, now) {
  if (job.steps) return Math.min(1, job.steps_done / job.steps);
  const end = job.end_estimate?.at;
  if (end && job.started && end > job.started) return Math.min(0.99, Math.max(0, (now - job.started) / (end - job.started)));
  return null;
}

/** "40 %", or "about 40 %, predicted" for a job that reports no steps. */
export function shareText(job, share) {
  if (share === null) return "";
  return job.steps ? formatPercent(share) : labels.predicted(formatPercent(share));
}

/** Why a job waits, in plain words, with the counts below. */
export function reasonText(job) {
  return texts.reasons[job.reason] ?? job.reason ?? "";
}

function nameCell(cell, job, below) {
  fill(cell, jobLink(job.id), h("span", { class: "sub", text: below }));
}

function ownerText(job) {
  return job.user ? `${job.user} · ${job.tenant}` : job.tenant;
}

function gpusCell(cell, job) {
  const asked = job.requested_gpus && job.requested_gpus !== job.gpus && job.state === "running";
  fill(
    cell, h("span", { class: "figure", text: formatNumber(job.gpus) }), h("span", { class: "unit", text: resourceText(" GPU") }),
    asked && h("span", { class: "sub", text: `of ${formatNumber(job.requested_gpus)} requested` }),
  );
}

export const RUNNING_COLUMNS = [
  { key: "job", label: labels.job }, { key: "gpus", label: labels.gpus, class: "number" },
  { key: "progress", label: labels.progress }, { key: "time", label: labels.ends },
];

/** @param {() => number} now */
export function renderRunning(now) {
  return ([name, gpus, progress, ends], job) => {
    nameCell(name, job, [ownerText(job), formatPlacement(job.placement ?? [])].filter(Boolean).join(" · "));
    gpusCell(gpus, job);
    const share = shareDone(job, now());
    const known = job.steps ? labels.step(formatCompact(job.steps_done), formatCompact(job.steps)) : "";
    const elapsed = job.started ? labels.elapsed(formatDuration(now() - job.started)) : "";
    const text = [shareText(job, share), known || elapsed].filter(Boolean).join(" · ");
    fill(
      progress, progressBar(share, `${labels.progress}: ${job.id}`, !job.steps), h("span", { class: "sub", text }),
      job.warning && h("span", { class: "warning-mark", title: job.warning, text: "!" }),
    );
    if (job.state === "stopping") fill(ends, stateBadge("stopping"));
    else fill(ends, estimate(job.end_estimate, now(), labels.unknownEnd));
  };
}

export const WAITING_COLUMNS = [
  { key: "position", label: labels.position, class: "number" }, { key: "job", label: labels.job },
  { key: "gpus", label: labels.gpus, class: "number" }, { key: "reason", label: labels.reason },
  { key: "time", label: labels.starts },
];

export function renderWaiting(now) {
  return ([position, name, gpus, reason, starts], job) => {
    fill(position, job.position ? formatWhole(job.position) : "–");
    nameCell(name, job, ownerText(job));
    gpusCell(gpus, job);
    const message = resourceText(job.message);
    fill(reason, h("span", { text: reasonText(job) }), h("span", { class: "sub", text: message, title: message }));
    fill(starts, estimate(job.start_estimate, now(), job.state === "waiting" ? labels.unknownEnd : "–"));
  };
}

export const ENDED_COLUMNS = [
  { key: "job", label: labels.job }, { key: "state", label: labels.state },
  { key: "gpus", label: labels.gpus, class: "number" }, { key: "duration", label: labels.duration },
  { key: "time", label: labels.endedAt },
];

export function renderEnded(now) {
  return ([name, state, gpus, duration, ended], job) => {
    nameCell(name, job, ownerText(job));
    fill(state, stateBadge(job.state), h("span", { class: "sub", text: job.message, title: job.message }));
    gpusCell(gpus, job);
    fill(duration, job.started && job.ended ? formatDuration(job.ended - job.started) : "–");
    fill(ended, moment(job.ended, now()));
  };
}
