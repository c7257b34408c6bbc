"""The search answers questions in a reader's own words: the right page comes first."""

import importlib
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "_build"
BOOK = BUILD / ("quick" if (BUILD / "quick/html/index.html").exists() else "full") / "html"

# Questions that are not in book/search.yml, and the pages of which one must come first.
QUESTIONS = {
    "how do I choose eps": ["notebooks/choosing_parameters"],
    "missing values": ["notebooks/your_own_data"],
    "which method should I use?": ["book/which_method"],
    "is it safe": ["book/protect", "notebooks/privacy_threat_model"],
    "what does the server see": ["notebooks/explore", "notebooks/privacy_summary"],
    "how many clients": ["notebooks/performance_growth"],
    "how much does it cost": ["notebooks/where_one_machine_is_not_enough"],
    "compare with xgboost": ["notebooks/boosting_compared"],
    "hospital": ["notebooks/your_own_data", "book/intro", "book/run_at_real_sites"],
    "CSV at three sites": ["notebooks/your_own_data"],
    "non-iid": ["notebooks/federated_learning"],
    "secure aggregation": ["notebooks/privacy_secure_sums"],
    "crash of the server": ["book/run_at_real_sites"],
    "GPU": ["notebooks/performance"],
    "install": ["book/run_at_real_sites"],
    "how many rows": ["notebooks/performance_growth"],
    "categorical columns": ["notebooks/your_own_data"],
    "predict new patients": ["notebooks/your_own_data"],
    "cite": ["book/cite"],
    # The same in other words.
    "what radius is right for my data": ["notebooks/choosing_parameters"],
    "some cells in my tables are empty": ["notebooks/your_own_data"],
    "a participant goes offline in the middle": ["notebooks/faults", "notebooks/deployment_http"],
    "can the coordinator reconstruct patient records": [
        "notebooks/privacy_summary",
        "notebooks/privacy_threat_model",
    ],
    "homomorphic encryption or MPC?": ["notebooks/privacy_secure_sums"],
    "can one clinic poison the result": ["notebooks/faults"],
    "do diagnoses leak when we train trees": ["notebooks/privacy_gradients"],
    "how is the number of clusters determined": ["notebooks/choosing_parameters"],
    "two companies with different features of the same customers": ["notebooks/vertical_dbscan"],
    "how do I write my own algorithm": ["notebooks/fin"],
    "does it work with Flower": ["notebooks/flower"],
    "can I run it on Dask": [
        "notebooks/billion_points",
        "notebooks/where_one_machine_is_not_enough",
    ],
    "choosing epsilon for differential privacy": ["notebooks/privacy_differential"],
    "which ports must the firewall open": ["book/run_at_real_sites"],
    "is a federated model better than a local one": [
        "notebooks/federated_learning",
        "notebooks/boosting_compared",
    ],
    "what does ARI mean": ["book/conventions", "book/glossary"],
    "does Table 3.3 of Vasilopoulou hold": ["notebooks/xgboost_clients"],
    "how fast is DBSCAN compared to scikit-learn": [
        "notebooks/dbscan_engine",
        "notebooks/performance_dbscan",
        "notebooks/performance",
    ],
    "rare disease with few positive patients": ["notebooks/xgboost_imbalance"],
    "data sets that do not fit into memory": ["notebooks/billion_points"],
    # Asked by a reader who did not know the list.
    "minimum number of members before results are shown": ["book/protect"],
    "noise added to histograms": ["notebooks/privacy_differential"],
    "match the same person across two databases": ["book/run_at_real_sites"],
    "what is a protocol without input and output": ["notebooks/fin"],
    "could a curious coordinator recover someone's age": ["notebooks/privacy_summary"],
    "slow internet connection between sites": ["notebooks/where_one_machine_is_not_enough"],
    "participants that send nothing but receive the model": ["notebooks/passive_clients"],
    "our ethics committee asks what is transmitted": ["notebooks/privacy_summary"],
    "diferential privasy": ["notebooks/privacy_differential"],  # with typing errors
}


@pytest.fixture(scope="module")
def search():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "book/_ext")
        yield importlib.import_module("page_search")


@pytest.fixture(scope="module")
def asked():
    return yaml.safe_load((ROOT / "book/search.yml").read_text(encoding="utf-8"))


def test_every_page_of_the_contents_has_questions(asked):
    listed = re.findall(r"file: (\S+)", (ROOT / "book/_toc.yml").read_text(encoding="utf-8"))
    assert sorted(asked["pages"]) == sorted(["book/intro", *listed])


def test_no_question_belongs_to_two_pages(asked):
    questions = [question for page in asked["pages"].values() for question in page]
    assert len(questions) == len(set(questions))


def test_words_that_mean_the_same_have_one_group(search, asked):
    numbers = search.groups(asked["synonyms"])
    same = [("hospital", "client"), ("crash", "offline"), ("csv", "spreadsheet"), ("nan", "gaps")]
    for one, other in same:
        assert numbers[search.words(one)[0]] == numbers[search.words(other)[0]], one


def test_a_word_in_a_title_weighs_more_than_in_a_text(search):
    pages = [
        ({"title": ["Noise"], "text": ["Something else."]}, 1),
        ({"title": ["Something"], "text": ["Noise, and again noise, and noise."]}, 1),
        ({"title": ["Else"], "text": ["Nothing of it."]}, 1),
    ]
    found = search.impacts(pages, {})
    first, second = found["nois"][1::2]
    assert found["nois"][::2] == [0, 1]
    assert first > second > 0


@pytest.fixture(scope="module")
def tab(browser):
    return browser.new_page()


@pytest.mark.book
@pytest.mark.skipif(not BOOK.exists(), reason="no book is built: make book")
@pytest.mark.parametrize(("question", "pages"), QUESTIONS.items(), ids=QUESTIONS)
def test_the_page_that_answers_comes_first(tab, question, pages):
    """The page of results is a file here: it works without a server."""
    tab.goto(f"{(BOOK / 'search.html').as_uri()}?q={question.replace(' ', '+')}")
    links = tab.locator("#search-results ul.search li a")
    links.first.wait_for()
    found = [link.get_attribute("href").removeprefix("./") for link in links.all()[:5]]
    assert found[0].partition("#")[0].removesuffix(".html") in pages, found


@pytest.mark.book
@pytest.mark.skipif(not BOOK.exists(), reason="no book is built: make book")
def test_words_that_no_page_has_are_answered(tab):
    tab.goto(f"{(BOOK / 'search.html').as_uri()}?q=qqqqzzzz")
    tab.locator("text=No page has these words").wait_for()
