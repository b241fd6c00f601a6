"""The upright picture as HTML, for screens too narrow for the wide one."""

from __future__ import annotations

from . import svg
from .lanes import CHIPS
from .life import Life
from .markup import for_html
from .rows import Row, rows
from .verdict import unknown_words

LANES = {"status": 0, "approval": 1, "worker": 2, "service": 4}
RULES = """
.narrow{display:none}
.rail{list-style:none;margin:0;padding:0;--row:13px}
.rail li{position:relative;display:block;padding:3px 0 13px 172px;min-height:38px}
.rail li.u{background:linear-gradient(var(--unk),var(--unk)) no-repeat 0 var(--row)}
.rail li.pre{background:linear-gradient(var(--unk),var(--unk)) no-repeat 0 0/100% 100%}
.rail li.end{background:linear-gradient(var(--unk),var(--unk)) no-repeat 0 0/100% var(--row)}
.rail .t{position:absolute;left:2px;top:3px;width:80px;font-size:12.5px;
font-variant-numeric:tabular-nums}
.rail .g{position:absolute;left:2px;top:24px;width:80px;font-size:11.5px;color:var(--mut)}
.rail .g.long{color:var(--ink);font-weight:650}
.rail i{position:absolute;top:var(--row);bottom:calc(0px - var(--row));z-index:1}
.rail .l0{left:88px;width:10px}.rail .l1{left:106px;width:10px}.rail .l2{left:122px;width:12px}
.rail .l3{left:143px;width:0;border-left:1px dashed var(--axis);top:0;bottom:0}
.rail .l4{left:153px;width:4px}
.rail li:last-child i:not(.l3){bottom:4px}
.rail b.sign{position:absolute;top:3px;width:20px;height:20px;z-index:2}
.rail b.sign svg{display:block;width:20px;height:20px}
.rail .at0{left:83px}.rail .at1{left:101px}.rail .at2{left:118px}.rail .at4{left:145px}
.rail strong{font-weight:600;font-size:14px}.rail .inf strong{font-weight:500;font-style:italic}
.rail .bad strong{color:var(--bad)}.rail .ok strong{color:var(--grn)}
.rail small{display:block;font-size:13px;line-height:1.4;color:var(--mut);overflow-wrap:anywhere}
.rail .chip{float:right;margin:1px 4px 0 8px;padding:1px 7px;border-radius:3px;font-size:11.5px;
line-height:17px}
.chip.q{background:var(--q);color:var(--mut)}.chip.r{background:var(--blue2);color:var(--blue)}
.chip.w{background:var(--vio2);color:var(--vio)}.chip.k{background:var(--bg);color:var(--bad);
box-shadow:inset 0 0 0 1px var(--bad)}
.chip.ok{background:var(--grn2);color:var(--grn);font-weight:650}
.rail i.q{background:var(--axis)}.rail i.r{background:var(--blue)}.rail i.w{background:var(--vio)}
.rail i.k{background:var(--bad)}.rail i.ok{background:var(--grn)}
.rail .stale{background:repeating-linear-gradient(135deg,var(--bad) 0 2px,var(--unk) 2px 6px)}
.rail .open{background:var(--vio2);border:1px solid var(--vio);border-width:0 1px}
.rail .permit{background:var(--vio)}.rail .used{background:var(--vio2)}
.rail .lease,.rail .ask{background:var(--blue2);border:1.3px solid var(--blue);border-width:0 1.3px}
.rail .dead{background:repeating-linear-gradient(135deg,var(--bad) 0 1.5px,var(--unk) 1.5px 6px);
border:1px dashed var(--bad);border-width:0 1px}
.rail .idle{left:127px;width:0;border-left:2px dotted var(--bad)}
.rail .runs{border:1.2px dashed var(--blue);border-width:0 1.2px}
.rail .held{background:var(--grn)}
.rail .maybe{background:repeating-linear-gradient(var(--grn) 0 3px,transparent 3px 7px)}
.rail .maybe.bad{background:repeating-linear-gradient(var(--bad) 0 3px,transparent 3px 7px)}
.rail .edge{display:block;font-size:13px;font-weight:600;color:var(--bad)}
.rail .edge.dots{color:var(--ink)}
.rail .cut{position:absolute;left:84px;width:80px;z-index:1;top:var(--row);
border-top:2px solid var(--ink)}
.rail .cut.dots{border-top:1.5px dashed var(--ink)}
.key{margin:0 0 12px;font-size:13px;color:var(--mut)}.rung{stroke:var(--blue);stroke-width:2.4}
@media (max-width:1199px){.wide{display:none}.narrow{display:block}}
@media print{.wide{display:block}.narrow{display:none}}
"""


