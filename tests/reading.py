"""What the README and the pages tell a reader to type, found by its form in their texts."""

import json
import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SHELLS = {"sh", "shell", "bash", "console"}


def pages():
    """Return the text of the README and of every page, by its name."""
    found = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in (ROOT / "README.md", ROOT / "datasets/README.md", *ROOT.glob("book/*.md"))
    }
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        found[f"notebooks/{path.name}"] = "\n\n".join(texts)
    return found


def blocks(text, *languages):
    """Return the blocks of code of some languages in a text."""
    return [code for _, language, code in BLOCK.findall(text) if language in languages]


def commands(text):
    r"""Return the commands in a text's blocks, one line each, without prompt and comment.

    Examples
    --------
    >>> commands("```sh\nfedlib serve kmeans --n-clusters 3  # the server\n```\n")
    ['fedlib serve kmeans --n-clusters 3']
    """
    lines = []
    for code in blocks(text, *SHELLS):
        joined = code.replace("\\\n", " ").splitlines()
        prompted = [line[2:] for line in joined if line.startswith("$ ")]
        lines += prompted or [line for line in joined if line.strip()]
    return [re.sub(r"\s+#.*", "", line) for line in lines]


def mentions(text):
    """Return the code within the sentences of a text.

    Examples
    --------
    >>> mentions("Type `make lab`.")
    ['make lab']
    """
    return INLINE.findall(BLOCK.sub("", text))


def runs(text):
    """Return the runs of notebooks that a text tells to type: the notebook and its parameters.

    ``make run NOTEBOOK=name SET="a=1 b=2"`` and ``papermill name.ipynb out.ipynb -p a 1`` count.

    Examples
    --------
    >>> runs('`make run NOTEBOOK=kmeans SET="n_seeds=2 dataset=3d"` or `make run`')
    [('kmeans', ['n_seeds=2', 'dataset=3d'])]
    >>> runs("`papermill notebooks/dbscan.ipynb out.ipynb -p eps 0.3`")
    [('dbscan', ['eps=0.3'])]
    """
    found = []
    for line in (*commands(text), *mentions(text)):
        if line.startswith("make run ") and "NOTEBOOK=" in line:
            given = dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)
            found.append((given["NOTEBOOK"], shlex.split(given.get("SET", ""))))
        elif line.startswith("papermill "):
            words = shlex.split(line)
            at = [i for i, word in enumerate(words) if word in ("-p", "--parameters")]
            found.append((Path(words[1]).stem, [f"{words[i + 1]}={words[i + 2]}" for i in at]))
    return found
