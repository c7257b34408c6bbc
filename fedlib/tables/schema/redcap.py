"""Data dictionaries of REDCap: what they declare of the columns in a raw export.

The dictionary is the CSV file that a project offers for download, or that its API returns. The
export has raw data, and the names of variables as its header.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from fedlib.core.file_errors import reading
from fedlib.core.wording import read_edited
from fedlib.tables.schema.reading import listed
from fedlib.tables.streams import csv_reader

# The columns of the dictionary, and their names in the API.
HEADER = {
    "variable / field name": "field_name",
    "form name": "form_name",
    "field type": "field_type",
    "choices, calculations, or slider labels": "select_choices_or_calculations",
    "text validation type or show slider number": "text_validation_type_or_show_slider_number",
    "text validation min": "text_validation_min",
    "text validation max": "text_validation_max",
    "identifier?": "identifier",
}
NAME, FORM, KIND, CHOICES, VALIDATION, LOW, HIGH, IDENTIFIER = HEADER.values()
COMPLETE = {"0": "Incomplete", "1": "Unverified", "2": "Complete"}
YES, TRUTHS = ("y", "Y"), ("yesno", "truefalse", "checkbox")
# Columns that REDCap adds: of structure, and those that name a site or a person.
EVENT = "redcap_event_name"
REPEATS = ("redcap_repeat_instrument", "redcap_repeat_instance")
ADDED = (*REPEATS, "redcap_data_access_group", "redcap_survey_identifier")
# Validations whose texts are times of day, which no schema reads, or name a person.
NOT_READ = re.compile("(datetime|time|email|phone|ssn|mrn|vmrn)(_.*)?")
# Lines for the site's operator about the columns of an export.
UNKNOWN = "columns that the dictionary does not have"
LACKING = "variables that the export does not have"
SKIPPED = "not read, because they are identifiers, times, files, free text or added by REDCap"
SEVERAL = "a record can have several rows; export one event or instrument if it must not"


@dataclass(frozen=True)
class Dictionary:
    """A data dictionary.

    Attributes
    ----------
    entries : mapping of str to mapping of str to str
        By variable in the order of the project, its row by the API's names of the columns.
    """

    entries: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, path: str | Path) -> Dictionary:
        """Return the dictionary in a CSV file.

        Raises
        ------
        ValueError
            When it is none. The text begins with the name of the file.
        """
        with reading(path):
            content = read_edited(path)
            try:
                text = content.decode()
            except UnicodeDecodeError:  # Excel has saved it
                text = content.decode("windows-1252", "replace")
            mark = ";" if text.partition("\n")[0].count(";") > 5 else ","  # Excel's in Europe
            rows = [*csv_reader(io.StringIO(text, newline=""), delimiter=mark)] or [[]]
            header = [HEADER.get(cell.strip().lower(), cell.strip()) for cell in rows[0]]
            if not {NAME, FORM, KIND} <= {*header}:
                raise ValueError(
                    "it is no data dictionary of REDCap, with columns such as 'Variable / Field"
                    " Name'; download it in the project under Data Dictionary"
                )
            empty = dict.fromkeys(HEADER.values(), "")
            entries = [empty | dict(zip(header, map(str.strip, row), strict=False)) for row in rows]
            return cls({one[NAME]: one for one in entries[1:] if one[NAME]})

    @property
    def key(self) -> str | None:
        """The variable with the identifiers of the records; None if it identifies persons."""
        name = next(iter(self.entries), None)
        return None if name is None or self.entries[name][IDENTIFIER] in YES else name

    def declare(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return what is declared of the columns of an export, as fields of ``Stated``.

        Raises
        ------
        ValueError
            When no variable is a column.
        """
        if not any(self._variable(name) for name in names):
            raise ValueError(
                "no column is a variable of the dictionary; export raw data with variable names"
            )
        return {name: one for name in names if (one := self._declaration(name)) is not None}

    def compare(self, names: Sequence[str]) -> list[str]:
        """Return lines for the site's operator about an export with these columns."""
        present = {self._variable(name) for name in names}
        absent = [name for name in self.entries if name not in present]
        declared = {name: self._declaration(name) for name in names}
        lines = {
            UNKNOWN: [name for name in names if declared[name] is None],
            LACKING: [one for one in absent if self.entries[one][KIND] != "descriptive"],
            SKIPPED: [name for name in names if (declared[name] or {}).get("unreadable")],
            SEVERAL: [name for name in names if name in (EVENT, *REPEATS)],
        }
        return [f"{text}: {listed(found)}" for text, found in lines.items() if found]

    def _variable(self, name: str) -> str | None:
        """Return the variable of a column; a checkbox has one column per choice."""
        box = name.partition("___")[0]
        if self.entries.get(box, {}).get(KIND) == "checkbox":
            return box
        return name if name in self.entries else None

    def _declaration(self, name: str) -> dict[str, Any] | None:
        """Return what is declared of a column; None if the dictionary does not have it."""
        variable = self._variable(name)
        if variable is not None:
            return _declared(self.entries[variable])
        form, _, added = name.rpartition("_")
        of_form = any(one[FORM] == form for one in self.entries.values())
        if name in ADDED or (of_form and added == "timestamp"):
            return {"unreadable": True}
        if of_form and added == "complete":
            return {"labels": COMPLETE}
        return {"field": {"type": "string"}} if name == EVENT else None


def _declared(entry: Mapping[str, str]) -> dict[str, Any]:
    """Return what an entry declares."""
    kind, validation = entry[KIND].lower(), entry[VALIDATION].lower()
    if entry[IDENTIFIER] in YES or (kind == "text" and NOT_READ.fullmatch(validation)):
        return {"unreadable": True}
    if kind in ("radio", "dropdown"):
        return {"labels": _choices(entry[CHOICES])}
    if kind in TRUTHS:
        return {"field": {"type": "boolean"}}
    if kind == "slider":
        low, high = (entry[end] or default for end, default in ((LOW, "0"), (HIGH, "100")))
        return _with_limits({"type": "integer"}, low, high)
    if kind in ("calc", "sql") or (kind == "text" and not validation):
        return {}  # the rows say what they contain
    if kind != "text":
        return {"unreadable": True}
    field: dict[str, Any] = {"type": "string"}
    if validation.startswith("date_"):
        field = {"type": "date"}
    elif validation in ("integer", "int"):
        field = {"type": "integer"}
    elif validation.startswith(("number", "float")):
        field = {"type": "number"} | ({"decimalChar": ","} if "comma" in validation else {})
    return _with_limits(field, entry[LOW], entry[HIGH])


def _choices(text: str) -> dict[str, str]:
    """Return the labels of codes.

    Examples
    --------
    >>> _choices("1, Male | 2, Female, or other | 007, Unknown")
    {'1': 'Male', '2': 'Female, or other', '007': 'Unknown'}
    """
    pairs = (one.partition(",") for one in text.split("|") if one.strip())
    return {code.strip(): label.strip() for code, _, label in pairs}


def _with_limits(field: dict[str, Any], low: str, high: str) -> dict[str, Any]:
    """Return a declared field with its limits; other limits, such as "today", are left out."""
    limits: dict[str, Any] = {}
    for name, text in (("minimum", low), ("maximum", high)):
        try:
            if field["type"] == "date":
                limits[name] = date.fromisoformat(text).isoformat()
            elif field["type"] != "string":
                number = float(text.replace(",", "."))
                limits[name] = int(number) if number.is_integer() else number
        except ValueError:
            continue
    return {"field": {**field, **({"constraints": limits} if limits else {})}}
