"""Files of Excel, OpenDocument and Dataset-JSON that the tests write cell by cell."""

import json
import zipfile
from typing import NamedTuple
from xml.sax.saxutils import escape, quoteattr

MAIN = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
TYPES = (
    f'<Types xmlns="{PACKAGE}/content-types">'
    '<Default Extension="rels"'
    ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/></Types>'
)


def write_excel(path, sheets):
    """Write sheets, by name, of rows of numbers, texts, truth values, None and raw cells."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", TYPES)
        link = [("officeDocument", "xl/workbook.xml")]
        archive.writestr("_rels/.rels", _links(link))
        listed = "".join(
            f'<sheet name="{escape(name)}" sheetId="{i}" r:id="r{i}"/>'
            for i, name in enumerate(sheets, 1)
        )
        book = f'<workbook {MAIN} xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>'
        archive.writestr("xl/workbook.xml", book)
        links = [("worksheet", f"worksheets/{i}.xml") for i in range(1, len(sheets) + 1)]
        archive.writestr("xl/_rels/workbook.xml.rels", _links(links))
        for i, rows in enumerate(sheets.values(), 1):
            archive.writestr(f"xl/worksheets/{i}.xml", _sheet(rows))


def _links(targets):
    links = "".join(
        f'<Relationship Id="r{i}" Type="{OFFICE}/{kind}" Target="{target}"/>'
        for i, (kind, target) in enumerate(targets, 1)
    )
    return f'<Relationships xmlns="{PACKAGE}/relationships">{links}</Relationships>'


def _sheet(rows):
    data = "".join(
        f'<row r="{number}">'
        + "".join(_cell(f"{chr(65 + j)}{number}", value) for j, value in enumerate(row))
        + "</row>"
        for number, row in enumerate(rows, 1)
    )
    return f"<worksheet {MAIN}><sheetData>{data}</sheetData></worksheet>"


def _cell(place, value):
    if value is None:
        return ""
    if isinstance(value, Raw):
        return f'<c r="{place}"{value.attributes}>{value.content}</c>'
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float):
        return f'<c r="{place}"><v>{value!r}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'


class Raw(NamedTuple):
    """The XML of a cell."""

    content: str
    attributes: str = ""


# OpenDocument

OASIS = "urn:oasis:names:tc:opendocument:xmlns"
SPACES = " ".join(
    [f'xmlns:{name}="{OASIS}:{name}:1.0"' for name in ("office", "table", "text", "drawing")]
    + ['xmlns:calcext="urn:org:documentfoundation:names:experimental:calc:xmlns:calcext:1.0"']
)
EMPTY_END = (
    '<table:table-row table:number-rows-repeated="1048000">'
    '<table:table-cell table:style-name="a" table:number-columns-repeated="16384"/>'
    "</table:table-row>"
)


def write_ods(path, sheets, before="", end=EMPTY_END):
    """Write sheets, by name, of rows of numbers, texts, truth values, None and XML of cells.

    A row may also be the XML of one.
    """
    tables = "".join(
        f"<table:table table:name={quoteattr(name)}>{''.join(map(_ods_row, rows))}{end}"
        "</table:table>"
        for name, rows in sheets.items()
    )
    content = (
        f'<?xml version="1.0" encoding="UTF-8"?>{before}<office:document-content {SPACES}>'
        f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>"
        "</office:document-content>"
    )
    write_parts(path, content)


def write_parts(path, content):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/vnd.oasis.opendocument.spreadsheet")
        space = f'xmlns:manifest="{OASIS}:manifest:1.0"'
        archive.writestr("META-INF/manifest.xml", f"<manifest:manifest {space}/>")
        archive.writestr("content.xml", content)


def _ods_row(row):
    if isinstance(row, str):
        return row
    return f"<table:table-row>{''.join(map(ods_cell, row))}</table:table-row>"


def ods_cell(value):
    if value is None:
        return "<table:table-cell/>"
    if isinstance(value, str):
        return value if value.startswith("<") else cell("string", None, value)
    kind = "boolean" if isinstance(value, bool) else "float"
    return cell(kind, str(value).lower(), str(value))


def cell(kind, value=None, shown="", more=""):
    """Return the XML of a cell with a type, the stored value and the shown text."""
    names = {"boolean": "boolean-value", "date": "date-value", "time": "time-value"}
    stored = "" if value is None else f' office:{names.get(kind, "value")}="{value}"'
    text = f"<text:p>{escape(shown)}</text:p>" if shown else ""
    return f'<table:table-cell office:value-type="{kind}"{stored}{more}>{text}</table:table-cell>'


def formula(kind, value=None, shown="", more=""):
    return cell(kind, value, shown, f' table:formula="of:=[.A1]"{more}')


# Dataset-JSON


def write_dataset(path, columns, **changed):
    """Write columns: by name, the data type (or it and the target type) and the cells."""
    described, cells = [], []
    for name, (kind, values) in columns.items():
        kind, target = (kind, None) if isinstance(kind, str) else kind
        one = {"itemOID": f"IT.{name}", "name": name, "label": "A label", "dataType": kind}
        described.append(one | ({"targetDataType": target} if target else {}))
        cells.append(values)
    rows = [list(row) for row in zip(*cells, strict=True)]
    head = {
        "datasetJSONCreationDateTime": "2024-07-30T09:38:42",
        "datasetJSONVersion": "1.1.0",
        "itemGroupOID": "IG.DM",
        "records": len(rows),
        "name": "DM",
        "label": "Demographics",
        "columns": described,
    } | changed
    if path.suffix == ".ndjson":
        path.write_text("\n".join(map(json.dumps, [head, *rows])) + "\n")
    else:
        path.write_text(json.dumps({**head, "rows": rows}))
    return path
