// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

"use strict";

// Text from the cluster becomes text nodes and never markup.
function element(name, properties, ...children) {
	const e = document.createElement(name);
	for (const [key, value] of Object.entries(properties || {})) {
		if (key.startsWith("on")) e.addEventListener(key.slice(2), value);
		else if (value !== undefined && value !== false) e.setAttribute(key, value === true ? "" : value);
	}
	e.append(...children.flat(9).filter((c) => c !== undefined && c !== null && c !== false && c !== ""));
	return e;
}

const byId = (id) => document.getElementById(id);
const show = (where, ...what) => byId(where).replaceChildren(...what.flat(9).filter(Boolean));
const glyphs = { good: "✓", warning: "!", bad: "✗", none: "·" };
const mark = (m) => element("span", { class: m, title: m }, glyphs[m] || glyphs.none);

function ago(time) {
	const seconds = (Date.now() - Date.parse(time)) / 1000;
	if (!(seconds >= 0)) return "";
	for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
		if (seconds >= size) return Math.floor(seconds / size) + " " + unit;
	}
	return Math.floor(seconds) + " s";
}

function amount(n, units) {
	let i = 0;
	for (; n >= 1000 && i < units.length - 1; i++) n /= 1000;
	return (n >= 100 || Number.isInteger(n) ? Math.round(n) : n.toFixed(1)) + units[i];
}
const count = (n) => amount(n, ["", " k", " M", " G"]);
const bytes = (n) => amount(n, [" B", " kB", " MB", " GB", " TB"]);

async function read(path) {
	const answer = await fetch(path, { cache: "no-store" });
	const text = await answer.text();
	let value;
	try {
		value = JSON.parse(text);
	} catch {
		throw new Error(text.slice(0, 300) || "HTTP status " + answer.status);
	}
	if (!answer.ok) throw new Error(value.error || "HTTP status " + answer.status);
	return value;
}

// What was read last, and what the list shows of it.
const state = { overview: null, filter: "", failing: false, page: null };

function showProxy() {
	const o = state.overview;
	document.title = glyphs[o.ok ? "good" : "bad"] + " kube-proxy " + o.node;
	show("node", o.node);
	const taken = Object.entries(o.accelerated || {}).map(([family, n]) => ` · ${count(n)} ${family} connections without translation`);
	show("facts", `mode ${o.mode} · ${o.version} · up ${ago(o.started)}${taken.join("")}`);
	const h = o.health, all = [];
	for (const [family, f] of Object.entries(h.status || {})) {
		for (const text of [f.reason, f.lastError]) if (text) all.push(`${family}: ${text}`);
	}
	for (const s of h.sources || []) if (!s.synced || s.stale || s.error) all.push(`${s.name}: ${s.synced ? (s.stale ? "stale" : "synced") : "not synced"}${s.error ? ": " + s.error : ""}`);
	for (const [name, text] of Object.entries(h.conditions || {})) all.push(`${name}: ${text}`);
	if (h.nodeReason && !h.nodeEligible) all.push("Load balancers are told to leave this node: " + h.nodeReason);
	for (const s of o.silentEndpoints || []) all.push(`${s.address} of ${s.namespace}/${s.name} does not answer, since ${ago(s.since)}${s.leftOut ? ", and gets no new connections" : ""}: ${s.why}`);
	for (const e of o.endedConnections || []) all.push(`${count(e.connections)} connections to ${e.address}${e.name ? ` of ${e.namespace}/${e.name}` : ""} ended, ${ago(e.last)} ago: ${e.why}`);
	const worst = o.mark === "good" && all.length ? "warning" : o.mark;
	byId("verdict").className = worst;
	const most = 12;
	show("verdict", element("strong", {}, mark(worst), " ", o.verdict), element("div", {}, o.summary),
		all.length > 0 && element("ul", {}, all.slice(0, most).map((text) => element("li", {}, text)), all.length > most && element("li", {}, `and ${all.length - most} more: kube-proxy status -o wide`)));
}

// The list has elements only for the rows that are in sight.
const rowHeight = 34;

