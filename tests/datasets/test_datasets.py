import hashlib
import http.server
import os
import socket
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pooch
import pytest
import requests

from fedlib import datasets
from fedlib.datasets import NAMES, CorruptFile, StandInWarning, load, stand_ins

# Rows, columns and rows of each class, as sources.csv states them.
FILES = {
    "banana": (4811, 2, {0: 2520, 1: 2291}),
    "s-set1": (5000, 2, None),
    "aggregation": (788, 2, {1: 45, 2: 170, 3: 102, 4: 273, 5: 34, 6: 130, 7: 34}),
    "3MC": (400, 2, {1: 120, 2: 170, 3: 110}),
    "dim_reduced_2d": (629, 2, {0: 36, 1: 551, 2: 42}),
    "dim_reduced_3d": (629, 3, {0: 36, 1: 551, 2: 42}),
    "heart": (303, 13, {0: 138, 1: 165}),
    "diabetes": (768, 8, {0: 500, 1: 268}),
    "smoking": (55692, 25, {0: 35237, 1: 20455}),
}
SHAPES = {"shapes_13147": 6, "shapes_38754": 12, "places_56417": 8}
TOYS = {"circles": 2, "moons": 2, "blobs": 3, "varied": 3, "aniso": 3, "no_structure": 1}


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Use an empty cache and no FEDLIB_DATA, and forget earlier loads."""
    folder = tmp_path / "cache"
    monkeypatch.delenv("FEDLIB_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: folder)
    monkeypatch.setattr(datasets, "_warned", set())
    monkeypatch.setitem(datasets._network, "absent", False)
    return folder


@pytest.fixture
def asked(cache, monkeypatch):
    """Refuse every download; collect the addresses."""
    asked = []

    def refuse(self, url, *args, **kwargs):
        asked.append(url)
        raise requests.ConnectionError("no network")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", refuse)
    return asked


@pytest.fixture
def folder(asked, monkeypatch, tmp_path):
    """Let FEDLIB_DATA name an empty folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("FEDLIB_DATA", str(folder))
    return folder


@pytest.fixture
def expect(monkeypatch):
    """Make `content` the content that a data set's file is expected to have."""

    def expect(name, content, url=None):
        source = datasets._sources()[name]
        source = source._replace(
            url=url or source.url,
            bytes=str(len(content)),
            sha256=hashlib.sha256(content).hexdigest(),
        )
        monkeypatch.setitem(datasets._sources(), name, source)
        return source

    return expect


@pytest.fixture
def load_content(expect, folder):
    """Load a data set from a small file of the test's own."""

    def load_content(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        source = expect(name, content)
        (folder / source.file).write_bytes(content)
        return load(name)

    return load_content


@pytest.fixture
def serve():
    """Serve a dict of path to bytes on this machine; return the address and the paths asked."""
    servers = []

    def serve(contents):
        asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                content = contents.get(self.path)
                self.send_response(404 if content is None else 200)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                self.wfile.write(content or b"")

            def log_message(self, *args):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}", asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def class_sizes(y):
    return dict(zip(*(part.tolist() for part in np.unique(y, return_counts=True)), strict=True))


def check_shape(dataset, name):
    n_rows, n_columns, classes = FILES[name]
    assert dataset.name == name
    assert dataset.X.shape == (n_rows, n_columns)
    assert dataset.X.dtype == np.float64
    assert dataset.X.flags.c_contiguous
    assert np.isfinite(dataset.X).all()
    assert dataset.y.shape == (n_rows,)
    assert dataset.y.dtype == np.int64
    assert len(dataset.feature_names) == n_columns
    if classes is None:  # s-set1: 15 classes of about the same size, the number 2 not among them
        assert sorted(set(dataset.y.tolist())) == [0, 1, *range(3, 16)]
    else:
        assert class_sizes(dataset.y) == classes
    assert set(dataset.target_names) == set(dataset.y.tolist())
    if name.startswith("dim_reduced"):
        sizes = {"Ahn": 125, "Horstmann": 162, "Kjome": 19, "Maia": 40, "Premkumar": 25}
        sizes |= {"SteingroverInPrep": 70, "Wood": 153, "Worthy": 35}
        assert class_sizes(dataset.groups) == sizes
    else:
        assert dataset.groups is None


# Names and sources.csv -----------------------------------------------------------------------


def test_names():
    assert set(NAMES) == {*FILES, *TOYS, *SHAPES, "breast_cancer"}
    assert set(datasets._FILES) == set(datasets._sources()) == set(stand_ins._STAND_INS)


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name must be one of banana, .*places_56417; got 'iris'"):
        load("iris")


