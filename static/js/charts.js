// Draws the figures of a page with Plotly, again only when their values or the theme change.
//
// Values come as JSON beside each chart; "@name" in them is a colour of the style sheet. A chart
// under the pointer is left alone until the pointer has gone. When the window becomes wider or
// narrower all are drawn again: what Plotly does by itself then forgets how high they are.
"use strict";

(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, displaylogo: false, doubleClick: "reset" };
  const drawn = new WeakMap(); // chart -> the values it shows
  const [NARROW_PX, ROW_PX, SIGN_PX] = [480, 19, 60]; // of a legend
  const SETTLED_MS = 100; // a window is pulled in many steps
  let [width, pulled] = [innerWidth, 0];

  function draw(chart) {
    const values = document.getElementById(chart.dataset.values);
    const plot = chart.querySelector(".plot");
    const text = values ? values.textContent : "null";
    if (drawn.get(chart) === text) return;
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

  async function show(plot, { data, layout }) {
    const isNew = !plot.on;
    const height = layout.height + heightOfLegend(plot, data, layout);
    const width = plot.clientWidth || undefined; // said anew: drawn again, it keeps the one it had
    await Plotly.react(plot, data, { ...layout, width, height, uirevision: "kept", font: { ...layout.font, family: fontFamily() } }, config);
    timeAxes.fit(plot);
    if (isNew) plot.on("plotly_relayout", (change) => "xaxis.tickvals" in change || timeAxes.fit(plot)); // zoomed
  }

  // On a phone it has several rows, which would leave little of the drawing.
  function heightOfLegend(plot, data, { legend, showlegend }) {
    const named = data.filter((trace) => trace.name && trace.showlegend !== false).length;
    if (plot.clientWidth >= NARROW_PX || named < 2 || showlegend === false) return 0;
    const inRow = legend?.entrywidth ? Math.max(1, Math.floor(plot.clientWidth / (legend.entrywidth + SIGN_PX))) : 1;
    return (Math.ceil(named / inRow) - 1) * ROW_PX;
  }

  function colored(text) {
    const style = getComputedStyle(document.documentElement);
    return text.replace(/"@([a-z0-9-]+)"/g, (_, name) => JSON.stringify(style.getPropertyValue(`--${name}`).trim()));
  }

  function fontFamily() {
    return getComputedStyle(document.body).fontFamily;
  }

  function drawAll() {
    if (document.hidden) return;
    for (const chart of document.querySelectorAll(".chart")) draw(chart);
  }

  function drawAnew() {
    for (const chart of document.querySelectorAll(".chart")) drawn.delete(chart);
    drawAll();
  }

  for (const chart of document.querySelectorAll(".chart")) {
    chart.addEventListener("mouseleave", () => draw(chart));
  }
  document.body.addEventListener("htmx:afterRequest", drawAll);
  document.addEventListener("visibilitychange", drawAll);
  dark.addEventListener("change", drawAnew);
  window.addEventListener("resize", () => {
    if (innerWidth === width) return; // the bar of a phone's browser came or went
    width = innerWidth;
    clearTimeout(pulled);
    pulled = setTimeout(drawAnew, SETTLED_MS);
  });
  drawAll();
})();
