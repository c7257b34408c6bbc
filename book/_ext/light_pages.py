"""Keep pages light: a phone on a slow line shows a page after three seconds.

- The theme's script of all icons (1.5 MB) is left out. Icons come from a font of those in use.
- Rules of style sheets for classes that no page and no script uses are left out, too.
- Scripts wait until the page is read, and images until they are near the window.
- A long table, a figure that computes and the long list of a chapter that is not open are files of
  their own, which come when they are opened or near the window.
"""

import json
import logging
import os
import re
from hashlib import sha256
from pathlib import Path

from fontTools import subset
from fontTools.ttLib import TTFont

# The script of all icons, and requests for scripts before the style sheets.
DROPPED = re.compile(
    r'<script src="[^"]*_static/scripts/fontawesome\.js[^"]*"></script>\s*'
    r'|<link rel="preload" as="script"[^>]*>\s*'
)
CLASSES = re.compile(r'\bclass="([^"]*)"')
WORDS = re.compile(r"[\w-]+")
SELECTED = re.compile(r"\.((?:\\.|[\w-])+)")
NESTED = re.compile(r":(?:not|is|where|has)\([^()]*(?:\([^()]*\)[^()]*)*\)")
CHARACTER = re.compile(r'"\\([0-9a-f]{4})"')
FONT = re.compile(r"url\(([^)]*/webfonts/([\w-]+))\.woff2\)[^,]*,\s*url\([^)]*\.ttf\)[^;}]*")
# The beginning of a page needs these at once: other scripts in the page use what they define.
MARK = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[{};]")
AT_ONCE = "documentation_options.js"
SCRIPT = re.compile(r'<script (?![^>]*(?:\b(?:defer|async)\b|type="))([^>]*\bsrc="([^"]*)"[^>]*)>')
IMAGE = re.compile(r"<img (?![^>]*\bloading=)")
# What is folded, without a field that filters it, and boxes of tables and of figures that compute.
FOLDED = re.compile(
    r"(<details\b[^>]*>\s*<summary[^>]*>.*?</summary>(?:<label.*?</label>)?)(.*?)(?=</details>)",
    re.DOTALL,
)
BOX = re.compile(r'<div class="(?:fedlib-scroll|claims-box)"[^>]*>')
DIVISION = re.compile(r"<div\b|</div>")
FOLDED_HEAVY, HEAVY = 4_000, 25_000  # bytes that are worth a file of their own
PARTS = "_static/parts"


def lighten(app, error):
    """Rewrite the finished pages, style sheets and fonts."""
    if error is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir)
    used = set()
    for page in folder.rglob("*.html"):
        text = DROPPED.sub("", page.read_text(encoding="utf-8"))
        for names in CLASSES.findall(text):
            used.update(names.split())
        light = light_page(text)
        if page != folder / "404.html":  # it is shown at every address, also in other folders
            light = store_parts(light, page.parent, folder)
        page.write_text(light, encoding="utf-8")
    (folder / "_static/scripts/fontawesome.js").unlink()
    for script in folder.rglob("_static/**/*.js"):
        used.update(WORDS.findall(script.read_text(encoding="utf-8")))
    sheets = [path for path in folder.rglob("_static/**/*.css") if path.name != "book.css"]
    icons = set()
    for sheet in sheets:
        text = without_unused(sheet.read_text(encoding="utf-8"), used)
        icons.update(int(code, 16) for code in CHARACTER.findall(text))
        sheet.write_text(FONT.sub(r"url(\1.woff) format('woff')", text), encoding="utf-8")
    for font in folder.rglob("webfonts/*.ttf"):
        keep_characters(font, icons)


def light_page(text):
    """Return a page whose scripts and images wait."""

    def defer(match):
        return match[0] if AT_ONCE in match[2] else f"<script defer {match[1]}>"

    return IMAGE.sub('<img loading="lazy" ', SCRIPT.sub(defer, text))


