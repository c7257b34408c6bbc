#!/usr/bin/env bash
# One would guess: a parameter of a notebook has the same value and type whether papermill gets it by `-p`, by `-y` or by a file
# (`-f`), so that the command that worked by hand can be kept in a file.
# What happens (papermill 2.7.0): 1e-8 is a number by `-p`, and the text "1e-8" by `-y` and `-f`, because YAML 1.1 wants a dot and a
# sign (1.0e-8). The other way round, `-p site 007` and `-p site 1_000` inject the numbers 7 and 1000, and `-p site nan` a missing
# number, where a file has text in quotation marks. Tolerances as text fail late, or compare as text.
# Instead: write 1.0e-8 in files; give identifiers by `-r` (raw text); check types in the first cell of the notebook.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -c 'import sys; sys.exit("this needs Python 3.12 or later") if sys.version_info < (3, 12) else None'
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check papermill==2.7.0 nbformat==5.10.4
cd "$folder"
venv/bin/python -W ignore - <<'PYTHON'
import subprocess

import nbformat

notebook = nbformat.v4.new_notebook()
notebook.cells = [nbformat.v4.new_code_cell("tol = 0.1\nsite = 'a'", metadata={"tags": ["parameters"]})]
notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python", "language": "python"}
nbformat.write(notebook, "n.ipynb")
with open("p.yml", "w") as file:
    file.write("tol: 1e-8\n")
with open("q.yml", "w") as file:
    file.write("tol: 1.0e-8\n")


def injected(*options):
    """Return the parameters that papermill writes into the notebook."""
    command = ["venv/bin/papermill", "n.ipynb", "o.ipynb", "--prepare-only", "--no-progress-bar", *options]
    subprocess.run(command, check=True, capture_output=True)
    cells = nbformat.read("o.ipynb", 4).cells
    (source,) = [cell.source for cell in cells if "injected-parameters" in cell.metadata.get("tags", [])]
    values = {}
    exec(source, values)
    value = values["tol"] if "tol" in source else values["site"]
    print(*options, "->", repr(value))
    return value


assert injected("-p", "tol", "1e-8") == 1e-8
assert injected("-y", "{tol: 1e-8}") == "1e-8"
assert injected("-f", "p.yml") == "1e-8"
assert injected("-f", "q.yml") == 1e-8
assert injected("-p", "site", "007") == 7
assert injected("-p", "site", "1_000") == 1000
assert injected("-p", "site", "nan") != injected("-r", "site", "nan") == "nan"
PYTHON