function listPage() {
	const rows = element("div", { class: "rows" }), scroll = element("div", { class: "scroll", tabindex: 0 }, rows);
	const found = element("span", { class: "soft" });
	let lines = [];
	function choose() {
		const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
		lines = state.overview.lines.filter((l) => (!state.failing || l.mark !== "good" || l.why) &&
			words.every((w) => `${l.namespace}/${l.name} ${l.ports} ${l.type} ${l.addresses} ${l.state} ${l.why || ""}`.toLowerCase().includes(w)));
		found.textContent = `${lines.length} of ${state.overview.lines.length}`;
		draw();
	}
	function draw() {
		const first = Math.max(0, Math.floor(scroll.scrollTop / rowHeight) - 10);
		const last = Math.min(lines.length, first + Math.ceil((scroll.clientHeight || 600) / rowHeight) + 20);
		rows.style.height = lines.length * rowHeight + "px";
		rows.style.paddingTop = first * rowHeight + "px";
		rows.replaceChildren(...lines.slice(first, last).map(row));
	}
	function row(l) {
		const path = `#/service/${encodeURIComponent(l.namespace)}/${encodeURIComponent(l.name)}`;
		const cells = [element("span", {}, element("span", { class: "soft" }, l.namespace + "/"), l.name), l.ports, element("span", { class: "code" }, l.addresses), l.state, l.endpoints, l.since ? ago(l.since) : "", element("span", { class: "soft", title: l.why }, l.why || "")];
		return element("a", { class: "row", href: path }, mark(l.mark), cells.map((c) => (typeof c === "string" ? element("span", {}, c) : c)));
	}
	scroll.addEventListener("scroll", draw);
	const head = ["", "Service", "Ports", "Addresses", "State", "Endpoints", "Since", "Why not"].map((t) => element("span", {}, t));
	show("main",
		element("div", { class: "tools" },
			element("input", { type: "search", placeholder: "Service, port, address, state", "aria-label": "Filter", value: state.filter, oninput: (e) => { state.filter = e.target.value; choose(); } }),
			element("label", {}, element("input", { type: "checkbox", ...(state.failing ? { checked: true } : {}), onchange: (e) => { state.failing = e.target.checked; choose(); } }), " only what needs attention"), found),
		element("div", { class: "list" }, element("div", { class: "row head" }, head), scroll));
	choose();
	return { update: choose };
}

const share = (n, of) => (of > 0 ? Math.round((n / of) * 160) : 0);

function rates(last, now) {
	const before = new Map(), seconds = last ? (Date.parse(now.time) - Date.parse(last.time)) / 1000 : 0, all = new Map();
	const key = (e) => `${e.port || ""}/${e.protocol.toLowerCase()}/${e.address}`;
	const list = (r) => (r.services[0] || {}).endpoints || [];
	if (last) for (const e of list(last)) before.set(key(e), e);
	for (const e of list(now)) {
		const b = before.get(key(e)) || (last ? {} : e);
		const per = (n) => (seconds > 0 ? Math.max(0, (e[n] || 0) - (b[n] || 0)) / seconds : 0);
		all.set(key(e), { total: e.connections || 0, connections: per("connections"), bytes: per("bytesIn") + per("bytesOut") });
	}
	return all;
}

function servicePage(namespace, name) {
	let last = null;
	async function update() {
		const path = `${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`;
		const answer = await read("../services/" + path);
		const now = await read(`../traffic?namespace=${encodeURIComponent(namespace)}&name=${encodeURIComponent(name)}&endpoints=true`).catch(() => null);
		const traffic = now ? rates(last, now) : new Map();
		last = now;
		const s = answer.services[0], silent = new Map((answer.silentEndpoints || []).filter((e) => e.namespace === namespace && e.name === name).map((e) => [e.address, e]));
		const problems = (s.problems || []).map((p) => `${p.field}: ${p.message}`);
		if (s.healthCheck && s.healthCheck.error) problems.push("load balancers get no answer: " + s.healthCheck.error);
		show("main", element("h2", {}, element("span", { class: "soft" }, namespace + "/"), name),
			problems.length > 0 && element("div", { class: "box warning" }, element("ul", {}, problems.map((p) => element("li", {}, p)))),
			s.ports.map((p) => portPart(p, traffic, silent)));
	}
	update().catch(fail);
	return { update: () => update().catch(fail) };
}

const hostPort = (f) => (f.address.includes(":") ? `[${f.address}]:${f.port}` : `${f.address}:${f.port}`);

