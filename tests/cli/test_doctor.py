"""``fedlib doctor``: each check of a site, ok or with its remedy."""

import email.utils
import re
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from cli_helpers import SITES, invoke

from fedlib import __version__
from fedlib.cli.preparation import read_clients

pytest.importorskip("uvicorn")


@contextmanager
def server(**options):
    """Return a server of the three sites, in this process."""
    from fedlib.transports.http import HTTP, Limits

    limits = Limits(gone_after=options.pop("gone_after", 0.2))
    about = {"protocol": "horizontal-dbscan", "limits": limits, **options}
    with HTTP(read_clients(Path("tokens/clients.json")), "127.0.0.1:0", **about) as transport:
        yield transport


def examine(url, *options, code=0, token="tokens/0.token", data="0.csv"):
    """Run the command; return the state and the text of each check by its subject."""
    arguments = ["doctor", url, "--data", data, "--token-file", token, *options]
    output = invoke(*arguments, code=code)
    found = re.findall(r"^(ok |fix)  ([^:]+): (.*)$", output, re.MULTILINE)
    assert len(found) == len(output.splitlines()), output
    assert code == (1 if any(state == "fix" for state, _, _ in found) else 0)
    return {subject: (state.strip(), text) for state, subject, text in found}


def test_a_site_that_is_ready(site):
    with server() as transport:
        options = ["--labels-out", "labels.csv", "--state-dir", "new/state"]
        found = examine(transport.url, *options, "--protocol", "horizontal-dbscan")
        assert transport.status().joined == 0  # it has not joined
        assert transport.status().states["expected"] == len(SITES)
    assert found == {
        "data": ("ok", "45 rows of 2 features"),
        "columns": ("ok", "separated by the comma; listed for you only, nothing of this is sent"),
        "column x": ("ok", "numbers from -1.99729 to 5.66688, 0 gaps"),
        "column y": ("ok", "numbers from -0.881404 to 6.94624, 0 gaps"),
        "memory": ("ok", "what this site remembers about the data can be read"),
        "--labels-out": ("ok", f"{site} can be written"),
        "--state-dir": ("ok", "new/state can be written"),
        "--token-file": ("ok", "only its owner can read tokens/0.token"),
        "reachability": ("ok", f"{transport.url} answers"),
        "clock": ("ok", "as the server's, to a minute"),
        "token": ("ok", "that of '0'"),
        "version": ("ok", f"fedlib {__version__} fits the server's"),
        "protocol": ("ok", "the data fit horizontal-dbscan"),
    }
    assert not Path("new").exists()


def test_each_column_is_described(site):
    lines = "id,age,sex,none,code\n" + "".join(
        f"p{i},{i % 3 or 'NA'},{'mf'[i % 2]},,250.0{i % 3}\n" for i in range(60)
    )
    Path("raw.csv").write_text(lines + "p60,3,m,,V45.81\n")
    with server(protocol="summary") as transport:
        options = ["--ids", "id", "--protocol", "summary"]
        found = examine(transport.url, *options, data="raw.csv", code=1)
        assert found["data"][0] == "fix"  # the codes; the other columns are described all the same
        assert "--text code" in found["data"][1]
        found = examine(transport.url, *options, "--text", "code", data="raw.csv")
        assert found["protocol"][0] == "ok"
    assert {subject: text for subject, (_, text) in found.items() if "column " in subject} == {
        "column id": "identifier, 61 different texts, 0 gaps",
        "column age": "numbers from 1 to 3, 20 gaps",
        "column sex": "text, 2 categories, 0 gaps",
        "column none": "no values, 61 gaps",
        "column code": "text, 4 categories, 0 gaps",
    }


def test_rows_for_validation_are_read(site):
    with server() as transport:
        found = examine(transport.url, "--eval-data", "1.csv")
        lost = examine(transport.url, "--eval-data", "1.csv", "--columns", "z", code=1)
    assert found["--eval-data"] == ("ok", "45 rows of 2 features")
    assert lost["--eval-data"][0] == "fix"


def test_nothing_of_the_data_is_sent(site, monkeypatch):
    sent, handle = [], httpx.HTTPTransport.handle_request

    def record(transport, request):
        sent.append((request.url.path, request.url.query, request.read()))
        return handle(transport, request)

    with server() as transport:
        monkeypatch.setattr(httpx.HTTPTransport, "handle_request", record)
        examine(transport.url, "--protocol", "horizontal-dbscan")
    assert set(sent) == {("/check", b"", b"")}


def test_the_keys_of_a_site_are_read(site):
    with server() as transport:
        found = examine(transport.url, "--secure-key", "tokens/0.key")
    assert found["--secure-key"] == ("ok", "the key of 0, one of 3 sites")


def test_a_site_that_takes_part_can_be_examined(site):
    """The check changes nothing for its process."""
    token = Path("tokens/0.token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Fedlib-Session": "a"}
    headers["Fedlib-Version"] = __version__
    with (
        server(gone_after=60) as transport,
        httpx.Client(base_url=transport.url, headers=headers, trust_env=False) as link,
    ):
        assert link.post("/join").status_code == 200
        before = transport.status().clients[0].since
        examine(transport.url)
        assert transport.status().clients[0].since == before
        assert link.post("/leave").status_code == 200


