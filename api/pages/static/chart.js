// Plotly, loaded when the first chart is drawn, from this server.

import { colour } from "./dom.js";

let loading = null;

function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "/static/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("the charts' script could not be loaded"));
    document.head.append(script);
  });
  return loading;
}

const axis = (given) => ({
  gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"),
  automargin: true, fixedrange: true, ...given,
});

/** Draw into `place`, a .chart element; drawn again, it keeps its size. */
export async function draw(place, traces, layout = {}) {
  const Plotly = await plotly();
  if (!place.isConnected) return;
  const { xaxis = {}, yaxis = {}, ...rest } = layout;
  await Plotly.react(place, traces, {
    margin: { l: 46, r: 8, t: 6, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11, color: colour("ink") },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 10 } },
    hoverlabel: { bgcolor: colour("panel"), bordercolor: colour("line"), font: { color: colour("ink") } },
    bargap: 0.15, ...rest, xaxis: axis(xaxis), yaxis: axis(yaxis),
  }, { displayModeBar: false, responsive: true });
}

/** Call `act(point)` for a click in a chart that was drawn. */
export function onClick(place, act) {
  place.removeAllListeners?.("plotly_click");
  place.on?.("plotly_click", (event) => act(event.points[0]));
}
