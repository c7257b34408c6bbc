"""A search that answers questions, in place of Sphinx's, which wants every word on the page.

`book/search.yml` lists what readers ask, by page, and words that mean the same. The index that this
extension writes has, for each page, these questions, and for each word the pages with it, ranked by
BM25F: a word in a title counts more than one in the text. `_static/search.js` reads it.
"""

import json
import math
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import chain
from pathlib import Path

import snowballstemmer
import yaml
from docutils import nodes

INDEX = "_static/search-index.js"
# How much a word of a field counts, and how much less in a long field (from 0 to 1).
FIELDS = {
    "title": (8, 0.3),
    "asked": (6, 0.3),
    "question": (4, 0.5),
    "heading": (3, 0.5),
    "short": (2, 0.5),
    "text": (1, 0.75),
}
SATURATION = 1.2  # of BM25: many occurrences count at most this much more than one
AS_SYNONYM = 0.4  # how much a word counts that only means the same
GENERATED, REPEATED = 0.5, 0.8  # weights of pages from the source code, and of "the same on 3MC"
SCALE = 20  # the index has integers
WORD = re.compile(r"[^\W_]+")
SINGLE = re.compile(r"\b([a-z])-(?=[a-z])")  # k-means is one word
SHOWN = 220  # characters of a page's summary in the results
STEM = cache(snowballstemmer.stemmer("porter").stemWord)  # most words are repeated


def words(text):
    """Return the stems of the words of a text, as `search.js` does.

    Examples
    --------
    >>> words("How does k-means work at hospitals?")
    ['how', 'doe', 'kmean', 'work', 'at', 'hospit']
    """
    return [STEM(word) for word in WORD.findall(SINGLE.sub(r"\1", text.lower()))]


def groups(synonyms):
    """Return the number of the group of each stem; a word in two groups belongs to the first."""
    numbers = {}
    for number, group in enumerate(synonyms):
        for word in group:
            stems = words(word)
            if len(stems) == 1:
                numbers.setdefault(stems[0], number)
    return numbers


def fields_of(doctree, is_generated):
    """Return the texts of a page by field, without footnotes, and its summary."""
    for note in [*doctree.findall(nodes.footnote), *doctree.findall(nodes.footnote_reference)]:
        note.parent.remove(note)
    found = defaultdict(list)
    titles = [node.astext() for node in doctree.findall(nodes.title)]
    found["title"], found["heading"] = titles[:1], titles[1:]
    summary = ""
    for node in doctree.findall(nodes.TextElement):
        text = node.astext()
        if isinstance(node, nodes.title | nodes.literal_block) or text in titles:
            continue
        if not isinstance(node, nodes.paragraph | nodes.term | nodes.caption):
            continue
        if text.startswith("Question."):
            found["question"].append(text.removeprefix("Question."))
            summary = text.removeprefix("Question.")
        elif "fedlib-in-short" in getattr(node.parent, "attributes", {}).get("classes", ()):
            found["short"].append(text)
        elif is_generated and summary:
            continue  # the first sentence says what an object is for
        else:
            found["text"].append(text)
            summary = summary or text
    return found, " ".join(summary.split())


def impacts(pages, numbers, dropped=()):
    """Return, for each word, the pages with it and its weight there, by BM25F.

    Parameters
    ----------
    pages : list of (mapping of field to list of str, float)
        The texts of each page, and its weight.
    numbers : mapping of stem to int
        From `groups`. The word ``#3`` stands for all words of the group 3.
    dropped : set of str, optional
        Stems that are not listed.
    """
    counts = [
        {field: Counter(terms(texts, numbers)) for field, texts in fields.items()}
        for fields, _ in pages
    ]
    lengths = [{field: one.total() for field, one in page.items()} for page in counts]
    means = {
        field: sum(page.get(field, 0) for page in lengths)
        / max(1, sum(bool(page.get(field)) for page in lengths))
        for field in FIELDS
    }
    weights = defaultdict(dict)
    for number, (page, length) in enumerate(zip(counts, lengths, strict=True)):
        for field, one in page.items():
            weight, part = FIELDS[field]
            norm = 1 - part + part * length[field] / (means[field] or 1)
            for term, count in one.items():
                weights[term][number] = weights[term].get(number, 0) + weight * count / norm
    index = {}
    for term, found in sorted(weights.items()):
        if term in dropped:
            continue
        rarity = math.log(1 + (len(pages) - len(found) + 0.5) / (len(found) + 0.5))
        scale = SCALE * rarity * (AS_SYNONYM if term.startswith("#") else 1)
        listed = {
            number: round(scale * pages[number][1] * weight / (weight + SATURATION))
            for number, weight in found.items()
        }
        index[term] = list(chain.from_iterable(sorted(listed.items())))
    return index


def terms(texts, numbers):
    """Yield the stems of texts, and the groups to which they belong."""
    for stem in words(" ".join(texts)):
        yield stem
        if stem in numbers:
            yield f"#{numbers[stem]}"


def read_questions(app):
    """Return the content of `search.yml`."""
    return yaml.safe_load(Path(app.srcdir, "book/search.yml").read_text(encoding="utf-8"))


def write_index(app, error):
    """Write the index as a script, which a page that is a file may load, too."""
    if error is not None or app.builder.name != "html":
        return
    asked = read_questions(app)
    numbers = groups(asked["synonyms"])
    if unknown := sorted(asked["pages"].keys() - app.env.found_docs):
        raise ValueError(f"search.yml: there are no pages {', '.join(unknown)}")
    pages, listed = [], []
    for name in sorted(app.env.found_docs):
        is_generated = name.startswith("book/reference/")
        fields, summary = fields_of(app.env.get_doctree(name), is_generated)
        fields["asked"] = asked["pages"].get(name, [])
        weight = GENERATED if is_generated else REPEATED if "-" in name else 1
        pages.append((fields, weight))
        short = summary if len(summary) <= SHOWN else summary[:SHOWN].rpartition(" ")[0] + " …"
        title = app.env.titles[name].astext()
        address = app.builder.get_target_uri(name)
        listed.append([address, title, short, fields["asked"]])
    places = {page[0]: number for number, page in enumerate(listed)}
    index = {
        "pages": listed,
        "objects": objects_of(app, places),
        "groups": numbers,
        "dropped": words(asked["dropped"]),
        "weak": words(asked["weak"]),
        "terms": impacts(pages, numbers, set(words(asked["dropped"]))),
    }
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    Path(app.outdir, INDEX).write_text(f"useIndex({text})\n", encoding="utf-8")


def objects_of(app, places):
    """Return, for the name of each object, its page, its anchor and its full name.

    Of objects with one name, the one with the shortest full name is taken.
    """
    found = {}
    objects = app.env.get_domain("py").objects
    for name, entry in sorted(objects.items(), key=lambda item: (len(item[0]), item[0])):
        place = places[app.builder.get_target_uri(entry.docname)]
        found.setdefault(name.rpartition(".")[2].lower(), [place, entry.node_id, name])
    return found


def setup(app):
    """Connect the function to Sphinx."""
    app.connect("build-finished", write_index)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
