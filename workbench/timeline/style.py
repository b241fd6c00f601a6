"""Colours and style sheets. A test computes the contrast of every text from these values."""

from __future__ import annotations

LIGHT = {
    "bg": "#fcfcfb",
    "ink": "#1b2129",
    "mut": "#56606d",
    "rule": "#e6e6e2",
    "axis": "#8b94a0",
    "blue": "#1b5ca8",
    "blue2": "#dbe8f7",
    "vio": "#6d3d98",
    "vio2": "#f0e8f7",
    "vio3": "#dcc9ec",
    "grn": "#08694e",
    "grn2": "#dff1ea",
    "bad": "#a83a08",
    "unk": "#fbeee2",
    "q": "#ececea",
    "tag": "#ffffff",
}
DARK = {
    "bg": "#12161b",
    "ink": "#e8ebef",
    "mut": "#a3aebb",
    "rule": "#252c35",
    "axis": "#6c7784",
    "blue": "#7db4f2",
    "blue2": "#1c324b",
    "vio": "#c6a1ea",
    "vio2": "#281f33",
    "vio3": "#463258",
    "grn": "#5fd0a8",
    "grn2": "#12352b",
    "bad": "#ff9b62",
    "unk": "#2b2017",
    "q": "#242b33",
    "tag": "#12161b",
}
FONT = '"Segoe UI",Roboto,"Helvetica Neue",Helvetica,Arial,"Liberation Sans",system-ui,sans-serif'
MONO = 'ui-monospace,"SF Mono",Menlo,Consolas,"Liberation Mono",monospace'

# Which text class stands on which backgrounds; (class, colour, backgrounds).
TEXTS = (
    ("text", "ink", ("bg",)),
    ("lane", "ink", ("bg",)),
    ("sub", "mut", ("bg",)),
    ("nt", "mut", ("bg", "unk", "blue2")),
    ("nt bad", "bad", ("bg", "unk", "blue2")),
    ("nt ok2", "grn", ("bg", "unk")),
    ("ax", "mut", ("bg",)),
    ("ax b", "ink", ("bg",)),
    ("ax b bad", "bad", ("bg",)),
    ("clk", "ink", ("bg",)),
    ("mk", "ink", ("bg", "unk")),
    ("mk ok", "grn", ("bg", "unk")),
    ("mk bad", "bad", ("bg", "unk")),
    ("st q", "mut", ("q",)),
    ("st r", "blue", ("blue2",)),
    ("st w", "vio", ("vio2",)),
    ("st k", "bad", ("bg",)),
    ("st ok", "grn", ("grn2",)),
    ("st x2", "bad", ("unk",)),
    ("in", "mut", ("vio2",)),
    ("in s", "ink", ("vio3",)),
    ("wallt", "mut", ("bg",)),
    ("id", "mut", ("bg",)),
    ("h", "ink", ("bg",)),
    ("fact", "mut", ("bg",)),
    ("key", "mut", ("bg",)),
    ("bt", "ink", ("bg",)),
    ("bt u", "bad", ("unk", "bg")),
)

