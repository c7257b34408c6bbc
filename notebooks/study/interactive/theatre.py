"""A figure that plays the conversation of a protocol: its messages, its views and its ledger.

`theatre` runs an estimator on small data with `fedlib.testing.Recorder` and draws what it recorded.
The figure is complete without JavaScript: it shows the end of the run. `book/_static/theatre.js`
plays it, and is loaded when the reader asks for that.
"""

import html
import json
import re
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from unittest import mock

import numpy as np
from sklearn.datasets import make_blobs, make_moons
from sklearn.exceptions import ConvergenceWarning

from fedlib.clustering.density.horizontal import CellCounts, HorizontalDBSCAN
from fedlib.core.ledger import SERVER
from fedlib.figures.plots import in_words
from fedlib.protection.secure.messages import RevealedShares
from fedlib.testing import Recorder, seeded_noise
from study.interactive.pictures import HEIGHT, WIDTH, Plane, colour, dots, picture, together
from study.interactive.rendering import COLOURS
from study.shared.pages import ROOT, figure

SCRIPT = ROOT / "book/_static/theatre.js"
PAD = 0.06  # the margin around the points, as a fraction of their range
MOST_BYTES = 150_000  # of the figure with all its recordings
MOST_STILL_BYTES = 38_000  # of the rest, which book/_ext/light_pages.py then leaves in the page
STYLE = """
.fedlib-theatre { --line: var(--pst-color-border, #8888); --ground: var(--pst-color-surface, #8882);
  container-type: inline-size; font-size: 0.9rem; line-height: 1.35; }
.fedlib-theatre :is(.controls, fieldset:not([hidden])) {
  display: flex; flex-wrap: wrap; gap: 0.4rem 0.6rem; align-items: center; }
.fedlib-theatre fieldset { border: none; margin: 0; padding: 0; }
.fedlib-theatre legend { float: left; margin: 0; padding: 0 0.6rem 0 0; font-size: inherit;
  font-weight: bold; width: auto; }
.fedlib-theatre :is(button, select) { font: inherit; color: inherit; padding: 0.25rem 0.7rem;
  min-height: 2rem;
  background: var(--ground); border: 1px solid currentColor; border-radius: 6px; cursor: pointer; }
.fedlib-theatre option { color: #000; background: #fff; }
.fedlib-theatre .play { font-weight: bold; min-width: 4.5rem; }
.fedlib-theatre fieldset label { display: flex; gap: 0.3rem; margin: 0; }
.fedlib-theatre .more:not([hidden]) { display: contents; }
.fedlib-theatre input { accent-color: #3f90da; }
.fedlib-theatre input[type="range"] { width: 8rem; }
.fedlib-theatre .stage { position: relative; display: grid; gap: 0 1rem; margin-top: 0.6rem;
  grid-template: "server record" auto "lane record" 4.5rem "sites sites" auto / 3fr 2fr; }
.fedlib-theatre .server { grid-area: server; }
.fedlib-theatre .lane { grid-area: lane; }
.fedlib-theatre .sites { grid-area: sites; display: grid; gap: 0.6rem; grid-auto-flow: column;
  grid-auto-columns: minmax(0, 1fr); }
.fedlib-theatre .record { grid-area: record; position: relative; min-height: 14rem; }
.fedlib-theatre .panel > span, .fedlib-theatre .total { display: block; font-weight: bold;
  margin: 0; }
.fedlib-theatre svg { box-sizing: border-box; display: block; width: 100%; height: auto;
  border: 1px solid var(--line);
  border-radius: 6px; }
.fedlib-theatre .ledger { position: absolute; inset: 1.4rem 0 0 0; overflow-y: auto; margin: 0;
  padding: 0; list-style: none; }
.fedlib-theatre .ledger li { border-top: 1px solid var(--line); padding: 0.2rem 0; margin: 0; }
.fedlib-theatre .ledger small { display: block; }
.fedlib-theatre .now { margin: 0.6rem 0 0; min-height: 2.7em; }
.fedlib-theatre .chip { position: absolute; left: 0; top: 0; z-index: 1; max-width: 8rem;
  padding: 0.1rem 0.4rem; text-align: center;
  font-size: 0.75rem; line-height: 1.2; color: #fff; background: #0f56b3; border-radius: 6px;
  pointer-events: none; }
.fedlib-theatre .plain { fill: #8c8c8c; }
.fedlib-theatre .noise { fill: none; stroke: #8c8c8c; stroke-width: 0.4; }
.fedlib-theatre .ink { fill: #3f90da; }
.fedlib-theatre .negative { fill: #a96b59; }
.fedlib-theatre .grey { fill: currentColor; }
.fedlib-theatre .cross { fill: none; stroke-width: 1.6; }
.fedlib-theatre .dot { fill: none; stroke-width: 1.8; stroke-linecap: round; }
.fedlib-theatre .cut { fill: none; stroke: currentColor; stroke-width: 0.7; }
.fedlib-theatre .ring { fill: none; stroke: currentColor; stroke-width: 0.4; }
.fedlib-theatre .lines { fill: none; stroke: var(--line); stroke-width: 0.25; }
.fedlib-theatre .site .overlay { opacity: 0.55; }
.fedlib-theatre .site:has(.cover) .points { opacity: 0.1; }
@container (max-width: 34rem) {
  .fedlib-theatre .stage {
    grid-template: "server" auto "lane" 4.5rem "sites" auto "record" auto / 1fr; }
  .fedlib-theatre .record { margin-top: 0.6rem; min-height: 0; }
  .fedlib-theatre .ledger { position: relative; inset: auto; max-height: 11rem; }
  .fedlib-theatre .chip { font-size: 0.6875rem; max-width: 6.6rem; }
}
@media print {
  .fedlib-theatre .controls { display: none; }
  .fedlib-theatre .lane { display: none; }
  .fedlib-theatre .ledger { position: static; max-height: none; overflow: visible; }
}
"""
SPEEDS = {"half speed": 0.5, "normal speed": 1, "double speed": 2, "4 × speed": 4}
# Loads the recordings and the script when the reader first presses Play, or runs the script if the
# page contains it.
LOADER = """document.querySelectorAll('.fedlib-theatre:not([data-loader])').forEach(root => {
root.dataset.loader = 'yes'
root.querySelector('.play').hidden = false
const run = set => new Promise(done => {
const script = document.createElement('script')
script.onload = done
set(script)
document.head.append(script)
})
root.querySelector('.play').addEventListener('click', async () => {
root.dataset.wanted = 'yes'
for (const from of root.querySelectorAll('script[data-asset]'))
if (from.dataset.src) await run(script => { script.src = from.dataset.src })
else if (from.type === 'text/plain') run(script => { script.text = from.text })
}, {once: true})
})"""