function portPart(p, traffic, silent) {
	const first = (p.frontends || []).find((f) => f.address);
	const target = first && `${hostPort(first)}/${p.protocol.toLowerCase()}`;
	const flow = (e) => traffic.get(`${p.port || ""}/${p.protocol.toLowerCase()}/${e.address}`) || { connections: 0, bytes: 0, total: 0 };
	const list = p.endpointList || [], highest = Math.max(0, ...list.map((e) => flow(e).connections));
	const bad = p.error || p.unreached;
	return [
		element("h3", {}, mark(p.state === "programmed" && !bad ? "good" : p.state === "failed" || p.state === "skipped" ? "bad" : "warning"), ` ${p.port || "port"} ${p.protocol} ${p.family}: ${p.state}${p.since ? ", " + ago(p.since) : ""} `,
			target && element("a", { href: "#/connection?destination=" + encodeURIComponent(target) }, "explain a connection")),
		p.error && element("div", { class: "box bad" }, p.error),
		(p.notes || []).map((n) => element("div", { class: "soft" }, n)),
		element("table", {}, element("tr", {}, ["Address", "Kind", "Policy", "Endpoints", ""].map((t) => element("th", {}, t))),
			(p.frontends || []).map((f) => element("tr", {}, element("td", { class: "code" }, f.address ? hostPort(f) : `port ${f.port} of the node`), element("td", {}, f.kind), element("td", {}, f.policy), element("td", { class: "number" }, String(f.endpoints)),
				element("td", {}, f.reason ? [mark("warning"), " ", f.why || f.reason] : mark("good"))))),
		p.missed && element("p", {}, p.missed),
		list.length > 0 && element("table", {}, element("tr", {}, ["", "Endpoint", "Node", "Zone", "State", "Connections/s", "Bytes/s", "So far", "New connections"].map((t) => element("th", {}, t))),
			list.map((e) => endpointRow(e, flow(e), silent.get(e.address), highest))),
	];
}

function endpointRow(e, flow, silent, highest) {
	const used = e.cluster.used || (e.forLocal && e.forLocal.used);
	const m = silent || e.failed ? (silent && !silent.leftOut ? "warning" : "bad") : used ? "good" : "none";
	return element("tr", {}, element("td", {}, mark(m)), element("td", { class: "code" }, e.address), element("td", {}, (e.node || "") + (e.local ? " (here)" : "")), element("td", {}, e.zone || ""), element("td", {}, e.state),
		element("td", {}, element("span", { class: "bar", "data-width": share(flow.connections, highest) }), flow.connections.toFixed(1)), element("td", { class: "number" }, bytes(flow.bytes)), element("td", { class: "number" }, count(flow.total)),
		element("td", {}, [silent && `does not answer, since ${ago(silent.since)}: ${silent.why}`, e.failed && e.failed.error, `${e.cluster.used ? "yes" : "no"}: ${e.cluster.why}`, e.forLocal && `policy Local: ${e.forLocal.used ? "yes" : "no"}: ${e.forLocal.why}`].filter(Boolean).map((t) => element("div", {}, t))));
}

// A connection as a picture, from the client to an endpoint and back.
function connectionPage(query) {
	const source = element("input", { name: "source", value: query.get("source") || "", placeholder: "address, pod/NAMESPACE/NAME, node or outside" });
	const destination = element("input", { name: "destination", value: query.get("destination") || "", placeholder: "ADDRESS:PORT, node:PORT or svc/NAMESPACE/NAME:PORT" });
	const result = element("div", { id: "way" });
	show("main", element("form", { class: "ask", onsubmit: (e) => {
		e.preventDefault();
		location.hash = `#/connection?source=${encodeURIComponent(source.value)}&destination=${encodeURIComponent(destination.value)}`;
	} }, element("label", {}, "From ", source), element("label", {}, "To ", destination), element("button", {}, "Explain")), result);
	if (!query.get("destination") || !query.get("source")) return { update() {} };
	read(`../explain?source=${encodeURIComponent(query.get("source"))}&destination=${encodeURIComponent(query.get("destination"))}`)
		.then((x) => result.replaceChildren(...wayOf(x)), (err) => result.replaceChildren(element("div", { class: "box bad" }, err.message)));
	return { update() {} };
}

const verdicts = {
	agree: ["good", "The node does what it should"],
	differ: ["bad", "The node does not do what it should"],
	unknown: ["warning", "What the node does could not be read in full"],
};

