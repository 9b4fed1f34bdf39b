const figures = JSON.parse(document.getElementById("figures").textContent);
const settings = { responsive: true, displaylogo: false, displayModeBar: false };
for (const [name, figure] of Object.entries(figures)) {
  const place = document.getElementById("chart_" + name);
  Plotly.newPlot(place, figure.data, figure.layout, settings).then(() => {
    place.on("plotly_click", (event) => {
      const point = event.points[0];
      if (point.data.meta === "pairs") { window.location.hash = "pair_" + point.pointNumber; }
    });
  });
}
