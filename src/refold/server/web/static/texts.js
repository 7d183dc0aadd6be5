/** All texts of the web UI in one place, so that translations can be added. */

export const texts = {
  product: "Refold",
  pages: {
    overview: "Overview", jobs: "Jobs", timeline: "Timeline", nodes: "Nodes", tenants: "Tenants",
    whatif: "What if", plan: "Plan", job: "Job", submit: "Submit a job", signin: "Sign in",
  },
  skip: "Skip to content",
  navigation: "Pages",
  live: { live: "Live", connecting: "Connecting…", offline: "Offline, trying again…", recorded: "Recorded" },
  liveHelp: "Changes appear as they happen.",
  theme: { label: "Colours", auto: "Match system", light: "Light", dark: "Dark" },
  signOut: "Sign out",
  signedInAs: (user, role) => `${user || "Signed in"}, ${role}`,
  signIn: {
    title: "Sign in",
    local: "On the machine of the daemon, run:",
    command: "refold open",
    localHelp: "It opens this page with a link that works once.",
    or: "From elsewhere, use an access token:",
    token: "Access token",
    tokenHelp: "From the owner of the daemon: refold token new NAME. It starts with rf_.",
    submit: "Sign in",
    checking: "Signing in…",
    ended: "The session has ended. Sign in again.",
  },
  states: {
    held: "Held", waiting: "Waiting", infeasible: "Does not fit", running: "Running", stopping: "Stopping",
    finished: "Finished", failed: "Failed", "timed out": "Timed out", cancelled: "Cancelled",
  },
  reasons: {
    Priority: "Other jobs are ahead",
    FairShare: "Others have used less of their share",
    Resources: "Not enough free GPUs",
    Infeasible: "Does not fit the empty cluster",
    Reserved: "The GPUs are reserved for jobs ahead",
    Topology: "It would be slower across the racks that have room now",
    Releasing: "Its GPUs are being released",
    Held: "Held until released",
    BeginTime: "Its begin time has not come",
    Dependency: "Waits for other jobs",
    ArrayLimit: "Limit of its array",
    Backoff: "Failed; will be retried",
    Limit: "Its tenant is at its limit",
    NotConsidered: "Not considered yet",
  },
  alerts: {
    title: "Needs attention",
    none: "Nothing needs attention.",
    kinds: {
      storage: "Storage", policy: "Policy", "node down": "Node down", "gpu down": "GPU out of service",
      "run flagged": "Suspicious run", "late start": "Late start", infeasible: "Does not fit",
    },
    more: (count) => `Show ${count} more`,
    fewer: "Show fewer",
  },
  stats: {
    gpus: "GPUs in use", utilisation: "Utilisation", running: "Running", waiting: "Waiting", free: "Free",
    of: (total) => `of ${total}`,
    drained: (count) => `${count} out of service`,
    held: (count) => `${count} held`,
    allocated: "of allocated GPUs",
    notMeasured: "not measured here",
    estimates: "Start estimates",
    estimatesHelp: (jobs) => `median error, last ${jobs} jobs`,
    noEstimates: "no job has waited yet",
    gpusOfJobs: (gpus) => `${gpus} GPUs`,
  },
  map: {
    title: "GPUs",
    help: "Use the arrow keys to move between GPUs, Enter to open the job.",
    by: "Colour by",
    modes: { owner: "Owner", utilisation: "Utilisation", memory: "Memory", celsius: "Temperature", watts: "Power" },
    free: "Free", shared: "Shared", drained: "Drained", down: "Down", others: "Others", unknown: "Not measured",
    summary: (used, total, nodes) => `Map of ${total} GPUs on ${nodes}: ${used} in use.`,
    gpu: (node, index) => `${node}, GPU ${index}`,
    usedBy: (who) => `used by ${who}`,
    domain: (level, name) => `${level} ${name}`,
    rack: (name) => `Rack ${name}`,
  },
  jobs: {
    running: "Running", waiting: "Queue", ended: "Ended", held: "Held",
    job: "Job", owner: "Owner", gpus: "GPUs", progress: "Progress", ends: "Ends", position: "#",
    reason: "Why it waits", starts: "Expected start", state: "State", duration: "Ran for", endedAt: "Ended",
    noneRunning: "Nothing is running.",
    noneWaiting: "The queue is empty.",
    noneEnded: "No job has ended yet.",
    noneMatching: "No job matches.",
    search: "Search jobs",
    searchHint: "Name or id",
    tenant: "Tenant", user: "User", all: "All",
    unknownEnd: "not known",
    step: (done, steps) => `${done} of ${steps}`,
    steps: (done, steps) => `step ${done} of ${steps}`,
    elapsed: (time) => `for ${time}`,
    loading: "Loading…",
    changeAll: { hold: "Hold all", release: "Release all", cancel: "Cancel all" }, noneToChange: "No listed job can be changed this way.",
    changeTitle: { hold: (jobs) => `Hold ${jobs}?`, release: (jobs) => `Release ${jobs}?`, cancel: (jobs) => `Cancel ${jobs}?` },
    changeText: (listed) => `Of ${listed} that match the filters, all that you may change.`, changed: { hold: (jobs) => `${jobs} held`, release: (jobs) => `${jobs} released`, cancel: (jobs) => `${jobs} cancelled` },
    stale: "late", predicted: (share) => `about ${share}, predicted`,
  },
  job: {
    details: "Details", command: "Command", folder: "Folder", variables: "Environment variables", history: "History", output: "Output", throughput: "Samples, measured", predictedThroughput: "Throughput, predicted", perSecond: (samples) => `${samples} samples/s`,
    measuredShare: (share) => `measured: ${share} of it`, loss: "Loss", gpuUse: "GPU utilisation", cpuUse: "CPUs in use", memoryUse: "Memory", noHistory: "No events are kept.",
    run: (number) => `Run ${number}`,
    position: "Position in the queue", outcome: "How it ended", noProgress: "reports no progress",
    owner: "Owner", requested: "Requested", runsOn: "Runs on", domains: "Domains", plan: "Plan", jobClass: "Class", preemptible: "May be stopped or reshaped",
    priority: (value) => `priority ${value}`, yes: "Yes", no: "No", submitted: "Submitted", firstEstimate: "First start estimate",
    started: "Started", ended: "Ended", runTime: "Since first start", gpuTime: "GPU time", cpuTime: "CPU time", peakMemory: "Peak memory of an instance", timeLimit: "Time limit",
    runs: "Runs", exitCode: "Exit status", array: "Array",
    asEstimated: "as estimated", later: (time) => `${time} later than estimated`, earlier: (time) => `${time} earlier than estimated`,
    again: "Submit again…", hold: "Hold", holdTitle: (job) => `Hold ${job}?`, holdText: "It stays in the queue and does not start until it is released.", held: (job) => `${job} is held`,
    release: "Release", releaseTitle: (job) => `Release ${job}?`, releaseText: "It may start as soon as there is room.", released: (job) => `${job} is released`,
    cancel: "Cancel job", cancelTitle: (job) => `Cancel ${job}?`, cancelRunning: "Its run gets a signal to stop, and is killed after its grace period. This cannot be undone.",
    cancelWaiting: "It leaves the queue. This cannot be undone.", cancelNow: "Kill it at once, without a grace period", cancelled: (job) => `${job} is being cancelled`,
  },
  log: {
    title: "Output", run: "Run", instance: "Instance", latest: "Latest", follow: "Follow",
    notStarted: "It has not started yet.", empty: "No output so far.",
    search: "Search the output", download: "Download", found: (found, lines) => `${found} of the last ${lines} lines`,
  },
  nodes: {
    node: "Node", gpus: "GPUs", state: "State", jobs: "Jobs", all: "All nodes", none: "There are no nodes.", search: "Search nodes",
    free: (count) => `${count} free GPUs`, down: (count) => `${count} out of service`, more: (count) => ` and ${count} more`,
    up: "In service", isDrained: "Drained", isDown: "Down", used: (used, total) => `${used} of ${total} in use`,
    power: (watts, limit) => (limit ? `rack: ${watts} of ${limit} W` : `rack: ${watts} W`),
    gpuOf: (index, node) => `GPU ${index} of ${node}`, gpuColumns: ["GPU", "Jobs", "Utilisation", "Memory", "Temperature", "Power", ""],
    drain: "Drain", resume: "Resume", reason: "Reason", move: "Stop its jobs and requeue them",
    drainTitle: (what) => `Drain ${what}?`, resumeTitle: (what) => `Return ${what} to service?`,
    drainText: (jobs) => (jobs ? `No new jobs start there. The ${jobs} running ${jobs === 1 ? "job continues" : "jobs continue"} unless they are requeued.` : "No new jobs start there until it is resumed."),
    drainGpuText: (jobs) => (jobs ? `No new jobs start there. The ${jobs === 1 ? "job" : "jobs"} on it will be stopped and requeued.` : "No new jobs start there until it is resumed."),
    resumeText: "Jobs may start there again.", drained: (what) => `${what} is drained`, resumed: (what) => `${what} is in service`,
  },
  tenants: {
    tenant: "Tenant", user: "User", users: "Users", use: "Use", inUse: "In use", quota: "Quota", noQuota: "none", borrowed: "Borrowed", limit: "Limit",
    withinQuota: "Within the quota", withoutQuota: "Tenant without a quota", noQuotas: (used, total) => `${used} of ${total} GPUs in use. No tenant has a quota.`, gpus: (count) => `${count} GPUs`, none: "There are no tenants.", noUsers: "Nobody has used GPUs yet.",
    summary: (used, total) => `${used} of ${total} GPUs in use. GPUs beyond the quota are borrowed: jobs of other tenants within their quota go first.`,
    usersHelp: "GPU hours that each user has used, and the fair share. Hours count half after a week, unless the policy sets another half-life.",
    fairShare: "Used and fair share", used: "Used", share: "Fair share", gpuHours: "GPU hours", weight: "Weight",
  },
  timeline: {
    title: "GPUs over time", hint: "Drag to zoom, click to open a job.", span: "Time span", spans: { 1: "1 h", 6: "6 h", 24: "24 h", 168: "7 d" }, whole: "Whole", reset: "Reset zoom",
    past: "Past", running: "Running", planned: "Planned", later: "Later", use: "Allocation and utilisation", allocated: "Allocated to jobs", busy: "Busy (measured)",
    help: "Arrow keys move in time, plus and minus zoom.", notChosen: "GPUs not chosen yet",
    plannedNote: "To the right of now: running jobs until their expected end, and waiting jobs at their estimated starts, where there is room; their GPUs are not chosen yet.",
    laterNote: "To the right of the chosen time: what happened later.",
    incomplete: "Older runs are left out: there are too many.",
    goodput: (share, overhead, lost) => `Goodput of the runs that have ended: ${share} of their GPU time became progress; ${overhead} went into starting and stopping, ${lost} into runs that failed.`,
    summary: (past, running, planned) => `Timeline: ${past} past runs, ${running} running, ${planned} later.`,
    useSummary: (held, total, busy) => `${held} of ${total} GPUs allocated now, ${busy} busy.`,
  },
  whatif: {
    hint: "When would a job start and end? Nothing is submitted.", question: "A job", gpus: "GPUs per instance", gpusHelp: "Sizes to compare.", instances: "Instances",
    hours: "Run time, hours", hoursHelp: "With the first size. Empty: predicted.", predicted: "predicted", jobClass: "Class", guaranteed: "Guaranteed", bestEffort: "Best effort",
    ask: "Estimate", answer: "Estimates", size: "Size", when: "From now", delayed: "Jobs delayed", meanDelay: "Mean delay of others", waits: "Waits", runs: "Runs", earliest: "earliest end",
    futures: (count) => `Medians and ranges of ${count} simulated futures.`, approximate: "The policy is approximated by EASY backfill.", scaled: "Run time is assumed to be inversely proportional to the number of GPUs.",
  },
  submit: {
    hint: "Job files, arrays and dependencies: refold submit.", job: "Job", command: "Command", name: "Name", folder: "Folder", gpus: "GPUs per instance", instances: "Instances", hours: "Time limit, hours", tenant: "Tenant", class: "Class",
    help: { command: "A command line or a script for sh. It inherits the environment of the daemon, not yours.", gpus: "A fraction, such as 0.5, shares one." },
    fromCommand: "from the command", ownFolder: "a new one", noLimit: "none", submit: "Submit", submitted: (job) => `${job} is submitted`,
    preview: "What to expect", previewHint: "Type a command to see when it would start, and what it would cost.", startsNow: "now", doesNotFit: "does not fit this cluster", cost: "Cost",
    atMost: (hours, time) => `at most ${hours} GPU hours in ${time}`, noBound: (gpus) => `${gpus} GPU hours for each hour; without a time limit there is no bound`,
    notCopied: (names) => `Not copied: the environment variables ${names}.`,
  },
  policies: {
    title: "The current queue under other policies", policies: "Policies", policy: "Policy", present: "current policy", ask: "Simulate",
    help: "Up to four. The jobs that run and wait now are simulated to their end, in the same futures for each policy; nothing is changed.",
    simulating: "Simulating…", noneWaiting: "No job waits: there is nothing to compare.", wait: "Mean wait", meanWait: "From now to start", meanCompletion: "From now to end",
    earlier: "Start earlier", later: "Start later", same: "same", starts: "Starts of waiting jobs, by the largest shift",
    futures: (count, compared, waiting) => `Means of ${count} simulated futures, of ${compared} of ${waiting} waiting jobs: those that start under every policy. No more jobs are submitted in them.`,
    guessed: "No job has ended yet, and some have neither an estimate nor a time limit: their run times are guessed.",
  },
  preemption: {
    title: "Costs and benefits of preemption", ask: "Compare rules", simulating: "Simulating… this takes up to 45 s.",
    help: "If all jobs, those that consent, or none could be stopped or reshaped for others: the latest jobs that have ended are simulated under each rule. Nothing is changed.",
    rule: "Jobs that may be preempted", wait: "Mean wait", mean: "Mean wait", longest: "Longest wait", preemptions: "Preemptions", overhead: "GPU-hours of overhead",
    always: (jobs) => `all ${jobs} jobs`, consent: (jobs) => `those that consent (${jobs})`, never: () => "none",
    note: (policy) => `Simulated under ${policy}, on the cluster as it is now; stopping takes 30 s, restarting 2 min. Stopped jobs are assumed to continue where they were stopped: jobs without checkpoints would lose their work. “preemption” in refold.yaml decides.`,
  },
  plan: {
    hint: "The best parallel plans of a model on given GPUs.", question: "A training", model: "Model", gpu: "GPU type", gpus: "GPUs", nodes: "Nodes", batch: "Global batch, samples", sequence: "Sequence, tokens", cp: "Context parallelism", ep: "Expert parallelism", chosen: "the best", engine: "Framework",
    fewest: "as few as possible", ofModel: "the model's", ask: "Find plans", best: (model, gpus) => `${model} on ${gpus}`, setup: (nodes, batch, sequence, engine) => `Nodes: ${nodes}. Global batch: ${batch}. Sequence: ${sequence}. Engine: ${engine}.`,
    none: "No plan fits.", plan: "Plan", stepParts: "Where the time goes", step: "Step", samples: "Samples/s", mfu: "MFU", memory: "Memory per GPU",
    considered: (plans, memory) => `${plans} valid plans, of which ${memory} do not fit into memory.`, accuracy: "Estimated without measurements on this cluster.",
    rejected: "Why others were rejected", reason: "Rule", plans: "Plans", explanation: "Explanation", example: "Example",
  },
  activity: { title: "Activity", none: "Nothing has happened yet." },
  recorded: {
    time: "Time", play: "Play", pause: "Pause", previous: "Previous change", next: "Next change",
    help: "A recorded journal: choose the time below.", link: "This page needs the link that `refold show` has printed. Run it again for a new one.",
  },
  error: {
    title: "This could not be loaded",
    retry: "Try again",
    offline: "The daemon does not answer.",
    notFound: "There is no such page.",
  },
  dialog: { cancel: "Keep as it is", close: "Close" },
};