function wayOf(x) {
	const p = x.installed || {}, obstacles = p.obstacles || [], doubts = [...(p.doubts || []), ...(p.others || []).flatMap((o) => o.doubts || [])];
	const told = obstacles.map((o) => o.what), wrong = [...(x.differences || []), ...(p.faults || [])].filter((d) => !told.includes(d));
	// What others do before the Service is translated, after that, and to the answer.
	const early = ["ingress", "prerouting", "output"], others = p.others || [];
	const groups = [others.filter((o) => !o.reply && early.includes(o.hook)), others.filter((o) => !o.reply && !early.includes(o.hook)), others.filter((o) => o.reply)];
	const ending = others.some((o) => o.rule);
	const chosen = (x.endpoints || []).filter((e) => e.chosen), targets = p.targets || [];
	let [m, text] = verdicts[x.verdict] || verdicts.unknown;
	if (m === "good" && (doubts.length || (x.leads || []).length)) m = "warning";
	const stop = (mood, title, ...lines) => element("div", { class: "stop " + mood }, element("b", {}, title), lines.filter(Boolean).map((l) => element("small", {}, l)));
	const few = (all, most = 4) => [...all.slice(0, most), all.length > most && `and ${all.length - most} more`];
	const ends = x.action === "reject" || x.action === "drop";
	const words = (all) => all.filter((o) => o.rule).map((o) => `${o.table} ${o.chain}: ${o.rule}`);
	const moodOf = (all) => (words(all).length ? "bad" : all.some((o) => (o.doubts || []).length) ? "warning" : "good");
	const foreign = (all, always) => (all.length || always) && stop(p.hops ? moodOf(all) : "warning", "Rules of others", ...(p.hops ? (words(all).length ? words(all) : ["let it pass"]) : ["not read"]));
	const wrongHere = (p.faults || []).length || (wrong.length && !ending && !obstacles.length);
	const parts = [
		stop("", "Client", x.source),
		foreign(groups[0]),
		stop(wrongHere ? "bad" : ends ? "warning" : "good", "Service", x.service || "no Service", x.frontend, `${x.action}: ${x.why}`),
		foreign(groups[1], !groups[0].length),
		chosen.length + targets.length > 0 && stop(obstacles.length ? "bad" : "good", targets.length === 1 ? "Endpoint" : `One of ${Math.max(targets.length, chosen.length)} endpoints`, ...few(targets.length ? targets.map((t) => `${t.address}, the client's address is ${t.client}`) : chosen.map((e) => e.address))),
		targets.length > 0 && stop(moodOf(groups[2]), "Answer", ...words(groups[2]), ...few([...new Set(targets.map((t) => t.reply).filter(Boolean))])),
	].filter(Boolean);
	// What the packet does not reach is not said to be well.
	const end = parts.findIndex((e) => e.classList.contains("bad"));
	for (const later of end < 0 ? [] : parts.slice(end + 1)) later.className = "stop";
	const list = (title, all) => all && all.length > 0 && [element("h3", {}, title), element("ul", {}, all.map((t) => element("li", {}, t)))];
	const remedy = (o) => [o.what || `${o.rule}: ${o.why}`, o.fix && element("div", { class: "code" }, o.fix), o.look && element("div", { class: "code soft" }, o.look)];
	return [
		element("div", { class: "box " + m }, element("strong", {}, mark(m), " ", text), element("ul", {}, [...obstacles.map(remedy), ...wrong, ...(x.leads || [])].map((d) => element("li", {}, d)))),
		element("div", { class: "way" }, parts.map((s, i) => [i > 0 && element("span", { class: "arrow" }, "→"), s])),
		list("Cannot be told", doubts.map(remedy)), list("Problems", x.problems), list("Notes", x.notes),
		element("h3", {}, "By the rules of Kubernetes"), element("ol", { class: "steps" }, (x.steps || []).map((s) => element("li", {}, element("b", {}, s.rule), ": ", s.text))),
		(p.hops || []).length > 0 && [element("h3", {}, "By the rules of this node"), element("ol", { class: "steps" }, p.hops.map((h) => element("li", {}, element("span", { class: "code" }, h.object), ": ", h.does)))],
	].flat(9).filter(Boolean);
}

function fail(err) {
	byId("verdict").className = "bad";
	show("verdict", element("strong", {}, mark("bad"), " no answer"), element("div", {}, err.message));
}

function open() {
	const [path, query] = location.hash.replace(/^#/, "").split("?");
	const [, what, namespace, name] = path.split("/").map(decodeURIComponent);
	for (const a of document.querySelectorAll("nav a")) a.classList.toggle("here", (a.hash === "#/connection") === (what === "connection"));
	if (what === "service") state.page = servicePage(namespace, name);
	else if (what === "connection") state.page = connectionPage(new URLSearchParams(query));
	else state.page = listPage();
}

// Reading takes one part in twenty of the time at most.
async function follow() {
	const begun = performance.now();
	if (!document.hidden) {
		try {
			const first = state.overview === null;
			state.overview = await read("overview");
			showProxy();
			if (first) open();
			else state.page.update();
		} catch (err) {
			fail(err);
		}
	}
	setTimeout(follow, Math.max(2000, 20 * (performance.now() - begun)));
}

// The policy of the page forbids style attributes in markup, but not what a script sets.
new MutationObserver(() => {
	for (const e of document.querySelectorAll("[data-width]")) {
		e.style.width = e.dataset.width + "px";
		e.removeAttribute("data-width");
	}
}).observe(document, { childList: true, subtree: true });
addEventListener("hashchange", () => state.overview && open());
addEventListener("DOMContentLoaded", follow);
