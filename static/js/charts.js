// Draws the figures of a page with Plotly, and redraws them only when their values or the theme change.
//
// Values come as JSON next to each chart; "@name" in them is a colour of the style sheet. A chart
// under the pointer is not redrawn until the pointer has left it, and one that is far out of sight is
// not drawn until it comes near, or is printed: drawing takes most of the time that a page needs. All
// time axes of a page show one range. When the width of the window changes, all charts are redrawn,
// because Plotly's own resizing forgets how high they are.
"use strict";

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, displaylogo: false, doubleClick: false };
  const drawn = new WeakMap(); // chart -> the values it shows
  const reserved = new WeakMap(); // chart that is not drawn yet -> the values whose height it has
  const near = new WeakSet(); // charts in sight, or less than half a window away
  const family = getComputedStyle(document.body).fontFamily;
  const colors = new Map(); // name -> value in the current colour scheme
  const [NARROW_PX, ROW_PX, SIGN_PX] = [480, 19, 60]; // of a legend
  const SETTLED_MS = 100; // resizing a window fires many events
  let [width, pulled] = [innerWidth, 0];
  let zoomedOut = 1; // a new number, or 0, makes Plotly forget the zoom

  function draw(chart, { evenFar = false } = {}) {
    const values = document.getElementById(chart.dataset.values);
    const plot = chart.querySelector(".plot");
    const text = values ? values.textContent : "null";
    if (drawn.get(chart) === text) return;
    const isDrawn = Boolean(plot.on);
    const mayWait = !isDrawn || drawn.has(chart); // unless all are drawn anew, as for another width
    if (!near.has(chart) && !evenFar && mayWait) {
      if (!isDrawn) reserve(chart, plot, text);
      return;
    }
    if (chart.matches(":hover") && drawn.has(chart)) {
      chart.classList.add("is-held");
      return;
    }
    chart.classList.remove("is-held");
    drawn.set(chart, text);
    const figure = JSON.parse(colored(text));
    plot.hidden = figure === null;
    if (figure === null) Plotly.purge(plot);
    else show(plot, timeAxes.readable(figure));
  }

  // Nothing moves when the chart is drawn later.
  function reserve(chart, plot, text) {
    if (reserved.get(chart) === text) return;
    reserved.set(chart, text);
    const figure = JSON.parse(text);
    plot.hidden = figure === null;
    if (figure) plot.style.minHeight = `${heightOf(plot, figure)}px`;
  }

  // --- one range for all time axes, chosen or zoomed to; the address keeps it, so a link shows it too

  const picker = document.getElementById("time-range");

  function chosenRange() {
    const address = new URLSearchParams(location.search);
    const [from, to, last] = ["from", "to", "last"].map((name) => Number(address.get(name)) || 0);
    if (from && to > from) return [from, to];
    const now = Date.parse(document.getElementById("pulse")?.dataset.now); // the server's clock
    return last && now ? [now - last * 1000, now] : null;
  }

  function keepRange(changes) {
    const address = new URL(location.href);
    for (const name of ["from", "to", "last"]) address.searchParams.delete(name);
    for (const [name, value] of Object.entries(changes)) address.searchParams.set(name, value);
    history.replaceState(null, "", address);
    showChoice();
    drawAnew();
  }

  function showChoice() {
    if (!picker) return;
    const address = new URLSearchParams(location.search);
    picker.closest("label").hidden = false; // it needs this script
    picker.value = address.has("from") ? "chosen" : address.get("last") ?? "";
  }

  // Gives a colleague the same moment, even tomorrow: "last 5 min" becomes an absolute range.
  const copier = document.getElementById("copy-moment");
  if (copier) copier.hidden = false; // it needs this script

  function shownRange() {
    const plots = [...document.querySelectorAll(".js-plotly-plot")].filter((plot) => plot.layout?.xaxis?.type === "date");
    return chosenRange() ?? plots[0]?.layout.xaxis.range.map(timeAxes.instant);
  }

  copier?.addEventListener("click", async () => {
    const said = document.getElementById("copied-moment");
    const range = shownRange();
    if (!range) {
      said.textContent = "There is no chart with a time axis yet.";
      return;
    }
    keepRange({ from: Math.round(range[0]), to: Math.round(range[1]) });
    try {
      await navigator.clipboard.writeText(location.href);
      said.textContent = "Copied.";
    } catch { // without HTTPS, browsers offer no clipboard
      said.textContent = "The address of this page is the link; copy it from there.";
    }
  });

  picker?.addEventListener("change", () => keepRange(picker.value ? { last: picker.value } : {}));
  addEventListener("popstate", () => { showChoice(); drawAnew(); });

  // When a person zooms one chart in or out, the others follow.
  function zoomed(plot, change) {
    if (plot.layout.xaxis.type !== "date") return;
    if ("xaxis.range[0]" in change) {
      const [from, to] = plot.layout.xaxis.range.map(timeAxes.instant);
      keepRange({ from: Math.round(from), to: Math.round(to) });
    }
  }

  // The browser decides if two presses are a double click: Plotly looks at the clock when it handles
  // the second one, which is late on a busy page.
  function zoomOutAfter(press, plot) {
    if (press.detail !== 2 || !press.target.closest(".nsewdrag")) return;
    addEventListener("mouseup", () => {
      zoomedOut += 1;
      if (plot.layout.xaxis.type === "date") keepRange({});
      else drawAnew();
    }, { once: true });
  }

  // Marks each deploy and each change with a line; the hover label and the text say what it was.
  // A run starts just before its first report, so marks from shortly before a chart begins count too.
  const SHORTLY_MS = 10_000;
  const SHORTLY = 0.05; // of the time that a chart shows

  function withMarks(data, layout, range) {
    const [from, to] = range ?? layout.xaxis.range?.map((at) => Date.parse(at)) ?? timesOf(data);
    const since = range ? from : from - Math.max(SHORTLY_MS, SHORTLY * (to - from));
    const marks = [...document.querySelectorAll("#region-marks [data-mark]")]
      .map((each) => ({ text: each.dataset.mark, at: Date.parse(each.querySelector("time").dateTime) }))
      .filter(({ at }) => at >= since && at <= to);
    const line = JSON.parse(colored('{"color":"@accent","width":1,"dash":"dot"}'));
    return {
      ...layout,
      shapes: [...(layout.shapes ?? []), ...marks.map(({ at }) => ({ type: "line", x0: timeAxes.utc(at), x1: timeAxes.utc(at), y0: 0, y1: 1, yref: "paper", line }))],
      annotations: [...(layout.annotations ?? []), ...marks.map(({ at, text }) => ({ x: timeAxes.utc(at), y: 1, yref: "paper", yanchor: "top", text: "▾", hovertext: escaped(text), showarrow: false, font: { color: line.color } }))],
    };
  }

  // Returns the first and the last time; for a chart without times, a range that contains nothing.
  function timesOf(data) {
    const times = data.flatMap((trace) => trace.x ?? []).filter(Boolean).map((at) => Date.parse(at));
    return [times.reduce((a, b) => Math.min(a, b), Infinity), times.reduce((a, b) => Math.max(a, b), -Infinity)];
  }

  function escaped(text) {
    return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  }

  function withZoom(layout) {
    const axes = Object.entries(layout).filter(([name]) => /^[xy]axis/.test(name));
    return { ...layout, ...Object.fromEntries(axes.map(([name, axis]) => [name, { ...axis, uirevision: zoomedOut }])) };
  }

  function onTime(plot, data, layout) {
    if (layout.xaxis?.type !== "date") return layout;
    const range = chosenRange();
    const chosen = range ? { range: range.map(timeAxes.utc), autorange: false } : {};
    const xaxis = { ...timeAxes.withTicks(layout.xaxis, plot), ...chosen, uirevision: `${zoomedOut} ${location.search}` };
    return { ...withMarks(data, layout, range), xaxis };
  }

  async function show(plot, { data, layout: sent }) {
    const isNew = !plot.on;
    const layout = onTime(plot, data, withZoom(sent));
    const height = heightOf(plot, { data, layout });
    plot.style.minHeight = "";
    const width = plot.clientWidth || undefined; // set again: a redrawn chart keeps its old width
    await Plotly.react(plot, data, { ...layout, width, height, uirevision: "kept", font: { ...layout.font, family } }, config);
    timeAxes.fit(plot);
    if (!isNew) return;
    plot.addEventListener("mousedown", (press) => zoomOutAfter(press, plot), true);
    plot.on("plotly_relayout", (change) => {
      if ("xaxis.tickvals" in change) return; // set by timeAxes.fit, not by a person
      timeAxes.fit(plot);
      zoomed(plot, change);
    });
  }

  function heightOf(plot, { data, layout }) {
    return layout.height + heightOfLegend(plot, data, layout);
  }

  // On a phone the legend has several rows, which would leave little room for the drawing.
  function heightOfLegend(plot, data, { legend, showlegend }) {
    const named = data.filter((trace) => trace.name && trace.showlegend !== false).length;
    if (named < 2 || showlegend === false || plot.clientWidth >= NARROW_PX) return 0;
    const inRow = legend?.entrywidth ? Math.max(1, Math.floor(plot.clientWidth / (legend.entrywidth + SIGN_PX))) : 1;
    return (Math.ceil(named / inRow) - 1) * ROW_PX;
  }

  function colored(text) {
    return text.replace(/"@([a-z0-9-]+)"/g, (_, name) => JSON.stringify(colorOf(name)));
  }

  // Reading one style makes the browser compute all styles, so each is read once.
  function colorOf(name) {
    if (!colors.has(name)) {
      colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim());
    }
    return colors.get(name);
  }

  function drawAll() {
    if (document.hidden) return;
    for (const chart of document.querySelectorAll(".chart")) draw(chart);
  }

  function drawAnew() {
    for (const chart of document.querySelectorAll(".chart")) {
      drawn.delete(chart);
      reserved.delete(chart);
    }
    drawAll();
  }

  const sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) near.delete(target);
      else {
        near.add(target);
        draw(target);
      }
    }
  }, { rootMargin: "50% 0px" });
  for (const chart of document.querySelectorAll(".chart")) {
    chart.addEventListener("mouseleave", () => draw(chart));
    sight.observe(chart);
  }
  document.body.addEventListener("htmx:afterRequest", drawAll);
  document.addEventListener("visibilitychange", drawAll);
  window.addEventListener("beforeprint", () => {
    for (const chart of document.querySelectorAll(".chart")) draw(chart, { evenFar: true });
  });
  dark.addEventListener("change", () => {
    colors.clear();
    drawAnew();
  });
  window.addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's browser showed or hid its bar
    width = innerWidth;
    clearTimeout(pulled);
    pulled = setTimeout(drawAnew, SETTLED_MS);
  });
  showChoice();
  drawAll();
})();
