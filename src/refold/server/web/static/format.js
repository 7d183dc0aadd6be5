/** Numbers, durations and times as text. Times are Unix seconds, durations seconds. */

import { resourceText } from "./texts.js";

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const PRECISE = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY_AND_CLOCK = new Intl.DateTimeFormat("en-GB", { weekday: "short", hour: "2-digit", minute: "2-digit" });
const DATE_AND_CLOCK = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const FULL = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export const UNKNOWN = "–";

/** Smaller times are those of a simulation, in seconds since its start, and not of a calendar. */
const CALENDAR_SECONDS = 1e9;

export function isCalendarTime(moment) {
  return moment >= CALENDAR_SECONDS;
}

/** "03:25", "2 d 03:25"; with seconds if they are wanted. */
function formatElapsed(moment, { seconds = false } = {}) {
  const total = Math.max(0, seconds ? Math.round(moment) : Math.floor(moment / 60) * 60);
  const parts = [Math.floor(total / 3600) % 24, Math.floor(total / 60) % 60, ...(seconds ? [total % 60] : [])];
  const clock = parts.map((part) => String(part).padStart(2, "0")).join(":");
  return total >= 86400 ? `${Math.floor(total / 86400)} d ${clock}` : clock;
}

/** @param {number|null|undefined} value */
export function formatNumber(value) {
  return value === null || value === undefined || !Number.isFinite(value) ? UNKNOWN : NUMBER.format(value);
}

export function formatWhole(value) {
  return value === null || value === undefined || !Number.isFinite(value) ? UNKNOWN : WHOLE.format(value);
}

/** A command as a shell reads it: arguments with other characters are quoted. @param {string[]} command */
export function formatCommand(command) {
  return command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

/** Four significant digits: "0.7312", "2,328". */
export function formatPrecise(value) {
  return value === null || value === undefined ? UNKNOWN : PRECISE.format(value);
}

/** "950", "12.4k", "1.2M". */
export function formatCompact(value) {
  return value === null || value === undefined ? UNKNOWN : COMPACT.format(value);
}

/** "1 GPU", "8 GPUs". */
export function plural(count, word, words = `${word}s`) {
  return `${formatNumber(count)} ${count === 1 ? word : words}`;
}

/** "42 s", "12 min", "3 h 20 min", "2 d 4 h". @param {number|null|undefined} seconds */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return UNKNOWN;
  const total = Math.max(0, seconds);
  if (total < 10 && total > 0 && total !== Math.round(total)) return `${total.toFixed(1)} s`;
  if (total < 90) return `${Math.round(total)} s`;
  const minutes = Math.round(total / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 24 * 60) return joined(Math.floor(minutes / 60), "h", minutes % 60, "min", minutes >= 600);
  const hours = Math.round(minutes / 60);
  return joined(Math.floor(hours / 24), "d", hours % 24, "h", hours >= 240);
}

function joined(large, largeUnit, small, smallUnit, coarse) {
  return small && !coarse ? `${large} ${largeUnit} ${small} ${smallUnit}` : `${large} ${largeUnit}`;
}

/** "in 12 min", "now", "3 h ago". */
export function formatRelative(moment, now) {
  if (moment === null || moment === undefined) return UNKNOWN;
  const difference = moment - now;
  if (Math.abs(difference) < 5) return "now";
  return difference > 0 ? `in ${formatDuration(difference)}` : `${formatDuration(-difference)} ago`;
}

/** "14:05" today, "Tue 14:05" within a week, else "3 Nov, 14:05". */
export function formatMoment(moment, now) {
  if (moment === null || moment === undefined) return UNKNOWN;
  if (!isCalendarTime(moment)) return formatElapsed(moment);
  const date = new Date(moment * 1000);
  if (date.toDateString() === new Date(now * 1000).toDateString()) return CLOCK.format(date);
  return (Math.abs(moment - now) < 6 * 86400 ? DAY_AND_CLOCK : DATE_AND_CLOCK).format(date);
}

export function formatFull(moment) {
  if (moment === null || moment === undefined) return "";
  return isCalendarTime(moment) ? FULL.format(new Date(moment * 1000)) : formatElapsed(moment, { seconds: true });
}

/** The range of an estimate: "14:05–15:20", "by 15:20", "from 14:05"; '' if there is none. */
export function formatRange(estimate, now) {
  if (!estimate) return "";
  const { soonest, latest } = estimate;
  if (soonest != null && latest != null) {
    const [from, to] = [formatMoment(soonest, now), formatMoment(latest, now)];
    return from === to ? "" : `${from}–${to}`;
  }
  if (latest != null) return `by ${formatMoment(latest, now)}`;
  return soonest != null && soonest > now + 60 ? `from ${formatMoment(soonest, now)}` : "";
}

export function formatPercent(share) {
  return share === null || share === undefined ? UNKNOWN : `${Math.round(100 * share)} %`;
}

export function formatGib(mib) {
  return mib === null || mib === undefined ? UNKNOWN : `${formatNumber(mib / 1024)} GiB`;
}

/** "node-3: 0–3, 6" for each node; several nodes are shortened to their number. */
export function formatPlacement(placement, most = 2) {
  const byNode = new Map();
  for (const { node, gpus, share } of placement) {
    const entry = byNode.get(node) ?? { gpus: [], share };
    entry.gpus.push(...gpus);
    byNode.set(node, entry);
  }
  if (byNode.size > most) return plural(byNode.size, "node");
  return [...byNode].map(([node, { gpus, share }]) => {
    const part = share < 1 ? `${formatNumber(share)} of ` : "";
    return gpus.length ? resourceText(`${node} (${part}GPU${gpus.length > 1 ? "s" : ""} ${formatIndices(gpus)})`) : node;
  }).join(", ");
}

/** "1 block: b0 · 2 racks: b0/r0, b0/r1". @param {Record<string, string[]>} domains by level @param {number} most names of a level */
export function formatDomains(domains, most = 8) {
  return Object.entries(domains).map(([level, names]) => `${plural(names.length, level)}: ${names.slice(0, most).join(", ")}${names.length > most ? ", …" : ""}`).join(" · ");
}

/** "0–3, 6". @param {number[]} indices */
export function formatIndices(indices) {
  const sorted = [...indices].sort((a, b) => a - b);
  const parts = [];
  for (let first = 0, last; first < sorted.length; first = last + 1) {
    last = first;
    while (last + 1 < sorted.length && sorted[last + 1] === sorted[last] + 1) last += 1;
    parts.push(first === last ? `${sorted[first]}` : `${sorted[first]}${last === first + 1 ? ", " : "–"}${sorted[last]}`);
  }
  return parts.join(", ");
}
