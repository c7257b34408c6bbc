"""The parts that every page has: boxes, and figures and tables with numbers.

- A quotation that begins with the bold words "In short.", "In practice." or "Try it." becomes a box
  with that title. In JupyterLab and on Colab it reads as a quotation.
- An output that `study.shared.pages` wraps in ``<figure class="fedlib-…">`` becomes a figure or a
  table with a number, and its name a target of ``{numref}``. Its images become files of the page,
  as WebP, which needs less than half of the bytes of PNG for the same pixels, and a script that it
  contains for JupyterLab the file of the same name in ``_static``.
- A figure with ``in_short=True`` also stands in the box "In short".
"""

import base64
import hashlib
import html
import io
import json
import re
from pathlib import Path

from docutils import nodes
from PIL import Image
from sphinx.transforms import SphinxTransform
from sphinx.util.osutil import relative_uri

BOXES = {"In short.": "in-short", "In practice.": "in-practice", "Try it.": "try-it"}
CAPTIONED = re.compile(
    r'<figure class="(?P<classes>fedlib-(?P<kind>figure|table)[a-z -]*)" id="(?P<name>[\w-]+)">'
    r"(?P<content>.*)</figure>",
    re.DOTALL,
)
# JupyterLab shows the name of a figure, by which texts refer to it there.
CAPTION = re.compile(r"<figcaption>(.*?)(?: <small>[\w-]+</small>)?</figcaption>", re.DOTALL)
PICTURE = re.compile(
    r'<span class="fedlib-panels".*?</span>|<picture.*?</picture>|<img [^>]*>', re.DOTALL
)
EMBEDDED = re.compile(r'((?:src|srcset)=")data:image/png;base64,([A-Za-z0-9+/=]+)')
ASSET = re.compile(r'(<script type="[\w/]+" data-asset="([\w.]+)")>(.*?)</script>', re.DOTALL)
TAG = re.compile(r"<[^>]+>")
HEAVY = 150_000  # bytes of a picture, of noise for example, that is stored with a loss


class Captioned(nodes.General, nodes.Element):
    """A figure or a table: HTML with a caption and a number."""


class CaptionedFigure(Captioned):
    """A figure."""


class CaptionedTable(Captioned):
    """A table."""


KINDS = {"figure": CaptionedFigure, "table": CaptionedTable}


class Boxes(SphinxTransform):
    """Turn quotations that begin with a title of `BOXES` into boxes."""

    default_priority = 400

    def apply(self, **_):
        """Replace the quotations of a page."""
        for quotation in list(self.document.findall(nodes.block_quote)):
            first = quotation.next_node(nodes.paragraph)
            # The parser adds empty texts, and the numbers of footnotes are not known yet.
            kept = nodes.footnote_reference
            words = [node for node in first or [] if node.astext() or isinstance(node, kept)]
            name = BOXES.get(words[0].astext()) if words else None
            if name is None or not isinstance(words[0], nodes.strong):
                continue
            if len(words) > 1 and isinstance(words[1], nodes.Text):
                words[1] = nodes.Text(words[1].lstrip())
            first.children = []
            first.extend(words[1:])
            title = nodes.title("", words[0].astext().rstrip("."))
            content = quotation.children if words[1:] else quotation.children[1:]
            classes = ["fedlib-box", f"fedlib-{name}"]
            quotation.replace_self(nodes.admonition("", title, *content, classes=classes))


