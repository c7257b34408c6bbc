"""From the bytes of a file to a data set; files that are malformed."""

import hashlib

import numpy as np
import pytest

from fedlib.datasets import CorruptFile, sources


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
    """Common fast parsers miss the nearest double here by one unit in the last place."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=1000)
    rows = "".join(f"Ahn\thealthy\t{number!r}\t0\n" for number in numbers.tolist())
    text = f"study\thealth status\tcomponent_1\tcomponent_2\n{rows}"
    assert load_content("dim_reduced_2d", text).X[:, 0].tolist() == numbers.tolist()


def test_byte_order_mark_and_windows_line_ends(load_content):
    heart = load_content("heart", b"\xef\xbb\xbfage,ca,thal,target\r\n63,4,0,1\r\n37,0,2,0\r\n")
    assert heart.feature_names == ("age", "ca", "thal")
    assert heart.X.tolist() == [[63, 4, 0], [37, 0, 2]]  # the codes for missing values are kept
    assert heart.y.tolist() == [1, 0]


def test_zeros_for_missing_values_are_kept(load_content):
    diabetes = load_content("diabetes", "Glucose,BMI,Outcome\n0,33.6,1\n85,0,0\n")
    assert diabetes.X.tolist() == [[0, 33.6], [85, 0]]
    assert diabetes.y.tolist() == [1, 0]


def test_text_columns_row_number_and_constant_column(load_content):
    text = "ID,gender,age,oral,tartar,smoking\n7,F,40,Y,N,0\n9,M,55,Y,Y,1\n"
    smoking = load_content("smoking", text)
    assert smoking.feature_names == ("gender", "age", "oral", "tartar")
    assert smoking.X.tolist() == [[0, 40, 1, 0], [1, 55, 1, 1]]
    assert smoking.y.tolist() == [0, 1]


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
    file = sources.sources()[name].file
    with pytest.raises(CorruptFile, match=f"{file} is malformed: "):
        load_content(name, content)


def test_malformed_value_is_named(load_content):
    with pytest.raises(CorruptFile, match="column 'gender' contains 'X'"):
        load_content("smoking", "ID,gender,smoking\n1,F,0\n2,X,1\n")
