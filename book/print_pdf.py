"""Print the book to a tagged PDF with an outline and page numbers: `print_pdf.py FOLDER book.pdf`.

The folder is the result of Sphinx's builder `singlehtml`. Chromium must be installed.
"""

import argparse
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
FOOTER = """<div style="width: 100%; font: 8px sans-serif; text-align: center">
<span class="pageNumber"></span> of <span class="totalPages"></span></div>"""
MARGINS = dict.fromkeys(("left", "right"), "15mm") | {"top": "15mm", "bottom": "18mm"}
SHORT = 8  # the lines of code that are printed: calls, and no functions
# Chromium prints what is visible: solutions must be open. Long code and long tables stay folded:
# they would be most of the pages. The first page says so.
PREPARE = """async lines => {
  document.querySelectorAll('.cell_input:not(details .cell_input)').forEach(part => {
    part.hidden = part.textContent.trim().split('\\n').length > lines
  })
  const note = document.createElement('p')
  note.textContent = `This is the printed book. Code of more than ${lines} lines and long ` +
    'tables are in its web pages and notebooks. Figures that play or compute show one state.'
  document.querySelector('.bd-article h1').after(note)
  document.querySelectorAll('details.toggle-details, details.fedlib-parameters').forEach(
    part => { part.open = true })
  await document.fonts.ready
}"""
STYLE = """.skip-link, #pst-skip-link, .bd-header, .bd-header-article, .bd-sidebar,
  .bd-sidebar-primary,
  .bd-sidebar-secondary, .prev-next-area, .search-button, .pst-back-to-top, #pst-back-to-top,
  .bd-footer, .bd-footer-content, dialog, details.hide, #jb-print-toc,
  .claims-filter, .claims-table, .bd-article [hidden],
  .bd-article :is(button, input, select, .fedlib-ask)
  { display: none !important }
  /* Code may continue on the next page; figures and rows may not, and a title has text below it. */
  .bd-article :is(pre, .cell, .cell_input, .cell_output, .highlight, [class*="highlight-"])
  { break-inside: auto !important; display: block; overflow: visible !important }
  .bd-article :is(figure.fedlib-figure, tr, .sd-card, .sd-row) { break-inside: avoid }
  .bd-article :is(h1, h2, h3, h4, figcaption, .admonition-title) { break-after: avoid }
  /* Paper does not scroll. */
  .bd-article .fedlib-scroll { overflow: visible !important }
  .bd-article table { font-size: 8pt !important }
  .bd-article :is(td, th)
  { min-width: 0 !important; white-space: normal !important; overflow-wrap: break-word }
  .bd-article .fedlib-parameters th code { white-space: nowrap }"""


def print_pdf(folder, target):
    """Print the book in `folder` to the file `target`."""
    page = folder / "book.html"  # Sphinx writes it elsewhere, with references from here
    shutil.copy(folder / "book/intro.html", page)
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        sys.exit(f"the PDF needs Chromium: none of {', '.join(NAMES)} is on the PATH")
    target.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(color_scheme="light")
        tab.set_default_timeout(600_000)
        tab.goto(page.absolute().as_uri(), wait_until="load")
        tab.evaluate(PREPARE, SHORT)
        tab.add_style_tag(content=STYLE)
        tab.pdf(
            path=target,
            format="A4",
            margin=MARGINS,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOTER,
            tagged=True,
            outline=True,
            print_background=True,  # the colours of verdicts
        )
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    print_pdf(options.folder, options.target)
