// The time axes of charts in the viewer's zone: round times of that zone at the ticks, its name below.
//
// Plotly knows no zones. It draws instants as UTC, so that all hours are equally long, even when clocks
// are set back. This script writes the labels of the ticks and of the point under the cursor.
"use strict";

window.timeAxes = (() => {
  const [SECOND, MINUTE, HOUR, DAY] = [1_000, 60_000, 3_600_000, 86_400_000];
  const STEPS = [
    ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
    ...[1, 2, 5, 10, 15, 30].map((count) => count * SECOND),
    ...[1, 2, 5, 10, 15, 30].map((count) => count * MINUTE),
    ...[1, 2, 3, 6, 12].map((count) => count * HOUR),
    ...[1, 2, 4, 7, 14, 28, 56, 112, 224, 448].map((count) => count * DAY),
  ];
  const OFFSETS = 15 * MINUTE; // zone offsets and clock changes are multiples of it
  const TICK_PX = 80;
  const TICKS_MAX = 8;
  const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

  // Instants as Plotly reads them, each with the viewer's local time as `text` for hovers.
  function readable(figure) {
    for (const letter of ["x", "y"]) {
      const axis = figure.layout[`${letter}axis`];
      if (axis?.type !== "date") continue;
      if (axis.range) axis.range = axis.range.map(utc);
      for (const trace of figure.data) {
        if (letter === "x") trace.text = trace.x.map(local);
        trace[letter] = trace[letter].map(utc);
      }
    }
    return figure;
  }

  // Call it once a chart is drawn: the range depends on the data, or on how far a person has zoomed in.
  function fit(plot) {
    const axis = plot.layout.xaxis;
    if (axis.type !== "date") return;
    const [from, to] = axis.range.map(instant);
    const room = Math.min(TICKS_MAX, plot.clientWidth / TICK_PX);
    const step = STEPS.find((each) => (to - from) / each <= room) ?? STEPS.at(-1);
    const at = ticks(from, to, step);
    const [vals, text, named] = [at.map(utc), labels(at, step), title(from, to)];
    if (same([axis.tickvals, axis.ticktext, axis.title?.text], [vals, text, named])) return;
    Plotly.relayout(plot, { "xaxis.tickmode": "array", "xaxis.tickvals": vals, "xaxis.ticktext": text, "xaxis.title.text": named });
  }

  // Returns the axis with the ticks that the chart has now: often they fit new values too, and the
  // chart is drawn once.
  function withTicks(axis, plot) {
    const now = plot.layout?.xaxis;
    if (!now?.tickvals) return axis;
    return { ...axis, tickmode: "array", tickvals: now.tickvals, ticktext: now.ticktext, title: { ...axis.title, text: now.title.text } };
  }

  function same(one, other) {
    return JSON.stringify(one) === JSON.stringify(other);
  }

  // Returns when the viewer's clock shows a multiple of `step`, even on a day of 23 or 25 hours.
  function ticks(from, to, step) {
    const stride = Math.min(step, OFFSETS);
    const found = [];
    for (let at = Math.ceil(wall(from) / stride) * stride - ahead(from); at <= to; at += stride) {
      if (wall(at) % step === 0) found.push(at);
    }
    return found;
  }

  // Adds the day, or the year, only where it differs from that of the previous tick.
  function labels(at, step) {
    const clock = { hour: "2-digit", minute: "2-digit", hour12: false };
    if (step < MINUTE) clock.second = "2-digit";
    if (step < SECOND) clock.fractionalSecondDigits = 3;
    const day = { month: "short", day: "numeric" };
    const year = { year: "numeric" };
    const [fine, coarse] = (step < DAY ? [clock, { ...day, ...year }] : [day, year]).map((style) => new Intl.DateTimeFormat([], style));
    const whole = at.map((each) => coarse.format(each));
    return at.map((each, index) => fine.format(each) + (whole[index] === whole[index - 1] ? "" : `<br>${whole[index]}`));
  }

  function title(from, to) {
    const style = new Intl.DateTimeFormat("en", { timeZoneName: "longOffset" });
    const offsets = [from, to].map((at) => style.formatToParts(at).find((part) => part.type === "timeZoneName").value.replace("GMT", "UTC").replace("+00:00", ""));
    return `time, ${[...new Set([ZONE, [...new Set(offsets)].join(", then ")])].join(", ")}`;
  }

  function utc(at) {
    return at === null ? null : new Date(at).toISOString();
  }

  function local(at) {
    return at === null ? "" : new Date(wall(at)).toISOString();
  }

  // Plotly writes ranges as `2026-11-22 07:00:05.25`, and leaves out trailing zeros.
  function instant(written) {
    const [year, month, day, hour = 0, minute = 0, second = 0] = written.split(/[^\d.]/).map(Number);
    return Date.UTC(year, month - 1, day, hour, minute) + second * SECOND;
  }

  function wall(at) {
    return at + ahead(at);
  }

  function ahead(at) {
    return -new Date(at).getTimezoneOffset() * MINUTE;
  }

  return { readable, fit, withTicks, utc, instant };
})();
