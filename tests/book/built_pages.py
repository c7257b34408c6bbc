"""What the tests of a built book share."""

import json
import re


def parts_of(page):
    """Return the texts of the parts that a built page loads later."""
    text = page.read_text(encoding="utf-8")
    files = [
        page.parent / one for one in re.findall(r'data-part="\w+" data-source="([^"]+)"', text)
    ]
    return [content_of(file) for file in files]


def content_of(part):
    """Return the text in a stored part of a page."""
    return json.loads(part.read_text(encoding="utf-8").partition(", ")[2].rpartition(")")[0])


def whole(page):
    """Return the text of a built page, with the parts that it loads later at its end."""
    return page.read_text(encoding="utf-8") + "".join(parts_of(page))
