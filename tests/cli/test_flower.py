"""``fedlib flower new``."""

from pathlib import Path

from cli_helpers import invoke

from fedlib.transports.flower_app import TEMPLATE


def test_the_app_is_written_once(tmp_path):
    folder = tmp_path / "app"
    invoke("flower", "new", folder)
    template = {path.relative_to(TEMPLATE) for path in TEMPLATE.rglob("*.[pmt]*[ydl]")}
    written = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    assert written == template >= {Path("README.md"), Path("pyproject.toml")}
    assert "is not empty" in invoke("flower", "new", folder, code=2)


def test_an_app_that_cannot_be_written_is_reported(tmp_path):
    file = tmp_path / "file"
    file.touch()
    output = invoke("flower", "new", file / "app", code=1)
    assert output.startswith(f"Error: {file / 'app'}: cannot be written")
