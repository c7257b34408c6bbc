"""Print a page to a tagged PDF with an outline and page numbers: `print_pdf.py page.html book.pdf`.

It uses the Chromium of the system.
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
# Chromium prints what is visible: formulas must be drawn, and folded parts open.
PREPARE = """async () => {
  await window.MathJax?.startup?.promise
  document.querySelectorAll('details').forEach(part => { part.open = true })
  await document.fonts.ready
}"""


def print_pdf(page, target):
    """Print the file `page` to the file `target`."""
    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        sys.exit(f"the PDF needs Chromium: none of {', '.join(NAMES)} is on the PATH")
    target.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(color_scheme="light")
        tab.set_default_timeout(600_000)
        tab.goto(page.absolute().as_uri(), wait_until="load")
        tab.evaluate(PREPARE)
        tab.pdf(
            path=target,
            format="A4",
            margin=MARGINS,
            display_header_footer=True,
            header_template="<span></span>",
            footer_template=FOOTER,
            tagged=True,
            outline=True,
        )
        browser.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    print_pdf(options.page, options.target)