@pytest.mark.parametrize(
    ("options", "subject", "text"),
    [
        (["--columns", "z"], "data", "there is no column z"),
        (["--protocol", "kmeans"], "protocol", "this site agrees to 'kmeans' only"),
        (["--protocol", "k-means"], "data", "--protocol must be one of"),
        (["--ca", "no.pem"], "certificate", "--ca no.pem cannot be read"),
        (["--state-dir", "0.csv/state"], "--state-dir", "cannot be written; choose another"),
        (["--n-jobs", "2"], "protocol", "has no option n_jobs"),
        (["--proxy", "host:1"], "reachability", "proxy must begin with http://"),
        (["--secure-key", "0.csv"], "--secure-key", "must contain the sites' public keys"),
        (
            ["--secure-key", "0.csv", "--public-keys", "tokens/keys.json"],
            "--secure-key",
            "0.csv must contain a site's private key",
        ),
        (["--public-keys", "tokens/keys.json"], "--secure-key", "--public-keys needs --secure-key"),
    ],
)
def test_one_problem_of_a_site(options, subject, text, site):
    with server() as transport:
        state, found = examine(transport.url, *options, code=1)[subject]
    assert (state, text in found) == ("fix", True), found


def test_problems_with_files(site):
    with server() as transport:
        assert examine(transport.url, code=1, data="no.csv")["data"][0] == "fix"
        assert examine(transport.url, code=1, token="no.token")["token"][0] == "fix"
        Path("tokens/0.token").chmod(0o644)
        state, text = examine(transport.url, code=1)["--token-file"]
        assert (state, "chmod 600" in text) == ("fix", True)


def test_problems_with_the_server(site, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    for url, remedy in {
        closed: "check the port in the URL, and whether the server runs",
        "http://no-such-host.invalid": "check the server's name in the URL",
        "http://example.org": "beyond the loopback interface",
    }.items():
        options = ["--insecure"] if "invalid" in url else []
        state, text = examine(url, *options, code=1)["reachability"]
        assert (state, remedy in text) == ("fix", True), text
    with server() as transport:
        invoke("token", "0", "--renew")
        state, text = examine(transport.url, code=1)["token"]
        assert (state, "ask the server's operator for a new one" in text) == ("fix", True)
    with server() as transport:
        monkeypatch.setattr("fedlib.transports.http.client.__version__", "99.1")
        state, text = examine(transport.url, code=1)["version"]
        assert (state, "the site has fedlib '99.1', the server" in text) == ("fix", True)


def answering(monkeypatch, response):
    """Let every server give the same answer."""
    from fedlib.transports.http import diagnosis

    @contextmanager
    def stream(self, method, path):
        yield response

    monkeypatch.setattr(httpx.Client, "stream", stream)
    monkeypatch.setattr(diagnosis, "_certificate", lambda response: "")


def test_a_wrong_clock_and_another_server(site, monkeypatch):
    date = email.utils.formatdate(time.time() - 3600, usegmt=True)
    answering(monkeypatch, httpx.Response(200, text="hello", headers={"Date": date}))
    found = examine("http://127.0.0.1:1", code=1)
    assert re.fullmatch(r"360\d s ahead of the server's; synchronise .*", found["clock"][1])
    assert found["version"][0] == "fix"
    assert "is that of a server of fedlib" in found["version"][1]


@pytest.mark.parametrize(
    ("error", "subject", "remedy"),
    [
        (httpx.ProxyError("403 Forbidden"), "reachability", "ask who runs the proxy"),
        (httpx.ConnectTimeout("timed out"), "reachability", "in the firewall, or use --proxy"),
        (httpx.ReadError("cut"), "reachability", "with https:// if it uses TLS"),
        (
            httpx.ConnectError("CERTIFICATE_VERIFY_FAILED: certificate has expired"),
            "certificate",
            "correct this machine's clock",
        ),
        (
            httpx.ConnectError("CERTIFICATE_VERIFY_FAILED: Hostname mismatch"),
            "certificate",
            "by a name that is in its certificate",
        ),
        (
            httpx.ConnectError("CERTIFICATE_VERIFY_FAILED: self-signed certificate"),
            "certificate",
            "name the file of the authority that has signed it with --ca",
        ),
    ],
)
def test_errors_on_the_way(error, subject, remedy, site, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(httpx.Client, "stream", fail)
    state, text = examine("http://127.0.0.1:1", code=1)[subject]
    assert (state, remedy in text) == ("fix", True), text


def test_the_end_of_a_certificate():
    from fedlib.transports.http.diagnosis import _validity

    def in_days(n):
        return time.strftime("%b %d %H:%M:%S %Y GMT", time.gmtime(time.time() + 86400 * n))

    assert _validity(in_days(30)).ok
    soon = _validity(in_days(3))
    assert (soon.ok, soon.text.endswith("let the server's operator renew it")) == (False, True)
