/** Calls to the daemon, and who is signed in. */

const BASE = "api/v1";

/** @typedef {{signed_in: boolean, role: string, tenant: string, user: string, own_jobs_only: boolean, csrf_token: string}} Session */

/** An error that the daemon reports. `status` is 0 if it does not answer. */
export class Problem extends Error {
  constructor(status, message, field = "") {
    super(message);
    this.status = status;
    this.field = field;
  }
}

/** The daemon as a source of data. A recorded journal has the same methods (`recorded.js`); what it cannot do, both say. */
export class DaemonSource {
  constructor() {
    /** @type {Session|null} */
    this.session = null;
    /** Whether the output of jobs can be read. */
    this.hasOutput = true;
    this.pages = ["overview", "jobs", "job", "timeline", "nodes", "tenants", "whatif", "plan", "submit"];
    /** The times of a recording, from the first to the last. */
    this.range = null;
    /** Called when a session has ended. */
    this.onSignedOut = () => {};
    this._offset = 0;
  }

  /** The time of the daemon, in Unix seconds. */
  now() {
    return Date.now() / 1000 + this._offset;
  }

  get canChange() {
    return this.session !== null && this.session.role !== "reader";
  }

  get isOwner() {
    return this.session !== null && this.session.role === "owner";
  }

  /** Whether the caller may change a job, as far as the page knows. */
  mayChange(job) {
    if (!this.canChange) return false;
    const { role, tenant, user, own_jobs_only: ownOnly } = this.session;
    return role === "owner" || (tenant === job.tenant && (!ownOnly || user === job.user));
  }

  async loadSession() {
    this.session = await this._request("GET", "session");
    return this.session;
  }

  async signIn(credentials) {
    this.session = await this._request("POST", "session", { body: credentials });
    return this.session;
  }

  async signOut() {
    await this._request("DELETE", "session");
    this.session = null;
  }

  async info(signal) {
    const info = await this.get("info", {}, signal);
    this._offset = info.now - Date.now() / 1000;
    return info;
  }

  gpus(signal) { return this.get("gpus", {}, signal); }
  nodes(signal) { return this.get("nodes", {}, signal); }
  alerts(signal) { return this.get("alerts", {}, signal); }
  tenants(signal) { return this.get("tenants", {}, signal); }
  users(signal) { return this.get("users", {}, signal); }
  jobs(query, signal) { return this.get("jobs", query, signal); }
  timeline({ seconds }, signal) { return this.get("timeline", { seconds }, signal); }
  why(job, signal) { return this.get(`jobs/${encodeURIComponent(job)}/why`, {}, signal); }
  async jobUse(job, signal) { return (await this.get(`jobs/${encodeURIComponent(job)}/use`, {}, signal)).samples; }
  logs(job, query, signal) { return this.get(`jobs/${encodeURIComponent(job)}/logs`, query, signal); }

  /** @returns {Promise<any>} */
  get(path, query = {}, signal = undefined) {
    return this._request("GET", `${BASE}/${path}${queryString(query)}`, { signal });
  }

  /** @returns {Promise<any>} */
  post(path, { query = {}, body = undefined, signal = undefined } = {}) {
    return this._request("POST", `${BASE}/${path}${queryString(query)}`, { body, signal });
  }

  /** A recorded journal that the page names. */
  recording(address) { return this._request("GET", address); }

  eventsUrl(since) {
    return `${BASE}/events${queryString({ since })}`;
  }

  async _request(method, url, { body = undefined, signal = undefined } = {}) {
    const headers = {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (method !== "GET" && this.session?.csrf_token) headers["X-CSRF-Token"] = this.session.csrf_token;
    let response;
    try {
      response = await fetch(url, {
        method, headers, signal, credentials: "same-origin", body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "");
    }
    const answer = await response.json().catch(() => ({ error: response.statusText }));
    if (response.ok) return answer;
    if (response.status === 401 && url !== "session") this.onSignedOut();
    throw new Problem(response.status, answer.error ?? response.statusText, answer.field ?? "");
  }
}

/** "?a=1&b=2", without empty values. A list is repeated. */
export function queryString(query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === null || value === undefined || value === "" || value === false) continue;
    for (const one of Array.isArray(value) ? value : [value]) parameters.append(name, String(one));
  }
  const text = parameters.toString();
  return text ? `?${text}` : "";
}
