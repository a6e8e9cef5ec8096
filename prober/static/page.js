// Keeps the page up to date: fetches itself every few seconds and changes only what differs, so that focus, scroll position,
// open details and a selection stay. Says when it is stale. Carries actions out. Without it the page is as it was loaded.
"use strict";
(() => {
  const every = Number(document.documentElement.dataset.every) * 1000;
  const parts = ["main", "as-of", "actions-bar"];
  const late = every * 3; // without an answer for so long, what is shown is stale
  let shown = Date.now(); // of the browser's clock, when what is shown was asked for
  let asking = null, again = 0, why = "";

  document.documentElement.classList.add("script", "live-on");
  const at = (id) => document.getElementById(id);

  // --- changing only what differs

  const key = (node) => (node.nodeType === 1 && node.id) || "";

  function patch(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== 1) { old.nodeValue = fresh.nodeValue; return; }
    attributes(old, fresh);
    if (old.tagName === "INPUT") return; // what is being typed is the reader's
    children(old, fresh);
  }

  function attributes(old, fresh) {
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) {
      const own = (name === "open" && old.tagName === "DETAILS") || name === "aria-disabled";
      if (!own && !fresh.hasAttribute(name)) old.removeAttribute(name);
    }
  }

  const alike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  // A list item is found again by the id inside it.
  const named = (node) => key(node) || (node.nodeName === "LI" && node.firstElementChild && node.firstElementChild.id) || "";

  function children(old, fresh) {
    const kept = new Map();
    for (const child of old.childNodes) if (named(child)) kept.set(named(child), child);
    let place = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
      const name = named(wanted);
      const same = name ? kept.get(name) : place && !named(place) && alike(place, wanted) ? place : null;
      if (same && alike(same, wanted)) {
        if (same === place) place = place.nextSibling;
        else old.insertBefore(same, place);
        patch(same, wanted);
        if (name) kept.delete(name);
      } else {
        old.insertBefore(document.importNode(wanted, true), place);
      }
    }
    while (place) { const next = place.nextSibling; place.remove(); place = next; }
  }

  // --- asking

  async function refresh() {
    clearTimeout(again);
    if (asking) asking.abort();
    const mine = (asking = new AbortController());
    const limit = setTimeout(() => mine.abort("slow"), late);
    const begun = Date.now();
    try {
      const answer = await fetch(location.href, { signal: mine.signal, headers: { Accept: "text/html" }, cache: "no-store" });
      const text = await answer.text();
      if (asking !== mine) return;
      const fresh = new DOMParser().parseFromString(text, "text/html");
      if (!answer.ok && !(answer.status === 404 && fresh.getElementById("main"))) throw new Error(`it answers ${answer.status}`);
      if (!fresh.getElementById("main")) throw new Error("what answers is not the prober");
      for (const id of parts) if (at(id) && fresh.getElementById(id)) patch(at(id), fresh.getElementById(id));
      if (document.title !== fresh.title) document.title = fresh.title;
      shown = begun;
      why = "";
    } catch (problem) {
      if (asking !== mine) return;
      why = mine.signal.aborted ? "the prober does not answer in time" : problem instanceof TypeError ? "the prober cannot be reached" : problem.message;
    } finally {
      clearTimeout(limit);
      if (asking === mine) { asking = null; tell(); again = setTimeout(next, every); }
    }
  }

  const next = () => (document.hidden ? (again = 0) : refresh());

  function tell() {
    const stale = why !== "" || (!document.hidden && Date.now() - shown > late);
    const words = `✗ Stale since ${at("as-of").textContent} UTC: ${why || "the prober does not answer"}. What stands here may be wrong by now.`;
    document.documentElement.classList.toggle("stale", stale);
    document.documentElement.classList.toggle("live-on", !stale);
    if (stale && at("stale").textContent !== words) at("stale").textContent = words;
    at("stale").hidden = !stale;
  }

  setInterval(() => { if (!document.hidden) tell(); }, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !again) refresh(); });
  window.addEventListener("online", refresh);

  // --- actions

  let quiet = 0;

  function say(words, wrong) {
    const said = at("said");
    clearTimeout(quiet);
    said.classList.toggle("wrong", wrong);
    said.hidden = false;
    said.textContent = (wrong ? "✗ " : "✓ ") + words;
    if (!wrong) quiet = setTimeout(() => { said.hidden = true; }, 12000);
  }

  const figure = (seconds) => (seconds === null ? "–" : seconds < 1 ? `${(seconds * 1000).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`);

  async function words(button, answer) {
    const text = await answer.text();
    if (!answer.ok) throw new Error(text.trim() || `it answers ${answer.status}`);
    const data = text ? JSON.parse(text).data : {};
    if (data.outcome === "ok") return `Probe ended ok: TTFT ${figure(data.ttft_s)}, TPOT ${figure(data.tpot_s)}, E2E ${figure(data.e2e_s)}`;
    if (data.outcome) throw new Error(`Probe ended as ${data.outcome}: ${data.detail}`);
    return `${button.textContent.replace("…", "")}: done`;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-path]");
    if (!button || button.getAttribute("aria-disabled") === "true") return;
    if (button.dataset.asks && !window.confirm(button.dataset.asks)) return;
    button.setAttribute("aria-disabled", "true");
    say(`${button.textContent.replace("…", "")}: asked for`, false);
    try {
      say(await words(button, await fetch(button.dataset.path, { method: button.dataset.method })), false);
    } catch (problem) {
      say(problem instanceof TypeError ? "the prober cannot be reached" : problem.message, true);
    } finally {
      button.removeAttribute("aria-disabled");
      refresh();
    }
  });

  // --- the filter: the address is what is filtered by, so that it can be passed on

  let typing = 0;
  document.addEventListener("input", (event) => {
    if (event.target.id !== "q") return;
    clearTimeout(typing);
    typing = setTimeout(() => filter(event.target.value), 200);
  });
  document.addEventListener("submit", (event) => {
    if (!event.target.matches(".filter")) return;
    event.preventDefault();
    filter(at("q").value);
  });

  function filter(asked) {
    history.replaceState(null, "", asked ? `?q=${encodeURIComponent(asked)}` : location.pathname);
    refresh();
  }

  again = setTimeout(next, every);
})();
