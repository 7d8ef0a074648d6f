"""Style sheet and script of a report, which are part of the page itself."""

STYLE = """
:root { color-scheme: light dark; --ground: light-dark(#fbfaf8, #16181d);
  --card: light-dark(#fff, #1e2127); --ink: light-dark(#22242a, #e6e7ea);
  --quiet: light-dark(#686c76, #9ba0ab); --line: light-dark(#e4e2dd, #32363f);
  --band: light-dark(#f3f1ec, #242831); --training: light-dark(#2b62b8, #74a7f2);
  --held-out: light-dark(#c8432b, #f08a6c); --guess: light-dark(#8a8d94, #8a8f9a);
  --abandoned: light-dark(#b8b4aa, #5d616b); --accent: light-dark(#2b62b8, #74a7f2); }
:root[data-theme=light] { color-scheme: light; }
:root[data-theme=dark] { color-scheme: dark; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 1.6rem 1.2rem 1rem; }
header { position: relative; }
h1 { margin: 0; font-size: 2rem; line-height: 1.2; overflow-wrap: anywhere; padding-right: 3rem; }
h2 { font-size: 1.15rem; margin: 2rem 0 .6rem; }
h3 { font-size: .95rem; margin: 0; }
header p { margin: .3rem 0; color: var(--quiet); }
.kind { text-transform: uppercase; letter-spacing: .08em; font-size: .75rem; }
.state { color: var(--ink) !important; font-weight: 600; }
progress { width: 100%; height: .5rem; accent-color: var(--accent); }
#theme { position: absolute; top: 0; right: 0; border: 1px solid var(--line); border-radius: 50%;
  width: 2.2rem; height: 2.2rem; background: var(--card); color: var(--ink); cursor: pointer; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: .8rem;
  margin: 1.2rem 0; }
.tile, .chart, .scroll, details { background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; }
.tile { padding: .7rem .9rem; display: flex; flex-direction: column; }
.tile span, .tile small { color: var(--quiet); font-size: .8rem; }
.tile b { font-size: 1.35rem; font-weight: 650; font-variant-numeric: tabular-nums; }
.notes { margin: 1rem 0; padding: .7rem 1rem .7rem 2rem; border-left: 3px solid var(--accent);
  background: var(--card); border-radius: 0 8px 8px 0; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1rem; }
.chart { margin: 0; padding: .9rem 1rem .6rem; min-width: 0; }
.wide, .chart:nth-child(odd):last-child, .chart:nth-child(odd):has(+ .wide) {
  grid-column: 1 / -1; }
figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: .2rem 1rem; }
.chart > p { margin: .2rem 0; color: var(--quiet); font-size: .82rem; }
.legend { display: flex; flex-wrap: wrap; gap: 0 .9rem; font-size: .8rem; color: var(--quiet);
  align-items: center; }
.key::before { content: ""; display: inline-block; width: 1.1em; height: 3px; border-radius: 2px;
  vertical-align: middle; margin-right: .4em; background: var(--training); }
.key.held-out::before { background: var(--held-out); }
.key.guess::before { background: var(--guess); }
.key.abandoned::before { background: var(--abandoned); }
.ramp { width: 110px; height: .7em; border-radius: 3px; margin: 0 .5em; }
.plot { position: relative; height: 230px; margin: 1.5rem .6rem 1.7rem 3.4rem;
  touch-action: pan-y; }
.plot svg, .plot img { position: absolute; inset: 0; width: 100%; height: 100%;
  overflow: visible; }
.plot img { image-rendering: pixelated; border-radius: 3px; }
.map .plot { margin-left: 9.2rem; }
.plot span { position: absolute; font-size: 11px; line-height: 1; color: var(--quiet);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
.plot .y { right: 100%; transform: translateY(-50%); padding-right: .5rem; }
.plot .x { top: 100%; transform: translateX(-50%); padding-top: .45rem; }
.plot .stage { bottom: 100%; transform: translateX(-50%); padding-bottom: .35rem; }
.plot .return { bottom: 100%; transform: translateX(-50%); padding-bottom: .2rem; font-size: 14px;
  color: var(--held-out); }
.band { fill: var(--band); }
.grid { stroke: var(--line); }
.mark { stroke: var(--held-out); stroke-dasharray: 4 4; }
.grid, .mark, .curve, .dots { fill: none; vector-effect: non-scaling-stroke; }
.curve { stroke: var(--training); stroke-width: 1.8; stroke-linejoin: round; }
.dots { stroke: var(--training); stroke-width: 6; stroke-linecap: round; }
.held-out { stroke: var(--held-out); }
.abandoned { stroke: var(--abandoned); }
.guess { stroke: var(--guess); stroke-dasharray: 5 4; stroke-width: 1.2; }
.pointer { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--quiet); }
.tip { position: absolute; z-index: 2; top: .3rem; background: var(--card); color: var(--ink);
  border: 1px solid var(--line); border-radius: 6px; padding: .25rem .5rem; font-size: 12px;
  pointer-events: none; white-space: nowrap; box-shadow: 0 2px 8px #0003; }
.scroll { overflow-x: auto; margin: .4rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .86rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .75rem; border-top: 1px solid var(--line); }
th:first-child, .words th, .words td { text-align: left; }
.numbers td { white-space: nowrap; }
thead th { border-top: 0; color: var(--quiet); font-weight: 550; white-space: nowrap; }
tbody th { font-weight: 550; white-space: nowrap; }
details { margin: .4rem 0; padding: .45rem .9rem; }
details .scroll { border: 0; }
details td { overflow-wrap: anywhere; }
summary { cursor: pointer; font-weight: 550; }
footer { max-width: 1180px; margin: 0 auto; padding: 1rem 1.2rem 2rem; color: var(--quiet);
  font-size: .8rem; }
@media (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr); }
  .map .plot { margin-left: 7.4rem; } .chart { padding: .8rem .7rem .5rem; }
  .plot { margin-left: 2.9rem; height: 200px; } h1 { font-size: 1.5rem; }
  .tile b { font-size: 1.15rem; } .words td { min-width: 9rem; } }
@media print { #theme { display: none; } .chart, section { break-inside: avoid; } }
"""

SCRIPT = """
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
"""