def test_sources_of_an_installed_package(monkeypatch, tmp_path):
    row = "banana,b.arff,https://example.org/b.arff,0123,7,contents,notes"
    (tmp_path / "sources.csv").write_text(f"name,file,url,sha256,bytes,contents,notes\n{row}\n")
    monkeypatch.setattr(datasets, "__file__", str(tmp_path / "datasets.py"))
    sources = datasets._sources.__wrapped__()
    assert list(sources) == ["banana"]
    assert sources["banana"].file == "b.arff"


# Files, as they are ---------------------------------------------------------------------------


def test_class_names_with_blanks(load_content):
    text = "@relation b\n@attribute x numeric\n@attribute y numeric\n"
    text += (
        "@attribute class {Class 1, Class 2}\n@data\n1,2,Class 2\n3,4.5,Class 1\n3,4.5,Class 1\n"
    )
    banana = load_content("banana", text)
    assert banana.X.tolist() == [[1, 2], [3, 4.5], [3, 4.5]]
    assert banana.y.tolist() == [1, 0, 0]
    assert banana.target_names == {0: "Class 1", 1: "Class 2"}
    assert banana.feature_names == ("x", "y")
    assert banana.source == "real"
    assert banana.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert "repeat an earlier row" in banana.description
    assert banana.groups is None


def test_class_attribute_in_capitals_and_unused_value(load_content):
    text = "@RELATION s\n%\n@ATTRIBUTE x REAL\n@ATTRIBUTE y REAL\n"
    text += "@ATTRIBUTE CLASS {0,1,2,10}\n%\n@DATA\n664159.0,550946.0,10\n1.0,2.0,1\n1.0,2.0,0\n"
    s_set1 = load_content("s-set1", text)
    assert s_set1.y.tolist() == [10, 1, 0]
    assert s_set1.target_names == {0: "0", 1: "1", 10: "10"}
    assert s_set1.X[0].tolist() == [664159, 550946]


def test_arff_with_windows_line_ends_and_quotes_in_a_comment(load_content):
    text = "% “Fuzzy” Čech\r\n@relation a\r\n@ATTRIBUTE x REAL\r\n@ATTRIBUTE y REAL\r\n"
    text += "@ATTRIBUTE class {1,2}\r\n\r\n@DATA\r\n15.55,28.65,2\r\n14.9,27.55,1\r\n"
    aggregation = load_content("aggregation", text)
    assert aggregation.X.tolist() == [[15.55, 28.65], [14.9, 27.55]]
    assert aggregation.y.tolist() == [2, 1]


def test_study_and_health_status(load_content):
    text = "study\thealth status\tcomponent_1\tcomponent_2\n"
    text += "Horstmann\thealthy\t-1.7039011767194663\t0.5\nAhn\theroin\t0.1\t-2\n"
    text += "Ahn\tamphetamine\t1e-3\t3\n"
    dim_reduced = load_content("dim_reduced_2d", text)
    assert dim_reduced.X.tolist() == [[-1.7039011767194663, 0.5], [0.1, -2], [0.001, 3]]
    assert dim_reduced.feature_names == ("component_1", "component_2")
    assert dim_reduced.groups.tolist() == ["Horstmann", "Ahn", "Ahn"]
    assert dim_reduced.groups.dtype.kind == "U"
    assert dim_reduced.y.tolist() == [1, 2, 0]
    assert dim_reduced.target_names == {0: "amphetamine", 1: "healthy", 2: "heroin"}


def test_every_digit_of_a_number_counts(load_content):
    # Common fast readers miss the nearest double here by one unit in the last place.
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=1000)
    rows = "".join(f"Ahn\thealthy\t{number!r}\t0\n" for number in numbers.tolist())
    text = f"study\thealth status\tcomponent_1\tcomponent_2\n{rows}"
    assert load_content("dim_reduced_2d", text).X[:, 0].tolist() == numbers.tolist()


def test_byte_order_mark_and_windows_line_ends(load_content):
    heart = load_content("heart", b"\xef\xbb\xbfage,ca,thal,target\r\n63,4,0,1\r\n37,0,2,0\r\n")
    assert heart.feature_names == ("age", "ca", "thal")
    assert heart.X.tolist() == [[63, 4, 0], [37, 0, 2]]  # the codes for missing values stay
    assert heart.y.tolist() == [1, 0]