@dataclass(frozen=True)
class Scene:
    """One half of an exchange: requests to the clients, or their replies.

    Attributes
    ----------
    outwards : bool
        Whether the server sends.
    message : str
        The class of the messages in words, such as ``"cell counts"``.
    discloses : str
    sizes : dict of str to int
        The bytes of the message by client.
    server : str
        What the server sees afterwards, or before it sends, as SVG; empty if nothing changes.
    sites : list of str
        The same of each client.
    """

    outwards: bool
    message: str
    discloses: str
    sizes: dict[str, int]
    server: str
    sites: list[str]


def theatre(estimator, parts, *, name, caption, alt, options=None, seed=0):
    """Return a figure that plays the messages of a run; it is the last expression of its cell.

    Parameters
    ----------
    estimator : Federated, or mapping of str to Federated
        Several ones are recordings between which the reader switches, by what they are called.
    parts : list or mapping of str to array-like, or to (X, y)
        The data of each client in two features, at most about 60 rows: all messages are in the
        page. Clients with different columns have one of the two each.
    name, caption, alt : str
        As of `study.figure`.
    options : list of dict, optional
        Further arguments of each client, such as ``ids`` for `AlignedRows`.
    seed : int, default=0
        Of noise and masks, so that the page is the same each time.

    Raises
    ------
    ValueError
        When the figure would have more than 150 kB, or more than 38 kB without its recordings.

    Examples
    --------
    >>> parts = {"north": [[0.1, 0.1], [0.3, 0.2]], "south": [[0.4, 0.1], [5.0, 2.0]]}
    >>> shown = theatre(
    ...     HorizontalDBSCAN(cell_size=1.0, min_samples=2),
    ...     parts,
    ...     name="fig-toy-theatre",
    ...     caption="Two sites count their points.",
    ...     alt="The server sees the counts of cells.",
    ... )
    >>> "cell counts" in shown
    True
    """
    if not isinstance(parts, Mapping):
        parts = {f"site {i + 1}": part for i, part in enumerate(parts)}
    several = estimator if isinstance(estimator, Mapping) else {"": estimator}
    content = page(several, parts, name, alt, options, seed)
    still = re.sub(r'(<script type="application/json"[^>]*>).*?</script>', r"\1</script>", content)
    for what, size, most in (
        ("figure", len(content), MOST_BYTES),
        ("still", len(still), MOST_STILL_BYTES),
    ):
        if size > most:
            raise ValueError(
                f"the {what} of {name} must have at most {most:,} bytes, got {size:,}:"
                " take fewer rows, rounds or recordings"
            )
    script = html.escape(SCRIPT.name)
    asset = f'<script type="text/plain" data-asset="{script}">{SCRIPT.read_text("utf-8")}</script>'
    return figure(caption, name=name, alt=alt, content=content.replace("<!--asset-->", asset, 1))


