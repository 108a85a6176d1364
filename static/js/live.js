// Keeps a page true without reloading it.
//
// The event stream only says which pipelines changed; htmx then fetches all regions of the page in
// one answer. Where the stream says nothing, cut or quiet, the page asks by itself. The badge shows the age of the
// data, never the state of a connection. Nothing is swapped under a person's hands.
"use strict";

(() => {
  const ASK_EVERY_MS = 3000; // unless the stream made it ask sooner
  const ASK_TIMEOUT_MS = 4000;
  const AGING_MS = 4500; // what is older than five seconds has been called so by then
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
  let asking = false;
  let askAgain = false;
  let state = null;

  // --- the stream

  function heard(changed) {
    if (resource && !(resource in changed)) return;
    pushedAt = performance.now();
    refresh();
  }

  // All tabs share one stream; where a browser has no such workers, each has its own.
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

  // A tab nobody looks at needs none; the browser opens six connections to a host.
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
      location.reload(); // signed out meanwhile
      return;
    }
    if (event.detail.successful) {
      answeredAt = performance.now();
      failedSince = null;
    } else {
      failedSince = failedSince ?? performance.now();
    }
    if (askAgain) { askAgain = false; refresh(); }
    tick();
  });

  // --- taking in an answer

  body.addEventListener("htmx:oobBeforeSwap", (event) => {
    const old = event.detail.target;
    const fresh = event.detail.fragment.querySelector("#" + CSS.escape(old.id));
    const sent = fresh ? fresh.innerHTML : "";
    if (old.id !== "pulse" && (html.get(old.id) === sent || isInUse(old))) {
      event.detail.shouldSwap = false;
      return;
    }
    html.set(old.id, sent);
    places.set(old.id, placeIn(old));
    if (fresh) keepOpen(old, fresh);
    if (fresh) markNew(old, fresh);
  });

  body.addEventListener("htmx:oobAfterSwap", (event) => {
    const { id } = event.detail.target;
    if (id === "pulse") readPulse();
    const region = document.getElementById(id);
    if (region && places.has(id)) takePlace(region, places.get(id));
    places.delete(id);
  });

  // A region that is replaced between press and release would swallow the click.
  let pressed = null;
  addEventListener("pointerdown", (event) => { pressed = event.target; }, true);
  for (const end of ["pointerup", "pointercancel"]) {
    addEventListener(end, () => setTimeout(() => { pressed = null; }), true);
  }

  // Forms stand outside the regions: what can be lost is a click or a selection.
  function isInUse(region) {
    if (pressed instanceof Node && region.contains(pressed)) return true;
    const selection = getSelection();
    return !selection.isCollapsed && region.contains(selection.anchorNode);
  }

  function keepOpen(old, fresh) {
    for (const details of old.querySelectorAll("details[open][id]")) {
      fresh.querySelector("#" + CSS.escape(details.id))?.setAttribute("open", "");
    }
  }

  // Where the keyboard was in a region, and how far its tables were scrolled. What was focused is
  // known again by the nearest id, its kind and its link: rows move down when one is added.
  const FOCUSABLE = "a, button, summary, [tabindex]";
  const places = new Map(); // region id -> the place in what is being replaced

  function placeIn(region) {
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    const scrolled = [...region.querySelectorAll(".scroll")].map((each) => [each.scrollLeft, each.scrollTop]);
    if (!focused) return { scrolled, name: null, index: -1 };
    const name = nameOf(focused);
    return { scrolled, name, index: namesakes(region, name).indexOf(focused) };
  }

  function takePlace(region, { scrolled, name, index }) {
    region.querySelectorAll(".scroll").forEach((each, at) => {
      const [left, top] = scrolled[at] ?? [0, 0];
      each.scrollTo({ left, top, behavior: "instant" });
    });
    if (name !== null && !region.contains(document.activeElement)) {
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
  let silentAt = null; // when whoever has not spoken by then is called silent

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

  // The stream says so to those whom it tells of anything; the others would ask too late.
  function isSomebodyLate(now) {
    return silentAt !== null && now > silentAt && askedAt < silentAt && now - pushedAt > ASK_EVERY_MS;
  }

  function showFreshness(now) {
    const badge = document.getElementById("freshness");
    const isCut = now - answeredAt > AGING_MS && (failedSince !== null || now - askedAt > AGING_MS);
    const dataAge = freshFrom === null ? null : now - freshFrom;
    const tone = isCut ? "cut" : dataAge === null ? "unknown" : dataAge > OLD_MS ? "old" : dataAge > AGING_MS ? "aging" : "fresh";
    badge.dataset.tone = tone;
    setText(document.getElementById("freshness-text"), dataAge === null ? "age of the data is not known" : `data is ${ageInWords(dataAge)} old`);
    body.classList.toggle("is-cut", isCut);
    const banner = document.getElementById("offline");
    if (isCut) setText(banner, `No connection: this page shows the state of ${freshAt ? clockInBothZones(freshAt) : "its last refresh"}.`);
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
    refresh();
  });
  addEventListener("popstate", refresh);

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
    if (event.target.id !== "dialog-body") return;  // a part of it: nobody's place is changed
    if (!dialog.open) dialog.showModal();
    const wrong = dialog.querySelector(".has-error :is(input, select)");
    (wrong ?? dialog.querySelector("#id_reason"))?.focus();
  });
  dialog?.addEventListener("close", () => {
    document.getElementById("dialog-body").replaceChildren();
    // The browser goes back to the link by itself, unless a refresh has replaced that meanwhile.
    namesakes(document.getElementById("main"), openedBy)[0]?.focus({ preventScroll: true });
  });
  dialog?.addEventListener("htmx:responseError", (event) => {
    toast(event.detail.xhr.status === 403 ? "This needs the admin role." : "The server could not answer; nothing was asked for.");
  });
  dialog?.addEventListener("htmx:sendError", () => toast("No connection: nothing was asked for."));

  body.addEventListener("requestStored", (event) => {
    dialog?.close();
    toast(event.detail.note);
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
