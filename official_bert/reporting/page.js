const root = document.documentElement;
document.getElementById("theme").onclick = () => {
  const dark = getComputedStyle(root).colorScheme === "dark" || (!root.dataset.theme
    && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "light" : "dark";
};
const nearest = (points, step) => points.reduce((best, point) =>
  Math.abs(point[0] - step) < Math.abs(best[0] - step) ? point : best);
const show = (plot, share, lines) => {
  const tip = plot.querySelector(".tip");
  tip.replaceChildren(...lines.map((line) => {
    const row = document.createElement("div");
    row.textContent = line;
    return row;
  }));
  tip.hidden = false;
  const left = share * plot.clientWidth;
  tip.style.left = `${Math.min(Math.max(0, left + 12), plot.clientWidth - tip.offsetWidth)}px`;
};
for (const figure of document.querySelectorAll("figure.chart")) {
  const data = JSON.parse(figure.querySelector("script").textContent);
  const plot = figure.querySelector(".plot");
  const pointer = plot.querySelector(".pointer");
  const at = (event) => {
    const box = plot.getBoundingClientRect();
    const part = (value, size) => Math.min(0.9999, Math.max(0, value / size));
    return [part(event.clientX - box.left, box.width), part(event.clientY - box.top, box.height)];
  };
  plot.addEventListener("pointermove", (event) => {
    const [across, down] = at(event);
    const step = across * data.last;
    if (data.rows) {
      const row = Math.floor(down * data.rows.length);
      const columns = data.values[row];
      const value = columns[Math.floor(across * columns.length)];
      show(plot, across, [data.rows[row], `step ${Math.round(step).toLocaleString("en")}: ${
        value === null ? "–" : value}`]);
      return;
    }
    const found = data.curves.map((curve) => [curve.name, nearest(curve.points, step)]);
    pointer.hidden = false;
    pointer.style.left = `${100 * across}%`;
    show(plot, across, found.map(([name, point]) =>
      `${name === "value" ? "" : `${name}, `}step ${point[0].toLocaleString("en")}: ${point[2]}`));
  });
  plot.addEventListener("pointerleave", () => {
    for (const shown of plot.querySelectorAll(".tip, .pointer")) shown.hidden = true;
  });
}