def test_zeros_for_missing_values_stay(load_content):
    diabetes = load_content("diabetes", "Glucose,BMI,Outcome\n0,33.6,1\n85,0,0\n")
    assert diabetes.X.tolist() == [[0, 33.6], [85, 0]]
    assert diabetes.y.tolist() == [1, 0]


def test_text_columns_row_number_and_constant_column(load_content):
    text = "ID,gender,age,oral,tartar,smoking\n7,F,40,Y,N,0\n9,M,55,Y,Y,1\n"
    smoking = load_content("smoking", text)
    assert smoking.feature_names == ("gender", "age", "oral", "tartar")
    assert smoking.X.tolist() == [[0, 40, 1, 0], [1, 55, 1, 1]]
    assert smoking.y.tolist() == [0, 1]


# Files, when something is wrong ---------------------------------------------------------------

ARFF = "@relation b\n@attribute x numeric\n@attribute y numeric\n@attribute class {A, B}\n@data\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("banana", ARFF + "1,2\n"),
        ("banana", ARFF + "1,2,C\n"),
        ("banana", ARFF + "1,two,A\n"),
        ("banana", ARFF + "1,?,A\n"),
        ("banana", ARFF.replace("class", "kind") + "1,2,A\n"),
        ("banana", ARFF.replace("y numeric", "y string") + "1,2,A\n"),
        ("banana", ARFF),
        ("banana", "<html>no such page</html>"),
        ("banana", ""),
        ("banana", b"\xff\xfe\x00"),
        ("heart", "age,target\n63,1\n37\n"),
        ("heart", "age,target\n63,1\n,0\n"),
        ("heart", "age,target\n63,1\nold,0\n"),
        ("heart", "age,target\n63,1\n37,0,5\n"),
        ("heart", "age,goal\n63,1\n"),
        ("heart", "age,target\n"),
        ("heart", ""),
        ("smoking", "ID,gender,smoking\n1,F,0\n2,X,1\n"),
        ("dim_reduced_2d", "study,health status,component_1\nAhn,healthy,1\n"),
        ("dim_reduced_2d", "study\thealth status\tcomponent_1\nAhn\t\t1\n"),
    ],
)
def test_malformed_file(load_content, name, content):
    file = datasets._sources()[name].file
    with pytest.raises(CorruptFile, match=f"{file} is malformed: "):
        load_content(name, content)


def test_malformed_value_is_named(load_content):
    with pytest.raises(CorruptFile, match="column 'gender' holds 'X'"):
        load_content("smoking", "ID,gender,smoking\n1,F,0\n2,X,1\n")


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


def test_altered_file_in_the_cache(expect, asked, cache):
    expect("heart", b"age,target\n63,1\n")
    cache.mkdir()
    (cache / "heart.csv").write_bytes(b"age,target\n36,1\n")
    with pytest.raises(CorruptFile, match=r"cache.heart\.csv is altered"):
        load("heart")
    assert not asked


# Where files are looked for -------------------------------------------------------------------


def test_folder_before_cache_before_network(expect, folder, cache, asked):
    content = b"age,target\n63,1\n"
    expect("heart", content)
    cache.mkdir()
    (cache / "heart.csv").write_bytes(content)
    assert load("heart").source == "real"  # from the cache, since the folder lacks the file
    (folder / "heart.csv").write_bytes(b"not what it should be")
    with pytest.raises(CorruptFile, match=r"data.heart\.csv"):
        load("heart")
    assert not asked


def test_folder_that_does_not_exist(asked, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"FEDLIB_DATA must name an existing folder.*nowhere"):
        load("banana")
    assert load("moons").source == "real"  # which needs no folder


