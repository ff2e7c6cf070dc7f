"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function paint(model, ink, quiet, line, grid) {
    if (model.type.endsWith("Axis")) {
      model.setv({axis_line_color: line, major_tick_line_color: line, major_label_text_color: quiet,
                  axis_label_text_color: quiet});
    } else if (model.type === "Grid") {
      model.setv({grid_line_color: grid});
    } else if (model.type === "Legend") {
      model.setv({label_text_color: ink, inactive_fill_color: colour("paper")});
    } else if (model.type === "ColorBar") {
      model.setv({major_label_text_color: quiet, background_fill_color: null, major_tick_line_color: null});
    }
  }

  function paintAll() {
    const colours = ["ink", "quiet", "line", "grid"].map(colour);
    for (const drawn of Bokeh.documents) {
      for (const root of drawn.roots()) {
        for (const model of root.references()) paint(model, ...colours);
      }
    }
  }

  async function draw() {
    const charts = JSON.parse(document.getElementById("charts").textContent);
    for (const chart of charts) {
      await Bokeh.embed.embed_item(chart);
      paintAll();
    }
    document.documentElement.dataset.charts = String(charts.length);
  }

  Bokeh.logger.set_level("error");
  dark.addEventListener("change", paintAll);
  draw();
})();
