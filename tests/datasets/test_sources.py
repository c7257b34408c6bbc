"""Where files are searched for, how they are checked, and downloads."""

import socket
import time

import pytest

from fedlib.datasets import CorruptFile, StandInWarning, load, sources


def test_sources_of_an_installed_package(monkeypatch, tmp_path):
    row = "banana,b.arff,https://example.org/b.arff,0123,7,contents,notes"
    (tmp_path / "sources.csv").write_text(f"name,file,url,sha256,bytes,contents,notes\n{row}\n")
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "sources.py"))
    table = sources.sources.__wrapped__()
    assert list(table) == ["banana"]
    assert table["banana"].file == "b.arff"


def test_truncated_file(expect, folder):
    content = b"age,target\n63,1\n37,0\n"
    expect("heart", content)
    path = folder / "heart.csv"
    path.write_bytes(content[:-5])
    with pytest.raises(CorruptFile) as error:
        load("heart")
    assert str(error.value) == f"{path} is truncated or altered: it has 16 bytes, not 21"
    assert isinstance(error.value, ValueError)


def test_altered_file(expect, folder):
    content = b"age,target\n63,1\n37,0\n"
    sha256 = expect("heart", content).sha256
    path = folder / "heart.csv"
    path.write_bytes(content.replace(b"63", b"36"))
    with pytest.raises(CorruptFile) as error:
        load("heart")
    assert str(error.value).startswith(f"{path} is altered: its SHA-256 is ")
    assert str(error.value).endswith(f", not {sha256}")


def test_altered_file_in_the_cache(expect, requested, cache):
    expect("heart", b"age,target\n63,1\n")
    cache.mkdir()
    (cache / "heart.csv").write_bytes(b"age,target\n36,1\n")
    with pytest.raises(CorruptFile, match=r"cache.heart\.csv is altered"):
        load("heart")
    assert not requested


def test_folder_before_cache_before_network(expect, folder, cache, requested):
    content = b"age,target\n63,1\n"
    expect("heart", content)
    cache.mkdir()
    (cache / "heart.csv").write_bytes(content)
    assert load("heart").source == "real"  # from the cache, since the file is not in the folder
    (folder / "heart.csv").write_bytes(b"not what it should be")
    with pytest.raises(CorruptFile, match=r"data.heart\.csv"):
        load("heart")
    assert not requested


def test_folder_that_does_not_exist(requested, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"FEDLIB_DATA must be an existing folder.*nowhere"):
        load("banana")
    assert load("moons").source == "real"  # it needs no folder


def test_empty_variable_names_no_folder(requested, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", "")
    with pytest.warns(StandInWarning):
        assert load("3MC").source == "stand-in"


def test_download_is_kept(cache, expect, serve, capfd):
    content = b"age,target\n63,1\n"
    address, requested = serve({"/heart.csv": content})
    expect("heart", content, url=f"{address}/heart.csv")
    for _ in range(2):
        heart = load("heart")
        assert heart.source == "real"
        assert heart.X.tolist() == [[63]]
    assert requested == ["/heart.csv"]
    assert (cache / "heart.csv").read_bytes() == content
    assert capfd.readouterr() == ("", "")


def test_download_of_something_else(cache, expect, serve):
    address, _ = serve({"/heart.csv": b"<html>please log in</html>"})
    expect("heart", b"age,target\n63,1\n", url=f"{address}/heart.csv")
    with pytest.raises(CorruptFile, match=f"{address}/heart.csv is altered"):
        load("heart")
    assert list(cache.iterdir()) == []


def test_a_missing_page_does_not_mean_that_the_network_is_unavailable(cache, expect, serve):
    content = b"age,target\n63,1\n"
    address, requested = serve({"/heart.csv": content})
    expect("3MC", b"", url=f"{address}/3MC.arff")
    expect("heart", content, url=f"{address}/heart.csv")
    with pytest.warns(StandInWarning, match="failed with HTTPError"):
        assert load("3MC").source == "stand-in"
    assert load("heart").source == "real"
    assert requested == ["/3MC.arff", "/heart.csv"]


def test_silent_server(cache, expect, monkeypatch):
    monkeypatch.setattr(sources, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        expect("3MC", b"", url=f"http://127.0.0.1:{server.getsockname()[1]}/3MC.arff")
        start = time.perf_counter()
        with pytest.warns(StandInWarning, match="failed with ReadTimeout"):
            assert load("3MC").source == "stand-in"
        assert time.perf_counter() - start < 5


def test_an_unavailable_network_is_tried_once(requested):
    with pytest.warns(StandInWarning, match="3MC: no file, .* failed with ConnectionError"):
        load("3MC")
    with pytest.warns(
        StandInWarning, match="aggregation: no file, and the network is not available"
    ):
        load("aggregation")
    load("3MC")
    assert requested == [sources.sources()["3MC"].url]
