// Shows moments in the viewer's zone, with UTC in the title (a sentence has both in its text), accepts
// input in that zone, and lets ages tick: on every page, and in content that is added to it later.
"use strict";

(() => {
  const TICK_MS = 250;
  const MINUTE_MS = 60_000;
  const CLOCK = ".clock[data-age-ms]";
  const MOMENT = "time[data-moment]";
  const SENTENCE = "option, [data-moments]:not(:has(*)), [data-moments] li"; // hold text only
  const INPUT = "input[type=datetime-local]"; // in UTC for the server; without this script, people type UTC
  const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const UTC_IN_TEXT = /(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC/g;

  function adopt(root) {
    const now = performance.now();
    for (const clock of within(root, CLOCK)) {
      clock.startedAt ??= now - Number(clock.dataset.ageMs); // a moved element keeps its age
    }
    for (const time of within(root, MOMENT)) {
      time.textContent = written(new Date(time.dateTime), time.dataset.moment);
    }
    for (const sentence of within(root, SENTENCE)) {
      sentence.dataset.said ??= sentence.textContent; // a moved element is not rewritten
      const text = sentence.dataset.said.replace(UTC_IN_TEXT, (utc, day, clock) => `${written(new Date(`${day}T${clock}Z`), "full")} (${utc})`);
      if (sentence.textContent !== text) sentence.textContent = text;
    }
    for (const input of within(root, INPUT)) takeInZone(input);
  }

  function takeInZone(input) {
    const given = new Date(`${input.defaultValue}Z`);
    if (!isNaN(given)) input.value = withoutZone(given - given.getTimezoneOffset() * MINUTE_MS);
    input.dataset.given = input.value;
    const help = document.getElementById(`${input.id}_helptext`);
    const tell = () => {
      help.textContent = input.value ? `${ZONE}; ${inUtc(input).replace("T", " ")} UTC` : ZONE;
    };
    input.addEventListener("input", tell);
    tell();
  }

  // An untouched value is sent back unchanged, even if it is in the second of two repeated hours.
  function inUtc(input) {
    if (input.value === input.dataset.given) return input.defaultValue;
    const date = new Date(input.value);
    return isNaN(date) ? input.value : withoutZone(date);
  }

  function withoutZone(moment) {
    return new Date(moment).toISOString().slice(0, 19);
  }

  function within(root, selector) {
    const inside = [...root.querySelectorAll(selector)];
    return root instanceof HTMLElement && root.matches(selector) ? [root, ...inside] : inside;
  }

  function written(date, style) {
    const clock = { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false };
    const isToday = date.toDateString() === new Date().toDateString();
    if (style === "clock" && isToday) return date.toLocaleTimeString([], clock);
    return date.toLocaleString([], { year: "numeric", month: "short", day: "numeric", ...clock });
  }

  function clockInBothZones(date) {
    return `${written(date, "clock")} (${date.toISOString().slice(11, 19)} UTC)`;
  }

  function age(milliseconds) {
    const seconds = Math.max(0, Math.floor(milliseconds / 1000));
    const two = (number) => String(number).padStart(2, "0");
    if (seconds < 60) return `${seconds} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${two(Math.floor((seconds % 3600) / 60))} min`;
    return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
  }

  function tick() {
    const now = performance.now();
    for (const clock of document.querySelectorAll(CLOCK)) {
      const ms = now - clock.startedAt;
      const text = age("isLeft" in clock.dataset ? -ms : ms);
      if (clock.textContent !== text) clock.textContent = text;
    }
  }

  // htmx swaps parts in by several ways; this observer sees each of them before it is painted.
  new MutationObserver((changes) => {
    for (const change of changes) {
      for (const node of change.addedNodes) {
        if (node instanceof HTMLElement) adopt(node);
      }
    }
  }).observe(document.body, { childList: true, subtree: true });

  document.addEventListener("formdata", (event) => {
    for (const input of event.target.querySelectorAll(INPUT)) {
      if (input.value) event.formData.set(input.name, inUtc(input));
    }
  });

  adopt(document);
  setInterval(tick, TICK_MS);
  window.ageInWords = age;
  window.clockInBothZones = clockInBothZones;
})();
