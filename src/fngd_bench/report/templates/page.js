"use strict";
// Draws the figures with the colours of the page, and again when a choice or the theme changes.
(() => {
  const root = document.documentElement;
  const blocks = JSON.parse(document.getElementById("figures").textContent);
  const system = matchMedia("(prefers-color-scheme: dark)");
  const byFinger = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true,
    displaylogo: false,
    // Named one by one, so that none of them wants the network.
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

  // What all plots have in common; it takes its colours from the style sheet.
  function template() {
    const text = colour("text"), muted = colour("muted"), clear = "rgba(0,0,0,0)";
    const axis = {
      automargin: true, gridcolor: colour("grid"), zerolinecolor: colour("line"), linecolor: colour("line"),
      tickfont: { color: muted, size: 11 }, title: { font: { color: muted, size: 12 }, standoff: 8 },
    };
    return {
      layout: {
        autosize: true, paper_bgcolor: clear, plot_bgcolor: clear, margin: { l: 44, r: 14, t: 14, b: 40 },
        font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
        title: { font: { size: 12, color: text }, x: 0.5, xanchor: "center", y: 0.98, yanchor: "top" },
        xaxis: axis, yaxis: axis,
        legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", font: { size: 11.5 } },
        hoverlabel: { bgcolor: colour("paper"), bordercolor: colour("line"), font: { color: text, size: 12 } },
        modebar: { bgcolor: clear, color: muted, activecolor: text },
        shapedefaults: { line: { color: muted } },
        annotationdefaults: { font: { color: muted, size: 11 } },
      },
      data: {
        heatmap: [{ colorbar: { thickness: 11, outlinewidth: 0, tickfont: { color: muted, size: 11 }, ticklen: 3 } }],
        bar: [{ error_x: { color: text }, textfont: { color: text } }],
      },
    };
  }

  const diverging = () => [[0, "#2b7bba"], [0.5, colour("paper")], [1, "#d55e00"]];

  // Number of the variant that the block's choices name: the last choice changes fastest.
  function chosen(block) {
    const selects = document.querySelectorAll(`select[data-block="${block.key}"]`);
    return block.choices.reduce((number, size, k) => number * size + Number(selects[k].value), 0);
  }

  // A legend of many rows makes the plot taller, not flatter. Margins follow the height, so this takes a few rounds.
  async function fit(place, data, layout, options) {
    const wanted = layout.height - 100;
    for (let round = 0; round < 4; round++) {
      await Plotly.react(place, data, layout, options);
      const lack = place.querySelector(".legend") ? wanted - place._fullLayout._size.h : 0;
      if (lack < 10) return;
      layout = { ...layout, height: layout.height + lack };
    }
  }

  async function draw(block) {
    const variant = chosen(block);
    const style = template();
    const places = document.querySelectorAll(`#${block.key} .plot`);
    for (const [k, place] of places.entries()) {
      const figure = structuredClone(block.variants[variant][k]);
      place.hidden = figure === undefined;
      if (place.hidden) continue;
      for (const trace of figure.data) if (trace.colorscale === "diverging") trace.colorscale = diverging();
      const layout = { ...figure.layout, template: style, height: block.height, uirevision: "kept" };
      // Hidden curves stay hidden; a zoom belongs to what was zoomed into.
      layout.yaxis = { ...layout.yaxis, uirevision: variant };
      layout.dragmode = byFinger ? false : "zoom";
      await fit(place, figure.data, layout, { ...config, displayModeBar: places.length > 1 ? false : "hover" });
    }
  }

  async function drawAll() {
    for (const block of blocks) {
      await draw(block);
      await new Promise((resume) => setTimeout(resume));
    }
    root.dataset.drawn = String(Number(root.dataset.drawn || 0) + 1);
  }

  const button = document.getElementById("theme");
  function label() {
    button.textContent = isDark() ? "Light page" : "Dark page";
  }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
    drawAll();
  });
  system.addEventListener("change", () => {
    label();
    drawAll();
  });
  document.addEventListener("change", (event) => {
    const key = event.target.dataset?.block;
    if (key) draw(blocks.find((block) => block.key === key));
  });
  let width = innerWidth, timer;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(timer);
    timer = setTimeout(drawAll, 250);
  });
  button.hidden = false;
  label();
  drawAll();
})();
