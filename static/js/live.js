// Keeps a page true without reloading it.
//
// The event stream only says which pipelines changed; htmx then fetches all regions of the page in
// one answer. If the stream is silent, whether cut or idle, the page asks by itself. The badge shows
// the age of the data, never the state of a connection. Nothing that a person is using is replaced.
"use strict";

(() => {
  const ASK_EVERY_MS = 3000; // unless the stream made it ask sooner
  const ASK_TIMEOUT_MS = 4000;
  const AGING_MS = 4500; // so that data older than five seconds is always shown as old
  const SILENT_MS = 8000; // a busy server answers late; one that refuses counts as away at once
  const OLD_MS = 15000;
  const TICK_MS = 250;

  const body = document.body;
  const regions = body.dataset.regions;
  const workerScript = document.currentScript.dataset.worker;
  const resource = body.dataset.resource; // none on the page of all pipelines
  const html = new Map(); // region id -> what the server sent last
  let pushedAt = -Infinity; // when the stream last made it ask
  let askedAt = performance.now();
  let answeredAt = performance.now();
  let failedSince = null;
  let isRefused = false; // the last answer was an error, not silence
  let asking = false;
  let askAgain = false;
  let state = null;

  // --- the stream

  function heard(changed) {
    if (resource && !(resource in changed)) return;
    pushedAt = performance.now();
    refresh();
  }

  // All tabs share one stream; in a browser without shared workers, each has its own.
  function sharedStream() {
    const worker = new SharedWorker(workerScript);
    worker.port.onmessage = (event) => heard(event.data);
    return {
      open: () => worker.port.postMessage({ join: body.dataset.events }),
      close: () => worker.port.postMessage({ join: null }),
    };
  }

  function ownStream() {
    let source = null;
    const stream = {
      open() {
        stream.close();
        source = new EventSource(body.dataset.events);
        source.addEventListener("changed", (event) => heard(JSON.parse(event.data)));
        source.addEventListener("renew", stream.open);
      },
      close: () => source?.close(),
    };
    return stream;
  }

  const stream = window.SharedWorker ? sharedStream() : ownStream();

  // A hidden tab needs no stream, and the browser opens at most six connections to a host.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      stream.close();
    } else {
      stream.open();
      refresh();
    }
  });
  addEventListener("pagehide", stream.close);
  addEventListener("pageshow", (event) => { if (event.persisted) stream.open(); });

  // --- asking

  const asker = document.createElement("div");
  asker.hidden = true;
  asker.setAttribute("hx-get", regions);
  asker.setAttribute("hx-trigger", "refresh");
  asker.setAttribute("hx-swap", "none");
  asker.setAttribute("hx-request", JSON.stringify({ timeout: ASK_TIMEOUT_MS }));
  body.append(asker);
  htmx.process(asker); // this script may run before htmx has looked at the page

  function refresh() {
    if (asking) { askAgain = true; return; }
    asking = true;
    askedAt = performance.now();
    htmx.trigger(asker, "refresh");
  }

  asker.addEventListener("htmx:configRequest", (event) => {
    event.detail.path = regions + location.search;
  });

  asker.addEventListener("htmx:afterRequest", (event) => {
    asking = false;
    const answer = event.detail.xhr;
    if (event.detail.successful && !answer.responseText.includes('id="pulse"')) {
      location.reload(); // signed out in the meantime
      return;
    }
    if (event.detail.successful) {
      answeredAt = performance.now();
      failedSince = null;
      isRefused = false;
    } else {
      failedSince = failedSince ?? performance.now();
    }
    if (askAgain) { askAgain = false; refresh(); } else asksForIt = false;
    tick();
  });

  for (const refused of ["htmx:sendError", "htmx:responseError"]) {
    asker.addEventListener(refused, () => { isRefused = true; });
  }

  // --- taking in an answer

  // htmx passes each region of the answer; changes are made in place, so that an element that a person
  // points at, has focused, opened or scrolled stays the same element.
  body.addEventListener("htmx:oobBeforeSwap", (event) => {
    event.detail.shouldSwap = false;
    const old = event.detail.target;
    const fresh = event.detail.fragment.querySelector("#" + CSS.escape(old.id));
    const sent = fresh ? fresh.innerHTML : "";
    if (!fresh || (old.id !== "pulse" && (html.get(old.id) === sent || isInUse(old) || holdsBack(old, fresh)))) return;
    html.set(old.id, sent);
    markNew(old, fresh);
    takeIn(old, fresh);
    if (old.id === "pulse") readPulse();
  });

  function takeIn(old, fresh) {
    const place = placeIn(old);
    morph(old, fresh);
    htmx.process(old);
    takePlace(old, place);
  }

  // New content above what a person points at would push it away from under the cursor, and a click
  // would miss it. This covers the regions of an answer, and the parts that are fetched after the page.
  let pointed = null;
  let pointedTop = 0;
  body.addEventListener("htmx:beforeSwap", () => {
    pointed = body.querySelector(`:is(${ACTIONABLE}):hover`);
    pointedTop = pointed?.getBoundingClientRect().top;
  });
  // times.js writes the moments of new content shorter, in a microtask that was queued before this one.
  body.addEventListener("htmx:afterSwap", () => queueMicrotask(() => {
    if (pointed?.isConnected) scrollBy({ top: pointed.getBoundingClientRect().top - pointedTop, behavior: "instant" });
  }));

  // A region that is replaced between press and release would swallow the click.
  let pressed = null;
  addEventListener("pointerdown", (event) => { pressed = event.target; }, true);
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, () => setTimeout(() => { pressed = null; }), true);
  }

  // Kept here, because asking the browser in each region would compute the layout each time.
  let selected = null; // where the selected text begins
  document.addEventListener("selectionchange", () => {
    const selection = getSelection();
    selected = selection.isCollapsed ? null : selection.anchorNode;
  });

  // Forms are outside the regions, so only a click or a selection can be lost.
  function isInUse(region) {
    return [pressed, selected].some((each) => each instanceof Node && region.contains(each));
  }

  // Finds a link or a button under the cursor, or with the focus, that the change would replace or
  // remove. Its region waits until the person moves on, unless they asked for the change.
  const ACTIONABLE = "a, button, summary, input, select, textarea";
  let held = null; // the element that the person points at or has focused
  let asksForIt = false; // the next answer is to their own choice

  function holdsBack(old, fresh) {
    if (asksForIt) return false;
    const used = [document.activeElement, old.querySelector(`:is(${ACTIONABLE}):hover`)];
    const lost = used.find((each) => each?.matches(ACTIONABLE) && old.contains(each) && !staysIn(each, old, fresh));
    if (lost) held = lost;
    return Boolean(lost);
  }

  function staysIn(used, old, fresh) {
    const name = nameOf(used);
    const same = namesakes(fresh, name)[namesakes(old, name).indexOf(used)];
    return Boolean(same) && namesIn(same.parentElement).join() === namesIn(used.parentElement).join();
  }

  function namesIn(parent) {
    return [...parent.querySelectorAll(ACTIONABLE)].map(nameOf);
  }

  for (const gone of ["pointerover", "focusin"]) {
    addEventListener(gone, (event) => {
      if (!held || held.contains(event.target)) return;
      held = null;
      refresh();
    });
  }

  // Makes `old` like `fresh`, and keeps each element that is in both: the one with the same id or
  // link, or of the same kind in the same place. A clock or a moment was rewritten for the viewer, so
  // it is replaced, and then adopted again.
  function morph(old, fresh) {
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (name !== "open" && name !== "hx-swap-oob" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const there = new Map([...old.children].filter(keyOf).map((each) => [keyOf(each), each]));
    const wanted = new Set([...fresh.children].map(keyOf));
    let next = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      while (next && keyOf(next) && !wanted.has(keyOf(next))) next = removed(next);
      const match = keyOf(child) ? there.get(keyOf(child)) : next;
      if (!match || !isAlike(match, child)) {
        old.insertBefore(child, next);
        continue;
      }
      there.delete(keyOf(child));
      if (match === next) next = next.nextSibling;
      else old.insertBefore(match, next);
      if (match instanceof Element) morph(match, child);
      else if (match.nodeValue !== child.nodeValue) match.nodeValue = child.nodeValue;
    }
    while (next) next = removed(next);
  }

  function removed(node) {
    const after = node.nextSibling;
    node.remove();
    return after;
  }

  function keyOf(node) {
    if (!(node instanceof Element)) return null;
    const link = node.localName === "tr" ? node.querySelector("th [id]")?.id : node.getAttribute("href");
    return node.id || link || null;
  }

  const REWRITTEN = ".clock, time, option, [data-moments]";

  function isAlike(one, other) {
    return one.nodeName === other.nodeName && keyOf(one) === keyOf(other) && !(one instanceof Element && one.matches(REWRITTEN));
  }

  // Remembers where the keyboard was in a region, and how far its tables were scrolled. The focused
  // element is found again by the nearest id, its kind and its link: rows move down when one is added.
  const FOCUSABLE = "a, button, summary, input, select, textarea, [tabindex]";

  const scrolledTo = new WeakMap(); // scrolled element -> how far, known without computing a layout
  addEventListener("scroll", ({ target }) => {
    if (target instanceof Element) scrolledTo.set(target, { left: target.scrollLeft, top: target.scrollTop });
  }, true);

  function placeIn(region) {
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...region.querySelectorAll(".scroll")].map((each) => scrolledTo.get(each));
    if (!focused) return { scrolled, name: null, index: -1 };
    const name = nameOf(focused);
    return { scrolled, name, index: namesakes(region, name).indexOf(focused) };
  }

  function takePlace(region, { scrolled, name, index }) {
    region.querySelectorAll(".scroll").forEach((each, at) => {
      if (scrolled[at]) each.scrollTo({ ...scrolled[at], behavior: "instant" });
    });
    if (name !== null && !region.contains(document.activeElement)) { // it was moved, or replaced
      namesakes(region, name)[index]?.focus({ preventScroll: true });
    }
  }

  function namesakes(region, name) {
    return [...region.querySelectorAll(FOCUSABLE)].filter((each) => nameOf(each) === name);
  }

  function nameOf(element) {
    return [element.closest("[id]").id, element.localName, element.getAttribute("href")].join(" ");
  }

  function markNew(old, fresh) {
    for (const row of fresh.querySelectorAll("tr[id]")) {
      if (!old.querySelector("#" + CSS.escape(row.id))) row.classList.add("is-new");
    }
  }

  // --- how old the data is

  let freshFrom = null;
  let freshAt = null;
  let silentAt = null; // when a process that has sent nothing counts as silent

  function readPulse() {
    const pulse = document.getElementById("pulse").dataset;
    silentAt = pulse.silentInMs === "" ? null : performance.now() + Number(pulse.silentInMs);
    freshFrom = pulse.freshMs === "" ? null : performance.now() - Number(pulse.freshMs);
    freshAt = pulse.freshAt ? new Date(pulse.freshAt) : null;
    if (state !== null && state !== pulse.stateWords && pulse.stateWords) {
      document.getElementById("announcements").textContent = `The pipeline is now: ${pulse.stateWords}.`;
    }
    state = pulse.stateWords;
  }

  function tick() {
    const now = performance.now();
    showFreshness(now);
    if (document.hidden) return;
    if (now - askedAt > ASK_EVERY_MS || isSomebodyLate(now)) refresh();
  }

  // The stream tells the pages that it reaches; the others would ask too late.
  function isSomebodyLate(now) {
    return silentAt !== null && now > silentAt && askedAt < silentAt && now - pushedAt > ASK_EVERY_MS;
  }

  function showFreshness(now) {
    const badge = document.getElementById("freshness");
    const patience = isRefused ? AGING_MS : SILENT_MS;
    const isCut = now - answeredAt > patience && (failedSince !== null || now - askedAt > AGING_MS);
    const dataAge = freshFrom === null ? null : now - freshFrom;
    const tone = isCut ? "cut" : dataAge === null ? "unknown" : dataAge > OLD_MS ? "old" : dataAge > AGING_MS ? "aging" : "fresh";
    badge.dataset.tone = tone;
    setText(document.getElementById("freshness-text"), dataAge === null ? "age of the data is not known" : `data is ${ageInWords(dataAge)} old`);
    body.classList.toggle("is-cut", isCut);
    const banner = document.getElementById("offline");
    if (isCut) setText(banner, `No connection: this page shows the state of ${freshAt ? clockInBothZones(freshAt) : "its last refresh"}. The web server does not answer, or the network is cut; pipelines go on. If the web server is down, start it: systemctl start ftdash-web.`);
    banner.hidden = !isCut;
  }

  function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
  }

  // --- choices: links that change what the page shows, without leaving it

  body.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-choice]");
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
    event.preventDefault();
    history.pushState(null, "", link.href);
    asksForIt = true;
    refresh();
  });
  addEventListener("popstate", () => {
    asksForIt = true;
    refresh();
  });

  // --- actions in the dialog

  const dialog = document.getElementById("dialog");
  let openedBy = null; // the name of the link

  body.addEventListener("click", (event) => {
    const opener = event.target.closest("a[data-dialog]");
    if (opener && dialog && !event.metaKey && !event.ctrlKey) {
      event.preventDefault();
      openedBy = nameOf(opener);
      htmx.ajax("GET", opener.getAttribute("href"), { target: "#dialog-body", swap: "innerHTML" });
    } else if (event.target.closest("a[data-close]") && dialog?.open) {
      event.preventDefault();
      dialog.close();
    }
  });

  dialog?.addEventListener("htmx:afterSwap", (event) => {
    if (event.target.id !== "dialog-body") return;  // only a part of it was swapped: the focus stays
    if (!dialog.open) dialog.showModal();
    const wrong = dialog.querySelector(".has-error :is(input, select)");
    (wrong ?? dialog.querySelector("#id_reason"))?.focus();
  });
  dialog?.addEventListener("close", () => {
    document.getElementById("dialog-body").replaceChildren();
    // The browser returns to the link by itself, unless a refresh has replaced the link meanwhile.
    namesakes(document.getElementById("main"), openedBy)[0]?.focus({ preventScroll: true });
  });
  dialog?.addEventListener("htmx:responseError", (event) => {
    toast(event.detail.xhr.status === 403 ? "This needs the admin role." : "The server could not answer; nothing was asked for.");
  });
  dialog?.addEventListener("htmx:sendError", () => toast("No connection: nothing was asked for."));

  body.addEventListener("requestStored", (event) => {
    dialog?.close();
    toast(event.detail.note);
    asksForIt = true;
    refresh();
  });

  function toast(text) {
    const note = document.createElement("p");
    note.className = "toast";
    note.textContent = text;
    document.getElementById("toasts").append(note);
    setTimeout(() => note.remove(), 6000);
  }

  readPulse();
  stream.open();
  setInterval(tick, TICK_MS);
  tick();
})();
