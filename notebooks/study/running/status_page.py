"""Pictures of the status page of a server."""

import base64
import re
import shutil
import urllib.request
from html import escape
from importlib.util import find_spec

BLANK = """for (const time of document.querySelectorAll("time")) time.textContent = "–";"""


async def pictures(url, widths, alt):
    """Return pictures of the status page, or the page itself if there is no Chromium, as HTML.

    Times are left out, because they differ from run to run.

    Parameters
    ----------
    url : str
        The address of the server.
    widths : sequence of int
        The width of each picture, in pixels.
    alt : str
        What the page shows, for a reader who cannot see it.
    """
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
    if not (chromium and find_spec("playwright")):
        page = urllib.request.urlopen(f"{url}/?still").read().decode()
        page = escape(re.sub("<time>.*?</time>", "–", page))
        return [
            f'<iframe title="{alt}" srcdoc="{page}" width="{width}" height="700"></iframe>'
            for width in widths
        ]
    from playwright.async_api import async_playwright

    images = []
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": widths[0], "height": 200})
        await page.goto(f"{url}/?still")
        await page.evaluate(BLANK)
        for width in widths:
            await page.set_viewport_size({"width": width, "height": 200})
            image = base64.b64encode(await page.screenshot(full_page=True)).decode()
            images.append(f'<img alt="{alt}" width="{width}" src="data:image/png;base64,{image}">')
        await browser.close()
    return images
