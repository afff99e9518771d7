"""The style of the report's page. Light or dark as the reader's system is."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1d2430; --soft: #5d6878; --faint: #98a2b0;
  --rule: #e4e8ee; --wash: #f3f5f8; --s1: #3667d6; --s2: #1f9d6b; --s3: #d9822b; --s4: #c8385a;
  --s5: #8457c9; --good: #1f9d6b; --bad: #c8385a; --warn: #b86b12; }
@media (prefers-color-scheme: dark) { :root {
  --page: #14181f; --card: #1c222b; --ink: #e6eaf0; --soft: #a3adba; --faint: #6d7785;
  --rule: #2d3541; --wash: #232a35; --s1: #7ea2f5; --s2: #4fc794; --s3: #eda65a; --s4: #ee7390;
  --s5: #b594ec; --good: #4fc794; --bad: #ee7390; --warn: #eda65a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 19px; margin: 0 0 4px; letter-spacing: -0.005em; }
h3 { font-size: 14px; margin: 22px 0 6px; color: var(--soft); }
p { margin: 0 0 14px; } .lead { color: var(--soft); max-width: 76ch; }
.time { white-space: nowrap; }
header { margin-bottom: 26px; } header .lead { margin: 0; }
nav { display: flex; flex-wrap: wrap; gap: 6px 8px; margin: 0 0 20px; }
nav a { color: var(--soft); text-decoration: none; font-size: 13px; padding: 3px 11px;
  border: 1px solid var(--rule); border-radius: 99px; background: var(--card); }
nav a:hover, nav a:focus-visible { color: var(--ink); border-color: var(--faint); }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 24px 28px 26px; margin: 0 0 20px; scroll-margin-top: 12px; }
.verdict { border-radius: 12px; padding: 16px 22px; margin: 0 0 16px; background: var(--card);
  border: 1px solid var(--rule); border-left: 6px solid currentColor; }
.verdict > b { font-size: 20px; } .verdict ul { margin: 8px 0 0; padding-left: 20px; }
.verdict li { color: var(--ink); margin: 2px 0; overflow-wrap: anywhere; }
#window { position: sticky; top: 8px; z-index: 1; background: var(--card); border-radius: 8px;
  padding: 8px 14px; border: 1px solid var(--faint); }
#window button { font: inherit; margin-left: 10px; cursor: pointer; }
svg.time { cursor: crosshair; touch-action: pan-y; user-select: none; }
.pane path { vector-effect: non-scaling-stroke; } .brush { fill: var(--s1); fill-opacity: .15; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 0 0 20px; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  padding: 14px 18px 13px; }
.tile b { display: block; font-size: 24px; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px;
  font-variant-numeric: tabular-nums; margin-top: 14px; }
th { color: var(--soft); font-weight: 550; text-align: right; padding: 6px 12px;
  border-bottom: 1px solid var(--rule); white-space: nowrap; }
td { text-align: right; padding: 6px 12px; border-bottom: 1px solid var(--rule);
  white-space: nowrap; } tr:last-child td { border-bottom: 0; }
th.text, td.text { text-align: left; } td.text { white-space: normal; overflow-wrap: break-word;
  min-width: 11em; }
tbody tr:hover { background: var(--wash); }
.chip { display: inline-block; padding: 0 9px; border-radius: 99px; font-size: 12.5px;
  border: 1px solid currentColor; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
.none { color: var(--soft); background: var(--wash); border-radius: 8px; padding: 10px 14px;
  margin: 12px 0 0; }
details { margin-top: 10px; } summary { cursor: pointer; color: var(--soft); font-size: 13.5px; }
.legend { color: var(--soft); font-size: 13px; margin: 10px 0 4px; }
.k { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin: 0 7px -1px 0; }
.k:not(:first-child) { margin-left: 20px; }
.k.s1 { background: var(--s1); } .k.s2 { background: var(--s2); } .k.s3 { background: var(--s3); }
.k.s4 { background: var(--s4); } .k.s5 { background: var(--s5); }
.k.dot { border-radius: 50%; background: var(--s1); } .k.small { transform: scale(.6); }
.k.dot.small { background: var(--faint); } .k.b90 { background: var(--s1); opacity: .55; }
.k.b99 { background: var(--s1); opacity: .25; }
svg { display: block; width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg .label { text-anchor: end; } svg .tick { text-anchor: middle; } svg .value { fill: var(--ink); }
.grid { stroke: var(--rule); } .axis { stroke: var(--faint); stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.line.area { fill-opacity: .13; }
.line.s1 { stroke: var(--s1); } .line.s2 { stroke: var(--s2); } .line.s3 { stroke: var(--s3); }
.line.s4 { stroke: var(--s4); } .line.s5 { stroke: var(--s5); }
.line.area.s1 { fill: var(--s1); } .line.area.s2 { fill: var(--s2); }
.hover { fill: transparent; } .hover:hover { fill: var(--ink); fill-opacity: .05; }
.bar.s1 { fill: var(--s1); } .bar.s2 { fill: var(--s2); } .bar.s3 { fill: var(--s3); }
.bar.s4 { fill: var(--s4); } .bar.s5 { fill: var(--s5); }
.whisker { stroke: var(--faint); stroke-width: 1.5; stroke-dasharray: 2 3; }
.longest { fill: var(--faint); } .p99 { fill: var(--s1); opacity: .25; }
.p90 { fill: var(--s1); opacity: .45; }
.p50 { fill: var(--s1); stroke: var(--card); stroke-width: 2; }
.way { stroke: var(--faint); fill: none; } .round { stroke: var(--bad); fill: none; }
.tip.way { fill: var(--faint); stroke: none; } .tip.round { fill: var(--bad); stroke: none; }
.node { fill: var(--wash); stroke: var(--faint); } .node.round { fill: var(--wash);
  stroke: var(--bad); stroke-width: 1.8; } svg .name { text-anchor: middle; fill: var(--ink);
  font-weight: 600; } svg .dropped { fill: var(--warn); }
.flag rect { fill: var(--card); stroke: var(--rule); } .flag text { text-anchor: middle;
  stroke: none; font-size: 11.5px; } .flag.round rect { stroke: var(--bad); fill: var(--card); }
.flag.round text { fill: var(--bad); }
.topics { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr));
  gap: 18px 26px; margin-top: 16px; }
.topic b { font-weight: 600; } .topic .figures { color: var(--soft); font-size: 13px; }
.topic p { margin: 0 0 6px; overflow-wrap: anywhere; }
footer { color: var(--faint); font-size: 13px; text-align: center; margin-top: 30px; }
@media print { body { background: #fff; } section { break-inside: avoid; } nav { display: none; } }
""".strip()