def rail(life: Life) -> str:
    """The whole list."""
    found = rows(life)
    before = [False, *(row.unknown for row in found)]
    told = unknown_words(life)
    items = "".join(_item(row, pre, told) for row, pre in zip(found, before, strict=False))
    approvals = ", approval" if life.window else ""
    note = f"From the left: time, job status{approvals}, worker; beyond the wall, the service."
    return f'<p class="key">{note}</p><ol class="rail">{items}</ol>'


def _item(row: Row, pre: bool, told: str) -> str:
    css = "stale" if row.stale else CHIPS.get(row.status, "k") if row.status else ""
    rails = (css, row.approval, row.worker, "wall", row.service)
    drawn = "".join(f'<i class="l{index} {name}"></i>' for index, name in enumerate(rails) if name)
    shade = "pre" if pre and row.unknown else "end" if pre else "u" if row.unknown else ""
    tone = "bad" if row.mark in ("cross", "stop", "nay", "question") else ""
    tone = "ok" if row.mark == "receipt" else tone
    gap = chip = ""
    if row.gap:
        gap = f'<span class="g{" long" if row.long else ""}">{for_html(row.gap)}</span>'
    if row.changed:
        chip = f'<span class="chip {CHIPS.get(row.status, "k")}">{for_html(row.status)}</span>'
    notes = "".join(f"<small>{for_html(note)}</small>" for note in row.notes)
    classes = " ".join(name for name in (shade, tone, "inf" if row.inferred else "") if name)
    return (
        f'<li class="{classes}"><span class="t">{for_html(row.time)}</span>{gap}{drawn}'
        f"{_sign(row)}{chip}<strong>{for_html(row.title)}</strong>{notes}{_edge(row, told)}</li>"
    )


def _edge(row: Row, told: str) -> str:
    """The boundary and the point where the outcome became known: a line over the rails."""
    if not row.edge:
        return ""
    said, css = (told, "") if row.edge == "boundary" else ("known from here on", " dots")
    return f'<span class="edge{css}">{for_html(said)}</span><span class="cut{css}"></span>'


def _sign(row: Row) -> str:
    x = y = 10.0
    drawn = {
        "check": svg.check(x, y),
        "cross": svg.cross(x, y),
        "diamond": svg.diamond(x, y),
        "question": svg.question(x, y),
        "retry": svg.retry(x, y),
        "stop": svg.stop(x, y, "sb"),
        "halt": svg.stop(x, y, "sq"),
        "receipt": svg.receipt(x, y, "rc"),
        "ghost": svg.receipt(x, y, "rcd"),
        "ring": svg.circle(x, y, 6, "am"),
        "disc": svg.circle(x, y, 6, "am f"),
        "nay": svg.circle(x, y, 6, "am no"),
        "bar": svg.line(3, y, 17, y, "rung"),
        "end": svg.line(3, y, 17, y, "rung"),
        "dot": svg.circle(x, y, 4, "dp"),
        "dots": svg.line(x, 2, x, 18, "gap"),
    }[row.mark]
    return (
        f'<b class="sign at{LANES[row.lane]}" aria-hidden="true">'
        f'<svg viewBox="0 0 20 20">{drawn}</svg></b>'
    )