/** "2 slots" for "2 GPUs"; words that are part of a name stay. */
function slotText(text) {
  return text.replace(/^GPU(s?)\b/, "Slot$1").replace(/(?<![-\w.])GPU(s?)(?![-\w.])/g, "slot$1");
}

let isOfSlots = false;

/** A text of the daemon about GPUs, which are slots on a machine without any. */
export function resourceText(text) {
  return isOfSlots ? slotText(text) : text;
}

/** Call what jobs get slots and not GPUs: a machine without GPUs shares CPU slots. Before the pages are loaded. */
export function callSlots(labels = texts) {
  isOfSlots = true;
  for (const [name, value] of Object.entries(labels)) {
    if (value === texts.plan) continue; // about GPUs of any cluster
    if (typeof value === "string") labels[name] = slotText(value);
    else if (typeof value === "function") labels[name] = (...words) => slotText(value(...words));
    else callSlots(value);
  }
}

/** Plain words for the kinds of events. */
export const eventTexts = {
  submitted: "submitted", infeasible: "does not fit", held: "held", released: "released", placed: "placed",
  reshaped: "reshaped", started: "started", stopping: "is being stopped", stopped: "stopped", failed: "failed",
  finished: "finished", cancelled: "cancelled", ended: "ended by a rule", "timed out": "timed out", "hang suspected": "suspected hang",
  "time limit": "time limit", idle: "idle", note: "note", "node down": "node down", "node drained": "node drained",
  "node up": "node up", "gpu down": "GPU down", "gpu drained": "GPU drained", "gpu resumed": "GPU resumed",
  "gpu warning": "GPU warning", lost: "events dropped",
};