def without_assets(shown):
    """Return a figure for a page without code: the book has the file of its script."""
    return re.sub(
        r'(<script type="text/plain"[^>]*>).*?</script>', r"\1</script>", shown, flags=re.S
    )


def toy_parts(shape="moons"):
    """Return small data of three sites, or of two with different columns, for `theatre`.

    Parameters
    ----------
    shape : {"moons", "classes", "blobs", "columns"}
        Two half moons, the same with classes and more noise, three groups, or two groups of which
        each site has one column.

    Raises
    ------
    ValueError
        When the shape is another one.

    Examples
    --------
    >>> {name: X.shape for name, X in toy_parts("columns").items()}
    {'site 1': (40, 1), 'site 2': (40, 1)}
    """
    if shape == "moons":
        X = make_moons(180, noise=0.06, random_state=3)[0].round(3)
        parts = [X[i::3] for i in range(3)]
    elif shape == "classes":
        X, y = make_moons(180, noise=0.2, random_state=0)
        parts = [(X[i::3].round(3), y[i::3]) for i in range(3)]
    elif shape == "blobs":
        centres = [[0, 0], [4, 0], [2, 3]]
        X = make_blobs(120, centers=centres, cluster_std=0.8, random_state=1)[0].round(3)
        parts = [X[i::3] for i in range(3)]
    elif shape == "columns":
        X = make_blobs(40, centers=[[0, 0], [3, 3]], cluster_std=0.5, random_state=0)[0].round(3)
        parts = [X[:, :1], X[:, 1:]]
    else:
        raise ValueError(f"shape must be 'moons', 'classes', 'blobs' or 'columns', got {shape!r}")
    return {f"site {i + 1}": part for i, part in enumerate(parts)}


# The run ----------------------------------------------------------------------------------------


def record(estimator, parts, options=None, seed=0):
    """Fit an estimator to parts by name, and return the recorder with all messages.

    A few rounds are enough to watch, so nothing warns that they do not converge.
    """
    options = options or estimator._client_options(len(parts))
    make, options = estimator._client_factory(options)
    random = np.random.default_rng(seed)
    seeded_masks = mock.patch.object(secrets, "token_bytes", random.bytes)
    with seeded_noise(seed), seeded_masks, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        clients = estimator._make_clients(estimator._column_names(), parts, make, options, ())
        recorder = Recorder(clients)
        estimator.fit(recorder)
    return recorder


