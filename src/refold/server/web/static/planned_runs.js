/** Where waiting jobs may run: the GPUs are not chosen yet, so that each is drawn where there is room at its estimated start. */

/** Shown length of a job whose end is not known, in seconds. */
const UNKNOWN_SECONDS = 3600;

/**
 * @param {any[]} jobs waiting jobs with estimates, in any order
 * @param {Float64Array} freeAt when each GPU (row) is free, in Unix seconds; changed by this function
 * @param {number[]} nodeOfRow
 * @param {number} until jobs that start later are left out
 * @returns {{job: any, start: number, end: number, endKnown: boolean, rows: number[]}[]}
 */
export function placePlanned(jobs, freeAt, nodeOfRow, until) {
  const planned = jobs.filter((job) => job.start_estimate && job.start_estimate.at < until && job.gpus >= 1);
  planned.sort((a, b) => a.start_estimate.at - b.start_estimate.at);
  const placed = [];
  for (const job of planned) {
    const start = job.start_estimate.at;
    const end = job.end_estimate?.at ?? start + UNKNOWN_SECONDS;
    const rows = chooseRows(Math.round(job.gpus), start, freeAt, nodeOfRow);
    for (const row of rows) freeAt[row] = end;
    if (rows.length) placed.push({ job, start, end, endKnown: Boolean(job.end_estimate), rows });
  }
  return placed;
}

/** The first node with room for all, else GPUs of any nodes; none if there is no room at that time. */
function chooseRows(count, start, freeAt, nodeOfRow) {
  const free = [];
  for (let row = 0; row < freeAt.length; row += 1) if (freeAt[row] <= start + 60) free.push(row);
  for (let first = 0; first + count <= free.length; first += 1) {
    if (nodeOfRow[free[first]] === nodeOfRow[free[first + count - 1]]) return free.slice(first, first + count);
  }
  return free.length >= count ? free.slice(0, count) : [];
}
