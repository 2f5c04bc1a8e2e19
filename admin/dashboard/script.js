// The dashboard of one gslbd. It asks the admin interface that served it and nobody else, and makes no markup from text.
import { land } from "./world.js";

const $ = (id) => document.getElementById(id);
const svgNS = "http://www.w3.org/2000/svg";

// make returns an element with attributes and children; a child is a node, a text, or nothing.
function make(tag, attributes, ...children) {
  const svg = ["svg", "path", "circle", "rect", "g", "line", "text", "title"].includes(tag);
  const e = svg ? document.createElementNS(svgNS, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "onclick") e.addEventListener("click", value);
    else e.setAttribute(name, value === true ? "" : value);
  }
  e.append(...children.flat().filter((c) => c !== undefined && c !== null && c !== ""));
  return e;
}

// fill replaces the children of a container when what they are made from has changed. Focus and scrolling stay.
const made = new Map();
function fill(container, from, build) {
  const key = JSON.stringify(from);
  if (made.get(container) === key) return;
  made.set(container, key);
  const scrolled = [...container.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
  keepFocus(container, () => container.replaceChildren(...[build()].flat()));
  container.querySelectorAll(".scroll").forEach((e, i) => { e.scrollLeft = scrolled[i] ?? 0; });
}

// fillRows makes a row for each item; the rows of items that have not changed stay as they are.
function fillRows(container, items, build) {
  const before = made.get(container) ?? new Map(), after = new Map();
  for (const item of items) {
    const key = JSON.stringify(item);
    after.set(key, before.get(key) ?? build(item));
  }
  made.set(container, after);
  keepFocus(container, () => {
    for (const [key, row] of before) if (!after.has(key)) row.remove();
    [...after.values()].forEach((row, i) => { if (container.children[i] !== row) container.insertBefore(row, container.children[i] ?? null); });
  });
}

// keepFocus gives the focus back to what has the same key in the container after a change.
function keepFocus(container, change) {
  const active = container.contains(document.activeElement) ? document.activeElement : undefined;
  change();
  if (active?.dataset.key && document.activeElement !== active) container.querySelector(`[data-key="${CSS.escape(active.dataset.key)}"]`)?.focus();
}

// --- asking -----------------------------------------------------------------------------------------------------------

const tokenKey = "gslbd token";
let skew = 0; // of this machine's clock to the server's, in ms

class Refused extends Error {
  constructor(status, text) { super(text); this.status = status; }
}

function headers(more) {
  const token = sessionStorage.getItem(tokenKey);
  return token ? { ...more, Authorization: "Bearer " + token } : { ...more };
}

// ask fails when no answer comes in time, so that a gslbd that hangs is told from one that has nothing new.
async function ask(path, method = "GET", body) {
  const options = { method, headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }), signal: AbortSignal.timeout(method === "GET" ? 15000 : 60000) };
  if (body !== undefined) options.body = JSON.stringify(body);
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({ error: response.statusText }));
  if (response.status === 401) wantToken(answer.error);
  if (!response.ok) throw new Refused(response.status, answer.error);
  if (answer.time) skew = Date.parse(answer.time) - Date.now();
  return answer;
}

// why says in words why nothing came.
function why(error) {
  if (error instanceof TypeError) return "it does not answer"; // what fetch throws when there is no connection
  return error.name === "TimeoutError" || error.name === "AbortError" ? "it takes connections and says nothing" : error.message;
}

const now = () => Date.now() + skew;

function wantToken() {
  const had = sessionStorage.getItem(tokenKey) !== null;
  sessionStorage.removeItem(tokenKey);
  if (!$("token").hidden && !had) return;
  $("token-why").textContent = had ? "The server does not know this token." : "";
  for (const s of document.querySelectorAll("main > section")) s.hidden = s.id !== "token";
  state();
  $("token-input").focus();
}

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(tokenKey, $("token-input").value.trim());
  $("token-input").value = "";
  start();
});

// --- words ------------------------------------------------------------------------------------------------------------

const zeroTime = (t) => !t || t.startsWith("0001-");