def scenes(estimator, recorder, plane):
    """Return what happens in a recorded run of an estimator, in two scenes per exchange."""
    disclosed = {(entry.step, entry.sender == SERVER): entry for entry in estimator.ledger_}
    acts = []
    plane.memory["model"] = estimator
    for step, exchange in enumerate(recorder.exchanges, start=1):
        requests, replies = exchange.requests, exchange.replies
        asked = pictures(requests, plane)
        first = next(iter(replies.values()))
        answered = pictures(replies, plane)
        if isinstance(first, RevealedShares):
            seen = revealed(estimator, recorder.exchanges[step:], plane)
        else:
            seen = together(first, replies, plane)
        for outwards, sizes, server, drawn in (
            (True, exchange.request_bytes, at_once(asked), asked),
            (False, exchange.reply_bytes, seen, answered),
        ):
            entry = disclosed[step, outwards]
            acts.append(
                Scene(
                    outwards,
                    in_words(entry.message),
                    entry.discloses,
                    {client: len(data) for client, data in sizes.items()},
                    server,
                    [drawn.get(client, "") for client in recorder.clients],
                )
            )
    return acts


def pictures(messages, plane):
    """Return the picture of each client's message."""
    return {client: picture(message, plane, client) for client, message in messages.items()}


def at_once(drawn):
    """Return the different ones of several pictures on top of each other."""
    return "".join(dict.fromkeys(drawn.values()))


def revealed(estimator, later, plane):
    """Return the picture of what the server knows when it has removed the masks from a sum.

    For counts these are the sums; otherwise it is what the server computes from them, if a request
    before the next such sum contains it.
    """
    if isinstance(estimator, HorizontalDBSCAN):
        counts = estimator.cell_counts_
        return picture(CellCounts(estimator.cells_[counts > 0], counts[counts > 0]), plane, "")
    for exchange in later:
        if drawn := at_once(pictures(exchange.requests, plane)):
            return drawn
        if any(isinstance(reply, RevealedShares) for reply in exchange.replies.values()):
            break
    return ""


# The page ---------------------------------------------------------------------------------------


def page(several, parts, name, alt, options, seed):
    """Return the HTML of the recordings of several estimators, without the script."""
    points, classes = positions(next(iter(several.values())), parts)
    X = np.concatenate(points)
    pad = PAD * np.ptp(X, axis=0)
    plane = Plane(X.min(axis=0) - pad, X.max(axis=0) + pad)
    recordings = [
        recording(each, parts, classes, plane, options, seed) for each in several.values()
    ]
    first = recordings[0]
    last_classes = first["after"] or first["before"]
    server = last_picture(scene["server"] for scene in first["scenes"])
    panels = panel("server", "server", overlay=server) + '<div class="lane"></div>'
    sites = [
        panel(
            client,
            "site",
            dots(plane.place(part), of_client.split()),
            overlay=last_picture(scene["sites"][i] for scene in first["scenes"]),
        )
        for i, (client, part, of_client) in enumerate(zip(parts, points, last_classes, strict=True))
    ]
    data = {"pictures": number_pictures(recordings), "recordings": recordings}
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    key = sha256(text.encode()).hexdigest()[:20]
    return (
        f'<div class="fedlib-theatre" role="group" tabindex="0" aria-label="{html.escape(alt)}">'
        f"<style>{STYLE}{colour_rules()}</style>{controls(several, name)}"
        '<p class="now" aria-live="polite">The end of the run.</p>'
        f'<div class="stage">{panels}<div class="sites">{"".join(sites)}</div>'
        f'<div class="record"><p class="total">{first["totals"][-1]}</p>'
        f'<ol class="ledger" tabindex="0" aria-label="Ledger">{"".join(first["ledger"])}</ol></div>'
        f'</div><script type="application/json" data-asset="{key}">{text}</script><!--asset-->'
        f"<script>{LOADER}</script></div>"
    )


def number_pictures(recordings):
    """Replace each picture by its index in the list of the different ones, which is returned.

    All clients often receive what the server has drawn.
    """
    indices = {"": 0}
    for scene in (scene for each in recordings for scene in each["scenes"]):
        scene["server"] = indices.setdefault(scene["server"], len(indices))
        scene["sites"] = [indices.setdefault(one, len(indices)) for one in scene["sites"]]
    return list(indices)


def positions(estimator, parts):
    """Return the points (n, 2) of each client, and their CSS classes before the run.

    The points of a client with one column lie on a line in the middle.
    """
    with_classes = all(isinstance(part, tuple) for part in parts.values())
    X = [np.asarray(part[0] if with_classes else part, float) for part in parts.values()]
    if not estimator.same_columns:
        values = np.concatenate([part.ravel() for part in X])
        middle = (values.min() + values.max()) / 2
        lines = (np.full((len(part), 2), middle) for part in X)
        X = [place(line, i, part) for i, (line, part) in enumerate(zip(lines, X, strict=True))]
    if with_classes:
        return X, [list(map(colour, y)) for _, y in parts.values()]
    return X, [["plain"] * len(part) for part in X]


