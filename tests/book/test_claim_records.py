"""The names of the claims, their records and export, and the command that measures one again."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pandas as pd
import pytest
import yaml
from built_pages import whole

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "_build" / ("quick" if (ROOT / "_build/quick/html").exists() else "full") / "html"


@pytest.fixture(scope="module")
def claim_ids(modules):
    return modules("study.claims.claim_ids")


@pytest.fixture(scope="module")
def claim_records(modules):
    return modules("study.claims.claim_records")


@pytest.fixture(scope="module")
def verify(modules):
    return modules("study.claims.verify")


@pytest.fixture(scope="module")
def records(claim_records):
    """Return all records, as if one page had a cell that is the place of one claim."""
    return claim_records.records({"K-sse-kmeans-SSE": ["notebooks/kmeans"]})


@pytest.fixture(scope="module")
def by_name(records):
    return {record["id"]: record for record in records}


def test_every_published_number_and_statement_has_a_name_of_its_own(modules, records):
    study, claims = modules("study"), modules("study.claims.claims")
    names = [record["id"] for record in records]
    assert len(names) == len(study.published()) + len(claims.listed())
    assert len(set(names)) == len(names)


def test_names_are_stable(claim_ids):
    """The rules, one example each; published.csv never changes, so these names never do."""
    key = ["source", "table", "dataset", "method", "condition", "run", "metric"]
    rows = [
        ("M1", "passive 10%", "banana", "horizontal_dbscan", "overall", "II", "AMI"),
        ("M1", "passive 10%", "banana", "horizontal_dbscan", "active", "II", "BCubed recall"),
        ("M2", "data sets", "3MC", "", "", "", "Points"),
        ("F", "3.3", "breast_cancer", "xgboost", "test", "", "AUC"),
        ("F", "3.6", "smoking", "federated_xgboost", "500 samples", "2 clients", "AUC"),
        ("K", "sse", "nowhere", "kmeans", "", "", "SSE"),
    ]
    assert claim_ids.of_numbers(pd.DataFrame(rows, columns=key)) == [
        "M1:passive:10:II:AMI",  # the data set and the method are those of the whole table
        "M1:passive:10:active:II:BCubed-recall",
        "M2:data-sets:3MC:Points",
        "F:3.3:xgboost:test:AUC",
        "F:3.6:federated_xgboost:500-samples:2-clients:AUC",
        "",  # not published
    ]
    assert claim_ids.of_numbers(pd.DataFrame({"metric": ["AMI"]})) == [""]


def test_a_link_escapes_its_text_and_needs_a_name(claim_ids):
    assert claim_ids.link("a < b", "") == "a &lt; b"
    assert claim_ids.link("", "P:claim:1") == ""
    assert 'id="P-claim-1"' in claim_ids.link("1", "P:claim:1", place=True)


def test_records_have_the_form_of_the_schema(claim_records, records):
    schema = json.loads((ROOT / "book/claims.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    content = json.loads(json.dumps(claim_records.document(records), allow_nan=False))
    claim_records.check(content)


@pytest.mark.parametrize(
    ("field", "value"),
    [("status", "holds"), ("published", ""), ("pages", "about 7"), ("id", "Z:1"), ("extra", 1)],
)
def test_the_schema_refuses_other_forms(claim_records, records, field, value):
    wrong = claim_records.document([records[0] | {field: value}])
    with pytest.raises(jsonschema.ValidationError):
        claim_records.check(wrong)


def test_a_record_of_a_number_joins_all_files(by_name):
    record = by_name["F:3.7:federated_xgboost:50-50-negative-positive:2-clients:sensitivity"]
    assert record["published"] == "0.843"
    assert record["cell"]["dataset"] == "smoking"
    assert record["pages"] == "23"
    assert (record["page"], record["anchor"]) == ("notebooks/xgboost_imbalance", "f-table-3-7")
    [run] = record["runs"]
    assert run["notebook"] == "notebooks/xgboost_imbalance.ipynb"
    low, high = record["interval"]
    assert low <= record["measured"] <= high
    assert re.fullmatch("[0-9a-f]{64}", *record["data_sha256"])
    assert {"python", "fedlib", "numpy"} <= set(record["versions"])


def test_the_run_of_a_number_has_its_data_set(by_name):
    """Pages of one notebook differ in the parameter `dataset`."""
    for dataset, page in (("banana", "horizontal_dbscan"), ("s-set1", "horizontal_dbscan-s-set1")):
        [run] = by_name[f"M1:horizontal:{dataset}:dbscan:AMI"]["runs"]
        assert (run["page"], run["parameters"]["dataset"]) == (page, dataset)


def test_a_record_of_a_statement_has_its_tests(modules, by_name):
    tests = modules("study").read("claims.csv", [ROOT / "book/results"])
    number_of_tests = sum(len(record.get("tests", [])) for record in by_name.values())
    assert number_of_tests == len(tests)
    record = by_name["P:claim:32"]
    assert record["universal"]
    counted = [test for test in record["tests"] if test["on"] == "measured values"]
    share = sum(test["agreeing"] for test in counted) / sum(test["runs"] for test in counted)
    assert record["measured"] == pytest.approx(share)


def test_each_claim_is_settled_by_a_run_of_each_profile(claim_records, records):
    for profile in ("quick", "full"):
        runs = claim_records.runs(profile)
        missing = [r["id"] for r in records if not claim_records.runs_of(r["id"], runs)]
        assert missing == []


def test_patterns_of_the_study_match_claims(claim_records, records):
    names = [record["id"] for record in records]
    for run in claim_records.runs("quick"):
        for pattern in [*run.settles, *run.settles_in_full]:
            alone = run._replace(settles=[pattern], settles_in_full=[])
            assert any(map(alone.computes, names)), pattern


def test_pages_of_the_sources_are_of_known_places(records):
    listed = pd.read_csv(ROOT / "datasets/pages.csv", dtype=str)
    known = {(record["source"], record["place"]) for record in records}
    assert set(zip(listed["source"], listed["place"], strict=True)) <= known
    assert not listed.duplicated(["source", "place"]).any()
    without = {record["source"] for record in records if record["pages"] is None}
    assert without == {"K", "P"}  # a web page, and a text without page numbers


def test_the_table_has_one_row_per_claim_and_links_back(claim_ids, claim_records, records, by_name):
    html = claim_records.table(records)
    anchors = re.findall('<tr id="([^"]+)"', html)
    assert anchors == [claim_ids.anchor(record["id"]) for record in records]
    assert len(set(anchors)) == len(anchors)
    assert not re.search("[^A-Za-z0-9_-]", "".join(anchors))  # safe in CSS selectors
    shown = claim_records.show(by_name["K:sse:kmeans:SSE"])
    assert 'href="../notebooks/kmeans.html#K-sse-kmeans-SSE"' in shown  # the cell
    shown = claim_records.show(by_name["K:sse:federated_kmeans:SSE"])
    assert 'href="../notebooks/kmeans.html#k-table-sse"' in shown  # no cell: the table


def test_places_are_found_in_executed_notebooks(claim_ids, claim_records, tmp_path):
    html = claim_ids.link("1", "P:claim:1", place=True) + claim_ids.link("2", "P:claim:2")
    (tmp_path / "some.ipynb").write_text(json.dumps({"cells": [{"outputs": [html]}]}))
    assert claim_records.places(tmp_path) == {"P-claim-1": ["notebooks/some"]}


def test_the_command_writes_the_records_and_the_table(
    claim_records, records, tmp_path, monkeypatch
):
    monkeypatch.setattr(claim_records, "records", lambda shown: records[:3])
    claim_records.main([str(tmp_path)])
    written = json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))
    assert written["claims"] == records[:3]
    assert set(written["files"]) >= {"datasets/published.csv", "book/results/fidelity.csv"}
    assert (tmp_path / "claims-table.html").read_text("utf-8").count("<tr id=") == 3


def test_an_unknown_claim_is_refused_with_the_nearest_names(verify, records):
    with pytest.raises(verify.VerifyError, match="got 'k:sse:kmean:sse'.*\n  K:sse:kmeans:SSE"):
        verify.find("k:sse:kmean:sse", records)
    with pytest.raises(verify.VerifyError, match=r"LIST='\*' lists all"):
        verify.find("????", records)


def test_claims_are_listed_by_pattern_or_part(verify, records):
    def names(pattern):
        return [record["id"] for record in verify.matching(pattern, records)]

    assert names("k:sse:*") == ["K:sse:federated_kmeans:SSE", "K:sse:kmeans:SSE"]
    assert "P:claim:12" in names("much larger MinPts")
    assert len(names("*")) == len(records)


def test_a_statement_runs_what_its_page_needs_first(verify):
    notebooks = [notebook for notebook, *_ in verify.steps("M:claim:1", "quick")]
    assert notebooks[-1] == "dbscan_conclusions"
    assert {"horizontal_dbscan", "vertical_dbscan", "passive_clients"} < set(notebooks)
    *_, (_, parameters, _) = verify.steps("M:claim:1", "quick")
    assert parameters["complete"]  # of this run, not the kept results
    assert [step[0] for step in verify.steps("K:sse:kmeans:SSE", "quick")] == ["kmeans"]


def test_a_claim_that_needs_no_other_results_runs_one_notebook(verify):
    [(notebook, *_)] = verify.steps("F:claim:1", "quick")
    assert notebook == "fin_conclusions"  # the results of other notebooks are the kept ones
    assert len(verify.steps("F:claim:12", "full")) > 1


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("K:sse:kmeans:SSE", "quick"),
        ("P:claim:37", "full"),
        ("F:claim:1", "quick"),
        ("F:claim:12", "full"),  # the quick runs have results of one data set only
    ],
)
def test_the_quickest_parameters_that_reach_the_verdict_are_used(verify, name, profile):
    assert verify.profile_of(name) == profile


@pytest.fixture
def run_kept(modules, verify, monkeypatch):
    """Return a function that verifies a claim with the kept rows as the measured ones.

    Its argument changes the rows: they stand for what the notebooks measure.
    """
    study = modules("study")

    def run(name, records, change=lambda rows: rows):
        def execute(name, profile, folder):
            rows = [study.read(file, [study.KEPT]) for file in ("fidelity.csv", "claims.csv")]
            change(pd.concat(rows)).to_csv(folder / "fidelity-x.csv", index=False)

        monkeypatch.setattr(verify, "execute", execute)
        return verify.verify(name, records)

    return run


@pytest.mark.parametrize("name", ["F:3.3:xgboost:test:AUC", "P:claim:31", "F:claim:14"])
def test_a_claim_with_the_kept_verdict_is_verified(run_kept, records, by_name, name, capsys):
    assert run_kept(name, records) == 0
    text = capsys.readouterr().out
    assert by_name[name]["published"] in text
    assert f"{by_name[name]['status']}; kept: {by_name[name]['status']}" in text


def test_another_verdict_and_stand_ins_are_not_verified(run_kept, records, capsys):
    name = "F:3.3:xgboost:test:AUC"
    assert run_kept(name, records, lambda rows: rows.assign(status="differs")) == 1
    assert "differs; kept: within" in capsys.readouterr().out
    assert run_kept(name, records, lambda rows: rows.assign(sha256="")) == 1
    assert "stand-ins" in capsys.readouterr().out


def test_a_run_without_the_claim_is_an_error(run_kept, verify, records):
    with pytest.raises(verify.VerifyError, match="wrote no verdict"):
        run_kept("K:sse:kmeans:SSE", records, lambda rows: rows[rows["source"] == "F"])


def test_the_command_needs_a_claim_or_a_pattern(verify, capsys):
    with pytest.raises(SystemExit, match="2"):
        verify.main([])
    assert "give the name of a claim" in capsys.readouterr().err


@pytest.fixture(scope="module")
def crate(modules, claim_records, records, tmp_path_factory):
    """Return the folder of a crate and its entities by their identifiers."""
    folder = tmp_path_factory.mktemp("export") / "crate"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claim_records, "records", lambda shown: records)
        patch.setattr(claim_records, "check", lambda content: None)  # another test does
        patch.setenv("SOURCE_DATE_EPOCH", "0")
        modules("study.building.export").main(["--crate", str(folder)])
    described = json.loads((folder / "ro-crate-metadata.json").read_text(encoding="utf-8"))
    return folder, {entity["@id"]: entity for entity in described["@graph"]}


def test_the_crate_describes_all_its_files(crate):
    folder, entities = crate
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    described = {part["@id"] for part in entities["./"]["hasPart"]}
    assert described == files - {"ro-crate-metadata.json"}
    assert "claims.json" in described
    assert entities["./"]["datePublished"] == "1970-01-01"


def test_the_crate_names_the_notebook_and_the_parameters_of_each_run(crate):
    _, entities = crate
    action = entities["#run-horizontal_dbscan-s-set1"]
    assert action["instrument"]["@id"] == "notebooks/horizontal_dbscan.ipynb"
    values = [entities[entity["@id"]] for entity in action["object"]]
    assert {value["name"]: value["value"] for value in values}["dataset"] == '"s-set1"'


def test_a_crate_is_not_written_into_a_folder_with_files(modules, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="folder must be empty or absent"):
        modules("study.building.export").write(tmp_path)


def test_codemeta_agrees_with_the_citation_and_the_project(modules):
    kept = json.loads((ROOT / "codemeta.json").read_text(encoding="utf-8"))
    assert kept == modules("study.building.export").codemeta(), "run make lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == kept["softwareRequirements"]


@pytest.mark.parametrize(
    ("numbers", "statements", "expected"),
    [
        (["exact", "exact", "differs"], ["refuted"], True),
        (["exact", "within"], ["holds"], False),  # one half is not more than half
        ([], ["holds", "holds", "holds partly"], True),
        ([], ["holds", "refuted"], False),
    ],
)
def test_more_than_half_must_replicate(modules, numbers, statements, expected):
    lists = ([{"status": status} for status in statuses] for statuses in (numbers, statements))
    assert modules("study.building.articles").replicates(*lists) == expected


@pytest.mark.parametrize("source", ["M", "K", "P", "F"])
def test_articles_have_a_verdict_and_the_counts_of_the_records(modules, crate, records, source):
    folder, _ = crate
    text = (folder / "article" / source / "article.md").read_text(encoding="utf-8")
    metadata = yaml.safe_load((folder / "article" / source / "metadata.yaml").read_text("utf-8"))
    assert text.startswith(f"# {metadata['title']}\n")
    assert metadata["title"].startswith("[Re] ")
    own = [record for record in records if record["source"][0] == source]
    of_data = modules("study.claims.counts").OF_DATA
    own = [record for record in own if (record["source"], record["place"]) not in of_data]
    lists = ([r for r in own if r["kind"] == kind] for kind in ("number", "statement"))
    partial = not modules("study.building.articles").replicates(*lists)
    assert metadata["title"].endswith(" (partial)") == partial
    assert metadata["abstract"].startswith("A partial") == partial
    refuted = [record for record in own if record["status"] == "refuted"]
    assert all(f"(`{record['id']}`" in text for record in refuted)
    exact = sum(record["status"] == "exact" for record in own)
    assert not exact or f" {exact} have the printed digits" in text
    assert len(text.split()) < 4 * 450  # four pages


@pytest.mark.parametrize("path", sorted((ROOT / "article").glob("*/*.md")), ids=str)
def test_the_words_of_an_article_contain_no_results(path):
    assert not re.search(r"\d", re.sub("SDBDC|PPDBDC", "", path.read_text(encoding="utf-8")))


@pytest.mark.book
@pytest.mark.skipif(not BUILT.exists(), reason="no book is built: make book")
def test_links_of_the_built_book_lead_to_claims_and_back():
    pages = {path.stem: whole(path) for path in BUILT.glob("notebooks/*.html")}
    claims = whole(BUILT / "book/claims.html")
    names = set(re.findall('<tr id="([^"]+)"', claims))
    for page, text in pages.items():
        linked = re.findall(r'href="\.\./book/claims\.html#([^"]+)"', text)
        assert set(linked) <= names, page
        places = re.findall('class="claim" id="([^"]+)"', text)
        assert len(set(places)) == len(places), f"{page}: a place occurs twice"
    for page, place in re.findall(r'href="\.\./notebooks/([^"#]+)\.html#([^"]+)"', claims):
        assert f'id="{place}"' in pages[page], f"{page}#{place}"