def test_empty_variable_is_no_folder(asked, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", "")
    with pytest.warns(StandInWarning):
        assert load("3MC").source == "stand-in"


def test_download_is_kept(cache, expect, serve, capfd):
    content = b"age,target\n63,1\n"
    address, asked = serve({"/heart.csv": content})
    expect("heart", content, url=f"{address}/heart.csv")
    for _ in range(2):
        heart = load("heart")
        assert heart.source == "real"
        assert heart.X.tolist() == [[63]]
    assert asked == ["/heart.csv"]
    assert (cache / "heart.csv").read_bytes() == content
    assert capfd.readouterr() == ("", "")


def test_download_of_something_else(cache, expect, serve):
    address, _ = serve({"/heart.csv": b"<html>please log in</html>"})
    expect("heart", b"age,target\n63,1\n", url=f"{address}/heart.csv")
    with pytest.raises(CorruptFile, match=f"{address}/heart.csv is altered"):
        load("heart")
    assert list(cache.iterdir()) == []


def test_missing_page_says_nothing_about_the_network(cache, expect, serve):
    content = b"age,target\n63,1\n"
    address, asked = serve({"/heart.csv": content})
    expect("3MC", b"", url=f"{address}/3MC.arff")
    expect("heart", content, url=f"{address}/heart.csv")
    with pytest.warns(StandInWarning, match="failed with HTTPError"):
        assert load("3MC").source == "stand-in"
    assert load("heart").source == "real"
    assert asked == ["/3MC.arff", "/heart.csv"]


def test_silent_server(cache, expect, monkeypatch):
    monkeypatch.setattr(datasets, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        expect("3MC", b"", url=f"http://127.0.0.1:{server.getsockname()[1]}/3MC.arff")
        start = time.perf_counter()
        with pytest.warns(StandInWarning, match="failed with ReadTimeout"):
            assert load("3MC").source == "stand-in"
        assert time.perf_counter() - start < 5


def test_absent_network_is_asked_once(asked):
    with pytest.warns(StandInWarning, match="3MC: no file, .* failed with ConnectionError"):
        load("3MC")
    with pytest.warns(StandInWarning, match="aggregation: no file, and the network is absent"):
        load("aggregation")
    load("3MC")
    assert asked == [datasets._sources()["3MC"].url]


# Stand-ins ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_stand_in_has_the_shape_of_the_file(asked, name):
    with pytest.warns(StandInWarning, match=f"{name}: .* not comparable") as caught:
        dataset = load(name)
    assert [Path(warning.filename).name for warning in caught] == ["test_datasets.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = load(name)
    check_shape(dataset, name)
    assert dataset.source == "stand-in"
    assert dataset.sha256 is None
    assert dataset.description.startswith("Random stand-in for: ")
    assert np.array_equal(dataset.X, again.X)
    assert np.array_equal(dataset.y, again.y)


@pytest.fixture
def stood_in(asked):
    def stood_in(name):
        with pytest.warns(StandInWarning):
            return load(name)

    return stood_in


def test_stand_ins_keep_the_files_peculiarities(stood_in):
    banana = stood_in("banana")
    assert banana.X.min() > 0
    assert banana.X.max() < 1
    assert 20 < len(banana.X) - len(np.unique(banana.X, axis=0)) < 500  # repeated rows
    assert 1e5 < np.ptp(stood_in("s-set1").X, axis=0).min() < 1e6
    heart = stood_in("heart")
    assert (np.diff(heart.y) <= 0).all()  # sorted by target
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("ca")] == 4) == 5
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("thal")] == 0) == 2
    diabetes = stood_in("diabetes")
    zeros = dict(zip(diabetes.feature_names, (diabetes.X == 0).sum(axis=0).tolist(), strict=True))
    del zeros["Pregnancies"]
    assert zeros == {
        "Glucose": 5, "BloodPressure": 35, "SkinThickness": 227, "Insulin": 374, "BMI": 11,
        "DiabetesPedigreeFunction": 0, "Age": 0,
    }  # fmt: skip
    smoking = stood_in("smoking")
    assert (smoking.X[:, smoking.feature_names.index("oral")] == 1).all()
    assert 11_000 < len(smoking.X) - len(np.unique(smoking.X, axis=0)) < 11_300


def test_stand_in_of_two_components_is_that_of_three_without_the_last(stood_in):
    two, three = stood_in("dim_reduced_2d"), stood_in("dim_reduced_3d")
    assert np.array_equal(two.X, three.X[:, :2])
    assert np.array_equal(two.y, three.y)


# Generated sets -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n_classes"), TOYS.items())
def test_toys_are_standardised(name, n_classes):
    dataset = load(name)
    assert dataset.X.shape == (1000, 2)
    assert dataset.X.flags.c_contiguous
    assert dataset.y.dtype == np.int64
    assert set(dataset.y.tolist()) == set(dataset.target_names) == set(range(n_classes))
    assert np.abs(dataset.X.mean(axis=0)).max() < 1e-12
    assert dataset.X.std(axis=0) == pytest.approx(1)
    assert (dataset.source, dataset.sha256, dataset.groups) == ("real", None, None)
    assert np.array_equal(dataset.X, load(name).X)


def spread(dataset):
    return [dataset.X[dataset.y == label].std(axis=0) for label in np.unique(dataset.y)]


