/** Tenants and users: quota, use, what is borrowed, what waits, and the fair share of each user. */

import { card, emptyNote, errorBox } from "../controls.js";
import { fill, h } from "../dom.js";
import { formatNumber, formatPercent, formatWhole } from "../format.js";
import { Refresher } from "../live.js";
import { texts } from "../texts.js";

const labels = texts.tenants;

export default class TenantsPage {
  constructor({ source, live }) {
    this._source = source;
    this._problem = h("div", {});
    const tenants = card(texts.pages.tenants);
    const users = card(labels.users);
    this._tenants = tenants.body;
    this._users = users.body;
    this.element = h("div", { class: "page" }, h("div", { class: "page-head" }, h("h1", { text: texts.pages.tenants })), this._problem, tenants.element, users.element);
    this._refresher = new Refresher(live, (signal) => this._load(signal), { every: 15000 });
  }

  stop() {
    this._refresher.stop();
  }

  async _load(signal) {
    try {
      const [tenants, users, info] = await Promise.all([this._source.tenants(signal), this._source.users(signal), this._source.info(signal)]);
      fill(this._tenants, tenants.length ? tenantTable(tenants, info) : emptyNote(labels.none));
      fill(this._users, users.length ? userTable(users) : emptyNote(labels.noUsers));
      fill(this._problem);
    } catch (error) {
      if (error.name !== "AbortError") fill(this._problem, errorBox(error, () => this._refresher.now()));
    }
  }
}

/** A table whose rows become cards on a phone; its roles are stated, since browsers forget those of tables that are laid out otherwise. */
function table(label, columns, rows) {
  for (const row of rows) {
    row.setAttribute("role", "row");
    [...row.children].forEach((cell, index) => {
      cell.setAttribute("role", index ? "cell" : "rowheader");
      cell.dataset.label = columns[index][0];
    });
  }
  const head = h("tr", { role: "row" }, ...columns.map(([text, kind]) => h("th", { scope: "col", role: "columnheader", class: kind, text })));
  const parts = [h("thead", { role: "rowgroup" }, head), h("tbody", { role: "rowgroup" }, ...rows)];
  return h("div", { class: "table-scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", { class: "plain cards", role: "table" }, ...parts));
}

/** The bar of a tenant: what it uses, of which what it borrows, and a mark at its quota. */
function useBar(tenant, scale) {
  const own = Math.min(tenant.gpus, tenant.quota_gpus);
  const borrowed = tenant.gpus - own;
  const width = (gpus) => `${(100 * gpus) / scale}%`;
  return h(
    "span", { class: "use-bar", "aria-hidden": "true" }, h("span", { class: "use-own", style: { width: width(own) } }), h("span", { class: tenant.quota_gpus ? "use-borrowed" : "use-no-quota", style: { width: width(borrowed) } }),
    tenant.quota_gpus > 0 && h("span", { class: "use-quota", style: { left: width(tenant.quota_gpus) } }),
  );
}

function tenantTable(tenants, info) {
  const scale = Math.max(1, ...tenants.map((tenant) => Math.max(tenant.gpus, tenant.quota_gpus)));
  const rows = tenants.map((tenant) => {
    const borrowed = tenant.quota_gpus ? Math.max(0, tenant.gpus - tenant.quota_gpus) : 0;
    return h(
      "tr", {}, h("th", { scope: "row" }, h("a", { class: "job-link", href: `#/jobs?tenant=${encodeURIComponent(tenant.name)}`, text: tenant.name })),
      h("td", { class: "bar-cell" }, useBar(tenant, scale)), h("td", { class: "number", text: formatNumber(tenant.gpus) }), h("td", { class: "number", text: tenant.quota_gpus ? formatNumber(tenant.quota_gpus) : labels.noQuota }),
      h("td", { class: "number" }, borrowed ? h("span", { class: "borrowed", text: formatNumber(borrowed) }) : "–"), h("td", { class: "number", text: tenant.limit_gpus ? formatNumber(tenant.limit_gpus) : "–" }),
      h("td", { class: "number", text: formatWhole(tenant.running) }), h("td", { class: "number" }, formatWhole(tenant.waiting), tenant.waiting_gpus > 0 && h("span", { class: "muted", text: ` (${labels.gpus(formatNumber(tenant.waiting_gpus))})` })),
    );
  });
  const columns = [[labels.tenant], [labels.use], [labels.inUse, "number"], [labels.quota, "number"], [labels.borrowed, "number"], [labels.limit, "number"], [texts.stats.running, "number"], [texts.stats.waiting, "number"]];
  const used = tenants.reduce((sum, tenant) => sum + tenant.gpus, 0);
  const summary = tenants.some((tenant) => tenant.quota_gpus > 0) ? labels.summary : labels.noQuotas;
  return h("div", { class: "stack" }, h("p", { class: "muted", text: summary(formatNumber(used), formatWhole(info.gpus)) }), table(texts.pages.tenants, columns, rows), useLegend(tenants));
}

/** What the bars show: of quotas only what there is. */
function useLegend(tenants) {
  const withQuota = tenants.some((tenant) => tenant.quota_gpus > 0);
  const entries = [
    [withQuota, "swatch use-own", labels.withinQuota], [withQuota, "swatch use-borrowed", labels.borrowed], [withQuota, "quota-mark", labels.quota],
    [tenants.some((tenant) => !tenant.quota_gpus), "swatch use-no-quota", labels.withoutQuota],
  ];
  return h("p", { class: "legend" }, ...entries.filter(([isShown]) => isShown).map(([, mark, text]) => h("span", { class: "legend-entry" }, h("span", { class: mark }), text)));
}

function userTable(users) {
  const sorted = [...users].sort((a, b) => b.gpu_hours - a.gpu_hours);
  const most = Math.max(0.01, ...sorted.map((user) => Math.max(user.used ?? 0, user.share ?? 0)));
  const rows = sorted.map((user) => h(
    "tr", {}, h("th", { scope: "row" }, h("a", { class: "job-link", href: `#/jobs?user=${encodeURIComponent(user.user)}`, text: user.user || "–" })), h("td", { text: user.tenant }),
    h("td", { class: "bar-cell" }, user.share !== null && h("span", { class: "use-bar", "aria-hidden": "true" }, h("span", { class: (user.used ?? 0) > user.share ? "use-borrowed" : "use-own", style: { width: `${(100 * (user.used ?? 0)) / most}%` } }), h("span", { class: "use-quota", style: { left: `${(100 * user.share) / most}%` } }))),
    h("td", { class: "number", text: user.used === null ? "–" : formatPercent(user.used) }), h("td", { class: "number", text: user.share === null ? "–" : formatPercent(user.share) }), h("td", { class: "number", text: formatNumber(user.gpu_hours) }),
    h("td", { class: "number", text: user.weight === null ? "–" : formatNumber(user.weight) }), h("td", { class: "number", text: formatNumber(user.gpus) }), h("td", { class: "number", text: formatWhole(user.running) }), h("td", { class: "number", text: formatWhole(user.waiting) }),
  ));
  const columns = [[labels.user], [labels.tenant], [labels.fairShare], [labels.used, "number"], [labels.share, "number"], [labels.gpuHours, "number"], [labels.weight, "number"], [labels.inUse, "number"], [texts.stats.running, "number"], [texts.stats.waiting, "number"]];
  return h("div", { class: "stack" }, h("p", { class: "muted", text: labels.usersHelp }), table(labels.users, columns, rows));
}
