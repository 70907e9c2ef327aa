"use strict";
// Keeps an open page up to date. When the server announces a change, this script fetches the page again. It changes only
// the differences in place, so that focus, selection and scroll position stay. Pages are complete without this script.
(() => {
  document.documentElement.classList.add("scripted");
  const main = document.getElementById("main");
  const sign = document.getElementById("live");

  // ---- ages, updated every second by the clock of the server ----

  let ahead = main ? Number(main.dataset.now) - Date.now() : 0;

  function span(ms) {
    const s = Math.max(0, Math.floor(ms / 1000));
    if (s < 60) return `${s}s`;
    const two = (number) => String(number).padStart(2, "0");
    if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
    if (s < 86400) return `${Math.floor(s / 3600)}h${two(Math.floor(s / 60) % 60)}m`;
    if (s < 8640000) return `${Math.floor(s / 86400)}d${two(Math.floor(s / 3600) % 24)}h`;
    return `${Math.floor(s / 86400)}d`;
  }

  // While the page is not live, it is not known whether a hold or a wait goes on, so no age grows.
  function tick() {
    if (sign && sign.dataset.state === "lost") return;
    const now = Date.now() + ahead;
    for (const time of document.querySelectorAll("time[data-since]")) {
      const text = span(now - Number(time.dataset.since));
      if (time.textContent !== text) time.textContent = text;
    }
  }

  setInterval(tick, 1000);

  // ---- differences of the new page ----

  const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE && (node.id || node.dataset?.key)) || null;

  function morph(old, fresh) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.nodeValue !== fresh.nodeValue) old.nodeValue = fresh.nodeValue;
      return;
    }
    // The user opens and closes an element with details. An update does not.
    const isOurs = (name) => old.nodeName !== "DETAILS" || name !== "open";
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && isOurs(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const keyed = new Map();
    for (const child of old.childNodes) if (keyOf(child)) keyed.set(keyOf(child), child);
    let at = old.firstChild;
    for (const wanted of fresh.childNodes) {
      const key = keyOf(wanted);
      let match = key ? keyed.get(key) : at;
      if (match && (match.nodeName !== wanted.nodeName || (!key && keyOf(match)))) match = null;
      if (!match) {
        old.insertBefore(document.importNode(wanted, true), at);
        continue;
      }
      keyed.delete(key);
      if (match === at) at = at.nextSibling;
      else old.insertBefore(match, at);
      if (!match.isEqualNode(wanted)) morph(match, wanted);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  function change(fresh) {
    const focused = document.activeElement;
    morph(main, fresh);
    ahead = Number(main.dataset.now) - Date.now();
    tick();
    // An element that was moved has lost the focus.
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  // ---- buttons that copy a command ----

  // Browsers offer the clipboard only on HTTPS and on this machine. Elsewhere the style sheet hides the buttons.
  if (navigator.clipboard) {
    document.documentElement.classList.add("copies");
    document.addEventListener("click", async (event) => {
      const button = event.target.closest("button[data-copy]");
      if (!button) return;
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not copied";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
  }

  // ---- change events ----

  if (!main || !main.dataset.events) return;

  // The page is live if its result is the newest one, and the servers answered that read. An open stream alone proves
  // neither.
  function sayCurrent() {
    if (main.dataset.outage) say("lost", "the servers do not answer");
    else if (source) say("live", "live");
    else say("polled", `updated every ${POLL_MS / 1000} s`);
  }

  function say(state, text) {
    if (!sign) return;
    sign.hidden = false;
    sign.dataset.state = state;
    sign.textContent = text;
  }

  let busy = false;
  let again = false;

  async function look() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    do {
      again = false;
      try {
        const answer = await fetch(location.href, { cache: "no-store" });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const fresh = page.getElementById("main");
        if (answer.ok && fresh) {
          change(fresh);
          if (!source || source.readyState === EventSource.OPEN) sayCurrent();
        } else {
          say("lost", "not live");
        }
      } catch {
        say("lost", "not live");
      }
    } while (again);
    busy = false;
  }

  // Interval between attempts to open an event stream that the server refused.
  const POLL_MS = 5000;

  let source = null;
  let timer = 0;

  function listen() {
    clearTimeout(timer);
    if (source) return;
    source = new EventSource(main.dataset.events);
    source.addEventListener("news", (event) => {
      // A page that is old becomes live when it has been fetched.
      if (event.data !== main.dataset.number) look();
      else sayCurrent();
    });
    source.addEventListener("error", () => {
      // The browser reconnects by itself, unless the server refused the stream. Then the page fetches itself instead.
      if (!source || source.readyState !== EventSource.CLOSED) {
        say("lost", "not live");
        return;
      }
      source = null;
      look();
      timer = setTimeout(listen, POLL_MS);
    });
  }

  function stop() {
    clearTimeout(timer);
    if (source) source.close();
    source = null;
    say("lost", "not live");
  }

  // A browser opens at most six connections to this site, so a hidden page keeps none.
  const visible = () => (document.hidden ? stop() : listen());
  document.addEventListener("visibilitychange", visible);
  window.addEventListener("pagehide", stop);
  window.addEventListener("pageshow", visible);
  visible();
})();