def test_shapes_of_the_toys():
    circles = load("circles")
    outer, inner = (np.hypot(*circles.X[circles.y == label].T).mean() for label in (0, 1))
    assert inner / outer == pytest.approx(0.5, abs=0.01)
    first, second, third = spread(load("varied"))
    assert second / first == pytest.approx(2.5, rel=0.1)
    assert third / first == pytest.approx(0.5, rel=0.1)
    for one, other in zip(spread(load("blobs")), spread(load("blobs"))[1:], strict=False):
        assert one / other == pytest.approx(1, rel=0.1)
    # A round blob transformed by [[0.6, -0.6], [-0.4, 0.8]] has this correlation.
    aniso = load("aniso")
    expected = -(0.6 * 0.6 + 0.4 * 0.8) / np.sqrt((0.6**2 + 0.4**2) * (0.6**2 + 0.8**2))
    for label in range(3):
        assert np.corrcoef(aniso.X[aniso.y == label].T)[0, 1] == pytest.approx(expected, abs=0.02)
    no_structure = load("no_structure")
    # A uniform variable with standard deviation 1 has this range.
    assert np.ptp(no_structure.X, axis=0) == pytest.approx(np.sqrt(12), rel=0.03)


@pytest.mark.parametrize(("name", "n_shapes"), SHAPES.items())
def test_shapes_in_place_of_a_set_that_nobody_has(name, n_shapes):
    dataset = load(name)
    assert dataset.X.shape == (int(name.partition("_")[2]), 2)
    assert set(dataset.y.tolist()) == set(dataset.target_names) == set(range(-1, n_shapes))
    assert (dataset.source, dataset.sha256, dataset.groups) == ("generated", None, None)
    assert np.array_equal(dataset.X, load(name).X)


def test_breast_cancer():
    dataset = load("breast_cancer")
    assert dataset.X.shape == (569, 30)
    assert dataset.X.dtype == np.float64
    assert dataset.X.flags.c_contiguous
    assert class_sizes(dataset.y) == {0: 212, 1: 357}
    assert dataset.target_names == {0: "malignant", 1: "benign"}
    assert dataset.feature_names[0] == "mean radius"
    assert (dataset.source, dataset.sha256, dataset.groups) == ("real", None, None)


# The real files -------------------------------------------------------------------------------


@pytest.fixture
def real():
    def real(name):
        file = datasets._sources()[name].file
        folder = os.environ.get("FEDLIB_DATA")
        if not folder or not (Path(folder) / file).is_file():
            pytest.skip(f"needs the real data: FEDLIB_DATA names no folder with {file}")
        return load(name)

    return real


@pytest.mark.parametrize("name", FILES)
def test_real_file(real, name):
    dataset = real(name)
    check_shape(dataset, name)
    assert dataset.source == "real"
    assert dataset.sha256 == datasets._sources()[name].sha256


@pytest.mark.parametrize("name", FILES)
def test_stand_in_matches_the_real_file(real, request, name):
    dataset = real(name)
    other = request.getfixturevalue("stood_in")(name)
    assert other.feature_names == dataset.feature_names
    assert other.target_names == dataset.target_names
    # The same scale in every column, up to a factor.
    ratio = (1 + np.abs(other.X).mean(axis=0)) / (1 + np.abs(dataset.X).mean(axis=0))
    assert ratio.min() > 0.7
    assert ratio.max() < 1.5


def repeated_rows(X):
    return len(X) - len(np.unique(X, axis=0))


def test_facts_about_banana(real):
    assert repeated_rows(real("banana").X) == 85


def test_facts_about_heart(real):
    heart = real("heart")
    assert (np.diff(heart.y) <= 0).all()
    assert repeated_rows(np.column_stack([heart.X, heart.y])) == 1
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("ca")] == 4) == 5
    assert np.count_nonzero(heart.X[:, heart.feature_names.index("thal")] == 0) == 2


def test_facts_about_diabetes(real):
    diabetes = real("diabetes")
    zeros = (diabetes.X == 0).sum(axis=0).tolist()
    assert zeros[1:6] == [5, 35, 227, 374, 11]
    assert diabetes.feature_names[1:6] == (
        "Glucose", "BloodPressure", "SkinThickness", "Insulin", "BMI"
    )  # fmt: skip


def test_facts_about_smoking(real):
    smoking = real("smoking")
    assert "ID" not in smoking.feature_names
    assert (smoking.X[:, smoking.feature_names.index("oral")] == 1).all()
    assert repeated_rows(smoking.X) == 11_140