class Captions(SphinxTransform):
    """Turn outputs with captions into figures and tables."""

    default_priority = 410  # after the boxes

    def apply(self, **_):
        """Replace the outputs of a page."""
        for raw in list(self.document.findall(nodes.raw)):
            match = CAPTIONED.fullmatch(raw.astext().strip())
            if match is None or raw.get("format") != "html":
                continue
            caption = CAPTION.search(match["content"])
            name = match["name"]
            captioned = KINDS[match["kind"]](
                raw.rawsource,
                names=[nodes.fully_normalize_name(name)],
                classes=match["classes"].split(),
                caption=caption[1],
                content=CAPTION.sub("", match["content"], count=1),
            )
            captioned.source, captioned.line = raw.source, raw.line
            raw.replace_self(captioned)
            self.document.note_explicit_target(captioned)
            if "fedlib-in-short" in captioned["classes"]:
                self.show_in_short(captioned)

    def show_in_short(self, captioned):
        """Show a figure's images in the box "In short", as a link to it, and its caption."""
        for box in self.document.findall(nodes.admonition):
            if "fedlib-in-short" in box["classes"]:
                images = "".join(PICTURE.findall(captioned["content"]))
                link = f'<a class="fedlib-preview" href="#{captioned["ids"][0]}">{images}</a>'
                caption = f'<p class="fedlib-preview-caption">{captioned["caption"]}</p>'
                box += Preview("", content=link + caption)
                return


class Preview(nodes.General, nodes.Element):
    """The images and the caption of a figure that stands further down."""


def caption_text(node):
    """Return the caption of a figure or a table without tags."""
    return html.unescape(TAG.sub("", node["caption"]))


def store_files(translator, content):
    """Return HTML whose embedded images and scripts are files of the book."""
    builder = translator.builder
    page = builder.get_target_uri(builder.current_docname)

    def store(match):
        data = base64.b64decode(match[2])
        name = f"{hashlib.sha256(data).hexdigest()[:20]}.webp"
        path = Path(builder.outdir, builder.imagedir, name)
        if not path.exists():  # the box "In short" repeats a figure
            path.parent.mkdir(exist_ok=True)
            picture = Image.open(io.BytesIO(data)).convert("RGBA")
            # 256 colours look the same in a plot, and take half of the bytes.
            picture = picture.quantize(256, method=Image.Quantize.FASTOCTREE).convert("RGBA")
            picture.save(path, lossless=True, method=2)
            if path.stat().st_size > HEAVY:
                picture.save(path, quality=85)
        return match[1] + relative_uri(page, f"{builder.imagedir}/{name}")

    def refer(match):
        name = match[2]
        if "json" in match[1]:  # data, which a script puts into the page
            path = Path(builder.outdir, "_static/parts", f"{name}.js")
            path.parent.mkdir(parents=True, exist_ok=True)
            place = f"document.querySelector('[data-asset=\"{name}\"]')"
            path.write_text(f"{place}.text = {json.dumps(match[3])}\n", encoding="utf-8")
            name = f"parts/{path.name}"
        return f'{match[1]} data-src="{relative_uri(page, f"_static/{name}")}"></script>'

    return ASSET.sub(refer, EMBEDDED.sub(store, content))


def visit(translator, node):
    """Write the opening tag, the caption of a table, and the content."""
    translator.body.append(translator.starttag(node, "figure"))
    if isinstance(node, CaptionedTable):
        write_caption(translator, node)
    translator.body.append(store_files(translator, node["content"]))


def depart(translator, node):
    """Write the caption of a figure, and the closing tag."""
    if isinstance(node, CaptionedFigure):
        write_caption(translator, node)
    translator.body.append("</figure>\n")


def write_caption(translator, node):
    """Write the number and the text of a caption."""
    translator.body.append("<figcaption>")
    translator.add_fignumber(node)
    translator.body.append(f'<span class="caption-text">{node["caption"]}</span>')
    what = "table" if isinstance(node, CaptionedTable) else "figure"
    translator.add_permalink_ref(node, f"Link to this {what}")
    translator.body.append("</figcaption>")


def visit_preview(translator, node):
    """Write the images."""
    translator.body.append(store_files(translator, node["content"]))


def skip(translator, node):
    """Write nothing."""


def setup(app):
    """Register the transforms and the nodes."""
    for kind, node in KINDS.items():
        app.add_enumerable_node(node, kind, caption_text, html=(visit, depart))
    app.add_node(Preview, html=(visit_preview, skip))
    app.add_transform(Boxes)
    app.add_transform(Captions)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
