//! The style sheets of charts and pages.

/// The style sheet of charts, both as files and in the report.
pub const STYLE: &str = "\
.chart{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;--ink:#1f2328;\
--soft:#59636e;--grid:#d8dee4;--ground:#fff;--c0:#0072b2;--c1:#c24e00;--c2:#007a5a;--c3:#a4508b;\
--c4:#7d6608;--c5:#59636e}\
@media screen and (prefers-color-scheme:dark){.chart{--ink:#e6edf3;--soft:#9198a1;--grid:#30363d;\
--ground:#0d1117;--c0:#58a6ff;--c1:#ff9a56;--c2:#3fd29a;--c3:#e08fc5;--c4:#d9c04f;--c5:#9198a1}}\
.chart text{fill:var(--ink)}.chart .soft,\
.chart .soft text{fill:var(--soft)}.chart .grid{stroke:var(--grid)}\
.chart .ground{fill:var(--ground)}.chart .line{fill:none;stroke-width:2.5}\
.chart .dashed{stroke-dasharray:5 4;stroke-width:1.5}\
.chart .flat{stroke-width:1.2}.chart .dotted{stroke-dasharray:2 3}\
.chart .thin{fill:none;stroke-width:1.5}.chart .fine{fill:none;stroke-width:1}\
.chart .whisker{fill:none;stroke:var(--ink);stroke-width:1.5}\
.chart .mark{fill:var(--ground);stroke:var(--ink);stroke-width:1.8}\
.chart .s0{stroke:var(--c0)}.chart .s1{stroke:var(--c1)}.chart .s2{stroke:var(--c2)}\
.chart .s3{stroke:var(--c3)}.chart .s4{stroke:var(--c4)}.chart .s5{stroke:var(--c5)}\
.chart .f0{fill:var(--c0)}.chart .f1{fill:var(--c1)}.chart .f2{fill:var(--c2)}\
.chart .f3{fill:var(--c3)}.chart .f4{fill:var(--c4)}.chart .f5{fill:var(--c5)}";

/// The style sheet of pages with charts.
///
/// Paper shows what a screen hides: details that are closed, and what a screen scrolls.
pub const PAGE_STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d8dee4;--ground:#fff;\
--panel:#f6f8fa;--good:#1a7f37;--bad:#cf222e;--open:#9a6700;--accent:#0072b2}\
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#30363d;\
--ground:#0d1117;--panel:#161b22;--good:#3fb950;--bad:#f85149;--open:#d29922;--accent:#58a6ff}}\
*{box-sizing:border-box}a{color:var(--accent)}\
body{margin:0;background:var(--ground);color:var(--ink);\
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
main{max-width:1180px;margin:0 auto;padding:24px 20px 64px}h1{font-size:1.9rem;line-height:1.2;\
margin:.2em 0}h2{margin:2em 0 .4em;font-size:1.35rem}h3{margin:1.2em 0 .2em;font-size:1.05rem}\
p,li{max-width:74ch;overflow-wrap:break-word}.soft{color:var(--soft)}.tiles{display:grid;gap:12px;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,250px),1fr));margin:20px 0}\
.tile{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:12px 16px}\
.tile b{display:block;font-size:1.8rem;line-height:1.25}.figures{display:grid;gap:20px;\
grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}figure{margin:0;\
border:1px solid var(--line);border-radius:8px;padding:12px;min-width:0}\
figure svg{width:100%;max-width:540px;height:auto;display:block;margin:0 auto}\
figcaption{color:var(--soft);font-size:.92rem;margin-top:6px;overflow-wrap:break-word}\
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.92rem;margin:.6em 0}\
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);\
vertical-align:top}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;\
white-space:nowrap}.good,.bad,.open{font-weight:600;white-space:nowrap}.good{color:var(--good)}\
.bad{color:var(--bad)}.open{color:var(--open)}\
pre{background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:10px 14px;\
overflow-x:auto}details{margin:.4em 0}summary{cursor:pointer}\
.verdict{border-left:4px solid var(--good);padding:2px 0 2px 14px;font-size:1.1rem}\
.verdict.failed{border-color:var(--bad)}.verdict.open{border-color:var(--open);color:inherit;\
font-weight:inherit;white-space:normal}\
figcaption ul{list-style:none;margin:.4em 0 0;padding:0}\
figcaption li{margin:.2em 0;color:var(--ink)}.dense{font-size:.85rem}.dense th,\
.dense td{padding-right:8px}.attacked td:nth-child(n+4){text-align:right;\
font-variant-numeric:tabular-nums}\
@media(max-width:640px){main{padding:16px 12px 48px}figure{padding:8px}h1{font-size:1.6rem}\
.cards thead,.cards>tbody>tr:first-child:has(th){display:none}.cards,.cards tbody,.cards tr,\
.cards td{display:block}.cards tr{border-bottom:1px solid var(--line);padding:8px 0}\
.cards td,.cards td.n{border:0;padding:1px 0;text-align:left;white-space:normal}\
.cards td:empty{display:none}\
.cards td[data-label]::before{content:attr(data-label) ': ';color:var(--soft)}}\
@media print{main{max-width:none;padding:0}.scroll,pre{overflow:visible}pre{white-space:pre-wrap}\
html,body{font-size:11px}h1{font-size:20px}h2{font-size:15px;break-after:avoid}\
figure,tr,.tile{break-inside:avoid}thead{display:table-header-group}\
.figures{grid-template-columns:1fr 1fr}.tiles{grid-template-columns:repeat(4,1fr)}\
.tile b{font-size:18px}td.n,th.n{white-space:normal}\
details::details-content{content-visibility:visible;display:block;height:auto}\
summary{list-style:none;font-weight:600}}";