def store_parts(text, place, folder):
    """Return a page whose heavy parts are files, which `_static/parts.js` loads when it needs them.

    They are scripts, because a page that is opened as a file can load nothing else.
    """

    def store(content):
        name = sha256(content.encode()).hexdigest()[:20]
        path = folder / PARTS / f"{name}.js"
        path.parent.mkdir(parents=True, exist_ok=True)
        written = json.dumps(content, ensure_ascii=False)
        path.write_text(f'fillPart("{name}", {written})\n', encoding="utf-8")
        address = Path(os.path.relpath(path, place)).as_posix()
        without = "<noscript>This part of the page needs JavaScript.</noscript>"
        return f'<div data-part="{name}" data-source="{address}">{without}</div>'

    def store_folded(match):
        of_others = "toctree-l2" in match[2] and "current" not in match[2]  # one file for all pages
        is_kept = len(match[2]) < FOLDED_HEAVY or not ("<table" in match[2] or of_others)
        return match[0] if is_kept else match[1] + store(match[2])

    light = FOLDED.sub(store_folded, text)
    position = 0
    while box := BOX.search(light, position):
        position = box.end()
        content = light[position : end_of_division(light, position)]
        if len(content) >= HEAVY:
            light = light[:position] + store(content) + light[position + len(content) :]
    if light == text:
        return text
    script = Path(os.path.relpath(folder / "_static/parts.js", place)).as_posix()
    return light.replace("</head>", f'<script defer src="{script}"></script>\n</head>', 1)


def end_of_division(text, start):
    """Return where the element ``div`` ends whose content begins at `start`."""
    depth = 1
    for tag in DIVISION.finditer(text, start):
        depth += 1 if tag[0] == "<div" else -1
        if depth == 0:
            return tag.start()
    raise ValueError(f"a div has no end: {text[start : start + 100]!r}")


def rules(text):
    """Yield the rules of a style sheet: what stands before a brace, and what stands inside.

    What ends without braces, such as an import, has the content None.
    """
    start = position = depth = 0
    head = ""
    for match in re.finditer(
        r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[{};]", text, re.DOTALL
    ):
        mark, position = match[0], match.end()
        if mark == "{":
            if depth == 0:
                head, start = text[start : match.start()], position
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth == 0:
                yield head, text[start : match.start()]
                start = position
        elif mark == ";" and depth == 0:
            yield text[start:position], None
            start = position


def without_unused(text, used):
    """Return a style sheet without the rules that need a class which is not used.

    Examples
    --------
    >>> without_unused(".a,.b .c{x:y}@media print{.b{x:z}}.d:not(.b){x:y}", {"a", "d"})
    '.a{x:y}.d:not(.b){x:y}'
    """
    kept = []
    for head, content in rules(re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)):
        name = head.strip()
        if content is None:
            kept.append(head)
        elif name.startswith(("@media", "@supports", "@layer", "@container")):
            if inner := without_unused(content, used):
                kept.append(f"{name}{{{inner}}}")
        elif name.startswith("@"):
            kept.append(f"{name}{{{content}}}")
        elif selectors := [one for one in split_selectors(name) if is_used(one, used)]:
            kept.append(f"{','.join(selectors)}{{{content}}}")
    return "".join(kept)


def split_selectors(text):
    """Return the selectors of a rule, which commas inside parentheses do not separate."""
    return [one.strip() for one in re.split(r",(?![^()]*\))", text)]


def is_used(selector, used):
    """Return whether the classes of a selector, except those in ``:not()`` and so on, are used."""
    outer = NESTED.sub("", selector)
    return all(name.replace("\\", "") in used for name in SELECTED.findall(outer))


def keep_characters(font, characters):
    """Write a font with only some characters as WOFF, in place of its other forms."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it reports each step
    made = TTFont(font)
    known = made.getBestCmap()
    kept = [one for one in characters if one in known] or [min(known)]  # none: no valid font
    options = subset.Options(flavor="woff", layout_features=[], notdef_outline=True)
    subsetter = subset.Subsetter(options)
    subsetter.populate(unicodes=kept)
    subsetter.subset(made)
    made.flavor = "woff"
    made.save(font.with_suffix(".woff"))
    font.unlink()
    font.with_suffix(".woff2").unlink()


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("build-finished", lighten, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
