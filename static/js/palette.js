// The command palette (Ctrl-K) and the keyboard shortcuts (listed by ?), on every page.
//
// The server finds the results, and checks who may act. The text field keeps the focus; the arrow keys
// choose among the results, and the field names the chosen one as its active descendant.
"use strict";

(() => {
  const palette = document.getElementById("palette");
  const text = document.getElementById("palette-text");
  const results = document.getElementById("palette-results");
  const shortcuts = document.getElementById("shortcuts");
  const singleKeys = document.getElementById("single-keys");
  const KEPT = "ftdash.single-keys";
  const GO_MS = 1500; // from g to the second key
  const places = { p: "fleet", i: "incidents", a: "alerts", e: "events" };
  let goAt = -Infinity;

  function open() {
    if (palette.open || document.querySelector("dialog[open]")) return;
    text.value = "";
    palette.showModal();
    htmx.trigger(text, "opened");
  }

  function options() {
    return [...results.querySelectorAll("[role=option]")];
  }

  function chosen() {
    return results.querySelector('[aria-selected="true"]');
  }

  function choose(option) {
    for (const each of options()) each.setAttribute("aria-selected", String(each === option));
    if (option) text.setAttribute("aria-activedescendant", option.id);
    else text.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  function move(by) {
    const all = options();
    if (all.length) choose(all[(all.indexOf(chosen()) + by + all.length) % all.length]);
  }

  results.addEventListener("htmx:afterSwap", () => choose(chosen()));
  results.addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) location.assign(option.dataset.address);
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter" && chosen()) location.assign(chosen().dataset.address);
    else return;
    event.preventDefault();
  });

  function isTyping(target) {
    return target.closest?.("input, select, textarea, [contenteditable]") !== null;
  }

  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      open();
    } else if (!event.ctrlKey && !event.metaKey && !event.altKey && singleKeys.checked && !isTyping(event.target)) {
      single(event);
    }
  });

  function single(event) {
    if (document.querySelector("dialog[open]")) return;
    const place = document.querySelector(`[data-place="${places[event.key]}"]`);
    const search = document.querySelector("main input[type=search]");
    if (event.key === "?") shortcuts.showModal();
    else if (event.key === "g") { goAt = event.timeStamp; return; }
    else if (event.key === "/" && search) search.focus();
    else if (place && event.timeStamp - goAt < GO_MS) location.assign(place.href);
    else return;
    event.preventDefault();
  }

  singleKeys.checked = localStorage.getItem(KEPT) !== "off";
  singleKeys.addEventListener("change", () => localStorage.setItem(KEPT, singleKeys.checked ? "on" : "off"));
  for (const button of document.querySelectorAll("[data-open-palette]")) {
    button.hidden = false; // it needs this script
    button.addEventListener("click", open);
  }
})();