SVG_RULES = """
text{fill:var(--ink);font-size:12.5px}.lane{font-weight:650;font-size:13.5px}
.sub,.nt{fill:var(--mut);font-size:12px}.ax{fill:var(--mut);font-size:11px}
.ax.b{fill:var(--ink);font-weight:650}.clk{font-size:11px;font-variant-numeric:tabular-nums}
.mk{font-weight:600;font-size:12px}.m{font-family:MONO;font-size:11px}
.mk,.nt{paint-order:stroke;stroke:var(--bg);stroke-width:3px;stroke-linejoin:round}
.hu{paint-order:stroke;stroke-opacity:.85}
.nt.ok2,.mk.ok{fill:var(--grn)}.mk.bad,.nt.bad,.ax.bad{fill:var(--bad)}
.iso{unicode-bidi:isolate}
.bg{fill:var(--bg)}.rule{stroke:var(--rule)}.axis,.tick{stroke:var(--axis)}
.tick.dash{stroke-dasharray:2 2}.guide{stroke:var(--rule);stroke-opacity:.75}
.guide.dash{stroke-dasharray:2 4}.brk{stroke:var(--axis);fill:none;stroke-width:1.3}
.s{fill:var(--q)}.s.r{fill:var(--blue2)}.s.w{fill:var(--vio2)}
.s.k{fill:var(--bg);stroke:var(--bad)}.s.ok{fill:var(--grn2)}
.st{font-size:11px;fill:var(--mut)}.st.r{fill:var(--blue)}.st.w{fill:var(--vio)}
.st.k{fill:var(--bad)}.st.ok{fill:var(--grn);font-weight:650}
.st.x2{fill:var(--bad);font-weight:600;paint-order:stroke;stroke:var(--unk);stroke-width:5px;
stroke-linejoin:round}
.lease{fill:var(--blue2);stroke:var(--blue);stroke-width:1.2}
.runs{fill:none;stroke:var(--blue);stroke-width:1.2;stroke-dasharray:4 3}
.dead{fill:url(#tl-hatch);stroke:var(--bad);stroke-width:1.2;stroke-dasharray:4 3}
.dead2{fill:url(#tl-hatch)}.hat{fill:var(--unk)}
.hl{stroke:var(--bad);stroke-width:1.1;stroke-opacity:.75}
.cp{fill:var(--blue)}.qm{fill:var(--bad)}.rt{fill:var(--mut)}.sb{fill:var(--bad)}
.sq{fill:var(--mut)}
.ck{fill:none;stroke:var(--tag);stroke-width:1.8;stroke-linecap:round;stroke-linejoin:round}
.ck.thin{stroke-width:1.4}.dp{fill:var(--ink);stroke:var(--bg);stroke-width:1.5}
.renew{stroke:var(--blue);stroke-width:1.6}
.x{stroke:var(--bad);stroke-width:3;stroke-linecap:round;fill:none}
.gap{stroke:var(--bad);stroke-width:1.6;stroke-dasharray:1.5 5;stroke-linecap:round}
.apw{fill:var(--vio2);stroke:var(--vio);stroke-opacity:.45}.apk{fill:var(--vio3)}
.am{fill:var(--bg);stroke:var(--vio);stroke-width:2}.am.f{fill:var(--vio)}
.am.no{fill:var(--bad);stroke:var(--bad)}
.in{font-size:11.5px;fill:var(--mut)}.in.s{fill:var(--ink);font-weight:600}
.wall{stroke:var(--axis);stroke-dasharray:7 4}.wallt{font-size:11.5px;fill:var(--mut)}
.life{stroke:var(--grn);stroke-width:3}.life.bad{stroke:var(--bad)}.life.dash{stroke-width:2;
stroke-dasharray:2 4}
.void{stroke:var(--axis);stroke-dasharray:1.5 6}
.rc{fill:var(--grn);stroke:var(--bg);stroke-width:1.5}.rcl{stroke:var(--tag);stroke-width:1.4;
fill:none}
.rcb{fill:var(--bad);stroke:var(--bg);stroke-width:1.5}.rcbl{stroke:var(--tag);stroke-width:1.4;
fill:none}
.rcd{fill:var(--bg);stroke:var(--bad);stroke-width:1.4;stroke-dasharray:3 2}
.rcdl{stroke:var(--bad);stroke-width:1.2;fill:none}
.msg{stroke:var(--ink);stroke-width:1.6}.guess{stroke:var(--ink);stroke-width:1.4;
stroke-dasharray:5 4}
.lost{stroke:var(--bad);stroke-width:1.6;stroke-dasharray:4 4}.ask{stroke:var(--grn);
stroke-width:1.6}
.nay{stroke:var(--bad);stroke-width:1.6}
.unk{fill:var(--unk)}.bound{stroke:var(--ink);stroke-width:1.8}
.bound2{stroke:var(--ink);stroke-dasharray:2 3}
.bt{font-size:12.5px;font-weight:600}.bt.u{fill:var(--bad)}
""".replace("MONO", MONO)