def place(line, i, column):
    """Return points whose coordinate ``i`` is the column."""
    line[:, [i]] = column
    return line


def recording(estimator, parts, classes, plane, options, seed):
    """Return what the script needs to play a run, ready for JSON."""
    recorder = record(estimator, parts, options, seed)
    acts = scenes(estimator, recorder, plane)
    labels = [estimator._labels_of(client) for client in recorder.members.values()]
    sizes = np.cumsum([0] + [sum(act.sizes.values()) for act in acts]).tolist()
    counts = np.cumsum([0] + [len(act.sizes) for act in acts]).tolist()
    index = {client: i for i, client in enumerate(recorder.clients)}
    return {
        "before": list(map(" ".join, classes)),
        "after": None if labels[0] is None else [" ".join(map(final, of)) for of in labels],
        "ledger": ledger(acts),
        "totals": [
            f"Ledger: {n} messages, {amount(size)}" for n, size in zip(counts, sizes, strict=True)
        ],
        "scenes": [
            {
                "out": act.outwards,
                "message": act.message,
                "server": act.server,
                "sites": act.sites,
                "sizes": {index[client]: amount(size) for client, size in act.sizes.items()},
            }
            for act in acts
        ],
    }


def final(label):
    """Return the CSS class of a point at the end; a row that took no part has no label."""
    return "plain" if label is np.ma.masked else colour(label)


def panel(title, kind, points="", *, overlay):
    """Return the HTML of the view of the server or of a client."""
    return (
        f'<div class="panel {kind}"><span>{html.escape(title)}</span>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">'
        f'<g class="points">{points}</g><g class="overlay">{overlay}</g></svg></div>'
    )


def last_picture(pictures):
    """Return the last picture that is not empty."""
    return next(filter(None, reversed(list(pictures))), "")


def controls(several, name):
    """Return the HTML of the buttons, which need the script; only Play is there before it."""
    speeds = "".join(
        f'<option value="{value}"{" selected" if value == 1 else ""}>{text}</option>'
        for text, value in SPEEDS.items()
    )
    switch = "".join(
        f'<label><input type="radio" name="{name}-recording" value="{i}"'
        f"{' checked' if i == 0 else ''}>{html.escape(title)}</label>"
        for i, title in enumerate(several)
    )
    choice = f"<fieldset hidden><legend>Run</legend>{switch}</fieldset>" if len(several) > 1 else ""
    return (
        '<div class="controls"><button type="button" class="play" hidden>Play</button>'
        '<span class="more" hidden><button type="button" class="back">Step back</button>'
        '<button type="button" class="step">Step</button>'
        f'<select aria-label="Speed">{speeds}</select>'
        '<input type="range" min="0" step="1" aria-label="Place in the run"></span>'
        f"{choice}</div>"
    )


def amount(size):
    """Return a count of bytes as a text.

    Examples
    --------
    >>> amount(950), amount(12345)
    ('950 B', '12.3 kB')
    """
    return f"{size} B" if size < 1000 else f"{size / 1000:.1f} kB"


def route(act):
    """Return who sends to whom in a scene."""
    n = len(act.sizes)
    sites = "1 site" if n == 1 else f"{n} sites"
    return f"server → {sites}" if act.outwards else f"{sites} → server"


def ledger(acts):
    """Return the HTML of the ledger, one item per scene."""
    return [
        f"<li><b>{act.message}</b> <span>{route(act)} · {amount(sum(act.sizes.values()))}</span>"
        f"<small>discloses {html.escape(act.discloses)}</small></li>"
        for act in acts
    ]


def colour_rules():
    """Return the CSS rules of the clusters' colours."""
    return "".join(
        f".fedlib-theatre .k{i}{{fill:{c}}}"
        f".fedlib-theatre :is(.cross,.dot).k{i}{{stroke:{c};fill:none}}"
        for i, c in enumerate(COLOURS)
    )
