/** How many GPUs were in use over a whole recording, as a small area behind the slider. */

import { svg } from "./dom.js";

const [WIDTH, HEIGHT] = [400, 24];

/** @param {import("./recorded.js").RecordedSource} source */
export function useLine(source) {
  const [from, to] = source.range;
  const most = new Array(WIDTH + 1).fill(0);
  let [column, held] = [0, 0];
  for (const [at, gpus] of source.allocation()) {
    const next = Math.max(column, Math.min(WIDTH, Math.round((WIDTH * (at - from)) / Math.max(1e-9, to - from))));
    for (; column < next; column += 1) most[column] = Math.max(most[column], held);
    held = gpus;
    most[column] = Math.max(most[column], held);
  }
  const top = Math.max(1, ...most);
  const points = most.map((gpus, x) => `${x},${(HEIGHT - (gpus / top) * HEIGHT).toFixed(1)}`).join(" ");
  const area = svg("polygon", { points: `0,${HEIGHT} ${points} ${WIDTH},${HEIGHT}` });
  return svg("svg", { class: "use-line", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area);
}