function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${s % 60}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d${Math.floor((s % 86400) / 3600)}h`;
}

// ago is how long ago something was, and goes on counting.
function ago(time) {
  if (zeroTime(time)) return "";
  return make("time", { datetime: time, "data-ago": time, title: new Date(time).toLocaleString() }, span(now() - Date.parse(time)));
}

setInterval(() => {
  for (const e of document.querySelectorAll("[data-ago]")) {
    const text = span(now() - Date.parse(e.dataset.ago));
    if (e.textContent !== text) e.textContent = text;
  }
}, 1000);

function scaled(n, unit = "") {
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (n >= size * 0.9995) return `${(n / size).toPrecision(3)} ${letter}${unit}`;
  }
  return `${Math.round(n)}${unit ? " " + unit : ""}`;
}

const percent = (share) => `${(share * 100).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const signs = { critical: "▲", warning: "◆", notice: "●", info: "·", "": "✓" };
const classes = { "": "good", info: "muted" };

// severityWord is a text with the sign of its severity. Without a text the severity is told to those who cannot see the sign.
function severityWord(severity, text) {
  severity ??= "";
  return make("span", { class: `word ${classes[severity] ?? severity}` }, make("span", { "aria-hidden": "true" }, signs[severity] + " "),
    text || make("span", { class: "unseen" }, (severity || "well") + ": "));
}

// --- what is wrong ----------------------------------------------------------------------------------------------------

const alike = 5; // of one kind that are shown one by one
const opened = new Set();

function kindOf(p) {
  return [p.severity, p.subject.split(" ")[0], ...p.text.split(": ")[0].split(" ").filter((w) => !/["'0-9]/.test(w))].join(" ");
}

function showProblems(v) {
  fill($("counts"), v.counts, () => ["critical", "warning", "notice"].filter((s) => v.counts[s]).map((s) =>
    severityWord(s, `${v.counts[s]} ${s}${s !== "critical" && v.counts[s] > 1 ? "s" : ""}`)));
  const total = v.counts.critical + v.counts.warning + v.counts.notice;
  fill($("problems"), [v.problems, [...opened]], () => {
    if (total === 0) return make("li", { class: "allgood good" }, "Nothing is wrong.");
    const kinds = new Map();
    for (const p of v.problems) kinds.set(kindOf(p), [...(kinds.get(kindOf(p)) ?? []), p]);
    const rows = [];
    for (const [kind, list] of kinds) {
      const shown = opened.has(kind) || list.length <= alike + 1 ? list : list.slice(0, alike);
      for (const p of shown) {
        rows.push(make("li", {}, severityWord(p.severity, p.severity), subject(p.subject), make("span", { class: "text" }, p.text), ago(p.since) || make("span")));
      }
      if (shown.length < list.length) {
        rows.push(make("li", {}, make("span"), make("button", { class: "link", type: "button", "data-key": kind, onclick: () => { opened.add(kind); showProblems(v); } },
          `and ${list.length - shown.length} more like these`)));
      }
    }
    if (total > v.problems.length) rows.push(make("li", { class: "muted" }, make("span"), make("span", {}, `and ${total - v.problems.length} more: gslbctl status`)));
    return rows;
  });
}

// subject is whom a problem is about; a service or member opens the service.
function subject(text) {
  const [kind, name] = [text.split(" ")[0], text.slice(text.indexOf(" ") + 1)];
  if (kind !== "service" && kind !== "member") return make("span", { class: "subject" }, text);
  return make("span", { class: "subject" }, make("button", { class: "link", type: "button", "data-key": "problem " + text, onclick: () => openService(name.split("/")[0]) }, text));
}

// --- sites ------------------------------------------------------------------------------------------------------------

let past = new Map(), pastOf = 0; // and when it was read
let allSites = false;
const fewSites = 15;

// mark is the sign of a site: a disc, with corners where something is wrong, open where an operator took it out.
function mark(x, y, r, severity) {
  const c = "mark " + (classes[severity] ?? severity);
  if (severity === "critical") return make("path", { class: c, d: `M${x} ${y - r * 1.3}L${x + r * 1.2} ${y + r * 0.9}L${x - r * 1.2} ${y + r * 0.9}z` });
  if (severity === "warning") return make("path", { class: c, d: `M${x} ${y - r * 1.2}L${x + r * 1.2} ${y}L${x} ${y + r * 1.2}L${x - r * 1.2} ${y}z` });
  return make("circle", { class: severity === "notice" ? "open notice" : c, cx: x, cy: y, r: severity === "notice" ? r * 0.8 : r });
}

const letterWidth = () => (innerWidth <= 640 ? 60 : 34); // as style.css has it

function showMap(sites) {
  const placed = sites.filter((s) => s.latitude !== undefined);
  fill($("map"), [placed.map((s) => [s.name, s.condition, s.severity]), letterWidth()], () => {
    const boxes = [];
    const free = (b) => b[0] >= 0 && b[2] <= 3600 && boxes.every((o) => b[2] < o[0] || b[0] > o[2] || b[3] < o[1] || b[1] > o[3]);
    const at = (s) => [(s.longitude + 180) * 10, (84 - s.latitude) * 10];
    for (const s of placed) { const [x, y] = at(s); boxes.push([x - 30, y - 30, x + 30, y + 30]); }
    const labels = [];
    for (const s of placed) { // what is wrong first: it gets its label
      const [x, y] = at(s);
      const text = s.severity ? `${s.name}: ${s.condition}` : s.name;
      const w = text.length * letterWidth();
      for (const b of [[x + 45, y - 32, x + 45 + w, y + 32], [x - 45 - w, y - 32, x - 45, y + 32], [x - w / 2, y - 105, x + w / 2, y - 45], [x - w / 2, y + 45, x + w / 2, y + 105]]) {
        if (!free(b)) continue;
        boxes.push(b);
        labels.push(make("text", { x: b[0], y: b[3] - 12 }, text));
        break;
      }
    }
    const marks = placed.map((s) => {
      const [x, y] = at(s);
      const find = () => { $("sites-find").value = s.name; showSites(last); $("sites").scrollIntoView(); };
      return make("g", { class: "site", onclick: find }, make("title", {}, `${s.name}: ${s.condition}`), mark(x, y, 30, s.severity ?? ""));
    });
    return [make("path", { class: "land", d: land }), ...marks.reverse(), ...labels];
  });
  const tally = new Map();
  for (const s of sites) tally.set(s.condition, (tally.get(s.condition) ?? 0) + 1);
  $("map").setAttribute("aria-label", `World map of ${sites.length} sites: ` + [...tally].map(([c, n]) => `${n} ${c}`).join(", ") + ". The table below has each.");
  const unplaced = sites.length - placed.length;
  $("sites-count").textContent = [...tally].map(([c, n]) => `${n} ${c}`).join(", ") + (unplaced ? `; ${unplaced} without coordinates, which the map cannot show` : "");
}

fill($("legend"), "legend", () => [["", "up"], ["critical", "dead"], ["warning", "down, overloaded, stale or degraded"], ["notice", "drained, evacuated, or never reported"]]
  .map(([severity, text]) => make("span", {}, make("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, mark(8, 8, 6, severity)), text)));

// line draws the last hour of one column of a site's points, with the limit, beside the value of now.
function line(site, column, limit, value, unit) {
  const points = past.get(site) ?? [];
  const most = Math.max(limit * 1.1, ...points.map((p) => p[column]), value ?? 0, 1);
  const width = 120, height = 26, end = now() / 1000;
  let d = "", pen = "M";
  for (const p of [...points, [end, ...[1, 2].map((c) => (c === column ? value ?? -1 : 0))]]) {
    if (p[column] < 0) { pen = "M"; continue; }
    d += `${pen}${(width - ((end - p[0]) / 3600) * width).toFixed(1)} ${(height - 1 - (p[column] / most) * (height - 2)).toFixed(1)}`;
    pen = "L";
  }
  const text = value === undefined ? "–" : scaled(value, unit);
  const of = limit ? ` of ${scaled(limit, unit)}` : "";
  const y = (height - 1 - (limit / most) * (height - 2)).toFixed(1);
  return make("div", { class: "past" },
    make("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      limit ? make("line", { class: "limit", x1: 0, x2: width, y1: y, y2: y }) : undefined, make("path", { class: "line", d })),
    make("span", {}, text + of));
}

function showSites(v) {
  if (!v) return;
  showMap(v.sites);
  const find = $("sites-find").value.trim().toLowerCase();
  const found = v.sites.filter((s) => [s.name, s.zone, s.region, s.condition].some((t) => (t ?? "").toLowerCase().includes(find)));
  const shown = allSites ? found : found.slice(0, fewSites);
  $("sites-found").textContent = found.length < v.sites.length ? `${found.length} of ${v.sites.length}` : `${v.sites.length}`;
  const rows = shown.map(({ report_age_seconds: age, ...s }) => [s, age === undefined ? undefined : Math.round((Date.parse(v.time) - age * 1000) / 500) * 500, pastOf, Math.floor(now() / 30000)]);
  fillRows($("sites-rows"), rows, ([s, reported]) => make("tr", {},
    make("th", { scope: "row" }, s.name, make("div", { class: "muted" }, [s.zone, s.region].filter(Boolean).join(", "))),
    make("td", {}, severityWord(s.severity, s.condition), reasons(s).map((r) => make("div", { class: "muted" }, r))),
    make("td", {}, reported === undefined ? severityWord("notice", "never") : [severityWord({ dead: "critical", stale: "warning" }[s.report], s.report), ", ", ago(new Date(reported).toISOString())],
      s.agent ? make("div", { class: "muted" }, "agent " + s.agent) : undefined),
    make("td", { class: s.members_up < s.members ? "warning" : "" }, `${s.members_up} of ${s.members}`),
    make("td", {}, line(s.name, 1, s.sessions_limit, s.load?.sessions)),
    make("td", {}, line(s.name, 2, s.bandwidth_limit, s.load?.bits_per_second_in === undefined ? undefined : Math.max(s.load.bits_per_second_in, s.load.bits_per_second_out), "bit/s")),
    make("td", { class: "number" }, s.utilisation === undefined ? "–" : percent(s.utilisation))));
  const rest = found.length - shown.length;
  $("sites-more").hidden = rest <= 0;
  $("sites-more").textContent = `Show ${rest} more sites`;
}

function reasons(s) {
  const all = [];
  if (s.overloaded) all.push(s.overloaded_why);
  if (s.shed > 0) all.push(`sheds ${percent(s.shed)} of its clients` + (s.heading > s.utilisation ? `; its new sessions lead to ${percent(s.heading)}` : ""));
  if (s.rtt_blind) all.push("rtt-blind: reaches none of the resolvers that others reach");
  return all;
}

$("sites-find").addEventListener("input", () => showSites(last));
$("sites-more").addEventListener("click", () => { allSites = true; showSites(last); });

async function loadPast() {
  const v = await ask("/v1/loads");
  past = new Map(v.sites.map((s) => [s.site, s.points]));
  pastOf = v.time;
  showSites(last);
}

// --- services ---------------------------------------------------------------------------------------------------------

let limit = 50;
let open = ""; // the service that is shown
let counts = []; // of its answers in the last minute, the oldest first: when, and by member

function chip(m) {
  let severity = m.up ? "" : "warning", word = m.up ? "up" : "down";
  if (m.forced) { severity = "notice"; word = `forced ${m.forced}`; }
  return make("span", { class: `chip ${m.in_pool ? "" : "out"} ${severity}`, title: m.in_pool ? "in the pool" : "waits in the other pool" },
    severityWord(severity, `${m.name} ${word}${m.in_pool ? "" : ", waits"}`));
}

function showServices(v) {
  $("services-count").textContent = v.services_found < v.services_total ? `${v.services_found} of ${v.services_total}` : `${v.services_total}`;
  fillRows($("services-rows"), v.services, (s) => make("tr", {},
    make("th", { scope: "row" }, severityWord(s.severity, ""), make("button", { class: "link", type: "button", "data-key": s.name, onclick: () => openService(s.name) }, s.name)),
    make("td", {}, severityWord(s.pool === "backup" ? "warning" : "", s.pool + (s.held ? ", held" : "")), make("div", { class: "muted" }, s.pool_why, zeroTime(s.pool_since) ? "" : ", for ", ago(s.pool_since))),
    make("td", {}, make("div", { class: "chips" }, s.members.slice(0, 12).map(chip), s.members.length > 12 ? make("span", { class: "muted" }, `and ${s.members.length - 12} more`) : undefined)),
    make("td", {}, s.policy)));
  const rest = v.services_found - v.services.length;
  $("services-more").hidden = rest <= 0;
  $("services-more").textContent = v.services.length >= 500 ? `${rest} more: find them by name` : `Show more of the other ${rest} services`;
  $("services-more").disabled = v.services.length >= 500;
  fill($("names"), v.services.map((s) => s.name), () => v.services.map((s) => make("option", { value: s.name })));
}

let typing;
$("services-find").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(refresh, 150); });
$("services-more").addEventListener("click", () => { limit = Math.min(500, limit * 2); refresh(); });

async function openService(name) {
  open = name;
  counts = [];
  try {
    await showService();
  } catch (error) {
    failure = why(error);
    return state();
  }
  $("service").scrollIntoView({ block: "nearest" });
  $("service").focus({ preventScroll: true });
}

async function showService() {
  const box = $("service");
  box.hidden = !open;
  if (!open) return;
  const name = open, close = () => make("button", { type: "button", "data-key": "close", onclick: () => { open = ""; showService(); } }, "Close");
  let s, decisions;
  try {
    const path = "/v1/services/" + encodeURIComponent(name);
    [s, decisions] = await Promise.all([ask(path), ask(path + "/decisions")]);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (name === open) fill(box, [name, error.message], () => [make("p", { class: "critical" }, error.message), close()]);
    return;
  }
  if (name !== open) return; // another was opened meanwhile
  const lately = countLately(s);
  fill(box, [s, decisions.decisions, [...lately]], () => [
    make("div", { class: "head" }, make("h3", {}, s.name), make("span", { class: "muted" }, `policy ${s.policy}, TTL ${s.ttl} s, on_all_down ${s.on_all_down}`),
      close()),
    s.aliases.length ? make("p", { class: "muted" }, "also " + s.aliases.join(", ")) : "",
    make("p", {}, "Pool: ", severityWord(s.pool === "backup" ? "warning" : "", s.pool), `, ${s.pool_why}`, zeroTime(s.pool_since) ? "" : ", for ", ago(s.pool_since),
      s.pool_servers ? `; ${s.pool_servers_up} of ${s.pool_servers} primary servers healthy` : "", s.held ? `; held: ${s.held_why}` : "", " ",
      s.failback === "manual" && s.pool === "backup" ? make("button", { type: "button", "data-key": "failback", onclick: () => failback(s.name) }, "Fail back") : ""),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Members of the service", "data-key": "members" }, make("table", {}, make("thead", {}, make("tr", {}, ["Member", "Site", "Address", "State", "For", "Servers", "Share of answers, last minute", "Share since the start", "Why"].map((t) => make("th", { scope: "col" }, t)))),
      make("tbody", {}, s.members.flatMap((m) => m.addresses.map((a, i) => make("tr", {},
        i === 0 ? make("th", { scope: "row", rowspan: m.addresses.length }, m.name, m.in_pool ? "" : make("div", { class: "muted" }, m.role + ", waits")) : undefined,
        i === 0 ? make("td", { rowspan: m.addresses.length }, m.site) : undefined,
        make("td", {}, m.cname ?? a.address), make("td", {}, severityWord(a.up ? "" : "warning", a.up ? "up" : "down"), m.forced ? make("div", { class: "notice" }, "forced " + m.forced) : undefined),
        make("td", {}, ago(m.forced ? m.forced_since : a.since) || "–"),
        i === 0 ? make("td", { rowspan: m.addresses.length }, m.servers === undefined ? "–" : `${m.servers_up}/${m.servers}`) : undefined,
        i === 0 ? [lately, new Map(s.members.map((o) => [o.name, o.answers]))].map((by) => make("td", { rowspan: m.addresses.length }, share(part(m.name, by), by.get(m.name)))) : undefined,
        make("td", {}, m.forced ? m.forced_why : a.why, a.check_error ? make("div", { class: "warning" }, "check: " + a.check_error) : undefined))))))),
    make("div", { class: "two" },
      make("div", {}, make("h3", {}, "What decided, since the start"), Object.keys(s.decisions).length ? make("table", {}, make("tbody", {}, Object.entries(s.decisions).sort((a, b) => b[1] - a[1]).map(([reason, n]) =>
        make("tr", {}, make("th", { scope: "row" }, reason), make("td", {}, share(n / Object.values(s.decisions).reduce((x, y) => x + y, 0), n)))))) : make("p", { class: "muted" }, "Nobody has asked yet.")),
      make("div", {}, make("h3", {}, "Some who asked of late, as decided now"), decisions.decisions.length ? make("table", {}, make("tbody", {}, decisions.decisions.map((d) =>
        make("tr", {}, make("td", {}, make("button", { class: "link", type: "button", "data-key": `decision ${d.ldns} ${d.ecs ?? ""}`, onclick: () => explainFor(s.name, d) }, d.ecs ? `${d.ecs} by ${d.ldns}` : d.ldns)),
          make("td", {}, d.member ?? d.kind), make("td", { class: "muted" }, d.reason))))) : make("p", { class: "muted" }, "Nobody of late."))),
  ].filter((e) => e !== ""));
}

// countLately returns how many answers each member of the open service gave in the last minute, or since it was opened.
function countLately(s) {
  counts.push({ at: Date.now(), by: new Map(s.members.map((m) => [m.name, m.answers])) });
  while (counts.length > 2 && counts[1].at < Date.now() - 60000) counts.shift();
  if (s.members.some((m) => m.answers < (counts[0].by.get(m.name) ?? 0))) counts.splice(0, counts.length - 1); // gslbd was restarted
  return new Map(s.members.map((m) => [m.name, m.answers - (counts[0].by.get(m.name) ?? 0)]));
}

// part is the share that one has of all.
function part(name, by) {
  const all = [...by.values()].reduce((x, y) => x + y, 0);
  return all ? by.get(name) / all : 0;
}

function share(of, n) {
  return make("div", { class: "share" }, make("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" },
    make("rect", { class: "back", width: 100, height: 10 }), make("rect", { width: (of * 100).toFixed(1), height: 10 })), make("span", {}, `${percent(of)} (${scaled(n)})`));
}

// --- explain ----------------------------------------------------------------------------------------------------------

function explainFor(name, d) {
  const f = $("explain-form").elements;
  f.name.value = name; f.client.value = d.ldns; f.ecs.value = d.ecs ?? ""; f.type.value = d.type;
  $("explain-form").requestSubmit();
  $("explain").scrollIntoView();
}

let explained = 0; // how many were asked for
$("explain-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const query = new URLSearchParams();
  for (const [k, v] of new FormData(event.target)) if (v.trim()) query.set(k, v.trim());
  const mine = ++explained;
  let e;
  try {
    e = await ask("/v1/explain?" + query);
  } catch (error) {
    if (mine === explained) fill($("explanation"), [why(error), now()], () => make("p", { class: "critical" }, why(error)));
    return;
  }
  if (mine !== explained) return; // another was asked for meanwhile
  fill($("explanation"), e, () => [
    make("p", { class: "muted" }, `Client: resolver ${e.client.ldns}`, e.client.ecs ? `, subnet ${e.client.ecs}, decided by ${e.client.used}` : "", e.client.why ? ` because ${e.client.why}` : "", `. Service ${e.service}, policy ${e.policy}, pool ${e.pool} (${e.pool_why}).`),
    make("ol", { class: "chain" }, [...e.trace.constraints, ...e.trace.steps].map(step), e.trace.on_all_down ? make("li", { class: "acted" }, make("span", { class: "metric" }, "on_all_down"), e.trace.on_all_down) : undefined),
    make("div", { class: "answer" }, make("strong", {}, e.answer.records.length ? e.answer.records.map((r) => r.data + (r.member ? ` (${r.member})` : "")).join(", ") : e.answer.kind),
      make("div", { class: "muted" }, `settled by ${e.answer.reason}`, e.answer.ttl === undefined ? "" : `, TTL ${e.answer.ttl} s`, e.answer.scope === undefined ? "" : `, ECS scope /${e.answer.scope}`, e.answer.all_down ? ", all are down" : "")),
  ]);
});

function step(s) {
  const idle = ["not consulted", "disabled", "kept all", "abstained"].includes(s.verdict);
  const members = (list, c) => list.map((m) => make("span", { class: `chip ${c}` }, make("span", { "aria-label": c }, c === "kept" ? "✓ " : "✗ "), m.member, [m.number, m.note].filter(Boolean).map((t) => ` ${t}`).join(",")));
  const quiet = s.verdict === "not consulted" || s.verdict === "disabled";
  return make("li", { class: idle ? "idle" : "acted" }, make("span", { class: "metric" }, s.metric), make("span", {}, s.verdict), s.note ? make("span", { class: "muted" }, " – " + s.note) : undefined,
    quiet ? undefined : make("div", { class: "chips" }, members(s.kept, "kept"), members(s.fell, "fell")));
}

// --- round trips ------------------------------------------------------------------------------------------------------

async function loadRTT() {
  const v = await ask("/v1/rtt");
  $("rtt-count").textContent = v.known ? `to ${v.networks.length} of ${v.known} networks of resolvers, in ms, the latest first` : "";
  const rows = v.networks.flatMap((n) => [...new Set(n.sites.map((s) => s.method))].map((method) => ({ network: n.network, method, sites: n.sites.filter((s) => s.method === method) })));
  fill($("rtt-table"), rows, () => {
    if (!rows.length) return make("tbody", {}, make("tr", {}, make("td", { class: "muted" }, "No site has measured any yet.")));
    const sites = [...new Set(rows.flatMap((n) => n.sites.map((s) => s.site)))].sort();
    return [
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Network"), sites.map((s) => make("th", { scope: "col", class: "number" }, s)))),
      make("tbody", {}, rows.map((n) => make("tr", {}, make("th", { scope: "row" }, n.network, make("span", { class: "muted" }, " by " + n.method)), sites.map((name) => {
        const t = n.sites.find((s) => s.site === name);
        if (!t) return make("td", { class: "number muted" }, "–");
        const best = n.sites[0].rtt_ms;
        return make("td", { class: "number " + (t.rtt_ms === best ? "best" : t.rtt_ms > best * 2 ? "far" : ""), title: `measured ${span(t.age_seconds * 1000)} ago` }, t.rtt_ms.toFixed(1));
      })))),
    ];
  });
}

// --- what happened ----------------------------------------------------------------------------------------------------

let events = []; // the latest first
let manyEvents = 100;
const mostEvents = 12000;

async function loadEvents() {
  events = (await ask("/v1/events")).events.reverse();
  showEvents();
}

function eventText(e) {
  let text = e.message;
  if (e.target) text += `, ${e.target}`;
  else if (e.member) text += `, ${e.service}/${e.member}`;
  else if (e.service) text += `, ${e.service}`;
  else if (e.site) text += `, ${e.site}`;
  for (const more of [e.family, e.details]) if (more) text += `, ${more}`;
  const why = e.author ? `by ${e.author}${e.why ? ": " + e.why : ""}` : e.why;
  return why ? `${text}: ${why}` : text;
}

function showEvents() {
  while (events.length > 0 && Date.parse(events[events.length - 1].time) < now() - 86400e3) events.pop();
  const find = $("events-find").value.trim().toLowerCase(), kind = $("events-kind").value;
  const found = events.filter((e) => (kind === "order" ? e.kind === "order" : kind === "wrong" ? e.severity !== "info" : true) && (!find || eventText(e).toLowerCase().includes(find)));
  const shown = found.slice(0, manyEvents);
  fill($("events-list"), shown, () => shown.length ? shown.map((e) => make("li", {},
    make("time", { datetime: e.time, title: e.time }, stamp(e.time)), make("span", { class: "what" }, severityWord(e.severity, ""), make("span", { class: classes[e.severity] === "muted" ? "" : e.severity }, eventText(e)))))
    : make("li", { class: "muted" }, "Nothing of that kind."));
  $("events-more").hidden = found.length <= shown.length;
  $("events-more").textContent = `Show more of the other ${found.length - shown.length}`;
}

function stamp(time) {
  const t = new Date(time), two = (n) => String(n).padStart(2, "0");
  return `${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

$("zone").textContent = `by the clock of this browser (${Intl.DateTimeFormat().resolvedOptions().timeZone})`;
for (const id of ["events-find", "events-kind"]) $(id).addEventListener("input", showEvents);
$("events-more").addEventListener("click", () => { manyEvents *= 4; showEvents(); });

// --- orders -----------------------------------------------------------------------------------------------------------

// newID returns a UUID of version 7 (RFC 9562): an order sent twice is one order.
function newID() {
  const b = crypto.getRandomValues(new Uint8Array(16));
  let ms = Math.round(now());
  for (let i = 5; i >= 0; i--) { b[i] = ms % 256; ms = Math.floor(ms / 256); }
  b[6] = 0x70 | (b[6] & 0x0f);
  b[8] = 0x80 | (b[8] & 0x3f);
  const h = [...b].map((x) => x.toString(16).padStart(2, "0")).join("");
  return [h.slice(0, 8), h.slice(8, 12), h.slice(12, 16), h.slice(16, 20), h.slice(20)].join("-");
}

const authorKey = "gslbd author";
for (const input of document.querySelectorAll('input[name="author"]')) {
  input.value = sessionStorage.getItem(authorKey) ?? "";
  input.addEventListener("change", () => {
    sessionStorage.setItem(authorKey, input.value);
    for (const other of document.querySelectorAll('form input[name="author"]')) other.value = input.value;
  });
}

// stamped is what every order has.
function stamped(form) {
  const o = { id: newID(), created: new Date(now()).toISOString(), author: form.author.value.trim(), reason: form.reason.value.trim() };
  if (form.expires?.value) o.expires = new Date(now() + form.expires.value * 3600e3).toISOString();
  return o;
}

// sure asks whether to go on, and for what an order needs to be signed with. It returns the stamp, or nothing.
function sure(text, yes, signed) {
  $("sure-text").textContent = text;
  $("sure-yes").textContent = yes;
  $("sure-fields").replaceChildren(...(signed ? [] : [
    make("label", {}, "You are", make("input", { name: "author", required: true, maxlength: 256, autocomplete: "off", value: sessionStorage.getItem(authorKey) ?? "" })),
    make("label", {}, "Reason", make("input", { name: "reason", required: true, maxlength: 256, autocomplete: "off" }))]));
  const dialog = $("sure"), form = dialog.querySelector("form");
  dialog.returnValue = "no"; // also of Escape
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => {
    if (dialog.returnValue !== "yes") {
      say("Nothing was done.", "muted");
      return done();
    }
    if (signed) return done(signed);
    sessionStorage.setItem(authorKey, form.elements.author.value);
    done(stamped(form.elements));
  }, { once: true }));
}

$("sure-no").addEventListener("click", () => $("sure").close("no"));

// give sends an order and says what came of it. It returns whether it was accepted.
async function give(what, path, method, body) {
  try {
    const r = await ask(path, method, body);
    say(r.nothing ? `${what}: ${r.nothing}` : [`${what}: accepted, ${r.shared}.`, ...(r.warnings ?? [])].join(" "), r.nothing || r.warnings?.length || r.shared === "on this gslbd only" ? "warning" : "good");
    refresh();
    return true;
  } catch (error) {
    const unsure = error instanceof Refused ? "" : ": whether it was taken is not known; see what is in force";
    say(`${what}: ${why(error)}${unsure}`, "critical");
    return false;
  }
}

function say(text, severity) {
  $("orders-said").textContent = text;
  $("orders-said").className = severity;
  $("orders-said").scrollIntoView({ block: "nearest" });
}

function targetText(t) { return Object.entries(t).map(([k, v]) => `${k} ${v}`).join(", "); }

function showOrders(v) {
  $("orders-none").hidden = v.keeps_orders;
  $("orders-all").hidden = !v.keeps_orders;
  fill($("orders-list"), [v.orders, v.evacuations], () => {
    if (!v.orders.length && !v.evacuations.length) return make("li", { class: "muted" }, "Nothing is forced, and nothing evacuated.");
    const end = (e) => (zeroTime(e.expires) ? "" : `, ends ${new Date(e.expires).toLocaleString()}`);
    return [
      ...v.evacuations.map((e) => make("li", {}, make("div", {}, severityWord("notice", `Evacuation of zone ${e.zone}: `), `${percent(e.share)} of clients moved away`, e.parts.map((p) => `; ${p.type} ${p.state}${p.why ? ": " + p.why : ""}`),
        make("div", { class: "muted" }, `by ${e.author}: ${e.reason}${end(e)}, for `, ago(e.created))),
        make("button", { type: "button", "data-key": "restore " + e.id, onclick: () => restore(e.zone) }, "Restore"))),
      ...v.orders.map((o) => make("li", {}, make("div", {}, severityWord("notice", `Forced ${o.action}: `), `${targetText(o.target)}, ${o.members} member${o.members === 1 ? "" : "s"}`,
        make("div", { class: "muted" }, `by ${o.author}: ${o.reason}${end(o)}, for `, ago(o.created))),
        make("button", { type: "button", "data-key": "clear " + o.id, onclick: () => clearOrder(o) }, "Clear"))),
    ];
  });
  const zones = [...new Set(v.sites.map((s) => s.zone).filter(Boolean))].sort();
  const chosen = $("evacuate-form").elements.zone.value;
  fill($("evacuate-form").elements.zone, zones, () => [make("option", { value: "" }, "choose"), ...zones.map((z) => make("option", {}, z))]);
  if (zones.includes(chosen)) $("evacuate-form").elements.zone.value = chosen;
  targets();
}

function targets() {
  const kind = $("force-form").elements.kind.value;
  const names = { site: last.sites.map((s) => s.name), zone: last.sites.map((s) => s.zone), service: last.services.map((s) => s.name), member: last.services.flatMap((s) => s.members.map((m) => `${s.name}/${m.name}`)) }[kind];
  const list = [...new Set(names.filter(Boolean))].slice(0, 500);
  fill($("targets"), list, () => list.map((n) => make("option", { value: n })));
}
$("force-form").elements.kind.addEventListener("change", () => last && targets());

$("force-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const f = event.target.elements;
  const order = { ...stamped(f), action: f.action.value, target: { [f.kind.value]: f.target.value.trim() } };
  if (!(await sure(`Force ${targetText(order.target)} ${order.action}?`, `Force ${order.action}`, order))) return;
  if (await give(`force ${targetText(order.target)} ${order.action}`, "/v1/orders", "POST", { ...order, created: new Date(now()).toISOString() })) f.reason.value = f.target.value = "";
});

async function clearOrder(o) {
  const s = await sure(`Clear the order that forces ${targetText(o.target)} ${o.action}?`, "Clear");
  if (s) await give(`clear ${targetText(o.target)} ${o.action}`, "/v1/orders/" + encodeURIComponent(o.id), "DELETE", { created: s.created, author: s.author, reason: s.reason });
}

async function restore(zone) {
  const s = await sure(`Put back all that was taken out of zone ${zone}?`, "Restore");
  if (s) await give(`restore zone ${zone}`, "/v1/restorations", "POST", { ...s, zone });
}

async function failback(service) {
  const s = await sure(`Send the clients of ${service} back to its primaries?`, "Fail back");
  if (s) await give(`fail back ${service}`, "/v1/failback", "POST", { ...s, service });
}

let planned; // the evacuation whose dry run is shown
let plans = 0; // dry runs that were begun or became void
const planHolds = 300e3; // ms that a dry run is believed
const evacuateForm = $("evacuate-form");

// unplan makes a dry run void, also one that is under way.
function unplan() {
  plans++;
  planned = undefined;
  $("evacuate-go").disabled = true;
  fill($("forecast"), "", () => []);
}
evacuateForm.addEventListener("input", unplan);

evacuateForm.addEventListener("submit", async (event) => {
  event.preventDefault();
  const f = evacuateForm.elements;
  const e = { ...stamped(f), zone: f.zone.value, types: ["member"] };
  if (f.stages.value) { e.stages = f.stages.value.split(",").map(Number); e.pause_ms = f.pause.value * 60e3; }
  unplan();
  const mine = plans;
  let v;
  try {
    v = await ask("/v1/evacuations", "POST", { ...e, dry_run: true });
  } catch (error) {
    if (mine === plans) fill($("forecast"), [why(error), now()], () => make("p", { class: "critical" }, why(error)));
    return;
  }
  if (mine !== plans) return; // the form says something else by now
  planned = e;
  setTimeout(() => { if (mine === plans) unplan(); }, planHolds);
  $("evacuate-go").disabled = v.plan.refusals.length > 0 || v.plan.already !== "";
  fill($("forecast"), [v, now()], () => forecast(v));
});

// forecast shows what an evacuation would take, and where clients and load would go.
function forecast(v) {
  const few = 12;
  const load = (l, used) => (l?.sessions === undefined ? "–" : `${scaled(l.sessions)} sessions`) + (used === undefined ? "" : `, ${percent(used)}`);
  const services = v.forecast.services.filter((s) => v.plan.resources.some((r) => r.name.startsWith(s.name + "/")));
  return [
    make("h3", {}, `Dry run: zone ${v.plan.zone}`),
    v.plan.already ? make("p", { class: "warning" }, `It is evacuated already, by ${v.plan.already}.`) : "",
    ...v.plan.refusals.map((t) => make("p", { class: "critical" }, "Refused: " + t)),
    v.plan.refusals.length ? make("p", {}, "gslbctl evacuate --force does it all the same.") : "",
    ...[...v.plan.warnings, ...v.forecast.warnings].slice(0, few).map((t) => make("p", { class: "warning" }, t)),
    make("p", {}, `Takes ${v.plan.resources.length}: `, v.plan.resources.slice(0, few).map((r) => r.name).join(", "), v.plan.resources.length > few ? ` and ${v.plan.resources.length - few} more` : ""),
    make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Where clients and load would go" }, make("table", {}, make("thead", {}, make("tr", {}, ["Site", "Clients before", "after", "Load before", "after"].map((t) => make("th", { scope: "col" }, t)))),
      make("tbody", {}, v.forecast.sites.map((s) => make("tr", {}, make("th", { scope: "row" }, s.name), make("td", {}, percent(s.clients.before)), make("td", {}, percent(s.clients.after)),
        make("td", {}, load(s.before, s.utilisation_before)), make("td", { class: s.over ? "critical" : "" }, load(s.after, s.utilisation_after), s.over ? make("div", {}, s.over_why) : undefined)))))),
    ...services.slice(0, few).map((s) => make("p", { class: s.shares?.no_answer.after > s.shares?.no_answer.before ? "critical" : "muted" },
      `${s.name}: `, s.unknown ? s.unknown : `${percent(s.shares.changed)} of ${s.clients} clients get another member; without an answer ${percent(s.shares.no_answer.before)} → ${percent(s.shares.no_answer.after)}`,
      (s.shares?.moves ?? []).slice(0, few).map((m) => `; ${m.from} → ${m.to} ${percent(m.share)} by ${m.metric}`).join(""),
      s.pool_before !== s.pool_after ? `; pool ${s.pool_before} → ${s.pool_after}` : "")),
  ].filter((e) => e !== "");
}

$("evacuate-go").addEventListener("click", async () => {
  const e = planned;
  if (!e || !(await sure(`Evacuate zone ${e.zone}${e.stages ? " in stages" : ""}?`, "Evacuate", e))) return;
  if (await give(`evacuate zone ${e.zone}`, "/v1/evacuations", "POST", { ...e, created: new Date(now()).toISOString() })) {
    unplan();
    evacuateForm.elements.reason.value = "";
  }
});

// --- live -------------------------------------------------------------------------------------------------------------

let last; // the overview that is shown
let asking = false, again = false;

// refresh asks anew, and again when it was called meanwhile: after a pause of four times what the answer took, so that a
// look at very many services leaves the server its processor.
async function refresh() {
  if (asking) { again = true; return; }
  asking = true;
  const began = performance.now();
  let took = 0;
  try {
    const query = new URLSearchParams({ limit });
    const find = $("services-find").value.trim();
    if (find) query.set("find", find);
    last = await ask("/v1/overview?" + query);
    took = performance.now() - began;
    failure = "";
    $("host").textContent = last.node ? `${last.node}, ${location.host}` : location.host;
    $("version").textContent = last.version;
    $("uptime").textContent = span(last.uptime_seconds * 1000);
    showProblems(last);
    showSites(last);
    showServices(last);
    showOrders(last);
    await showService();
  } catch (error) {
    if (error.status !== 401) failure = why(error);
  } finally {
    state();
    setTimeout(() => {
      asking = false;
      if (again) { again = false; refresh(); }
    }, Math.min(Math.max(200, 4 * took), 10000));
  }
}

let connected = false; // events come in by themselves
let unconnected = ""; // why not, where gslbd says why
let failure = ""; // why the last look showed nothing; what is shown is of before then

// state says at the top whether the page is to be believed, in the tab's title too, and so that it cannot be overlooked
// when it is not.
function state() {
  const gone = Boolean(failure && last && $("token").hidden);
  const parts = !$("token").hidden ? ["warning", "waits for a token"]
    : failure ? ["critical", last ? "NOT LIVE" : failure]
    : !last ? ["", "loading"]
    : last.blind ? ["critical", "blind: states are frozen"]
    : !last.ready ? ["critical", `not ready: ${last.not_ready_why}`]
    : !connected ? ["warning", unconnected ? `not live, looks every few seconds: ${unconnected}` : "not live, trying again"] : ["", "live"];
  fill($("state"), parts, () => severityWord(parts[0], parts[1]));
  $("gone").hidden = !gone;
  document.body.classList.toggle("gone", gone);
  fill($("gone-text"), gone && [failure, last.time], () => (gone ? `Nothing is heard of gslbd ${$("host").textContent}: ${failure}. What stands below is of ${new Date(last.time).toLocaleTimeString()} and may be wrong by now. ` : []));
  fill($("gone-since"), gone && last.time, () => (gone ? ["Last heard ", ago(last.time), " ago, trying again."] : []));
  document.title = (gone ? "✕ gone: " : ["critical", "warning"].filter((s) => last?.counts[s]).map((s) => signs[s] + last.counts[s] + " ").join("")) + `gslbd ${last?.node || location.hostname}`;
}

// loadAll asks for all that the page shows; what fails, refresh says, or the next time mends.
const loadAll = () => Promise.allSettled([refresh(), loadEvents(), loadPast(), loadRTT()]);

// listen reads server-sent events: by fetch, since an EventSource cannot send a token. gslbd sends something at least every 15
// seconds.
let listening;
async function listen() {
  listening?.abort();
  const mine = (listening = new AbortController());
  for (let wait = 500; !mine.signal.aborted; wait = Math.min(wait * 2, 10000)) {
    let silence;
    const attempt = new AbortController();
    const alive = () => { clearTimeout(silence); silence = setTimeout(() => attempt.abort(), 20000); };
    try {
      alive();
      const response = await fetch("/v1/events", { headers: headers({ Accept: "text/event-stream" }), signal: AbortSignal.any([mine.signal, attempt.signal]) });
      if (response.status === 401) { wantToken(); return; }
      if (!response.ok) throw new Refused(response.status, (await response.json().catch(() => ({}))).error ?? response.statusText);
      connected = true;
      unconnected = "";
      wait = 500;
      await loadAll();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ; ) {
        const { done, value } = await reader.read();
        if (done) break;
        alive();
        const messages = (text + value).split("\n\n");
        text = messages.pop();
        heard(messages);
      }
    } catch (error) {
      if (mine.signal.aborted) return;
      const refused = error instanceof Refused;
      if (!refused) failure = why(error); // unless it answers otherwise, as behind a proxy that lets no events through
      unconnected = refused ? error.message : "events do not come through";
      await loadAll();
    } finally {
      clearTimeout(silence);
      connected = false;
    }
    state();
    await new Promise((done) => setTimeout(done, wait));
  }
}

// heard takes messages in, all of one read at once.
function heard(messages) {
  let news = false, changed = false;
  for (const message of messages) {
    const name = /^event: (.*)$/m.exec(message)?.[1], data = /^data: (.*)$/m.exec(message)?.[1];
    if (name === "publication") changed = true;
    if (name !== "event") continue;
    const e = JSON.parse(data);
    if (events.slice(0, 500).some((o) => o.id === e.id)) continue;
    events.unshift(e);
    news = true;
  }
  if (news) {
    events.length = Math.min(events.length, mostEvents);
    showEvents();
  }
  if (news || (changed && !document.hidden)) refresh(); // the title of a tab that is hidden is seen all the same
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && connected) refresh(); });
setInterval(() => {
  if (!connected || document.hidden) return;
  refresh(); // also where nothing changes: a gslbd that publishes nothing any more is not taken for one that is well
  for (const load of [loadPast, loadRTT]) load().catch(() => {}); // that gslbd is gone, refresh says
}, 30000);

// --- light and dark ---------------------------------------------------------------------------------------------------

const themeKey = "gslbd theme";
function theme(light) {
  document.documentElement.classList.toggle("light", light);
  $("theme").textContent = light ? "Dark" : "Light";
}
const stored = localStorage.getItem(themeKey);
theme(stored ? stored === "light" : matchMedia("(prefers-color-scheme: light)").matches);
$("theme").addEventListener("click", () => {
  const light = !document.documentElement.classList.contains("light");
  localStorage.setItem(themeKey, light ? "light" : "dark");
  theme(light);
});

function start() {
  for (const s of document.querySelectorAll("main > section")) s.hidden = s.id === "token";
  listen();
}

start();
