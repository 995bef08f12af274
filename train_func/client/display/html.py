"""The panel as one block of HTML, whole at every repaint, without script.

It takes Jupyter's own colours, or those of VS Code, or else of the page that it stands in.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape

from train_func.client.display.chart import FAULT, Line, Picture, chart
from train_func.client.display.panel import COLUMNS, MOST_NUMBERS, Panel
from train_func.text import counted, cut, shown

MOST_CHARTS, MOST_LINES = 6, 4
MOST_BESIDE = 2  # charts beside that of the losses: others are below
MOST_PRINTED = 4  # lines that are not folded
LONGEST = 300  # characters of a line that was printed
SOLE, WIDE, NARROW, HIGH, LOW = 800, 560, 300, 210, 115  # pixels
BARS = dict.fromkeys(("Failed", "Interrupted"), f";background:{FAULT}") | {"Succeeded": ";background:#2e9e5b"}

STYLE = """<style>.tf{--tf-ink:var(--jp-ui-font-color1,var(--vscode-foreground,light-dark(#222,#ddd)));
--tf-soft:var(--jp-ui-font-color2,var(--vscode-descriptionForeground,light-dark(#666,#aaa)));
--tf-line:var(--jp-border-color2,var(--vscode-panel-border,light-dark(#ddd,#444)));
color:var(--tf-ink);font:13px/1.45 var(--jp-ui-font-family,system-ui,sans-serif);max-width:980px;
border:1px solid var(--tf-line);border-radius:6px;padding:10px 14px;box-sizing:border-box}
.tf b{font-weight:600}.tf-soft{color:var(--tf-soft)}.tf-head{display:flex;flex-wrap:wrap;gap:2px 14px;
align-items:baseline}.tf-head>:last-child{margin-left:auto}.tf-state{font-size:15px;font-weight:600}
.tf-bar{height:8px;border:1px solid var(--tf-line);border-radius:4px;margin:7px 0;overflow:hidden}
.tf-bar>div{height:100%;background:#2f7fd0}.tf-charts{display:flex;flex-wrap:wrap;gap:0 12px;margin:6px 0}
.tf-wide{flex:2 1 420px}.tf-wide:not(:only-child){max-width:660px}.tf-small{flex:1 1 240px;display:grid;
grid-template-columns:repeat(auto-fill,minmax(min(240px,100%),1fr));gap:0 12px;align-content:start}
.tf-below{flex-basis:100%}.tf-small svg{max-width:330px}.tf-chart{display:block;max-width:100%}
.tf-chart text{fill:var(--tf-soft);paint-order:stroke;stroke-width:3px;
stroke:var(--jp-layout-color0,var(--vscode-editor-background,Canvas));font-size:10.5px;font-family:inherit}
.tf-grid{stroke:var(--tf-line);stroke-opacity:.6}.tf-axis{stroke:var(--tf-soft)}.tf-ink{fill:var(--tf-ink)}
.tf tr{background:none!important}.tf table{border-collapse:collapse;margin:6px 0;font-size:12px;color:inherit}
.tf th,.tf td{padding:1px 14px 1px 0!important;text-align:left!important;border:0;background:none;color:inherit}
.tf th,.tf td{vertical-align:top}.tf-workers td:nth-child(2),.tf-workers td:nth-child(5),.tf-runs td{white-space:nowrap}
.tf-beside th:first-child{white-space:nowrap}
.tf.tf-runs{max-width:none;overflow-x:auto}.tf-runs svg{max-width:none}
.tf th{color:var(--tf-soft);font-weight:400}.tf pre{margin:4px 0;padding:0;font-size:12px;line-height:1.4;
white-space:pre-wrap;overflow-wrap:anywhere;color:inherit;background:none;
font-family:var(--jp-code-font-family,ui-monospace,monospace)}
.tf-note{border-left:3px solid #cf7516;padding-left:8px;margin:6px 0}.tf-error{border-left:3px solid #d64545;
padding-left:8px;margin:8px 0}</style>"""


def draw(panel: Panel) -> str:
    """Returns the panel as HTML."""
    parts = [
        _head(panel),
        *(f'<div class="tf-note"><pre>{as_html(warning)}</pre></div>' for warning in panel.warnings),
        f'<div class="tf-error"><pre>{as_html(panel.error)}</pre></div>' if panel.error else "",
        _charts(panel),
        _workers(panel),
        *(f"<div>{as_html(fact)}</div>" for fact in panel.facts),
        _printed(panel.printed),
    ]
    return f'{STYLE}<div class="tf">{"".join(parts)}</div>'


def draw_head(panel: Panel) -> str:
    """Returns the state of the panel and how far the job is, as HTML."""
    return f'{STYLE}<div class="tf">{_head(panel)}</div>'


def _head(panel: Panel) -> str:
    state, name, *facts = (as_html(words) for words in (panel.state, *panel.heading))
    soft = "".join(f'<span class="tf-soft">{fact}</span>' for fact in facts)
    line = f'<div class="tf-head"><span class="tf-state">{state}</span><b>{name}</b>{soft}</div>'
    return line + _progress(panel)


def _progress(panel: Panel) -> str:
    words = f'<span class="tf-soft">{as_html(" · ".join(panel.progress))}</span>'
    if panel.share is None:
        return f"<div>{words}</div>" if panel.progress else ""
    colour = BARS.get(panel.state.partition(" ")[2], "")
    bar = f'<div class="tf-bar" role="progressbar"><div style="width:{panel.share:.1%}{colour}"></div></div>'
    return f'{bar}<div class="tf-head"><b>{panel.share:.0%}</b>{words}</div>'


def _charts(panel: Panel) -> str:
    """The losses in a wide chart, other metrics in small ones beside it, and those of one value as numbers.

    A chart that is alone has all of the width.
    """
    curves = [lines for lines in panel.charts if max(len(line.points) for line in lines) > 1]
    numbers = _numbers([lines for lines in panel.charts if lines not in curves[:MOST_CHARTS]])
    if not curves:
        return numbers
    width = WIDE if len(curves) > 1 else SOLE
    wide = chart(curves[0][:MOST_LINES], panel.marks, width=width, height=HIGH, last=panel.last_step)
    small = [
        chart(lines[:MOST_LINES], (), width=NARROW, height=LOW, last=panel.last_step) for lines in curves[1:MOST_CHARTS]
    ]
    beside, below = "".join(small[:MOST_BESIDE]), "".join(small[MOST_BESIDE:])
    parts = [f'<div class="tf-wide">{wide}</div>', beside and f'<div class="tf-small">{beside}</div>']
    parts.append(below and f'<div class="tf-small tf-below">{below}</div>')
    return f'<div class="tf-charts">{"".join(parts)}</div>{numbers}'


def _numbers(metrics: Sequence[Sequence[Line]]) -> str:
    """The newest values of metrics that no chart shows."""
    lines = [line for of_metric in metrics for line in of_metric][:MOST_NUMBERS]
    cells = "".join(f"<span>{as_html(line.name)} <b>{line.points[-1][1]:.4g}</b></span>" for line in lines)
    return f'<div class="tf-head">{cells}<span></span></div>' if cells else ""


def _workers(panel: Panel) -> str:
    if not panel.workers:
        return ""
    more = f'<div class="tf-soft">and {panel.num_more_workers} more</div>' if panel.num_more_workers else ""
    return table(COLUMNS, panel.workers, "tf-workers") + more


def _printed(lines: Sequence[str]) -> str:
    """The last lines of rank 0, the older ones folded."""
    if not lines:
        return ""
    texts = [as_html(cut(line, LONGEST)) for line in lines]
    older, newer = "\n".join(texts[:-MOST_PRINTED]), "\n".join(texts[-MOST_PRINTED:])
    num_older = counted(len(texts[:-MOST_PRINTED]), "earlier line")
    fold = f"<details><summary>{num_older}</summary><pre>{older}</pre></details>" if older else ""
    return f'<div class="tf-soft">printed by rank 0</div>{fold}<pre>{newer}</pre>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """Returns a table as HTML, with its pictures as they are; empty without head and rows.

    ``kind``: its class. A first column that has no title names the rows.
    """
    first = "td" if head and head[0] else "th"
    lines = ["".join(f"<th>{as_html(title)}</th>" for title in head)] if head else []
    for name, *cells in rows:
        values = "".join(f"<td>{cell if isinstance(cell, Picture) else as_html(cell)}</td>" for cell in cells)
        lines.append(f"<{first}>{as_html(name)}</{first}>{values}")
    return f'<table class="{kind}">{"".join(f"<tr>{line}</tr>" for line in lines)}</table>' if lines else ""


_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # of a terminal


def as_html(words: str) -> str:
    """Returns text of anyone so that neither HTML nor a terminal obeys it."""
    return escape(shown(_COLOURS.sub("", words)), quote=False)
