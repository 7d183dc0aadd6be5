/** A recorded journal as a source of data: the state at a time, and what had happened until then. */

import { Problem } from "./api.js";

const ENDED = ["finished", "failed", "timed out", "cancelled"];
/** Alerts of one kind that are listed. */
const MAX_ALERTS = 20;
const MAX_ACCURACY_JOBS = 1000;
const MAX_TIMELINE_RUNS = 20_000;

/** The last entry of a list, whose entries begin with their time, at a time; null if there is none yet. */
function lastAt(entries, at) {
  const end = entries ? firstAfter(entries, (entry) => entry[0], at) : 0;
  return end ? entries[end - 1] : null;
}

/** The index of the first entry after a time, in a list in the order of time. */
function firstAfter(entries, timeOf, at) {
  let [low, high] = [0, entries.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (timeOf(entries[middle]) <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The same methods as `DaemonSource`, for one time, which `moveTo` changes. */
export class RecordedSource {
  /** @param {any} recording as `refold show` makes it */
  constructor(recording) {
    this._recording = recording;
    this._jobs = new Map(recording.jobs.map((job) => [job.id, job]));
    this._cached = null;
    this.session = null;
    this.canChange = false;
    this.isOwner = false;
    this.hasOutput = false;
    this.pages = ["overview", "jobs", "job", "timeline", "nodes", "tenants"];
    this.range = [recording.since, recording.until];
    this._log = readEvents(recording);
    this.onSignedOut = () => {};
    this.at = this._firstShown();
  }

  now() { return this.at; }
  mayChange() { return false; }

  /** Show another time. */
  moveTo(at) {
    this.at = Math.min(this.range[1], Math.max(this.range[0], at));
  }

  /** The time of the next change, or of the one before. @param {"previous"|"next"} direction */
  stepFrom(at, direction) {
    const found = direction === "next" ? this._log.find((event) => event.at > at) : this._log.findLast((event) => event.at < at);
    return found?.at ?? this.range[direction === "next" ? 1 : 0];
  }

  /** The end, if there are jobs then; else when most jobs were there. */
  _firstShown() {
    const { jobs, until } = this._recording;
    if (jobs.some((job) => (job.ended ?? null) === null)) return until;
    const changes = jobs.flatMap((job) => [[job.submitted, 1], [job.ended, -1]]).sort((a, b) => a[0] - b[0]);
    let [count, most, at] = [0, 0, until];
    for (const [time, change] of changes) {
      count += change;
      if (count > most) [most, at] = [count, time];
    }
    return at;
  }

  // The state of jobs.

  /** All jobs that exist at the time, by state, in the order of submission. */
  get _state() {
    if (this._cached?.at === this.at) return this._cached;
    const groups = { at: this.at, running: [], waiting: [], held: [], infeasible: [], ended: [] };
    for (const job of this._recording.jobs) {
      if (job.submitted > this.at) continue;
      const run = this._runOf(job);
      if ((job.ended ?? Infinity) <= this.at) groups.ended.push(job);
      else if (run) groups.running.push(job);
      else if (job.fits === false) groups.infeasible.push(job);
      else groups[lastAt(job.holds, this.at)?.[1] ? "held" : "waiting"].push(job);
    }
    groups.ended.sort((a, b) => b.ended - a.ended);
    this._cached = groups;
    return groups;
  }

  _runOf(job) {
    return job.runs?.find((run) => run.start <= this.at && (run.end ?? Infinity) > this.at) ?? null;
  }

  _status(job, state, position = 0) {
    const past = (job.runs ?? []).filter((run) => run.start <= this.at);
    const run = past[past.length - 1] ?? null;
    const runs = state === "running" ? run : null;
    const [, reason = "", text = ""] = (state === "held" ? lastAt(job.holds, this.at) : lastAt(job.waits, this.at)) ?? [];
    const [, steps = 0, loss = null, samples = null] = lastAt(job.progress, this.at) ?? [];
    const warning = lastAt(job.warnings, this.at);
    const started = past.find((one) => (one.started ?? one.start) <= this.at);
    const over = ENDED.includes(state);
    const waits = state === "waiting" || state === "held";
    return {
      id: job.id, name: job.name, tenant: job.tenant, user: job.user ?? "", job_class: job.job_class ?? "", priority: job.priority ?? 0,
      state: runs && (runs.stop ?? Infinity) <= this.at ? "stopping" : state, demand: job.demand, submitted: job.submitted,
      gpus: run ? run.gpus : job.gpus, requested_gpus: job.gpus, instances: runs ? runs.placement.length : job.instances ?? 1,
      started: started ? started.started ?? started.start : null, ended: over ? job.ended : null, runs: run?.number ?? 0,
      placement: runs ? this._placement(runs) : [], domains: runs ? this._domains(runs) : {}, plan: run?.plan ?? "", reason: state === "infeasible" ? "Infeasible" : waits ? reason : "",
      message: over ? job.message ?? "" : waits ? text : "", position, steps: job.steps ?? null, steps_done: steps ?? 0, loss, samples_per_second: samples,
      start_estimate: state === "waiting" ? estimateOf(lastAt(job.estimates, this.at)) : null,
      end_estimate: runs && (runs.end ?? null) !== null ? { at: runs.end } : null,
      time_limit: job.time_limit ?? null, warning: runs && warning && warning[0] >= runs.start ? warning[1] : "", exit_code: over ? job.exit_code ?? null : null,
      array: job.array ?? "", preemptible: job.preemptible ?? false, consent: job.consent ?? "",
      cpu_seconds: over ? job.cpu_seconds ?? null : null, peak_memory_mib: over ? job.peak_memory_mib ?? null : null,
    };
  }

  _placement(run) {
    return run.placement.map(([node, gpus, share]) => ({ node: this._recording.nodes[node].name, gpus, share }));
  }

  _domains(run) {
    const found = {};
    for (const [node] of run.placement) {
      Object.entries(this._recording.nodes[node].domains ?? {}).forEach(([level], at, all) => {
        (found[level] ??= new Set()).add(all.slice(0, at + 1).map(([, name]) => name).join("/"));
      });
    }
    return Object.fromEntries(Object.entries(found).map(([level, names]) => [level, [...names]]));
  }

  async jobs({ state = [], ended = false, match = "", name = "", tenant = "", user = "", after = 0, limit = 100 }) {
    const groups = this._state;
    const text = (match || name).replaceAll("*", "").toLowerCase();
    const states = ended ? ["ended"] : ["running", "waiting", "held", "infeasible"].filter((one) => !state.length || state.includes(one));
    const found = states.flatMap((one) => groups[one].map((job, index) => [job, one, one === "waiting" ? index + 1 : 0]))
      .filter(([job]) => (!tenant || job.tenant === tenant) && (!user || job.user === user) && (!text || job.id.toLowerCase().includes(text)));
    const shown = found.slice(after, after + limit).map(([job, one, position]) => this._status(job, one === "ended" ? job.outcome : one, position));
    return { jobs: shown, total: found.length, next: after + limit < found.length ? after + limit : null };
  }

  async why(id) {
    const job = this._jobs.get(id);
    if (!job) throw new Problem(404, `unknown job '${id}'`);
    if (job.submitted > this.at) throw new Problem(404, `job '${id}' has not been submitted yet`);
    const group = ["running", "waiting", "held", "infeasible", "ended"].find((one) => this._state[one].includes(job));
    const position = group === "waiting" ? this._state.waiting.indexOf(job) + 1 : 0;
    const events = (job.events ?? []).filter(([at]) => at <= this.at).map(([at, kind, run, text]) => ({ at, kind, run, text, job: id }));
    const first = job.estimates?.[0];
    return {
      job: this._status(job, group === "ended" ? job.outcome : group, position), events,
      first_estimate: first && first[0] <= this.at ? estimateOf(first) : null, gpu_seconds: this._gpuSeconds(job),
    };
  }

  /** What the job reported until now. */
  async jobUse(id) {
    const reports = (this._jobs.get(id)?.progress ?? []).filter(([at]) => at <= this.at);
    return reports.map(([at, , loss = null, samples = null]) => ({ at, loss, samples_per_second: samples, cpus: null, memory_mib: null, utilisation: null }));
  }

  _gpuSeconds(job) {
    return (job.runs ?? []).reduce((sum, run) => sum + run.gpus * Math.max(0, Math.min(run.end ?? this.at, this.at) - run.start), 0);
  }

  /** Events until now, the latest first. */
  latestEvents(count) {
    const end = firstAfter(this._log, (event) => event.at, this.at);
    return this._log.slice(Math.max(0, end - count), end).reverse();
  }

  // The state of the cluster.

  async info() {
    const { cluster, policy, nodes } = this._recording;
    const gpus = await this.gpus();
    const groups = this._state;
    return {
      cluster, policy, slots: nodes.every((node) => node.gpu_type === "slot"), nodes: nodes.length, gpus: gpus.length, free_gpus: gpus.reduce((sum, gpu) => sum + (gpu.drain_reason ? 0 : gpu.free), 0),
      drained_gpus: gpus.filter((gpu) => gpu.drain_reason).length, running: groups.running.length, waiting: groups.waiting.length, held: groups.held.length,
      now: this.at, start_accuracy: this._accuracy(), last_event: 0,
    };
  }

  _accuracy() {
    const errors = [];
    for (let index = this._recording.jobs.length - 1; index >= 0 && errors.length < MAX_ACCURACY_JOBS; index -= 1) {
      const { estimates, runs } = this._recording.jobs[index];
      if (estimates && runs && runs[0].start <= this.at && estimates[0][0] < runs[0].start) errors.push(Math.abs(runs[0].start - estimates[0][1]));
    }
    errors.sort((a, b) => a - b);
    return { jobs: errors.length, median_error: errors.length ? errors[errors.length >> 1] : null };
  }

  /** What is down at the time, by "node" and "node gpu". */
  _down() {
    const down = new Map();
    for (const change of this._recording.node_changes) {
      if (change.at > this.at) break;
      const key = change.gpu === undefined || change.gpu === null ? `${change.node}` : `${change.node} ${change.gpu}`;
      if (change.up) down.delete(key);
      else down.set(key, change);
    }
    return down;
  }

  async gpus() {
    const down = this._down();
    const rows = this._recording.nodes.map((node, index) => Array.from({ length: node.gpus }, (_, gpu) => {
      const change = down.get(`${index}`) ?? down.get(`${index} ${gpu}`);
      return {
        node: node.name, index: gpu, name: node.gpu_type ?? "", jobs: [], free: 1, drain_reason: change ? change.why || (change.drained ? "drained" : "down") : "", tenant: "", user: "", used_by: "",
        memory_used_mib: null, memory_mib: null, utilisation: null, celsius: null, watts: null,
      };
    }));
    for (const job of this._state.running) {
      for (const [node, gpus, share] of this._runOf(job).placement) {
        for (const gpu of gpus) {
          const row = rows[node][gpu];
          if (!row.jobs.length) [row.tenant, row.user] = [job.tenant, job.user ?? ""];
          row.jobs.push(job.id);
          row.free = Math.max(0, row.free - share);
        }
      }
    }
    return rows.flat();
  }

  async nodes() {
    const down = this._down();
    const gpus = await this.gpus();
    let first = 0;
    const ofNode = this._recording.nodes.map((node) => gpus.slice(first, (first += node.gpus)));
    const jobs = this._recording.nodes.map(() => []);
    for (const job of this._state.running) for (const [node] of this._runOf(job).placement) if (!jobs[node].includes(job.id)) jobs[node].push(job.id);
    return this._recording.nodes.map((node, index) => {
      const change = down.get(`${index}`);
      return {
        name: node.name, up: !change, gpus: node.gpus, gpu_type: node.gpu_type ?? "", free_gpus: ofNode[index].reduce((sum, gpu) => sum + (gpu.drain_reason ? 0 : gpu.free), 0),
        jobs: jobs[index], reason: change?.why ?? "", drained: change?.drained ?? false, rack: node.rack ?? "", rack_watts: null, rack_limit_watts: null,
        domains: node.domains ?? {},
      };
    });
  }

  async alerts() {
    const { nodes } = this._recording;
    const parts = [...this._down().values()];
    const nodeDown = parts.filter((part) => (part.gpu ?? null) === null && !part.drained).map((part) => ({ kind: "node down", text: part.why || "it does not answer", node: nodes[part.node].name }));
    const gpuDown = parts.filter((part) => (part.gpu ?? null) !== null).map((part) => ({ kind: "gpu down", text: `GPU ${part.gpu} is ${part.drained ? "drained" : "down"}${part.why ? `: ${part.why}` : ""}`, node: nodes[part.node].name }));
    const flagged = this._state.running.map((job) => this._status(job, "running")).filter((job) => job.warning).map((job) => ({ kind: "run flagged", text: job.warning, job: job.id }));
    const infeasible = this._state.infeasible.map((job) => ({ kind: "infeasible", text: "does not fit the empty cluster", job: job.id }));
    return [nodeDown, gpuDown, flagged, infeasible].flatMap((kind) => kind.slice(0, MAX_ALERTS));
  }

  async tenants() {
    const rows = new Map(this._recording.tenants.map(({ name, quota_gpus: quota = 0, limit_gpus: limit = 0 }) => [name, emptyUse({ name, quota_gpus: quota, limit_gpus: limit })]));
    this._countUse((job) => rows.get(job.tenant) ?? rows.set(job.tenant, emptyUse({ name: job.tenant, quota_gpus: 0, limit_gpus: 0 })).get(job.tenant));
    return [...rows.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  async users() {
    const rows = new Map();
    const rowOf = (job) => {
      const key = `${job.tenant} ${job.user ?? ""}`;
      if (!rows.has(key)) rows.set(key, emptyUse({ user: job.user ?? "", tenant: job.tenant, gpu_hours: 0, used: null, share: null, weight: null }));
      return rows.get(key);
    };
    for (const job of this._recording.jobs) if (job.submitted <= this.at) rowOf(job).gpu_hours += this._gpuSeconds(job) / 3600;
    this._countUse(rowOf);
    const total = [...rows.values()].reduce((sum, row) => sum + row.gpu_hours, 0);
    return [...rows.values()].map((row) => ({ ...row, used: total ? row.gpu_hours / total : null }));
  }

  _countUse(rowOf) {
    for (const job of this._state.running) {
      const row = rowOf(job);
      row.running += 1;
      row.gpus += this._runOf(job).gpus;
    }
    for (const job of [...this._state.waiting, ...this._state.held]) {
      const row = rowOf(job);
      row.waiting += 1;
      row.waiting_gpus += job.gpus;
    }
  }

  /** All runs of a time span, also those after now: `future` says that they are known. */
  async timeline({ from, to }) {
    const runs = [];
    for (const job of this._recording.jobs) {
      for (const run of job.runs ?? []) {
        const end = run.end ?? null;
        if (run.start > to || (end ?? Infinity) < from) continue;
        runs.push({ job: job.id, run: run.number, tenant: job.tenant, user: job.user ?? "", start: run.start, end, ending: run.ending ?? "", placement: this._placement(run) });
      }
    }
    const length = (run) => (run.end ?? this.range[1]) - run.start;
    const complete = runs.length <= MAX_TIMELINE_RUNS;
    if (!complete) runs.sort((a, b) => length(b) - length(a)).splice(MAX_TIMELINE_RUNS);
    return { now: this.at, since: from, runs, busy: [], complete, future: true };
  }

  /** How many GPUs were held, at each change. @returns {[number, number][]} */
  allocation() {
    const changes = this._recording.jobs.flatMap((job) => (job.runs ?? []).flatMap((run) => [[run.start, run.gpus], [run.end ?? this.range[1], -run.gpus]])).sort((a, b) => a[0] - b[0]);
    let sum = 0;
    return changes.map(([at, gpus]) => [at, (sum += gpus)]);
  }
}

function emptyUse(row) {
  return { ...row, running: 0, gpus: 0, waiting: 0, waiting_gpus: 0 };
}

function estimateOf(entry) {
  return entry ? { at: entry[1], soonest: entry[2], latest: entry[3] } : null;
}

/** All events in the order of time, as the event stream of a daemon has them. */
function readEvents(recording) {
  const ofJobs = recording.jobs.flatMap((job) => (job.events ?? []).map(([at, kind, run, text]) => ({ at, kind, run, text, job: job.id })));
  const ofNodes = recording.events.map(([at, kind, text]) => ({ at, kind, run: 0, text, job: "" }));
  const all = [...ofJobs, ...ofNodes].sort((a, b) => a.at - b.at);
  all.forEach((event, index) => { event.number = index + 1; });
  return all;
}