DEFS = (
    '<defs><pattern id="tl-hatch" width="7" height="7" patternUnits="userSpaceOnUse"'
    ' patternTransform="rotate(45)"><rect width="7" height="7" class="hat"/>'
    '<line x1="0" y1="0" x2="0" y2="7" class="hl"/></pattern>'
    + "".join(
        f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path d="M0,0 L8,4 L0,8 Z" style="fill:var(--{colour})"/></marker>'
        for name, colour in (("ah", "ink"), ("ah2", "grn"), ("ah3", "bad"))
    )
    + "</defs>"
)

PAGE_RULES = """
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 FONT}
main{max-width:1400px;margin:0 auto;padding:34px 36px 40px}
code,.m{font-family:MONO}
p,dd,td,h1{overflow-wrap:anywhere}
header p.id{margin:0;color:var(--mut);font-size:14px}
h1{font-size:27px;line-height:1.25;margin:4px 0 14px;font-weight:650;letter-spacing:-.01em;
text-wrap:balance}
dl{display:flex;flex-wrap:wrap;gap:6px 34px;margin:0 0 26px}
dl div{display:flex;gap:8px;align-items:baseline}
dt{color:var(--mut);font-size:14px;white-space:nowrap}dd{margin:0;font-weight:600;font-size:14px}
figure{margin:0}.scroll{overflow-x:auto}
.wide svg{display:block;width:100%;height:auto;font-family:inherit}
figcaption{margin:14px 0 0;color:var(--mut);font-size:13.5px;display:flex;flex-wrap:wrap;
gap:4px 22px}
figcaption b{color:var(--ink);font-weight:600}
section{margin-top:30px}h2{font-size:17px;margin:0 0 8px;font-weight:650}
section p{max-width:80ch;margin:0 0 14px}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th{text-align:left;color:var(--mut);font-weight:500;padding:5px 14px 5px 0;
border-bottom:1px solid var(--rule)}
td{padding:5px 14px 5px 0;border-bottom:1px solid var(--rule);vertical-align:top;
font-variant-numeric:tabular-nums}
td.n,th.n{text-align:right;padding-right:26px;white-space:nowrap}td.t{white-space:nowrap}
tr.quiet td,tr.quiet code{color:var(--mut)}
.doubt{border-left:3px solid var(--bad);padding-left:14px}.doubt h2{color:var(--bad)}
ul{margin:0 0 14px;padding-left:20px}
@media (max-width:720px){main{padding:20px 16px 30px}h1{font-size:22px}
dl{gap:4px 22px;margin-bottom:20px}
thead{display:none}table,tbody{display:block}
tr{display:grid;grid-template-columns:4.2em minmax(0,1fr) auto;padding:6px 0;
border-bottom:1px solid var(--rule)}
td{border:0;padding:0 8px 0 0}td:nth-child(1){grid-area:1/1}td:nth-child(5){grid-area:1/2}
td:nth-child(3){grid-area:1/3;padding:0}td:nth-child(4){grid-area:2/1;color:var(--mut)}
td:nth-child(4)::before{content:"gen "}td:nth-child(6){grid-area:2/2/2/4}
td:nth-child(2){grid-area:3/2/3/4;color:var(--mut);font-size:12.5px}}
""".replace("MONO", MONO).replace("FONT", FONT)


def variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def themed(root: str) -> str:
    """The colours of both schemes on `root`; a `data-theme` attribute there can force one."""
    dark = variables(DARK)
    return (
        f"{root}{{color-scheme:light dark;{variables(LIGHT)}}}"
        f"@media (prefers-color-scheme:dark){{{root}:not([data-theme=light]){{{dark}}}}}"
        f"{root}[data-theme=dark]{{color-scheme:dark;{dark}}}"
        f"{root}[data-theme=light]{{color-scheme:light}}"
    )
