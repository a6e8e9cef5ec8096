// Keeps the page up to date: fetches the page every few seconds and changes only what differs, so that focus, scroll position,
// open details and a selection stay. Shows when the page is stale, and runs actions. Without this script the page stays as loaded.
"use strict";
(() => {
  const intervalMs = Number(document.documentElement.dataset.every) * 1000;
  const updatedIds = ["main", "as-of", "actions-bar"];
  const staleAfterMs = intervalMs * 3;
  let shownSince = Date.now(); // browser's clock: when the content on show was requested
  let request = null, timer = 0, failure = "";

  document.documentElement.classList.add("script", "live-on");
  const byId = (id) => document.getElementById(id);

  // --- change only what differs

  const key = (node) => (node.nodeType === 1 && node.id) || "";

  function patch(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== 1) { old.nodeValue = fresh.nodeValue; return; }
    attributes(old, fresh);
    if (old.tagName === "INPUT") return; // keep what the reader is typing
    children(old, fresh);
  }

  function attributes(old, fresh) {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) {
      const isLocal = (name === "open" && old.tagName === "DETAILS") || name === "aria-disabled";
      if (!isLocal && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
  }

  const isSameKind = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  // A list item is identified by the id of its first child.
  const nameOf = (node) => key(node) || (node.nodeName === "LI" && node.firstElementChild && node.firstElementChild.id) || "";

  function children(old, fresh) {
    const oldByName = new Map();
    for (const child of old.childNodes) if (nameOf(child)) oldByName.set(nameOf(child), child);
    let place = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const name = nameOf(wanted);
      const same = name ? oldByName.get(name) : place && !nameOf(place) && isSameKind(place, wanted) ? place : null;
      if (same && isSameKind(same, wanted)) {
        if (same === place) place = place.nextSibling;
        else old.insertBefore(same, place);
        patch(same, wanted);
        if (name) oldByName.delete(name);
      } else {
        old.insertBefore(document.importNode(wanted, true), place);
      }
    }
    while (place) { const next = place.nextSibling; place.remove(); place = next; }
  }

  // --- refresh

  async function refresh() {
    clearTimeout(timer);
    if (request) request.abort();
    const own = (request = new AbortController());
    const limit = setTimeout(() => own.abort("slow"), staleAfterMs);
    const startedAt = Date.now();
    try {
      const answer = await fetch(location.href, { signal: own.signal, headers: { Accept: "text/html" }, cache: "no-store" });
      const text = await answer.text();
      if (request !== own) return;
      const fresh = new DOMParser().parseFromString(text, "text/html");
      if (!answer.ok && !(answer.status === 404 && fresh.getElementById("main"))) throw new Error(`the prober answers with status ${answer.status}`);
      if (!fresh.getElementById("main")) throw new Error("the answer is not from the prober");
      for (const id of updatedIds) if (byId(id) && fresh.getElementById(id)) patch(byId(id), fresh.getElementById(id));
      if (document.title !== fresh.title) document.title = fresh.title;
      shownSince = startedAt;
      failure = "";
    } catch (problem) {
      if (request !== own) return;
      failure = own.signal.aborted ? "the prober does not answer in time" : problem instanceof TypeError ? "the prober cannot be reached" : problem.message;
    } finally {
      clearTimeout(limit);
      if (request === own) { request = null; showStaleness(); timer = setTimeout(next, intervalMs); }
    }
  }

  const next = () => (document.hidden ? (timer = 0) : refresh());

  function showStaleness() {
    const stale = failure !== "" || (!document.hidden && Date.now() - shownSince > staleAfterMs);
    const words = `✗ Stale since ${byId("as-of").textContent} UTC: ${failure || "the prober does not answer"}. This page may be out of date.`;
    document.documentElement.classList.toggle("stale", stale);
    document.documentElement.classList.toggle("live-on", !stale);
    if (stale && byId("stale").textContent !== words) byId("stale").textContent = words;
    byId("stale").hidden = !stale;
  }

  setInterval(() => { if (!document.hidden) showStaleness(); }, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !timer) refresh(); });
  window.addEventListener("online", refresh);

  // --- actions

  let hideTimer = 0;

  function say(text, isError) {
    const notice = byId("notice");
    clearTimeout(hideTimer);
    notice.classList.toggle("wrong", isError);
    notice.hidden = false;
    notice.textContent = (isError ? "✗ " : "✓ ") + text;
    if (!isError) hideTimer = setTimeout(() => { notice.hidden = true; }, 12000);
  }

  const duration = (seconds) => (seconds === null ? "–" : seconds < 1 ? `${(seconds * 1000).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`);

  async function resultText(button, answer) {
    const text = await answer.text();
    if (!answer.ok) throw new Error(text.trim() || `the prober answers with status ${answer.status}`);
    const data = text ? JSON.parse(text).data : {};
    if (data.outcome === "ok") return `Probe ended ok: TTFT ${duration(data.ttft_s)}, TPOT ${duration(data.tpot_s)}, E2E ${duration(data.e2e_s)}`;
    if (data.outcome) throw new Error(`Probe ended as ${data.outcome}: ${data.detail}`);
    return `${button.textContent.replace("…", "")}: done`;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-path]");
    if (!button || button.getAttribute("aria-disabled") === "true") return;
    if (button.dataset.asks && !window.confirm(button.dataset.asks)) return;
    button.setAttribute("aria-disabled", "true");
    say(`${button.textContent.replace("…", "")}: requested`, false);
    try {
      say(await resultText(button, await fetch(button.dataset.path, { method: button.dataset.method })), false);
    } catch (problem) {
      say(problem instanceof TypeError ? "the prober cannot be reached" : problem.message, true);
    } finally {
      button.removeAttribute("aria-disabled");
      refresh();
    }
  });

  // --- the filter: the address holds it, so that the link can be shared

  let typing = 0;
  document.addEventListener("input", (event) => {
    if (event.target.id !== "q") return;
    clearTimeout(typing);
    typing = setTimeout(() => filter(event.target.value), 200);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches(".filter")) return;
    event.preventDefault();
    filter(byId("q").value);
  });

  function filter(text) {
    const query = new URLSearchParams(location.search);
    query.delete("page");
    text ? query.set("q", text) : query.delete("q");
    const words = query.toString();
    history.replaceState(null, "", words ? `?${words}` : location.pathname);
    refresh();
  }

  timer = setTimeout(next, intervalMs);
})();
