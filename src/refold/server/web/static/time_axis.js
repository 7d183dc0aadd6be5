/** The time axis that the charts of the timeline share. */

import { formatMoment, isCalendarTime } from "./format.js";

/** Room for names at the left, and for the axis at the top. */
export const LEFT = 84;
export const TOP = 24;

const STEPS = [60, 300, 600, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 2 * 86400, 7 * 86400];

/** Times at which the axis has a mark, at round clock times of this time zone. */
export function ticks([from, to], most) {
  const step = STEPS.find((one) => (to - from) / one <= most) ?? STEPS[STEPS.length - 1];
  const zone = !isCalendarTime(from) ? 0 : new Date(from * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let moment = Math.ceil((from - zone) / step) * step + zone; moment <= to; moment += step) found.push(moment);
  return found;
}

export function drawAxis(context, palette, width, range, now, x, height) {
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "top";
  context.textAlign = "center";
  for (const moment of ticks(range, Math.max(2, (width - LEFT) / 90))) {
    const at = x(moment);
    if (at < LEFT + 10 || at > width - 14) continue;
    context.fillStyle = palette.get("muted");
    context.fillText(formatMoment(moment, now), at, 2);
    context.fillStyle = palette.get("border");
    context.globalAlpha = 0.6;
    context.fillRect(at, TOP - 5, 1, height);
    context.globalAlpha = 1;
  }
  context.textAlign = "left";
}
