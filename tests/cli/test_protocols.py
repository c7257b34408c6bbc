"""``fedlib protocols``, and the page's table of what the messages disclose."""

import re

import pytest
from cli_helpers import PAGE, invoke

from fedlib import AlignedRows, FederatedPipeline, LeaveOneSiteOut
from fedlib.cli.inspect import messages_of
from fedlib.core.registry import protocols
from fedlib.tables.pipeline import Preprocess


@pytest.mark.parametrize("name", protocols())
def test_every_message_of_a_protocol_is_listed(name):
    pairs = messages_of(protocols()[name])
    assert pairs
    output = invoke("protocols")
    for request, reply in pairs:
        assert f"  server  {request.__name__}: {request.discloses}\n" in output
        assert f"  site    {reply.__name__}: {reply.discloses}\n" in output


def test_the_messages_of_a_pipeline_are_listed():
    output = invoke("protocols")
    part = output[output.index("pipeline/NAME: Any protocol on raw tables") :]
    for request, reply in messages_of(FederatedPipeline):
        assert f"  server  {request.__name__}: {request.discloses}\n" in part
        assert f"  site    {reply.__name__}: {reply.discloses}\n" in part
    shown = PAGE.read_text(encoding="utf-8")
    assert f"`Preprocess`, which discloses {Preprocess.discloses.partition(': ')[2]}" in shown


def test_the_messages_of_alignment_are_listed():
    output = invoke("protocols")
    part = output[output.index("aligned/NAME: A protocol for different columns") :]
    shown = PAGE.read_text(encoding="utf-8")
    for request, reply in messages_of(AlignedRows):
        assert f"  server  {request.__name__}: {request.discloses}\n" in part
        assert f"  site    {reply.__name__}: {reply.discloses}\n" in part
        assert f"`{request.__name__}`, which discloses {request.discloses}" in shown
        assert reply.discloses in shown


def test_the_messages_of_leave_one_site_out_are_listed():
    part = invoke("protocols").partition("leave-one-site-out/NAME: Validation over sites")[2]
    shown = PAGE.read_text(encoding="utf-8")
    for request, _ in messages_of(LeaveOneSiteOut):
        assert f"  server  {request.__name__}: {request.discloses}\n" in part
        assert f"`{request.__name__}`, which discloses {request.discloses}" in shown


def test_the_names_alone():
    assert invoke("protocols", "--names").split() == list(protocols())


def test_the_page_shows_what_the_messages_disclose():
    rows = []
    for name, estimator in protocols().items():
        if estimator.__module__.startswith("fedlib."):
            for request, reply in messages_of(estimator):
                left = f"| `{name}` | `{request.__name__}` | {request.discloses} |"
                rows.append(f"{left} `{reply.__name__}` | {reply.discloses} |")
    table = "\n".join(rows)
    shown = re.findall(r"^\| `[a-z-]+` \|.*", PAGE.read_text(encoding="utf-8"), re.M)
    assert "\n".join(shown) == table, f"the page's table must be:\n{table}"
